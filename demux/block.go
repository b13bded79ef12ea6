package demux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

const (
	// blockSize is the most that one block takes, on disk and in memory.
	blockSize = 64 << 10
	// headerSize is in front of the payload of every block: length, mark,
	// sequence, CRC32C, each little-endian of 32 bits.
	headerSize = 16
	// headerMark is "DMX1".
	headerMark = 0x31584d44
)

// Castagnoli has an instruction on x86-64 and ARM64.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// block is a piece of a sink in memory. The room in front of the payload takes
// the header, so that a block goes to disk as it lies.
type block struct {
	buf  []byte
	r, w int // of the payload: [0,r) is read, [r,w) is unread
	next *block
}

func (b *block) unread() []byte { return b.buf[headerSize+b.r : headerSize+b.w] }

// seal writes the header of the unread part just before it, where the payload
// was read already, and returns both.
func (b *block) seal(r, w int, seq uint32) []byte {
	h := b.buf[r : headerSize+w]
	binary.LittleEndian.PutUint32(h[0:], uint32(w-r))
	binary.LittleEndian.PutUint32(h[4:], headerMark)
	binary.LittleEndian.PutUint32(h[8:], seq)
	binary.LittleEndian.PutUint32(h[12:], blockSum(h))
	return h
}

// blockSum covers the header before the sum, and the payload.
func blockSum(h []byte) uint32 {
	return crc32.Update(crc32.Checksum(h[:12], castagnoli), castagnoli, h[headerSize:])
}

var errBlock = errors.New("not the block that was written")

// parseBlock returns the length of the payload of the block at the start of h.
func parseBlock(h []byte, seq uint32) (int, error) {
	if len(h) < headerSize {
		return 0, fmt.Errorf("%w: %d bytes", errBlock, len(h))
	}
	n := int(binary.LittleEndian.Uint32(h))
	switch {
	case n < 1 || n > len(h)-headerSize || binary.LittleEndian.Uint32(h[4:]) != headerMark:
		return 0, fmt.Errorf("%w: bad header", errBlock)
	case binary.LittleEndian.Uint32(h[8:]) != seq:
		return 0, fmt.Errorf("%w: number %d, not %d", errBlock, binary.LittleEndian.Uint32(h[8:]), seq)
	case binary.LittleEndian.Uint32(h[12:]) != blockSum(h[:headerSize+n]):
		return 0, fmt.Errorf("%w: bad checksum", errBlock)
	}
	return n, nil
}

// list is a queue of blocks.
type list struct{ first, last *block }

func (l *list) push(b *block) {
	b.next = nil
	if l.last == nil {
		l.first = b
	} else {
		l.last.next = b
	}
	l.last = b
}

func (l *list) pop() {
	b := l.first
	l.first = b.next
	if l.first == nil {
		l.last = nil
	}
	b.next = nil
}

// split takes b out; what was before stays, what was after is returned.
func (l *list) split(b *block) (after list) {
	if b.next != nil {
		after = list{b.next, l.last}
	}
	if l.first == b {
		*l = list{}
	} else {
		p := l.first
		for p.next != b {
			p = p.next
		}
		p.next = nil
		l.last = p
	}
	b.next = nil
	return after
}
