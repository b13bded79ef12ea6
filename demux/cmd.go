package demux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"
)

// closeGrace is how long a command whose output nobody takes may live on, to end
// by SIGPIPE or by itself, when cmd.WaitDelay does not say.
const closeGrace = time.Second

// maxPipe is the most that a pipe holds unless root says otherwise: what is read
// beyond it was written after the command ended.
const maxPipe = 1 << 20

// FromCmd starts cmd with pipes of its own for stdout and stderr, and owns it from
// then on: it calls Wait. How the command ended comes as KindExit with what Wait
// returned; cmd.ProcessState is set by then.
//
// Where there are process groups the command leads one (unless cmd.SysProcAttr
// says otherwise), and so is in the background of a terminal. A context that ends
// is handled as in [exec.CommandContext]; once the command has ended by it, what
// is left of its group is killed.
//
// A process that the command started may hold the pipes open when the command has
// ended. With cmd.WaitDelay > 0 the streams that are still held after it end with
// a *[OrphanError], not with io.EOF, and KindExit comes when both streams have
// ended. Without it KindExit comes as soon as the pipes were seen empty, and
// Options.ExitDrain bounds the rest. What the command wrote is never cut off,
// however slowly it is read.
//
// Close closes the pipes, so that the command meets SIGPIPE, and kills the group
// if it lives on for cmd.WaitDelay, or a second. It does not touch what the
// command left behind.
func FromCmd(cmd *exec.Cmd) (Source, error) {
	for _, f := range []struct {
		name string
		w    io.Writer
	}{{"cmd.Stdout", cmd.Stdout}, {"cmd.Stderr", cmd.Stderr}} {
		if f.w != nil {
			return nil, &UsageError{Field: f.name, Value: fmt.Sprintf("%T", f.w), Allowed: "leave it nil: FromCmd reads it"}
		}
	}
	c := &command{cmd: cmd, delay: cmd.WaitDelay, ready: make(chan struct{})}
	var write [2]*os.File
	closeAll := func() {
		for i, p := range c.pipes {
			if p != nil {
				p.f.Close()
				write[i].Close()
			}
		}
	}
	for i, s := range []Stream{Stdout, Stderr} {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll()
			return nil, fmt.Errorf("demux: a pipe for %v of the command: %w", s, err)
		}
		c.pipes[i] = &commandPipe{c: c, stream: s, f: r, in: newInput(r), gone: make(chan struct{})}
		write[i] = w
	}
	cmd.Stdout, cmd.Stderr = write[0], write[1]
	c.group = ownGroup(cmd)
	if cancel := cmd.Cancel; cancel != nil {
		cmd.Cancel = func() error {
			c.canceled.Store(true)
			return cancel()
		}
	}
	if err := cmd.Start(); err != nil {
		closeAll()
		return nil, fmt.Errorf("demux: the command does not start: %w", err)
	}
	for _, w := range write {
		w.Close()
	}
	go c.wait()
	return c, nil
}

// OrphanError is a stream that did not end though the command did: a process that
// it started still holds it. It is an [exec.ErrWaitDelay].
type OrphanError struct {
	Stream Stream
	After  time.Duration // since the command ended, at least
}

func (e *OrphanError) Error() string {
	return fmt.Sprintf("demux: %s is still open %v after the command ended: a process that it started holds it", e.Stream, e.After)
}

func (e *OrphanError) Unwrap() error { return exec.ErrWaitDelay }

type command struct {
	cmd      *exec.Cmd
	delay    time.Duration
	group    bool
	pipes    [2]*commandPipe
	canceled atomic.Bool
	ready    chan struct{} // closed when KindExit may be said

	mu     sync.Mutex
	closed bool
	exited bool
	limit  time.Time // delay after the exit
	err    error     // of Wait
	isSaid bool      // KindExit
	kill   *time.Timer
}

func (c *command) Parts() []Source { return []Source{c.pipes[0], c.pipes[1]} }

func (c *command) Next(ctx context.Context, buf []byte) (Event, error) {
	return parts{}.Next(ctx, buf)
}

func (c *command) wait() {
	err := c.cmd.Wait()
	if c.canceled.Load() {
		c.killAll()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kill != nil {
		c.kill.Stop()
	}
	c.exited, c.err, c.limit = true, err, time.Now().Add(c.delay)
	c.wake()
	c.check()
}

func (c *command) killAll() {
	if c.group {
		killGroup(c.cmd.Process.Pid)
	} else {
		c.cmd.Process.Kill()
	}
}

// wake ends the reads that wait, so that they look again. c.mu is held.
func (c *command) wake() {
	for _, p := range c.pipes {
		p.f.SetReadDeadline(time.Unix(1, 0))
	}
}

// check says when KindExit is due. c.mu is held.
func (c *command) check() {
	if !c.exited || !c.pipes[0].settled || !c.pipes[1].settled || c.isReady() {
		return
	}
	close(c.ready)
	c.wake()
}

func (c *command) isReady() bool {
	select {
	case <-c.ready:
		return true
	default:
		return false
	}
}

// exit is the event KindExit, once, as soon as it is due.
func (c *command) exit() (Event, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isSaid || !c.isReady() {
		return Event{}, false
	}
	c.isSaid = true
	return Event{Kind: KindExit, Err: c.err}, true
}

func (c *command) Close() error {
	c.mu.Lock()
	if !c.closed && !c.exited {
		grace := c.delay
		if grace <= 0 {
			grace = closeGrace
		}
		c.kill = time.AfterFunc(grace, c.killAll)
	}
	c.closed = true
	c.mu.Unlock()
	return errors.Join(c.pipes[0].Close(), c.pipes[1].Close())
}

// commandPipe is one stream of a command.
type commandPipe struct {
	c      *command
	stream Stream
	f      *os.File
	in     *input
	gone   chan struct{} // closed by Close
	once   sync.Once

	err   error // sticky; nil while there may be more
	ended bool  // KindStreamEOF was said
	late  int   // bytes since the command ended

	settled bool // c.mu: KindExit need not wait for it
}

func (p *commandPipe) Next(ctx context.Context, buf []byte) (Event, error) {
	for {
		if p.err == io.EOF && !p.ended {
			p.ended = true
			return Event{Kind: KindStreamEOF, Stream: p.stream}, nil
		}
		if e, ok := p.c.exit(); ok {
			return e, nil
		}
		if p.err == io.EOF {
			select {
			case <-p.c.ready:
				if e, ok := p.c.exit(); ok {
					return e, nil
				}
			case <-p.gone:
				return Event{}, ErrClosed
			case <-ctx.Done():
				return Event{}, context.Cause(ctx)
			}
		}
		if p.err != nil {
			return Event{}, p.err
		}
		n, err := p.read(ctx, buf)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			p.err = err
			p.settle()
		}
		if n > 0 {
			return Event{Kind: KindData, Stream: p.stream, Data: buf[:n]}, nil
		}
	}
}

// read reads once. Once the command has ended it waits only while it may.
func (p *commandPipe) read(ctx context.Context, buf []byte) (int, error) {
	c := p.c
	c.mu.Lock()
	exited := c.exited
	c.mu.Unlock()
	if !exited {
		return p.in.read(ctx, buf)
	}
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	n, err := readNow(p.f, buf)
	p.late += n
	over := c.delay > 0 && time.Now().After(c.limit)
	switch {
	case err != nil && p.isGone(): // the system has several names for it
		return 0, ErrClosed
	case over && (err == errEmpty || p.late > maxPipe):
		return n, &OrphanError{p.stream, c.delay}
	case err != errEmpty:
		return n, err
	}
	if c.delay <= 0 {
		p.settle() // what comes now is not the command's
	}
	c.mu.Lock()
	due := c.isReady() && !c.isSaid
	if !due {
		p.f.SetReadDeadline(c.deadline())
	}
	c.mu.Unlock()
	if due {
		return 0, nil
	}
	n, err = p.in.read(ctx, buf)
	p.late += n
	return n, err
}

// errEmpty is a pipe that holds nothing now and is still open for writing.
var errEmpty = errors.New("demux: the pipe is empty")

// deadline is when to stop waiting for what a process left behind.
func (c *command) deadline() time.Time {
	if c.delay <= 0 {
		return time.Time{}
	}
	return c.limit
}

func (p *commandPipe) settle() {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	p.settled = true
	p.c.check()
}

func (p *commandPipe) isGone() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

func (p *commandPipe) Close() error {
	p.once.Do(func() { close(p.gone) })
	err := p.in.close()
	p.settle()
	return err
}
