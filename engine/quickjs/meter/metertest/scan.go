package metertest

import (
	"fmt"
	"maps"
	"math"
)

// The scan walks one body in program order and follows what the values on the
// operand stack and in the locals stand for, as far as the proof needs it: the
// content of the fuel global, what was taken off it, constants, ranges, and
// which local a length came from. It finds the checks and judges the bulk
// operations. Whatever it does not follow is unknown, which never proves anything.

type kind uint8

const (
	vUnknown  kind = iota
	vInt           // an i32 in [lo, hi], unsigned
	vFuel          // the content id of the fuel global, or that less an amount in [lo, hi]
	vNegative      // 1 when the fuel content id is below zero, else 0
	vLeft          // 0 when the fuel content id is below zero, else 1
	vCompare       // a comparison of local of: it is ≤ hi if true, and ≤ lo if false
)

type val struct {
	kind     kind
	id, base uint32 // vFuel, vNegative: which content; the content it was taken off (0: none)
	lo, hi   uint32
	of       int64 // vInt: the value, or for vFuel the amount, is at least local of >> shift; -1: no local
	shift    uint8
	exact    bool // vInt: it is just the value of local of
}

var anyInt = val{kind: vInt, hi: math.MaxUint32, of: -1}

// spend is a write of the fuel global that still needs its test.
type spend struct {
	at     int
	id     uint32
	lo     uint32
	of     int64
	shift  uint8
	reason string // why it is no proper charge, if it is not
}

type state struct {
	locals  map[uint32]val
	charged map[uint32]bool // the volume that this local holds has been paid for
	fuel    uint32          // which content the global has now
	credit  uint32          // units paid just now by a constant charge
	spend   *spend
	dead    bool
}

func (s *state) clone() *state {
	c := *s
	c.locals, c.charged = maps.Clone(s.locals), maps.Clone(s.charged)
	return &c
}

// join keeps what holds on both ways.
func (s *state) join(o *state) {
	if o.dead {
		return
	}
	if s.dead {
		*s = *o.clone()
		return
	}
	for i, v := range s.locals {
		w, ok := o.locals[i]
		switch {
		case !ok:
			delete(s.locals, i)
		case v == w:
		case v.kind == vInt && w.kind == vInt:
			j := val{kind: vInt, lo: min(v.lo, w.lo), hi: max(v.hi, w.hi), of: -1}
			if v.of == w.of && v.shift == w.shift && v.exact == w.exact {
				j.of, j.shift, j.exact = v.of, v.shift, v.exact
			}
			s.locals[i] = j
		default:
			delete(s.locals, i)
		}
	}
	for i := range s.charged {
		if !o.charged[i] {
			delete(s.charged, i)
		}
	}
}

type ctrl struct {
	op      uint16
	end     int
	height  int    // of the stack below the block
	results string // what the block leaves
	exit    *state // join of the branches to its end
	orElse  *state // an if: the state with the condition false
	params  string
}

// scanner is the scan of one body.
type scanner struct {
	m     *module
	f     *function
	fuel  uint32 // index of the global
	hook  uint32 // index of the import
	track bool   // the body has bulk operations: follow locals past labels

	st     *state
	stack  []val
	ctrls  []ctrl
	nextID uint32

	checks map[int]bool // instructions that lie on a path if and only if a check with c > 0 does
	faults []fault
}

type fault struct {
	kind Kind
	at   int
	text string
}

// bulk says which operand is the length of a bulk operation: always the last.
func bulk(op uint16) bool {
	switch op {
	case opMemoryInit, opMemoryCopy, opMemoryFill, opTableInit, opTableCopy, opTableGrow, opTableFill:
		return true
	}
	return false
}

func (s *scanner) fresh() uint32 { s.nextID++; return s.nextID }

func (s *scanner) fault(k Kind, at int, format string, args ...any) {
	s.faults = append(s.faults, fault{k, at, fmt.Sprintf(format, args...)})
}

func (s *scanner) push(v val) { s.stack = append(s.stack, v) }

func (s *scanner) pushN(n int) {
	for ; n > 0; n-- {
		s.push(val{})
	}
}

// pop yields unknown below the block's own part of the stack: that happens in
// code that is no valid module, and in code behind a branch.
func (s *scanner) pop() val {
	if len(s.stack) == s.ctrls[len(s.ctrls)-1].height {
		return val{}
	}
	v := s.stack[len(s.stack)-1]
	s.stack = s.stack[:len(s.stack)-1]
	return v
}

// below is the height of the stack under the parameters of a block.
func (s *scanner) below(params string) int {
	return max(len(s.stack)-len(params), s.ctrls[len(s.ctrls)-1].height)
}

func (s *scanner) popN(n int) {
	for ; n > 0; n-- {
		s.pop()
	}
}

func freeze(v val) val {
	if v.kind == vCompare {
		return val{}
	}
	v.of, v.exact = -1, false
	return v
}

// written drops every reference to local i, whose value changes.
func (s *scanner) written(i uint32) {
	for j, v := range s.stack {
		if v.of == int64(i) && v.kind != vUnknown {
			s.stack[j] = freeze(v)
		}
	}
	for j, v := range s.st.locals {
		if v.of == int64(i) && v.kind != vUnknown {
			if v.exact && s.st.charged[i] {
				s.st.charged[j] = true
			}
			s.st.locals[j] = freeze(v)
		}
	}
	if sp := s.st.spend; sp != nil && sp.of == int64(i) {
		sp.of = -1
	}
	delete(s.st.locals, i)
	delete(s.st.charged, i)
}

func (s *scanner) get(i uint32) val {
	v, ok := s.st.locals[i]
	switch {
	case !ok:
		return val{kind: vInt, hi: math.MaxUint32, of: int64(i), exact: true}
	case v.kind == vInt && v.of < 0:
		v.of, v.exact, v.shift = int64(i), true, 0
	}
	return v
}

func (s *scanner) set(i uint32, v val) {
	if v.of == int64(i) && v.exact { // x = x
		return
	}
	if v.of == int64(i) {
		v = freeze(v)
	}
	s.written(i)
	if v.kind != vUnknown && (v.kind != vInt || v.of >= 0 || v.hi != math.MaxUint32 || v.lo != 0) {
		s.st.locals[i] = v
	}
}

// bound notes that local of is at most hi.
func (st *state) bound(of int64, hi uint32) {
	if of < 0 {
		return
	}
	v, ok := st.locals[uint32(of)]
	if !ok {
		v = anyInt
	}
	if v.kind == vInt {
		v.hi = min(v.hi, hi)
		st.locals[uint32(of)] = v
	}
}

// refine notes what follows from a condition that came out as truth.
func (st *state) refine(c val, truth bool) {
	if c.kind != vCompare {
		return
	}
	if truth {
		st.bound(c.of, c.hi)
	} else {
		st.bound(c.of, c.lo)
	}
}

// label forgets what does not survive a place that several ways lead to.
func (s *scanner) label() {
	s.st.fuel, s.st.credit = s.fresh(), 0
	if !s.track {
		clear(s.st.locals)
		clear(s.st.charged)
	}
}

func (s *scanner) branch(target uint32, at int, st *state) {
	if st.dead || int(target) <= at {
		return // back to a loop, whose header assumes nothing that could be broken here
	}
	for i := range s.ctrls {
		if c := &s.ctrls[i]; c.end == int(target) {
			if !s.track {
				st = &state{} // of which label keeps nothing
			}
			if c.exit == nil {
				c.exit = st.clone()
			} else {
				c.exit.join(st)
			}
		}
	}
}

func (s *scanner) die() {
	s.st = &state{dead: true}
	s.stack = s.stack[:s.ctrls[len(s.ctrls)-1].height]
}

func (s *scanner) blockType(typ int64) (params, results string) {
	switch {
	case typ == -64:
		return "", ""
	case typ < 0:
		return "", "x"
	}
	t := s.m.types[typ]
	return t.params, t.results
}

func newState() *state {
	return &state{locals: map[uint32]val{}, charged: map[uint32]bool{}}
}

func (s *scanner) run() {
	body := s.f.body
	s.st = newState()
	s.st.fuel = s.fresh()
	s.ctrls = []ctrl{{end: len(body) - 1}}
	for i := 0; i < len(body); i++ {
		in := &body[i]
		if s.st.dead && in.op != opEnd && in.op != opElse {
			if in.op == opBlock || in.op == opLoop || in.op == opIf {
				i = int(in.x) // nothing inside can run
			}
			continue
		}
		if s.st.spend != nil {
			switch in.op {
			case opLocalGet, opLocalSet, opLocalTee, opI32Const, opGlobalGet, opI32LtS, opI32GtS, opI32GeS, opNop, opIf, opBrIf:
			default:
				s.unspent()
			}
		}
		if n := s.step(i, in); n > 0 {
			i = n
		}
	}
	if s.st.spend != nil {
		s.unspent()
	}
}

func (s *scanner) unspent() {
	s.fault(FuelWrite, s.st.spend.at, "the fuel global is written, and not tested right after")
	s.st.spend = nil
}

// step interprets one instruction; a result above zero is the last
// instruction that has been dealt with.
func (s *scanner) step(i int, in *instr) int {
	body := s.f.body
	switch op := in.op; op {
	case opNop:
	case opUnreachable, opReturn:
		s.die()
	case opBlock, opLoop:
		params, results := s.blockType(in.typ)
		if op == opLoop {
			s.label()
			// The stack below outlives the writes of the body; what the locals hold does not.
			if s.track {
				for _, w := range body[i:in.x] {
					if w.op == opLocalSet || w.op == opLocalTee {
						s.written(w.x)
					}
				}
			}
			clear(s.st.charged)
			s.popN(len(params))
			s.pushN(len(params))
		}
		s.ctrls = append(s.ctrls, ctrl{op: op, end: int(in.x), height: s.below(params), results: results})
	case opIf:
		c := s.pop()
		if sp := s.st.spend; sp != nil {
			if c.kind == vNegative && c.id == sp.id && in.typ == -64 && in.y == 0 && int(in.x) == i+2 &&
				body[i+1].op == opCall && body[i+1].x == s.hook {
				s.settle(sp)
				return i + 2
			}
			if c.kind == vLeft && c.id == sp.id && in.typ == -64 {
				// With fuel left nothing happens; else the hook is called.
				if int(in.y) == i+1 && int(in.x) == i+3 && body[i+2].op == opCall && body[i+2].x == s.hook {
					s.settle(sp)
					return i + 3
				}
				// With fuel left it branches; else the hook is called, and the same branch taken.
				if in.y == 0 && int(in.x) == i+2 && body[i+1].op == opBr &&
					body[i+3].op == opCall && body[i+3].x == s.hook &&
					body[i+4].op == opBr && body[i+4].to[0] == body[i+1].to[0] {
					s.settle(sp)
					s.branch(body[i+1].to[0], i, s.st)
					s.die()
					return i + 4
				}
			}
			s.unspent()
		}
		params, results := s.blockType(in.typ)
		f := ctrl{op: op, end: int(in.x), height: s.below(params), results: results, params: params}
		f.orElse = s.st.clone()
		f.orElse.refine(c, false)
		s.st.refine(c, true)
		s.st.credit, f.orElse.credit = 0, 0
		if in.y == 0 { // no else: the false way leads to the end
			f.exit, f.orElse = f.orElse, nil
		}
		s.ctrls = append(s.ctrls, f)
	case opElse:
		c := &s.ctrls[len(s.ctrls)-1]
		s.branch(uint32(c.end), i, s.st)
		s.st, c.orElse = c.orElse, nil
		s.stack = s.stack[:c.height]
		// Parameters of the block: their values were not kept.
		s.pushN(len(c.params))
		s.st.credit = 0
	case opEnd:
		c := s.ctrls[len(s.ctrls)-1]
		if len(s.ctrls) == 1 {
			return 0
		}
		s.ctrls = s.ctrls[:len(s.ctrls)-1]
		if c.exit != nil {
			s.st.join(c.exit)
		}
		if s.st.locals == nil && !s.st.dead {
			s.st.locals, s.st.charged = map[uint32]val{}, map[uint32]bool{}
		}
		s.stack = s.stack[:c.height]
		if !s.st.dead {
			s.label()
			s.pushN(len(c.results))
		}
	case opBr:
		s.branch(in.to[0], i, s.st)
		s.die()
	case opBrIf:
		c := s.pop()
		if s.st.spend != nil {
			s.unspent()
		}
		taken := s.st
		if s.track {
			taken = s.st.clone()
			taken.refine(c, true)
		}
		s.branch(in.to[0], i, taken)
		s.st.refine(c, false)
	case opBrTable:
		s.pop()
		for _, t := range in.to {
			s.branch(t, i, s.st)
		}
		s.die()
	case opCall, opCallIndirect:
		var t funcType
		if op == opCall {
			t = s.m.typeOf(in.x)
		} else {
			t = s.m.types[in.x]
			s.pop()
		}
		s.popN(len(t.params))
		s.pushN(len(t.results))
		s.st.fuel, s.st.credit = s.fresh(), 0
	case opDrop:
		s.pop()
	case opSelect, opSelectTyped:
		c, b, a := s.pop(), s.pop(), s.pop()
		s.push(choose(c, a, b))
	case opLocalGet:
		s.push(s.get(in.x))
	case opLocalSet:
		s.set(in.x, s.pop())
	case opLocalTee:
		v := s.pop()
		s.set(in.x, v)
		if v.kind == vInt || v.kind == vUnknown {
			v = s.get(in.x)
		}
		s.push(v)
	case opGlobalGet:
		if in.x == s.fuel {
			s.push(val{kind: vFuel, id: s.st.fuel, of: -1})
		} else {
			s.push(val{})
		}
	case opGlobalSet:
		v := s.pop()
		if in.x == s.fuel {
			s.write(i, v)
		}
	case opI32Const:
		c := uint32(int32(in.typ))
		s.push(val{kind: vInt, lo: c, hi: c, of: -1})
	case opI32Eqz:
		v := s.pop()
		if v.kind == vCompare {
			v.lo, v.hi = v.hi, v.lo
		} else {
			v = val{}
		}
		s.push(v)
	case opI32Add, opI32Sub, opI32And, opI32ShrU, opI32LtS, opI32LtU, opI32GtS, opI32GtU, opI32LeU, opI32GeS, opI32GeU:
		b, a := s.pop(), s.pop()
		s.push(s.binary(op, a, b))
	case opTableGet, opRefIsNull:
		s.pop()
		s.push(val{})
	case opTableSet:
		s.popN(2)
	case opRefNull, opRefFunc:
		s.push(val{})
	case opDataDrop, opElemDrop:
	default:
		if bulk(op) {
			s.bulk(i, in, s.pop())
		}
		switch op {
		case opTableGrow:
			s.pop()
			s.push(val{})
		case opTableFill, opMemoryInit, opMemoryCopy, opMemoryFill, opTableInit, opTableCopy:
			s.popN(2)
		default:
			sig := signatures[op]
			s.popN(len(sig.in))
			s.pushN(len(sig.out))
		}
	}
	return 0
}

// write judges a write of the fuel global.
func (s *scanner) write(i int, v val) {
	sp := &spend{at: i, id: s.fresh(), of: -1}
	switch {
	case v.kind != vFuel || v.base != s.st.fuel:
		sp.reason = "the fuel global is written with something else than its value less a charge"
	case v.hi > maxCharge:
		sp.reason = fmt.Sprintf("a charge may be as large as %d, above %d: the counter could wrap", v.hi, maxCharge)
	default:
		sp.id, sp.lo, sp.of, sp.shift = v.id, v.lo, v.of, v.shift
	}
	if sp.reason != "" {
		s.fault(FuelWrite, i, "%s", sp.reason)
		s.st.fuel = sp.id
		return
	}
	s.st.fuel, s.st.spend = sp.id, sp
}

// settle accepts a check that is complete.
func (s *scanner) settle(sp *spend) {
	s.st.spend = nil
	s.st.fuel = s.fresh() // the hook fills it up
	if sp.lo > 0 {
		s.checks[sp.at] = true
	}
	s.st.credit = sp.lo
	if sp.of >= 0 && sp.shift <= volumeShift {
		s.st.charged[uint32(sp.of)] = true
	}
}

// bulk judges an operation whose time grows with n.
func (s *scanner) bulk(i int, in *instr, n val) {
	hi := uint32(math.MaxUint32)
	if n.kind == vInt {
		hi = n.hi
		if n.exact { // what was learnt since the value was pushed
			hi = min(hi, s.get(uint32(n.of)).hi)
		}
	}
	// A segment or a table bounds what can be copied out of it or into it: more
	// traps, or is refused by table.grow, before it begins.
	known := func(lens []uint32, i uint32) {
		if int64(i) < int64(len(lens)) {
			hi = min(hi, lens[i])
		}
	}
	switch in.op {
	case opMemoryInit:
		known(s.m.dataLen, in.x)
	case opTableInit:
		known(s.m.elemLen, in.x)
		known(s.m.tables, in.y)
	case opTableCopy:
		known(s.m.tables, in.y)
		fallthrough
	case opTableFill, opTableGrow:
		known(s.m.tables, in.x)
	}
	if n.kind == vInt && n.lo == n.hi && n.lo < freeBulk {
		return
	}
	if hi > maxBulk {
		s.fault(Bulk, i, "%s of a length that is not proven to be at most %d", opName(in.op), maxBulk)
	}
	switch {
	case hi>>volumeShift <= s.st.credit:
		s.st.credit = 0
	case n.kind == vInt && n.exact && s.st.charged[uint32(n.of)]:
		delete(s.st.charged, uint32(n.of)) // one charge pays for one operation
	default:
		s.fault(Bulk, i, "%s is not charged by its length", opName(in.op))
	}
}

func choose(c, a, b val) val {
	if a.kind != vInt || b.kind != vInt {
		return val{}
	}
	if c.kind == vCompare {
		if a.exact && a.of == c.of {
			a.hi = min(a.hi, c.hi)
		}
		if b.exact && b.of == c.of {
			b.hi = min(b.hi, c.lo)
		}
	}
	return val{kind: vInt, lo: min(a.lo, b.lo), hi: max(a.hi, b.hi), of: -1}
}

func (s *scanner) binary(op uint16, a, b val) val {
	isConst := func(v val) bool { return v.kind == vInt && v.lo == v.hi }
	if a.kind == vFuel || b.kind == vFuel {
		switch {
		case op == opI32Sub && a.kind == vFuel && a.base == 0 && b.kind == vInt:
			return val{kind: vFuel, id: s.fresh(), base: a.id, lo: b.lo, hi: b.hi, of: b.of, shift: b.shift}
		case op == opI32Add && a.kind == vFuel && a.base == 0 && isConst(b) && int32(b.lo) < 0 && b.lo != 1<<31:
			return val{kind: vFuel, id: s.fresh(), base: a.id, lo: -b.lo, hi: -b.lo, of: -1}
		case op == opI32LtS && a.kind == vFuel && isConst(b) && b.lo == 0:
			return val{kind: vNegative, id: a.id, of: -1}
		case op == opI32GeS && a.kind == vFuel && isConst(b) && b.lo == 0:
			return val{kind: vLeft, id: a.id, of: -1}
		case op == opI32GtS && b.kind == vFuel && isConst(a) && a.lo == 0:
			return val{kind: vNegative, id: b.id, of: -1}
		}
		return val{}
	}
	if a.kind != vInt {
		a = anyInt
	}
	if b.kind != vInt {
		b = anyInt
	}
	const none = uint32(math.MaxUint32)
	compare := func(x val, whenTrue, whenFalse uint32) val {
		if !x.exact {
			return val{}
		}
		return val{kind: vCompare, of: x.of, hi: whenTrue, lo: whenFalse}
	}
	switch op {
	case opI32Add:
		if lo, hi := uint64(a.lo)+uint64(b.lo), uint64(a.hi)+uint64(b.hi); hi <= math.MaxUint32 {
			v := val{kind: vInt, lo: uint32(lo), hi: uint32(hi), of: a.of, shift: a.shift}
			if v.of < 0 {
				v.of, v.shift = b.of, b.shift
			}
			return v
		}
	case opI32And:
		return val{kind: vInt, hi: min(a.hi, b.hi), of: -1}
	case opI32ShrU:
		if isConst(b) {
			k := b.lo & 31
			v := val{kind: vInt, lo: a.lo >> k, hi: a.hi >> k, of: a.of, shift: a.shift + uint8(k)}
			v.exact = a.exact && k == 0
			return v
		}
	case opI32LtU: // x < c, c < x
		if isConst(b) && b.lo > 0 {
			return compare(a, b.lo-1, none)
		} else if isConst(a) {
			return compare(b, none, a.lo)
		}
	case opI32LeU:
		if isConst(b) {
			return compare(a, b.lo, none)
		} else if isConst(a) && a.lo > 0 {
			return compare(b, none, a.lo-1)
		}
	case opI32GtU:
		if isConst(b) {
			return compare(a, none, b.lo)
		} else if isConst(a) && a.lo > 0 {
			return compare(b, a.lo-1, none)
		}
	case opI32GeU:
		if isConst(b) && b.lo > 0 {
			return compare(a, none, b.lo-1)
		} else if isConst(a) {
			return compare(b, a.lo, none)
		}
	}
	if op == opI32Add || op == opI32Sub || op == opI32ShrU {
		return anyInt
	}
	return val{}
}
