package metertest_test

import (
	"testing"

	quickjs "github.com/aperturerobotics/go-quickjs-wasi-reactor"

	"github.com/sandbed/sandbed/engine/quickjs/meter"
	"github.com/sandbed/sandbed/engine/quickjs/meter/metertest"
)

var spec = metertest.Spec{Fuel: meter.FuelExport, HookModule: "sandbed", HookName: "hook"}

func options() meter.Options {
	var o meter.Options
	o.Hook.Module, o.Hook.Name = spec.HookModule, spec.HookName
	return o
}

// The pinned QuickJS has no cycle without a check.
func TestQuickJSHasNoUnmeteredCycle(t *testing.T) {
	o := options()
	o.StackPointer = "__stack_pointer"
	ins, err := meter.Instrument(quickjs.QuickJSWASM, o)
	if err != nil {
		t.Fatal(err)
	}
	v, err := metertest.CheckCycles(ins.Wasm, spec)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range v {
		t.Error(x)
	}
}

// Between two checks of QuickJS lies no long way either.
func TestQuickJSRunsNotFarUnchecked(t *testing.T) {
	ins, err := meter.Instrument(quickjs.QuickJSWASM, options())
	if err != nil {
		t.Fatal(err)
	}
	n, where, err := metertest.LongestRun(ins.Wasm, spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d instructions, in function %s", n, where)
	if n < 1000 || n > 4<<20 {
		t.Errorf("got %d instructions from one check to the next, want 1000 to %d", n, 4<<20)
	}
}

// Calls that fan out, each function calling the next many times, are no cycle,
// but run as long as one: the meter has to break them too.
func TestFanOutIsBroken(t *testing.T) {
	const depth, width = 40, 40
	for _, inLoop := range []bool{false, true} {
		b := metertest.NewBuilder()
		none := b.Type("", "")
		for i := range uint32(depth) {
			c := metertest.Asm()
			if inLoop {
				c.Loop(metertest.Void)
			}
			for range width {
				if i > 0 {
					c.Call(i - 1)
				}
			}
			if inLoop {
				c.End()
			}
			b.Func(none, "", c)
		}
		// A heavy leaf under one function, outside of the chain.
		c := metertest.Asm()
		for range 1000 {
			c.Call(depth - 1)
		}
		b.Export("f", metertest.ExportFunc, b.Func(none, "", c))
		ins, err := meter.Instrument(b.Bytes(), options())
		if err != nil {
			t.Fatal(err)
		}
		v, err := metertest.CheckCycles(ins.Wasm, spec)
		if err != nil || len(v) > 0 {
			t.Fatal(v, err)
		}
		n, where, err := metertest.LongestRun(ins.Wasm, spec)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d instructions, in function %s", n, where)
		// The meter keeps its own count, of instructions of the plain module, to 1<<24;
		// without it this module runs 40^40.
		if n > 1<<24 {
			t.Errorf("in a loop %v: got %d instructions from one check to the next, want at most %d", inLoop, n, 1<<24)
		}
	}
}
