package meter

import (
	"errors"
	"fmt"
)

// asm writes instructions. Function operands are in the rewriter's index space
// and renumbered by rewriteBody.
type asm struct{ b []byte }

func (a *asm) raw(b ...byte) *asm {
	a.b = append(a.b, b...)
	return a
}

func (a *asm) op(op byte, operand uint32) *asm {
	a.b = appendUleb(append(a.b, op), operand)
	return a
}

func (a *asm) i32(v int32) *asm {
	a.b = appendSleb(append(a.b, opI32Const), int64(v))
	return a
}

// charge is one check: subtract what push leaves on the stack from the fuel and
// call the hook if it falls below zero. t is a local i32 that it may use.
//
// The way with fuel left comes first, here and in chargeBack: where ways meet,
// wazero keeps in registers what the first of them has there, and the call has nothing.
func (a *asm) charge(fuel, t, hook uint32, push func()) {
	a.op(opGlobalGet, fuel)
	push()
	a.raw(opI32Sub).op(opLocalTee, t).op(opGlobalSet, fuel)
	a.op(opLocalGet, t).i32(0).raw(opI32GeS, opIf, blockEmpty, opElse)
	a.op(opCall, hook).raw(opEnd)
}

// chargeBack is the check at a branch back to a loop: with fuel left it is that
// branch, and no other is taken. An if and a br, since wazero joins a comparison
// with an if, not with a br_if.
func (a *asm) chargeBack(fuel, t, hook, depth uint32) {
	a.op(opGlobalGet, fuel).i32(1).raw(opI32Sub).op(opLocalTee, t).op(opGlobalSet, fuel)
	a.op(opLocalGet, t).i32(0).raw(opI32GeS, opIf, blockEmpty).op(opBr, depth+1).raw(opEnd)
	a.op(opCall, hook).op(opBr, depth)
}

var i32x3 = FuncType{Params: []ValType{I32, I32, I32}}

// addBulkHelpers adds the chunked copy and fill for lengths above BulkChunk.
// A range out of bounds traps before anything is written, as the plain
// instruction would: a fill of two bytes at the last address is past any memory.
// Only modules with a memory get them.
func (w *rewriter) addBulkHelpers() {
	if !w.hasMemory {
		return
	}
	const d, s, n, t, chunk = 0, 1, 2, 3, 4
	locals := []localRun{{2, I32}}
	bulk := func(a *asm, fill bool) {
		if fill {
			a.raw(opPrefix, subMemoryFill, 0)
		} else {
			a.raw(opPrefix, subMemoryCopy, 0, 0)
		}
	}
	past := func(a *asm, at uint32) { // at + n > size of the memory, in 64 bits
		a.op(opLocalGet, at).raw(opI64ExtendU).op(opLocalGet, n).raw(opI64ExtendU, opI64Add)
		a.raw(opMemorySize, 0, opI64ExtendU, opI64Const, 16, opI64Shl, opI64GtU)
	}
	// piece is one turn of a chunk loop: check, then chunk = min(n, BulkChunk).
	piece := func(a *asm) {
		a.charge(w.g.fuel, t, hookImport, func() { a.i32(BulkChunk >> BulkShift) })
		a.op(opLocalGet, n).i32(BulkChunk).op(opLocalGet, n).i32(BulkChunk).raw(opI32LtU, 0x1b).op(opLocalSet, chunk)
	}
	step := func(a *asm, local uint32, op byte) {
		a.op(opLocalGet, local).op(opLocalGet, chunk).raw(op).op(opLocalSet, local)
	}
	for _, fill := range []bool{false, true} {
		a := &asm{}
		past(a, d)
		if !fill {
			past(a, s)
			a.raw(opI32Or)
		}
		a.raw(opIf, blockEmpty).i32(-1).i32(0).i32(2)
		bulk(a, true)
		a.raw(opUnreachable, opEnd)
		if !fill {
			// d - s >= n, unsigned: a forward copy never overwrites what it still has to read.
			a.op(opLocalGet, d).op(opLocalGet, s).raw(opI32Sub).op(opLocalGet, n).raw(opI32LtU, opIf, blockEmpty)
			a.raw(opLoop, blockEmpty)
			piece(a)
			step(a, n, opI32Sub)
			a.op(opLocalGet, d).op(opLocalGet, n).raw(opI32Add)
			a.op(opLocalGet, s).op(opLocalGet, n).raw(opI32Add)
			a.op(opLocalGet, chunk)
			bulk(a, false)
			a.op(opLocalGet, n).op(opBrIf, 0).raw(opEnd, opReturn, opEnd)
		}
		a.raw(opLoop, blockEmpty)
		piece(a)
		a.op(opLocalGet, d).op(opLocalGet, s).op(opLocalGet, chunk)
		bulk(a, fill)
		step(a, d, opI32Add)
		if !fill {
			step(a, s, opI32Add)
		}
		step(a, n, opI32Sub)
		a.op(opLocalGet, n).op(opBrIf, 0).raw(opEnd, opEnd)
		if fill {
			w.fillFn = w.addFunc(i32x3, "sandbed_fill", locals, a.b)
		} else {
			w.copyFn = w.addFunc(i32x3, "sandbed_copy", locals, a.b)
		}
	}
}

// rewriteBody inserts the checks into body i and renumbers its calls.
func (w *rewriter) rewriteBody(i int, own bool) error {
	b := &w.bodies[i]
	f := uint32(w.importedFuncs + i)
	params := len(w.typeOf(f).Params)
	base := uint32(params)
	for _, l := range b.locals {
		base += l.n
	}
	// Scratch locals of the checks, added only if one is used.
	t, x, y, z := base, base+1, base+2, base+3
	used := false
	a := &asm{b: make([]byte, 0, len(b.code)+len(b.code)/4)}
	charge := func(push func()) {
		used = true
		a.charge(w.g.fuel, t, w.renumber(hookImport), push)
	}
	checks := !w.o.NoChecks && !own
	var plan loopPlan // the meter's own functions have none
	if !own {
		plan = w.plans[i]
	}
	atBranch := []bool{false} // by block: a loop that is checked where branches lead back
	if !own {
		for _, mk := range w.marks[f] {
			if mk.address >= 0 {
				a.op(opLocalGet, uint32(mk.Param)).i32(int32(mk.address)).raw(opI32Eq, opIf, blockEmpty)
			}
			a.i32(mk.Kind).op(opGlobalSet, w.g.pending)
			if w.markHook != 0 {
				a.i32(mk.Kind).op(opCall, w.renumber(w.markHook))
			}
			if mk.address >= 0 {
				a.raw(opEnd)
			}
		}
		if w.entries[f] {
			charge(func() { a.i32(1) })
		}
	}
	var previous, before instr
	var fail error
	err := walk(b.code, func(in instr) {
		defer func() { before, previous = previous, in }()
		keep := func() { a.raw(b.code[in.from:in.to]...) }
		switch in.op {
		case opBlock, opIf, opLoop:
			atBranch = append(atBranch, in.op == opLoop && plan[in.from] && checks)
		case opEnd:
			atBranch = atBranch[:len(atBranch)-1]
		}
		switch {
		case (in.op == opBr || in.op == opBrIf) && atBranch[len(atBranch)-1-int(in.imm)]:
			depth := uint32(in.imm)
			if in.op == opBrIf {
				a.raw(opIf, blockEmpty)
				depth++
			}
			used = true
			a.chargeBack(w.g.fuel, t, w.renumber(hookImport), depth)
			if in.op == opBrIf {
				a.raw(opEnd)
			}
			w.out.Loops++
		case in.op == opLoop && atBranch[len(atBranch)-1]:
			keep()
		case in.op == opCall || in.op == opRefFunc:
			target := uint32(in.imm)
			if to, ok := w.redirect[target]; ok && f != to {
				target = to
			}
			a.op(in.op, w.renumber(target))
		case in.op == opLoop && checks:
			keep()
			charge(func() { a.i32(1) })
			w.out.Loops++
		case in.op == opGlobalSet && in.imm == w.sp && checks && !(previous.op == opI32Add && before.op == opI32Const && before.imm > 0):
			// (Adding a constant gives a frame back: it only goes up.)
			used = true
			w.out.StackWrites++
			a.op(opLocalTee, t)
			keep()
			// The low-water mark is below every ordinary write, so one compare
			// is all that they cost.
			a.op(opLocalGet, t).op(opGlobalGet, w.g.low).raw(opI32LtU, opIf, blockEmpty)
			a.op(opLocalGet, t).op(opGlobalSet, w.g.low)
			a.op(opLocalGet, t).op(opGlobalGet, w.g.limit).raw(opI32LtU, opIf, blockEmpty, opUnreachable, opEnd, opEnd)
		case in.op == opPrefix && (in.sub == subMemoryCopy || in.sub == subMemoryFill) && checks:
			w.out.Bulk++
			if previous.op == opI32Const && previous.to == in.from && uint32(previous.imm) < smallBulk {
				keep()
				return
			}
			helper := w.copyFn
			if in.sub == subMemoryFill {
				helper = w.fillFn
			}
			used = true
			a.op(opLocalSet, z).op(opLocalSet, y).op(opLocalSet, x)
			a.op(opLocalGet, z).i32(BulkChunk).raw(opI32GtU, opIf, blockEmpty)
			a.op(opLocalGet, x).op(opLocalGet, y).op(opLocalGet, z).op(opCall, w.renumber(helper)).raw(opElse)
			charge(func() { a.op(opLocalGet, z).i32(BulkShift).raw(opI32ShrU) })
			a.op(opLocalGet, x).op(opLocalGet, y).op(opLocalGet, z)
			keep()
			a.raw(opEnd)
		case in.op == opPrefix && checks && (in.sub == subMemoryInit || in.sub == subTableInit || in.sub == subTableCopy || in.sub == subTableFill || in.sub == subTableGrow):
			// The length, on top of the stack, is bounded by a segment or a
			// table, which boundBulk bounds; it is charged as it stands.
			if fail == nil {
				fail = w.boundBulk(in)
			}
			w.out.Bulk++
			a.op(opLocalTee, z)
			a.op(opLocalGet, z).i32(BulkShift).raw(opI32ShrU).op(opLocalSet, y)
			charge(func() { a.op(opLocalGet, y) })
			keep()
		default:
			keep()
		}
	})
	if err != nil || fail != nil {
		return errors.Join(err, fail)
	}
	if used {
		b.locals = append(append([]localRun(nil), b.locals...), localRun{4, I32})
	}
	b.code = a.b
	return nil
}

// boundBulk refuses an instruction that could move more than BulkChunk at once
// and has no chunked form here.
func (w *rewriter) boundBulk(in instr) error {
	if in.sub == subMemoryInit {
		if in.imm >= int64(len(w.dataSegments)) || len(w.dataSegments[in.imm]) > BulkChunk {
			return fmt.Errorf("memory.init of data segment %d: it is missing or larger than %d bytes", in.imm, BulkChunk)
		}
		return nil
	}
	const most = BulkChunk / 8 // a table entry takes 8 bytes
	for i, t := range w.tables {
		if !t.hasMax || t.max > most {
			return fmt.Errorf("a table instruction in a module whose table %d has no maximum of at most %d", i, most)
		}
	}
	if w.importedTables > 0 {
		return errors.New("a table instruction in a module that imports a table")
	}
	return nil
}
