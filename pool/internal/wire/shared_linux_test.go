package wire

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// pair is both sides of one piece of shared memory, in one process.
func pair(t testing.TB, size int) (host, worker *Shared) {
	t.Helper()
	host, err := NewShared(size)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(int(host.File().Fd()))
	if err != nil {
		t.Fatal(err)
	}
	worker, err = OpenShared(os.NewFile(uintptr(fd), "worker"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(host.Close(), worker.Close()); err != nil {
			t.Error(err)
		}
	})
	return host, worker
}

func TestShared(t *testing.T) {
	const size = 64 << 10
	host, worker := pair(t, size)
	for _, n := range []int{0, 1, size - 1, size} {
		text := bytes.Repeat([]byte{'7'}, n)
		got, err := worker.Get(host.Put(text), size)
		if err != nil || !bytes.Equal(got, text) {
			t.Errorf("%d bytes: got %d, error %v", n, len(got), err)
		}
	}
	bad := new(Malformed)
	text := worker.Put([]byte("0123456789"))
	if _, err := host.Get(text, 9); !errors.As(err, &bad) {
		t.Errorf("10 bytes where 9 are allowed: got %v, want a *Malformed", err)
	}
	if _, err := host.Get(Text{Size: size + 1}, 1<<40); !errors.As(err, &bad) {
		t.Errorf("a text larger than the memory: got %v, want a *Malformed", err)
	}
	got, err := host.Get(text, 10)
	if err != nil {
		t.Fatal(err)
	}
	worker.mem[3] = 'x'
	if string(got) != "0123456789" {
		t.Errorf("a copy changed with the memory: got %q", got)
	}
	if _, err := host.Get(text, 10); !errors.As(err, &bad) {
		t.Errorf("a text that changed after it was summed: got %v, want a *Malformed", err)
	}
}

// Neither side can take pages from under the other, nor lift the seals.
func TestSeals(t *testing.T) {
	_, worker := pair(t, 64<<10)
	fd := int(worker.File().Fd())
	for name, err := range map[string]error{
		"shrink": unix.Ftruncate(fd, 4096),
		"grow":   unix.Ftruncate(fd, 1<<20),
		"reseal": func() error { _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); return err }(),
	} {
		if !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: got %v, want EPERM", name, err)
		}
	}
	plain, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if _, err := OpenShared(plain); err == nil {
		t.Error("a plain file was taken for sealed memory")
	}
}

func TestRelease(t *testing.T) {
	const size, keep = 1 << 20, 256 << 10
	host, worker := pair(t, size)
	blocks := func() int64 {
		var st unix.Stat_t
		if err := unix.Fstat(int(host.File().Fd()), &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512
	}
	worker.Put(bytes.Repeat([]byte{'7'}, size))
	if got := blocks(); got != size {
		t.Fatalf("%d bytes are resident, want %d", got, size)
	}
	if err := host.Release(keep); err != nil {
		t.Fatal(err)
	}
	if got := blocks(); got != keep {
		t.Errorf("%d bytes are resident after the release, want %d", got, keep)
	}
}
