package demux

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func testSpillFile(t *testing.T, f file, dir string) {
	t.Helper()
	defer f.Close()
	var st unix.Stat_t
	fd := int(f.(spillFile).Fd())
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	if st.Nlink != 0 || st.Mode&0o777 != 0o600 {
		t.Errorf("%d links, mode %o", st.Nlink, st.Mode)
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("descriptor flags %x, %v", flags, err)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 0 {
		t.Errorf("%v in the directory, %v", list, err)
	}
	if _, err := f.WriteAt(make([]byte, 4<<20), 0); err != nil {
		t.Fatal(err)
	}
	blocks := func() int64 {
		if err := unix.Fstat(fd, &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512
	}
	full := blocks()
	if err := f.Punch(0, 1<<20); err == nil {
		if left := blocks(); left > full-1<<20 {
			t.Errorf("%d of %d bytes after a hole of 1 MiB", left, full)
		}
		if _, err := f.ReadAt(make([]byte, 1), 4<<20-1); err != nil {
			t.Errorf("the size was not kept: %v", err)
		}
	} else if !errors.Is(err, unix.EOPNOTSUPP) {
		t.Error(err)
	}
	if err := f.Truncate(0); err != nil || blocks() != 0 {
		t.Errorf("%d bytes after truncation, %v", blocks(), err)
	}
}

func TestSpillFile(t *testing.T) {
	dir := t.TempDir()
	f, err := openSpill(dir)
	if err != nil {
		t.Fatal(err)
	}
	testSpillFile(t, f, dir)
	if f, err = openNamed(dir); err != nil {
		t.Fatal(err)
	}
	testSpillFile(t, f, dir)
}

// Memory is refused as a place to spill to, and says what to do.
func TestMemoryBackedDirectory(t *testing.T) {
	const dir = "/dev/shm"
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		if os.Getenv("REQUIRE_ALL") == "1" {
			t.Fatalf("%s is no tmpfs: %v", dir, err)
		}
		t.Skipf("%s is no tmpfs: %v", dir, err)
	}
	o := DefaultOptions()
	o.SpillDir = dir
	_, err := New(&fixed{}, o)
	var bad *UsageError
	if !errors.Is(err, ErrMemoryBacked) || !errors.As(err, &bad) || bad.Field != "Options.SpillDir" || !strings.Contains(err.Error(), "Backpressure") {
		t.Errorf("%v", err)
	}
	o.AllowMemoryBacked = true
	d, err := New(&fixed{}, o)
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
}
