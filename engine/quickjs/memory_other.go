//go:build !unix

package quickjs

import (
	"errors"
	"fmt"
)

// region is a plain slice where there is no mmap: growth copies, which wazero's
// own memory would do too.
type region struct{ b []byte }

func newRegion() (region, error) { return region{}, nil }

func (r *region) commit(n int64) error {
	if n > 4<<30 {
		return errors.New("quickjs: more than 4 GiB of linear memory")
	}
	if n > int64(len(r.b)) {
		b := make([]byte, n)
		copy(b, r.b)
		r.b = b
	}
	return nil
}

func (r *region) slice(n int64) []byte { return r.b[:n:n] }

func (r *region) zero(from, to int64) { clear(r.b[from:to]) }

func (r *region) release() { r.b = nil }

func (r *region) zeroIfTouched(from, to int64) { clear(r.b[from:to]) }

func (r *region) verifyZero(from int64) error {
	for i, c := range r.b[from:] {
		if c != 0 {
			return fmt.Errorf("quickjs: byte %#x beyond the image is %#x, want 0", from+int64(i), c)
		}
	}
	return nil
}
