package pool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/pool/internal/wire"
)

const (
	// sharedMin is the size from which a text goes through shared memory, as
	// BenchmarkTransport measures it against the pipe.
	sharedMin = 256 << 10
	// sharedBytes is the size of that memory, of which pages are used as they are
	// touched: twice the default limit of input. Larger texts take the pipe.
	sharedBytes = 64 << 20
	// sharedKeep is what stays resident between runs. Fresh pages cost about as
	// much as the copy itself.
	sharedKeep = 16 << 20
	// reapWait is how long closing waits for a process after SIGKILL. Only a
	// process that hangs in the kernel needs any of it.
	reapWait = 5 * time.Second
	// wordsKept is how much an error quotes of the first words on a worker's
	// standard error, where the runtime names a crash, and as much of the last.
	wordsKept = 1 << 10
)

// NewProcesses makes a pool of process workers, for hosts that want the
// operating system's boundary round each VM too: the command is started with a
// marker in its arguments, calls [ServeWorker] first thing in its main, makes one
// VM, and gives up files, sockets, new processes and new executable memory.
// Stats.Hardening says which measures the kernel granted; with
// Options.RequireHardening a missing one fails the start with a *HardeningError.
//
// A kill is SIGKILL to the worker's process group, and the worker is replaced;
// Options.Spare keeps others warm for that. If the host dies its workers die.
// Processes start with the first run or with Warm; a binary that does not call
// ServeWorker fails there, with an error that says so.
//
// Options and command are validated; each fault is an *OptionError or a
// *CommandError. In a process that is itself a worker NewProcesses is refused.
func NewProcesses(command Command, options Options) (*Pool, error) {
	if isWorker() {
		return nil, errIsWorker
	}
	if err := command.Validate(); err != nil {
		return nil, errors.Join(err, options.Validate())
	}
	h := &herd{command: command, requireHardening: options.RequireHardening, spawn: make(chan func())}
	if h.command.MemoryBytes == 0 {
		h.command.MemoryBytes = DefaultWorkerMemoryBytes
	}
	h.name = h.command.Path
	if h.command.Path == "" {
		h.command.Path = "/proc/self/exe"
		var err error
		if h.name, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("pool: the path of this binary is unknown, give Command.Path: %w", err)
		}
	}
	p, err := newPool(kind{
		newWorker: func() worker { return &process{herd: h} },
		stats:     h.stats,
		close:     func() error { close(h.spawn); return nil },
		coldStart: h.coldStartError,
	}, options)
	if err != nil {
		return nil, err
	}
	go h.spawner()
	return p, nil
}

// herd is what the processes of one pool share.
type herd struct {
	command          Command
	name             string // of the binary, for people
	requireHardening bool
	spawn            chan func()

	live  atomic.Int64 // processes that were started and not reaped
	hello atomic.Bool  // one of them said hello

	mu        sync.Mutex
	hardening []Measure // of the worker that started last
}

// workerNice is the nice value of workers.
const workerNice = 5

// spawner starts every process of the pool. PDEATHSIG is sent when the thread
// that spawned ends, not when the process does, so all of them are spawned from
// one thread, which lasts as long as the pool.
func (h *herd) spawner() {
	runtime.LockOSThread() // never unlocked: the thread ends here, and by then no worker is left
	// A worker inherits the priority of the thread that spawns it. With more
	// workers than processors the host's loop is served first; a system that
	// refuses costs only that.
	_ = syscall.Setpriority(syscall.PRIO_PROCESS, 0, workerNice)
	for start := range h.spawn {
		start()
	}
}

func (h *herd) stats(s *Stats) {
	s.Processes = int(h.live.Load())
	h.mu.Lock()
	defer h.mu.Unlock()
	s.Hardening = slices.Clone(h.hardening)
}

// coldStartError is the error of a worker that ColdStart has run out for.
func (h *herd) coldStartError() error {
	if h.hello.Load() {
		return errColdStart
	}
	return fmt.Errorf("%w; it said no hello: %w", errColdStart, h.noServeWorker())
}

func (h *herd) noServeWorker() error {
	return fmt.Errorf("the main of %s must call pool.ServeWorker first thing", h.name)
}

// process is the process worker.
type process struct {
	herd *herd

	cmd      *exec.Cmd
	requests *os.File // our ends
	replies  *os.File
	stderr   *os.File
	shared   *wire.Shared
	writer   *wire.Writer
	run      uint64 // the id of the last run
	words    words
	silent   chan struct{} // closed when nothing more will be heard of its standard error
	exited   chan struct{} // closed when the process was reaped
	broken   error         // why it must not be used again

	mu     sync.Mutex // guards pid against being another's: reaped is set before it can be
	reaped bool
}

// The descriptors of a worker, beside /dev/null and twice its standard error.
const (
	fdRequests = 3 + iota
	fdReplies
	fdShared
)

func (w *process) warm(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	measures, err := w.start()
	if err != nil {
		return fmt.Errorf("pool: starting %s: %w", w.herd.name, err)
	}
	stop := context.AfterFunc(ctx, w.kill)
	reported, err := w.handshake()
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return w.fail(ctx, err)
	}
	for _, m := range reported {
		measures = append(measures, Measure(m))
	}
	w.herd.mu.Lock()
	w.herd.hardening = measures
	w.herd.mu.Unlock()
	if missing := slices.DeleteFunc(slices.Clone(measures), func(m Measure) bool { return m.Applied }); w.herd.requireHardening && len(missing) > 0 {
		return &HardeningError{missing}
	}
	return nil
}

// start starts the process and returns the measures that the host itself applies.
func (w *process) start() (measures []Measure, err error) {
	var theirs []*os.File // the worker's ends
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
		if err != nil {
			w.release()
		}
	}()
	pipe := func() (r, w *os.File) {
		if err == nil {
			r, w, err = os.Pipe()
		}
		return r, w
	}
	var requests, replies, stderr *os.File
	requests, w.requests = pipe()
	w.replies, replies = pipe()
	w.stderr, stderr = pipe()
	theirs = []*os.File{requests, replies, stderr} // closing a nil *os.File does nothing
	if err != nil {
		return nil, err
	}
	if w.shared, err = wire.NewShared(sharedBytes); err != nil {
		return nil, err
	}
	w.writer = wire.NewWriter(w.requests)

	h := w.herd
	cmd := exec.Command(h.command.Path)
	cmd.Args = append([]string{h.name, workerMarker,
		strconv.Itoa(os.Getpid()), strconv.FormatInt(h.command.MemoryBytes, 10), h.command.CacheDir}, h.command.Args...)
	cmd.Env = []string{}
	cmd.Stdout, cmd.Stderr = stderr, stderr // a stray print must not look like a frame
	cmd.ExtraFiles = []*os.File{requests, replies, w.shared.File()}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}

	// An empty directory that is removed as soon as the process stands in it:
	// nothing can be made in it any more, and nothing is left behind.
	dir, dirErr := os.MkdirTemp("", "sandbed-worker-")
	if cmd.Dir = dir; dirErr != nil {
		cmd.Dir = "/"
	}
	started := make(chan error)
	h.spawn <- func() { started <- cmd.Start() }
	err = <-started
	if dirErr == nil {
		dirErr = os.Remove(dir)
	}
	if err != nil {
		return nil, err
	}
	h.live.Add(1)
	w.cmd, w.exited, w.silent = cmd, make(chan struct{}), make(chan struct{})
	go w.reap()
	go func() {
		defer close(w.silent)
		io.Copy(&w.words, w.stderr)
	}()
	cwd := Measure{Name: "workingDirectory", Applied: dirErr == nil}
	if dirErr != nil {
		cwd.Reason = dirErr.Error()
	}
	return []Measure{{Name: "parentDeathSignal", Applied: true}, cwd}, nil // Start fails without the first
}

// handshake waits for hello and ready.
func (w *process) handshake() ([]wire.Measure, error) {
	bounds := wire.FromWorker(0)
	next := func(t wire.Type) ([]byte, error) { return w.next(&bounds, 0, t) }
	payload, err := next(wire.TypeHello)
	if err != nil {
		return nil, fmt.Errorf("no hello came (%w): %w", err, w.herd.noServeWorker())
	}
	hello, err := wire.DecodeHello(payload)
	switch {
	case err != nil:
		return nil, err
	case hello.Version != wire.Version:
		return nil, fmt.Errorf("it speaks version %d of the protocol, this process version %d: they must be one binary", hello.Version, wire.Version)
	case hello.PID != uint32(w.cmd.Process.Pid): // its limits and its end would not be those of the process we kill
		return nil, fmt.Errorf("hello came from process %d, not from the one that was started: %s must be the binary itself, not something that starts it", hello.PID, w.herd.name)
	}
	w.herd.hello.Store(true)
	if payload, err = next(wire.TypeReady); err != nil {
		return nil, err
	}
	ready, err := wire.DecodeReady(payload)
	return ready.Measures, err
}

// next reads the frame that must come next: of that type, for that run. A worker
// may say bye instead.
func (w *process) next(bounds *wire.Bounds, run uint64, types ...wire.Type) ([]byte, error) {
	f, err := w.frame(bounds, run, types...)
	return f.Payload, err
}

func (w *process) frame(bounds *wire.Bounds, run uint64, types ...wire.Type) (wire.Frame, error) {
	f, err := wire.ReadFrame(w.replies, bounds)
	if err != nil {
		return f, err
	}
	if f.Type == wire.TypeBye {
		bye, err := wire.DecodeBye(f.Payload)
		if err != nil {
			return f, err
		}
		return f, fmt.Errorf("it gave up: %s", bye.Reason)
	}
	if !slices.Contains(types, f.Type) || f.Run != run {
		return f, &wire.Malformed{What: fmt.Sprintf("a %v for run %d came, want %v for run %d", f.Type, f.Run, types, run)}
	}
	return f, nil
}

// eval sends r to the process. The start and hard-kill clocks run here, in the
// host, and their origin is the VM's: the worker sends the instant at which the
// VM's clock was armed as a reading of CLOCK_MONOTONIC, which is one clock for all
// processes of a machine, and fromMonotonic makes of it the same instant on
// ours. So neither the way of the frame nor a busy host is charged to the script.
// The pool trusts no instant before the run was taken or after it was heard of:
// a worker that lies gains the time of one frame.
func (w *process) eval(ctx context.Context, r engine.Request) (engine.Outcome, error) {
	if w.broken != nil {
		return engine.Outcome{}, w.broken
	}
	if ctx.Err() != nil { // it has not begun: no reason to kill the process
		return engine.Outcome{Class: engine.ClassCanceled, Killed: true, DuringSeed: true, Message: cut(fmt.Sprint(context.Cause(ctx)))}, nil
	}
	stop := context.AfterFunc(ctx, w.kill)
	out, err := w.exchange(r)
	if !stop() && err == nil {
		err = context.Cause(ctx) // the process is being killed just now
	}
	if err != nil {
		w.broken = w.fail(ctx, err)
		return engine.Outcome{}, w.broken
	}
	return out, nil
}

func (w *process) exchange(r engine.Request) (engine.Outcome, error) {
	w.run++
	m := wire.Run{Script: r.Script, Limits: r.Limits}
	if r.Input != nil {
		m.Input = wire.Text{Present: true, Inline: r.Input}
	}
	used := 0
	if n := len(r.Input); n >= sharedMin && n <= w.shared.Size() {
		m.Input = w.shared.Put(r.Input)
		used = n
	}
	if err := w.writer.Write(w.run, m); err != nil {
		return engine.Outcome{}, err
	}

	most := r.Limits.WithDefaults().MaxOutputBytes
	bounds := wire.FromWorker(most)
	f, err := w.frame(&bounds, w.run, wire.TypeStarted, wire.TypeOutcome)
	if err == nil && f.Type == wire.TypeStarted {
		var at wire.Started
		if at, err = wire.DecodeStarted(f.Payload); err == nil {
			r.OnScriptStart(fromMonotonic(at.At))
			f, err = w.frame(&bounds, w.run, wire.TypeFinished, wire.TypeOutcome)
		}
		if err == nil && f.Type == wire.TypeFinished {
			var at wire.Finished
			if at, err = wire.DecodeFinished(f.Payload); err == nil {
				r.OnFinished(fromMonotonic(at.At))
				f, err = w.frame(&bounds, w.run, wire.TypeOutcome)
			}
		}
	}
	if err != nil {
		return engine.Outcome{}, err
	}
	o, err := wire.DecodeOutcome(f.Payload)
	if err != nil {
		return engine.Outcome{}, err
	}
	out := o.Outcome
	switch {
	case !o.Value.Present:
	case o.Value.Shared:
		if out.Value, err = w.shared.Get(o.Value, most); err != nil {
			return engine.Outcome{}, err
		}
		used = max(used, len(out.Value))
	case int64(len(o.Value.Inline)) > most:
		return engine.Outcome{}, &wire.Malformed{What: fmt.Sprintf("a value of %d bytes is larger than the %d allowed", len(o.Value.Inline), most)}
	default:
		out.Value = o.Value.Inline
	}
	if used > sharedKeep {
		err = w.shared.Release(sharedKeep)
	}
	return out, err
}

// monotonic is the clock that all processes of a machine share, in nanoseconds.
func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic("pool: CLOCK_MONOTONIC: " + err.Error()) // Linux always has it
	}
	return t.Nano()
}

// epoch pairs an instant of this process with the machine's clock. Both run on
// CLOCK_MONOTONIC, so one pair serves for ever, and the order of instants survives
// the way between processes; a pair read at each use would lose it to preemption.
var epoch = sync.OnceValue(func() (e struct {
	at   time.Time
	mono int64
}) {
	best := int64(math.MaxInt64)
	for range 16 { // the tightest of some readings
		before := monotonic()
		now := time.Now()
		if after := monotonic(); after-before < best {
			best = after - before
			e.at, e.mono = now, before+best/2
		}
	}
	return e
})

func fromMonotonic(at int64) time.Time {
	e := epoch()
	return e.at.Add(time.Duration(at - e.mono))
}

func toMonotonic(t time.Time) int64 {
	e := epoch()
	return e.mono + int64(t.Sub(e.at))
}

// kill ends the process and whatever it started. It may be called at any time
// after start, from any goroutine.
func (w *process) kill() {
	w.killGroup()
	// Nothing it still says matters, and it may not even die.
	w.requests.SetDeadline(time.Unix(0, 1))
	w.replies.SetDeadline(time.Unix(0, 1))
}

func (w *process) killGroup() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.reaped {
		syscall.Kill(-w.cmd.Process.Pid, syscall.SIGKILL)
	}
}

// reap waits for the end of the process. While it is a zombie its id cannot be
// another's, so that is when the rest of its group is killed.
func (w *process) reap() {
	pid := w.cmd.Process.Pid
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	w.killGroup()
	w.mu.Lock()
	w.cmd.Wait() // its result is in ProcessState
	w.reaped = true
	w.mu.Unlock()
	w.herd.live.Add(-1)
	close(w.exited)
}

// fail ends the process and says why it is dead: cause, how it ended, and its
// last words. If ctx has ended somebody wanted it dead, and no explanation is due.
func (w *process) fail(ctx context.Context, cause error) error {
	// A worker that fails by itself ends by itself, with a status that explains it.
	if errors.Is(cause, io.EOF) || errors.Is(cause, io.ErrUnexpectedEOF) || errors.Is(cause, syscall.EPIPE) {
		w.awaitExit(100 * time.Millisecond)
	}
	w.kill()
	if !w.awaitExit(reapWait) {
		return fmt.Errorf("pool: worker process %d has not ended %v after SIGKILL: %w", w.cmd.Process.Pid, reapWait, cause)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("pool: worker process %d was killed: %w", w.cmd.Process.Pid, context.Cause(ctx))
	}
	select {
	case <-w.silent:
	case <-time.After(100 * time.Millisecond): // something outside its group holds the pipe
	}
	return fmt.Errorf("pool: worker process %d failed: %w; %v%s", w.cmd.Process.Pid, cause, w.cmd.ProcessState, w.words.quote())
}

func (w *process) awaitExit(most time.Duration) bool {
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-w.exited:
		return true
	case <-t.C:
		return false
	}
}

func (w *process) died() <-chan struct{} { return w.exited }

func (w *process) close() error {
	if w.cmd == nil {
		return nil
	}
	w.kill()
	var err error
	if !w.awaitExit(reapWait) {
		err = fmt.Errorf("pool: worker process %d has not ended %v after SIGKILL", w.cmd.Process.Pid, reapWait)
	}
	w.release()
	<-w.silent // closing the pipe ends it
	return err
}

// release gives back the descriptors and the memory.
func (w *process) release() {
	for _, f := range []*os.File{w.requests, w.replies, w.stderr} {
		if f != nil {
			f.Close()
		}
	}
	if w.shared != nil {
		w.shared.Close()
	}
}

// words keeps the first and the last bytes written to it.
type words struct {
	mu          sync.Mutex
	first, last []byte
	dropped     int64 // between them
}

func (w *words) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	head := min(len(p), wordsKept-len(w.first))
	w.first = append(w.first, p[:head]...)
	rest := p[head:]
	skip := max(0, len(rest)-wordsKept)
	w.dropped += int64(skip)
	w.last = append(w.last, rest[skip:]...)
	if over := len(w.last) - wordsKept; over > 0 {
		w.dropped += int64(over)
		w.last = append(w.last[:0], w.last[over:]...)
	}
	return len(p), nil
}

// quote is empty if nothing was written.
func (w *words) quote() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case len(w.first) == 0:
		return ""
	case w.dropped > 0:
		return fmt.Sprintf("; on its standard error: %q, %d bytes more, and %q", w.first, w.dropped, w.last)
	default:
		return fmt.Sprintf("; on its standard error: %q", append(w.first[:len(w.first):len(w.first)], w.last...))
	}
}
