package metertest

import (
	"slices"
	"strings"
	"testing"
)

var handSpec = Spec{Fuel: "sandbed_fuel", HookModule: "sandbed", HookName: "hook"}

// hand is the frame of a module written by hand: import 0 is the hook, global
// 0 the fuel, global 1 another mutable i32, type 0 is ()->().
func hand() *Builder {
	b := NewBuilder()
	b.Import("sandbed", "hook", b.Type("", ""))
	b.Global(I32, true, Asm().I32(0))
	b.Global(I32, true, Asm().I32(0))
	b.Export("sandbed_fuel", ExportGlobal, 0)
	b.Memory(1, -1)
	return b
}

// charge appends a check of c units that uses local t.
func charge(c *Code, units int32, t uint32) *Code {
	return c.Op(opGlobalGet, 0).I32(units).Op(opI32Sub).Tee(t).Op(opGlobalSet, 0).
		Get(t).I32(0).Op(opI32LtS).If(Void).Call(0).End()
}

// spending appends the first half of a check: the charge, and the test for fuel left.
func spending(c *Code) *Code {
	return c.Op(opGlobalGet, 0).I32(1).Op(opI32Sub).Tee(0).Op(opGlobalSet, 0).Get(0).I32(0).Op(opI32GeS)
}

// volume appends a check of local n >> shift units, less or more what edit does to it.
func volume(c *Code, n uint32, shift int32, t uint32) *Code {
	return c.Op(opGlobalGet, 0).Get(n).I32(shift).Op(opI32ShrU).Op(opI32Sub).Tee(t).Op(opGlobalSet, 0).
		Get(t).I32(0).Op(opI32LtS).If(Void).Call(0).End()
}

// one is a module of a single function () -> () with four i32 locals, exported as f.
func one(code *Code) []byte {
	b := hand()
	b.Export("f", ExportFunc, b.Func(0, strings.Repeat(string(rune(I32)), 4), code))
	return b.Bytes()
}

const i32s = "\x7f\x7f\x7f\x7f"

// copies appends a copy of local n bytes.
func copies(c *Code, n uint32) *Code { return c.I32(0).I32(64).Get(n).Op(opMemoryCopy, 0, 0) }

func TestCheckCyclesByHand(t *testing.T) {
	cond := func(c *Code) *Code { return c.I32(8).Op(opI32Load, 2, 0) }
	tests := []struct {
		name string
		wasm func() []byte
		want []Kind
	}{
		{"straight line", func() []byte { return one(Asm().I32(1).Op(opDrop)) }, nil},
		{"unmetered loop", func() []byte { return one(Asm().Loop(Void).Br(0).End()) }, []Kind{Loop}},
		{"conditional unmetered loop", func() []byte { return one(cond(Asm().Loop(Void)).BrIf(0).End()) }, []Kind{Loop}},
		{"a loop that never turns", func() []byte { return one(Asm().Loop(Void).End()) }, nil},
		{"metered loop", func() []byte { return one(cond(charge(Asm().Loop(Void), 1, 0)).BrIf(0).End()) }, nil},
		{"metered loop, the way with fuel left first", func() []byte {
			return one(spending(Asm().Loop(Void)).If(Void).Else().Call(0).End().Br(0).End())
		}, nil},
		{"the hook on the way with fuel left", func() []byte {
			return one(spending(Asm().Loop(Void)).If(Void).Call(0).Else().End().Br(0).End())
		}, []Kind{FuelWrite, Loop}},
		{"metered at the branch back", func() []byte {
			return one(spending(Asm().Loop(Void)).If(Void).Br(1).End().Call(0).Br(0).End())
		}, nil},
		{"at the branch back, without the hook", func() []byte {
			return one(spending(Asm().Loop(Void)).If(Void).Br(1).End().Br(0).End())
		}, []Kind{FuelWrite, Loop}},
		{"at the branch back, which goes two ways", func() []byte {
			return one(spending(Asm().Block(Void).Loop(Void)).If(Void).Br(1).End().Call(0).Br(1).End().End())
		}, []Kind{FuelWrite, Loop}},
		{"metered loop, global read again", func() []byte {
			return one(Asm().Loop(Void).Op(opGlobalGet, 0).I32(3).Op(opI32Sub).Op(opGlobalSet, 0).
				Op(opGlobalGet, 0).I32(0).Op(opI32LtS).If(Void).Call(0).End().Br(0).End())
		}, nil},
		{"metered loop, minus by addition", func() []byte {
			return one(Asm().Loop(Void).Op(opGlobalGet, 0).I32(-3).Op(opI32Add).Op(opGlobalSet, 0).
				I32(0).Op(opGlobalGet, 0).Op(opI32GtS).If(Void).Call(0).End().Br(0).End())
		}, nil},
		{"plus by addition", func() []byte {
			return one(Asm().Loop(Void).Op(opGlobalGet, 0).I32(3).Op(opI32Add).Op(opGlobalSet, 0).
				Op(opGlobalGet, 0).I32(0).Op(opI32LtS).If(Void).Call(0).End().Br(0).End())
		}, []Kind{FuelWrite, Loop}},
		{"plus by a negative constant", func() []byte {
			return one(charge(Asm().Loop(Void), -1, 0).Br(0).End())
		}, []Kind{FuelWrite, Loop}},
		{"c = 0", func() []byte { return one(charge(Asm().Loop(Void), 0, 0).Br(0).End()) }, []Kind{Loop}},
		{"c by a local that may be 0", func() []byte {
			return one(volume(Asm().Loop(Void), 1, 8, 0).Br(0).End())
		}, []Kind{Loop}},
		{"c large enough to wrap", func() []byte {
			return one(charge(Asm().Loop(Void), maxCharge+1, 0).Br(0).End())
		}, []Kind{FuelWrite, Loop}},
		{"check of a foreign global", func() []byte {
			return one(Asm().Loop(Void).Op(opGlobalGet, 1).I32(1).Op(opI32Sub).Tee(0).Op(opGlobalSet, 1).
				Get(0).I32(0).Op(opI32LtS).If(Void).Call(0).End().Br(0).End())
		}, []Kind{Loop}},
		{"fuel taken from a foreign global", func() []byte {
			return one(Asm().Loop(Void).Op(opGlobalGet, 1).I32(1).Op(opI32Sub).Tee(0).Op(opGlobalSet, 0).
				Get(0).I32(0).Op(opI32LtS).If(Void).Call(0).End().Br(0).End())
		}, []Kind{FuelWrite, Loop}},
		{"test of the other local", func() []byte {
			return one(Asm().Loop(Void).Op(opGlobalGet, 0).I32(1).Op(opI32Sub).Tee(0).Op(opGlobalSet, 0).
				Get(1).I32(0).Op(opI32LtS).If(Void).Call(0).End().Br(0).End())
		}, []Kind{FuelWrite, Loop}},
		{"test of an overwritten local", func() []byte {
			return one(Asm().Loop(Void).Op(opGlobalGet, 0).I32(1).Op(opI32Sub).Tee(0).Op(opGlobalSet, 0).
				I32(7).Set(0).Get(0).I32(0).Op(opI32LtS).If(Void).Call(0).End().Br(0).End())
		}, []Kind{FuelWrite, Loop}},
		{"test against another bound", func() []byte {
			return one(Asm().Loop(Void).Op(opGlobalGet, 0).I32(1).Op(opI32Sub).Tee(0).Op(opGlobalSet, 0).
				Get(0).I32(-9).Op(opI32LtS).If(Void).Call(0).End().Br(0).End())
		}, []Kind{FuelWrite, Loop}},
		{"test without a call", func() []byte {
			return one(Asm().Loop(Void).Op(opGlobalGet, 0).I32(1).Op(opI32Sub).Tee(0).Op(opGlobalSet, 0).
				Get(0).I32(0).Op(opI32LtS).If(Void).Op(opNop).End().Br(0).End())
		}, []Kind{FuelWrite, Loop}},
		{"test that calls another function", func() []byte {
			b := hand()
			other := b.Func(0, "", Asm())
			b.Func(0, i32s, Asm().Loop(Void).Op(opGlobalGet, 0).I32(1).Op(opI32Sub).Tee(0).Op(opGlobalSet, 0).
				Get(0).I32(0).Op(opI32LtS).If(Void).Call(other).End().Br(0).End())
			return b.Bytes()
		}, []Kind{FuelWrite, Loop}},
		{"fuel read before a call and written after it", func() []byte {
			b := hand()
			other := b.Func(0, i32s, charge(Asm(), 1, 0))
			b.Func(0, i32s, Asm().Loop(Void).Op(opGlobalGet, 0).Set(1).Call(other).
				Get(1).I32(1).Op(opI32Sub).Tee(0).Op(opGlobalSet, 0).
				Get(0).I32(0).Op(opI32LtS).If(Void).Call(0).End().Br(0).End())
			return b.Bytes()
		}, []Kind{FuelWrite}}, // the callee's check still stops the loop
		{"fuel written elsewhere", func() []byte {
			return one(charge(Asm().I32(1000).Op(opGlobalSet, 0).Loop(Void), 1, 0).Br(0).End())
		}, []Kind{FuelWrite}},
		{"metered on one branch only", func() []byte {
			return one(charge(cond(Asm().Loop(Void)).If(Void), 1, 0).Else().Op(opNop).End().Br(0).End())
		}, []Kind{Loop}},
		{"metered on both branches", func() []byte {
			return one(charge(charge(cond(Asm().Loop(Void)).If(Void), 1, 0).Else(), 1, 0).End().Br(0).End())
		}, nil},
		{"an early continue", func() []byte {
			return one(charge(cond(Asm().Loop(Void)).BrIf(0), 1, 0).Br(0).End())
		}, []Kind{Loop}},
		{"check before the header", func() []byte { return one(charge(Asm(), 1, 0).Loop(Void).Br(0).End()) }, []Kind{Loop}},
		{"check after the loop", func() []byte {
			return one(charge(cond(Asm().Loop(Void)).BrIf(0).End(), 1, 0))
		}, []Kind{Loop}},
		{"inner loop unmetered", func() []byte {
			return one(cond(charge(Asm().Loop(Void), 1, 0).Loop(Void)).BrIf(0).End().Br(0).End())
		}, []Kind{Loop}},
		{"outer loop unmetered", func() []byte {
			// The inner loop may be jumped over.
			return one(cond(charge(cond(Asm().Loop(Void).Block(Void)).BrIf(0).Loop(Void), 1, 0)).BrIf(0).End().End().Br(0).End())
		}, []Kind{Loop}},
		{"back-edge by br_table, default", func() []byte {
			return one(cond(Asm().Block(Void).Loop(Void)).BrTable(1, 1, 0).End().End())
		}, []Kind{Loop}},
		{"back-edge by br_table, a case", func() []byte {
			return one(cond(Asm().Block(Void).Loop(Void)).BrTable(1, 0, 1).End().End())
		}, []Kind{Loop}},
		{"br_table metered", func() []byte {
			return one(cond(charge(Asm().Block(Void).Loop(Void), 1, 0)).BrTable(1, 0, 1).End().End())
		}, nil},
		{"br_table that leaves", func() []byte {
			return one(cond(Asm().Block(Void).Loop(Void)).BrTable(1, 1, 1).End().End())
		}, nil},
		{"unreachable back-edge", func() []byte { return one(Asm().Loop(Void).Op(opReturn).Br(0).End()) }, nil},
		{"trap before the back-edge", func() []byte { return one(Asm().Loop(Void).Op(opUnreachable).Br(0).End()) }, nil},
		{"self recursion", func() []byte {
			b := hand()
			b.Func(0, "", Asm().Call(1))
			return b.Bytes()
		}, []Kind{Recursion}},
		{"self recursion with an early return", func() []byte {
			b := hand()
			b.Func(0, "", cond(Asm()).If(Void).Op(opReturn).End().Call(1))
			return b.Bytes()
		}, []Kind{Recursion}},
		{"self recursion metered", func() []byte {
			b := hand()
			b.Func(0, i32s, charge(Asm(), 1, 0).Call(1))
			return b.Bytes()
		}, nil},
		{"recursion metered behind the call", func() []byte {
			b := hand()
			b.Func(0, i32s, charge(Asm().Call(1), 1, 0))
			return b.Bytes()
		}, []Kind{Recursion}},
		{"mutual recursion", func() []byte {
			b := hand()
			b.Func(0, "", Asm().Call(2))
			b.Func(0, "", Asm().Call(3))
			b.Func(0, "", Asm().Call(1))
			return b.Bytes()
		}, []Kind{Recursion}},
		{"mutual recursion metered in one", func() []byte {
			b := hand()
			b.Func(0, "", Asm().Call(2))
			b.Func(0, i32s, charge(Asm(), 1, 0).Call(1))
			return b.Bytes()
		}, nil},
		{"mutual recursion metered in one, with a way round", func() []byte {
			b := hand()
			b.Func(0, "", Asm().Call(2))
			b.Func(0, i32s, charge(cond(Asm()).If(Void).Call(1).End(), 1, 0).Call(1))
			return b.Bytes()
		}, []Kind{Recursion}},
		{"recursion through the table", func() []byte {
			b := hand()
			b.Table(FuncRef, 4, -1)
			b.Func(0, "", Asm().I32(0).Op(opCallIndirect, 0, 0))
			b.Elem(0, Asm().I32(0), 1)
			return b.Bytes()
		}, []Kind{Recursion}},
		{"recursion through a passive segment", func() []byte {
			b := hand()
			b.Table(FuncRef, 4, -1)
			b.Func(0, "", Asm().I32(0).Op(opCallIndirect, 0, 0))
			b.ElemPassive(false, 1)
			return b.Bytes()
		}, []Kind{Recursion}},
		{"recursion through ref.func", func() []byte {
			b := hand()
			b.Table(FuncRef, 4, -1)
			b.Func(0, "", Asm().I32(0).Op(opCallIndirect, 0, 0))
			b.Func(0, "", Asm().I32(0).Op(opRefFunc, 1).Op(opTableSet, 0))
			b.ElemPassive(true, 1)
			return b.Bytes()
		}, []Kind{Recursion}},
		{"indirect call of another type", func() []byte {
			b := hand()
			b.Table(FuncRef, 4, -1)
			b.Func(b.Type(string(I32), ""), "", Asm().I32(0).Op(opCallIndirect, 0, 0))
			b.Elem(0, Asm().I32(0), 1)
			return b.Bytes()
		}, nil},
		{"indirect call of an equal type", func() []byte {
			b := hand()
			same := uint32(len(b.types)) // the same type a second time
			b.types = append(b.types, funcType{"\x00", ""})
			b.typeBytes = append(b.typeBytes, 0x60, 0, 0)
			b.Table(FuncRef, 4, -1)
			b.Func(same, "", Asm().I32(0).Op(opCallIndirect, 0, 0))
			b.Elem(0, Asm().I32(0), 1)
			return b.Bytes()
		}, []Kind{Recursion}},
		{"recursion through the table metered", func() []byte {
			b := hand()
			b.Table(FuncRef, 4, -1)
			b.Func(0, i32s, charge(Asm(), 2, 1).I32(0).Op(opCallIndirect, 0, 0))
			b.Elem(0, Asm().I32(0), 1)
			return b.Bytes()
		}, nil},
		{"loop over a call that is checked", func() []byte {
			b := hand()
			b.Func(0, i32s, charge(Asm(), 1, 0))
			b.Func(0, "", Asm().Loop(Void).Call(1).Br(0).End())
			return b.Bytes()
		}, nil},
		{"loop over a call that is checked on some ways", func() []byte {
			b := hand()
			b.Func(0, i32s, charge(cond(Asm()).If(Void).Op(opReturn).End(), 1, 0))
			b.Func(0, "", Asm().Loop(Void).Call(1).Br(0).End())
			return b.Bytes()
		}, []Kind{Loop}},
		{"loop over an import", func() []byte { return one(Asm().Loop(Void).Call(0).Br(0).End()) }, []Kind{Loop}},
		{"recursion out of a metered loop's prologue", func() []byte {
			b := hand()
			b.Func(0, i32s, charge(Asm().Call(1).Loop(Void), 1, 0).Br(0).End())
			return b.Bytes()
		}, []Kind{Recursion}},
		{"recursion inside a metered loop", func() []byte {
			b := hand()
			b.Func(0, i32s, charge(Asm().Loop(Void), 1, 0).Call(1).Br(0).End())
			return b.Bytes()
		}, nil},
		{"a loop and a recursion", func() []byte {
			b := hand()
			b.Func(0, "", cond(Asm().Loop(Void)).BrIf(0).End().Call(1))
			return b.Bytes()
		}, []Kind{Loop, Recursion}},

		{"bulk of a small constant", func() []byte {
			return one(Asm().I32(0).I32(0).I32(4095).Op(opMemoryFill, 0))
		}, nil},
		{"bulk of a constant, uncharged", func() []byte {
			return one(Asm().I32(0).I32(0).I32(4096).Op(opMemoryFill, 0))
		}, []Kind{Bulk}},
		{"bulk of a constant, charged", func() []byte {
			return one(charge(Asm(), 4096, 0).I32(0).I32(0).I32(1<<20).Op(opMemoryFill, 0))
		}, nil},
		{"bulk of a constant, charged too little", func() []byte {
			return one(charge(Asm(), 4095, 0).I32(0).I32(0).I32(1<<20).Op(opMemoryFill, 0))
		}, []Kind{Bulk}},
		{"bulk of a large constant", func() []byte {
			return one(charge(Asm(), 1<<20, 0).I32(0).I32(0).I32(1<<20+1).Op(opMemoryFill, 0))
		}, []Kind{Bulk}},
		{"bulk twice for one charge", func() []byte {
			return one(charge(Asm(), 4096, 0).I32(0).I32(0).I32(1<<20).Op(opMemoryFill, 0).I32(0).I32(0).I32(1<<20).Op(opMemoryFill, 0))
		}, []Kind{Bulk}},
		{"bulk, neither bounded nor charged", func() []byte {
			return one(copies(cond(Asm()).Set(1), 1))
		}, []Kind{Bulk, Bulk}},
		{"bulk, charged and not bounded", func() []byte {
			return one(copies(volume(cond(Asm()).Set(1), 1, 8, 0), 1))
		}, []Kind{Bulk}},
		{"bulk, bounded and not charged", func() []byte {
			return one(copies(cond(Asm()).Tee(1).I32(1<<20).Op(opI32GtU).If(Void).Op(opReturn).End(), 1))
		}, []Kind{Bulk}},
		{"bulk, bounded and charged", func() []byte {
			return one(copies(volume(cond(Asm()).Tee(1).I32(1<<20).Op(opI32GtU).If(Void).Op(opReturn).End(), 1, 8, 0), 1))
		}, nil},
		{"bulk, bounded by one too much", func() []byte {
			return one(copies(volume(cond(Asm()).Tee(1).I32(1<<20+1).Op(opI32GtU).If(Void).Op(opReturn).End(), 1, 8, 0), 1))
		}, []Kind{Bulk}},
		{"bulk, bounded the wrong way round", func() []byte {
			return one(copies(volume(cond(Asm()).Tee(1).I32(1<<20).Op(opI32LeU).If(Void).Op(opReturn).End(), 1, 8, 0), 1))
		}, []Kind{Bulk}},
		{"bulk, bounded by a signed comparison", func() []byte {
			return one(copies(volume(cond(Asm()).Tee(1).I32(1<<20).Op(opI32GtS).If(Void).Op(opReturn).End(), 1, 8, 0), 1))
		}, []Kind{Bulk}},
		{"bulk, another local bounded", func() []byte {
			return one(copies(volume(cond(Asm()).Set(1).Get(2).I32(1<<20).Op(opI32GtU).If(Void).Op(opReturn).End(), 1, 8, 0), 1))
		}, []Kind{Bulk}},
		{"bulk, changed after the bound", func() []byte {
			return one(copies(volume(cond(cond(Asm()).Tee(1).I32(1<<20).Op(opI32GtU).If(Void).Op(opReturn).End()).Set(1), 1, 8, 0), 1))
		}, []Kind{Bulk}},
		{"bulk, changed on one way", func() []byte {
			return one(copies(volume(cond(cond(cond(Asm()).Tee(1).I32(1<<20).Op(opI32GtU).If(Void).Op(opReturn).End()).If(Void)).Set(1).End(), 1, 8, 0), 1))
		}, []Kind{Bulk}},
		{"bulk, changed in the loop round it", func() []byte {
			return one(cond(copies(volume(charge(cond(Asm()).Tee(1).I32(1<<20).Op(opI32GtU).If(Void).Op(opReturn).End().Loop(Void), 1, 0), 1, 8, 0), 1)).Set(1).Br(0).End())
		}, []Kind{Bulk}},
		{"bulk, charged for another local", func() []byte {
			return one(copies(volume(cond(Asm()).Tee(1).I32(1<<20).Op(opI32GtU).If(Void).Op(opReturn).End(), 2, 8, 0), 1))
		}, []Kind{Bulk}},
		{"bulk, charged too cheaply", func() []byte {
			return one(copies(volume(cond(Asm()).Tee(1).I32(1<<20).Op(opI32GtU).If(Void).Op(opReturn).End(), 1, 9, 0), 1))
		}, []Kind{Bulk}},
		{"bulk, charged once before a loop", func() []byte {
			return one(copies(charge(volume(cond(Asm()).Tee(1).I32(1<<20).Op(opI32GtU).If(Void).Op(opReturn).End(), 1, 8, 0).Loop(Void), 1, 0), 1).Br(0).End())
		}, []Kind{Bulk}},
		{"bulk, charged on one way", func() []byte {
			c := volume(cond(cond(Asm()).Tee(1).I32(1<<20).Op(opI32GtU).If(Void).Op(opReturn).End()).If(Void), 1, 8, 0).End()
			return one(copies(c, 1))
		}, []Kind{Bulk}},
		{"bulk in both arms", func() []byte {
			c := copies(volume(cond(Asm()).Tee(1).I32(1<<20).Op(opI32LeU).If(Void), 1, 8, 0), 1).Else()
			return one(copies(volume(c, 1, 8, 0), 1).End())
		}, []Kind{Bulk}}, // the else arm is the unbounded one
		{"bulk in chunks", func() []byte {
			// while (n) { k = min(n, 1 MiB); charge(k>>8 + 1); copy(d, s, k); d += k; s += k; n -= k }
			b := hand()
			c := Asm().Loop(Void).Get(2).I32(1<<20).Get(2).I32(1<<20).Op(opI32LtU).Op(opSelect).Set(3).
				Op(opGlobalGet, 0).Get(3).I32(8).Op(opI32ShrU).I32(1).Op(opI32Add).Op(opI32Sub).Tee(4).Op(opGlobalSet, 0).
				Get(4).I32(0).Op(opI32LtS).If(Void).Call(0).End().
				Get(0).Get(1).Get(3).Op(opMemoryCopy, 0, 0).
				Get(0).Get(3).Op(opI32Add).Set(0).Get(1).Get(3).Op(opI32Add).Set(1).
				Get(2).Get(3).Op(opI32Sub).Tee(2).BrIf(0).End()
			b.Func(b.Type(i32s[:3], ""), i32s, c)
			return b.Bytes()
		}, nil},
		{"memory.init out of a small segment", func() []byte {
			b := hand()
			b.Data(nil, "small")
			b.Func(0, i32s, Asm().I32(0).I32(0).Get(0).Op(opMemoryInit, 0, 0))
			return b.Bytes()
		}, nil},
		{"memory.init out of a segment worth charging", func() []byte {
			b := hand()
			b.Data(nil, strings.Repeat("x", 256))
			b.Func(0, i32s, Asm().I32(0).I32(0).Get(0).Op(opMemoryInit, 0, 0))
			return b.Bytes()
		}, []Kind{Bulk}},
		{"table.fill and table.grow of a small table", func() []byte {
			b := hand()
			b.Table(ExternRef, 1, 255)
			b.Func(0, i32s, Asm().I32(0).Op(opRefNull, uint32(ExternRef)).Get(0).Op(opTableFill, 0).
				Op(opRefNull, uint32(ExternRef)).Get(0).Op(opTableGrow, 0).Op(opDrop))
			return b.Bytes()
		}, nil},
		{"table.fill and table.grow of a table worth charging", func() []byte {
			b := hand()
			b.Table(ExternRef, 1, 256)
			b.Func(0, i32s, Asm().I32(0).Op(opRefNull, uint32(ExternRef)).Get(0).Op(opTableFill, 0).
				Op(opRefNull, uint32(ExternRef)).Get(0).Op(opTableGrow, 0).Op(opDrop))
			return b.Bytes()
		}, []Kind{Bulk, Bulk}},
		{"table.fill and table.grow without a bound", func() []byte {
			b := hand()
			b.Table(ExternRef, 1, -1)
			b.Func(0, i32s, Asm().I32(0).Op(opRefNull, uint32(ExternRef)).Get(0).Op(opTableFill, 0).
				Op(opRefNull, uint32(ExternRef)).Get(0).Op(opTableGrow, 0).Op(opDrop))
			return b.Bytes()
		}, []Kind{Bulk, Bulk, Bulk, Bulk}},

		{"fuel imported", func() []byte {
			b := hand()
			b.exports = nil
			return b.Bytes()
		}, []Kind{Setup}},
		{"fuel immutable", func() []byte {
			b := hand()
			b.exports = nil
			b.Export("sandbed_fuel", ExportGlobal, b.Global(I32, false, Asm().I32(0)))
			return b.Bytes()
		}, []Kind{Setup}},
		{"fuel of another type", func() []byte {
			b := hand()
			b.exports = nil
			b.Export("sandbed_fuel", ExportGlobal, b.Global(I64, true, Asm().I64(0)))
			return b.Bytes()
		}, []Kind{Setup}},
		{"no hook", func() []byte {
			b := NewBuilder()
			b.Import("sandbed", "hooked", b.Type("", ""))
			b.Export("sandbed_fuel", ExportGlobal, b.Global(I32, true, Asm().I32(0)))
			return b.Bytes()
		}, []Kind{Setup}},
		{"a hook with a parameter", func() []byte {
			b := NewBuilder()
			b.Import("sandbed", "hook", b.Type(string(I32), ""))
			b.Export("sandbed_fuel", ExportGlobal, b.Global(I32, true, Asm().I32(0)))
			return b.Bytes()
		}, []Kind{Setup}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v, err := CheckCycles(tt.wasm(), handSpec)
			if err != nil {
				t.Fatal(err)
			}
			var got []Kind
			for _, x := range v {
				got = append(got, x.Kind)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
				for _, x := range v {
					t.Log(x)
				}
			}
		})
	}
}
