package meter

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
)

// The sections of a module that the meter reads or writes.
const (
	secCustom    = 0
	secType      = 1
	secImport    = 2
	secFunction  = 3
	secTable     = 4
	secMemory    = 5
	secGlobal    = 6
	secExport    = 7
	secStart     = 8
	secElement   = 9
	secCode      = 10
	secData      = 11
	secDataCount = 12
)

// sectionOrder is the order the format prescribes.
var sectionOrder = []byte{secType, secImport, secFunction, secTable, secMemory, secGlobal, secExport, secStart, secElement, secDataCount, secCode, secData}

const (
	kindFunc   = 0
	kindTable  = 1
	kindMemory = 2
	kindGlobal = 3
)

// ValType is a wasm value type, as the binary format encodes it.
type ValType byte

// The number types.
const (
	I32 ValType = 0x7f
	I64 ValType = 0x7e
	F32 ValType = 0x7d
	F64 ValType = 0x7c
)

// FuncType is the type of a function.
type FuncType struct {
	Params, Results []ValType
}

func (t FuncType) equal(u FuncType) bool {
	return slices.Equal(t.Params, u.Params) && slices.Equal(t.Results, u.Results)
}

type export struct {
	name  string
	kind  byte
	index uint32
}

// body is one function of the code section.
type body struct {
	locals []localRun
	code   []byte // the expression with its final end
}

type localRun struct {
	n uint32
	t ValType
}

// elements is one element segment, reduced to what renumbering needs.
type elements struct {
	prefix []byte // flags, table, offset, kind: everything before the vector
	funcs  []uint32
	nulls  []bool // for expression vectors: ref.null at this place
	exprs  bool
	typ    byte // reference type of an expression vector
}

type module struct {
	types   []FuncType
	imports [][]byte // raw entries in order; function imports are also in funcs
	// funcs holds the type of every function, imported ones first.
	funcs           []uint32
	importedFuncs   int
	importedTables  int
	importedGlobals int
	tables          []table
	memory          []byte // raw section payload
	hasMemory       bool
	globals         [][]byte // raw entries with renumbered init expressions
	globalTypes     []ValType
	globalFuncs     []uint32 // functions that initialise a global
	exports         []export
	start           int64 // -1: none
	elems           []elements
	bodies          []body
	data            []byte // raw section payload, nil if absent
	dataSegments    [][]byte
	dataOffsets     []int64
	dataCount       []byte
	names           map[uint32]string // functions
	plans           []loopPlan        // by body, as planLoops made them
	globalNames     map[uint32]string
}

type table struct {
	typ    byte
	min    uint32
	max    uint32
	hasMax bool
}

var magic = []byte("\x00asm\x01\x00\x00\x00")

func decode(wasm []byte) (*module, error) {
	if !bytes.HasPrefix(wasm, magic) {
		return nil, errors.New("not a WebAssembly module of version 1")
	}
	m := &module{start: -1, names: map[uint32]string{}, globalNames: map[uint32]string{}}
	r := &reader{b: wasm, pos: len(magic)}
	last := -1
	declared := 0
	for !r.done() {
		id := r.byte()
		payload := r.bytes(int(r.uleb()))
		if r.err != nil {
			return nil, r.err
		}
		if id != secCustom {
			at := slices.Index(sectionOrder, id)
			if at <= last {
				return nil, fmt.Errorf("section %d is unknown, repeated or out of order", id)
			}
			last = at
		}
		s := &reader{b: payload}
		switch id {
		case secCustom:
			if s.name() == "name" {
				m.decodeNames(s) // a broken name section only costs names
			}
			continue
		case secType:
			m.decodeTypes(s)
		case secImport:
			m.decodeImports(s)
		case secFunction:
			n := s.count()
			declared = n
			for range n {
				m.funcs = append(m.funcs, s.uleb())
			}
		case secTable:
			for range s.count() {
				m.tables = append(m.tables, decodeTable(s))
			}
		case secMemory:
			m.memory, m.hasMemory = payload, true
			if n := s.count(); n != 1 {
				s.fail(fmt.Errorf("%d memories; the meter takes one", n))
			}
			s.pos = len(s.b)
		case secGlobal:
			m.decodeGlobals(s)
		case secExport:
			for range s.count() {
				m.exports = append(m.exports, export{s.name(), s.byte(), s.uleb()})
			}
		case secStart:
			m.start = int64(s.uleb())
		case secElement:
			m.decodeElements(s)
		case secDataCount:
			m.dataCount = payload
			s.uleb()
		case secCode:
			m.decodeBodies(s)
		case secData:
			m.data = payload
			m.decodeData(s)
		}
		if s.err == nil && !s.done() {
			s.fail(errors.New("trailing bytes"))
		}
		if s.err != nil {
			return nil, fmt.Errorf("section %d: %w", id, s.err)
		}
	}
	if len(m.bodies) != declared {
		return nil, fmt.Errorf("%d functions are declared and %d have a body", declared, len(m.bodies))
	}
	for i, t := range m.funcs {
		if int(t) >= len(m.types) {
			return nil, fmt.Errorf("function %d has type %d of %d", i, t, len(m.types))
		}
	}
	for _, e := range m.exports {
		if e.kind == kindFunc && int(e.index) >= len(m.funcs) {
			return nil, fmt.Errorf("export %q names function %d of %d", e.name, e.index, len(m.funcs))
		}
	}
	return m, nil
}

func (m *module) decodeTypes(s *reader) {
	for range s.count() {
		if f := s.byte(); f != 0x60 {
			s.fail(fmt.Errorf("type form %#x is not a function", f))
			return
		}
		vals := func() (v []ValType) {
			for range s.count() {
				v = append(v, ValType(s.byte()))
			}
			return v
		}
		m.types = append(m.types, FuncType{vals(), vals()})
	}
}

func decodeTable(s *reader) table {
	t := table{typ: s.byte()}
	flags := s.byte()
	if flags > 1 {
		s.fail(fmt.Errorf("table limits flag %d", flags))
		return t
	}
	t.min = s.uleb()
	if flags == 1 {
		t.max, t.hasMax = s.uleb(), true
	}
	return t
}

func (m *module) decodeImports(s *reader) {
	for range s.count() {
		from := s.pos
		s.name()
		s.name()
		switch kind := s.byte(); kind {
		case kindFunc:
			m.funcs = append(m.funcs, s.uleb())
			m.importedFuncs++
		case kindTable:
			decodeTable(s)
			m.importedTables++
		case kindMemory:
			flags := s.byte()
			s.uleb()
			if flags&1 != 0 {
				s.uleb()
			}
			m.hasMemory = true
		case kindGlobal:
			m.globalTypes = append(m.globalTypes, ValType(s.byte()))
			s.byte()
			m.importedGlobals++
		default:
			s.fail(fmt.Errorf("import kind %d", kind))
		}
		if s.err != nil {
			return
		}
		m.imports = append(m.imports, s.b[from:s.pos])
	}
}

func (m *module) decodeGlobals(s *reader) {
	for range s.count() {
		from := s.pos
		m.globalTypes = append(m.globalTypes, ValType(s.byte()))
		s.byte()
		head := bytes.Clone(s.b[from:s.pos])
		init := s.pos
		skipExpr(s)
		if s.err != nil {
			return
		}
		if s.b[init] == opRefFunc {
			r := &reader{b: s.b, pos: init + 1}
			f := r.uleb()
			if int(f) >= len(m.funcs) {
				s.fail(fmt.Errorf("global is initialised with function %d of %d", f, len(m.funcs)))
				return
			}
			m.globalFuncs = append(m.globalFuncs, f)
		}
		m.globals = append(m.globals, append(head, s.b[init:s.pos]...))
	}
}

// skipExpr passes over a constant expression.
func skipExpr(s *reader) {
	for s.err == nil {
		var in instr
		if in.read(s); in.op == opEnd {
			return
		}
		if in.op == opBlock || in.op == opLoop || in.op == opIf {
			s.fail(errors.New("control flow in a constant expression"))
		}
	}
}

// constOffset reads a constant expression and returns its value if it is a
// single i32.const, else -1.
func constOffset(s *reader) int64 {
	p := &reader{b: s.b, pos: s.pos}
	v := int64(-1)
	if p.byte() == opI32Const {
		if c := p.sleb(32); p.byte() == opEnd && p.err == nil {
			v = int64(uint32(c))
		}
	}
	skipExpr(s)
	return v
}

func (m *module) decodeElements(s *reader) {
	for range s.count() {
		from := s.pos
		var e elements
		flags := s.uleb()
		if flags > 7 {
			s.fail(fmt.Errorf("element segment flags %d", flags))
			return
		}
		if flags&1 == 0 {
			if flags&2 != 0 {
				s.uleb()
			}
			skipExpr(s)
		}
		e.exprs = flags&4 != 0
		if flags&3 != 0 {
			e.typ = s.byte() // element kind, or reference type
		}
		e.prefix = s.b[from:s.pos]
		for range s.count() {
			if !e.exprs {
				e.funcs, e.nulls = append(e.funcs, s.uleb()), append(e.nulls, false)
				continue
			}
			switch op := s.byte(); op {
			case opRefFunc:
				e.funcs, e.nulls = append(e.funcs, s.uleb()), append(e.nulls, false)
			case opRefNull:
				e.typ = s.byte()
				e.funcs, e.nulls = append(e.funcs, 0), append(e.nulls, true)
			default:
				s.fail(fmt.Errorf("element expression with opcode %#x", op))
			}
			if s.byte() != opEnd {
				s.fail(errors.New("element expression of more than one instruction"))
			}
		}
		for i, f := range e.funcs {
			if !e.nulls[i] && int(f) >= len(m.funcs) {
				s.fail(fmt.Errorf("element names function %d of %d", f, len(m.funcs)))
			}
		}
		if s.err != nil {
			return
		}
		m.elems = append(m.elems, e)
	}
}

func (m *module) decodeBodies(s *reader) {
	for range s.count() {
		b := &reader{b: s.bytes(int(s.uleb()))}
		if s.err != nil {
			return
		}
		var f body
		var total uint64
		for range b.count() {
			l := localRun{b.uleb(), ValType(b.byte())}
			if total += uint64(l.n); total > 50_000 {
				b.fail(errors.New("more than 50,000 locals"))
			}
			f.locals = append(f.locals, l)
		}
		f.code = b.b[min(b.pos, len(b.b)):]
		if b.err != nil {
			s.fail(fmt.Errorf("body %d: %w", len(m.bodies), b.err))
			return
		}
		m.bodies = append(m.bodies, f)
	}
}

func (m *module) decodeData(s *reader) {
	for range s.count() {
		flags := s.uleb()
		offset := int64(-1)
		switch flags {
		case 0:
			offset = constOffset(s)
		case 1:
		case 2:
			s.uleb()
			offset = constOffset(s)
		default:
			s.fail(fmt.Errorf("data segment flags %d", flags))
			return
		}
		m.dataSegments = append(m.dataSegments, s.bytes(s.count()))
		m.dataOffsets = append(m.dataOffsets, offset)
	}
}

func (m *module) decodeNames(s *reader) {
	for !s.done() {
		id := s.byte()
		sub := &reader{b: s.bytes(int(s.uleb()))}
		switch id {
		case 0:
			sub.name() // the module's own
		case 1, 7:
			into := m.names
			if id == 7 {
				into = m.globalNames
			}
			for range sub.count() {
				i, n := sub.uleb(), sub.name()
				if sub.err != nil {
					return
				}
				into[i] = n
			}
		}
	}
}

// function finds a function by its name in the name section or its export name.
func (m *module) function(name string) (uint32, error) {
	for _, e := range m.exports {
		if e.kind == kindFunc && e.name == name {
			return e.index, nil
		}
	}
	found := int64(-1)
	for i, n := range m.names {
		if n == name && int(i) < len(m.funcs) {
			if found >= 0 {
				return 0, fmt.Errorf("two functions are named %q", name)
			}
			found = int64(i)
		}
	}
	if found < 0 {
		return 0, fmt.Errorf("no function is named %q", name)
	}
	return uint32(found), nil
}

func (m *module) typeOf(f uint32) FuncType { return m.types[m.funcs[f]] }

// typeIndex finds t, or adds it.
func (m *module) typeIndex(t FuncType) uint32 {
	for i, u := range m.types {
		if t.equal(u) {
			return uint32(i)
		}
	}
	m.types = append(m.types, t)
	return uint32(len(m.types) - 1)
}

// encode writes the module, with function indexes passed through renumber.
func (m *module) encode(renumber func(uint32) uint32) []byte {
	out := bytes.Clone(magic)
	section := func(id byte, payload []byte) {
		out = append(out, id)
		out = appendUleb(out, uint32(len(payload)))
		out = append(out, payload...)
	}
	vector := func(n int, item func(b []byte, i int) []byte) []byte {
		b := appendUleb(nil, uint32(n))
		for i := range n {
			b = item(b, i)
		}
		return b
	}
	section(secType, vector(len(m.types), func(b []byte, i int) []byte {
		b = append(b, 0x60)
		for _, v := range [][]ValType{m.types[i].Params, m.types[i].Results} {
			b = appendUleb(b, uint32(len(v)))
			for _, t := range v {
				b = append(b, byte(t))
			}
		}
		return b
	}))
	section(secImport, vector(len(m.imports), func(b []byte, i int) []byte { return append(b, m.imports[i]...) }))
	own := m.funcs[m.importedFuncs:]
	section(secFunction, vector(len(own), func(b []byte, i int) []byte { return appendUleb(b, own[i]) }))
	if len(m.tables) > 0 {
		section(secTable, vector(len(m.tables), func(b []byte, i int) []byte {
			t := m.tables[i]
			if !t.hasMax {
				return appendUleb(append(b, t.typ, 0), t.min)
			}
			return appendUleb(appendUleb(append(b, t.typ, 1), t.min), t.max)
		}))
	}
	if m.memory != nil {
		section(secMemory, m.memory)
	}
	section(secGlobal, vector(len(m.globals), func(b []byte, i int) []byte {
		g := m.globals[i]
		if g[2] != opRefFunc {
			return append(b, g...)
		}
		r := &reader{b: g, pos: 3}
		b = append(b, g[:3]...)
		b = appendUleb(b, renumber(r.uleb()))
		return append(b, g[r.pos:]...)
	}))
	section(secExport, vector(len(m.exports), func(b []byte, i int) []byte {
		e := m.exports[i]
		if e.kind == kindFunc {
			e.index = renumber(e.index)
		}
		return appendUleb(append(appendName(b, e.name), e.kind), e.index)
	}))
	if m.start >= 0 {
		section(secStart, appendUleb(nil, renumber(uint32(m.start))))
	}
	if len(m.elems) > 0 {
		section(secElement, vector(len(m.elems), func(b []byte, i int) []byte {
			e := m.elems[i]
			b = append(b, e.prefix...)
			b = appendUleb(b, uint32(len(e.funcs)))
			for k, f := range e.funcs {
				switch {
				case !e.exprs:
					b = appendUleb(b, renumber(f))
				case e.nulls[k]:
					b = append(b, opRefNull, e.typ, opEnd)
				default:
					b = append(appendUleb(append(b, opRefFunc), renumber(f)), opEnd)
				}
			}
			return b
		}))
	}
	if m.dataCount != nil {
		section(secDataCount, m.dataCount)
	}
	section(secCode, vector(len(m.bodies), func(b []byte, i int) []byte {
		f := appendUleb(nil, uint32(len(m.bodies[i].locals)))
		for _, l := range m.bodies[i].locals {
			f = append(appendUleb(f, l.n), byte(l.t))
		}
		f = append(f, m.bodies[i].code...)
		return append(appendUleb(b, uint32(len(f))), f...)
	}))
	if m.data != nil {
		section(secData, m.data)
	}
	section(secCustom, m.encodeNames(renumber))
	return out
}

// encodeNames keeps the function names, which make the stack of an engine
// fault readable; all other custom sections are dropped.
func (m *module) encodeNames(renumber func(uint32) uint32) []byte {
	type entry struct {
		index uint32
		name  string
	}
	var list []entry
	for i, n := range m.names {
		if int(i) < len(m.funcs) {
			list = append(list, entry{renumber(i), n})
		}
	}
	slices.SortFunc(list, func(a, b entry) int { return int(int64(a.index) - int64(b.index)) })
	sub := appendUleb(nil, uint32(len(list)))
	for _, e := range list {
		sub = appendName(appendUleb(sub, e.index), e.name)
	}
	b := appendName(nil, "name")
	b = append(b, 1)
	return append(appendUleb(b, uint32(len(sub))), sub...)
}
