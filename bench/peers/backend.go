package peers

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandbed/sandbed/engine"
)

// Command is how the process of a peer is started.
type Command struct {
	Args []string // program and arguments
	Dir  string   // default: the directory of this process
	Env  []string // added to the environment of this process
}

// The defaults of Options.
const (
	DefaultHangAfter   = 3 * time.Second
	DefaultStartWithin = 8 * time.Second
	DefaultOpenWithin  = 2 * time.Minute
	DefaultMaxRSS      = 3 << 30
	DefaultMaxLine     = 128 << 20
)

// Options bound what a peer's process may do to this one. The zero value means
// the defaults.
type Options struct {
	// HangAfter is how long after its wall clock, or after its caller cancelled
	// it, a run may be out before its process is killed. Default 3 s.
	HangAfter time.Duration
	// StartWithin is how long a run may take until its script begins. Default 8 s.
	StartWithin time.Duration
	// OpenWithin is how long a process may take until it answers. Default 2 min.
	OpenWithin time.Duration
	// MaxRSS is how large the resident set of the process may grow, in bytes,
	// before it is killed; watched where /proc is. Default 3 GiB.
	MaxRSS int64
	// MaxLine is how long a line of the process may be, in bytes. Default 128 MiB.
	MaxLine int
}

func (o Options) withDefaults() Options {
	o.HangAfter = cmp.Or(o.HangAfter, DefaultHangAfter)
	o.StartWithin = cmp.Or(o.StartWithin, DefaultStartWithin)
	o.OpenWithin = cmp.Or(o.OpenWithin, DefaultOpenWithin)
	o.MaxRSS = cmp.Or(o.MaxRSS, DefaultMaxRSS)
	o.MaxLine = cmp.Or(o.MaxLine, DefaultMaxLine)
	return o
}

// Backend is an engine.Backend whose sandbox is in a peer's process. Concurrent
// runs share the process. One that hangs, ends, prints what is no reply or grows
// too large is killed with its group; its runs end as engine faults whose message is the
// symptom, and the next run gets a new process. It is safe for concurrent use.
type Backend struct {
	command Command
	o       Options

	mu     sync.Mutex
	closed bool
	now    *process // nil until needed, and after one was lost
}

// New returns the backend; no process is started before it is needed.
func New(c Command, o Options) *Backend {
	return &Backend{command: c, o: o.withDefaults()}
}

var _ engine.Backend = (*Backend)(nil)

// process is one process of the peer.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	info  Info

	write sync.Mutex

	mu      sync.Mutex
	next    int64
	pending map[int64]chan reply
	symptom string // why it was killed; empty while it lives or if it ended by itself

	gone chan struct{} // closed once it has ended and its end is described
	end  string        // set before gone is closed
}

// Warm starts the process, if there is none.
func (b *Backend) Warm(ctx context.Context) error {
	_, err := b.process(ctx)
	return err
}

// Info is what the peer says of itself; it starts the process.
func (b *Backend) Info(ctx context.Context) (Info, error) {
	p, err := b.process(ctx)
	if err != nil {
		return Info{}, err
	}
	return p.info, nil
}

// Run implements engine.Backend.
func (b *Backend) Run(ctx context.Context, r engine.Request) (engine.Outcome, error) {
	a, err := b.do(ctx, request{Op: "eval", evaluation: wire(r)}, r)
	if err != nil {
		return engine.Outcome{}, err
	}
	return a.outcome(), nil
}

// do gives the process one operation and waits for its answer, which for a
// process that was lost is an engine fault.
func (b *Backend) do(ctx context.Context, q request, r engine.Request) (reply, error) {
	p, err := b.process(ctx)
	if err != nil {
		return reply{}, err
	}
	if err := context.Cause(ctx); err != nil {
		return reply{}, err
	}
	id, replies := p.expect()
	defer p.forget(id)
	q.ID = id
	sent := make(chan struct{})
	go func() { // may block: the process need not read
		defer close(sent)
		p.send(q)
	}()

	wall := q.Limits.WallClock
	hang := time.NewTimer(b.o.StartWithin)
	defer hang.Stop()
	waited := fmt.Sprintf("hang: the script had not begun after %v", b.o.StartWithin)
	if q.Op != "eval" { // as long as all of them one after another
		bound := time.Duration(max(1, q.Count))*wall + b.o.StartWithin + b.o.HangAfter
		hang.Reset(bound)
		waited = fmt.Sprintf("hang: no answer to a %s of %d after %v", q.Op, q.Count, bound)
	}
	done, cancelled := ctx.Done(), false
	for {
		select {
		case a := <-replies:
			if a.Armed != 0 && !a.Done {
				if r.OnScriptStart != nil {
					r.OnScriptStart(at(a.Armed))
				}
				if !cancelled {
					hang.Reset(wall + b.o.HangAfter)
					waited = fmt.Sprintf("hang: not back %v after its wall clock of %v", b.o.HangAfter, wall)
				}
				continue
			}
			if a.HostErr != "" {
				return reply{}, errors.New(a.HostErr)
			}
			if a.Finished != 0 && r.OnFinished != nil {
				r.OnFinished(at(a.Finished))
			}
			return a, nil
		case <-done:
			done, cancelled = nil, true
			go func() {
				<-sent // a cancel that comes first would cancel nothing
				p.send(request{Op: "cancel", Of: id})
			}()
			hang.Reset(b.o.HangAfter)
			waited = fmt.Sprintf("hang: not back %v after it was cancelled", b.o.HangAfter)
		case <-hang.C:
			p.kill(waited + "; the process was killed")
		case <-p.gone:
			select {
			case a := <-replies: // it answered before it ended
				if a.Done {
					return a, nil
				}
			default:
			}
			var a reply
			a.set(engine.Outcome{Class: engine.ClassEngineFault, Message: p.end, Killed: true})
			return a, nil
		}
	}
}

// process returns the live process, a new one if there is none.
func (b *Backend) process(ctx context.Context) (*process, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, engine.ErrClosed
	}
	if b.now != nil {
		select {
		case <-b.now.gone:
			b.now = nil
		default:
			return b.now, nil
		}
	}
	p, err := b.start(ctx)
	if err != nil {
		return nil, &engine.WorkerStartupError{Phase: engine.PhaseCompile, Err: err}
	}
	b.now = p
	return p, nil
}

// start starts a process and waits until it says who it is.
func (b *Backend) start(ctx context.Context) (*process, error) {
	p, err := b.spawn()
	if err != nil {
		return nil, err
	}
	id, replies := p.expect()
	defer p.forget(id)
	go p.send(request{ID: id, Op: "info"})
	t := time.NewTimer(b.o.OpenWithin)
	defer t.Stop()
	fail := func(why string) error {
		p.kill(why)
		<-p.gone
		return errors.New(p.end)
	}
	select {
	case a := <-replies:
		if a.Info == nil {
			return nil, fail("protocol: the first answer does not say who it is")
		}
		p.info = *a.Info
		return p, nil
	case <-p.gone:
		return nil, fail("")
	case <-t.C:
		return nil, fail(fmt.Sprintf("hang: the process had not answered after %v", b.o.OpenWithin))
	case <-ctx.Done():
		return nil, fail("the caller gave up: " + context.Cause(ctx).Error())
	}
}

// spawn starts a process and those who watch it.
func (b *Backend) spawn() (*process, error) {
	cmd := exec.Command(b.command.Args[0], b.command.Args[1:]...)
	cmd.Dir = b.command.Dir
	cmd.Env = append(os.Environ(), b.command.Env...)
	ownGroup(cmd)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	// Our own pipe: Wait must not close it before the last line was read.
	out, child, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout = child
	said := &head{max: 64 << 10}
	cmd.Stderr = said
	cmd.WaitDelay = time.Second // for what else holds stderr
	err = cmd.Start()
	child.Close()
	if err != nil {
		out.Close()
		return nil, fmt.Errorf("starting %s: %w", cmd.Args[0], err)
	}
	p := &process{cmd: cmd, stdin: stdin, pending: map[int64]chan reply{}, gone: make(chan struct{})}
	ended := make(chan struct{})
	read := make(chan struct{})
	go func() {
		defer close(read)
		p.read(out, b.o.MaxLine)
		out.Close()
	}()
	go p.watch(b.o.MaxRSS, ended)
	go func() {
		err := cmd.Wait()
		close(ended)
		killGroup(cmd)                                         // what it started and left behind would hold the pipe
		_ = out.SetReadDeadline(time.Now().Add(cmd.WaitDelay)) // it may have left its group
		<-read
		stdin.Close()
		p.mu.Lock()
		p.end = p.symptom
		p.mu.Unlock()
		if p.end == "" {
			status := "exit status 0"
			if err != nil {
				status = err.Error()
			}
			p.end = text("crash: the process ended: " + status + reason(said.String()))
		}
		close(p.gone)
	}()
	return p, nil
}

// expect registers an operation.
func (p *process) expect() (int64, chan reply) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next++
	replies := make(chan reply, 2) // that it has begun, and the answer
	p.pending[p.next] = replies
	return p.next, replies
}

func (p *process) forget(id int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pending, id)
}

// send writes a request. A process that does not read is found by the hang guard.
func (p *process) send(q request) {
	line, err := json.Marshal(q)
	if err != nil {
		p.kill("protocol: " + err.Error())
		return
	}
	p.write.Lock()
	defer p.write.Unlock()
	_, _ = p.stdin.Write(append(line, '\n')) // an error means that it is gone
}

// kill ends the process group; the first reason is the one that is kept.
func (p *process) kill(symptom string) {
	p.mu.Lock()
	if p.symptom == "" {
		p.symptom = text(symptom)
	}
	p.mu.Unlock()
	select {
	case <-p.gone: // its number may be another's by now
	default:
		killGroup(p.cmd)
	}
}

// read hands out replies until the pipe ends. A line that is too long or is no
// reply ends the process.
func (p *process) read(out io.Reader, maxLine int) {
	r := bufio.NewReaderSize(out, 1<<16)
	for {
		line, err := readLine(r, maxLine)
		if err != nil {
			if errors.Is(err, errLongLine) {
				p.kill(fmt.Sprintf("protocol: the process wrote a line of more than %d bytes", maxLine))
			}
			return
		}
		var a reply
		bad := json.Unmarshal(line, &a) != nil
		p.mu.Lock()
		replies := p.pending[a.ID]
		known := a.ID > 0 && a.ID <= p.next
		p.mu.Unlock()
		if bad || !known {
			p.kill(fmt.Sprintf("protocol: the process wrote a line that is no reply: %.80q", line))
			return
		}
		if replies == nil {
			continue // nobody waits for it any more
		}
		select {
		case replies <- a:
		default:
			p.kill("protocol: the process answered twice")
			return
		}
	}
}

var errLongLine = errors.New("peers: line too long")

func readLine(r *bufio.Reader, maxLine int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > maxLine {
			return nil, errLongLine
		}
		if err == nil && line == nil {
			return part, nil
		}
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// watchEvery is how often the resident set is looked at: a script that allocates
// as fast as memory can be written adds well under 1 GiB in between.
const watchEvery = 50 * time.Millisecond

func (p *process) watch(most int64, ended <-chan struct{}) {
	t := time.NewTicker(watchEvery)
	defer t.Stop()
	for {
		select {
		case <-ended:
			return
		case <-t.C:
			if rss := memoryOf(p.cmd.Process.Pid, "VmRSS"); rss > most {
				p.kill(fmt.Sprintf("memory: the resident set of %d MiB passed %d MiB; the process was killed", rss>>20, most>>20))
			}
		}
	}
}

// memoryOf reads a field of /proc/PID/status in bytes; 0 where there is none.
func memoryOf(pid int, field string) int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, field+":"); ok {
			kb, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(v), "kB")), 10, 64)
			return kb << 10
		}
	}
	return 0
}

// Close kills the process with all that it started and waits until it is gone.
func (b *Backend) Close() error {
	b.mu.Lock()
	b.closed = true
	p := b.now
	b.now = nil
	b.mu.Unlock()
	if p != nil {
		p.kill("closed: the backend was closed")
		<-p.gone
	}
	return nil
}

// head keeps the beginning of what is written to it.
type head struct {
	mu  sync.Mutex
	max int
	b   bytes.Buffer
}

func (h *head) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.b.Write(p[:min(len(p), h.max-h.b.Len())])
	return len(p), nil
}

func (h *head) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.b.String()
}

var why = regexp.MustCompile(`^(panic:|fatal error:|FATAL ERROR:|SIGSEGV|[A-Za-z]*Error( \[\w+\])?:)`)

// reason is the line that says why a process ended: that of Go's runtime or of
// Node, or else the last one.
func reason(stderr string) string {
	last := ""
	for line := range strings.Lines(stderr) {
		line = strings.TrimSpace(line)
		if why.MatchString(line) {
			return ": " + line
		}
		if line != "" {
			last = ": " + line
		}
	}
	return last
}
