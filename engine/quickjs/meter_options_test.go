package quickjs_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/sandbed/sandbed/engine/quickjs/meter"
	"github.com/sandbed/sandbed/engine/quickjs/meter/metertest"
)

const i32, i64 = string(rune(metertest.I32)), string(rune(metertest.I64))

// start instantiates an instrumented module with a hook that only refills.
func start(t *testing.T, wasm []byte, marks *[]int32) api.Module {
	t.Helper()
	ctx := context.Background()
	r := wazero.NewRuntime(ctx)
	t.Cleanup(func() { r.Close(ctx) })
	host := r.NewHostModuleBuilder("sandbed")
	host.NewFunctionBuilder().WithFunc(func(_ context.Context, m api.Module) { fuelOf(m).Set(1000) }).Export("hook")
	host.NewFunctionBuilder().WithFunc(func(kind int32) { *marks = append(*marks, kind) }).Export("mark")
	host.NewFunctionBuilder().WithFunc(func(a, b uint32) uint32 { return a*10 + b }).Export("interrupt")
	if _, err := host.Instantiate(ctx); err != nil {
		t.Fatal(err)
	}
	m, err := r.InstantiateWithConfig(ctx, wasm, wazero.NewModuleConfig().WithName(""))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func call(t *testing.T, m api.Module, name string, args ...uint64) uint64 {
	t.Helper()
	r, err := m.ExportedFunction(name).Call(context.Background(), args...)
	if err != nil {
		t.Fatalf("%s%v: %v", name, args, err)
	}
	if len(r) == 0 {
		return 0
	}
	return r[0]
}

func global(m api.Module, name string) api.MutableGlobal {
	return m.ExportedGlobal(name).(api.MutableGlobal)
}

// A write of the stack pointer below the limit traps, and the low-water mark
// keeps the deepest point of what did not.
func TestMeterStackPointer(t *testing.T) {
	b := metertest.NewBuilder()
	typ := b.Type(i32, "")
	b.Memory(1, 1)
	sp := b.Global(metertest.I32, true, metertest.Asm().I32(60000))
	b.Export("to", metertest.ExportFunc, b.Func(typ, "", metertest.Asm().Get(0).Op(0x24, sp)))
	b.Names(nil, map[uint32]string{sp: "__stack_pointer"})
	o := meterOptions()
	o.StackPointer = "__stack_pointer"
	out, err := meter.Instrument(b.Bytes(), o)
	if err != nil {
		t.Fatal(err)
	}
	if out.StackWrites != 1 {
		t.Fatalf("%d stack writes, want 1", out.StackWrites)
	}
	m := start(t, out.Wasm, nil)
	global(m, meter.StackLimitExport).Set(1000)
	for _, to := range []uint64{50000, 40000, 59000, 1000} {
		call(t, m, "to", to)
	}
	if low := global(m, meter.StackLowExport).Get(); low != 1000 {
		t.Errorf("the low-water mark is %d, want 1000", low)
	}
	// Below the limit, and far below zero, which is high as an unsigned number.
	if _, err := m.ExportedFunction("to").Call(context.Background(), 999); err == nil || !strings.Contains(err.Error(), "unreachable") {
		t.Errorf("a stack pointer below the limit gave %v, want a trap", err)
	}
	if low := global(m, meter.StackLowExport).Get(); low != 999 {
		t.Errorf("after the trap the low-water mark is %d, want 999 as the evidence", low)
	}
}

// Marks are set by name and by text; the capture keeps the results of its
// function, nested ones too, and retains and releases each once.
func TestMeterEvidence(t *testing.T) {
	b := metertest.NewBuilder()
	throw, build, keep := b.Type(i32, ""), b.Type(i32+i32, i64), b.Type(i32+i64, "")
	b.Memory(1, 1)
	b.Table(metertest.FuncRef, 1, 1)
	retained := b.Global(metertest.I64, true, metertest.Asm().I64(0))
	released := b.Global(metertest.I64, true, metertest.Asm().I64(0))
	next := b.Global(metertest.I64, true, metertest.Asm().I64(0))
	b.Data(metertest.Asm().I32(64), "\x00stack full\x00memory full\x00")
	sum := func(g uint32) *metertest.Code {
		return metertest.Asm().Op(0x23, g).Get(1).Op(0x7c).Op(0x24, g)
	}
	b.Func(keep, "", sum(retained)) // 0
	b.Func(keep, "", sum(released)) // 1
	// build(ctx, nest) = ++next, after building nest more.
	b.Func(build, i64, metertest.Asm(). // 2
						Op(0x23, next).I64(1).Op(0x7c).Op(0x22, 2).Op(0x24, next).
						Get(1).If(metertest.Void).Get(0).Get(1).I32(1).Op(0x6b).Call(3).Op(0x1a).End().
						Get(2))
	fail := b.Type(i32+i32, i64)
	b.Func(fail, "", metertest.Asm().Get(0).Get(1).Call(2)) // 3: fail(text, nest) = build(text, nest)
	b.Func(throw, "", metertest.Asm().Get(0).I32(0).Call(2).Op(0x1a))
	b.Export("fail", metertest.ExportFunc, 3)
	b.Export("plain", metertest.ExportFunc, 4)
	b.Export("retained", metertest.ExportGlobal, retained)
	b.Export("released", metertest.ExportGlobal, released)
	b.Names(map[uint32]string{0: "retain", 1: "release", 2: "build", 3: "fail", 4: "plain"}, nil)
	wasm := b.Bytes()

	options := func() meter.Options {
		o := meterOptions()
		o.Marks = []meter.Mark{{Func: "fail", Param: 0, Text: "memory full", Kind: 1}, {Func: "fail", Param: 0, Text: "stack full", Kind: 2}}
		o.MarkHook = &meter.Import{Module: "sandbed", Name: "mark", Type: meter.FuncType{Params: []meter.ValType{meter.I32}}}
		o.Capture = &meter.Capture{Func: "build", Retain: "retain", Release: "release"}
		o.Table = []meter.Func{{Import: &meter.Import{Module: "sandbed", Name: "interrupt",
			Type: meter.FuncType{Params: []meter.ValType{meter.I32, meter.I32}, Results: []meter.ValType{meter.I32}}}}}
		return o
	}
	out, err := meter.Instrument(wasm, options())
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Slots) != 1 || out.Slots[0] != 1 {
		t.Errorf("slots %v, want [1]", out.Slots)
	}
	var marks []int32
	m := start(t, out.Wasm, &marks)
	captured := func(i int) (kind, value uint64) {
		digit := string(rune('0' + i))
		return global(m, meter.CapturedKindExport+digit).Get(), global(m, meter.CapturedExport+digit).Get()
	}
	const stackText, memoryText = 65, 76
	call(t, m, "plain", 1) // value 1: built without a mark
	call(t, m, "fail", 7, 0)
	if kind, _ := captured(0); kind != 0 || len(marks) != 0 {
		t.Fatalf("a value without a mark was captured: kind %d, marks %v", kind, marks)
	}
	call(t, m, "fail", memoryText, 0) // value 3
	if kind, value := captured(0); kind != 1 || value != 3 {
		t.Errorf("captured %d of kind %d, want 3 of kind 1", value, kind)
	}
	call(t, m, "fail", stackText, 2) // value 4, with 5 and 6 built inside it
	for i, want := range []uint64{4, 5, 6, 3} {
		kind := uint64(2)
		if want == 3 {
			kind = 1
		}
		if k, v := captured(i); v != want || k != kind {
			t.Errorf("captured %d: value %d of kind %d, want %d of kind %d", i, v, k, want, kind)
		}
	}
	if want := []int32{1, 0, 2, 2, 2, 0, 0, 0}; !slices.Equal(marks, want) {
		t.Errorf("the mark hook saw %v, want %v", marks, want)
	}
	if got := m.ExportedGlobal("retained").Get(); got != 3+4+5+6 {
		t.Errorf("retained values sum to %d, want 18", got)
	}
	for range meter.Captures {
		call(t, m, "fail", memoryText, 0)
	}
	if got := m.ExportedGlobal("released").Get(); got != 3+4+5+6 {
		t.Errorf("after %d more the released values sum to %d, want 18", meter.Captures, got)
	}

	for names, spoil := range map[string]func(*meter.Options){
		"Hook":           func(o *meter.Options) { o.Hook.Name = "" },
		"StackPointer":   func(o *meter.Options) { o.StackPointer = "sp" },
		"no function":    func(o *meter.Options) { o.Marks[0].Func = "nobody" },
		"does not occur": func(o *meter.Options) { o.Marks[0].Text = "full" },
		"parameter 9":    func(o *meter.Options) { o.Marks[0].Param = 9 },
		"MarkHook":       func(o *meter.Options) { o.MarkHook.Type = meter.FuncType{} },
		"Marks":          func(o *meter.Options) { o.Marks = nil },
		"plain":          func(o *meter.Options) { o.Capture.Func = "plain" },
		"build":          func(o *meter.Options) { o.Capture.Retain = "build" },
	} {
		o := options()
		spoil(&o)
		if _, err := meter.Instrument(wasm, o); err == nil || !strings.Contains(err.Error(), names) {
			t.Errorf("got %v, want an error that says %q", err, names)
		}
	}
	if _, err := meter.Instrument(out.Wasm, options()); err == nil || !strings.Contains(err.Error(), "instrumented already") {
		t.Errorf("instrumenting twice gave %v", err)
	}
	again, err := meter.Instrument(wasm, options())
	if err != nil || string(again.Wasm) != string(out.Wasm) {
		t.Errorf("the same module and options gave other bytes (%v)", err)
	}
}
