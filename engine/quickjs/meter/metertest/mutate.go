package metertest

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
)

// Mutate damages a module in one way, or in up to three: flipped bits, a cut, a number
// written too long or much too large, bytes put in or taken out, sections
// swapped, doubled or dropped. The header is mostly spared, so that the damage
// is met by the decoder of the part that it hits. The same seed gives the same
// mutant; it may happen to be valid.
func Mutate(seed uint64, module []byte) []byte {
	r := rand.New(rand.NewPCG(seed, 0x6D7574616E74))
	b := slices.Clone(module)
	for range max(1, r.IntN(6)-2) {
		b = mutate(r, b)
	}
	return b
}

func mutate(r *rand.Rand, b []byte) []byte {
	if len(b) < 16 {
		return b
	}
	at := 8 + r.IntN(len(b)-8)
	switch r.IntN(20) {
	case 0:
		b[r.IntN(len(b))] ^= 1 << r.IntN(8)
	case 1, 2, 12, 13, 14, 15:
		b[at] ^= 1 << r.IntN(8)
	case 3, 16:
		b[at] = byte(r.Uint32())
	case 4:
		return b[:at]
	case 5: // overlong
		return slices.Insert(b, at, slices.Repeat([]byte{0x80}, 1+r.IntN(12))...)
	case 6: // a huge number
		return slices.Replace(b, at, at+1, 0xFF, 0xFF, 0xFF, 0xFF, byte(r.IntN(16)))
	case 7:
		return slices.Delete(b, at, min(len(b), at+1+r.IntN(8)))
	case 8:
		return slices.Insert(b, at, binary.LittleEndian.AppendUint64(nil, r.Uint64())[:1+r.IntN(8)]...)
	}
	// The rest works on whole sections.
	type span struct{ from, to int }
	var s []span
	for i := 8; i < len(b); {
		n, k := binary.Uvarint(b[i+1:])
		if k <= 0 || n > uint64(len(b)-i-1-k) {
			break
		}
		s = append(s, span{i, i + 1 + k + int(n)})
		i = s[len(s)-1].to
	}
	if len(s) < 2 {
		return b
	}
	i := r.IntN(len(s) - 1)
	x, y := s[i], s[i+1]
	switch r.IntN(4) {
	case 0: // swap with the next
		return slices.Concat(b[:x.from], b[y.from:y.to], b[x.from:x.to], b[y.to:])
	case 1: // twice
		return slices.Concat(b[:x.to], b[x.from:])
	case 2: // dropped
		return slices.Concat(b[:x.from], b[y.from:])
	default: // within one section, the rest stays whole: its size is put right
		body := slices.Clone(b[x.from+1 : x.to])
		_, k := binary.Uvarint(body)
		body = body[k:]
		if len(body) > 0 {
			body[r.IntN(len(body))] = byte(r.Uint32())
		}
		if r.IntN(2) == 0 && len(body) > 0 {
			body = body[:r.IntN(len(body))]
		}
		return slices.Concat(b[:x.from+1], appendName(nil, string(body)), b[x.to:])
	}
}
