package pool

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sandbed/sandbed/engine"
)

// state is where a member stands. Each has its count in Stats.
type state int

const (
	warmingUp state = iota
	idle
	running   // with a run, also while that is being killed
	leaving   // holds no slot any more; its goroutine is about to end
	abandoned // as leaving, but did not end within KillWait
)

// member is one worker of a pool with its goroutine and its clock. The pool's
// lock guards state, run, due and warmErr.
type member struct {
	pool   *Pool
	worker worker
	work   chan *run // holds at most one; closed: end

	state    state
	run      *run
	clock    *time.Timer
	due      time.Time // when the clock strikes; zero: it is not armed
	giveUp   context.CancelCauseFunc
	warmed   chan struct{} // closed when the start has succeeded or failed
	warmErr  error
	deadIdle <-chan struct{}
}

var (
	errColdStart = errors.New("pool: the worker was not ready within ColdStart")
	errStart     = errors.New("pool: the VM's clock was not armed within the wall clock, HardKillGrace and StartupLiveness")
	errHardKill  = errors.New("pool: no finished mark within the wall clock and HardKillGrace")
	errEnded     = errors.New("pool: the VM ended its goroutine")
)

// start adds a worker to the pool. The pool's lock is held.
func (p *Pool) start() {
	ctx, giveUp := context.WithCancelCause(context.Background())
	m := &member{pool: p, worker: p.kind.newWorker(), work: make(chan *run, 1), giveUp: giveUp, warmed: make(chan struct{})}
	p.members[m] = struct{}{}
	p.stats.Starting++
	// The cold-start clock starts here; m.clock is set before its strike can
	// read it, for that takes the lock.
	m.due = time.Now().Add(p.opts.ColdStart)
	m.clock = time.AfterFunc(p.opts.ColdStart, m.strike)
	go m.serve(ctx)
}

// serve is the worker's goroutine.
func (m *member) serve(ctx context.Context) {
	inPlace := false // the worker's own code is not on the stack
	defer func() {
		if !inPlace { // it called runtime.Goexit; a panic is the kind's to recover
			m.ended()
		}
		m.close()
	}()
	if err := m.worker.warm(ctx); m.ready(err) {
		for r := m.wait(); r != nil; r = m.wait() {
			for r != nil {
				out, err := m.worker.eval(r.ctx, r.req)
				r.cancel(nil) // frees what hangs on it; the evaluation is over
				r = m.finish(r, out, err)
			}
		}
	}
	inPlace = true
}

// ready takes the result of warm and reports whether the worker is in service.
func (m *member) ready(err error) bool {
	var died <-chan struct{}
	if err == nil {
		died = m.worker.died()
	}
	p := m.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if m.state != warmingUp { // too late
		return false
	}
	if err != nil {
		m.failStart(&engine.WorkerStartupError{Phase: engine.PhaseCompile, Err: err})
		return false
	}
	m.deadIdle = died
	p.stats.Starting--
	close(m.warmed)
	m.rest()
	return true
}

// failStart settles all who wait for m to warm, and takes it out of service.
func (m *member) failStart(err error) {
	p := m.pool
	m.warmErr = err
	close(m.warmed)
	m.giveUp(err)
	p.leave(m)
	if p.stopping {
		return
	}
	p.stats.StartupFailures++
	// A run waits for whichever worker comes first, so it fails with the last
	// one. Only a new run, a new Warm or the loss of a worker that was ready tries again.
	p.want = min(p.want, p.live())
	if p.live() == 0 {
		p.failQueue(err)
	}
}

// rest puts m, which holds no run, among the idle ones. The pool's lock is held.
func (m *member) rest() {
	m.disarm()
	m.state, m.run = idle, nil
	m.pool.stats.Idle++
	m.pool.idle = append(m.pool.idle, m)
	m.pool.dispatch()
}

// wait returns the next run, nil when the worker's service has ended.
func (m *member) wait() *run {
	select {
	case r := <-m.work:
		return r
	case <-m.deadIdle:
	}
	p := m.pool
	p.mu.Lock()
	if m.state == idle {
		p.stats.Replaced++
		p.leave(m)
		p.fill()
		p.mu.Unlock()
		return nil
	}
	p.mu.Unlock()
	// It was given a run, or told to end, just now; eval will find it dead.
	return <-m.work
}

// take gives r to m. The caller hands r to m's goroutine. The pool's lock is held.
func (m *member) take(r *run) {
	m.state, m.run = running, r
	m.pool.stats.Running++
	r.member, r.phase, r.taken = m, starting, time.Now()
	m.arm(r.taken.Add(r.wall + m.pool.opts.HardKillGrace + m.pool.opts.StartupLiveness))
}

// finish takes the result of eval, frees m, then answers r's caller. It returns
// the run that m serves next without a pause, if there is one.
func (m *member) finish(r *run, out engine.Outcome, err error) *run {
	p := m.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if m.state == abandoned { // r was answered then
		return nil
	}
	m.disarm()
	dead := err != nil || r.killed == byStart
	out, err = r.verdict(out, err)
	if dead || out.Class == engine.ClassEngineFault {
		m.replace()
		p.settle(r, out, err)
		p.dispatch()
		return nil
	}
	if p.stopping {
		p.leave(m)
		p.settle(r, out, err)
		return nil
	}
	// This worker takes the head of the queue itself: it is already awake.
	p.stats.Running--
	next := p.next()
	if next != nil {
		m.take(next)
	} else {
		m.rest()
	}
	p.settle(r, out, err)
	return next
}

// replace takes m, which served once, out of service and fills its slot. The
// pool's lock is held.
func (m *member) replace() {
	m.pool.stats.Replaced++
	m.pool.leave(m)
	m.pool.fill()
}

// ended is for a worker whose code has ended the goroutine.
func (m *member) ended() {
	m.pool.mu.Lock()
	state, r := m.state, m.run
	m.pool.mu.Unlock()
	switch state {
	case warmingUp:
		m.ready(errEnded)
	case running:
		m.finish(r, engine.Outcome{}, errEnded)
	}
	// Anything else was taken out of service before.
}

// close gives the worker back and ends m's membership.
func (m *member) close() {
	// A worker that will not even close stays a member, and so is reported.
	err := m.worker.close()
	m.giveUp(nil)
	p := m.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	m.disarm()
	if m.state == abandoned {
		p.stats.Abandoned--
	} else {
		p.stats.Leaving--
	}
	if err != nil && p.closeErr == nil {
		p.closeErr = err
	}
	delete(p.members, m)
	if p.stopping && len(p.members) == 0 {
		close(p.gone)
	}
}

// Clocks. The pool's lock is held, but for strike.

func (m *member) arm(due time.Time) {
	m.due = due
	m.clock.Reset(time.Until(due))
}

func (m *member) disarm() {
	m.due = time.Time{}
	m.clock.Stop()
}

// strike is called when the clock has run out. An old strike that comes late
// finds the clock armed anew, or not at all, and does nothing.
func (m *member) strike() {
	p := m.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if m.due.IsZero() || time.Now().Before(m.due) {
		return
	}
	m.due = time.Time{}
	switch {
	case m.state == warmingUp:
		err := errColdStart
		if p.kind.coldStart != nil {
			err = p.kind.coldStart()
		}
		m.failStart(&engine.WorkerStartupError{Phase: engine.PhaseCompile, Err: err})
	case m.state == leaving:
		m.abandon()
	case m.state != running:
	case m.run.killed != nobody:
		r := m.run
		m.replace()
		m.abandon()
		out, err := r.abandonedOutcome()
		p.settle(r, out, err)
		p.dispatch()
	case m.run.phase == starting:
		m.kill(byStart, errStart)
	default:
		m.kill(byHardKill, errHardKill)
	}
}

// abandon marks a leaving worker that did not end. close takes the mark back.
func (m *member) abandon() {
	m.state = abandoned
	m.disarm()
	m.pool.stats.Leaving--
	m.pool.stats.Abandoned++
	m.pool.stats.AbandonedEver++
}

// kill ends m's run. A second kill changes nothing: the first gives the verdict.
func (m *member) kill(by killer, cause error) {
	r := m.run
	if r.killed != nobody {
		return
	}
	r.killed = by
	m.pool.stats.Kills++
	m.arm(time.Now().Add(m.pool.opts.KillWait))
	r.cancel(cause)
}

// onScriptStart returns what the VM calls when its clock is armed: the start
// clock ends and the hard-kill clock begins, at the very instant the VM names.
func (r *run) onScriptStart(forward func(time.Time)) func(time.Time) {
	return func(at time.Time) {
		p := r.pool
		now := time.Now()
		p.mu.Lock()
		if r.phase != starting { // a second call, or one that comes after the end
			p.mu.Unlock()
			return
		}
		r.phase = started
		if at.Before(r.taken) || at.After(now) {
			at = now // no VM can lengthen its clock by a wrong instant
		}
		r.armed = now.Add(-now.Sub(at)) // with now's monotonic reading
		if r.killed == nobody {
			r.member.arm(r.armed.Add(r.wall + p.opts.HardKillGrace))
		}
		p.mu.Unlock()
		if forward != nil {
			forward(at)
		}
	}
}

// onFinished returns what the VM calls after the dump: from here on no clock runs.
func (r *run) onFinished(forward func(time.Time)) func(time.Time) {
	return func(at time.Time) {
		p := r.pool
		p.mu.Lock()
		if r.phase != started {
			p.mu.Unlock()
			return
		}
		r.phase = finished
		if r.killed == nobody {
			r.member.disarm()
		}
		p.mu.Unlock()
		if forward != nil {
			forward(at)
		}
	}
}

// verdict says how r ended, after eval returned out and err. The pool's own kill
// decides, never what the VM reports; only a caller's kill, and that of Close,
// give way to a result that was quicker.
func (r *run) verdict(out engine.Outcome, err error) (engine.Outcome, error) {
	if err == nil {
		if fault := r.fault(out); fault != "" {
			out = engine.Outcome{Class: engine.ClassEngineFault, Message: fault, Usage: out.Usage}
		}
	}
	complete := err == nil && out.Class != engine.ClassCanceled
	switch {
	case r.killed == byHardKill:
		return r.hardKilled(out.Usage), nil
	case r.killed == byStart:
		r.pool.stats.StartupFailures++
		return engine.Outcome{}, &engine.WorkerStartupError{Phase: engine.PhaseStart, Err: errStart}
	case complete:
		return out, nil
	case r.killed == byClose:
		return engine.Outcome{}, engine.ErrClosed
	case r.killed == byCaller && err == nil:
		out.Killed = true
		return out, nil
	case r.killed == byCaller:
		return r.canceled(), nil
	case r.phase == starting:
		r.pool.stats.StartupFailures++
		return engine.Outcome{}, &engine.WorkerStartupError{Phase: engine.PhaseStart, Err: err}
	default:
		return engine.Outcome{Class: engine.ClassEngineFault, Message: cut("pool: the worker died during the evaluation: " + err.Error())}, nil
	}
}

// abandonedOutcome is the verdict on a killed run whose worker did not come back.
func (r *run) abandonedOutcome() (engine.Outcome, error) {
	switch r.killed {
	case byHardKill:
		return r.hardKilled(engine.Usage{}), nil
	case byCaller:
		return r.canceled(), nil
	default:
		return r.verdict(engine.Outcome{}, errors.New("pool: abandoned"))
	}
}

func (r *run) hardKilled(usage engine.Usage) engine.Outcome {
	ran := time.Since(r.armed)
	if usage.Script+usage.Dump == 0 {
		usage.Script = ran
	}
	if usage.Overrun == 0 {
		usage.Overrun = ran - r.wall
	}
	return engine.Outcome{Class: engine.ClassLimit, Guard: engine.WallClock, Killed: true, Message: errHardKill.Error(), Usage: usage}
}

func (r *run) canceled() engine.Outcome {
	return engine.Outcome{Class: engine.ClassCanceled, Killed: true, DuringSeed: r.phase == starting, Message: cut(fmt.Sprint(context.Cause(r.ctx)))}
}

// fault says what is impossible in an outcome.
func (r *run) fault(out engine.Outcome) string {
	switch out.Class {
	case engine.ClassOK, engine.ClassScriptError, engine.ClassResultNotSerializable, engine.ClassInputTooLarge, engine.ClassEngineFault:
		return ""
	case engine.ClassLimit:
		switch out.Guard {
		case engine.WallClock, engine.Fuel, engine.Memory, engine.Stack, engine.Output:
			return ""
		}
		return fmt.Sprintf("pool: the VM reported a limit with the unknown guard %.40q", out.Guard)
	case engine.ClassCanceled:
		if r.killed != nobody {
			return ""
		}
		return "pool: the VM reported a run as cancelled that nobody had cancelled"
	default:
		return fmt.Sprintf("pool: the VM reported the unknown class %.40q", out.Class)
	}
}

// cut bounds a message as engine.Outcome promises.
func cut(s string) string {
	const most = 4 << 10
	return strings.ToValidUTF8(s[:min(len(s), most)], "")
}
