//go:build unix

package quickjs

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// reserveBytes is the address range of one memory: all that wasm32 can address.
// It is reserved without access, so it costs no memory.
const reserveBytes = 4 << 30

// commitStep is how much is made accessible at a time, so that a growing
// memory does not pay a system call a page.
const commitStep = 1 << 20

// region is an address range that is reserved once and committed as it grows.
type region struct {
	b         []byte
	committed int64
}

func newRegion() (region, error) {
	b, err := unix.Mmap(-1, 0, reserveBytes, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|mapNoReserve)
	if err != nil {
		return region{}, fmt.Errorf("quickjs: reserving %d bytes of address space: %w; raise the limit on virtual memory (ulimit -v)", int64(reserveBytes), err)
	}
	return region{b: b}, nil
}

func (r *region) commit(n int64) error {
	if n <= r.committed {
		return nil
	}
	if n > int64(len(r.b)) {
		return unix.ENOMEM
	}
	to := min((n+commitStep-1)/commitStep*commitStep, int64(len(r.b)))
	if err := unix.Mprotect(r.b[r.committed:to], unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return err
	}
	r.committed = to
	return nil
}

func (r *region) slice(n int64) []byte { return r.b[:n:n] }

// zero gives the pages of [from, to) back; they read as zero afterwards.
func (r *region) zero(from, to int64) {
	if giveBack(r.b[from:to]) != nil {
		clear(r.b[from:to])
	}
}

func (r *region) release() {
	if r.b != nil {
		_ = unix.Munmap(r.b) // the mapping is ours and whole: it cannot fail
		r.b = nil
	}
}

// zeroIfTouched zeroes [from, to) at the price of one system call if no page of
// it was ever written.
func (r *region) zeroIfTouched(from, to int64) {
	first, last := (from+osPage-1)/osPage*osPage, to/osPage*osPage
	if first >= last {
		clear(r.b[from:to])
		return
	}
	clear(r.b[from:first])
	clear(r.b[last:to])
	if touched(r.b[first:last]) {
		r.zero(first, last)
	}
}

// verifyZero reports the first byte from the given offset on that is not zero.
func (r *region) verifyZero(from int64) error {
	for i, c := range r.b[from:r.committed] {
		if c != 0 {
			return fmt.Errorf("quickjs: byte %#x beyond the image is %#x, want 0", from+int64(i), c)
		}
	}
	return nil
}

var osPage = int64(unix.Getpagesize())
