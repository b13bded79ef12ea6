package properties

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandbed/sandbed/engine"
	fuzzgen "github.com/sandbed/sandbed/fuzz/gen"
	"github.com/sandbed/sandbed/pool"
	"github.com/sandbed/sandbed/pool/pooltest"
)

// plant is a pool of VMs that do what they are told, in a bubble of synctest.
type plant struct {
	pool   *pool.Pool
	ledger pooltest.Ledger
	began  time.Time
	wg     sync.WaitGroup
	mu     sync.Mutex // of the calls
	calls  []*call
}

// call is one call of Run and what came of it.
type call struct {
	label, value string
	answers      int
	at           time.Duration // of the answer, since the plant began
	cancel       context.CancelFunc
}

func newPlant(starts []string, o pool.Options) (*plant, error) {
	p := &plant{began: time.Now()}
	var err error
	p.pool, err = pool.New(pooltest.NewVM(&p.ledger, starts...), o)
	return p, err
}

// listOptions are the options that the clocks of fuzz/gen are meant for.
func listOptions(count, queue int, killWait time.Duration) pool.Options {
	return pool.Options{Count: count, MaxQueue: queue, KillWait: killWait,
		ColdStart: fuzzgen.Cold, StartupLiveness: fuzzgen.Liveness, HardKillGrace: fuzzgen.Grace}
}

// submit runs a script of pooltest, in which %d is the number of the call, and
// returns when the pool has taken notice.
func (p *plant) submit(script string, finished func(time.Time)) *call {
	ctx, cancel := context.WithCancel(context.Background())
	c := &call{cancel: cancel}
	if strings.Contains(script, "%d") {
		script = fmt.Sprintf(script, len(p.calls))
	}
	p.calls = append(p.calls, c)
	p.wg.Go(func() {
		out, err := p.pool.Run(ctx, engine.Request{Script: engine.Script{Source: script}, Limits: engine.Limits{WallClock: fuzzgen.Wall}, OnFinished: finished})
		p.mu.Lock()
		defer p.mu.Unlock()
		c.answers++
		c.at, c.label, c.value = time.Since(p.began), label(out, err), string(out.Value)
		cancel()
	})
	synctest.Wait()
	return c
}

// end closes the pool and says what is left of it, or what was done to its VMs.
func (p *plant) end() error {
	err := p.pool.Close()
	p.wg.Wait()
	s, c := p.pool.Stats(), p.ledger.Counts()
	if s.Starting+s.Idle+s.Running+s.Leaving+s.Abandoned+s.Queued != 0 {
		err = errors.Join(err, fmt.Errorf("after Close there are workers or runs: %+v", s))
	}
	if c.Made != c.Closed || c.Running != 0 {
		err = errors.Join(err, fmt.Errorf("after Close %d VMs were made and %d closed, %d evaluations run", c.Made, c.Closed, c.Running))
	}
	if b := p.ledger.Breaches(); len(b) > 0 {
		err = errors.Join(err, fmt.Errorf("the VMs were used against their contract: %q", b))
	}
	for i, c := range p.calls {
		if c.answers != 1 {
			err = errors.Join(err, fmt.Errorf("run %d was answered %d times", i, c.answers))
		}
	}
	return err
}

// label names what came of a run.
func label(out engine.Outcome, err error) string {
	var startup *engine.WorkerStartupError
	switch {
	case err == nil:
		return out.Label()
	case errors.As(err, &startup) && startup.Phase == engine.PhaseCompile:
		return pool.SettledStartCompile
	case errors.As(err, &startup):
		return pool.SettledStart
	case errors.Is(err, engine.ErrClosed):
		return pool.SettledClosed
	case errors.Is(err, engine.ErrQueueFull):
		return pool.SettledQueueFull
	case errors.Is(err, context.Canceled):
		return pool.SettledGaveUp
	}
	return err.Error()
}

// bubble runs f in virtual time.
func bubble(t *testing.T, f func() error) (err error) {
	synctest.Test(t, func(*testing.T) { err = f() })
	return err
}

// poolWord draws a word of a list of operations; one that ends the pool is none.
func poolWord(r *rand.Rand) string {
	names := fuzzgen.PoolNames()
	for {
		name := oneOf(r, names...)
		switch {
		case name == "close" || name == "drain":
		case strings.HasPrefix(name, "run/") || strings.HasPrefix(name, "start/"):
			return name
		default:
			return fmt.Sprintf("%s:%d", name, r.Intn(60))
		}
	}
}

// play does what a list says, on a pool of its own, and waits for the last answer.
func play(list *fuzzgen.PoolList) (*plant, error) {
	o := listOptions(list.Count, list.MaxQueue, list.KillWait)
	o.Spare = list.Spare
	p, err := newPlant(list.Starts, o)
	if err != nil {
		return nil, err
	}
	for _, op := range list.Ops {
		n := time.Duration(op.N) * fuzzgen.Unit
		act, run := op.Act()
		switch {
		case run:
			p.submit(act.Script, nil)
		case op.Name == "wait":
			time.Sleep(n)
		case op.Name == "cancel" && op.N < len(p.calls):
			p.calls[len(p.calls)-1-op.N].cancel()
		case op.Name == "soon" && len(p.calls) > 0:
			last := p.calls[len(p.calls)-1]
			p.wg.Go(func() {
				time.Sleep(n)
				last.cancel()
			})
		case op.Name == "warm":
			ctx, cancel := context.WithTimeout(context.Background(), n)
			_ = p.pool.Warm(ctx) // it may well fail, with the starts of this list
			cancel()
		}
		synctest.Wait()
	}
	p.wg.Wait()
	return p, nil
}

// P4: after any history the next trivial run succeeds, as soon as the starts that
// are told to fail are used up.
func TestP4AliveAfterAnyHistory(t *testing.T) {
	hold(t, 1500, 30, forAll(words(poolWord), func(doc []string) error {
		list, err := fuzzgen.Pool(fuzzgen.Join(doc...))
		if err != nil {
			return err
		}
		return bubble(t, func() error {
			p, err := play(list)
			if err != nil {
				return err
			}
			from := time.Now()
			var last *call
			for range list.Failing + 1 {
				last = p.submit("start; finish; ok %d", nil)
				p.wg.Wait()
				if last.label != pool.SettledStartCompile {
					break
				}
			}
			took := time.Since(from)
			err = p.end()
			if last.label != "ok" || last.value != fmt.Sprint(len(p.calls)-1) {
				err = errors.Join(err, fmt.Errorf("a trivial run afterwards ended as %s with the value %q", last.label, last.value))
			}
			if list.Failing == 0 && took > fuzzgen.Cold {
				err = errors.Join(err, fmt.Errorf("a trivial run afterwards took %v, want at most a cold start of %v", took, fuzzgen.Cold))
			}
			return err
		})
	}))
}

// delayed is a list of runs with a delay in each phase that is charged to none.
type delayed struct {
	Workers                          int
	Compile, Queue, Seed, Mark, Copy time.Duration
	Acts                             []string
}

// P5: a delay in compiling, in the queue, before the script, when its end is noted or in
// copying out changes no outcome. P5 in fuel is TestP5SeedingCostsNoFuel.
func TestP5DelaysChangeNothing(t *testing.T) {
	var acts []string
	for _, name := range fuzzgen.PoolNames() {
		// One of them is a delay before the clock is armed, and nothing else.
		if act, run := (fuzzgen.Op{Name: name}).Act(); run && !(act.Deaf && act.Unarmed) {
			acts = append(acts, name)
		}
	}
	// Far above the sum of a wall clock and its grace, far below the clocks of starts.
	const most, patience = 60 * fuzzgen.Unit, 100 * time.Second
	hold(t, 1000, 10, forAll(draw(func(r *rand.Rand) delayed {
		some := func() time.Duration { return time.Duration(r.Int63n(2)) * time.Duration(r.Int63n(int64(most))) }
		d := delayed{1 + r.Intn(2), some(), some(), some(), some(), some(), nil}
		for range 1 + r.Intn(6) {
			d.Acts = append(d.Acts, oneOf(r, acts...))
		}
		return d
	}), func(d delayed) error {
		return bubble(t, func() error {
			o := listOptions(d.Workers, 0, 3*fuzzgen.Unit)
			o.ColdStart, o.StartupLiveness = patience, patience
			p, err := newPlant([]string{"run " + d.Compile.String()}, o)
			if err != nil {
				return err
			}
			var queue []*call
			if d.Queue > 0 {
				for range d.Workers {
					queue = append(queue, p.submit("start; finish; run "+d.Queue.String()+"; ok %d", nil))
				}
			}
			var calls []*call
			for _, name := range d.Acts {
				act, _ := fuzzgen.Op{Name: name}.Act()
				script := "seed " + d.Seed.String() + "; " + strings.Replace(act.Script, "finish;", "finish; run "+d.Copy.String()+";", 1)
				calls = append(calls, p.submit(script, func(time.Time) { time.Sleep(d.Mark) }))
			}
			p.wg.Wait()
			for i, c := range calls {
				act, _ := fuzzgen.Op{Name: d.Acts[i]}.Act()
				want := act.Label
				if want == "startup:start" {
					want = pool.SettledStart
				}
				if c.label != want || c.label == "ok" && c.value != fmt.Sprint(len(queue)+i) {
					err = errors.Join(err, fmt.Errorf("run %d, %s, ended as %s with the value %q, want %s", i, d.Acts[i], c.label, c.value, want))
				}
			}
			for _, c := range queue {
				if c.label != "ok" {
					err = errors.Join(err, fmt.Errorf("a run before them ended as %s", c.label))
				}
			}
			return errors.Join(err, p.end())
		})
	}))
}

// P13: after Close nothing is left, whatever was done before and whatever goes on:
// every run was answered once, every VM was closed, and no goroutine waits, which
// the bubble would report.
func TestP13NothingIsLeft(t *testing.T) {
	hold(t, 1500, 30, forAll(words(poolWord), func(doc []string) error {
		list, err := fuzzgen.Pool(fuzzgen.Join(doc...))
		if err != nil {
			return err
		}
		return bubble(t, func() error {
			p, err := play(list)
			if err != nil {
				return err
			}
			// Some are under way and some wait when it closes.
			for _, script := range []string{"start; run 1h", "start; ignore 90ms", "seed 1h", "start; finish; run 30ms; ok 1", "start; run 1h"} {
				p.submit(script, nil)
			}
			return p.end()
		})
	}))
}
