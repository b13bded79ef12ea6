package metertest

import "fmt"

// Opcodes that the checker, the assembler and the generator name. Opcodes
// behind the prefix 0xFC are 0xFC00 plus their number.
const (
	opUnreachable  = 0x00
	opNop          = 0x01
	opBlock        = 0x02
	opLoop         = 0x03
	opIf           = 0x04
	opElse         = 0x05
	opEnd          = 0x0B
	opBr           = 0x0C
	opBrIf         = 0x0D
	opBrTable      = 0x0E
	opReturn       = 0x0F
	opCall         = 0x10
	opCallIndirect = 0x11
	opDrop         = 0x1A
	opSelect       = 0x1B
	opSelectTyped  = 0x1C
	opLocalGet     = 0x20
	opLocalSet     = 0x21
	opLocalTee     = 0x22
	opGlobalGet    = 0x23
	opGlobalSet    = 0x24
	opTableGet     = 0x25
	opTableSet     = 0x26
	opI32Load      = 0x28
	opI64Store32   = 0x3E
	opMemorySize   = 0x3F
	opMemoryGrow   = 0x40
	opI32Const     = 0x41
	opI64Const     = 0x42
	opF32Const     = 0x43
	opF64Const     = 0x44
	opI32Eqz       = 0x45
	opI32Eq        = 0x46
	opI32Ne        = 0x47
	opI32LtS       = 0x48
	opI32LtU       = 0x49
	opI32GtS       = 0x4A
	opI32GtU       = 0x4B
	opI32LeS       = 0x4C
	opI32LeU       = 0x4D
	opI32GeS       = 0x4E
	opI32GeU       = 0x4F
	opF32Eq        = 0x5B
	opF64Eq        = 0x61
	opI32Add       = 0x6A
	opI32Sub       = 0x6B
	opI32And       = 0x71
	opI32ShrU      = 0x76
	opRefNull      = 0xD0
	opRefIsNull    = 0xD1
	opRefFunc      = 0xD2
	opMemoryInit   = 0xFC08
	opDataDrop     = 0xFC09
	opMemoryCopy   = 0xFC0A
	opMemoryFill   = 0xFC0B
	opTableInit    = 0xFC0C
	opElemDrop     = 0xFC0D
	opTableCopy    = 0xFC0E
	opTableGrow    = 0xFC0F
	opTableSize    = 0xFC10
	opTableFill    = 0xFC11
)

// Value types, as the binary format writes them.
const (
	I32       byte = 0x7F
	I64       byte = 0x7E
	F32       byte = 0x7D
	F64       byte = 0x7C
	FuncRef   byte = 0x70
	ExternRef byte = 0x6F
)

// signature is what an opcode without further typing pops and pushes: i, l, f
// and d stand for i32, i64, f32 and f64.
type signature struct{ in, out string }

var signatures = func() map[uint16]signature {
	m := map[uint16]signature{}
	put := func(lo, hi int, in, out string) {
		for op := lo; op <= hi; op++ {
			m[uint16(op)] = signature{in, out}
		}
	}
	put(0x28, 0x28, "i", "i") // loads
	put(0x29, 0x29, "i", "l")
	put(0x2A, 0x2A, "i", "f")
	put(0x2B, 0x2B, "i", "d")
	put(0x2C, 0x2F, "i", "i")
	put(0x30, 0x35, "i", "l")
	put(0x36, 0x36, "ii", "") // stores
	put(0x37, 0x37, "il", "")
	put(0x38, 0x38, "if", "")
	put(0x39, 0x39, "id", "")
	put(0x3A, 0x3B, "ii", "")
	put(0x3C, 0x3E, "il", "")
	put(opMemorySize, opMemorySize, "", "i")
	put(opMemoryGrow, opMemoryGrow, "i", "i")
	put(opI32Const, opI32Const, "", "i")
	put(opI64Const, opI64Const, "", "l")
	put(opF32Const, opF32Const, "", "f")
	put(opF64Const, opF64Const, "", "d")
	put(0x45, 0x45, "i", "i") // comparisons
	put(0x46, 0x4F, "ii", "i")
	put(0x50, 0x50, "l", "i")
	put(0x51, 0x5A, "ll", "i")
	put(0x5B, 0x60, "ff", "i")
	put(0x61, 0x66, "dd", "i")
	put(0x67, 0x69, "i", "i") // arithmetic
	put(0x6A, 0x78, "ii", "i")
	put(0x79, 0x7B, "l", "l")
	put(0x7C, 0x8A, "ll", "l")
	put(0x8B, 0x91, "f", "f")
	put(0x92, 0x98, "ff", "f")
	put(0x99, 0x9F, "d", "d")
	put(0xA0, 0xA6, "dd", "d")
	put(0xA7, 0xA7, "l", "i") // conversions
	put(0xA8, 0xA9, "f", "i")
	put(0xAA, 0xAB, "d", "i")
	put(0xAC, 0xAD, "i", "l")
	put(0xAE, 0xAF, "f", "l")
	put(0xB0, 0xB1, "d", "l")
	put(0xB2, 0xB3, "i", "f")
	put(0xB4, 0xB5, "l", "f")
	put(0xB6, 0xB6, "d", "f")
	put(0xB7, 0xB8, "i", "d")
	put(0xB9, 0xBA, "l", "d")
	put(0xBB, 0xBB, "f", "d")
	put(0xBC, 0xBC, "f", "i")
	put(0xBD, 0xBD, "d", "l")
	put(0xBE, 0xBE, "i", "f")
	put(0xBF, 0xBF, "l", "d")
	put(0xC0, 0xC1, "i", "i")
	put(0xC2, 0xC4, "l", "l")
	put(0xFC00, 0xFC01, "f", "i")
	put(0xFC02, 0xFC03, "d", "i")
	put(0xFC04, 0xFC05, "f", "l")
	put(0xFC06, 0xFC07, "d", "l")
	put(opMemoryInit, opMemoryInit, "iii", "")
	put(opMemoryCopy, opMemoryCopy, "iii", "")
	put(opMemoryFill, opMemoryFill, "iii", "")
	put(opTableInit, opTableInit, "iii", "")
	put(opTableCopy, opTableCopy, "iii", "")
	put(opTableSize, opTableSize, "", "i")
	return m
}()

// opName names the opcodes that appear in reports; the others by number.
func opName(op uint16) string {
	switch op {
	case opMemoryInit:
		return "memory.init"
	case opMemoryCopy:
		return "memory.copy"
	case opMemoryFill:
		return "memory.fill"
	case opTableInit:
		return "table.init"
	case opTableCopy:
		return "table.copy"
	case opTableGrow:
		return "table.grow"
	case opTableFill:
		return "table.fill"
	}
	return fmt.Sprintf("opcode 0x%02x", op)
}
