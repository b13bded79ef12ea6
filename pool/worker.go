package pool

import (
	"context"

	"github.com/sandbed/sandbed/engine"
)

// worker is one place where evaluations run, one at a time: the seam between
// the pool, which owns queue, clocks, verdicts and replacement, and what it
// runs on (a goroutine, a process).
//
// The pool gives every worker a goroutine of its own and calls all
// methods from it, one after the other: warm once, eval any number of times,
// close once and always, also after a failed warm or a death. So a worker
// needs no lock of its own. Every method may block; if one does not come back
// within Options.KillWait of its context's end, the pool abandons the worker,
// settles its run and fills the slot, and calls close when the method returns
// at last.
type worker interface {
	// warm brings the worker up until it can take a run: spawn, compile, hello.
	// Cancelling ctx is the order to give up (the cold start ran out, or the
	// pool closes; context.Cause says which). ctx bounds warm alone, not the
	// worker's life. An error becomes *engine.WorkerStartupError{Phase: compile}.
	warm(ctx context.Context) error

	// eval runs r and returns when the worker is free for the next run, or
	// dead. It calls r.OnScriptStart once, with the instant at which the VM's
	// clock was armed (in this process's time), and r.OnFinished once after the
	// dump; both are never nil here, take microseconds and must be called as
	// soon as the worker knows, because the pool's start and hard-kill clocks
	// hang on them.
	//
	// Cancelling ctx is the kill, at any instant, before the start too. A worker
	// that survives it returns an outcome of class Canceled and stays; one that
	// does not returns an error. It decides nothing: what a kill means (a limit,
	// a failed start, the caller's own wish) is the pool's business.
	//
	// A non-nil error says that the worker is dead and that there is no
	// outcome. The pool replaces it and settles the run: by its own kill if there
	// was one, else as *engine.WorkerStartupError{Phase: start} before
	// OnScriptStart, and as class EngineFault, with the error's text, after it.
	// An outcome of class EngineFault also replaces the worker.
	eval(ctx context.Context, r engine.Request) (engine.Outcome, error)

	// died returns a channel that is closed when a worker that was warmed died
	// by itself, so that an idle one is replaced before it gets a run; nil if
	// that cannot happen. It is asked for once, after warm.
	died() <-chan struct{}

	// close gives back everything, in bounded time. A close that takes longer than
	// KillWait is counted as abandoned until it returns.
	close() error
}

// kind is what makes the workers of one pool; newPool takes it, with Options
// that it validates.
type kind struct {
	// newWorker returns a worker on which nothing was started yet. It must not block.
	newWorker func() worker
	// stats, if set, adds what only this kind knows (hardening, processes) to a
	// snapshot. It may be called at any time, from any goroutine.
	stats func(*Stats)
	// close, if set, gives back what the workers share. It is called once, after
	// the last worker was closed.
	close func() error
	// coldStart, if set, is the error of a worker that ColdStart has run out for.
	// It is called with the pool's lock held.
	coldStart func() error
}
