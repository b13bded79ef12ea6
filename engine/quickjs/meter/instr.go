package meter

import (
	"errors"
	"fmt"
)

// The opcodes that the meter treats or writes.
const (
	opUnreachable  = 0x00
	opBlock        = 0x02
	opLoop         = 0x03
	opIf           = 0x04
	opElse         = 0x05
	opEnd          = 0x0b
	opBr           = 0x0c
	opBrIf         = 0x0d
	opBrTable      = 0x0e
	opReturn       = 0x0f
	opCall         = 0x10
	opCallIndirect = 0x11
	opDrop         = 0x1a
	opSelectTyped  = 0x1c
	opLocalGet     = 0x20
	opLocalSet     = 0x21
	opLocalTee     = 0x22
	opGlobalGet    = 0x23
	opGlobalSet    = 0x24
	opMemorySize   = 0x3f
	opMemoryGrow   = 0x40
	opI32Const     = 0x41
	opI64Const     = 0x42
	opF32Const     = 0x43
	opF64Const     = 0x44
	opI32Eqz       = 0x45
	opI32Eq        = 0x46
	opI32LtS       = 0x48
	opI32LtU       = 0x49
	opI32GtU       = 0x4b
	opI32GeS       = 0x4e
	opI64GtU       = 0x56
	opI32Add       = 0x6a
	opI32Sub       = 0x6b
	opI32Or        = 0x72
	opI32ShrU      = 0x76
	opI64Add       = 0x7c
	opI64ExtendU   = 0xad
	opI64Shl       = 0x86
	opLastPlain    = 0xc4
	opRefNull      = 0xd0
	opRefIsNull    = 0xd1
	opRefFunc      = 0xd2
	opPrefix       = 0xfc

	subMemoryInit = 8
	subDataDrop   = 9
	subMemoryCopy = 10
	subMemoryFill = 11
	subTableInit  = 12
	subElemDrop   = 13
	subTableCopy  = 14
	subTableGrow  = 15
	subTableSize  = 16
	subTableFill  = 17

	blockEmpty = 0x40
)

// instr is one decoded instruction. imm is its first integer immediate: a
// function, global, local or type index, or a constant.
type instr struct {
	op  byte
	sub uint32
	imm int64
	// from and to bound its bytes in the body.
	from, to int
}

// read decodes the next instruction. An opcode outside WebAssembly 2.0 without
// SIMD is an error: what the meter does not know it cannot meter.
func (in *instr) read(r *reader) {
	*in = instr{from: r.pos}
	in.op = r.byte()
	switch op := in.op; {
	case op == opBlock || op == opLoop || op == opIf:
		in.imm = r.sleb(33)
	case op == opBr || op == opBrIf || op == opCall || op == opRefFunc,
		op >= opLocalGet && op <= opGlobalSet, op == 0x25, op == 0x26:
		in.imm = int64(r.uleb())
	case op == opBrTable:
		for range r.count() {
			r.uleb()
		}
		r.uleb()
	case op == opCallIndirect:
		in.imm = int64(r.uleb())
		r.uleb()
	case op == opSelectTyped:
		r.bytes(r.count())
	case op >= 0x28 && op <= 0x3e: // loads and stores
		r.uleb()
		r.uleb()
	case op == opMemorySize || op == opMemoryGrow:
		if r.byte() != 0 {
			r.fail(errors.New("a memory other than 0"))
		}
	case op == opI32Const:
		in.imm = r.sleb(32)
	case op == opI64Const:
		in.imm = r.sleb(64)
	case op == opF32Const:
		r.bytes(4)
	case op == opF64Const:
		r.bytes(8)
	case op == opRefNull:
		r.byte()
	case op == opPrefix:
		in.sub = r.uleb()
		switch in.sub {
		case 0, 1, 2, 3, 4, 5, 6, 7: // saturating truncation
		case subMemoryInit, subTableInit, subTableCopy, subMemoryCopy:
			in.imm = int64(r.uleb())
			r.uleb()
		case subDataDrop, subElemDrop, subTableGrow, subTableSize, subTableFill, subMemoryFill:
			r.uleb()
		default:
			r.fail(fmt.Errorf("opcode 0xfc %d is not supported", in.sub))
		}
	case op <= 0x01, op == opElse, op == opEnd, op == opReturn, op == opDrop, op == 0x1b,
		op >= opI32Eqz && op <= opLastPlain, op == opRefIsNull:
	default:
		r.pos--
		r.fail(fmt.Errorf("opcode %#x is not supported", op))
	}
	in.to = r.pos
}

// walk calls f for every instruction of a body and checks that the blocks are
// balanced.
func walk(code []byte, f func(in instr)) error {
	r := &reader{b: code}
	var open []byte
	for r.err == nil {
		var in instr
		if in.read(r); r.err != nil {
			break
		}
		f(in)
		switch in.op {
		case opBlock, opLoop, opIf:
			open = append(open, in.op)
		case opElse:
			if len(open) == 0 || open[len(open)-1] != opIf {
				return fmt.Errorf("at byte %d: else without if", in.from)
			}
		case opEnd:
			if len(open) == 0 {
				if !r.done() {
					return fmt.Errorf("at byte %d: code after the end of the body", in.to)
				}
				return nil
			}
			open = open[:len(open)-1]
		}
	}
	return r.err
}
