package pool

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandbed/sandbed/engine"
)

// mortal is a worker that can die by itself.
type mortal struct {
	death  chan struct{}
	script func(ctx context.Context, r engine.Request) (engine.Outcome, error)
	closed *int
}

func (w *mortal) warm(context.Context) error { return nil }
func (w *mortal) eval(ctx context.Context, r engine.Request) (engine.Outcome, error) {
	return w.script(ctx, r)
}
func (w *mortal) died() <-chan struct{} { return w.death }
func (w *mortal) close() error          { *w.closed++; return nil }

func mortals(t *testing.T, script func(context.Context, engine.Request) (engine.Outcome, error)) (p *Pool, made *[]*mortal, closed, ended *int) {
	t.Helper()
	made, closed, ended = new([]*mortal), new(int), new(int)
	p, err := newPool(kind{
		newWorker: func() worker {
			w := &mortal{make(chan struct{}), script, closed}
			*made = append(*made, w)
			return w
		},
		close: func() error { *ended++; return nil },
	}, Options{Count: 1, ColdStart: time.Hour, StartupLiveness: time.Hour, HardKillGrace: time.Second, KillWait: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return p, made, closed, ended
}

func TestIdleWorkerThatDiesIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, made, closed, ended := mortals(t, func(context.Context, engine.Request) (engine.Outcome, error) {
			return engine.Outcome{Class: engine.ClassOK}, nil
		})
		if err := p.Warm(t.Context()); err != nil {
			t.Fatal(err)
		}
		close((*made)[0].death)
		synctest.Wait()
		if s := p.Stats(); s.Replaced != 1 || s.Idle != 1 || s.Leaving != 0 || len(*made) != 2 || *closed != 1 {
			t.Errorf("got %+v, %d made, %d closed; want a new idle worker in place of the closed one", s, len(*made), *closed)
		}
		if out, err := p.Run(t.Context(), engine.Request{}); out.Class != engine.ClassOK || err != nil {
			t.Errorf("the next run: got %+v, %v", out, err)
		}
		for range 2 {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
		if *closed != 2 || *ended != 1 {
			t.Errorf("%d of 2 workers closed, the kind closed %d times, want once", *closed, *ended)
		}
	})
}

// What a death means depends on how far the run was, and on who killed it.
func TestWorkerDeath(t *testing.T) {
	dead := errors.New("signal: killed")
	for _, c := range []struct {
		name          string
		start, finish bool
		wait          bool // dies of its kill, not by itself
		cancel        bool
		label         string
	}{
		{name: "before the start", label: SettledStart},
		{name: "running", start: true, label: "engineFault"},
		{name: "handing over", start: true, finish: true, label: "engineFault"},
		{name: "of the start kill", wait: true, label: SettledStart},
		{name: "of the hard kill", start: true, wait: true, label: "limit:wallClock"},
		{name: "of the caller's kill while starting", wait: true, cancel: true, label: "canceled"},
		{name: "of the caller's kill", start: true, wait: true, cancel: true, label: "canceled"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, made, closed, _ := mortals(t, func(ctx context.Context, r engine.Request) (engine.Outcome, error) {
					if c.start {
						r.OnScriptStart(time.Now())
					}
					if c.finish {
						r.OnFinished(time.Now())
					}
					if c.wait {
						<-ctx.Done()
					}
					return engine.Outcome{}, dead
				})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.cancel {
					time.AfterFunc(time.Millisecond, cancel)
				}
				out, err := p.Run(ctx, engine.Request{})
				if got := label(out, err); got != c.label {
					t.Errorf("got %s, want %s: %+v, %v", got, c.label, out, err)
				}
				if err != nil && !c.wait && !errors.Is(err, dead) {
					t.Errorf("%v does not tell of the death", err)
				}
				if out.Killed != (c.wait && err == nil) {
					t.Errorf("killed is %v", out.Killed)
				}
				synctest.Wait()
				if s := p.Stats(); s.Replaced != 1 || len(*made) != 2 || *closed != 1 {
					t.Errorf("got %+v, %d made, %d closed; want it replaced", s, len(*made), *closed)
				}
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
