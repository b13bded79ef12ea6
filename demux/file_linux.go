package demux

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// usableDir reports why spill files cannot live in dir. It opens nothing, so
// that a process at its limit of descriptors can still start.
func usableDir(dir string, memory bool) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return &os.PathError{Op: "spill to", Path: dir, Err: unix.ENOTDIR}
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return &os.PathError{Op: "access", Path: dir, Err: err}
	}
	if memory {
		return nil
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	switch uint32(fs.Type) {
	case unix.TMPFS_MAGIC, unix.RAMFS_MAGIC:
		return fmt.Errorf("%s: %w", dir, ErrMemoryBacked)
	}
	return nil
}

// openSpill opens a file without a name that nobody can give one, or, where the
// file system has no such files, one whose name is gone when openSpill returns.
func openSpill(dir string) (file, error) {
	fd, err := openRetry(dir, unix.O_TMPFILE|unix.O_EXCL)
	switch {
	case err == nil:
		return spillFile{os.NewFile(uintptr(fd), dir)}, nil
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL):
		// Support depends on the mount, and the one under dir may change.
		return openNamed(dir)
	}
	return nil, &os.PathError{Op: "open a spill file in", Path: dir, Err: err}
}

func openNamed(dir string) (file, error) {
	name := filepath.Join(dir, spillPrefix+rand.Text())
	fd, err := openRetry(name, unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return nil, &os.PathError{Op: "open a spill file in", Path: dir, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	if err := os.Remove(name); err != nil {
		f.Close()
		return nil, err
	}
	return spillFile{f}, nil
}

func openRetry(path string, flags int) (int, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_RDWR|unix.O_CLOEXEC|unix.O_LARGEFILE, 0o600)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

type spillFile struct{ *os.File }

func (f spillFile) Punch(off, n int64) error {
	return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
}
