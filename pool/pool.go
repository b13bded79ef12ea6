// Package pool runs evaluations on workers: a place to block that is not the
// caller's loop, and a handle that can be ended.
//
// A [Pool] is an engine.Backend. It owns the queue, the clocks that bound the
// phases of a run, each with an origin of its own, the hard kill, and the
// replacement of workers that do not come back. The guards of a script stay in
// the VM: a pool adds no isolation, it bounds what the guards cannot, and frees
// the worker, not only the caller.
//
// New makes goroutine workers of any engine.VM. They share the process: a VM
// that ignores its kill is abandoned, not ended. Where that is not enough, use
// process workers.
package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sandbed/sandbed/engine"
)

// closeWait is how long Close waits, beyond KillWait, for goroutines to end
// before it reports them: room for load, in a wait that normally takes none.
const closeWait = 5 * time.Second

// AbandonedError reports workers that had not ended when Close gave up on them.
// It happens only to a worker that ignores its kill.
type AbandonedError struct {
	Workers int
}

func (e *AbandonedError) Error() string {
	return fmt.Sprintf("pool: %d workers ignored their kill and still run; Close can be called again to wait for them", e.Workers)
}

// Pool runs evaluations on at most Options.Count workers at a time. Its methods
// are safe for concurrent use. Close it when done.
type Pool struct {
	kind kind
	opts Options

	mu      sync.Mutex
	queue   queue
	members map[*member]struct{} // every worker that has a goroutine
	idle    []*member            // last in, first out: the warmest first
	// want is how many workers are kept up. It follows demand upwards, and falls
	// when a worker fails to start: no start is repeated without a new reason.
	want     int
	stats    Stats         // but for Queued
	refusing bool          // Drain or Close was called
	stopping bool          // Close was called
	quiet    chan struct{} // closed once refusing and nothing is queued or running
	gone     chan struct{} // closed once stopping and no goroutine is left
	closeErr error         // the first error of closing a worker
	endKind  func() error  // kind.close, once
}

// New makes a pool of goroutine workers. Each calls newVM, within
// Options.ColdStart, when it is first needed or at Warm. The context given to
// newVM bounds the call, not the VM's life.
//
// Options are validated; each fault is an *OptionError. Count must be at least
// 1: a caller that may want no workers uses [For].
func New(newVM func(context.Context) (engine.VM, error), options Options) (*Pool, error) {
	if newVM == nil {
		return nil, errors.New("pool: newVM is nil: give a function that makes a VM")
	}
	if options.RequireHardening {
		return nil, &OptionError{"RequireHardening", true, "goroutine workers share the process and cannot be hardened; use NewProcesses, or set it to false"}
	}
	return newPool(kind{newWorker: func() worker { return &vmWorker{newVM: newVM} }}, options)
}

// For returns inProcess if options.Count is 0, which is what "no workers"
// means, else a pool as New makes it. Options are validated in both cases.
func For(inProcess engine.Backend, newVM func(context.Context) (engine.VM, error), options Options) (engine.Backend, error) {
	if options.Count != 0 {
		p, err := New(newVM, options)
		if err != nil {
			return nil, err // not a nil *Pool in an interface
		}
		return p, nil
	}
	if err := options.Validate(); err != nil {
		return nil, err
	}
	if inProcess == nil {
		return nil, &OptionError{"Count", 0, "there is no in-process backend to stand in for the workers; give one, or 1 to 1024"}
	}
	return inProcess, nil
}

func newPool(k kind, options Options) (*Pool, error) {
	err := options.Validate()
	if options.Count == 0 {
		err = errors.Join(err, &OptionError{"Count", 0, "give 1 to 1024; pool.For maps 0 to an in-process backend"})
	}
	if err != nil {
		return nil, err
	}
	endKind := func() error { return nil }
	if k.close != nil {
		endKind = sync.OnceValue(k.close)
	}
	return &Pool{
		kind:    k,
		opts:    options,
		members: make(map[*member]struct{}),
		stats:   Stats{Settled: make(map[string]int64)},
		quiet:   make(chan struct{}),
		gone:    make(chan struct{}),
		endKind: endKind,
	}, nil
}

// Run evaluates r on the first free worker and returns when that worker is free
// again or abandoned, never before.
//
// ctx may end the run at any point. While it is queued, Run returns ctx.Err()
// and no worker is touched. Once a worker has it, the evaluation is killed and
// Run returns an outcome of class Canceled with a nil error, or the result if
// that was quicker. A run that outlasts its wall clock by HardKillGrace ends as
// class Limit, guard WallClock, Killed. Time in the queue and cold starts are
// charged to no run.
//
// Errors: *engine.WorkerStartupError, phase compile when the last worker that
// could have served the run failed to start, phase start when a ready worker
// did not arm the VM's clock in time or died before; engine.ErrQueueFull when
// Count runs are served and MaxQueue wait; engine.ErrClosed after Close or
// Drain, and for a run that Close ended; *engine.LimitError.
func (p *Pool) Run(ctx context.Context, r engine.Request) (engine.Outcome, error) {
	check := engine.Limits.Validate
	if p.opts.CheckLimits != nil {
		check = p.opts.CheckLimits
	}
	if err := check(r.Limits); err != nil {
		return engine.Outcome{}, err
	}
	if err := ctx.Err(); err != nil {
		return engine.Outcome{}, err
	}
	run := newRun(p, ctx, r)
	p.submit(run)
	select {
	case <-run.done:
	case <-ctx.Done():
		p.giveUp(run)
		<-run.done
	}
	return run.out, run.err
}

// submit hands r to a worker, queues it or refuses it.
func (p *Pool) submit(r *run) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.Submitted++
	// Every worker's place counts, started or not: a burst on a cold pool must
	// not be refused where a warm one would take it.
	room := p.opts.MaxQueue == 0 || p.queue.length+p.stats.Running-p.opts.Count < p.opts.MaxQueue
	switch {
	case p.refusing:
		p.settle(r, engine.Outcome{}, engine.ErrClosed)
	case !room:
		p.settle(r, engine.Outcome{}, engine.ErrQueueFull)
	default:
		p.queue.push(r)
		p.want = max(p.want, min(p.opts.Count, p.stats.Running+p.queue.length)+p.opts.Spare)
		p.fill()
		p.dispatch()
	}
}

// giveUp ends r for its caller's context.
func (p *Pool) giveUp(r *run) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch r.phase {
	case settled:
	case queued:
		p.queue.remove(r)
		p.settle(r, engine.Outcome{}, r.caller.Err())
	default:
		r.member.kill(byCaller, context.Cause(r.caller))
	}
}

// Warm starts every worker, spare ones too, and waits until each is ready. It
// returns the first *engine.WorkerStartupError if some failed, ctx.Err() if ctx
// ends first (the workers go on warming), engine.ErrClosed after Close or Drain.
func (p *Pool) Warm(ctx context.Context) error {
	p.mu.Lock()
	if p.refusing {
		p.mu.Unlock()
		return engine.ErrClosed
	}
	p.want = p.opts.Count + p.opts.Spare
	p.fill()
	var warming []*member
	for m := range p.members {
		if m.state == warmingUp {
			warming = append(warming, m)
		}
	}
	p.mu.Unlock()

	var first error
	for _, m := range warming {
		select {
		case <-m.warmed:
			if first == nil {
				first = m.warmErr
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return first
}

// Drain refuses new runs, lets those that are queued or running finish, and then
// closes the pool. If ctx ends first it returns ctx.Err(): what runs goes on, and
// Close ends it.
func (p *Pool) Drain(ctx context.Context) error {
	p.mu.Lock()
	p.refuse()
	p.mu.Unlock()
	select {
	case <-p.quiet:
		return p.Close()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close refuses new runs, kills those that run, answers all of them and those
// that are queued with engine.ErrClosed, and returns when every worker is gone.
// If some ignore their kill it gives up 5 s after KillWait and returns an
// *AbandonedError; every run is answered even then. Calling it again waits
// again. Otherwise it returns the first error of closing a worker, if any.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.refuse()
	if !p.stopping {
		p.stop()
	}
	p.mu.Unlock()

	timeout := time.NewTimer(p.opts.KillWait + closeWait)
	defer timeout.Stop()
	select {
	case <-p.gone:
	case <-timeout.C:
		p.mu.Lock()
		left := len(p.members)
		p.mu.Unlock()
		if left > 0 {
			return &AbandonedError{left}
		}
	}
	return errors.Join(p.closeErr, p.endKind())
}

// The methods below want p.mu held.

func (p *Pool) refuse() {
	if !p.refusing {
		p.refusing = true
		p.checkQuiet()
	}
}

// checkQuiet tells Drain when the last run was answered.
func (p *Pool) checkQuiet() {
	if !p.refusing || p.queue.length+p.stats.Running > 0 {
		return
	}
	select {
	case <-p.quiet:
	default:
		close(p.quiet)
	}
}

// stop ends everything that goes on.
func (p *Pool) stop() {
	p.stopping = true
	p.failQueue(engine.ErrClosed)
	for m := range p.members {
		switch m.state {
		case warmingUp:
			m.failStart(engine.ErrClosed)
		case idle:
			p.leave(m)
		case running:
			m.kill(byClose, engine.ErrClosed)
		}
	}
	if len(p.members) == 0 {
		close(p.gone)
	}
}

// live is the number of workers that hold a slot.
func (p *Pool) live() int {
	return p.stats.Starting + p.stats.Idle + p.stats.Running
}

// fill starts workers until as many hold a slot as are wanted.
func (p *Pool) fill() {
	want := p.want
	switch {
	case p.stopping:
		return
	case p.refusing: // no spare ones any more, just what finishes the queue
		want = min(p.opts.Count, p.stats.Running+p.queue.length)
	}
	for p.live() < want {
		p.start()
	}
}

// dispatch hands queued runs to idle workers.
func (p *Pool) dispatch() {
	for len(p.idle) > 0 && p.stats.Running < p.opts.Count {
		r := p.next()
		if r == nil {
			return
		}
		m := p.idle[len(p.idle)-1]
		p.idle = p.idle[:len(p.idle)-1]
		p.stats.Idle--
		m.take(r)
		m.work <- r
	}
}

// next takes the first run out of the queue whose caller still waits.
func (p *Pool) next() *run {
	for {
		r := p.queue.first
		if r == nil {
			return nil
		}
		p.queue.remove(r)
		err := r.caller.Err()
		if err == nil {
			return r
		}
		p.settle(r, engine.Outcome{}, err)
	}
}

func (p *Pool) failQueue(err error) {
	for p.queue.first != nil {
		r := p.queue.first
		p.queue.remove(r)
		p.settle(r, engine.Outcome{}, err)
	}
}

// settle answers r's caller.
func (p *Pool) settle(r *run, out engine.Outcome, err error) {
	r.phase, r.out, r.err = settled, out, err
	p.stats.Settled[label(out, err)]++
	close(r.done)
	p.checkQuiet()
}

func label(out engine.Outcome, err error) string {
	if err == nil {
		return out.Label()
	}
	if startup, ok := err.(*engine.WorkerStartupError); ok {
		if startup.Phase == engine.PhaseCompile {
			return SettledStartCompile
		}
		return SettledStart
	}
	switch err {
	case engine.ErrQueueFull:
		return SettledQueueFull
	case engine.ErrClosed:
		return SettledClosed
	default:
		return SettledGaveUp
	}
}

// leave takes m out of the pool's service; its goroutine has yet to end.
func (p *Pool) leave(m *member) {
	switch m.state {
	case warmingUp:
		p.stats.Starting--
	case idle:
		p.stats.Idle--
		if i := slices.Index(p.idle, m); i >= 0 {
			p.idle = slices.Delete(p.idle, i, i+1)
		}
	case running:
		p.stats.Running--
		m.run = nil
	}
	m.state = leaving
	close(m.work) // its goroutine ends when it next waits for a run
	p.stats.Leaving++
	m.arm(time.Now().Add(p.opts.KillWait))
}
