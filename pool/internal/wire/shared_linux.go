package wire

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"

	"golang.org/x/sys/unix"
)

// Shared is a piece of memory that a host and one worker have in common. The
// host makes it, of a fixed size, sealed, so that no side can take pages from
// under the other; both keep it mapped for as long as the worker lives. Only
// one side writes at a time: the host before it sends a run, the worker before
// it sends the outcome. What the other side wrote is copied before it is judged.
type Shared struct {
	file *os.File
	mem  []byte
}

// seals: the size is fixed, and so are the seals.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// NewShared makes shared memory of that many bytes; pages are used as they are touched.
func NewShared(size int) (*Shared, error) {
	const name = "sandbed-worker"
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("wire: memfd_create: %w", err)
	}
	file := os.NewFile(uintptr(fd), name)
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		file.Close()
		return nil, fmt.Errorf("wire: sizing a memfd: %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		file.Close()
		return nil, fmt.Errorf("wire: sealing a memfd: %w", err)
	}
	return mapShared(file, size)
}

// OpenShared maps the shared memory that a worker was given as file, and takes file over.
func OpenShared(file *os.File) (*Shared, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	have, err := unix.FcntlInt(file.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || have&seals != seals {
		return nil, fmt.Errorf("wire: descriptor %d is no sealed memfd (seals %#x, error %v)", file.Fd(), have, err)
	}
	return mapShared(file, int(info.Size()))
}

func mapShared(file *os.File, size int) (*Shared, error) {
	mem, err := unix.Mmap(int(file.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("wire: mapping %d bytes of shared memory: %w", size, err)
	}
	return &Shared{file, mem}, nil
}

// File is the descriptor to hand to a worker; it stays the Shared's.
func (s *Shared) File() *os.File { return s.file }

// Size is its size in bytes.
func (s *Shared) Size() int { return len(s.mem) }

// Put copies p, which must fit, into the memory and describes it.
func (s *Shared) Put(p []byte) Text {
	return Text{Present: true, Shared: true, Size: uint32(len(p)), Sum: copySum(s.mem, p)}
}

// copySum copies src to dst and returns the checksum of what then stands in dst.
// It goes by blocks that fit a cache, so that the sum costs no second way to memory.
func copySum(dst, src []byte) (sum uint32) {
	const block = 64 << 10
	for len(src) > 0 {
		n := copy(dst[:min(block, len(src))], src)
		sum = crc32.Update(sum, castagnoli, dst[:n])
		dst, src = dst[n:], src[n:]
	}
	return sum
}

// Get copies out the text that t describes, if it is no longer than most, and
// checks the copy: the other side may still be writing.
func (s *Shared) Get(t Text, most int64) ([]byte, error) {
	if int64(t.Size) > min(most, int64(len(s.mem))) {
		return nil, malformed("a shared text of %d bytes is larger than the %d allowed", t.Size, min(most, int64(len(s.mem))))
	}
	p := make([]byte, t.Size)
	if sum := copySum(p, s.mem[:t.Size]); sum != t.Sum {
		return nil, malformed("the CRC of a shared text is %#08x, its message says %#08x", sum, t.Sum)
	}
	return p, nil
}

// Release gives back the pages behind the first keep bytes.
func (s *Shared) Release(keep int) error {
	if keep >= len(s.mem) {
		return nil
	}
	return unix.Fallocate(int(s.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(keep), int64(len(s.mem)-keep))
}

// Close unmaps the memory and closes the descriptor.
func (s *Shared) Close() error {
	err := unix.Munmap(s.mem)
	s.mem = nil
	return errors.Join(err, s.file.Close())
}
