package meter

import (
	"cmp"
	"fmt"
	"slices"
)

// chooseEntries picks the functions that get a check at their entry, so that
// with the loop checks every cycle of calls passes one, and no fan-out of calls
// runs through more than about maxStraight instructions without one.
//
// A call inside a loop has passed the loop's check since its function was
// entered; only the other calls can form a cycle without a check. What is left
// is a feedback vertex set of that graph, chosen greedily.
func chooseEntries(m *module) (map[uint32]bool, error) {
	n := len(m.funcs)
	calls := make([][]uint32, n)   // edges that no loop's check guards, with repetition
	guarded := make([][]uint32, n) // the others
	size := make([]int, n)
	byType := tableTargets(m)
	for i := range m.bodies {
		f := m.importedFuncs + i
		var fail error
		err := walk(m.bodies[i].code, func(in instr, loops, _ int) {
			size[f]++
			edges := &calls[f]
			if loops > 0 {
				edges = &guarded[f]
			}
			switch in.op {
			case opCall:
				if in.imm >= int64(n) {
					fail = fmt.Errorf("function %d calls function %d of %d", f, in.imm, n)
					return
				}
				*edges = append(*edges, uint32(in.imm))
			case opCallIndirect:
				if in.imm >= int64(len(m.types)) {
					fail = fmt.Errorf("function %d calls by type %d of %d", f, in.imm, len(m.types))
					return
				}
				*edges = append(*edges, byType(uint32(in.imm))...)
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
	// What a call runs through before its first check, callees first. Where the
	// sum is too large, the heaviest callees get checks: a check in the caller
	// would not shorten what comes behind it.
	weight := make([]int, n)
	lighten := func(f int, sites []uint32) int {
		sum := size[f]
		for _, c := range sites {
			if !entries[c] {
				sum += weight[c]
			}
		}
		if sum <= maxStraight {
			return sum
		}
		heavy := slices.Clone(sites)
		slices.SortFunc(heavy, func(a, b uint32) int { return cmp.Or(weight[b]-weight[a], int(a)-int(b)) })
		for _, c := range heavy {
			if sum <= maxStraight {
				break
			}
			if !entries[c] {
				if int(c) >= m.importedFuncs {
					entries[c] = true
				}
				for _, d := range sites {
					if d == c {
						sum -= weight[c]
					}
				}
			}
		}
		return sum
	}
	for _, scc := range components(calls, entries) { // in reverse topological order
		weight[scc[0]] = lighten(int(scc[0]), calls[scc[0]])
	}
	for f := range n {
		lighten(f, append(slices.Clone(calls[f]), guarded[f]...))
	}
	return entries, nil
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
		_ = walk(m.bodies[i].code, func(in instr, _, _ int) {
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
