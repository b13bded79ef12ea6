package metertest

import (
	"bytes"
	"maps"
	"slices"
	"testing"

	"github.com/sandbed/sandbed/engine/quickjs/meter"
)

// claimed are the opcodes that the generator makes: all that the checker knows
// but for externref's own and the constants of the assembler.
func claimed() []uint16 {
	ops := []uint16{opUnreachable, opNop, opBlock, opLoop, opIf, opElse, opEnd, opBr, opBrIf, opBrTable, opReturn, opCall,
		opCallIndirect, opDrop, opSelect, opSelectTyped, opLocalGet, opLocalSet, opLocalTee, opGlobalGet, opGlobalSet,
		opTableGet, opTableSet, opRefNull, opRefIsNull, opRefFunc, opDataDrop, opElemDrop, opTableGrow, opTableFill}
	return append(ops, slices.Sorted(maps.Keys(signatures))...)
}

func TestGenerateReachesEveryOpcode(t *testing.T) {
	count := map[uint16]int{}
	modules, starts, multi, params, endless := 0, 0, 0, 0, 0
	for seed := uint64(1); seed <= 600; seed++ {
		wasm := Generate(seed, 20+int(seed%10)*20)
		if !bytes.Equal(wasm, Generate(seed, 20+int(seed%10)*20)) {
			t.Fatalf("seed %d gives two modules", seed)
		}
		m, err := decode(wasm)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		modules++
		if m.start >= 0 {
			starts++
		}
		g := newGraph(m)
		for _, f := range m.funcs {
			for _, in := range f.body {
				count[in.op]++
				if (in.op == opBlock || in.op == opLoop || in.op == opIf) && in.typ >= 0 {
					if len(m.types[in.typ].results) > 1 {
						multi++
					}
					if len(m.types[in.typ].params) > 0 {
						params++
					}
				}
			}
		}
		for _, v := range g.cycles() {
			if v.Kind == Recursion {
				endless++
				break
			}
		}
	}
	const floor = 20
	for _, op := range claimed() {
		if count[op] < floor {
			t.Errorf("opcode %#x: made %d times, want at least %d", op, count[op], floor)
		}
		delete(count, op)
	}
	for op := range count {
		t.Errorf("opcode %#x is made and not claimed", op)
	}
	for what, n := range map[string]int{"start functions": starts, "blocks of several results": multi,
		"blocks with parameters": params, "modules with recursion": endless} {
		if n < floor {
			t.Errorf("%s: %d in %d modules, want at least %d", what, n, modules, floor)
		}
	}
}

// The checker refuses or reads whatever comes, and never panics.
func TestCheckCyclesSurvivesMutants(t *testing.T) {
	judged, refused := 0, 0
	for seed := uint64(1); seed <= 400; seed++ {
		wasm := instrument(t, Generate(seed, 60))
		for k := range uint64(25) {
			v, err := CheckCycles(Mutate(seed<<8+k, wasm), handSpec)
			switch {
			case err != nil:
				refused++
			case len(v) == 0 || v[0].Kind != Setup:
				judged++
			}
		}
	}
	if judged < 200 || refused < 200 {
		t.Errorf("%d mutants were judged, %d refused: that tests little", judged, refused)
	}
}

func FuzzCheckCycles(f *testing.F) {
	var o meter.Options
	o.Hook.Module, o.Hook.Name = handSpec.HookModule, handSpec.HookName
	for seed := range uint64(8) {
		ins, err := meter.Instrument(Generate(seed, 40), o)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(ins.Wasm)
	}
	f.Fuzz(func(t *testing.T, wasm []byte) {
		if v, err := CheckCycles(wasm, handSpec); err == nil && len(v) == 0 {
			if _, _, err := LongestRun(wasm, handSpec); err != nil {
				t.Error(err)
			}
		}
		if ins, err := meter.Instrument(wasm, o); err == nil {
			_, _ = CheckCycles(ins.Wasm, handSpec) // it may still be no valid module
		}
	})
}
