package pool

import "maps"

// Stats is a consistent snapshot of a pool: at every instant
// Submitted = Queued + Running + the sum of Settled.
type Stats struct {
	// Workers by state; their sum is the number of goroutines. Starting: warming;
	// Idle: ready; Running: with a run, also while it is being killed; Leaving: out
	// of service, ending; Abandoned: as Leaving, but for longer than KillWait.
	// Leaving and Abandoned hold no slot.
	Starting, Idle, Running, Leaving, Abandoned int
	// Queued is how many runs wait for a worker.
	Queued int

	// Submitted counts calls of Run whose limits were valid and whose context
	// had not ended before.
	Submitted int64
	// Settled counts the runs that were answered, by engine.Outcome.Label or, for
	// those that ended in an error, by one of the Settled constants.
	Settled map[string]int64

	Kills           int64 // runs killed, for whatever reason
	AbandonedEver   int64 // workers that were ever abandoned
	Replaced        int64 // workers that were ready once and lost: dead, faulty, abandoned
	StartupFailures int64 // workers that failed to start, or to start a run

	// Of process workers only. Processes counts those that were started and not
	// reaped yet; Hardening lists the measures of the worker that became ready
	// last, nil before the first did.
	Processes int
	Hardening []Measure
}

// The labels of Stats.Settled for runs that ended in an error.
const (
	SettledQueueFull    = "queueFull"    // engine.ErrQueueFull
	SettledClosed       = "closed"       // engine.ErrClosed
	SettledGaveUp       = "gaveUp"       // the caller's context ended while the run was queued
	SettledStartCompile = "startCompile" // *engine.WorkerStartupError, phase compile
	SettledStart        = "startRun"     // *engine.WorkerStartupError, phase start
)

// Stats returns a snapshot. It is safe for concurrent use.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	s := p.stats
	s.Settled = maps.Clone(p.stats.Settled)
	s.Queued = p.queue.length
	p.mu.Unlock()
	if p.kind.stats != nil {
		p.kind.stats(&s)
	}
	return s
}
