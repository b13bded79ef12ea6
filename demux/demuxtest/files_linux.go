package demuxtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// spillFile is an open descriptor of this process whose file lies in the spill
// directory.
type spillFile struct{ fd int }

func spillFiles(dir string) []spillFile {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil
	}
	entries, _ := os.ReadDir("/proc/self/fd")
	var found []spillFile
	for _, e := range entries {
		to, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil || !strings.HasPrefix(to, dir+"/") {
			continue
		}
		if fd, err := strconv.Atoi(e.Name()); err == nil {
			found = append(found, spillFile{fd})
		}
	}
	return found
}

// secret checks that the file has no name, mode 0600, and closes at exec.
func (f spillFile) secret() error {
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return err
	}
	flags, err := unix.FcntlInt(uintptr(f.fd), unix.F_GETFD, 0)
	if err != nil {
		return err
	}
	if st.Nlink != 0 || st.Mode&0o7777 != 0o600 || flags&unix.FD_CLOEXEC == 0 {
		return fmt.Errorf("the spill file has %d names, mode %04o, close-on-exec %v", st.Nlink, st.Mode&0o7777, flags&unix.FD_CLOEXEC != 0)
	}
	return nil
}

// flip changes one byte of the file, behind the back of its owner.
func (f spillFile) flip(at int64) error {
	var b [1]byte
	if _, err := unix.Pread(f.fd, b[:], at); err != nil {
		return err
	}
	b[0] ^= 0x10
	_, err := unix.Pwrite(f.fd, b[:], at)
	return err
}

// diskUse is what the spill files in dir occupy.
func diskUse(dir string) (int64, bool) {
	var sum int64
	for _, f := range spillFiles(dir) {
		var st unix.Stat_t
		if unix.Fstat(f.fd, &st) == nil {
			sum += st.Blocks * 512
		}
	}
	return sum, true
}

// descriptors counts the open ones.
func descriptors() int {
	entries, _ := os.ReadDir("/proc/self/fd")
	return len(entries)
}

func isMemory(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && int64(st.Type) == unix.TMPFS_MAGIC
}
