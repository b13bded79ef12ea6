package metertest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// The names by which tests reach into a generated module. Functions are
// exported as f0, f1, … and globals as g0, g1, …; each has a memory exported as
// memory.
const (
	// ImportModule holds the functions that a generated module may import:
	// note (i32) → (), ask (i64) → (i64). A test that counts the calls of note
	// sees the order of side effects.
	ImportModule = "env"
	// callBudget is how many calls of guarded functions one instance makes.
	callBudget = 400
	// StackPointer is the name of a mutable i32 global that code writes now and
	// then, as it does its stack pointer.
	StackPointer = "__stack_pointer"
)

// Generate makes a random valid module from a seed: the same seed and size give
// the same bytes. Size is about the number of statements of all functions
// together. Most modules terminate, some loop or recurse without end, some trap.
// Any NaN that arithmetic makes is replaced by the canonical one, so that two
// engines must agree on every bit.
func Generate(seed uint64, size int) []byte {
	g := &generator{r: rand.New(rand.NewPCG(seed, 0x6D65746572)), b: NewBuilder()}
	return g.module(max(size, 1))
}

type fn struct {
	typ     funcType
	guarded bool // it counts down the call budget at its entry
}

type genGlobal struct {
	typ     byte
	mutable bool
}

// genLabel is an open block.
type genLabel struct {
	base    int    // height of the stack below it
	types   string // what a branch to it takes
	results string
	endless bool // a branch to it may never end
}

type generator struct {
	r *rand.Rand
	b *Builder

	pages   uint32
	imports []funcType
	funcs   []fn
	slots   []uint32 // what the table holds
	globals []genGlobal
	budget  uint32 // index of the global that counts calls down
	datas   []string
	elems   int
	refs    bool // uses reference types
	wild    bool // may run without end
	blocks  []funcType

	// The function being made.
	c        *Code
	left     int // statements left
	fn       fn
	locals   string // parameters included
	free     int    // the first free locals are written at random
	scratch  [2]uint32
	stack    []byte
	floor    int // operands are not taken from below: they belong to another instruction
	labels   []genLabel
	counters []uint32 // loop counters that no open loop uses
}

var numeric = []byte{I32, I64, F32, F64}

func (g *generator) chance(percent int) bool { return g.r.IntN(100) < percent }

func (g *generator) types(most int) string {
	b := make([]byte, g.r.IntN(most+1))
	for i := range b {
		b[i] = numeric[g.r.IntN(4)]
	}
	return string(b)
}

func (g *generator) module(size int) []byte {
	g.wild, g.refs = g.chance(35), g.chance(25)
	g.pages = 1 + g.r.Uint32N(2)
	if g.chance(15) {
		g.pages = 40 + g.r.Uint32N(24) // room for long copies
	}
	g.imports = []funcType{{string(I32), ""}, {string(I64), string(I64)}}
	g.b.Import(ImportModule, "note", g.b.Type(g.imports[0].params, g.imports[0].results))
	g.b.Import(ImportModule, "ask", g.b.Type(g.imports[1].params, g.imports[1].results))
	n := 2 + g.r.IntN(3+size/40)
	sigs := []funcType{{}, {string(I32), string(I32)}, {"", string(I64)}, {g.types(3), g.types(3)}, {g.types(4), g.types(1)}}
	for range n {
		g.funcs = append(g.funcs, fn{sigs[g.r.IntN(len(sigs))], !g.wild || g.chance(80)})
	}
	for range 4 {
		g.blocks = append(g.blocks, funcType{g.types(2), g.types(3)})
	}
	t := g.types(2)
	g.blocks = append(g.blocks, funcType{t, t}, funcType{"", g.types(3)})

	// Globals, the budget first.
	g.budget = g.b.Global(I32, true, Asm().I32(callBudget))
	g.b.Export("budget", ExportGlobal, g.budget)
	g.globals = append(g.globals, genGlobal{I32, false}) // not written at random
	for i := range 2 + g.r.IntN(5) {
		gl := genGlobal{numeric[g.r.IntN(4)], g.chance(80)}
		if i == 0 { // the stack pointer
			gl = genGlobal{I32, true}
		}
		g.globals = append(g.globals, gl)
		init := &generator{r: g.r, c: Asm()}
		init.constant(gl.typ)
		g.b.Export(fmt.Sprintf("g%d", i), ExportGlobal, g.b.Global(gl.typ, gl.mutable, init.c))
	}
	g.b.Memory(g.pages, int64(g.pages)+int64(g.r.IntN(3)))
	g.b.Export("memory", ExportMemory, 0)

	// A table of eight slots, mostly full.
	g.b.Table(FuncRef, 8, 16)
	if g.chance(30) {
		g.b.Export("table", ExportTable, 0)
	}
	for range 8 - g.r.IntN(2)*g.r.IntN(4) {
		g.slots = append(g.slots, uint32(g.r.IntN(len(g.imports)+n)))
	}
	g.b.Elem(0, Asm().I32(0), g.slots...)
	g.elems = 1
	if g.refs {
		g.b.ElemPassive(false, uint32(len(g.imports)), uint32(len(g.imports)+n-1), 0)
		g.b.ElemPassive(true, uint32(len(g.imports)))
		g.elems = 3
		// A reference in an initialiser.
		g.globals = append(g.globals, genGlobal{FuncRef, true})
		g.b.Global(FuncRef, true, Asm().Op(opRefFunc, uint32(len(g.imports)+g.r.IntN(n))))
	}
	text := make([]byte, 64+g.r.IntN(2000))
	for i := range text {
		text[i] = byte(g.r.Uint32())
	}
	g.datas = []string{string(text), string(text[:g.r.IntN(64)])}
	g.b.Data(Asm().I32(int32(g.r.IntN(1024))), g.datas[0])
	g.b.Data(nil, g.datas[1])

	start := -1
	for i, f := range g.funcs {
		if f.typ == (funcType{}) && g.chance(15) {
			start = i
		}
		g.function(f, 1+g.r.IntN(1+2*size/n))
		g.b.Export(fmt.Sprintf("f%d", i), ExportFunc, uint32(len(g.imports)+i))
	}
	if start >= 0 {
		g.b.Start(uint32(len(g.imports) + start))
	}
	names := map[uint32]string{}
	for i := range g.funcs {
		names[uint32(len(g.imports)+i)] = fmt.Sprintf("function %d", i)
	}
	g.b.Names(names, map[uint32]string{1: StackPointer})
	return g.b.Bytes()
}

func (g *generator) function(f fn, statements int) {
	g.c, g.left, g.fn = Asm(), statements, f
	g.locals, g.stack, g.counters = f.typ.params, nil, nil
	own := string(numeric) + g.types(4)
	if g.chance(5) { // indexes that take two bytes
		for range 150 {
			own += string(numeric[g.r.IntN(4)])
		}
	}
	if g.refs {
		own += string(FuncRef)
	}
	g.locals += own
	g.free = len(g.locals)
	g.scratch = [2]uint32{uint32(g.free), uint32(g.free + 1)}
	g.locals += string([]byte{F32, F64})
	g.labels = []genLabel{{types: f.typ.results, results: f.typ.results}}
	if f.guarded {
		g.c.Op(opGlobalGet, g.budget).I32(1).Op(opI32Sub).Op(opGlobalSet, g.budget)
		g.c.Op(opGlobalGet, g.budget).I32(0).Op(opI32LtS).If(Void)
		for _, t := range []byte(f.typ.results) {
			g.constant(t)
		}
		g.c.Op(opReturn).End()
		g.stack = nil
	}
	g.statements()
	g.settle(f.typ.results)
	g.b.Func(g.b.Type(f.typ.params, f.typ.results), g.locals[len(f.typ.params):], g.c)
}

func (g *generator) push(t byte) { g.stack = append(g.stack, t) }

func (g *generator) pop(n int) { g.stack = g.stack[:len(g.stack)-n] }

func (g *generator) base() int { return g.labels[len(g.labels)-1].base }

// settle leaves just the given types above the base of the innermost block.
func (g *generator) settle(types string) {
	if string(g.stack[g.base():]) == types {
		return
	}
	for len(g.stack) > g.base() {
		g.drop()
	}
	for _, t := range []byte(types) {
		g.value(t, 1)
	}
}

func (g *generator) drop() { g.c.Op(opDrop); g.pop(1) }

// dead begins code that cannot run: it is valid on any stack.
func (g *generator) dead() { g.stack = g.stack[:g.base()] }

// need takes operands from the stack if they happen to be there, or makes them.
func (g *generator) need(types string, depth int) {
	n := len(g.stack) - len(types)
	if n >= max(g.base(), g.floor) && string(g.stack[n:]) == types && g.chance(70) {
		return
	}
	for _, t := range []byte(types) {
		g.value(t, depth)
	}
}

func (g *generator) constant(t byte) {
	switch t {
	case I32:
		v := []int32{0, 1, -1, 2, 7, 63, 64, 127, 128, 255, 256, math.MaxInt32, math.MinInt32, 65535, 65536}
		if g.chance(40) {
			g.c.I32(int32(g.r.Uint32()))
		} else {
			g.c.I32(v[g.r.IntN(len(v))])
		}
	case I64:
		v := []int64{0, 1, -1, 63, 64, 127, 128, math.MaxInt64, math.MinInt64, 1 << 32, math.MinInt32}
		if g.chance(40) {
			g.c.I64(int64(g.r.Uint64()))
		} else {
			g.c.I64(v[g.r.IntN(len(v))])
		}
	case F32:
		g.c.F32(math.Float32bits(float32(g.float())))
	case F64:
		g.c.F64(math.Float64bits(g.float()))
	default:
		g.c.raw(opRefNull, t)
	}
	g.push(t)
}

func (g *generator) float() float64 {
	v := []float64{0, math.Copysign(0, -1), 1, -1, 0.5, -1.5, 2147483647, -2147483648.9, 4294967296, 1e10, 9.3e18, 1e38,
		math.SmallestNonzeroFloat64, math.Inf(1), math.Inf(-1)}
	if g.chance(50) {
		return (g.r.Float64() - 0.5) * 1000
	}
	return v[g.r.IntN(len(v))]
}

// value pushes one value of type t.
func (g *generator) value(t byte, depth int) {
	defer func(old int) { g.floor = old }(g.floor)
	g.floor = len(g.stack)
	switch k := g.r.IntN(10); {
	case t == FuncRef && k < 4:
		g.c.Op(opRefFunc, g.referenced())
		g.push(t)
	case k < 3 || depth <= 0 && k < 5:
		g.constant(t)
	case k < 6 || depth <= 0 && k < 9:
		if i, ok := g.local(t); ok {
			g.c.Get(i)
			g.push(t)
			return
		}
		g.constant(t)
	case k == 6 || depth <= 0 || t == FuncRef:
		for range 4 {
			if i := g.r.IntN(len(g.globals)); g.globals[i].typ == t {
				g.c.Op(opGlobalGet, uint32(i))
				g.push(t)
				return
			}
		}
		g.constant(t)
	case k == 7 && t == I32 && g.chance(20):
		g.c.Op(opMemorySize, 0)
		g.push(t)
	default:
		ops := opsByResult[t]
		g.operate(ops[g.r.IntN(len(ops))], depth-1)
	}
}

// referenced is a function that element segments declare.
func (g *generator) referenced() uint32 { return g.slots[g.r.IntN(len(g.slots))] }

func (g *generator) local(t byte) (uint32, bool) {
	for range 8 {
		if i := g.r.IntN(g.free); g.locals[i] == t {
			return uint32(i), true
		}
	}
	return 0, false
}

var letters = map[rune]byte{'i': I32, 'l': I64, 'f': F32, 'd': F64}

func valTypes(s string) string {
	b := make([]byte, 0, len(s))
	for _, c := range s {
		b = append(b, letters[c])
	}
	return string(b)
}

// opsByResult are the operators without immediates and the loads.
var opsByResult, stores = func() (map[byte][]uint16, []uint16) {
	m := map[byte][]uint16{}
	var st []uint16
	ops := make([]uint16, 0, len(signatures))
	for op := range signatures {
		ops = append(ops, op)
	}
	slices.Sort(ops)
	for _, op := range ops {
		sig := signatures[op]
		switch {
		case op >= 0x36 && op <= opI64Store32:
			st = append(st, op)
		case op >= opI32Load && op < 0x36, op >= opI32Eqz && op <= 0xC4, op >= 0xFC00 && op <= 0xFC07:
			t := letters[rune(sig.out[0])]
			m[t] = append(m[t], op)
		}
	}
	return m, st
}()

// operate appends an operator with its operands and notes its result.
func (g *generator) operate(op uint16, depth int) {
	sig := signatures[op]
	in := valTypes(sig.in)
	switch {
	case op >= opI32Load && op <= opI64Store32:
		g.access(op, in, depth)
	case op >= 0xA8 && op <= 0xB1 && op != 0xAC && op != 0xAD && g.chance(85): // trapping truncation
		v := math.Trunc(g.r.Float64() * 1000)
		if in[0] == F32 {
			g.c.F32(math.Float32bits(float32(v)))
		} else {
			g.c.F64(math.Float64bits(v))
		}
		g.push(in[0])
		g.c.Op(op)
		g.pop(1)
	case (op >= 0x6D && op <= 0x70 || op >= 0x7F && op <= 0x82) && g.chance(90): // division, by an odd number
		g.need(in, depth)
		if in[0] == I32 {
			g.c.I32(1).Op(0x72)
		} else {
			g.c.I64(1).Op(0x84)
		}
		g.c.Op(op)
		g.pop(2)
	default:
		g.need(in, depth)
		g.c.Op(op)
		g.pop(len(in))
	}
	for _, t := range []byte(valTypes(sig.out)) {
		g.push(t)
	}
	switch { // operators that may make a NaN
	case op >= 0x8D && op <= 0x97, op == 0xB6:
		s := g.scratch[0]
		g.c.Tee(s).F32(nan32).Get(s).Get(s).Op(opF32Eq).Op(opSelect)
	case op >= 0x9B && op <= 0xA5, op == 0xBB:
		s := g.scratch[1]
		g.c.Tee(s).F64(nan64).Get(s).Get(s).Op(opF64Eq).Op(opSelect)
	}
}

// access appends a load or store, mostly within bounds.
func (g *generator) access(op uint16, in string, depth int) {
	size := int64(g.pages) << 16
	switch g.r.IntN(20) {
	case 0: // round the end
		g.c.I32(int32(size - 12 + int64(g.r.IntN(13))))
		g.push(I32)
	case 1:
		g.need(string(I32), depth)
	default:
		g.value(I32, depth)
		g.c.I32(0x3FFF).Op(opI32And)
	}
	if len(in) == 2 {
		g.value(in[1], depth)
	}
	align := map[byte]uint32{
		0x28: 2, 0x29: 3, 0x2A: 2, 0x2B: 3, 0x2E: 1, 0x2F: 1, 0x32: 1, 0x33: 1, 0x34: 2, 0x35: 2,
		0x36: 2, 0x37: 3, 0x38: 2, 0x39: 3, 0x3B: 1, 0x3D: 1, 0x3E: 2}[byte(op)]
	offset := g.r.Uint32N(200)
	if g.chance(2) {
		offset = g.r.Uint32()
	}
	g.c.Op(op, g.r.Uint32N(align+1), offset)
	g.pop(len(in))
}

func (g *generator) statements() {
	for n := 1 + g.r.IntN(10); n > 0 && g.left > 0; n-- {
		g.left--
		g.statement()
		if len(g.stack)-g.base() > 10 {
			for range 5 {
				g.drop()
			}
		}
	}
	if len(g.labels) == 1 && g.left > 0 { // the function's own block uses up the rest
		g.statements()
	}
}

func (g *generator) statement() {
	switch g.r.IntN(24) {
	case 0, 1:
		g.value(numeric[g.r.IntN(4)], 3)
	case 2, 3:
		ops := opsByResult[numeric[g.r.IntN(4)]]
		g.operate(ops[g.r.IntN(len(ops))], 2)
	case 4, 5:
		g.operate(stores[g.r.IntN(len(stores))], 2)
	case 6, 7, 8:
		i := uint32(g.r.IntN(g.free))
		g.need(g.locals[i:i+1], 3)
		if g.chance(30) {
			g.c.Tee(i)
		} else {
			g.c.Set(i)
			g.pop(1)
		}
	case 9:
		i := g.r.IntN(len(g.globals))
		if gl := g.globals[i]; gl.mutable {
			g.need(string(gl.typ), 2)
			g.c.Op(opGlobalSet, uint32(i))
			g.pop(1)
		}
	case 10, 11:
		g.block(opBlock)
	case 12, 13:
		g.loop()
	case 14, 15:
		g.block(opIf)
	case 16, 17:
		g.branch()
	case 18:
		g.call(uint32(g.r.IntN(len(g.imports) + len(g.funcs))))
	case 19:
		g.callIndirect()
	case 20:
		g.bulk()
	case 21:
		if g.refs && g.chance(70) {
			g.reference()
		} else {
			g.c.Op(opNop)
		}
	case 22:
		t := numeric[g.r.IntN(4)]
		g.need(string([]byte{t, t, I32}), 2)
		if g.chance(50) {
			g.c.Op(opSelect)
		} else {
			g.c.Op(opSelectTyped).raw(1, t)
		}
		g.pop(2)
	case 23:
		switch {
		case len(g.stack) > g.base() && g.chance(40):
			g.drop()
		case g.chance(30):
			g.value(I32, 0)
			g.c.I32(3).Op(opI32And).Op(opMemoryGrow, 0)
		case g.chance(20):
			// What can happen under a condition lets the rest of the block live.
			g.value(I32, 1)
			g.c.I32(31).Op(opI32And).Op(opI32Eqz).If(Void).Op(opUnreachable).End()
			g.pop(1)
		case g.chance(5):
			g.c.Op(opUnreachable)
			g.dead()
		}
	}
}

func (g *generator) open(l genLabel) { g.labels = append(g.labels, l) }

// close ends the innermost block.
func (g *generator) close() {
	l := g.labels[len(g.labels)-1]
	g.settle(l.results)
	g.c.End()
	g.labels = g.labels[:len(g.labels)-1]
}

// block appends a block or an if, of any type.
func (g *generator) block(op uint16) {
	if len(g.labels) > 6 {
		return
	}
	t, typ := funcType{}, int64(Void)
	switch g.r.IntN(3) {
	case 0:
		v := numeric[g.r.IntN(4)]
		t.results, typ = string(v), int64(v)-0x80
	case 1:
		t = g.blocks[g.r.IntN(len(g.blocks))]
		typ = int64(g.b.Type(t.params, t.results))
	}
	in := t.params
	if op == opIf {
		in += string(I32)
	}
	g.need(in, 2)
	if op == opIf {
		g.pop(1)
		g.c.If(typ)
	} else {
		g.c.Block(typ)
	}
	g.open(genLabel{base: len(g.stack) - len(t.params), types: t.results, results: t.results})
	g.statements()
	if op == opIf && (t.params != t.results || g.chance(50)) {
		g.settle(t.results)
		g.c.Else()
		g.stack = append(g.stack[:g.base()], t.params...)
		g.statements()
	}
	g.close()
}

// loop appends a loop: counted at its head, counted at its end, or endless.
func (g *generator) loop() {
	if len(g.labels) > 5 {
		return
	}
	var n uint32
	if k := len(g.counters); k > 0 {
		n, g.counters = g.counters[k-1], g.counters[:k-1]
	} else {
		n = uint32(len(g.locals))
		g.locals += string(I32)
	}
	defer func() { g.counters = append(g.counters, n) }()
	turns := int32(1 + g.r.IntN(6))
	if g.chance(3) {
		turns = 200
	}
	switch {
	case g.chance(45): // whatever goes back to the head is counted
		g.c.I32(turns).Set(n).Block(Void)
		g.open(genLabel{base: len(g.stack)})
		g.c.Loop(Void)
		g.open(genLabel{base: len(g.stack)})
		g.c.Get(n).I32(1).Op(opI32Sub).Tee(n).I32(0).Op(opI32LtS).BrIf(1)
		g.statements()
		g.settle("")
		g.c.Br(0)
		g.dead()
		g.close()
		g.close()
	default:
		endless := g.wild && g.chance(50)
		t, typ := funcType{}, int64(Void)
		if g.chance(50) {
			t = g.blocks[g.r.IntN(len(g.blocks))]
			typ = int64(g.b.Type(t.params, t.results))
		}
		g.c.I32(turns).Set(n)
		g.need(t.params, 2)
		g.c.Loop(typ)
		g.open(genLabel{base: len(g.stack) - len(t.params), types: t.params, results: t.results, endless: true})
		g.statements()
		g.settle(t.params)
		if !endless {
			g.c.Get(n).I32(1).Op(opI32Sub).Tee(n)
		} else if g.chance(50) {
			g.value(I32, 1)
			g.c.I32(1).Op(0x72)
			g.pop(1)
		} else {
			g.value(I32, 1)
			g.pop(1)
		}
		g.c.BrIf(0)
		g.close()
	}
}

// target picks a label; one that could be branched to for ever only in wild modules.
func (g *generator) target() (depth uint32, ok bool) {
	d := g.r.IntN(len(g.labels))
	return uint32(d), !g.labels[len(g.labels)-1-d].endless || g.wild && g.chance(30)
}

func (g *generator) branch() {
	d, ok := g.target()
	if !ok {
		return
	}
	types := g.labels[len(g.labels)-1-int(d)].types
	switch k := g.r.IntN(10); {
	case k < 6:
		g.need(types+string(I32), 2)
		g.c.BrIf(d)
		g.pop(1)
	case k < 8:
		depths := []uint32{d}
		for range g.r.IntN(6) {
			e, ok := g.target()
			if ok && g.labels[len(g.labels)-1-int(e)].types == types {
				depths = append(depths, e)
			}
		}
		g.need(types, 2)
		g.value(I32, 1)
		g.c.I32(7).Op(opI32And).BrTable(depths...)
		g.dead()
	case k == 8:
		g.need(g.fn.typ.results, 2)
		g.c.Op(opReturn)
		g.dead()
	default:
		g.need(types, 2)
		g.c.Br(d)
		g.dead()
	}
}

func (g *generator) signature(f uint32) funcType {
	if int(f) < len(g.imports) {
		return g.imports[f]
	}
	return g.funcs[int(f)-len(g.imports)].typ
}

func (g *generator) call(f uint32) {
	t := g.signature(f)
	g.need(t.params, 2)
	g.c.Call(f)
	g.pop(len(t.params))
	g.stack = append(g.stack, t.results...)
}

func (g *generator) callIndirect() {
	slot := g.r.IntN(len(g.slots))
	t := g.signature(g.slots[slot])
	g.need(t.params, 2)
	if g.chance(90) {
		g.c.I32(int32(slot))
	} else {
		g.value(I32, 1)
		g.c.I32(7).Op(opI32And)
		g.pop(1)
	}
	g.c.Op(opCallIndirect, g.b.Type(t.params, t.results), 0)
	g.pop(len(t.params))
	g.stack = append(g.stack, t.results...)
}

// masked pushes a number below a power of two.
func (g *generator) masked(mask int32) {
	g.value(I32, 1)
	g.c.I32(mask).Op(opI32And)
	g.pop(1)
}

// length pushes a length of a copy or fill: often short, in a large memory round
// the bounds of what one operation may do, sometimes past the end.
func (g *generator) length() {
	const mib = 1 << 20
	n := []int32{0, 1, 255, 256, 4095, 4096}
	if g.pages >= 40 {
		n = append(n, mib-1, mib, mib+1, mib+4097, 3*mib/2, 2*mib-1, 2*mib, 2*mib+1)
	}
	switch g.r.IntN(8) {
	case 0:
		n = []int32{-1, math.MinInt32, int32(g.pages) << 16, int32(g.pages)<<16 + 1}
		fallthrough
	case 1, 2, 3:
		g.c.I32(n[g.r.IntN(len(n))])
	case 4, 5: // the same, but not a constant to the rewriter
		g.c.I32(n[g.r.IntN(len(n))]).I32(0).Op(0x72)
	default:
		g.masked(0x3FFF)
	}
}

// place pushes an address for a copy or fill.
func (g *generator) place() {
	switch k := g.r.IntN(10); {
	case g.pages >= 40 && k < 5:
		g.c.I32(int32(g.r.IntN(6) * (1 << 18)))
	case k == 5:
		g.c.I32(int32(g.pages)<<16 - int32(g.r.IntN(3)))
	default:
		g.masked(0x3FFF)
	}
}

func (g *generator) bulk() {
	switch g.r.IntN(8) {
	case 0, 1, 2, 3:
		g.place()
		g.place()
		g.length()
		g.c.Op(opMemoryCopy, 0, 0)
	case 4, 5:
		g.place()
		g.masked(255)
		g.length()
		g.c.Op(opMemoryFill, 0)
	case 6:
		i := g.r.IntN(len(g.datas))
		g.masked(0x3FFF)
		g.masked(15)
		if g.chance(95) {
			g.masked(31)
		} else {
			g.value(I32, 0)
			g.pop(1)
		}
		g.c.Op(opMemoryInit, uint32(i), 0)
	case 7:
		if g.chance(30) {
			g.c.Op(opDataDrop, uint32(g.r.IntN(len(g.datas))))
		}
	}
}

// reference appends something with the table or with references.
func (g *generator) reference() {
	ref := func() {
		g.value(FuncRef, 0)
		g.pop(1)
	}
	small := func() {
		if g.chance(50) {
			g.c.I32(int32(g.r.IntN(4)))
		} else {
			g.masked(3)
		}
	}
	switch g.r.IntN(10) {
	case 0:
		g.masked(7)
		g.c.Op(opTableGet, 0)
		g.push(FuncRef)
	case 1:
		g.masked(7)
		ref()
		g.c.Op(opTableSet, 0)
	case 2:
		g.value(FuncRef, 0)
		g.c.Op(opRefIsNull)
		g.pop(1)
		g.push(I32)
	case 3:
		g.c.Op(opTableSize, 0)
		g.push(I32)
	case 4:
		ref()
		small()
		g.c.Op(opTableGrow, 0)
		g.push(I32)
	case 5:
		small()
		ref()
		small()
		g.c.Op(opTableFill, 0)
	case 6:
		small()
		small()
		small()
		g.c.Op(opTableCopy, 0, 0)
	case 7:
		small()
		g.c.I32(0)
		g.c.I32(int32(g.r.IntN(3)))
		g.c.Op(opTableInit, 1, 0)
	case 8:
		if g.chance(70) {
			g.c.Op(opElemDrop, uint32(g.r.IntN(g.elems)))
		}
	case 9:
		g.value(FuncRef, 0)
		g.value(FuncRef, 0)
		g.value(I32, 1)
		g.c.Op(opSelectTyped).raw(1, FuncRef)
		g.pop(2)
	}
}
