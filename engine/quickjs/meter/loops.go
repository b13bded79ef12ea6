package meter

import "fmt"

// maxBranchChecks is how many branches may lead back to a loop that is checked
// at them; a loop with more is checked at its header.
const maxBranchChecks = 4

// loopPlan says of every loop of a body, by the place of its instruction, where
// its check stands: true at the branches that lead back to it, false at its header.
//
// At the branches, the first turn is free, and most loops of QuickJS turn once
// (the hash chain of a property, say): on the workloads this halved what loops cost.
// A loop that many branches lead back to (the interpreter's), or a br_table, or
// that takes parameters, is checked at its header.
type loopPlan map[int]bool

func planLoops(m *module, code []byte) (loopPlan, error) {
	type label struct {
		from     int // of a loop, else -1
		branches int
	}
	plan := loopPlan{}
	labels := []label{{from: -1}}
	var fail error
	back := func(depth uint32, n int) {
		if int(depth) >= len(labels) {
			fail = fmt.Errorf("a branch to label %d of %d", depth, len(labels))
			return
		}
		labels[len(labels)-1-int(depth)].branches += n
	}
	err := walk(code, func(in instr) {
		switch in.op {
		case opBlock, opIf:
			labels = append(labels, label{from: -1})
		case opLoop:
			l := label{from: in.from}
			if in.imm >= int64(len(m.types)) {
				fail = fmt.Errorf("a loop of type %d of %d", in.imm, len(m.types))
			} else if in.imm >= 0 && len(m.types[in.imm].Params) > 0 {
				l.branches = maxBranchChecks + 1
			}
			labels = append(labels, l)
		case opEnd:
			l := labels[len(labels)-1]
			labels = labels[:len(labels)-1]
			if l.from >= 0 {
				plan[l.from] = l.branches <= maxBranchChecks
			}
		case opBr, opBrIf:
			back(uint32(in.imm), 1)
		case opBrTable:
			r := &reader{b: code, pos: in.from + 1}
			for range uint64(r.uleb()) + 1 {
				back(r.uleb(), maxBranchChecks+1)
			}
		}
	})
	if err == nil {
		err = fail
	}
	return plan, err
}
