package pooltest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/pool"
)

// Pool is what the suite judges; *pool.Pool is one.
type Pool interface {
	engine.Backend
	Drain(context.Context) error
	Stats() pool.Stats
}

// Factory makes a pool whose workers have the VMs of NewVM(…, start). The suite
// closes it.
type Factory func(o pool.Options, start string) (Pool, error)

// Finding is a law that a pool broke.
type Finding struct {
	Law string
	Err error
}

// patience is how long one law may take in real time before the pool counts as
// hung. The slowest law takes about a second on an idle machine.
const patience = 2 * time.Minute

// Run puts the pools of factory through every law, in real time.
func Run(t *testing.T, factory Factory) {
	for _, l := range laws {
		t.Run(l.name, func(t *testing.T) {
			if err := l.judge(factory, patience); err != nil {
				t.Errorf("a pool must hold that %s\n%v", l.says, err)
			}
		})
	}
}

// RunVirtual is Run in virtual time; only for workers in this process.
func RunVirtual(t *testing.T, factory Factory) {
	for _, l := range laws {
		t.Run(l.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if err := l.judge(factory, 100*time.Hour); err != nil {
					t.Errorf("a pool must hold that %s\n%v", l.says, err)
				}
			})
		})
	}
}

// Check is Run for a caller without a testing.T. A law that takes longer than
// patience is a finding.
func Check(factory Factory, patience time.Duration) []Finding {
	var found []Finding
	for _, l := range laws {
		if err := l.judge(factory, patience); err != nil {
			found = append(found, Finding{l.name, err})
		}
	}
	return found
}

// law is one thing that every pool must hold.
type law struct {
	name, says string
	check      func(*trial) error
}

// judge runs the law's check and then what must hold after each.
func (l law) judge(factory Factory, patience time.Duration) error {
	t := &trial{factory: factory, hung: make(chan struct{})}
	done := make(chan error, 1)
	go func() { done <- errors.Join(l.check(t), t.end()) }()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		close(t.hung)
		return fmt.Errorf("it hung for %v", patience)
	}
}

// trial is one pool under one law.
type trial struct {
	factory Factory
	pool    Pool
	hung    chan struct{}
	wg      sync.WaitGroup
}

var errHung = errors.New("given up")

// options are those of the suite: clocks short enough to test, long enough for a
// slow host where a law needs the pool not to strike.
func options(count int) pool.Options {
	return pool.Options{
		Count:           count,
		ColdStart:       time.Minute,
		StartupLiveness: time.Minute,
		HardKillGrace:   time.Minute,
		KillWait:        time.Minute,
	}
}

func (t *trial) make(o pool.Options, start string) error {
	p, err := t.factory(o, start)
	if err != nil {
		return fmt.Errorf("making the pool: %w", err)
	}
	t.pool = p
	return nil
}

// end closes the pool and balances its books.
func (t *trial) end() error {
	if t.pool == nil {
		return nil
	}
	closeErr := t.pool.Close()
	t.wg.Wait()
	s := t.pool.Stats()
	var sum int64
	for _, n := range s.Settled {
		sum += n
	}
	var errs []error
	if closeErr != nil {
		errs = append(errs, fmt.Errorf("closing: %w", closeErr))
	}
	if left := s.Starting + s.Idle + s.Running + s.Leaving + s.Abandoned; left != 0 || s.Queued != 0 {
		errs = append(errs, fmt.Errorf("after Close %d workers and %d queued runs were left: %+v", left, s.Queued, s))
	}
	if s.Submitted != sum {
		errs = append(errs, fmt.Errorf("%d runs were submitted and %d settled: %+v", s.Submitted, sum, s))
	}
	return errors.Join(errs...)
}

// answer is what Run returned.
type answer struct {
	out engine.Outcome
	err error
}

func (a answer) String() string {
	if a.err != nil {
		return fmt.Sprintf("error %q", a.err)
	}
	return fmt.Sprintf("%s killed=%v value=%.40q message=%.200q", a.out.Label(), a.out.Killed, a.out.Value, a.out.Message)
}

// label is the outcome's label, or what kind of error it was.
func (a answer) label() string {
	var startup *engine.WorkerStartupError
	switch {
	case a.err == nil:
		return a.out.Label()
	case errors.As(a.err, &startup):
		return "startup:" + string(startup.Phase)
	case errors.Is(a.err, engine.ErrClosed):
		return "closed"
	case errors.Is(a.err, engine.ErrQueueFull):
		return "queueFull"
	case errors.Is(a.err, context.Canceled):
		return "gaveUp"
	default:
		return "error " + a.err.Error()
	}
}

// call is a run in the background.
type call struct {
	cancel context.CancelFunc
	begun  chan struct{} // closed at its OnScriptStart
	answer chan answer
}

func (t *trial) request(script string, wall time.Duration) engine.Request {
	return engine.Request{Script: engine.Script{Source: script}, Limits: engine.Limits{WallClock: wall}}
}

func (t *trial) run(script string, wall time.Duration) answer {
	out, err := t.pool.Run(context.Background(), t.request(script, wall))
	return answer{out, err}
}

// begin starts a run with a wall clock of one hour.
func (t *trial) begin(script string) call {
	ctx, cancel := context.WithCancel(context.Background())
	c := call{cancel, make(chan struct{}), make(chan answer, 1)}
	r := t.request(script, time.Hour)
	var once sync.Once
	r.OnScriptStart = func(time.Time) { once.Do(func() { close(c.begun) }) }
	t.wg.Go(func() {
		out, err := t.pool.Run(ctx, r)
		c.answer <- answer{out, err}
	})
	return c
}

// until waits for a state of the pool.
func (t *trial) until(what string, ok func(pool.Stats) bool) error {
	for pause := time.Millisecond; ; pause = min(2*pause, time.Second) {
		s := t.pool.Stats()
		if ok(s) {
			return nil
		}
		select {
		case <-t.hung:
			return fmt.Errorf("never %s: %+v", what, s)
		case <-time.After(pause):
		}
	}
}

// begun waits until c's script has begun.
func (t *trial) begun(c call) error {
	select {
	case <-c.begun:
		return nil
	case a := <-c.answer:
		return fmt.Errorf("the run ended before it began: %v", a)
	case <-t.hung:
		return errHung
	}
}

func (t *trial) wait(c call) answer {
	select {
	case a := <-c.answer:
		return a
	case <-t.hung:
		return answer{err: errHung}
	}
}

func want(what string, a answer, labels ...string) error {
	if slices.Contains(labels, a.label()) {
		return nil
	}
	return fmt.Errorf("%s: got %v, want %q", what, a, labels)
}

// serves checks that the pool still answers.
func (t *trial) serves() error {
	a := t.run("start; finish; ok 2", time.Hour)
	if a.label() != "ok" || string(a.out.Value) != "2" {
		return fmt.Errorf("the next run: got %v, want ok 2", a)
	}
	return nil
}

// first returns the first error of steps that each need the one before.
func first(steps ...func() error) error {
	for _, s := range steps {
		if err := s(); err != nil {
			return err
		}
	}
	return nil
}
