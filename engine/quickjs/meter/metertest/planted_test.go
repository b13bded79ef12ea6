package metertest

import (
	"slices"
	"strings"
	"testing"

	quickjs "github.com/aperturerobotics/go-quickjs-wasi-reactor"

	"github.com/sandbed/sandbed/engine/quickjs/meter"
)

// An edit takes something away from one check, given as its instructions from
// global.get to end, or to the branch back that it guards.
type edit struct {
	name string
	do   func(wasm []byte, check []instr)
}

var edits = []edit{
	{"the check is gone", func(wasm []byte, check []instr) {
		last := check[len(check)-1]
		for at := check[0].off; at < last.off || at == last.off && last.op == opEnd; at++ {
			wasm[at] = opNop
		}
	}},
	{"c = 0", func(wasm []byte, check []instr) { wasm[check[1].off+1] = 0 }},
	{"c = -1", func(wasm []byte, check []instr) { wasm[check[1].off+1] = 0x7F }},
	{"the test is turned round", func(wasm []byte, check []instr) {
		wasm[check[7].off] = byte(opI32GeS + opI32LtS - check[7].op)
	}},
	{"the charge is added", func(wasm []byte, check []instr) { wasm[check[2].off] = opI32Add }},
	{"the hook is not called", func(wasm []byte, check []instr) {
		call := slices.IndexFunc(check, func(in instr) bool { return in.op == opCall })
		for at := check[call].off; at < check[call+1].off; at++ {
			wasm[at] = opNop
		}
	}},
}

// unit finds the checks of c = 1 in a module, as the meter emits them: in the
// bodies, by function.
func unit(t *testing.T, m *module) (found map[int][]int) {
	t.Helper()
	fuel, hook, faults := setup(m, handSpec)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	found = map[int][]int{}
	for i := range m.funcs {
		s := scanner{m: m, f: &m.funcs[i], fuel: fuel, hook: hook, checks: map[int]bool{}}
		if s.f.body == nil {
			continue
		}
		s.run()
		for at := range s.checks {
			if b := s.f.body; b[at-4].op == opGlobalGet && b[at-3].op == opI32Const && b[at-3].typ == 1 {
				found[i] = append(found[i], at-4)
			}
		}
		slices.Sort(found[i])
	}
	return found
}

func instrument(t *testing.T, wasm []byte) []byte {
	t.Helper()
	var o meter.Options
	o.Hook.Module, o.Hook.Name = handSpec.HookModule, handSpec.HookName
	ins, err := meter.Instrument(wasm, o)
	if err != nil {
		t.Fatal(err)
	}
	return ins.Wasm
}

// atBranch says whether a check of the meter is one at a branch back.
func atBranch(body []instr, at int) bool { return body[at+9].op == opBr }

// check is a check of the meter at that place of a body, whole.
func check(body []instr, at int) []instr {
	if atBranch(body, at) {
		return body[at : at+13]
	}
	return body[at : at+12]
}

// needed says whether the cycle that a check stands on has no other check: then
// what is done to it must be found.
func needed(m *module, f, at int) bool {
	b := m.funcs[f].body
	n := len(check(b, at))
	if atBranch(b, at) { // the only way round an innermost loop
		head := int(b[at+9].to[0])
		if b[head].op != opLoop {
			return false
		}
		for i := head + 1; i < int(b[head].x); i++ {
			if i >= at && i < at+n || i == at-1 && b[i].op == opIf {
				continue
			}
			switch b[i].op {
			case opLoop, opCall, opCallIndirect, opGlobalSet, opUnreachable, opReturn, opBr, opBrTable, opIf, opBlock, opElse:
				return false
			}
		}
		return true
	}
	// A loop of its own: its header stands before the check, and the way back
	// to it passes no other one if the loop is the innermost and makes no call.
	if at == 0 || b[at-1].op != opLoop {
		return false
	}
	back := false
	for i := at + n; i < int(b[at-1].x); i++ {
		switch b[i].op {
		case opLoop, opCall, opCallIndirect, opGlobalSet, opUnreachable, opReturn, opBr, opBrTable, opIf, opBlock, opElse:
			return false
		case opBrIf:
			back = back || int(b[i].to[0]) == at-1
		}
	}
	return back
}

// Each fault that is planted in one check of a metered module is found.
func TestPlantedFaultsAreFound(t *testing.T) {
	must, other, seen := 0, 0, 0
	for seed := uint64(1); seed <= 400; seed++ {
		wasm := instrument(t, Generate(seed, 60))
		if v, err := CheckCycles(wasm, handSpec); err != nil || len(v) > 0 {
			t.Fatalf("seed %d before any edit: %v, %v", seed, v, err)
		}
		m, err := decode(wasm)
		if err != nil {
			t.Fatal(err)
		}
		for f, checks := range unit(t, m) {
			for k, at := range checks {
				e := edits[(int(seed)+k+f)%len(edits)]
				bad := slices.Clone(wasm)
				e.do(bad, check(m.funcs[f].body, at))
				v, err := CheckCycles(bad, handSpec)
				if err != nil {
					t.Fatalf("seed %d, function %d, %s: %v", seed, f, e.name, err)
				}
				hit := slices.ContainsFunc(v, func(v Violation) bool { return v.Kind == Loop || v.Kind == Recursion })
				switch {
				case needed(m, f, at):
					must++
					if !hit {
						t.Errorf("seed %d, function %d at %#x: %s, and nothing is found", seed, f, m.funcs[f].body[at].off, e.name)
					}
				default:
					other++
					if hit {
						seen++
					}
				}
			}
		}
	}
	// A check on a loop that never turns, or that another one covers, may be missed.
	t.Logf("%d faults on innermost loops, all to be found; %d others, of which %d were found", must, other, seen)
	if must < 50 || seen*2 < other {
		t.Errorf("too few faults to show anything")
	}
}

// In QuickJS: without its entry checks there is unmetered recursion, and without
// the check of the interpreter's own loop an unmetered loop.
func TestPlantedFaultsInQuickJS(t *testing.T) {
	wasm := instrument(t, quickjs.QuickJSWASM)
	m, err := decode(wasm)
	if err != nil {
		t.Fatal(err)
	}
	checks := unit(t, m)
	find := func(name string) int {
		i := slices.IndexFunc(m.funcs, func(f function) bool { return f.name == name })
		if i < 0 {
			t.Fatalf("no function %s", name)
		}
		return i
	}
	plant := func(want Kind, edited func(f, at int) bool) {
		t.Helper()
		bad := slices.Clone(wasm)
		n := 0
		for f, list := range checks {
			for _, at := range list {
				if edited(f, at) {
					edits[0].do(bad, check(m.funcs[f].body, at))
					n++
				}
			}
		}
		v, err := CheckCycles(bad, handSpec)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 || !slices.ContainsFunc(v, func(v Violation) bool { return v.Kind == want && len(v.Path) > 0 }) {
			t.Errorf("%d checks are gone, and no %s is found", n, want)
		}
		for _, x := range v {
			if s := x.String(); strings.Count(s, "\n") < 1 {
				t.Errorf("no way round is given: %s", s)
			}
		}
	}
	plant(Recursion, func(f, at int) bool { return at == 0 })
	// The interpreter's dispatch loop is the outermost of the function.
	call := find("JS_CallInternal")
	plant(Loop, func(f, at int) bool { return f == call })
	// A leaf's loop.
	leaf := find("lre_exec_backtrack")
	plant(Loop, func(f, at int) bool { return f == leaf })
}
