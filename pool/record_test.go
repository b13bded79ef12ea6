package pool_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/pool"
)

// The scenarios of the decision record on worker-thread evaluation and the hard
// kill, each by name.

func TestRecordCompileIsChargedToNobody(t *testing.T) {
	bubble(t, 1, func(r *rig) {
		req := request("start; finish; ok 1")
		req.Limits.WallClock = time.Millisecond
		r.want(r.run(ctx, req), "ok", 9*time.Second)
	}, "run 9s")
	// Without any grace or liveness too: the cold start is no part of either.
	bubbleWith(t, pool.Options{Count: 1, ColdStart: coldStart}, func(r *rig) {
		r.want(r.run(ctx, request("start; finish; ok 1")), "ok", 9*time.Second)
	}, "run 9s")
}

func TestRecordTheRunRightAfterAKill(t *testing.T) {
	bubble(t, 1, func(r *rig) {
		r.want(r.run(ctx, request("start; ignore 1h")), "limit:wallClock", wall+grace+killWait)
		// The kill left a cold worker behind, and the next run pays nothing for it.
		req := request("start; finish; ok 1")
		req.Limits.WallClock = time.Millisecond
		r.want(r.run(ctx, req), "ok", wall+grace+killWait+9*time.Second)
	}, "", "run 9s")
}

func TestRecordKillLoopOnASlowHost(t *testing.T) {
	// A cold start takes longer than any run's whole window, of 210 ms.
	o := pool.Options{Count: 1, ColdStart: coldStart, HardKillGrace: 10 * time.Millisecond, StartupLiveness: wall, KillWait: killWait}
	bubbleWith(t, o, func(r *rig) {
		for i := range 20 {
			if a := r.run(ctx, request("start; ignore 1h")); a.label != "limit:wallClock" {
				t.Fatalf("kill %d: got %s: %v", i, a.label, a.err)
			}
			if a := r.run(ctx, request("start; finish; ok 1")); a.label != "ok" {
				t.Fatalf("the run after kill %d: got %s: %v", i, a.label, a.err)
			}
		}
		if s := r.Stats(); s.StartupFailures != 0 || s.Kills != 20 || s.Replaced != 20 {
			t.Errorf("got %+v, want 20 kills, 20 replacements and no failed start", s)
		}
	}, "run 9s")
}

func TestRecordSeeding16MiBIsNotCharged(t *testing.T) {
	bubble(t, 1, func(r *rig) {
		r.warm()
		req := request("seed 9s; start; run 99ms; finish; input")
		req.Input = []byte(`"` + strings.Repeat("x", 16<<20) + `"`)
		a := r.run(ctx, req)
		r.want(a, "ok", 9*time.Second+99*time.Millisecond)
		if len(a.out.Value) != len(req.Input) {
			t.Errorf("got %d bytes, want %d", len(a.out.Value), len(req.Input))
		}
	})
}

func TestRecordWorkerThatNeverStarts(t *testing.T) {
	bubble(t, 1, func(r *rig) {
		a := r.run(ctx, request("start"))
		r.want(a, "startup:compile", coldStart)
		if engine.ScriptFault(a.err) || !engine.Retryable(a.err) {
			t.Errorf("%v: must be retryable and no fault of the script", a.err)
		}
	}, "run 1h")
	bubble(t, 1, func(r *rig) {
		r.warm()
		a := r.run(ctx, request("seed 1h"))
		r.want(a, "startup:start", wall+grace+liveness)
		if engine.ScriptFault(a.err) || !engine.Retryable(a.err) {
			t.Errorf("%v: must be retryable and no fault of the script", a.err)
		}
		if s, c := r.Stats(), r.ledger.Counts(); s.Replaced != 1 || c.Closed != 1 {
			t.Errorf("the worker was not replaced: %+v, %+v", s, c)
		}
	})
}

func TestRecordWorkerDiesWhileHandingOver(t *testing.T) {
	for _, death := range []string{"panic", "exit"} {
		bubble(t, 1, func(r *rig) {
			r.warm()
			a := r.run(ctx, request("start; finish; run 1s; "+death))
			r.want(a, "engineFault", time.Second)
			if a.out.Message == "" {
				t.Error("a fault without a word")
			}
			r.want(r.run(ctx, request("start; finish; ok 1")), "ok", time.Second)
			if s := r.Stats(); s.Replaced != 1 || s.Kills != 0 {
				t.Errorf("got %+v, want 1 replacement and no kill", s)
			}
		})
	}
}

// sandbox is the policy over the rig's pool, with one script.
func (r *rig) sandbox(retry int) *engine.Sandbox {
	r.t.Helper()
	store := new(engine.MemoryStore)
	for ref, source := range map[string]string{"good": "start; finish; ok 1", "big": strings.Repeat(" ", 200)} {
		if err := store.Put(ref, engine.Script{Source: source}); err != nil {
			r.t.Fatal(err)
		}
	}
	s, err := engine.NewSandbox(r, engine.Spec{
		Limits:  engine.Limits{MaxInputBytes: 100, MaxScriptBytes: 100, WallClock: wall},
		Scripts: store,
		Retry:   &engine.Retry{Max: retry},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

func TestRecordRefusedCallsNeverTouchAWorker(t *testing.T) {
	bubble(t, 1, func(r *rig) {
		s := r.sandbox(2)
		for label, c := range map[string]engine.Call{
			"inputNotSerializable": {ScriptRef: "good", Input: make(chan int)},
			"inputTooLarge":        {ScriptRef: "good", Input: strings.Repeat("x", 99)}, // 101 with its quotes
			"scriptMissing":        {ScriptRef: "none"},
			"scriptTooLarge":       {ScriptRef: "big"},
		} {
			res, err := s.Eval(ctx, c)
			if got, _ := engine.Describe(err); got != label || res.Attempts != 0 {
				t.Errorf("got %s after %d attempts, want %s after none", got, res.Attempts, label)
			}
		}
		if s, c := r.Stats(), r.ledger.Counts(); s.Submitted != 0 || c.Starts != 0 {
			t.Errorf("refused calls touched a worker: %+v, %+v", s, c)
		}
		if _, err := s.Eval(ctx, engine.Call{ScriptRef: "good", Input: strings.Repeat("x", 98)}); err != nil {
			t.Errorf("an input of the very limit: %v", err)
		}
	})
}

func TestRecordRetryOfStartupFailuresOnly(t *testing.T) {
	for _, c := range []struct {
		name, script, label string
		attempts            int
		starts              []string
	}{
		{"compile fails twice", "start; finish; ok 1", "ok", 3, []string{"error", "run 1h", ""}},
		{"compile fails for ever", "start; finish; ok 1", "startup", 3, []string{"error"}},
		{"the script never starts", "seed 1h", "startup", 3, nil},
		{"the script's error", "start; class error", "error", 1, nil},
		{"hard kill", "start; run 1h", "limit:wallClock", 1, nil},
		{"ignored hard kill", "start; ignore 1h", "limit:wallClock", 1, nil},
		{"seeding overflows", "class inputTooLarge", "inputTooLarge", 1, nil},
		{"fault", "start; fault", "engineFault", 1, nil},
		{"panic", "panic", "engineFault", 1, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, 1, func(r *rig) {
				res, err := r.sandbox(2).Eval(ctx, engine.Call{Script: engine.Script{Source: c.script}})
				if label, _ := engine.Describe(err); label != c.label || res.Attempts != c.attempts {
					t.Errorf("got %s after %d attempts, want %s after %d: %v", label, res.Attempts, c.label, c.attempts, err)
				}
			}, c.starts...)
		})
	}
	t.Run("closed", func(t *testing.T) {
		bubble(t, 1, func(r *rig) {
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			res, err := r.sandbox(2).Eval(ctx, engine.Call{ScriptRef: "good"})
			if !errors.Is(err, engine.ErrClosed) || res.Attempts != 1 {
				t.Errorf("got %v after %d attempts, want ErrClosed after 1", err, res.Attempts)
			}
		})
	})
}

// With several things wrong the caller's fault is reported before the host's,
// the input's before the script's.
func TestRecordPrecedenceOfFailures(t *testing.T) {
	bubble(t, 1, func(r *rig) {
		s := r.sandbox(0) // over a pool that cannot start a worker
		large, bad := strings.Repeat("x", 200), make(chan int)
		for _, c := range []struct {
			call  engine.Call
			label string
		}{
			{engine.Call{ScriptRef: "none", Input: bad}, "inputNotSerializable"},
			{engine.Call{ScriptRef: "none", Input: large}, "inputTooLarge"},
			{engine.Call{ScriptRef: "none"}, "scriptMissing"},
			{engine.Call{ScriptRef: "big", Input: large}, "inputTooLarge"},
			{engine.Call{ScriptRef: "big"}, "scriptTooLarge"},
			{engine.Call{ScriptRef: "good"}, "startup"},
		} {
			_, err := s.Eval(ctx, c.call)
			if got, _ := engine.Describe(err); got != c.label {
				t.Errorf("ref %s: got %s, want %s", c.call.ScriptRef, got, c.label)
			}
		}
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if got := r.run(ended, request("start")); got.label != "gaveUp" {
			t.Errorf("an ended context over a pool that cannot start: got %s, want gaveUp", got.label)
		}
	}, "error")
}

// Limits that only the engine knows to be impossible are refused like any other:
// without a worker.
func TestCheckLimitsRefusesBeforeAWorker(t *testing.T) {
	refuse := &engine.LimitError{Field: "Fuel", Value: 1, Allowed: "no"}
	options := pool.DefaultOptions()
	options.CheckLimits = func(l engine.Limits) error {
		if l.Fuel > 0 {
			return refuse
		}
		return nil
	}
	p, err := pool.New(func(context.Context) (engine.VM, error) {
		t.Error("a refused run made a worker")
		return nil, errors.New("no")
	}, options)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Run(t.Context(), engine.Request{Limits: engine.Limits{Fuel: 1}}); !errors.Is(err, refuse) {
		t.Errorf("got %v, want %v", err, refuse)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
