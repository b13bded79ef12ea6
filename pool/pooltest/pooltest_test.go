package pooltest_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/pool"
	"github.com/sandbed/sandbed/pool/pooltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func goroutines(o pool.Options, start string) (pooltest.Pool, error) {
	return pool.New(pooltest.NewVM(nil, start), o)
}

func TestGoroutinePool(t *testing.T) { pooltest.Run(t, goroutines) }

func TestGoroutinePoolInVirtualTime(t *testing.T) { pooltest.RunVirtual(t, goroutines) }

// broken is a pool with one fault, laid over a good one.
type broken struct {
	pooltest.Pool
	run   func(good pooltest.Pool, ctx context.Context, r engine.Request) (engine.Outcome, error)
	drain func(good pooltest.Pool, ctx context.Context) error
	stats func(*pool.Stats)
}

func (b broken) Run(ctx context.Context, r engine.Request) (engine.Outcome, error) {
	if b.run == nil {
		return b.Pool.Run(ctx, r)
	}
	return b.run(b.Pool, ctx, r)
}

func (b broken) Drain(ctx context.Context) error {
	if b.drain == nil {
		return b.Pool.Drain(ctx)
	}
	return b.drain(b.Pool, ctx)
}

func (b broken) Stats() pool.Stats {
	s := b.Pool.Stats()
	if b.stats != nil {
		b.stats(&s)
	}
	return s
}

// The suite must find every one of these, by the laws named at least.
func TestSuiteFindsBrokenPools(t *testing.T) {
	for name, c := range map[string]struct {
		options func(*pool.Options)
		broken  broken
		laws    []string
	}{
		"judges start and seeding by the run's window": {
			broken: broken{run: func(good pooltest.Pool, ctx context.Context, r engine.Request) (engine.Outcome, error) {
				ctx, cancel := context.WithTimeout(ctx, r.Limits.WallClock+500*time.Millisecond)
				defer cancel()
				return good.Run(ctx, r)
			}},
			laws: []string{"coldStartUncharged", "seedingUncharged"},
		},
		"does not hear its caller": {
			broken: broken{run: func(good pooltest.Pool, ctx context.Context, r engine.Request) (engine.Outcome, error) {
				return good.Run(context.WithoutCancel(ctx), r)
			}},
			laws: []string{"cancelWhileRunning", "cancelWhileSeeding", "count", "firstCome", "refused"},
		},
		"answers before its worker is free": {
			broken: broken{run: func(good pooltest.Pool, ctx context.Context, r engine.Request) (engine.Outcome, error) {
				type result struct {
					out engine.Outcome
					err error
				}
				done := make(chan result, 1)
				go func() {
					out, err := good.Run(ctx, r)
					done <- result{out, err}
				}()
				select {
				case a := <-done:
					return a.out, a.err
				case <-time.After(r.Limits.WallClock + time.Millisecond):
					return engine.Outcome{Class: engine.ClassLimit, Guard: engine.WallClock, Killed: true}, nil
				}
			}},
			laws: []string{"kills"},
		},
		"blames the script for a failed start": {
			broken: broken{run: func(good pooltest.Pool, ctx context.Context, r engine.Request) (engine.Outcome, error) {
				out, err := good.Run(ctx, r)
				var startup *engine.WorkerStartupError
				if errors.As(err, &startup) {
					return engine.Outcome{Class: engine.ClassLimit, Guard: engine.WallClock, Killed: true}, nil
				}
				return out, err
			}},
			laws: []string{"failedStart", "slowStart", "neverStarts", "startPanics"},
		},
		"cuts results": {
			broken: broken{run: func(good pooltest.Pool, ctx context.Context, r engine.Request) (engine.Outcome, error) {
				out, err := good.Run(ctx, r)
				out.Value = out.Value[:min(len(out.Value), 256<<10-1)]
				return out, err
			}},
			laws: []string{"answers", "input"},
		},
		"drains by closing": {
			broken: broken{drain: func(good pooltest.Pool, ctx context.Context) error { return good.Close() }},
			laws:   []string{"drain"},
		},
		"loses count of its runs": {
			broken: broken{stats: func(s *pool.Stats) { delete(s.Settled, "ok") }},
			laws:   []string{"answers", "kills"},
		},
		"loses count of its workers": {
			broken: broken{stats: func(s *pool.Stats) { s.Leaving++ }},
			laws:   []string{"answers"},
		},
		"has one worker, whatever Count says": {options: func(o *pool.Options) { o.Count = 1 }, laws: []string{"count"}},
		"has no spare workers":                {options: func(o *pool.Options) { o.Spare = 0 }, laws: []string{"warm", "spare"}},
		"has no bound for its queue":          {options: func(o *pool.Options) { o.MaxQueue = 0 }, laws: []string{"queueBound"}},
		"never kills":                         {options: func(o *pool.Options) { o.HardKillGrace = 24 * time.Hour }, laws: []string{"hardKill", "kills"}},
		"waits for a start for ever":          {options: func(o *pool.Options) { o.ColdStart = 24 * time.Hour }, laws: []string{"slowStart"}},
		"gives no time to start":              {options: func(o *pool.Options) { o.StartupLiveness = 0; o.HardKillGrace = 0 }, laws: []string{"seedingUncharged"}},
		"waits for a killed worker for ever":  {options: func(o *pool.Options) { o.KillWait = 24 * time.Hour }, laws: []string{"ignoredKill"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				found := map[string]error{}
				for _, f := range pooltest.Check(func(o pool.Options, start string) (pooltest.Pool, error) {
					if c.options != nil {
						c.options(&o)
					}
					good, err := goroutines(o, start)
					b := c.broken
					b.Pool = good
					return b, err
				}, 3*time.Hour) {
					found[f.Law] = f.Err
				}
				for _, law := range c.laws {
					if found[law] == nil {
						t.Errorf("law %s let it pass; found by %v", law, slices.Sorted(maps.Keys(found)))
					}
				}
				// What is left behind on purpose ends before the bubble does.
				time.Sleep(2 * time.Hour)
			})
		})
	}
}
