// Package cover shows a coverage-guided fuzzer what Go's own coverage cannot see:
// how a run in WebAssembly went.
//
// Each of [Buckets] buckets is a branch of Go code of its own. A target marks what
// it saw (the outcome, the size class of its fuel, what the script used), and a
// bucket that was never marked before is a new edge, so that the input which
// marked it is kept. The package is for fuzz targets alone.
package cover

import "math/bits"

//go:generate go run generate.go

// Buckets is how many features are told apart. Features share a bucket by chance.
const Buckets = 4096

// Mark marks the feature that its parts make together, in their order.
func Mark(parts ...uint64) {
	b := Bucket(parts...)
	if Watch != nil {
		Watch(b)
	}
	hit(b)
}

// Watch, if set, is told every bucket that is marked. It is for tools that run
// one input at a time; setting it is not synchronised.
var Watch func(bucket uint32)

// Bucket is the bucket of a feature.
func Bucket(parts ...uint64) uint32 {
	x := uint64(len(parts))
	for _, p := range parts {
		// The finaliser of splitmix64 spreads small numbers over all bits.
		x = (x ^ p) + 0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x ^= x >> 31
	}
	return uint32(x % Buckets)
}

// Log2 is the size class of a number: 0 for 0 and less, else how many bits it has.
func Log2(n int64) uint64 { return uint64(bits.Len64(uint64(max(n, 0)))) }

// Name makes a part of a name.
func Name(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// sink keeps the branches from being merged into one.
var sink uint32
