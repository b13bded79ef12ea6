package pooltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/pool"
)

var laws = []law{
	{"answers", "a run gives the very value of its VM, small and large, and counts as ok", func(t *trial) error {
		if err := t.make(options(2), ""); err != nil {
			return err
		}
		for _, n := range []int{2, 4095, 4096, 4097, 256<<10 - 1, 256 << 10, 1<<20 + 1} {
			r := t.request(fmt.Sprintf("start; finish; big %d", n), time.Hour)
			r.Limits.MaxOutputBytes = int64(n)
			out, err := t.pool.Run(context.Background(), r)
			a := answer{out, err}
			if a.label() != "ok" || len(a.out.Value) != n {
				return fmt.Errorf("a value of %d bytes: got %v of %d bytes", n, a, len(a.out.Value))
			}
		}
		return nil
	}},

	{"input", "the VM sees the very bytes of the input", func(t *trial) error {
		if err := t.make(options(1), ""); err != nil {
			return err
		}
		for _, n := range []int{2, 4096, 256<<10 - 1, 256 << 10, 1<<20 + 1} {
			r := t.request("start; finish; input", time.Hour)
			r.Input = []byte(`"` + strings.Repeat("é", n/2-1) + strings.Repeat("y", n%2) + `"`)
			r.Limits.MaxOutputBytes = int64(len(r.Input))
			out, err := t.pool.Run(context.Background(), r)
			if err != nil || !bytes.Equal(out.Value, r.Input) {
				return fmt.Errorf("an input of %d bytes: got %v of %d bytes back", len(r.Input), answer{out, err}, len(out.Value))
			}
		}
		return nil
	}},

	{"outcomes", "outcomes of every class cross unchanged, those that cannot be true as engine faults", func(t *trial) error {
		if err := t.make(options(1), ""); err != nil {
			return err
		}
		for script, label := range map[string]string{
			"start; class error":                 "error",
			"start; class resultNotSerializable": "resultNotSerializable",
			"class inputTooLarge":                "inputTooLarge",
			"start; class limit fuel":            "limit:fuel",
			"start; class limit memory":          "limit:memory",
			"start; class limit wallClock":       "limit:wallClock",
			"start; fault":                       "engineFault",
			"start; class limit":                 "engineFault",
			"start; class limit patience":        "engineFault",
			"start; class canceled":              "engineFault", // nobody cancelled it
			"start; class great":                 "engineFault",
			"start; class":                       "engineFault",
		} {
			if err := want(script, t.run(script, time.Hour), label); err != nil {
				return err
			}
		}
		return t.serves()
	}},

	{"count", "no more runs than Count are served at a time, and as many as that are", func(t *trial) error {
		if err := t.make(options(2), ""); err != nil {
			return err
		}
		var calls []call
		for range 6 {
			calls = append(calls, t.begin("start; run 1h"))
		}
		err := t.until("2 runs served and 4 queued", func(s pool.Stats) bool { return s.Running == 2 && s.Queued == 4 })
		if err != nil {
			return err
		}
		for _, c := range calls {
			c.cancel()
		}
		labels := map[string]int{}
		for _, c := range calls {
			labels[t.wait(c).label()]++
		}
		// A queued run may still get a worker that its neighbour has just freed.
		if labels["canceled"] < 2 || labels["canceled"]+labels["gaveUp"] != 6 {
			return fmt.Errorf("after cancelling all: got %v, want at least 2 canceled and the rest gaveUp", labels)
		}
		return t.serves()
	}},

	{"firstCome", "queued runs are served in the order in which they came, without those whose caller has gone", func(t *trial) error {
		if err := t.make(options(1), ""); err != nil {
			return err
		}
		hog := t.begin("start; run 1h")
		if err := t.begun(hog); err != nil {
			return err
		}
		var mu sync.Mutex
		var order []int
		var calls []call
		for i := range 6 {
			ctx, cancel := context.WithCancel(context.Background())
			c := call{cancel: cancel, answer: make(chan answer, 1)}
			r := t.request("start; finish", time.Hour)
			r.OnScriptStart = func(time.Time) { mu.Lock(); order = append(order, i); mu.Unlock() }
			t.wg.Go(func() {
				out, err := t.pool.Run(ctx, r)
				c.answer <- answer{out, err}
			})
			calls = append(calls, c)
			if err := t.until("queued", func(s pool.Stats) bool { return s.Queued == i+1 }); err != nil {
				return err
			}
		}
		for _, i := range []int{0, 3, 5} {
			calls[i].cancel()
			if err := want("a cancelled queued run", t.wait(calls[i]), "gaveUp"); err != nil {
				return err
			}
		}
		if s := t.pool.Stats(); s.Running != 1 || s.Queued != 3 || s.Kills != 0 {
			return fmt.Errorf("cancelling queued runs touched a worker: %+v", s)
		}
		hog.cancel()
		for _, i := range []int{1, 2, 4} {
			if err := want("a queued run", t.wait(calls[i]), "ok"); err != nil {
				return err
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(order, []int{1, 2, 4}) {
			return fmt.Errorf("served in the order %v, want [1 2 4]", order)
		}
		return nil
	}},

	{"queueBound", "MaxQueue runs wait, cold or warm, and the next is refused with ErrQueueFull", func(t *trial) error {
		o := options(2)
		o.MaxQueue = 3
		if err := t.make(o, "run 100ms"); err != nil {
			return err
		}
		var calls []call
		for i := range 5 {
			calls = append(calls, t.begin("start; run 1h"))
			if err := t.until("taken in", func(s pool.Stats) bool { return s.Submitted == int64(i+1) }); err != nil {
				return err
			}
		}
		for range 2 { // mostly while the workers start, then when they have started
			if err := want("run 6 of 2 + 3", t.run("start", time.Hour), "queueFull"); err != nil {
				return err
			}
			if err := t.until("busy", func(s pool.Stats) bool { return s.Running == 2 && s.Queued == 3 }); err != nil {
				return err
			}
		}
		for _, c := range calls {
			c.cancel()
		}
		for _, c := range calls {
			if err := want("a cancelled run", t.wait(c), "canceled", "gaveUp"); err != nil {
				return err
			}
		}
		return t.serves()
	}},

	{"refused", "a run with an ended context or invalid limits touches no worker", func(t *trial) error {
		if err := t.make(options(1), ""); err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		out, err := t.pool.Run(ctx, t.request("start", time.Hour))
		if err := want("an ended context", answer{out, err}, "gaveUp"); err != nil {
			return err
		}
		var limit *engine.LimitError
		if a := t.run("start", -time.Second); !errors.As(a.err, &limit) || limit.Field != "WallClock" {
			return fmt.Errorf("a wall clock of -1s: got %v, want a LimitError for WallClock", a)
		}
		if s := t.pool.Stats(); s.Starting+s.Idle+s.Running != 0 || s.Submitted != 0 {
			return fmt.Errorf("a refused run touched a worker: %+v", s)
		}
		return nil
	}},

	{"cancelWhileSeeding", "a caller may end its run while the input is parsed, and the pool serves on", func(t *trial) error {
		if err := t.make(options(1), ""); err != nil {
			return err
		}
		c := t.begin("seed 1h; start")
		if err := t.until("running", func(s pool.Stats) bool { return s.Running == 1 }); err != nil {
			return err
		}
		c.cancel()
		a := t.wait(c)
		if a.label() != "canceled" || !a.out.Killed || !a.out.DuringSeed {
			return fmt.Errorf("got %v, want canceled, killed, during the seed", a)
		}
		return t.serves()
	}},

	{"cancelWhileRunning", "a caller may end its running script, and the pool serves on", func(t *trial) error {
		if err := t.make(options(1), ""); err != nil {
			return err
		}
		c := t.begin("start; run 1h")
		if err := t.begun(c); err != nil {
			return err
		}
		c.cancel()
		a := t.wait(c)
		if a.label() != "canceled" || !a.out.Killed || a.out.DuringSeed {
			return fmt.Errorf("got %v, want canceled, killed, not during the seed", a)
		}
		return t.serves()
	}},

	{"hardKill", "a script that outlasts wall clock and grace is killed and ends as limit:wallClock, whatever instant its VM reports", func(t *trial) error {
		o := options(1)
		o.HardKillGrace = 20 * time.Millisecond
		if err := t.make(o, ""); err != nil {
			return err
		}
		for _, script := range []string{
			"start; run 1h", "start 1h; run 1h", "start -1h; run 1h",
			"start; start; start; run 1h", "finish; start; run 1h", // a finished mark before the start means nothing
		} {
			a := t.run(script, time.Millisecond)
			if a.label() != "limit:wallClock" || !a.out.Killed || a.out.Value != nil || a.out.Usage.Overrun <= 0 {
				return fmt.Errorf("%s: got %v, overrun %v, want limit:wallClock, killed, no value, an overrun", script, a, a.out.Usage.Overrun)
			}
			// The grace must not strike a healthy run on a slow host.
			if a := t.run("start; finish; ok 2", time.Minute); a.label() != "ok" {
				return fmt.Errorf("after %s: got %v, want ok", script, a)
			}
		}
		return nil
	}},

	{"kills", "kills are counted once each, and a worker is free when its caller is answered", func(t *trial) error {
		o := options(1)
		o.HardKillGrace = 0
		if err := t.make(o, ""); err != nil {
			return err
		}
		for i := range 5 {
			if err := want("a run without end", t.run("start; late 5ms; run 1h", time.Millisecond), "limit:wallClock"); err != nil {
				return err
			}
			s := t.pool.Stats()
			if s.Kills != int64(i+1) || s.Running != 0 || s.Starting+s.Idle != 1 || s.AbandonedEver != 0 {
				return fmt.Errorf("after kill %d: %+v", i+1, s)
			}
		}
		return t.serves()
	}},

	{"ignoredKill", "a worker that does not come back from its kill holds up nobody beyond KillWait", func(t *trial) error {
		o := options(1)
		o.HardKillGrace, o.KillWait = 0, 10*time.Millisecond
		if err := t.make(o, ""); err != nil {
			return err
		}
		for i := range 3 {
			a := t.run("start; ignore 300ms", time.Millisecond)
			if a.label() != "limit:wallClock" || !a.out.Killed {
				return fmt.Errorf("got %v, want limit:wallClock, killed", a)
			}
			// Abandoned or dead, it must be replaced: a worker that was waited for is not.
			if s := t.pool.Stats(); s.Replaced != int64(i+1) {
				return fmt.Errorf("after %d ignored kills: %+v", i+1, s)
			}
		}
		return t.serves()
	}},

	{"neverStarts", "a ready worker that does not arm the VM's clock in time gives WorkerStartupError, phase start, and is replaced", func(t *trial) error {
		o := options(1)
		o.HardKillGrace, o.StartupLiveness = 0, 20*time.Millisecond
		if err := t.make(o, ""); err != nil {
			return err
		}
		for i, script := range []string{"seed 1h", "run 1h; start", "seed 1h; start; finish"} {
			if err := want(script, t.run(script, time.Millisecond), "startup:start"); err != nil {
				return err
			}
			if s := t.pool.Stats(); s.Replaced != int64(i+1) || s.StartupFailures != int64(i+1) {
				return fmt.Errorf("after %d failed starts: %+v", i+1, s)
			}
		}
		return t.serves()
	}},

	{"seedingUncharged", "what happens before the VM's clock is armed is not charged to the script", func(t *trial) error {
		o := options(1)
		o.HardKillGrace = 500 * time.Millisecond
		if err := t.make(o, ""); err != nil {
			return err
		}
		return want("seeding for longer than wall clock and grace", t.run("seed 800ms; start; finish; ok 1", time.Millisecond), "ok")
	}},

	{"handOverUncharged", "what happens after the finished mark is not charged to the script", func(t *trial) error {
		o := options(1)
		o.HardKillGrace = 500 * time.Millisecond
		if err := t.make(o, ""); err != nil {
			return err
		}
		return want("handing over for longer than wall clock and grace", t.run("start; finish; ignore 800ms; ok 1", time.Millisecond), "ok")
	}},

	{"coldStartUncharged", "no run's window judges a cold start", func(t *trial) error {
		o := options(1)
		o.HardKillGrace, o.StartupLiveness = 100*time.Millisecond, 400*time.Millisecond
		if err := t.make(o, "run 800ms"); err != nil {
			return err
		}
		return want("a run on a worker that is slow to start", t.run("start; finish; ok 1", time.Millisecond), "ok")
	}},

	{"failedStart", "workers that cannot start give WorkerStartupError, phase compile, to all who wait, and each new call tries again", func(t *trial) error {
		if err := t.make(options(2), "error"); err != nil {
			return err
		}
		for range 3 {
			if err := want("Warm", answer{err: t.pool.Warm(context.Background())}, "startup:compile"); err != nil {
				return err
			}
			if err := want("a run", t.run("start", time.Hour), "startup:compile"); err != nil {
				return err
			}
		}
		if s := t.pool.Stats(); s.StartupFailures < 6 || s.Queued != 0 {
			return fmt.Errorf("after 6 calls: %+v", s)
		}
		return nil
	}},

	{"slowStart", "a worker that is not ready within ColdStart gives WorkerStartupError, phase compile, to all who wait", func(t *trial) error {
		o := options(1)
		o.ColdStart = 50 * time.Millisecond
		if err := t.make(o, "run 1h"); err != nil {
			return err
		}
		var calls []call
		for range 3 {
			calls = append(calls, t.begin("start"))
		}
		for _, c := range calls {
			if err := want("a run", t.wait(c), "startup:compile"); err != nil {
				return err
			}
		}
		return want("Warm", answer{err: t.pool.Warm(context.Background())}, "startup:compile")
	}},

	{"warm", "Warm readies every worker, spare ones too", func(t *trial) error {
		o := options(2)
		o.Spare = 1
		if err := t.make(o, "run 5ms"); err != nil {
			return err
		}
		if err := t.pool.Warm(context.Background()); err != nil {
			return fmt.Errorf("warming: %w", err)
		}
		if s := t.pool.Stats(); s.Idle != 3 || s.Starting != 0 {
			return fmt.Errorf("after Warm: %+v, want 3 idle", s)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := t.pool.Warm(ctx); err != nil {
			return fmt.Errorf("warming a warm pool: %w", err)
		}
		return t.serves()
	}},

	{"warmGivenUp", "Warm returns when its context ends, and the workers go on warming", func(t *trial) error {
		if err := t.make(options(1), "run 300ms"); err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := t.pool.Warm(ctx); !errors.Is(err, context.Canceled) {
			return fmt.Errorf("warming with an ended context: got %v, want context.Canceled", err)
		}
		return t.until("ready", func(s pool.Stats) bool { return s.Idle == 1 && s.StartupFailures == 0 })
	}},

	{"spare", "a spare worker stands in for a lost one without a cold start, and is made good", func(t *trial) error {
		o := options(1)
		o.Spare = 1
		if err := t.make(o, ""); err != nil {
			return err
		}
		if err := t.pool.Warm(context.Background()); err != nil {
			return err
		}
		if err := want("a fault", t.run("start; fault", time.Hour), "engineFault"); err != nil {
			return err
		}
		if s := t.pool.Stats(); s.Idle < 1 || s.Starting+s.Idle != 2 || s.Replaced != 1 {
			return fmt.Errorf("when the fault was answered: %+v, want a spare worker idle and 2 in all", s)
		}
		a, b := t.begin("start; run 1h"), t.begin("start; run 1h")
		err := t.until("one running, one queued, one idle", func(s pool.Stats) bool { return s.Running == 1 && s.Queued == 1 && s.Idle == 1 })
		a.cancel()
		b.cancel()
		return err
	}},

	{"panics", "a VM that panics or ends its goroutine, at any phase, answers its run as the host's fault and is replaced", func(t *trial) error {
		if err := t.make(options(1), ""); err != nil {
			return err
		}
		for i, script := range []string{"panic", "exit", "start; panic", "start; exit", "start; finish; panic", "start; finish; exit"} {
			labels := []string{"engineFault"}
			if i < 2 { // nothing of the script ran, so a worker that died may also be a failed start
				labels = append(labels, "startup:start")
			}
			if err := want(script, t.run(script, time.Hour), labels...); err != nil {
				return err
			}
			if s := t.pool.Stats(); s.Replaced != int64(i+1) {
				return fmt.Errorf("%s: the worker was not replaced: %+v", script, s)
			}
			if err := t.serves(); err != nil {
				return fmt.Errorf("%s: %w", script, err)
			}
		}
		return nil
	}},

	{"startPanics", "a worker that panics or ends its goroutine while it starts gives WorkerStartupError, phase compile", func(t *trial) error {
		for _, start := range []string{"panic", "exit", "nil"} {
			if err := t.make(options(1), start); err != nil {
				return err
			}
			if err := want(start, t.run("start", time.Hour), "startup:compile"); err != nil {
				return err
			}
			if err := t.end(); err != nil {
				return fmt.Errorf("%s: %w", start, err)
			}
		}
		return nil
	}},

	{"flood", "marks that are reported again and again do no harm", func(t *trial) error {
		if err := t.make(options(1), ""); err != nil {
			return err
		}
		starts, finishes := 0, 0
		r := t.request("flood 1000; ok 1", time.Hour)
		r.OnScriptStart = func(time.Time) { starts++ }
		r.OnFinished = func(time.Time) { finishes++ }
		out, err := t.pool.Run(context.Background(), r)
		if err := want("flood", answer{out, err}, "ok"); err != nil {
			return err
		}
		if starts != 1 || finishes != 1 {
			return fmt.Errorf("the caller was told of %d starts and %d finished marks, want 1 each", starts, finishes)
		}
		return t.serves()
	}},

	{"close", "Close kills what runs, answers all with ErrClosed, and every call after it", func(t *trial) error {
		if err := t.make(options(2), ""); err != nil {
			return err
		}
		var calls []call
		for range 5 {
			calls = append(calls, t.begin("start; run 1h"))
		}
		if err := t.until("busy", func(s pool.Stats) bool { return s.Running == 2 && s.Queued == 3 }); err != nil {
			return err
		}
		if err := t.pool.Close(); err != nil {
			return fmt.Errorf("closing: %w", err)
		}
		for _, c := range calls {
			if err := want("a run that Close ended", t.wait(c), "closed"); err != nil {
				return err
			}
		}
		ctx := context.Background()
		for what, err := range map[string]error{"Run": t.run("start", time.Hour).err, "Warm": t.pool.Warm(ctx)} {
			if !errors.Is(err, engine.ErrClosed) {
				return fmt.Errorf("%s after Close: got %v, want ErrClosed", what, err)
			}
		}
		if err := errors.Join(t.pool.Close(), t.pool.Drain(ctx)); err != nil {
			return fmt.Errorf("closing and draining after Close: %w", err)
		}
		return nil
	}},

	{"closeWhileWarming", "Close ends a start that goes on, and answers who waits for it with ErrClosed", func(t *trial) error {
		if err := t.make(options(1), "run 1h"); err != nil {
			return err
		}
		c := t.begin("start")
		warm := make(chan error, 1)
		t.wg.Go(func() { warm <- t.pool.Warm(context.Background()) })
		if err := t.until("warming", func(s pool.Stats) bool { return s.Starting == 1 && s.Queued == 1 }); err != nil {
			return err
		}
		if err := t.pool.Close(); err != nil {
			return fmt.Errorf("closing: %w", err)
		}
		return first(
			func() error { return want("the run", t.wait(c), "closed") },
			func() error { return want("Warm", answer{err: <-warm}, "closed") },
		)
	}},

	{"drain", "Drain refuses new runs, lets those running and queued finish, then closes", func(t *trial) error {
		if err := t.make(options(1), ""); err != nil {
			return err
		}
		hog := t.begin("start; run 1h")
		if err := t.begun(hog); err != nil {
			return err
		}
		calls := []call{t.begin("start; finish; ok 1"), t.begin("start; finish; ok 1")}
		if err := t.until("queued", func(s pool.Stats) bool { return s.Queued == 2 }); err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := t.pool.Drain(ctx); !errors.Is(err, context.Canceled) {
			return fmt.Errorf("draining with an ended context: got %v, want context.Canceled", err)
		}
		if err := want("a run after Drain", t.run("start", time.Hour), "closed"); err != nil {
			return err
		}
		drained := make(chan error, 1)
		t.wg.Go(func() { drained <- t.pool.Drain(context.Background()) })
		hog.cancel()
		if err := want("the run that was cancelled", t.wait(hog), "canceled"); err != nil {
			return err
		}
		for _, c := range calls {
			if err := want("a run that was queued when Drain was called", t.wait(c), "ok"); err != nil {
				return err
			}
		}
		if err := <-drained; err != nil {
			return fmt.Errorf("draining: %w", err)
		}
		if s := t.pool.Stats(); s.Kills != 1 || s.Idle+s.Starting+s.Running != 0 {
			return fmt.Errorf("after Drain: %+v", s)
		}
		return nil
	}},

	{"drainReplaces", "Drain finishes the queue even when its worker is lost", func(t *trial) error {
		if err := t.make(options(1), ""); err != nil {
			return err
		}
		a, b := t.begin("start; run 50ms; fault"), t.begin("start; run 50ms; fault")
		if err := t.until("taken in", func(s pool.Stats) bool { return s.Submitted == 2 }); err != nil {
			return err
		}
		if err := t.pool.Drain(context.Background()); err != nil {
			return fmt.Errorf("draining: %w", err)
		}
		return first(
			func() error { return want("the first", t.wait(a), "engineFault") },
			func() error { return want("the second", t.wait(b), "engineFault") },
		)
	}},
}
