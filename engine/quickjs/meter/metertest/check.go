// Package metertest proves what package meter promises, without believing it:
// [CheckCycles] decodes an instrumented module on its own and shows that no
// cycle of control flow avoids the fuel check; [Generate] makes random valid
// modules and [Mutate] broken ones for the tests that run them. It is test
// support, made to be exact rather than fast.
//
// It does not validate: put the module through a wasm engine as well.
package metertest

import (
	"fmt"
	"slices"
	"strings"
)

// Spec names what the meter adds to a module.
type Spec struct {
	// Fuel is the name under which the fuel counter, a mutable i32 global
	// defined by the module, is exported.
	Fuel string
	// HookModule and HookName name the imported function, without parameters or
	// results, that a check calls when fuel is below zero.
	HookModule, HookName string
}

// The bounds that the checker holds a module to.
const (
	// maxBulk is the most that one bulk operation may work on: bytes of memory
	// or elements of a table.
	maxBulk = 1 << 20
	// volumeShift is the price of bulk operations: a unit for each 1<<volumeShift.
	volumeShift = 8
	// freeBulk is the constant length below which an operation is as good as
	// straight-line code and needs no charge.
	freeBulk = 4096
	// maxCharge keeps the counter from wrapping past the least i32.
	maxCharge = 1 << 24
)

// Kind says what a module does that it must not.
type Kind string

// The kinds of violation.
const (
	Loop      Kind = "loop"      // a cycle within one function has no check with c > 0 on it
	Recursion Kind = "recursion" // a cycle through calls has none
	FuelWrite Kind = "fuelWrite" // fuel is written other than by a check
	Bulk      Kind = "bulk"      // a bulk operation is not bounded, or not charged
	Setup     Kind = "setup"     // the fuel global or the hook is not what it has to be
)

// A Violation is one fault of a module.
type Violation struct {
	Kind Kind
	Func uint32 // index in the function index space; 0 with kind setup
	Name string // of that function, from the name section or the exports, if it has one
	Text string
	// Path is the shortest way found round an unmetered cycle: the entry into
	// each function and the branches taken. Empty for the other kinds.
	Path []Step
}

// A Step is one place on the way round a cycle.
type Step struct {
	Func   uint32
	Name   string
	Offset uint32 // of the instruction in the module
	What   string
}

func (v Violation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: function %d", v.Kind, v.Func)
	if v.Name != "" {
		fmt.Fprintf(&b, " (%.80q)", v.Name)
	}
	fmt.Fprintf(&b, ": %s", v.Text)
	for _, s := range v.Path {
		fmt.Fprintf(&b, "\n\tfunction %d (%.80q) at %#x: %s", s.Func, s.Name, s.Offset, s.What)
	}
	return b.String()
}

// CheckCycles reports every way in which an instrumented module could run
// without end unchecked. The error is a module that cannot be decoded, or that
// uses what the checker does not know (SIMD, threads, tail calls, exceptions,
// 64-bit memory).
//
// What it shows: let an execution be infinite. Either one activation runs
// infinitely many instructions, and so goes round a cycle of its function's
// control flow; or calls nest without end, and go round a cycle of entries and
// call sites. Both are cycles of one finite graph, whose nodes are instructions
// and whose edges are successors (a call's successor is the next instruction)
// and calls. Checks with c > 0 are taken out; what cycle is left is a violation.
// An indirect call may reach each function of its type that occurs in an
// element segment, a ref.func or an initialiser. Imports are taken to return
// and not to call back.
//
// It also shows that fuel is written by checks alone, and that each bulk
// operation is charged at least n>>8 and works on no more than 1<<20 bytes or
// elements, constant or compared before.
func CheckCycles(module []byte, spec Spec) ([]Violation, error) {
	_, v, err := analyse(module, spec)
	return v, err
}

// LongestRun returns an upper bound of the instructions that one activation and
// its calls run from one check to the next, and the function in which that
// stretch begins. Returning through frames that are past their last check comes
// on top: for each frame at most as much again. It is an error if the module
// has an unmetered cycle.
func LongestRun(module []byte, spec Spec) (instructions int64, function string, err error) {
	g, v, err := analyse(module, spec)
	if err != nil {
		return 0, "", err
	}
	for _, x := range v {
		if x.Kind != Bulk {
			return 0, "", fmt.Errorf("metertest: no longest run: %v", x)
		}
	}
	n, f := g.longest()
	return n, fmt.Sprintf("%d (%s)", f, g.m.funcs[f].name), nil
}

func analyse(module []byte, spec Spec) (*graph, []Violation, error) {
	m, err := decode(module)
	if err != nil {
		return nil, nil, err
	}
	fuel, hook, faults := setup(m, spec)
	if len(faults) > 0 {
		return nil, faults, nil
	}
	g := newGraph(m)
	var out []Violation
	for i := range m.funcs {
		f := &m.funcs[i]
		if f.body == nil {
			continue
		}
		s := scanner{m: m, f: f, fuel: fuel, hook: hook, checks: map[int]bool{}}
		s.track = slices.ContainsFunc(f.body, func(in instr) bool { return bulk(in.op) })
		s.run()
		for at := range s.checks {
			g.removed[g.base[i]+at] = true
		}
		for _, x := range s.faults {
			out = append(out, Violation{Kind: x.kind, Func: uint32(i), Name: f.name,
				Text: fmt.Sprintf("at %#x: %s", f.body[x.at].off, x.text)})
		}
	}
	return g, append(out, g.cycles()...), nil
}

// setup finds the fuel global and the hook.
func setup(m *module, spec Spec) (fuel, hook uint32, faults []Violation) {
	bad := func(format string, args ...any) {
		faults = append(faults, Violation{Kind: Setup, Text: fmt.Sprintf(format, args...)})
	}
	found := 0
	for _, e := range m.exports {
		if e.name == spec.Fuel && e.kind == 3 {
			fuel, found = e.index, found+1
		}
	}
	switch {
	case found != 1:
		bad("%d globals are exported as %q, want 1", found, spec.Fuel)
	case m.globals[fuel].imported || !m.globals[fuel].mutable || m.globals[fuel].typ != I32:
		bad("the global %q is not a mutable i32 of the module's own", spec.Fuel)
	}
	found = 0
	for i, f := range m.funcs[:m.imported] {
		if f.importModule == spec.HookModule && f.importName == spec.HookName {
			hook, found = uint32(i), found+1
		}
	}
	switch {
	case found != 1:
		bad("%d functions are imported as %q %q, want 1", found, spec.HookModule, spec.HookName)
	case m.typeOf(hook) != funcType{}:
		bad("the hook has parameters or results")
	}
	return fuel, hook, faults
}

// graph is the control flow of the whole module: a node for each instruction
// of each body, and one for each type that is called indirectly.
type graph struct {
	m       *module
	base    []int // the first node of each function; imports have none
	owner   []uint32
	byType  map[funcType]int // nodes of the indirect calls
	targets [][]int          // entries that such a node leads to, from node first on
	first   int
	removed []bool // checks
	live    []bool // what the entry of its function reaches
	// returns says of each function that it may come back without a check.
	returns []bool
}

func newGraph(m *module) *graph {
	g := &graph{m: m, base: make([]int, len(m.funcs)), byType: map[funcType]int{}}
	n := 0
	for i, f := range m.funcs {
		g.base[i] = n
		n += len(f.body)
		for range f.body {
			g.owner = append(g.owner, uint32(i))
		}
	}
	g.first = n
	for f := range m.funcs {
		if !m.taken[uint32(f)] || m.funcs[f].body == nil {
			continue
		}
		t := m.typeOf(uint32(f))
		node, ok := g.byType[t]
		if !ok {
			node = g.first + len(g.targets)
			g.byType[t] = node
			g.targets = append(g.targets, nil)
		}
		g.targets[node-g.first] = append(g.targets[node-g.first], g.base[f])
	}
	g.removed = make([]bool, g.first+len(g.targets))
	return g
}

// within calls yield with each successor in the same function.
func (g *graph) within(n int, yield func(int)) {
	base := g.base[g.owner[n]]
	in := &g.m.funcs[g.owner[n]].body[n-base]
	at := n - base
	switch in.op {
	case opUnreachable, opReturn:
	case opElse, opBr, opBrTable:
		for _, t := range in.to {
			yield(base + int(t))
		}
	case opBrIf:
		yield(base + int(in.to[0]))
		yield(n + 1)
	case opIf:
		yield(n + 1)
		if in.y != 0 {
			yield(base + int(in.y) + 1)
		} else {
			yield(base + int(in.x))
		}
	case opCall:
		if g.returns[in.x] {
			yield(n + 1)
		}
	default:
		if at+1 < len(g.m.funcs[g.owner[n]].body) {
			yield(n + 1)
		}
	}
}

// all calls yield with each successor, calls included.
func (g *graph) all(n int, yield func(int)) {
	if n < g.first {
		g.within(n, yield)
	}
	g.calls(n, yield)
}

// calls calls yield with each entry that n leads to.
func (g *graph) calls(n int, yield func(int)) {
	if n >= g.first {
		for _, t := range g.targets[n-g.first] {
			yield(t)
		}
		return
	}
	switch in := &g.m.funcs[g.owner[n]].body[n-g.base[g.owner[n]]]; in.op {
	case opCall:
		if g.m.funcs[in.x].body != nil {
			yield(g.base[in.x])
		}
	case opCallIndirect:
		if t, ok := g.byType[g.m.types[in.x]]; ok {
			yield(t)
		}
	}
}

// mayReturn finds the functions that can come back without passing a check: a
// call of another one cannot be part of an unmetered way. It is the least
// fixpoint, since a way that comes back is finite.
func (g *graph) mayReturn() {
	g.returns = make([]bool, len(g.m.funcs))
	for i := range g.m.imported {
		g.returns[i] = true
	}
	seen := make([]int, g.first)
	var work []int
	for round, changed := 1, true; changed; round++ {
		changed = false
		for f := range g.m.funcs {
			if g.returns[f] || g.m.funcs[f].body == nil {
				continue
			}
			work = append(work[:0], g.base[f])
			seen[g.base[f]] = round
			for len(work) > 0 && !g.returns[f] {
				n := work[len(work)-1]
				work = work[:len(work)-1]
				if g.removed[n] {
					continue
				}
				body := g.m.funcs[f].body
				if at := n - g.base[f]; at == len(body)-1 || body[at].op == opReturn {
					g.returns[f], changed = true, true
				}
				g.within(n, func(t int) {
					if seen[t] != round {
						seen[t] = round
						work = append(work, t)
					}
				})
			}
		}
	}
}

// reachable marks what can run at all: what the entry of its function reaches.
// Every function counts as entered, whether something calls it or not.
func (g *graph) reachable() []bool {
	seen := make([]bool, g.first+len(g.targets))
	var work []int
	for f := range g.m.funcs {
		if g.m.funcs[f].body != nil {
			seen[g.base[f]] = true
			work = append(work, g.base[f])
		}
	}
	for len(work) > 0 {
		n := work[len(work)-1]
		work = work[:len(work)-1]
		g.all(n, func(t int) {
			if !seen[t] {
				seen[t] = true
				work = append(work, t)
			}
		})
	}
	return seen
}

// cycles reports the unmetered cycles that are left, loops first, and then
// those that only exist through calls: one for each strongly connected part.
func (g *graph) cycles() []Violation {
	g.mayReturn()
	// A call that never comes back but through a check does not make what
	// follows it unreachable.
	returns := g.returns
	g.returns = slices.Repeat([]bool{true}, len(returns))
	g.live = g.reachable()
	g.returns = returns

	var out []Violation
	skip := func(n int) bool { return g.removed[n] || !g.live[n] }
	for _, part := range components(g.first, skip, g.within) {
		out = append(out, g.violation(Loop, part, g.within))
	}
	for _, part := range components(g.first+len(g.targets), skip, g.all) {
		in := map[int]bool{}
		for _, n := range part {
			in[n] = true
		}
		// It is a recursion if it holds an edge of a call.
		if slices.ContainsFunc(part, func(n int) bool {
			if n >= g.first {
				return true
			}
			x := &g.m.funcs[g.owner[n]].body[n-g.base[g.owner[n]]]
			return x.op == opCall && g.m.funcs[x.x].body != nil && in[g.base[x.x]]
		}) {
			out = append(out, g.violation(Recursion, part, g.all))
		}
	}
	return out
}

// longest is the longest way, in instructions, that avoids the checks; the
// graph must have no cycle.
func (g *graph) longest() (int64, uint32) {
	const most = int64(1) << 50 // keeps sums from wrapping
	n := g.first + len(g.targets)
	run := make([]int64, n) // from this node on, 0: not known yet
	var best int64
	var where uint32
	var work []int
	for root := range n {
		if run[root] != 0 || g.removed[root] || !g.live[root] {
			continue
		}
		for work = append(work, root); len(work) > 0; {
			v := work[len(work)-1]
			if run[v] != 0 {
				work = work[:len(work)-1]
				continue
			}
			ready := true
			at := func(t int) int64 {
				if g.removed[t] {
					return 0
				}
				if run[t] == 0 {
					ready = false
					work = append(work, t)
				}
				return run[t]
			}
			// After a call comes what follows it, besides the callee's own way;
			// elsewhere the longest of the successors.
			var next, callee int64
			if v < g.first {
				g.within(v, func(t int) { next = max(next, at(t)) })
			}
			g.calls(v, func(t int) { callee = max(callee, at(t)) })
			if !ready {
				continue
			}
			run[v] = min(1+next+callee, most)
			if v < g.first && run[v] > best {
				best, where = run[v], g.owner[v]
			}
		}
	}
	return best, where
}

// violation describes a part by a shortest cycle through its first node.
func (g *graph) violation(kind Kind, part []int, succ func(int, func(int))) Violation {
	in := make(map[int]bool, len(part))
	for _, n := range part {
		in[n] = true
	}
	start := slices.Min(part)
	if kind == Recursion { // begin at an entry
		for _, n := range slices.Sorted(slices.Values(part)) {
			if n < g.first && n == g.base[g.owner[n]] {
				start = n
				break
			}
		}
	}
	from := map[int]int{}
	queue := []int{start}
	for found := false; len(queue) > 0 && !found; queue = queue[1:] {
		n := queue[0]
		succ(n, func(t int) {
			if _, ok := from[t]; !ok && in[t] {
				from[t] = n
				queue = append(queue, t)
				found = found || t == start
			}
		})
	}
	var way []int
	for n := from[start]; n != start; n = from[n] {
		way = append(way, n)
	}
	way = append(way, start)
	slices.Reverse(way)

	funcs := map[uint32]bool{}
	for _, n := range part {
		if n < g.first {
			funcs[g.owner[n]] = true
		}
	}
	f := g.owner[start]
	v := Violation{Kind: kind, Func: f, Name: g.m.funcs[f].name}
	v.Text = fmt.Sprintf("an unmetered cycle over %d instructions in %d functions", len(part), len(funcs))
	for i, n := range way {
		if n >= g.first {
			continue
		}
		next := way[(i+1)%len(way)]
		op := g.m.funcs[g.owner[n]].body[n-g.base[g.owner[n]]].op
		what := ""
		switch {
		case op == opCallIndirect && next >= g.first:
			what = "calls indirectly"
		case op == opCall && next != n+1:
			what = "calls"
		case i == 0:
			what = "begins"
		case next != n+1:
			what = "branches"
		default:
			continue
		}
		if len(v.Path) < 32 {
			v.Path = append(v.Path, Step{g.owner[n], g.m.funcs[g.owner[n]].name,
				g.m.funcs[g.owner[n]].body[n-g.base[g.owner[n]]].off, what})
		}
	}
	return v
}

// components returns the strongly connected parts that hold a cycle, after
// Tarjan, without recursion.
func components(n int, skip func(int) bool, succ func(int, func(int))) [][]int {
	type frame struct {
		node int
		next []int
	}
	var (
		out   [][]int
		order = make([]int32, n) // 0: not visited
		low   = make([]int32, n)
		on    = make([]bool, n)
		stack []int
		work  []frame
		count int32
	)
	enter := func(v int) {
		count++
		order[v], low[v], on[v] = count, count, true
		stack = append(stack, v)
		var next []int
		succ(v, func(t int) {
			if !skip(t) {
				next = append(next, t)
			}
		})
		work = append(work, frame{v, next})
	}
	for root := range n {
		if order[root] != 0 || skip(root) {
			continue
		}
		for enter(root); len(work) > 0; {
			f := &work[len(work)-1]
			if len(f.next) > 0 {
				t := f.next[0]
				f.next = f.next[1:]
				if order[t] == 0 {
					enter(t)
				} else if on[t] {
					low[f.node] = min(low[f.node], order[t])
				}
				continue
			}
			v := f.node
			work = work[:len(work)-1]
			if len(work) > 0 {
				p := work[len(work)-1].node
				low[p] = min(low[p], low[v])
			}
			if low[v] != order[v] {
				continue
			}
			at := len(stack) - 1
			for stack[at] != v {
				at--
			}
			part := slices.Clone(stack[at:])
			stack = stack[:at]
			for _, w := range part {
				on[w] = false
			}
			self := false
			succ(v, func(t int) { self = self || t == v })
			if len(part) > 1 || self {
				out = append(out, part)
			}
		}
	}
	return out
}
