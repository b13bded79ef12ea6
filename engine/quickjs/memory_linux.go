package quickjs

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const mapNoReserve = unix.MAP_NORESERVE

// giveBack drops anonymous pages; on Linux they read as zero afterwards.
func giveBack(b []byte) error { return unix.Madvise(b, unix.MADV_DONTNEED) }

// touched reports whether any page of b, which is whole pages of at most 64 MiB,
// is resident. Anonymous pages that were never written are not.
func touched(b []byte) bool {
	var vec [engineStackPages]byte
	pages := (int64(len(b)) + osPage - 1) / osPage
	if pages > int64(len(vec)) {
		return true
	}
	_, _, e := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), uintptr(unsafe.Pointer(&vec[0])))
	if e != 0 {
		return true
	}
	for _, p := range vec[:pages] {
		if p&1 != 0 {
			return true
		}
	}
	return false
}

// engineStackPages bounds the vector of touched: 16 MiB of 4 KiB pages. Larger
// stacks are zeroed without asking.
const engineStackPages = 4096
