package pool_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/pool"
	"github.com/sandbed/sandbed/pool/pooltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a pool of fake goroutine workers in a bubble of virtual time, with
// round numbers for its clocks.
type rig struct {
	*pool.Pool
	t      *testing.T
	ledger *pooltest.Ledger
	began  time.Time
}

const (
	wall      = 100 * time.Millisecond
	grace     = 2 * time.Second
	liveness  = 10 * time.Second
	coldStart = 10 * time.Second
	killWait  = 100 * time.Millisecond
)

func bubble(t *testing.T, count int, test func(*rig), starts ...string) {
	t.Helper()
	bubbleWith(t, pool.Options{
		Count: count, ColdStart: coldStart, StartupLiveness: liveness, HardKillGrace: grace, KillWait: killWait,
	}, test, starts...)
}

func bubbleWith(t *testing.T, o pool.Options, test func(*rig), starts ...string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, ledger: new(pooltest.Ledger), began: time.Now()}
		var err error
		if r.Pool, err = pool.New(pooltest.NewVM(r.ledger, starts...), o); err != nil {
			t.Fatal(err)
		}
		test(r)
		for { // a worker that ignores its kill is waited for, as long as it takes
			var abandoned *pool.AbandonedError
			err := r.Close()
			if err == nil {
				break
			}
			if !errors.As(err, &abandoned) {
				t.Fatalf("Close: %v", err)
			}
		}
		if b := r.ledger.Breaches(); len(b) > 0 {
			t.Errorf("the pool broke the VM contract: %q", b)
		}
		if c := r.ledger.Counts(); c.Made != c.Closed || c.Running != 0 {
			t.Errorf("%d VMs were made, %d closed, %d evaluations still run", c.Made, c.Closed, c.Running)
		}
		books(t, r.Stats())
	})
}

// books checks that every run was settled once and nothing is left.
func books(t *testing.T, s pool.Stats) {
	t.Helper()
	var sum int64
	for _, n := range s.Settled {
		sum += n
	}
	if s.Submitted != sum || s.Queued+s.Starting+s.Idle+s.Running+s.Leaving+s.Abandoned != 0 {
		t.Errorf("the books do not balance: %+v", s)
	}
}

// warm readies the workers and starts the rig's stop watch.
func (r *rig) warm() {
	r.t.Helper()
	if err := r.Warm(context.Background()); err != nil {
		r.t.Fatalf("Warm: %v", err)
	}
	r.began = time.Now()
}

func request(script string) engine.Request {
	return engine.Request{Script: engine.Script{Source: script}, Limits: engine.Limits{WallClock: wall}}
}

// answer is what one run gave, and when, on the rig's stop watch.
type answer struct {
	label string
	out   engine.Outcome
	err   error
	at    time.Duration
}

func (r *rig) run(ctx context.Context, req engine.Request) answer {
	out, err := r.Run(ctx, req)
	return answer{name(out, err), out, err, time.Since(r.began)}
}

func name(out engine.Outcome, err error) string {
	var startup *engine.WorkerStartupError
	switch {
	case err == nil:
		return out.Label()
	case errors.As(err, &startup):
		return "startup:" + string(startup.Phase)
	case errors.Is(err, engine.ErrClosed):
		return "closed"
	case errors.Is(err, engine.ErrQueueFull):
		return "queueFull"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "gaveUp"
	default:
		return fmt.Sprintf("error %v", err)
	}
}

// post runs in the background.
func (r *rig) post(ctx context.Context, script string) <-chan answer {
	c := make(chan answer, 1)
	go func() { c <- r.run(ctx, request(script)) }()
	synctest.Wait()
	return c
}

func (r *rig) want(a answer, label string, at time.Duration) {
	r.t.Helper()
	if a.label != label || a.at != at {
		r.t.Errorf("got %s at %v, want %s at %v (%+v, %v)", a.label, a.at, label, at, a.out, a.err)
	}
}

var ctx = context.Background()

// Every clock strikes at its own origin plus its own length, to the nanosecond.
func TestClocks(t *testing.T) {
	for _, c := range []struct {
		name, script, label string
		at                  time.Duration
	}{
		{"start clock from the taking", "seed 1h; start", "startup:start", wall + grace + liveness},
		{"start clock ends at the armed clock", "seed 12099ms; start; run 1ms; finish; ok 1", "ok", 12100 * time.Millisecond},
		{"hard kill from the armed clock", "seed 3s; start; run 1h", "limit:wallClock", 3*time.Second + wall + grace},
		{"hard kill from the reported instant", "seed 3s; start -1s; run 1h", "limit:wallClock", 2*time.Second + wall + grace},
		{"an instant before the taking means now", "seed 3s; start -4s; run 1h", "limit:wallClock", 3*time.Second + wall + grace},
		{"an instant in the future means now", "seed 3s; start 1h; run 1h", "limit:wallClock", 3*time.Second + wall + grace},
		{"a second start changes nothing", "start; run 1s; start; run 1h", "limit:wallClock", wall + grace},
		{"a finished mark before the start means nothing", "finish; seed 1h", "startup:start", wall + grace + liveness},
		{"hard kill ends at the finished mark", "start; run 2099ms; finish; run 1h; ok 1", "ok", time.Hour + 2099*time.Millisecond},
		{"a start after the finished mark changes nothing", "start; finish; start; run 1h; ok 1", "ok", time.Hour},
		{"a killed worker may come late", "start; late 99ms; run 1h", "limit:wallClock", wall + grace + 99*time.Millisecond},
		{"an ignored kill ends with KillWait", "start; ignore 1h", "limit:wallClock", wall + grace + killWait},
		{"an ignored kill while seeding", "ignore 1h", "startup:start", wall + grace + liveness + killWait},
		{"a kill decides against a late result", "start; ignore 2150ms; ok 1", "limit:wallClock", 2150 * time.Millisecond},
		{"a kill while seeding decides against a late start", "ignore 12150ms; start; ok 1", "startup:start", 12150 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, 1, func(r *rig) {
				r.warm()
				a := r.run(ctx, request(c.script))
				r.want(a, c.label, c.at)
				if killed := c.label == "limit:wallClock"; a.out.Killed != killed {
					t.Errorf("killed is %v, want %v", a.out.Killed, killed)
				}
			})
		})
	}
}

func TestOverrunIsTheTimeUntilTheWorkerWasFree(t *testing.T) {
	bubble(t, 1, func(r *rig) {
		r.warm()
		for script, want := range map[string]time.Duration{
			"seed 1s; start; late 30ms; run 1h": grace + 30*time.Millisecond,
			"seed 1s; start; ignore 1h":         grace + killWait,
		} {
			if u := r.run(ctx, request(script)).out.Usage; u.Overrun != want || u.Script != wall+want {
				t.Errorf("%s: overrun %v, script %v, want %v and %v", script, u.Overrun, u.Script, want, wall+want)
			}
		}
	})
}

func TestStaleMarkOfAnEarlierRunIsIgnored(t *testing.T) {
	bubble(t, 1, func(r *rig) {
		r.warm()
		r.want(r.run(ctx, request("start; finish")), "ok", 0)
		r.want(r.run(ctx, request("stale; seed 1h")), "startup:start", wall+grace+liveness)
	})
}

func TestQueueingIsChargedToNobody(t *testing.T) {
	bubble(t, 1, func(r *rig) {
		r.warm()
		hog := r.post(ctx, "start; finish; run 1h; ok 1")
		a := r.post(ctx, "seed 1h")
		b := r.post(ctx, "seed 1s; start; run 1h")
		r.want(<-hog, "ok", time.Hour)
		start := time.Hour + wall + grace + liveness
		r.want(<-a, "startup:start", start)
		r.want(<-b, "limit:wallClock", start+time.Second+wall+grace)
	})
}

// Count runs are taken in and MaxQueue wait, whether the workers have started or not.
func TestMaxQueue(t *testing.T) {
	o := pool.Options{Count: 2, MaxQueue: 3, ColdStart: coldStart, StartupLiveness: liveness, HardKillGrace: grace, KillWait: killWait}
	bubbleWith(t, o, func(r *rig) {
		var taken []<-chan answer
		for range 5 {
			taken = append(taken, r.post(ctx, "start; finish; run 10s"))
		}
		r.want(r.run(ctx, request("start")), "queueFull", 0)
		time.Sleep(6 * time.Second) // warm since a second
		r.want(r.run(ctx, request("start")), "queueFull", 6*time.Second)
		for i, at := range []time.Duration{15, 15, 25, 25, 35} {
			r.want(<-taken[i], "ok", at*time.Second)
		}
	}, "run 5s")
}

// The cold start has one clock a worker, whoever waits for it and since when.
func TestColdStartClockIsTheWorkersOwn(t *testing.T) {
	bubble(t, 1, func(r *rig) {
		a := r.post(ctx, "start")
		time.Sleep(4 * time.Second)
		b := r.post(ctx, "start")
		warm := make(chan error, 1)
		go func() { warm <- r.Warm(ctx) }()
		time.Sleep(4 * time.Second)
		c := r.post(ctx, "start")
		for _, answered := range []<-chan answer{a, b, c} {
			r.want(<-answered, "startup:compile", coldStart)
		}
		r.want(answer{label: name(engine.Outcome{}, <-warm), at: time.Since(r.began)}, "startup:compile", coldStart)
		// The next run gets a worker with a clock of its own.
		r.want(r.run(ctx, request("start; finish; ok 1")), "ok", coldStart+9*time.Second)
		if s := r.Stats(); s.StartupFailures != 1 || s.Settled[pool.SettledStartCompile] != 3 || s.Leaving+int(s.AbandonedEver) != 0 {
			t.Errorf("got %+v, want 1 failed start for 3 runs, ended by its context", s)
		}
	}, "run 1h", "run 9s")
}

// A run waits for whichever worker comes first, so it fails with the last one.
func TestColdStartFailsARunOnlyWithTheLastWorker(t *testing.T) {
	bubble(t, 2, func(r *rig) {
		a := r.post(ctx, "start; finish; ok 1") // on a worker that takes 3 s to start
		b := r.post(ctx, "start; finish; ok 1") // on one that fails after 1 s
		r.want(<-a, "ok", 3*time.Second)
		r.want(<-b, "ok", 3*time.Second)
		if s := r.Stats(); s.StartupFailures != 1 || s.Idle != 1 || s.Starting != 0 {
			t.Errorf("got %+v, want 1 failed start, 1 idle worker, and no start that nobody asked for", s)
		}
		if got := r.ledger.Counts().Starts; got != 2 {
			t.Errorf("%d starts, want 2", got)
		}
		// Nor is the start repeated for a run that an idle worker takes.
		r.want(r.run(ctx, request("start; finish; ok 1")), "ok", 3*time.Second)
		synctest.Wait()
		if got := r.ledger.Counts().Starts; got != 2 {
			t.Errorf("%d starts after a run on an idle worker, want 2", got)
		}
		// The next run that finds no idle worker tries again.
		hog := r.post(ctx, "start; run 1s; finish")
		r.want(r.run(ctx, request("start; finish; ok 1")), "ok", 3*time.Second)
		<-hog
	}, "run 3s", "run 1s; error", "")
}

func TestAbandonedStart(t *testing.T) {
	bubble(t, 1, func(r *rig) {
		r.want(r.run(ctx, request("start")), "startup:compile", coldStart)
		if s := r.Stats(); s.Leaving != 1 || s.Abandoned != 0 {
			t.Errorf("when the start ran out: %+v, want it leaving", s)
		}
		time.Sleep(killWait)
		synctest.Wait()
		if s := r.Stats(); s.Leaving != 0 || s.Abandoned != 1 || s.AbandonedEver != 1 {
			t.Errorf("after KillWait: %+v, want it abandoned", s)
		}
		r.want(r.run(ctx, request("start; finish")), "ok", coldStart+killWait)
		time.Sleep(time.Hour)
		synctest.Wait()
		if s, c := r.Stats(), r.ledger.Counts(); s.Abandoned != 0 || c.Made != 2 || c.Closed != 1 {
			t.Errorf("when the start came back: %+v, %+v, want its VM closed", s, c)
		}
	}, "ignore 1h", "")
}

// The slot of an abandoned worker is filled at once, and the worker is watched to its end.
func TestAbandonedRun(t *testing.T) {
	bubble(t, 2, func(r *rig) {
		r.warm()
		req := request("start; ignore 1h; finish; ok 1")
		late := false
		req.OnFinished = func(time.Time) { late = true }
		a := r.run(ctx, req)
		r.want(a, "limit:wallClock", wall+grace+killWait)
		synctest.Wait()
		if s := r.Stats(); s.Idle != 2 || s.Abandoned != 1 || s.AbandonedEver != 1 || s.Replaced != 1 || s.Kills != 1 {
			t.Errorf("when it was abandoned: %+v, want 2 idle and 1 abandoned", s)
		}
		for range 4 { // more than there are workers
			if a := r.run(ctx, request("start; finish; ok 2")); a.label != "ok" {
				t.Errorf("beside an abandoned worker: got %s", a.label)
			}
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if s, c := r.Stats(), r.ledger.Counts(); s.Abandoned != 0 || s.AbandonedEver != 1 || s.Idle != 2 || c.Made != 3 || c.Closed != 1 {
			t.Errorf("when it came back: %+v, %+v, want its VM closed", s, c)
		}
		if late {
			t.Error("the caller was told of a finished mark after Run had returned")
		}
	})
}

// A caller may end its run at every stage; it is answered when the worker is free.
func TestCallerGivesUp(t *testing.T) {
	cause := errors.New("the user left")
	for _, c := range []struct {
		name, script, label string
		at                  time.Duration
		seed                bool
	}{
		{"seeding", "seed 1h; start", "canceled", time.Second, true},
		{"running", "start; run 1h", "canceled", time.Second, false},
		{"handing over", "start; finish; run 1h; ok 1", "canceled", time.Second, false},
		{"coming back late", "start; late 50ms; run 1h", "canceled", time.Second + 50*time.Millisecond, false},
		{"ignoring it while seeding", "ignore 1h", "canceled", time.Second + killWait, true},
		{"ignoring it", "start; ignore 1h", "canceled", time.Second + killWait, false},
		{"with a result that was quicker", "start; ignore 1050ms; finish; ok 1", "ok", 1050 * time.Millisecond, false},
		{"with a fault", "start; ignore 1050ms; panic", "engineFault", 1050 * time.Millisecond, false},
		{"ending the goroutine", "start; ignore 1050ms; exit", "canceled", 1050 * time.Millisecond, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, 1, func(r *rig) {
				r.warm()
				ctx, cancel := context.WithCancelCause(ctx)
				time.AfterFunc(time.Second, func() { cancel(cause) })
				a := r.run(ctx, request(c.script))
				r.want(a, c.label, c.at)
				if c.label == "canceled" && (!a.out.Killed || a.out.DuringSeed != c.seed || a.out.Message != cause.Error()) && c.name != "ending the goroutine" {
					t.Errorf("got %+v, want killed, during the seed %v, message %q", a.out, c.seed, cause)
				}
			})
		})
	}
	t.Run("queued", func(t *testing.T) {
		bubble(t, 1, func(r *rig) {
			r.warm()
			hog := r.post(context.Background(), "start; finish; run 5s")
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			a := r.run(ctx, request("start"))
			r.want(a, "gaveUp", time.Second)
			if !errors.Is(a.err, context.DeadlineExceeded) {
				t.Errorf("got %v, want the context's error", a.err)
			}
			if s := r.Stats(); s.Kills != 0 || s.Running != 1 || s.Queued != 0 {
				t.Errorf("it touched a worker: %+v", s)
			}
			r.want(<-hog, "ok", 5*time.Second)
			if got := r.ledger.Counts().Evals; got != 1 {
				t.Errorf("%d evaluations, want 1", got)
			}
		})
	})
	t.Run("waiting for a cold start", func(t *testing.T) {
		bubble(t, 1, func(r *rig) {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			r.want(r.run(ctx, request("start")), "gaveUp", time.Second)
			// The worker goes on warming, for whoever comes next.
			r.want(r.run(context.Background(), request("start; finish; ok 1")), "ok", 5*time.Second)
			if got := r.ledger.Counts(); got.Starts != 1 || got.Evals != 1 {
				t.Errorf("got %+v, want 1 start and 1 evaluation", got)
			}
		}, "run 5s")
	})
}

// A worker that gets free while the caller of the next run is just leaving skips
// that run, whether or not Run has noticed the leaving yet.
func TestGoneCallerIsSkipped(t *testing.T) {
	var evals atomic.Int64
	leave := make(chan context.CancelFunc, 1)
	p, err := pool.New(func(context.Context) (engine.VM, error) {
		return evalFunc(func(_ context.Context, r engine.Request) engine.Outcome {
			if r.Script.Source == "hog" {
				(<-leave)()
			} else {
				evals.Add(1)
			}
			return engine.Outcome{Class: engine.ClassOK}
		}), nil
	}, pool.Options{Count: 1, ColdStart: time.Hour, StartupLiveness: time.Hour, KillWait: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for range 1000 {
		var wg sync.WaitGroup
		wg.Go(func() {
			if out, err := p.Run(ctx, request("hog")); name(out, err) != "ok" {
				t.Errorf("hog: got %s", name(out, err))
			}
		})
		for p.Stats().Running == 0 {
			runtime.Gosched()
		}
		gone, cancel := context.WithCancel(ctx)
		wg.Go(func() {
			if out, err := p.Run(gone, request("next")); name(out, err) != "gaveUp" {
				t.Errorf("a run whose caller has gone: got %s", name(out, err))
			}
		})
		for p.Stats().Queued == 0 {
			runtime.Gosched()
		}
		leave <- cancel
		wg.Wait()
	}
	if n := evals.Load(); n != 0 {
		t.Errorf("%d runs whose caller had gone were evaluated", n)
	}
}

// The first kill gives the verdict; what comes during KillWait changes nothing.
func TestFirstKillDecides(t *testing.T) {
	bubble(t, 1, func(r *rig) {
		r.warm()
		ctx, cancel := context.WithTimeout(ctx, wall+grace+time.Millisecond)
		defer cancel()
		r.want(r.run(ctx, request("start; late 50ms; run 1h")), "limit:wallClock", wall+grace+50*time.Millisecond)
		if s := r.Stats(); s.Kills != 1 {
			t.Errorf("%d kills, want 1", s.Kills)
		}
	})
	bubble(t, 1, func(r *rig) {
		r.warm()
		ctx, cancel := context.WithTimeout(ctx, wall+grace-time.Millisecond)
		defer cancel()
		r.want(r.run(ctx, request("start; late 50ms; run 1h")), "canceled", wall+grace+49*time.Millisecond)
	})
}

// A goroutine worker survives its kill: no compile, no boot.
func TestKilledWorkerStays(t *testing.T) {
	bubble(t, 1, func(r *rig) {
		r.warm()
		for i := range 10 {
			at := time.Since(r.began) + wall + grace
			r.want(r.run(ctx, request("start; run 1h")), "limit:wallClock", at)
			if a := r.run(ctx, request("start; finish; ok 2")); a.label != "ok" || string(a.out.Value) != "2" {
				t.Errorf("after kill %d: got %+v", i+1, a)
			}
		}
		if c := r.ledger.Counts(); c.Starts != 1 {
			t.Errorf("%d starts, want 1", c.Starts)
		}
	})
}

func TestCloseReportsWorkersThatIgnoreTheirKill(t *testing.T) {
	bubble(t, 2, func(r *rig) {
		r.warm()
		a, b := r.post(ctx, "start; finish; ignore 1h"), r.post(ctx, "start; finish; run 1h")
		queued := r.post(ctx, "start")
		var abandoned *pool.AbandonedError
		if err := r.Close(); !errors.As(err, &abandoned) || abandoned.Workers != 1 {
			t.Errorf("Close: got %v, want 1 abandoned worker", err)
		}
		r.want(<-queued, "closed", 0)
		r.want(<-b, "closed", 0)
		r.want(<-a, "closed", killWait)
		if s := r.Stats(); s.Abandoned != 1 {
			t.Errorf("got %+v, want 1 abandoned worker", s)
		}
	})
}

func TestCloseGivesAResultThatWasQuicker(t *testing.T) {
	bubble(t, 1, func(r *rig) {
		r.warm()
		a := r.post(ctx, "start; finish; ignore 50ms; ok 1")
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		r.want(<-a, "ok", 50*time.Millisecond)
	})
}

func TestSpareWorkersStandIn(t *testing.T) {
	o := pool.Options{Count: 1, Spare: 1, ColdStart: coldStart, StartupLiveness: liveness, HardKillGrace: grace, KillWait: killWait}
	bubbleWith(t, o, func(r *rig) {
		r.warm()
		r.want(r.run(ctx, request("start; fault")), "engineFault", 0)
		r.want(r.run(ctx, request("start; finish")), "ok", 0) // by the spare one: no cold start
		r.want(r.run(ctx, request("start; fault")), "engineFault", 0)
		// Both are lost now; the first replacement has been warming since 0 s.
		r.want(r.run(ctx, request("start; finish")), "ok", 5*time.Second)
		synctest.Wait()
		if s := r.Stats(); s.Starting+s.Idle != 2 {
			t.Errorf("got %+v, want 2 workers again", s)
		}
	}, "run 5s")
}

// Payloads pass by reference, both ways.
func TestPayloadsAreNotCopied(t *testing.T) {
	bubble(t, 1, func(r *rig) {
		req := request("start; finish; input")
		req.Input = make([]byte, 16<<20)
		a := r.run(ctx, req)
		if len(a.out.Value) != len(req.Input) || &a.out.Value[0] != &req.Input[0] {
			t.Error("the value is not the VM's own bytes")
		}
	})
}

// The caller's values reach the VM, its end only through the pool.
func TestVMSeesTheCallersValues(t *testing.T) {
	type key struct{}
	var got any
	var done <-chan struct{}
	p, err := pool.New(func(context.Context) (engine.VM, error) {
		return evalFunc(func(ctx context.Context, _ engine.Request) engine.Outcome {
			got, done = ctx.Value(key{}), ctx.Done()
			return engine.Outcome{Class: engine.ClassOK}
		}), nil
	}, pool.DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	caller, cancel := context.WithCancel(context.WithValue(ctx, key{}, 7))
	defer cancel()
	if _, err := p.Run(caller, engine.Request{}); err != nil {
		t.Fatal(err)
	}
	if got != 7 || done == caller.Done() {
		t.Errorf("the VM saw the value %v, and the caller's own end: %v", got, done == caller.Done())
	}
}

type evalFunc func(context.Context, engine.Request) engine.Outcome

func (f evalFunc) Eval(ctx context.Context, r engine.Request) engine.Outcome { return f(ctx, r) }
func (f evalFunc) Close() error                                              { return nil }

// Without a wall clock in the request its default counts.
func TestDefaultWallClock(t *testing.T) {
	bubble(t, 1, func(r *rig) {
		r.warm()
		req := request("start; run 1h")
		req.Limits = engine.Limits{}
		r.want(r.run(ctx, req), "limit:wallClock", engine.DefaultWallClock+grace)
	})
}
