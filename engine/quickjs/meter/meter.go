// Package meter instruments a WebAssembly module so that it can be stopped,
// counted and explained from outside, whatever the host's compiler offers.
//
// Instrument adds a fuel counter, a mutable i32 global that no script can reach
// even if it corrupts linear memory, and checks that subtract from it and call a
// host function, the hook, when it falls below zero:
//
//   - in every loop, at its header or at the branches back to it;
//   - at the entry of enough functions that no recursion and no fan-out of calls
//     runs far without a check;
//   - at every bulk memory operation, by volume; large ones run in chunks.
//
// It can watch the stack pointer of the C stack in linear memory, which has no
// guard page, and count the entries of functions that matter as evidence.
//
// It is a pure function from bytes to bytes and safe for concurrent use. It
// does not validate: a module that a WebAssembly compiler refuses may come out
// as another that it refuses. It promises nothing for modules with SIMD, threads,
// tail calls or exceptions: these are errors.
package meter

import (
	"bytes"
	"errors"
	"fmt"
)

// The names under which the instrumented module exports what the meter adds.
const (
	FuelExport         = "sandbed_fuel"          // i32: what is left; the hook is called below zero
	StackPointerExport = "sandbed_stack_pointer" // i32: the module's own stack pointer
	StackLimitExport   = "sandbed_stack_limit"   // i32: a stack pointer below it traps
	StackLowExport     = "sandbed_stack_low"     // i32: the lowest stack pointer seen
	PendingExport      = "sandbed_pending"       // i32: kind of the last mark that no capture has taken
	CapturedExport     = "sandbed_captured"      // i64, with a digit from 0: results of the capture function after a mark, the last first
	CapturedKindExport = "sandbed_captured_kind" // i32, with the same digit: kind of that mark, 0 for none
)

const (
	// BulkShift makes bulk operations cost one unit for 256 bytes.
	BulkShift = 8
	// BulkChunk is the most that one bulk instruction moves between two checks.
	// 512 MiB at once took 0.25 s, and Go's stop-the-world waits for it.
	BulkChunk = 1 << 20
	// smallBulk is the constant length below which a bulk instruction is taken
	// for straight-line code.
	smallBulk = 4096
	// Captures is how many captured values are kept. Building the error of a
	// full stack may overflow it again, in script code that formats the first
	// error, so the last value alone would not do.
	Captures = 8
	// maxStraight bounds the instructions that a call may run through before a
	// check, on the longest path of every function on the way; what would pass it
	// gets a check at its entry. The bound is loose: in QuickJS the longest run
	// is 2.2 million instructions, under a millisecond (TestQuickJSRunsNotFarUnchecked).
	// A tighter one puts checks into small functions that are called all the time.
	maxStraight = 1 << 24
)

// Import names a host function.
type Import struct {
	Module, Name string
	Type         FuncType
}

// Func is a function that the meter adds and puts into the table, so that its
// slot can be handed to the module as a function pointer: imported from the
// host, or made of code.
type Func struct {
	Import *Import
	Type   FuncType // with Code
	Code   []byte   // the body's expression without locals, with its final end
}

// Mark is evidence: entering Func sets the pending kind.
type Mark struct {
	Func string // from the name section, or an export
	// Param, if Text is set, must point to Text, a NUL-terminated string that
	// occurs once in the module's data.
	Param int
	Text  string
	Kind  int32 // above 0
}

// Capture ties evidence to a value: when Func returns after a mark, its i64
// result is kept in the first captured global and its kind beside it, and the
// earlier ones move down. Retain is called with (first parameter, result), Release
// with the value that falls out, so that a value is alive as long as it is captured. Func, Retain and Release must take (i32, …)
// and (i32, i64).
type Capture struct {
	Func, Retain, Release string
}

// Options says what to add. The zero value with a Hook gives full metering.
type Options struct {
	// Hook is called without arguments when fuel has fallen below zero; it
	// refills, yields, or ends the run by a panic of the host.
	Hook struct{ Module, Name string }
	// NoChecks leaves out the fuel checks and the stack check: the module then runs at its own
	// speed and cannot be stopped. It exists to price the checks.
	NoChecks bool
	// StackPointer is the name of the global that is the C stack pointer; ""
	// leaves the stack unwatched.
	StackPointer string
	Table        []Func
	Marks        []Mark
	// MarkHook, if set, is a host function (i32) that is called with the kind at
	// every mark, and with 0 when the capture has taken it.
	MarkHook *Import
	Capture  *Capture
}

// Instrumented is the result of Instrument.
type Instrumented struct {
	Wasm  []byte
	Slots []uint32 // table slot of each Options.Table
	// What was added.
	Loops, Entries, Bulk, StackWrites int
}

const hookImport = importBase

// importBase is where added imports live in the index space of the rewriter:
// their final index depends on how many the module has.
const importBase = 1 << 30

// globals of the meter, as indexes into the module's global space.
type meterGlobals struct {
	fuel, limit, low, pending uint32
	captured, capturedKind    [Captures]uint32
}

type rewriter struct {
	*module
	o        Options
	g        meterGlobals
	sp       int64 // global index of the stack pointer, -1 for none
	added    []Import
	redirect map[uint32]uint32
	markHook uint32 // in the rewriter's index space, 0 for none
	copyFn   uint32
	fillFn   uint32
	entries  map[uint32]bool
	marks    map[uint32][]markAt
	out      Instrumented
}

type markAt struct {
	Mark
	address int64 // -1: unconditional
}

// Instrument rewrites wasm. The error names what is malformed or unsupported.
func Instrument(wasm []byte, o Options) (Instrumented, error) {
	if o.Hook.Module == "" || o.Hook.Name == "" {
		return Instrumented{}, errors.New("meter: Options.Hook is empty: name the host function to call when fuel runs out")
	}
	m, err := decode(wasm)
	if err != nil {
		return Instrumented{}, fmt.Errorf("meter: %w", err)
	}
	w := &rewriter{module: m, o: o, sp: -1, redirect: map[uint32]uint32{}, marks: map[uint32][]markAt{}}
	if err := w.rewrite(); err != nil {
		return Instrumented{}, fmt.Errorf("meter: %w", err)
	}
	return w.out, nil
}

func (w *rewriter) rewrite() error {
	w.added = append(w.added, Import{w.o.Hook.Module, w.o.Hook.Name, FuncType{}})
	if err := w.addGlobals(); err != nil {
		return err
	}
	if err := w.resolveMarks(); err != nil {
		return err
	}
	for i := range w.bodies {
		plan, err := planLoops(w.module, w.bodies[i].code)
		if err != nil {
			f := uint32(w.importedFuncs + i)
			return fmt.Errorf("body of function %d (%s): %w", f, w.names[f], err)
		}
		w.plans = append(w.plans, plan)
	}
	original := len(w.bodies)
	if !w.o.NoChecks {
		var err error
		if w.entries, err = chooseEntries(w.module); err != nil {
			return err
		}
		w.addBulkHelpers()
	}
	if err := w.addCapture(); err != nil {
		return err
	}
	if err := w.addTable(); err != nil {
		return err
	}
	for i := range w.bodies {
		// The meter's own functions only need their calls renumbered.
		own := i >= original
		if err := w.rewriteBody(i, own); err != nil {
			f := uint32(w.importedFuncs + i)
			return fmt.Errorf("body of function %d (%s): %w", f, w.names[f], err)
		}
	}
	for _, im := range w.added {
		b := appendName(appendName(nil, im.Module), im.Name)
		w.imports = append(w.imports, appendUleb(append(b, kindFunc), w.typeIndex(im.Type)))
	}
	w.out.Entries = len(w.entries)
	w.out.Wasm = w.encode(w.renumber)
	return nil
}

// renumber maps an index of the rewriter to the final function index space,
// where the added imports stand between the module's imports and its functions.
func (w *rewriter) renumber(f uint32) uint32 {
	switch {
	case f >= importBase:
		return uint32(w.importedFuncs) + f - importBase
	case f >= uint32(w.importedFuncs):
		return f + uint32(len(w.added))
	}
	return f
}

func (w *rewriter) addGlobal(t ValType, init []byte, name string) uint32 {
	index := uint32(w.importedGlobals + len(w.globals))
	g := append([]byte{byte(t), 1}, init...)
	w.globals = append(w.globals, append(g, opEnd))
	w.globalTypes = append(w.globalTypes, t)
	w.exports = append(w.exports, export{name, kindGlobal, index})
	return index
}

func (w *rewriter) addGlobals() error {
	for _, e := range w.exports {
		if len(e.name) > 8 && e.name[:8] == "sandbed_" {
			return fmt.Errorf("export %q is in the way: the module is instrumented already", e.name)
		}
	}
	zero32, zero64 := []byte{opI32Const, 0}, []byte{opI64Const, 0}
	w.g.fuel = w.addGlobal(I32, zero32, FuelExport)
	if w.o.StackPointer != "" {
		for i, n := range w.globalNames {
			if n == w.o.StackPointer && int(i) < w.importedGlobals+len(w.globals) && w.globalTypes[i] == I32 {
				w.sp = int64(i)
			}
		}
		if w.sp < 0 {
			return fmt.Errorf("Options.StackPointer: no i32 global is named %q", w.o.StackPointer)
		}
		w.exports = append(w.exports, export{StackPointerExport, kindGlobal, uint32(w.sp)})
		w.g.limit = w.addGlobal(I32, zero32, StackLimitExport)
		w.g.low = w.addGlobal(I32, []byte{opI32Const, 0x7f}, StackLowExport) // -1: the highest address
	}
	if len(w.o.Marks) > 0 {
		w.g.pending = w.addGlobal(I32, zero32, PendingExport)
		for i := range Captures {
			w.g.captured[i] = w.addGlobal(I64, zero64, fmt.Sprint(CapturedExport, i))
			w.g.capturedKind[i] = w.addGlobal(I32, zero32, fmt.Sprint(CapturedKindExport, i))
		}
	}
	return nil
}

func (w *rewriter) resolveMarks() error {
	if w.o.MarkHook != nil {
		if !w.o.MarkHook.Type.equal(FuncType{Params: []ValType{I32}}) {
			return errors.New("Options.MarkHook must take one i32 and give nothing")
		}
		w.markHook = uint32(importBase + len(w.added))
		w.added = append(w.added, *w.o.MarkHook)
	}
	for _, mk := range w.o.Marks {
		f, err := w.function(mk.Func)
		if err != nil {
			return fmt.Errorf("mark: %w", err)
		}
		at := markAt{mk, -1}
		if mk.Text != "" {
			if at.address, err = w.textAddress(mk.Text); err != nil {
				return fmt.Errorf("mark on %s: %w", mk.Func, err)
			}
			if p := w.typeOf(f).Params; mk.Param < 0 || mk.Param >= len(p) || p[mk.Param] != I32 {
				return fmt.Errorf("mark on %s: parameter %d is no i32", mk.Func, mk.Param)
			}
		}
		w.marks[f] = append(w.marks[f], at)
	}
	return nil
}

// textAddress finds a NUL-terminated text in the data segments; it must occur
// once, or the evidence would be a guess.
func (w *rewriter) textAddress(text string) (int64, error) {
	needle := append(append([]byte{0}, text...), 0)
	found := int64(-1)
	for i, seg := range w.dataSegments {
		for from := 0; w.dataOffsets[i] >= 0; {
			at := bytes.Index(seg[from:], needle)
			if at < 0 {
				break
			}
			if found >= 0 {
				return 0, fmt.Errorf("text %q occurs twice in the data", text)
			}
			found = w.dataOffsets[i] + int64(from+at+1)
			from += at + 1
		}
	}
	if found < 0 {
		return 0, fmt.Errorf("text %q does not occur in the data", text)
	}
	return found, nil
}

// addFunc appends a function in the rewriter's index space.
func (w *rewriter) addFunc(t FuncType, name string, locals []localRun, code []byte) uint32 {
	f := uint32(len(w.funcs))
	w.funcs = append(w.funcs, w.typeIndex(t))
	w.bodies = append(w.bodies, body{locals, code})
	w.names[f] = name
	return f
}

func (w *rewriter) addTable() error {
	if len(w.o.Table) == 0 {
		return nil
	}
	if w.importedTables > 0 || len(w.tables) != 1 {
		return errors.New("Options.Table needs a module that defines one table")
	}
	t := &w.tables[0]
	var e elements
	e.prefix = append(appendSleb([]byte{0, opI32Const}, int64(int32(t.min))), opEnd)
	for _, f := range w.o.Table {
		index := uint32(importBase + len(w.added))
		if f.Import != nil {
			w.added = append(w.added, *f.Import)
		} else {
			index = w.addFunc(f.Type, "sandbed_table", nil, bytes.Clone(f.Code))
		}
		w.out.Slots = append(w.out.Slots, t.min+uint32(len(e.funcs)))
		e.funcs, e.nulls = append(e.funcs, index), append(e.nulls, false)
	}
	t.min += uint32(len(e.funcs))
	if t.hasMax {
		t.max = max(t.max, t.min)
	}
	w.elems = append(w.elems, e)
	return nil
}

// addCapture wraps the capture function. The wrapper takes the pending mark
// before it calls, so that a nested call, which script code may cause, cannot take it.
func (w *rewriter) addCapture() error {
	c := w.o.Capture
	if c == nil {
		return nil
	}
	if len(w.o.Marks) == 0 {
		return errors.New("Options.Capture without Marks captures nothing")
	}
	f, err := w.function(c.Func)
	if err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	t := w.typeOf(f)
	if len(t.Params) == 0 || t.Params[0] != I32 || len(t.Results) != 1 || t.Results[0] != I64 {
		return fmt.Errorf("capture: %s does not take an i32 and give an i64", c.Func)
	}
	keep := [2]uint32{}
	for i, name := range []string{c.Retain, c.Release} {
		if keep[i], err = w.function(name); err != nil {
			return fmt.Errorf("capture: %w", err)
		}
		if p := w.typeOf(keep[i]).Params; len(p) != 2 || p[0] != I32 || p[1] != I64 {
			return fmt.Errorf("capture: %s does not take (i32, i64)", name)
		}
	}
	kind, result := uint32(len(t.Params)), uint32(len(t.Params)+1)
	a := &asm{}
	a.op(opGlobalGet, w.g.pending).op(opLocalSet, kind)
	a.i32(0).op(opGlobalSet, w.g.pending)
	for i := range t.Params {
		a.op(opLocalGet, uint32(i))
	}
	a.op(opCall, f).op(opLocalSet, result)
	a.op(opLocalGet, kind).raw(opIf, blockEmpty)
	call := func(f uint32) {
		a.op(opCall, f)
		for range w.typeOf(f).Results {
			a.raw(opDrop)
		}
	}
	a.op(opGlobalGet, w.g.capturedKind[Captures-1]).raw(opIf, blockEmpty)
	a.op(opLocalGet, 0).op(opGlobalGet, w.g.captured[Captures-1])
	call(keep[1])
	a.raw(opEnd)
	for i := Captures - 1; i > 0; i-- {
		a.op(opGlobalGet, w.g.captured[i-1]).op(opGlobalSet, w.g.captured[i])
		a.op(opGlobalGet, w.g.capturedKind[i-1]).op(opGlobalSet, w.g.capturedKind[i])
	}
	a.op(opLocalGet, result).op(opGlobalSet, w.g.captured[0])
	a.op(opLocalGet, kind).op(opGlobalSet, w.g.capturedKind[0])
	a.op(opLocalGet, 0).op(opLocalGet, result)
	call(keep[0])
	if w.markHook != 0 {
		a.i32(0).op(opCall, w.markHook)
	}
	a.raw(opEnd)
	a.op(opLocalGet, result).raw(opEnd)
	wrapper := w.addFunc(t, "sandbed_capture", []localRun{{1, I32}, {1, I64}}, a.b)
	w.redirect[f] = wrapper
	return nil
}
