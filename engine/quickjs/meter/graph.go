package meter

import (
	"fmt"
	"slices"
)

// chooseEntries picks the functions that get a check at their entry, so that
// with the loop checks every cycle of calls passes one, and no fan-out of calls
// runs through more than about maxStraight instructions without one.
//
// A call inside a loop with a check at its header has passed it since its function
// was entered; only the other calls can form a cycle without a check. What is left
// is a feedback vertex set of that graph, chosen greedily.
func chooseEntries(m *module) (map[uint32]bool, error) {
	n := len(m.funcs)
	calls := make([][]uint32, n) // edges that no loop's check guards
	byType := tableTargets(m)
	for i := range m.bodies {
		f := m.importedFuncs + i
		var fail error
		headers := []int{0} // by block: header checks passed since the entry
		err := walk(m.bodies[i].code, func(in instr) {
			passed := headers[len(headers)-1]
			switch in.op {
			case opLoop:
				if !m.plans[i][in.from] {
					passed++
				}
				headers = append(headers, passed)
			case opBlock, opIf:
				headers = append(headers, passed)
			case opEnd:
				headers = headers[:len(headers)-1]
			case opCall:
				if in.imm >= int64(n) {
					fail = fmt.Errorf("function %d calls function %d of %d", f, in.imm, n)
					return
				}
				if passed == 0 {
					calls[f] = append(calls[f], uint32(in.imm))
				}
			case opCallIndirect:
				if in.imm >= int64(len(m.types)) {
					fail = fmt.Errorf("function %d calls by type %d of %d", f, in.imm, len(m.types))
					return
				}
				if passed == 0 {
					calls[f] = append(calls[f], byType(uint32(in.imm))...)
				}
			}
		})
		if err != nil {
			return nil, err
		}
		if fail != nil {
			return nil, fail
		}
	}
	entries := map[uint32]bool{}
	for {
		cyclic := false
		for _, scc := range components(calls, entries) {
			if len(scc) == 1 && !slices.Contains(calls[scc[0]], scc[0]) {
				continue
			}
			cyclic = true
			entries[pick(scc, calls)] = true
		}
		if !cyclic {
			break
		}
	}
	if err := breakRuns(m, byType, calls, entries); err != nil {
		return nil, err
	}
	return entries, nil
}

// breakRuns adds entry checks where a run of instructions from one check to the
// next could be longer than maxStraight: fan-out of calls is no cycle, and runs as
// long as one. Callees come first, and a second pass weighs the calls that a
// loop's check guards, which have no such order.
func breakRuns(m *module, byType func(uint32) []uint32, calls [][]uint32, entries map[uint32]bool) error {
	var order []uint32
	for _, scc := range components(calls, entries) {
		order = append(order, scc...)
	}
	for f := range calls {
		if entries[uint32(f)] {
			order = append(order, uint32(f))
		}
	}
	run := make([]int, len(calls))
	for range 2 {
		for _, f := range order {
			if int(f) < m.importedFuncs {
				continue
			}
			longest, err := longestRun(m, f, func(in instr, before int) int {
				targets := []uint32{uint32(in.imm)}
				if in.op == opCallIndirect {
					targets = byType(uint32(in.imm))
				}
				after := 0
				for _, c := range targets {
					if int(c) >= m.importedFuncs && before+run[c] > maxStraight {
						entries[c] = true
					}
					if !entries[c] {
						after = max(after, before+run[c])
					}
				}
				return after
			})
			if err != nil {
				return err
			}
			run[f] = longest
		}
	}
	return nil
}

// longestRun bounds the instructions that one call of f runs through without a
// check, on the longest of its paths. call says what a run comes to by a call; behind
// a function with a check it begins anew. A branch back passes a check.
func longestRun(m *module, f uint32, call func(in instr, before int) int) (int, error) {
	const dead = -1
	type label struct {
		reach int // longest run that branches to its end
		above int // of an if without else: the run at its condition
		loop  bool
	}
	code := m.bodies[int(f)-m.importedFuncs].code
	plan := m.plans[int(f)-m.importedFuncs]
	labels := []label{{reach: dead, above: dead}}
	at, longest := 0, 0
	branch := func(depth uint32) {
		l := &labels[len(labels)-1-int(depth)]
		l.reach = max(l.reach, at)
	}
	err := walk(code, func(in instr) {
		if at != dead {
			at++
		}
		switch in.op {
		case opLoop:
			labels = append(labels, label{reach: dead, above: dead, loop: true})
			if at != dead && !plan[in.from] {
				at = 0
			}
		case opBlock:
			labels = append(labels, label{reach: dead, above: dead})
		case opIf:
			labels = append(labels, label{reach: dead, above: at})
		case opElse:
			l := &labels[len(labels)-1]
			branch(0)
			at, l.above = l.above, dead
		case opEnd:
			l := labels[len(labels)-1]
			labels = labels[:len(labels)-1]
			if at = max(at, l.above); !l.loop {
				at = max(at, l.reach)
			}
		case opBr:
			branch(uint32(in.imm))
			at = dead
		case opBrIf:
			branch(uint32(in.imm))
		case opBrTable:
			r := &reader{b: code, pos: in.from + 1}
			for range uint64(r.uleb()) + 1 {
				branch(r.uleb())
			}
			at = dead
		case opReturn, opUnreachable:
			at = dead
		case opCall, opCallIndirect:
			if at != dead {
				at = call(in, at)
			}
		}
		longest = max(longest, at)
	})
	return longest, err
}

// tableTargets gives the functions that a call by type may reach: those of the
// type that stand in an element segment or are taken by ref.func, and, if the
// table can be written from outside, every function of the type.
func tableTargets(m *module) func(t uint32) []uint32 {
	taken := map[uint32]bool{}
	for _, e := range m.elems {
		for i, f := range e.funcs {
			if !e.nulls[i] {
				taken[f] = true
			}
		}
	}
	for i := range m.bodies {
		_ = walk(m.bodies[i].code, func(in instr) {
			if in.op == opRefFunc && in.imm < int64(len(m.funcs)) {
				taken[uint32(in.imm)] = true
			}
		})
	}
	for _, f := range m.globalFuncs {
		taken[f] = true
	}
	open := m.importedTables > 0
	for _, e := range m.exports {
		open = open || e.kind == kindTable
	}
	cache := map[uint32][]uint32{}
	return func(t uint32) []uint32 {
		if list, ok := cache[t]; ok {
			return list
		}
		list := []uint32{}
		for f, ft := range m.funcs {
			if f >= m.importedFuncs && m.types[ft].equal(m.types[t]) && (open || taken[uint32(f)]) {
				list = append(list, uint32(f))
			}
		}
		cache[t] = list
		return list
	}
}

// pick chooses the function of a component whose check breaks most: it has most
// neighbours within the component, before and behind it.
func pick(scc []uint32, calls [][]uint32) uint32 {
	inside := map[uint32]bool{}
	for _, f := range scc {
		inside[f] = true
	}
	in, out := map[uint32]int{}, map[uint32]int{}
	for _, f := range scc {
		seen := map[uint32]bool{}
		for _, c := range calls[f] {
			if !inside[c] || seen[c] {
				continue
			}
			if c == f {
				return f // only its own check breaks a self-call
			}
			seen[c] = true
			out[f]++
			in[c]++
		}
	}
	best, bestScore := scc[0], -1
	for _, f := range scc {
		if s := in[f] * out[f]; s > bestScore {
			best, bestScore = f, s
		}
	}
	return best
}

// components are the strongly connected components of the graph without the
// functions in cut, in reverse topological order (Tarjan, with its own stack: a
// module may nest calls as deep as it has functions).
func components(calls [][]uint32, cut map[uint32]bool) [][]uint32 {
	n := len(calls)
	index, low := make([]int, n), make([]int, n)
	onStack := make([]bool, n)
	var stack []uint32
	var out [][]uint32
	next := 1
	type frame struct {
		f    uint32
		edge int
	}
	for root := range n {
		if index[root] != 0 || cut[uint32(root)] {
			continue
		}
		work := []frame{{uint32(root), 0}}
		for len(work) > 0 {
			top := &work[len(work)-1]
			f := top.f
			if top.edge == 0 {
				index[f], low[f] = next, next
				next++
				stack = append(stack, f)
				onStack[f] = true
			}
			descended := false
			for top.edge < len(calls[f]) {
				c := calls[f][top.edge]
				top.edge++
				if cut[c] {
					continue
				}
				if index[c] == 0 {
					work = append(work, frame{c, 0})
					descended = true
					break
				}
				if onStack[c] {
					low[f] = min(low[f], index[c])
				}
			}
			if descended {
				continue
			}
			if low[f] == index[f] {
				var scc []uint32
				for {
					g := stack[len(stack)-1]
					stack = stack[:len(stack)-1]
					onStack[g] = false
					scc = append(scc, g)
					if g == f {
						break
					}
				}
				out = append(out, scc)
			}
			work = work[:len(work)-1]
			if len(work) > 0 {
				p := work[len(work)-1].f
				low[p] = min(low[p], low[f])
			}
		}
	}
	return out
}
