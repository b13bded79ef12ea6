package quickjs

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	quickjswasi "github.com/aperturerobotics/go-quickjs-wasi-reactor"

	"github.com/sandbed/sandbed/engine/quickjs/meter"
)

// pinnedSHA256 is the QuickJS-NG build that everything in this file was read from.
const pinnedSHA256 = "718f30dac3b2b42f2ab18d622f8ca11139e193e40f941519165710e4a9b168a3"

// Facts of the pinned build. Offsets were read from its code; boot verifies those
// that it can by writing a marker through the C API, and refuses to start otherwise.
const (
	// The table slots of js_def_calloc, js_def_malloc, js_def_free and js_def_realloc.
	slotCalloc, slotMalloc, slotFree, slotRealloc = 234, 235, 236, 237

	rtMallocSize   = 24  // JSRuntime.malloc_state.malloc_size
	rtMallocLimit  = 28  // malloc_limit: JS_SetMemoryLimit stores here
	rtGCThreshold  = 116 // JS_SetGCThreshold stores here
	rtStackSize    = 120 // JS_SetMaxStackSize stores here
	rtStackTop     = 124
	rtStackLimit   = 128 // forced to 0 by the WASI build
	ctxRuntime     = 16
	ctxInterrupt   = 296 // JSContext.interrupt_counter; 10,000 when the handler was just asked
	interruptEvery = 10_000
)

// QuickJS values are NaN-boxed: the tag is the high 32 bits.
const (
	tagFirst         = -9 // of those with a reference count; below it, unsigned, come the doubles
	tagString        = -7
	tagRope          = -6
	tagNull          = 2
	tagUndefined     = 3
	tagUninitialized = 4
	tagException     = 6

	valUndefined = uint64(tagUndefined) << 32
)

func tag(v uint64) int32 { return int32(v >> 32) }

// counted says whether v refers to something with a reference count. Most doubles
// have a negative upper half too.
func counted(v uint64) bool { return tag(v) >= tagFirst && tag(v) < 0 }

// Evidence kinds of the meter's marks.
const (
	markMemory = 1 + iota
	markStack
	markSerialize
)

// usableSize is the function that the WASI build stubs out: dlmalloc keeps the
// chunk size with three flag bits in the word before the block.
//
//	p ? (load32(p-4) & ~7) - 4 : 0
var usableSize = meter.Func{
	Type: meter.FuncType{Params: []meter.ValType{meter.I32}, Results: []meter.ValType{meter.I32}},
	Code: []byte{
		0x20, 0x00, // local.get 0
		0x04, 0x7f, // if (result i32)
		0x20, 0x00, 0x41, 0x04, 0x6b, // local.get 0, i32.const 4, i32.sub
		0x28, 0x02, 0x00, // i32.load
		0x41, 0x78, 0x71, // i32.const -8, i32.and
		0x41, 0x04, 0x6b, // i32.const 4, i32.sub
		0x05, 0x41, 0x00, // else i32.const 0
		0x0b, 0x0b, // end, end
	},
}

const hostModule = "sandbed"

// instrument checks the pin and runs the meter over the embedded module.
func instrument(metered bool) (meter.Instrumented, error) {
	sum := sha256.Sum256(quickjswasi.QuickJSWASM)
	if got := hex.EncodeToString(sum[:]); got != pinnedSHA256 {
		return meter.Instrumented{}, fmt.Errorf("quickjs: the embedded QuickJS-NG has SHA-256 %s, want %s: use github.com/aperturerobotics/go-quickjs-wasi-reactor v0.15.1", got, pinnedSHA256)
	}
	o := meter.Options{
		NoChecks:     !metered,
		StackPointer: "__stack_pointer",
		Table: []meter.Func{
			{Import: &meter.Import{Module: hostModule, Name: "interrupt", Type: meter.FuncType{
				Params: []meter.ValType{meter.I32, meter.I32}, Results: []meter.ValType{meter.I32}}}},
			usableSize,
		},
		Marks: []meter.Mark{
			{Func: "JS_ThrowInternalError", Param: 1, Text: "out of memory", Kind: markMemory},
			{Func: "JS_ThrowInternalError", Param: 1, Text: "out of memory in regexp execution", Kind: markMemory},
			{Func: "re_parse_error", Param: 1, Text: "out of memory", Kind: markMemory},
			{Func: "JS_ThrowRangeError", Param: 1, Text: "Maximum call stack size exceeded", Kind: markStack},
			{Func: "re_parse_error", Param: 1, Text: "stack overflow", Kind: markStack},
			{Func: "JS_ThrowTypeError", Param: 1, Text: "circular reference", Kind: markSerialize},
			{Func: "JS_ThrowTypeError", Param: 1, Text: "BigInt are forbidden in JSON.stringify", Kind: markSerialize},
		},
		MarkHook: &meter.Import{Module: hostModule, Name: "mark", Type: meter.FuncType{Params: []meter.ValType{meter.I32}}},
		Capture:  &meter.Capture{Func: "JS_MakeError2", Retain: "JS_DupValue", Release: "JS_FreeValue"},
	}
	o.Hook.Module, o.Hook.Name = hostModule, "hook"
	return meter.Instrument(quickjswasi.QuickJSWASM, o)
}
