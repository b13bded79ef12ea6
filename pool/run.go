package pool

import (
	"context"
	"time"

	"github.com/sandbed/sandbed/engine"
)

// killer says whose kill ended a run; the first one decides the verdict.
type killer int

const (
	nobody     killer = iota
	byCaller          // the context of Run ended
	byStart           // the start clock ran out
	byHardKill        // the hard-kill clock ran out
	byClose           // the pool closes
)

// phase is how far a run has come. It only ever goes forward.
type phase int

const (
	queued   phase = iota
	starting       // a worker has it; the VM's clock is not armed yet
	started        // the VM's clock is armed
	finished       // the dump is done; no clock runs any more
	settled        // the caller has its answer
)

// run is one call of Run. The pool's lock guards everything but what newRun sets.
type run struct {
	pool   *Pool
	caller context.Context
	req    engine.Request
	wall   time.Duration   // the wall clock of req, with its default
	ctx    context.Context // the evaluation's own; only the pool ends it
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when out and err are set: once, or the runtime panics

	prev, next *run // in the queue
	member     *member
	phase      phase
	killed     killer
	taken      time.Time // a worker took it
	armed      time.Time // the VM's clock was armed
	out        engine.Outcome
	err        error
}

func newRun(p *Pool, caller context.Context, req engine.Request) *run {
	r := &run{pool: p, caller: caller, done: make(chan struct{})}
	// The caller's end is passed on by the pool, never by inheritance: so there
	// is one place where a run is killed, and one order of what came first.
	r.ctx, r.cancel = context.WithCancelCause(context.WithoutCancel(caller))
	req.OnScriptStart, req.OnFinished = r.onScriptStart(req.OnScriptStart), r.onFinished(req.OnFinished)
	r.req, r.wall = req, req.Limits.WithDefaults().WallClock
	return r
}

// queue is a first-come-first-served list from which any run can leave.
type queue struct {
	first, last *run
	length      int
}

func (q *queue) push(r *run) {
	r.prev = q.last
	if q.last != nil {
		q.last.next = r
	} else {
		q.first = r
	}
	q.last = r
	q.length++
}

// remove takes r, which must be in the queue, out of it.
func (q *queue) remove(r *run) {
	if r.prev != nil {
		r.prev.next = r.next
	} else {
		q.first = r.next
	}
	if r.next != nil {
		r.next.prev = r.prev
	} else {
		q.last = r.prev
	}
	r.prev, r.next = nil, nil
	q.length--
}
