//go:build unix

package demux

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// shell is a command that runs a script.
func shell(script string) *exec.Cmd { return exec.Command("sh", "-c", script) }

func start(t *testing.T, cmd *exec.Cmd) *command {
	t.Helper()
	src, err := FromCmd(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { src.Close() })
	return src.(*command)
}

// exitOf is the only KindExit that the parts said.
func exitOf(t *testing.T, parts []*heard) Event {
	t.Helper()
	if n := parts[0].count(KindExit) + parts[1].count(KindExit); n != 1 {
		t.Fatalf("%d exits, want 1: %v, %v; %v, %v", n, parts[0].events, parts[0].err, parts[1].events, parts[1].err)
	}
	if parts[0].count(KindExit) == 1 {
		return parts[0].first(t, KindExit)
	}
	return parts[1].first(t, KindExit)
}

// witness gives cmd, and all that it starts, the write end of a pipe. The function
// returns when no process holds it any more: a zombie does not.
func witness(t *testing.T, cmd *exec.Cmd) (gone func()) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	cmd.ExtraFiles = append(cmd.ExtraFiles, w)
	return func() {
		t.Helper()
		w.Close()
		within(t, "a process of the command", func() { io.Copy(io.Discard, r) })
	}
}

func TestCmd(t *testing.T) {
	cmd := shell(`printf out; printf err >&2; exit 3`)
	within(t, "the command", func() {
		h := hearParts(t, start(t, cmd))
		exit := exitOf(t, h)
		var code *exec.ExitError
		if !errors.As(exit.Err, &code) || code.ExitCode() != 3 || cmd.ProcessState == nil {
			t.Errorf("exit: %v", exit.Err)
		}
		if h[0].stdout.String() != "out" || h[1].stderr.String() != "err" {
			t.Errorf("got %q and %q", h[0].stdout.String(), h[1].stderr.String())
		}
		for i, p := range h {
			if p.err != io.EOF || p.count(KindStreamEOF) != 1 {
				t.Errorf("part %d: %v, then %v", i, p.events, p.err)
			}
		}
	})
}

// TestCmdVolume: 10 MiB on each stream, written in turn.
func TestCmdVolume(t *testing.T) {
	within(t, "the command", func() {
		h := hearParts(t, start(t, shell(`i=0; while [ $i -lt 40 ]; do head -c 262144 /dev/zero; head -c 262144 /dev/zero >&2; i=$((i+1)); done`)))
		if e := exitOf(t, h); e.Err != nil || h[0].stdout.Len() != 10<<20 || h[1].stderr.Len() != 10<<20 {
			t.Errorf("%d and %d bytes, %v", h[0].stdout.Len(), h[1].stderr.Len(), e.Err)
		}
	})
}

// TestCmdReadLate: what the command wrote is there, long after it ended and its
// WaitDelay passed.
func TestCmdReadLate(t *testing.T) {
	cmd := shell(`head -c 50000 /dev/zero; echo err >&2`)
	cmd.WaitDelay = time.Nanosecond
	src := start(t, cmd)
	within(t, "the exit", func() {
		for exited := false; !exited; time.Sleep(time.Millisecond) {
			src.mu.Lock()
			exited = src.exited && time.Now().After(src.limit)
			src.mu.Unlock()
		}
	})
	within(t, "the command", func() {
		h := hearParts(t, src)
		if e := exitOf(t, h); e.Err != nil || h[0].stdout.Len() != 50_000 || h[1].stderr.String() != "err\n" || h[0].err != io.EOF || h[1].err != io.EOF {
			t.Errorf("%d bytes, %q, %v; %v, %v", h[0].stdout.Len(), h[1].stderr.String(), e.Err, h[0].err, h[1].err)
		}
	})
}

// TestCmdOrphan: a process that the command left behind holds stdout, silent or
// writing without end. After WaitDelay that is an error, not an end.
func TestCmdOrphan(t *testing.T) {
	for _, c := range []struct{ name, script string }{
		{"silent", `sleep 1000 2>/dev/null & echo $! >&2; echo hi`},
		{"writing", `echo hi; yes 2>/dev/null & echo $! >&2`},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := shell(c.script)
			cmd.WaitDelay = 50 * time.Millisecond
			src := start(t, cmd)
			within(t, "the command", func() {
				h := hearParts(t, src)
				pid, err := strconv.Atoi(strings.TrimSpace(h[1].stderr.String()))
				if err != nil {
					t.Error(err)
					return
				}
				defer unix.Kill(pid, unix.SIGKILL)
				var orphan *OrphanError
				if !errors.As(h[0].err, &orphan) || orphan.Stream != Stdout || !errors.Is(h[0].err, exec.ErrWaitDelay) || h[0].count(KindStreamEOF) != 0 {
					t.Errorf("stdout: %v, then %v", h[0].events, h[0].err)
				}
				if h[1].err != io.EOF || !strings.HasPrefix(h[0].stdout.String(), "hi\n") {
					t.Errorf("stderr ended with %v, stdout was %.20q", h[1].err, h[0].stdout.String())
				}
				if e := exitOf(t, h); e.Err != nil {
					t.Errorf("exit: %v", e.Err)
				}
				if unix.Kill(pid, 0) != nil {
					t.Error("the orphan was killed, though nobody asked for it")
				}
			})
		})
	}
}

// TestCmdEndless: a stream in which there is always more ends as well, but not
// before all that the pipe can have held was read.
func TestCmdEndless(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	c := &command{delay: 1, exited: true, ready: make(chan struct{})}
	p := &commandPipe{c: c, stream: Stdout, f: r, in: newInput(r), gone: make(chan struct{})}
	c.pipes = [2]*commandPipe{p, p}
	defer p.Close()
	chunk, total := pattern(1, 4096), 0
	for {
		w.Write(chunk)
		e, err := p.Next(t.Context(), make([]byte, 64<<10))
		if e.Kind == KindExit {
			continue
		}
		total += len(e.Data)
		if err == nil && total < 4*maxPipe {
			continue
		}
		if !errors.As(err, new(*OrphanError)) || total <= maxPipe || total > maxPipe+len(chunk) {
			t.Errorf("%d bytes, then %v", total, err)
		}
		return
	}
}

// TestCmdLeftOpen: without WaitDelay the exit is said as soon as the pipes are
// empty, and what still comes is not lost.
func TestCmdLeftOpen(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	cmd := shell(`(read x <&3; echo late) & echo early`)
	cmd.ExtraFiles = []*os.File{r}
	src := start(t, cmd)
	r.Close()
	said := make(chan Event, 2)
	var h [2]*heard
	within(t, "the command", func() {
		done := make(chan struct{})
		for i, part := range src.Parts() {
			go func() {
				h[i] = hear(t, tap{part, said})
				done <- struct{}{}
			}()
		}
		if e := <-said; e.Err != nil {
			t.Errorf("exit: %v", e.Err)
		}
		io.WriteString(w, "go\n")
		<-done
		<-done
	})
	if h[0].stdout.String() != "early\nlate\n" || h[0].err != io.EOF || h[1].err != io.EOF {
		t.Errorf("%q, %v, %v", h[0].stdout.String(), h[0].err, h[1].err)
	}
	exitOf(t, h[:])
}

// tap tells of KindExit.
type tap struct {
	Source
	said chan Event
}

func (t tap) Next(ctx context.Context, buf []byte) (Event, error) {
	e, err := t.Source.Next(ctx, buf)
	if e.Kind == KindExit {
		t.said <- e
	}
	return e, err
}

// TestCmdHead: closing one part gives the command SIGPIPE and leaves the other.
func TestCmdHead(t *testing.T) {
	src := start(t, shell(`echo err >&2; exec yes`))
	out := src.Parts()[0]
	if e, err := out.Next(t.Context(), make([]byte, 64<<10)); err != nil || len(e.Data) == 0 {
		t.Fatal(e, err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	within(t, "stderr", func() {
		h := hear(t, src.Parts()[1])
		var exit *exec.ExitError
		if !errors.As(h.first(t, KindExit).Err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGPIPE {
			t.Errorf("exit: %v", h.first(t, KindExit).Err)
		}
		if h.stderr.String() != "err\n" || h.err != io.EOF {
			t.Errorf("%q, %v", h.stderr.String(), h.err)
		}
	})
}

// TestCmdClose: a command that says nothing and never ends is killed with its
// group, and a Next that waits ends.
func TestCmdClose(t *testing.T) {
	cmd := shell(`sleep 1000 & echo; wait`)
	cmd.WaitDelay = time.Millisecond
	gone := witness(t, cmd)
	src := start(t, cmd)
	if _, err := src.Parts()[0].Next(t.Context(), make([]byte, 64<<10)); err != nil {
		t.Fatal(err)
	}
	within(t, "Next", func() {
		ended := make(chan error, 2)
		for _, p := range src.Parts() {
			go func() {
				_, err := p.Next(t.Context(), make([]byte, 64<<10))
				ended <- err
			}()
		}
		src.Close()
		for range 2 {
			if err := <-ended; !errors.Is(err, ErrClosed) {
				t.Errorf("got %v", err)
			}
		}
	})
	gone()
	if err := src.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
}

// TestCmdContext: when the context of the command ends, so does what it started.
func TestCmdContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, "sh", "-c", `sleep 1000 & echo; wait`)
	cmd.WaitDelay = time.Hour // not what ends it
	gone := witness(t, cmd)
	src := start(t, cmd)
	if _, err := src.Parts()[0].Next(t.Context(), make([]byte, 64<<10)); err != nil {
		t.Fatal(err)
	}
	cancel()
	within(t, "the command", func() {
		h := hearParts(t, src)
		if e := exitOf(t, h); e.Err == nil {
			t.Error("a killed command ended in order")
		}
		if h[0].err != io.EOF || h[1].err != io.EOF { // all writers are gone
			t.Errorf("%v, %v", h[0].err, h[1].err)
		}
	})
	gone()
}

// TestCmdSignal: a Cancel of the caller's own comes first; the rest of the group
// is killed when the command has ended by it.
func TestCmdSignal(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, "sh", "-c", `trap 'echo bye; exit 5' TERM; sleep 1000 & echo $!; wait`)
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = time.Hour
	src := start(t, cmd)
	buf := make([]byte, 64<<10)
	if _, err := src.Parts()[0].Next(t.Context(), buf); err != nil {
		t.Fatal(err)
	}
	cancel()
	within(t, "the command", func() {
		h := hearParts(t, src)
		var exit *exec.ExitError
		if e := exitOf(t, h); !errors.As(e.Err, &exit) || exit.ExitCode() != 5 || h[0].stdout.String() != "bye\n" {
			t.Errorf("%q, %v", h[0].stdout.String(), e.Err)
		}
	})
}

func TestCmdUsage(t *testing.T) {
	for _, c := range []struct {
		field string
		set   func(*exec.Cmd)
	}{
		{"cmd.Stdout", func(c *exec.Cmd) { c.Stdout = &bytes.Buffer{} }},
		{"cmd.Stderr", func(c *exec.Cmd) { c.Stderr = os.Stderr }},
	} {
		cmd := shell("true")
		c.set(cmd)
		_, err := FromCmd(cmd)
		var bad *UsageError
		if !errors.As(err, &bad) || bad.Field != c.field {
			t.Errorf("%s: %v", c.field, err)
		}
	}
}

// TestCmdDescriptors: nothing stays open, whether the command ran or not.
func TestCmdDescriptors(t *testing.T) {
	count := func() int {
		list, err := os.ReadDir("/dev/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	run := func() {
		if _, err := FromCmd(exec.Command("/does/not/exist")); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("got %v", err)
		}
		src := start(t, shell("echo; echo >&2"))
		within(t, "the command", func() { hearParts(t, src) })
		src.Close()
	}
	run() // the poller keeps descriptors of its own
	before := count()
	for range 20 {
		run()
	}
	if after := count(); after > before+2 {
		t.Errorf("%d descriptors, then %d", before, after)
	}
}

func TestOwnGroup(t *testing.T) {
	for _, c := range []struct {
		name string
		attr *syscall.SysProcAttr
		own  bool
	}{
		{"none", nil, true},
		{"other", &syscall.SysProcAttr{Chroot: ""}, true},
		{"session", &syscall.SysProcAttr{Setsid: true}, true},
		{"own", &syscall.SysProcAttr{Setpgid: true}, true},
		{"foreign", &syscall.SysProcAttr{Setpgid: true, Pgid: 42}, false},
	} {
		cmd := shell("true")
		cmd.SysProcAttr = c.attr
		if got := ownGroup(cmd); got != c.own {
			t.Errorf("%s: %v", c.name, got)
		}
		if a := cmd.SysProcAttr; a.Setpgid == a.Setsid {
			t.Errorf("%s: Setpgid %v, Setsid %v", c.name, a.Setpgid, a.Setsid)
		}
		if c.name == "other" && c.attr.Setpgid {
			t.Error("the caller's attributes were changed")
		}
	}
}

// TestPipes: two kernel pipes, each ended by its writer; Close ends a Next.
func TestPipes(t *testing.T) {
	var r, w [2]*os.File
	for i := range r {
		var err error
		if r[i], w[i], err = os.Pipe(); err != nil {
			t.Fatal(err)
		}
	}
	src := FromPipes(r[0], r[1])
	go func() {
		b := bufio.NewWriter(w[0])
		b.Write(pattern(1, 300_000))
		b.Flush()
		w[0].Close()
	}()
	within(t, "stdout", func() {
		if h := hear(t, src.(Parts).Parts()[0]); h.err != io.EOF || h.count(KindStreamEOF) != 1 || !bytes.Equal(h.stdout.Bytes(), pattern(1, 300_000)) {
			t.Errorf("%d bytes, %v, %v", h.stdout.Len(), h.events, h.err)
		}
	})
	within(t, "stderr", func() {
		go src.Close()
		if h := hear(t, src.(Parts).Parts()[1]); !errors.Is(h.err, ErrClosed) {
			t.Errorf("got %v", h.err)
		}
	})
	w[1].Close()
}

// TestCommandOfDemux: what FromCmd says arrives at the sinks and at Wait: an exit
// code, an orphan as an error that ends the stream it holds, and nothing of it
// without WaitDelay.
func TestCommandOfDemux(t *testing.T) {
	for _, c := range []struct {
		name, script string
		delay        time.Duration
		orphan       bool
		code         int
	}{
		{"code", `echo out; echo err >&2; exit 3`, 0, false, 3},
		{"orphan", `sleep 1000 2>/dev/null & echo out; echo err >&2; exit 3`, 20 * time.Millisecond, true, 3},
		{"drained", `sleep 1000 2>/dev/null & echo out; echo err >&2; exit 3`, 0, false, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := shell(c.script)
			cmd.WaitDelay = c.delay
			src := start(t, cmd)
			defer killGroup(cmd.Process.Pid)
			o := backpressure()
			o.ExitDrain = 10 * time.Millisecond
			within(t, "the command", func() {
				got, ends, wait := both(t, src, o)
				if got != [2]string{"out\n", "err\n"} || errors.As(ends[0], new(*OrphanError)) != c.orphan || !c.orphan && ends[0] != nil || ends[1] != nil {
					t.Errorf("%q, %v, %v", got, ends[0], ends[1])
				}
				var exit *exec.ExitError
				if !c.orphan && (!errors.As(wait, &exit) || exit.ExitCode() != c.code) || c.orphan && !errors.As(wait, new(*OrphanError)) {
					t.Errorf("Wait %v", wait)
				}
			})
		})
	}
}
