package metertest

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

// This decoder shares nothing with the one of the rewriter: a mistake there
// must not be repeated here. It reads what it needs and checks lengths, counts
// and nesting; it does not type-check, so run a validator beside it.

type funcType struct{ params, results string }

// instr is one instruction with its branch targets already resolved to
// indexes of instructions in the same body.
type instr struct {
	op   uint16
	x, y uint32 // immediates: an index; for a block its index of end and of else (0: none)
	off  uint32 // in the module, for reports
	typ  int64  // block type, or the value of i32.const
	to   []uint32
}

type function struct {
	typ    uint32
	locals []byte // declared locals, without the parameters
	body   []instr
	// importModule and importName are set for an import; body is nil then.
	importModule, importName string
	name                     string
}

type global struct {
	typ      byte
	mutable  bool
	imported bool
}

type export struct {
	name  string
	kind  byte
	index uint32
}

type module struct {
	types    []funcType
	funcs    []function // imports first
	imported int        // how many of funcs are imports
	globals  []global
	tables   []uint32 // maximum elements of each
	memories int
	exports  []export
	start    int64           // -1: none
	taken    map[uint32]bool // functions in element segments, ref.func, global initialisers
	dataLen  []uint32        // length of each data segment
	elemLen  []uint32
}

func (m *module) typeOf(f uint32) funcType { return m.types[m.funcs[f].typ] }

// reader reads with a sticky error: after the first fault it yields zeros.
type reader struct {
	b   []byte
	pos int
	err error
}

var errEnd = errors.New("unexpected end")

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("at offset %d: %w", r.pos, fmt.Errorf(format, args...))
	}
}

func (r *reader) u8() byte {
	if r.err != nil || r.pos >= len(r.b) {
		r.fail("%w", errEnd)
		return 0
	}
	r.pos++
	return r.b[r.pos-1]
}

func (r *reader) unsigned(bits uint) uint64 {
	var v uint64
	for shift := uint(0); r.err == nil; shift += 7 {
		c := r.u8()
		if shift >= bits || (bits-shift < 7 && c>>(bits-shift) != 0) {
			r.fail("LEB128 does not fit %d bits", bits)
			return 0
		}
		v |= uint64(c&0x7F) << shift
		if c < 0x80 {
			return v
		}
	}
	return 0
}

func (r *reader) u32() uint32 { return uint32(r.unsigned(32)) }

func (r *reader) signed(bits uint) int64 {
	var v int64
	for shift := uint(0); r.err == nil; shift += 7 {
		c := r.u8()
		if shift >= bits {
			r.fail("LEB128 does not fit %d bits", bits)
			return 0
		}
		if left := bits - shift; left < 7 {
			// The bits past the width must all equal the sign.
			if rest := int8(c<<1) >> left; c >= 0x80 || (rest != 0 && rest != -1) {
				r.fail("LEB128 does not fit %d bits", bits)
				return 0
			}
		}
		v |= int64(c&0x7F) << shift
		if c < 0x80 {
			if end := shift + 7; end < 64 && c&0x40 != 0 {
				v |= -1 << end
			}
			return v
		}
	}
	return 0
}

// count reads the length of a vector whose elements take at least one byte.
func (r *reader) count() int {
	n := r.u32()
	if r.err == nil && int64(n) > int64(len(r.b)-r.pos) {
		r.fail("a vector of %d elements in %d bytes", n, len(r.b)-r.pos)
	}
	if r.err != nil {
		return 0
	}
	return int(n)
}

func (r *reader) bytes(n uint32) []byte {
	if r.err == nil && int64(n) > int64(len(r.b)-r.pos) {
		r.fail("%w: %d bytes wanted", errEnd, n)
	}
	if r.err != nil {
		return nil
	}
	r.pos += int(n)
	return r.b[r.pos-int(n) : r.pos]
}

func (r *reader) name() string {
	b := r.bytes(r.u32())
	if !utf8.Valid(b) {
		r.fail("a name is not UTF-8")
	}
	return string(b)
}

func (r *reader) valType() byte {
	t := r.u8()
	switch t {
	case I32, I64, F32, F64, FuncRef, ExternRef:
	default:
		r.fail("unsupported value type 0x%02x", t)
	}
	return t
}

func (r *reader) valTypes() string {
	n := r.count()
	b := make([]byte, 0, min(n, 64))
	for i := 0; i < n && r.err == nil; i++ {
		b = append(b, r.valType())
	}
	return string(b)
}

func (r *reader) limits(what string) (lo, hi uint32) {
	flag := r.u8()
	if flag > 1 {
		r.fail("unsupported limits 0x%02x of a %s", flag, what)
	}
	lo, hi = r.u32(), 1<<32-1
	if flag == 1 {
		hi = r.u32()
	}
	return lo, hi
}

func (r *reader) tableType() uint32 {
	if t := r.valType(); t != FuncRef && t != ExternRef {
		r.fail("a table of type 0x%02x", t)
	}
	_, hi := r.limits("table")
	return hi
}

func (r *reader) globalType() global {
	t := r.valType()
	mut := r.u8()
	if mut > 1 {
		r.fail("mutability 0x%02x", mut)
	}
	return global{typ: t, mutable: mut == 1}
}

// constExpr reads an initialiser and notes the functions it refers to.
func (r *reader) constExpr(m *module) {
	for r.err == nil {
		switch op := r.u8(); op {
		case opEnd:
			return
		case opI32Const:
			r.signed(32)
		case opI64Const:
			r.signed(64)
		case opF32Const:
			r.bytes(4)
		case opF64Const:
			r.bytes(8)
		case opGlobalGet:
			r.u32()
		case opRefNull:
			r.valType()
		case opRefFunc:
			m.taken[r.u32()] = true
		default:
			r.fail("opcode 0x%02x in an initialiser", op)
		}
	}
}

// decode reads a module.
func decode(b []byte) (*module, error) {
	m := &module{start: -1, taken: map[uint32]bool{}}
	r := &reader{b: b}
	if string(r.bytes(8)) != "\x00asm\x01\x00\x00\x00" {
		return nil, errors.New("metertest: not a wasm binary of version 1")
	}
	// Sections come in the order of their numbers, but for the data count (12),
	// which stands between element (9) and code (10).
	rank := func(id byte) int {
		if id == 12 {
			return 19
		}
		return int(id) * 2
	}
	last, bodies, dataCount := 0, 0, int64(-1)
	for r.err == nil && r.pos < len(b) {
		id := r.u8()
		size := r.u32()
		start := r.pos
		payload := r.bytes(size)
		if r.err != nil {
			break
		}
		// s reads inside the section, with offsets of the file.
		s := &reader{b: b[:start+len(payload)], pos: start}
		if id == 0 {
			m.custom(s)
			continue
		}
		if id > 12 || rank(id) <= last {
			r.fail("section %d is unknown, out of order or repeated", id)
			break
		}
		last = rank(id)
		switch id {
		case 1:
			for n := s.count(); n > 0 && s.err == nil; n-- {
				if f := s.u8(); f != 0x60 {
					s.fail("type form 0x%02x", f)
				}
				m.types = append(m.types, funcType{s.valTypes(), s.valTypes()})
			}
		case 2:
			m.importSection(s)
		case 3:
			for n := s.count(); n > 0 && s.err == nil; n-- {
				m.funcs = append(m.funcs, function{typ: m.typeIndex(s)})
			}
		case 4:
			for n := s.count(); n > 0 && s.err == nil; n-- {
				m.tables = append(m.tables, s.tableType())
			}
		case 5:
			for n := s.count(); n > 0 && s.err == nil; n-- {
				s.limits("memory")
				m.memories++
			}
		case 6:
			for n := s.count(); n > 0 && s.err == nil; n-- {
				m.globals = append(m.globals, s.globalType())
				s.constExpr(m)
			}
		case 7:
			for n := s.count(); n > 0 && s.err == nil; n-- {
				m.exports = append(m.exports, export{s.name(), s.u8(), s.u32()})
			}
		case 8:
			m.start = int64(s.u32())
		case 9:
			for n := s.count(); n > 0 && s.err == nil; n-- {
				m.element(s)
			}
		case 10:
			n := s.count()
			if n != len(m.funcs)-m.imported {
				s.fail("%d bodies for %d functions", n, len(m.funcs)-m.imported)
			}
			for ; bodies < n && s.err == nil; bodies++ {
				m.code(s, &m.funcs[m.imported+bodies])
			}
		case 11:
			for n := s.count(); n > 0 && s.err == nil; n-- {
				flag := s.u32()
				if flag > 2 {
					s.fail("data segment flag %d", flag)
				}
				if flag == 2 {
					s.u32()
				}
				if flag != 1 {
					s.constExpr(m)
				}
				m.dataLen = append(m.dataLen, uint32(len(s.bytes(s.u32()))))
			}
		case 12:
			dataCount = int64(s.u32())
		}
		if s.err == nil && s.pos != len(s.b) {
			s.fail("%d bytes left over in section %d", len(s.b)-s.pos, id)
		}
		if s.err != nil {
			r.err = s.err
		}
	}
	if r.err == nil && bodies != len(m.funcs)-m.imported {
		r.fail("%d bodies for %d functions", bodies, len(m.funcs)-m.imported)
	}
	if r.err == nil && dataCount >= 0 && dataCount != int64(len(m.dataLen)) {
		r.fail("data count %d, but %d segments", dataCount, len(m.dataLen))
	}
	if r.err == nil {
		r.err = m.checkIndexes()
	}
	if r.err != nil {
		return nil, fmt.Errorf("metertest: %w", r.err)
	}
	return m, nil
}

func (m *module) typeIndex(s *reader) uint32 {
	t := s.u32()
	if s.err == nil && int64(t) >= int64(len(m.types)) {
		s.fail("type %d of %d", t, len(m.types))
	}
	return t
}

func (m *module) importSection(s *reader) {
	for n := s.count(); n > 0 && s.err == nil; n-- {
		mod, name := s.name(), s.name()
		switch kind := s.u8(); kind {
		case 0:
			m.funcs = append(m.funcs, function{typ: m.typeIndex(s), importModule: mod, importName: name, name: mod + "." + name})
			m.imported++
		case 1:
			m.tables = append(m.tables, s.tableType())
		case 2:
			s.limits("memory")
			m.memories++
		case 3:
			g := s.globalType()
			g.imported = true
			m.globals = append(m.globals, g)
		default:
			s.fail("import kind %d", kind)
		}
	}
}

func (m *module) element(s *reader) {
	flag := s.u32()
	if flag > 7 {
		s.fail("element segment flag %d", flag)
		return
	}
	if flag&1 == 0 { // active
		if flag&2 != 0 {
			s.u32()
		}
		s.constExpr(m)
	}
	exprs := flag&4 != 0
	if flag&3 != 0 { // a kind or type is written
		if exprs {
			s.valType()
		} else if k := s.u8(); k != 0 {
			s.fail("element kind %d", k)
		}
	}
	n := s.count()
	m.elemLen = append(m.elemLen, uint32(n))
	for ; n > 0 && s.err == nil; n-- {
		if exprs {
			s.constExpr(m)
		} else {
			m.taken[s.u32()] = true
		}
	}
}

// custom reads function names if it can; a damaged name section names nothing.
func (m *module) custom(s *reader) {
	if s.name() != "name" {
		return
	}
	for s.err == nil && s.pos < len(s.b) {
		id := s.u8()
		sub := s.bytes(s.u32())
		if id != 1 {
			continue
		}
		r := &reader{b: sub}
		for n := r.count(); n > 0 && r.err == nil; n-- {
			i, name := r.u32(), r.name()
			if r.err == nil && int64(i) < int64(len(m.funcs)) && m.funcs[i].name == "" {
				m.funcs[i].name = name
			}
		}
	}
}

// checkIndexes makes sure that what the checker follows exists.
func (m *module) checkIndexes() error {
	for f := range m.taken {
		if int64(f) >= int64(len(m.funcs)) {
			return fmt.Errorf("a reference to function %d of %d", f, len(m.funcs))
		}
	}
	if m.start >= int64(len(m.funcs)) {
		return fmt.Errorf("start function %d of %d", m.start, len(m.funcs))
	}
	for _, e := range m.exports {
		n := 0
		switch e.kind {
		case 0:
			n = len(m.funcs)
		case 1:
			n = len(m.tables)
		case 2:
			n = m.memories
		case 3:
			n = len(m.globals)
		}
		if int64(e.index) >= int64(n) {
			return fmt.Errorf("export %q of kind %d names index %d of %d", e.name, e.kind, e.index, n)
		}
		if e.kind == 0 && m.funcs[e.index].name == "" {
			m.funcs[e.index].name = e.name
		}
	}
	return nil
}

const maxLocals = 50_000

func (m *module) code(s *reader, f *function) {
	size := s.u32()
	start := s.pos
	if s.bytes(size); s.err != nil {
		return
	}
	r := &reader{b: s.b[:start+int(size)], pos: start}
	for n := r.count(); n > 0 && r.err == nil; n-- {
		k, t := r.u32(), r.valType()
		if int64(k)+int64(len(f.locals)) > maxLocals {
			r.fail("more than %d locals", maxLocals)
			break
		}
		for ; k > 0; k-- {
			f.locals = append(f.locals, t)
		}
	}
	m.body(r, f)
	if r.err == nil && r.pos != len(r.b) {
		r.fail("%d bytes after the end of a body", len(r.b)-r.pos)
	}
	if r.err != nil {
		s.err = r.err
	}
}

func (m *module) body(r *reader, f *function) {
	type frame struct {
		at      int // the instruction that opened it, -1 for the body
		pending []patch
	}
	stack := []frame{{at: -1}}
	var body []instr
	index := func(what string, n int) uint32 {
		i := r.u32()
		if r.err == nil && int64(i) >= int64(n) {
			r.fail("%s %d of %d", what, i, n)
		}
		return i
	}
	label := func(slot int) uint32 {
		d := r.u32()
		if r.err == nil && int64(d) >= int64(len(stack)) {
			r.fail("label %d of %d", d, len(stack))
		}
		if r.err != nil {
			return 0
		}
		fr := &stack[len(stack)-1-int(d)]
		if fr.at >= 0 && body[fr.at].op == opLoop {
			return uint32(fr.at)
		}
		fr.pending = append(fr.pending, patch{len(body), slot})
		return 0
	}
	nlocals := len(m.types[f.typ].params) + len(f.locals)
	for r.err == nil {
		in := instr{off: uint32(r.pos)}
		in.op = uint16(r.u8())
		if in.op == 0xFC {
			sub := r.u32()
			if sub > 0x11 {
				r.fail("unsupported opcode 0xfc %d", sub)
				break
			}
			in.op = 0xFC00 | uint16(sub)
		}
		switch op := in.op; {
		case op == opUnreachable, op == opNop, op == opReturn, op == opDrop, op == opSelect, op == opRefIsNull:
		case op == opBlock, op == opLoop, op == opIf:
			in.typ = r.signed(33)
			if in.typ >= 0 && in.typ >= int64(len(m.types)) {
				r.fail("block type %d of %d", in.typ, len(m.types))
			}
			if in.typ < 0 && in.typ != -64 {
				switch byte(in.typ & 0x7F) {
				case I32, I64, F32, F64, FuncRef, ExternRef:
				default:
					r.fail("block type %d", in.typ)
				}
			}
			stack = append(stack, frame{at: len(body)})
		case op == opElse:
			at := stack[len(stack)-1].at
			if at < 0 || body[at].op != opIf || body[at].y != 0 {
				r.fail("else without if")
				break
			}
			body[at].y = uint32(len(body))
			stack[len(stack)-1].pending = append(stack[len(stack)-1].pending, patch{len(body), 0})
			in.to = make([]uint32, 1)
		case op == opEnd:
			fr := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			for _, p := range fr.pending {
				body[p.at].to[p.slot] = uint32(len(body))
			}
			if fr.at >= 0 {
				body[fr.at].x = uint32(len(body))
			}
			if len(stack) == 0 {
				f.body = append(body, in)
				return
			}
		case op == opBr, op == opBrIf:
			in.to = make([]uint32, 1)
			in.to[0] = label(0)
		case op == opBrTable:
			n := r.count()
			in.to = make([]uint32, n+1)
			for i := 0; i <= n && r.err == nil; i++ {
				in.to[i] = label(i)
			}
		case op == opCall, op == opRefFunc:
			in.x = index("function", len(m.funcs))
			if op == opRefFunc && r.err == nil {
				m.taken[in.x] = true
			}
		case op == opCallIndirect:
			in.x = index("type", len(m.types))
			in.y = index("table", len(m.tables))
		case op == opSelectTyped:
			if t := r.valTypes(); r.err == nil && len(t) != 1 {
				r.fail("select with %d types", len(t))
			}
		case op >= opLocalGet && op <= opLocalTee:
			in.x = index("local", nlocals)
		case op == opGlobalGet, op == opGlobalSet:
			in.x = index("global", len(m.globals))
		case op == opTableGet, op == opTableSet, op == opTableGrow, op == opTableSize, op == opTableFill:
			in.x = index("table", len(m.tables))
		case op >= opI32Load && op <= opI64Store32:
			r.u32()
			r.u32()
		case op == opMemorySize, op == opMemoryGrow, op == opMemoryFill:
			index("memory", m.memories)
		case op == opI32Const:
			in.typ = r.signed(32)
		case op == opI64Const:
			r.signed(64)
		case op == opF32Const:
			r.bytes(4)
		case op == opF64Const:
			r.bytes(8)
		case op >= opI32Eqz && op <= 0xC4, op >= 0xFC00 && op <= 0xFC07:
		case op == opRefNull:
			r.valType()
		case op == opMemoryInit:
			in.x = r.u32()
			index("memory", m.memories)
		case op == opDataDrop, op == opElemDrop:
			in.x = r.u32()
		case op == opMemoryCopy:
			index("memory", m.memories)
			index("memory", m.memories)
		case op == opTableInit:
			in.x = r.u32()
			in.y = index("table", len(m.tables))
		case op == opTableCopy:
			in.x = index("table", len(m.tables))
			in.y = index("table", len(m.tables))
		default:
			r.fail("unsupported opcode 0x%02x", op)
		}
		body = append(body, in)
	}
}

// patch is a branch whose target is the end of a block that is still open.
type patch struct{ at, slot int }
