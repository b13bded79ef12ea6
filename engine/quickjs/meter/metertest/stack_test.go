package metertest

import (
	"testing"

	quickjs "github.com/aperturerobotics/go-quickjs-wasi-reactor"

	"github.com/sandbed/sandbed/engine/quickjs/meter"
)

// unwatched lists the writes of the stack pointer that are not followed, without
// a way in between, by: if t < low { low = t; if t < limit { trap } }, where t is
// the value written. It catches every write below the limit as long as the host
// keeps low at or above limit. A write that adds a positive constant gives a frame
// back and needs no check.
func unwatched(t *testing.T, wasm []byte) (bad []uint32, writes int) {
	t.Helper()
	m, err := decode(wasm)
	if err != nil {
		t.Fatal(err)
	}
	index := map[string]uint32{}
	for _, e := range m.exports {
		if e.kind == ExportGlobal {
			index[e.name] = e.index
		}
	}
	sp, ok1 := index[meter.StackPointerExport]
	low, ok2 := index[meter.StackLowExport]
	limit, ok3 := index[meter.StackLimitExport]
	if !ok1 || !ok2 || !ok3 {
		t.Fatal("a global of the stack check is not exported")
	}
	watched := map[uint32]bool{} // writes of low that belong to a check
	for _, f := range m.funcs {
		for i := range f.body {
			if f.body[i].op != opGlobalSet || f.body[i].x != sp {
				continue
			}
			writes++
			if i > 1 && f.body[i-1].op == opI32Add && f.body[i-2].op == opI32Const && f.body[i-2].typ > 0 {
				continue
			}
			tmp := f.body[max(i-1, 0)]
			want := []instr{{op: opLocalTee, x: tmp.x}, {op: opGlobalSet, x: sp},
				{op: opLocalGet, x: tmp.x}, {op: opGlobalGet, x: low}, {op: opI32LtU}, {op: opIf},
				{op: opLocalGet, x: tmp.x}, {op: opGlobalSet, x: low},
				{op: opLocalGet, x: tmp.x}, {op: opGlobalGet, x: limit}, {op: opI32LtU}, {op: opIf},
				{op: opUnreachable}, {op: opEnd}, {op: opEnd}}
			match := i > 0 && i-1+len(want) <= len(f.body)
			for k := 0; match && k < len(want); k++ {
				got := f.body[i-1+k]
				match = got.op == want[k].op && (got.op == opIf || got.x == want[k].x)
			}
			if match {
				watched[f.body[i+6].off] = true
			} else {
				bad = append(bad, f.body[i].off)
			}
		}
	}
	for _, f := range m.funcs {
		for _, in := range f.body {
			if in.op == opGlobalSet && (in.x == limit || in.x == low && !watched[in.off]) {
				bad = append(bad, in.off)
			}
		}
	}
	return bad, writes
}

func TestQuickJSWatchesItsStackPointer(t *testing.T) {
	var o meter.Options
	o.Hook.Module, o.Hook.Name = handSpec.HookModule, handSpec.HookName
	o.StackPointer = StackPointer
	ins, err := meter.Instrument(quickjs.QuickJSWASM, o)
	if err != nil {
		t.Fatal(err)
	}
	bad, writes := unwatched(t, ins.Wasm)
	if writes < 100 {
		t.Errorf("%d writes of the stack pointer were found, want hundreds", writes)
	}
	for _, off := range bad {
		t.Errorf("at %#x: the stack pointer or its bounds are written without a check", off)
	}
	// The same with one comparison turned round.
	m, err := decode(ins.Wasm)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range m.funcs {
		for i := range f.body {
			if i+10 < len(f.body) && f.body[i].op == opGlobalSet && f.body[i+9].op == opI32LtU && f.body[i+10].op == opIf {
				ins.Wasm[f.body[i+9].off] = opI32GtU
				if bad, _ := unwatched(t, ins.Wasm); len(bad) == 0 {
					t.Error("a comparison is turned round, and nothing is found")
				}
				return
			}
		}
	}
	t.Error("no check was found to plant a fault in")
}
