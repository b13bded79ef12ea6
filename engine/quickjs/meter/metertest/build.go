package metertest

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"
)

// Code assembles the body of a function, or an initialiser. Its methods append
// and return the receiver, so that calls chain; nothing is checked.
type Code struct{ b []byte }

// Asm begins a piece of code.
func Asm() *Code { return &Code{} }

func (c *Code) raw(b ...byte) *Code { c.b = append(c.b, b...); return c }

func (c *Code) u32(v uint32) *Code { c.b = appendU32(c.b, v); return c }

// Op appends an opcode with index immediates; opcodes from 0xFC00 on take the
// prefix 0xFC. Loads and stores take alignment and offset.
func (c *Code) Op(op uint16, immediates ...uint32) *Code {
	if op >= 0xFC00 {
		c.raw(0xFC).u32(uint32(op & 0xFF))
	} else {
		c.raw(byte(op))
	}
	for _, v := range immediates {
		c.u32(v)
	}
	return c
}

// I32 pushes a constant; so do I64, F32 and F64.
func (c *Code) I32(v int32) *Code { c.raw(opI32Const); c.b = appendS64(c.b, int64(v)); return c }

func (c *Code) I64(v int64) *Code { c.raw(opI64Const); c.b = appendS64(c.b, v); return c }

func (c *Code) F32(bits uint32) *Code {
	c.raw(opF32Const)
	c.b = binary.LittleEndian.AppendUint32(c.b, bits)
	return c
}

func (c *Code) F64(bits uint64) *Code {
	c.raw(opF64Const)
	c.b = binary.LittleEndian.AppendUint64(c.b, bits)
	return c
}

// Void is the block type without parameters and results.
const Void = -64

// Block opens a block: t is [Void], a value type less 0x80, or a type index. Loop and If alike.
func (c *Code) Block(t int64) *Code { c.raw(opBlock); c.b = appendS64(c.b, t); return c }

func (c *Code) Loop(t int64) *Code { c.raw(opLoop); c.b = appendS64(c.b, t); return c }

func (c *Code) If(t int64) *Code { c.raw(opIf); c.b = appendS64(c.b, t); return c }

func (c *Code) Else() *Code { return c.raw(opElse) }

func (c *Code) End() *Code { return c.raw(opEnd) }

// Br branches to the label at depth d, BrIf if the top of the stack is not zero.
func (c *Code) Br(d uint32) *Code { return c.Op(opBr, d) }

func (c *Code) BrIf(d uint32) *Code { return c.Op(opBrIf, d) }

// BrTable branches to the label that the top of the stack selects; the last is the default.
func (c *Code) BrTable(depths ...uint32) *Code {
	c.raw(opBrTable).u32(uint32(len(depths) - 1))
	for _, d := range depths {
		c.u32(d)
	}
	return c
}

// Call calls function f.
func (c *Code) Call(f uint32) *Code { return c.Op(opCall, f) }

// Get, Set and Tee name locals.
func (c *Code) Get(i uint32) *Code { return c.Op(opLocalGet, i) }

func (c *Code) Set(i uint32) *Code { return c.Op(opLocalSet, i) }

func (c *Code) Tee(i uint32) *Code { return c.Op(opLocalTee, i) }

func appendU32(b []byte, v uint32) []byte { return binary.AppendUvarint(b, uint64(v)) }

func appendS64(b []byte, v int64) []byte {
	for {
		c := byte(v & 0x7F)
		v >>= 7
		if v == 0 && c&0x40 == 0 || v == -1 && c&0x40 != 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}

// A Builder assembles a module. Imports come before everything else, since
// they number the functions. Nothing is checked: that is for the tests to do.
type Builder struct {
	types            []funcType
	typeBytes        []byte
	imports, funcs   [][]byte
	bodies           [][]byte
	tables, memories [][]byte
	globals, exports [][]byte
	elems, datas     [][]byte
	custom           []byte
	start            int64
}

// NewBuilder begins a module.
func NewBuilder() *Builder { return &Builder{start: -1} }

// Type returns the index of a function type, adding it if it is new.
func (b *Builder) Type(params, results string) uint32 {
	for i, t := range b.types {
		if t == (funcType{params, results}) {
			return uint32(i)
		}
	}
	b.types = append(b.types, funcType{params, results})
	b.typeBytes = appendName(appendName(append(b.typeBytes, 0x60), params), results)
	return uint32(len(b.types) - 1)
}

func appendName(b []byte, s string) []byte { return append(appendU32(b, uint32(len(s))), s...) }

// Import adds an imported function.
func (b *Builder) Import(module, name string, typ uint32) uint32 {
	b.imports = append(b.imports, appendU32(append(appendName(appendName(nil, module), name), 0), typ))
	return uint32(len(b.imports) - 1)
}

// Func adds a function; locals are those besides the parameters, and code
// comes without the last end.
func (b *Builder) Func(typ uint32, locals string, code *Code) uint32 {
	b.funcs = append(b.funcs, appendU32(nil, typ))
	body := appendU32(nil, uint32(len(locals)))
	for i := range len(locals) {
		body = append(body, 1, locals[i])
	}
	b.bodies = append(b.bodies, append(append(body, code.b...), opEnd))
	return uint32(len(b.imports) + len(b.funcs) - 1)
}

// Limits: hi below zero is none.
func limits(lo uint32, hi int64) []byte {
	if hi < 0 {
		return appendU32([]byte{0}, lo)
	}
	return appendU32(appendU32([]byte{1}, lo), uint32(hi))
}

// Table adds a table of FuncRef or ExternRef; a maximum below zero is none.
func (b *Builder) Table(typ byte, lo uint32, hi int64) uint32 {
	b.tables = append(b.tables, append([]byte{typ}, limits(lo, hi)...))
	return uint32(len(b.tables) - 1)
}

// Memory adds the memory, in pages of 64 KiB; a maximum below zero is none.
func (b *Builder) Memory(lo uint32, hi int64) { b.memories = append(b.memories, limits(lo, hi)) }

// Global adds a global.
func (b *Builder) Global(typ byte, mutable bool, init *Code) uint32 {
	g := []byte{typ, 0}
	if mutable {
		g[1] = 1
	}
	b.globals = append(b.globals, append(append(g, init.b...), opEnd))
	return uint32(len(b.globals) - 1)
}

// The kinds of export.
const (
	ExportFunc byte = iota
	ExportTable
	ExportMemory
	ExportGlobal
)

// Export adds an export.
func (b *Builder) Export(name string, kind byte, index uint32) {
	b.exports = append(b.exports, appendU32(append(appendName(nil, name), kind), index))
}

// Elem adds an active segment of function indexes to a table.
func (b *Builder) Elem(table uint32, offset *Code, funcs ...uint32) uint32 {
	e := append(append(appendU32([]byte{2}, table), offset.b...), opEnd, 0)
	return b.elem(e, funcs)
}

// ElemPassive adds a passive segment, or a declarative one.
func (b *Builder) ElemPassive(declarative bool, funcs ...uint32) uint32 {
	flag := byte(1)
	if declarative {
		flag = 3
	}
	return b.elem([]byte{flag, 0}, funcs)
}

func (b *Builder) elem(e []byte, funcs []uint32) uint32 {
	e = appendU32(e, uint32(len(funcs)))
	for _, f := range funcs {
		e = appendU32(e, f)
	}
	b.elems = append(b.elems, e)
	return uint32(len(b.elems) - 1)
}

// Data adds an active data segment; with offset nil a passive one.
func (b *Builder) Data(offset *Code, data string) uint32 {
	d := []byte{1}
	if offset != nil {
		d = append(append([]byte{0}, offset.b...), opEnd)
	}
	b.datas = append(b.datas, appendName(d, data))
	return uint32(len(b.datas) - 1)
}

// Start names the start function.
func (b *Builder) Start(f uint32) { b.start = int64(f) }

// Names adds the name section: of functions and of globals.
func (b *Builder) Names(funcs, globals map[uint32]string) {
	p := appendName(nil, "name")
	for _, sub := range []struct {
		id    byte
		names map[uint32]string
	}{{1, funcs}, {7, globals}} {
		m := appendU32(nil, uint32(len(sub.names)))
		for _, i := range slices.Sorted(maps.Keys(sub.names)) {
			m = appendName(appendU32(m, i), sub.names[i])
		}
		p = appendName(append(p, sub.id), string(m))
	}
	b.custom = appendName([]byte{0}, string(p))
}

// Bytes returns the module in the binary format.
func (b *Builder) Bytes() []byte {
	out := []byte("\x00asm\x01\x00\x00\x00")
	section := func(id byte, payload []byte) { out = appendName(append(out, id), string(payload)) }
	vector := func(id byte, items [][]byte) {
		if len(items) == 0 {
			return
		}
		p := appendU32(nil, uint32(len(items)))
		for _, it := range items {
			p = append(p, it...)
		}
		section(id, p)
	}
	if len(b.types) > 0 {
		section(1, append(appendU32(nil, uint32(len(b.types))), b.typeBytes...))
	}
	vector(2, b.imports)
	vector(3, b.funcs)
	vector(4, b.tables)
	vector(5, b.memories)
	vector(6, b.globals)
	vector(7, b.exports)
	if b.start >= 0 {
		section(8, appendU32(nil, uint32(b.start)))
	}
	vector(9, b.elems)
	if len(b.datas) > 0 {
		section(12, appendU32(nil, uint32(len(b.datas))))
	}
	bodies := make([][]byte, len(b.bodies))
	for i, body := range b.bodies {
		bodies[i] = appendName(nil, string(body))
	}
	vector(10, bodies)
	vector(11, b.datas)
	return append(out, b.custom...)
}

// Bits of the canonical NaNs, which the generator puts in place of any NaN:
// engines may differ in the payload.
var (
	nan32 = math.Float32bits(float32(math.NaN()))
	nan64 = uint64(0x7FF8000000000000)
)
