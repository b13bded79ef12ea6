package meter

import (
	"errors"
	"fmt"
)

// errTruncated is what a read past the end of a section or body gives.
var errTruncated = errors.New("unexpected end")

// reader walks a byte slice. After the first failure every read gives zero and
// err stays set, so that callers check once per construct.
type reader struct {
	b   []byte
	pos int
	err error
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = fmt.Errorf("at byte %d: %w", r.pos, err)
	}
	r.pos = len(r.b)
}

func (r *reader) done() bool { return r.pos >= len(r.b) }

func (r *reader) byte() byte {
	if r.pos >= len(r.b) {
		r.fail(errTruncated)
		return 0
	}
	c := r.b[r.pos]
	r.pos++
	return c
}

func (r *reader) bytes(n int) []byte {
	if n < 0 || n > len(r.b)-r.pos {
		r.fail(errTruncated)
		return nil
	}
	p := r.b[r.pos : r.pos+n]
	r.pos += n
	return p
}

// uleb reads an unsigned LEB128 of at most 32 bits.
func (r *reader) uleb() uint32 {
	var v uint64
	for shift := 0; ; shift += 7 {
		c := r.byte()
		if r.err != nil {
			return 0
		}
		if shift == 28 && c > 0x0f {
			r.fail(errors.New("LEB128 exceeds 32 bits"))
			return 0
		}
		v |= uint64(c&0x7f) << shift
		if c < 0x80 {
			return uint32(v)
		}
	}
}

// sleb reads a signed LEB128 of at most the given number of bits.
func (r *reader) sleb(bits int) int64 {
	var v int64
	for shift := 0; ; shift += 7 {
		if shift >= bits {
			r.fail(fmt.Errorf("LEB128 exceeds %d bits", bits))
			return 0
		}
		c := r.byte()
		if r.err != nil {
			return 0
		}
		v |= int64(c&0x7f) << shift
		if c < 0x80 {
			if s := shift + 7; s < 64 && c&0x40 != 0 {
				v |= -1 << s
			}
			return v
		}
	}
}

// count reads the length of a vector whose items take at least one byte each,
// so that a huge count is refused before anything is allocated.
func (r *reader) count() int {
	n := r.uleb()
	if int64(n) > int64(len(r.b)-r.pos) {
		r.fail(fmt.Errorf("a vector of %d items does not fit", n))
		return 0
	}
	return int(n)
}

func (r *reader) name() string { return string(r.bytes(r.count())) }

func appendUleb(b []byte, v uint32) []byte {
	for v >= 0x80 {
		b = append(b, byte(v)|0x80)
		v >>= 7
	}
	return append(b, byte(v))
}

func appendSleb(b []byte, v int64) []byte {
	for {
		c := byte(v & 0x7f)
		v >>= 7
		if v == 0 && c&0x40 == 0 || v == -1 && c&0x40 != 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}

func appendName(b []byte, s string) []byte {
	return append(appendUleb(b, uint32(len(s))), s...)
}
