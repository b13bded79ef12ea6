package demuxtest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbed/sandbed/demux"
)

// childEnv makes this test binary a child that does what childModes says, with
// its spill files in the directory named by its argument.
const childEnv = "DEMUXTEST_CHILD"

var childModes = map[string]func(t *trial) error{
	"file size":   childFileSize,
	"descriptors": childDescriptors,
	"disk full":   childDiskFull,
	"spill":       childSpill,
}

func TestMain(m *testing.M) {
	mode, ok := os.LookupEnv(childEnv)
	if !ok {
		os.Exit(m.Run())
	}
	t := &trial{factory: New, dir: os.Args[1]}
	if err := errors.Join(childModes[mode](t), t.end()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func child(t *testing.T, mode, dir string) *exec.Cmd {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, dir)
	cmd.Env = append(os.Environ(), childEnv+"="+mode)
	return cmd
}

func succeed(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// skip skips by name, or fails where nothing may be left out.
func skip(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("REQUIRE_ALL") != "" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// starved is a demultiplexer whose disk is about to refuse: 3 MiB of stderr, which
// nobody reads, then 5 bytes of stdout.
func starved(t *trial) (*subject, error) {
	o := t.options()
	o.Patience, o.SpillFullGrace, o.StallAfter = 0, 20*time.Millisecond, 0
	list := append(pieces1(demux.Stderr, 3*mib, 32*kib), data(demux.Stdout, 5))
	return t.make(newScript(io.EOF, steps(list...)), o)
}

// refuses checks that the disk is refusing with the errno, in one episode, and
// that nothing is lost once restore has given space back.
func (s *subject) refuses(errno error, restore func() error) error {
	for i := range 3 {
		var full *demux.SpillFullError
		if _, err := s.out.Read(make([]byte, 9)); !errors.As(err, &full) || !errors.Is(err, errno) {
			return fmt.Errorf("read %d of the starving reader: got %v, want a SpillFullError of %v", i, err, errno)
		}
	}
	if n := len(s.noticed(demux.NoticeSpillFull, 1)); n != 1 {
		return fmt.Errorf("%d notices of one episode", n)
	}
	if err := restore(); err != nil {
		return err
	}
	if err := s.retry(demux.Stdout); err != nil {
		return fmt.Errorf("after space returned: %w", err)
	}
	if err := errors.Join(s.drain(demux.Stdout, 5, io.EOF), s.drain(demux.Stderr, 3*mib, io.EOF)); err != nil {
		return err
	}
	st, err := s.stats()
	told := len(s.noticed(demux.NoticeSpillFull, int(st.Degraded)))
	if err == nil && (st.Degraded != uint64(told) || !errors.Is(st.DegradedErr, errno)) {
		err = fmt.Errorf("%d episodes, the last of %v, and %d notices", st.Degraded, st.DegradedErr, told)
	}
	return errors.Join(err, s.end())
}

func limit(resource int, soft uint64) error {
	var l unix.Rlimit
	if err := unix.Getrlimit(resource, &l); err != nil {
		return err
	}
	l.Cur = min(soft, l.Max)
	return unix.Setrlimit(resource, &l)
}

// The kernel cuts a write at the limit and then refuses: a real short write at
// every kind of place in a block.
func childFileSize(t *trial) error {
	signal.Ignore(syscall.SIGXFSZ)
	for _, n := range append(round(64*kib, mib, 16, 17, 2*(64*kib)), 0, 1, 100_000, 3<<19) {
		if err := limit(unix.RLIMIT_FSIZE, uint64(n)); err != nil {
			return err
		}
		s, err := starved(t)
		if err != nil {
			return err
		}
		if err := s.refuses(syscall.EFBIG, func() error { return limit(unix.RLIMIT_FSIZE, unix.RLIM_INFINITY) }); err != nil {
			return fmt.Errorf("files of at most %d bytes: %w", n, err)
		}
	}
	return nil
}

func TestRealFileSizeLimit(t *testing.T) { succeed(t, child(t, "file size", t.TempDir())) }

// No descriptor is free when the spill file is to be opened.
func childDescriptors(t *trial) error {
	s, err := starved(t)
	if err != nil {
		return err
	}
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return err
	}
	time.Sleep(time.Millisecond) // the runtime's own descriptors are opened with the first timer
	if err := limit(unix.RLIMIT_NOFILE, 0); err != nil {
		return err
	}
	return s.refuses(syscall.EMFILE, func() error { return limit(unix.RLIMIT_NOFILE, l.Cur) })
}

func TestRealDescriptorLimit(t *testing.T) { succeed(t, child(t, "descriptors", t.TempDir())) }

// A file system of 1 MiB, and space that its owner gives back by reading.
func childDiskFull(t *trial) error {
	if err := unix.Mount("tmpfs", t.dir, "tmpfs", 0, "size=1m"); err != nil {
		return fmt.Errorf("mounting: %w", err)
	}
	s, err := starved(t)
	if err != nil {
		return err
	}
	return s.refuses(syscall.ENOSPC, func() error { return s.take(demux.Stderr, ownerReads) })
}

// ownerReads leaves less unread than the disk and memory hold.
const ownerReads = 2900 * kib

func TestRealDiskFull(t *testing.T) {
	cmd := child(t, "disk full", t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	if err := cmd.Start(); err != nil {
		skip(t, "no user namespace for a small file system: %v", err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	again := child(t, "disk full", t.TempDir())
	again.SysProcAttr = cmd.SysProcAttr
	succeed(t, again)
}

// A child that spills for ever says so once there is something on disk.
func childSpill(t *trial) error {
	o := t.options()
	o.Eager = true
	s, err := t.make(newScriptFunc(nil, func() (step, bool) { time.Sleep(time.Millisecond); return data(demux.Stderr, 256*kib), true }), o)
	if err != nil {
		return err
	}
	if err := s.until("spilling", func(st demux.Stats) bool { return st.Stderr.LiveDisk > mib }); err != nil {
		return err
	}
	fmt.Println("spilling", len(spillFiles(t.dir)))
	select {}
}

// SIGKILL while it spills leaves nothing.
func TestKillLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	for range 3 {
		cmd := child(t, "spill", dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		if line != "spilling 1\n" {
			t.Errorf("the child said %q, %v", line, err)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		cmd.Wait()
		if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
			t.Fatalf("a killed process left %q", left)
		}
	}
}

// Commands that start while files are opened and written get none of them.
func TestExecInheritsNothing(t *testing.T) {
	tr := &trial{factory: New, dir: t.TempDir()}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			s, err := starved(tr)
			if err == nil {
				err = errors.Join(s.drain(demux.Stdout, 5, io.EOF), s.end())
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 20 {
		out, err := exec.CommandContext(t.Context(), "ls", "-l", "/proc/self/fd").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if strings.Contains(string(out), tr.dir) {
			t.Errorf("a command inherited a spill file:\n%s", out)
		}
	}
	close(stop)
	wg.Wait()
}
