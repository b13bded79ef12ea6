package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sandbed/sandbed/bench"
	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/engine/quickjs"
	"github.com/sandbed/sandbed/pool"
)

// Scenarios of the decision record on the worker pool, with real engines and
// real processes. Package pool has all of them in virtual time, with a VM that
// does as it is told; here are those in which a real compile and a real kill
// could show something else. Time is measured in compiles of this very machine.

// testWorkerVM is workerVM with one more argument: a path, whose absence makes
// the first start fail.
func testWorkerVM(ctx context.Context, b pool.Boot) (engine.VM, error) {
	if len(b.Args) > 2 {
		if _, err := os.Stat(b.Args[2]); err != nil {
			if err := os.WriteFile(b.Args[2], nil, 0o600); err != nil {
				return nil, err
			}
			return nil, errors.New("this worker fails to start once")
		}
		b.Args = b.Args[:2]
	}
	return workerVM(ctx, b)
}

// compileTime is how long an engine takes to start without compiled code.
func compileTime(t *testing.T) time.Duration {
	t.Helper()
	start := time.Now()
	e, err := quickjs.New(t.Context(), quickjs.Config{CacheDir: t.TempDir()})
	took := time.Since(start)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	return took
}

// tight are options and limits under which a run may take a quarter of a compile
// in all, its start included.
func tight(compile time.Duration) (pool.Options, engine.Limits) {
	o := pool.DefaultOptions()
	o.Count, o.ColdStart = 1, time.Hour
	o.HardKillGrace, o.StartupLiveness = 0, compile/8
	return o, engine.Limits{WallClock: compile / 8}
}

// compiling is a VM that compiled an engine of its own.
type compiling struct {
	engine.VM
	e *quickjs.Engine
}

func (c compiling) Close() error { return errors.Join(c.VM.Close(), c.e.Close()) }

func processes(t *testing.T, o pool.Options, args ...string) *pool.Pool {
	t.Helper()
	// No cache directory and no environment: every worker compiles.
	p, err := pool.NewProcesses(pool.Command{Args: append(workerArgs(bench.Options{Metering: bench.MeteringOn}), args...)}, o)
	if errors.Is(err, errors.ErrUnsupported) {
		if os.Getenv("REQUIRE_ALL") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("closing the pool: %v", err)
		}
		if n := p.Stats().Processes; n != 0 {
			t.Errorf("%d processes left after Close", n)
		}
	})
	return p
}

// twoAfterCompile runs 1+1 on a pool whose next worker is cold, and shows that it
// took longer than all that the run itself may take.
func twoAfterCompile(t *testing.T, p *pool.Pool, o pool.Options, l engine.Limits) {
	t.Helper()
	start := time.Now()
	out, err := p.Run(t.Context(), engine.Request{Script: engine.Script{Source: "1+1"}, Limits: l})
	took := time.Since(start)
	if err != nil || out.Class != engine.ClassOK || string(out.Value) != "2" {
		t.Fatalf("1+1 on a cold worker: got %s %s %q, %v", out.Label(), out.Value, out.Message, err)
	}
	if window := l.WallClock + o.HardKillGrace + o.StartupLiveness; took <= window {
		t.Errorf("the cold run took %v, within its window of %v: it proves nothing", took, window)
	}
}

func TestRecordCompileIsChargedToNobody(t *testing.T) {
	o, l := tight(compileTime(t))
	p, err := pool.New(func(ctx context.Context) (engine.VM, error) {
		e, err := quickjs.New(ctx, quickjs.Config{CacheDir: t.TempDir()})
		if err != nil {
			return nil, err
		}
		vm, err := e.NewVM(ctx)
		return compiling{vm, e}, err
	}, o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	twoAfterCompile(t, p, o, l)
}

// TestRecordTheRunRightAfterAKill is the kill loop too: each kill of a process
// leaves a cold worker behind, whose compile takes longer than the next run's
// whole window.
func TestRecordTheRunRightAfterAKill(t *testing.T) {
	o, l := tight(compileTime(t))
	p := processes(t, o)
	const kills = 3
	for i := range kills {
		ctx, cancel := context.WithCancel(t.Context())
		out, err := p.Run(ctx, engine.Request{
			Script: engine.Script{Source: "for(;;);"}, Limits: engine.Limits{WallClock: time.Hour},
			OnScriptStart: func(time.Time) { cancel() },
		})
		cancel()
		if err != nil || out.Class != engine.ClassCanceled || !out.Killed {
			t.Fatalf("kill %d: got %s, killed %v, %v", i, out.Label(), out.Killed, err)
		}
		twoAfterCompile(t, p, o, l)
	}
	if s := p.Stats(); s.Kills != kills || s.Replaced != kills || s.StartupFailures != 0 {
		t.Errorf("got %+v, want %d kills, as many replacements and no failed start", s, kills)
	}
}

func TestRecordRefusedCallsNeverTouchAWorker(t *testing.T) {
	o := pool.DefaultOptions()
	p := processes(t, o)
	sandbox, err := engine.NewSandbox(p, engine.Spec{Limits: engine.Limits{MaxInputBytes: 10}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		input any
		want  string // the class
	}{
		{strings.Repeat("x", 9), string(engine.ClassInputTooLarge)},
		{make(chan int), "inputNotSerializable"},
	} {
		_, err := sandbox.Eval(t.Context(), engine.Call{Script: engine.Script{Source: "1"}, Input: c.input})
		if class, _ := engine.Describe(err); class != c.want {
			t.Errorf("input %T: got %s (%v), want %s", c.input, class, err, c.want)
		}
	}
	if s := p.Stats(); s.Submitted != 0 || s.Processes+s.Starting+s.Idle+s.Running != 0 {
		t.Errorf("got %+v, want a pool that nobody touched", s)
	}
}

func TestRecordRetryOfStartupFailuresOnly(t *testing.T) {
	o := pool.DefaultOptions()
	o.Count, o.ColdStart = 1, time.Hour
	p := processes(t, o, fmt.Sprintf("%s/started", t.TempDir()))
	sandbox, err := engine.NewSandbox(p, engine.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	res, err := sandbox.Eval(t.Context(), engine.Call{Script: engine.Script{Source: "1+1"}})
	if err != nil || string(res.Value) != "2" {
		t.Fatalf("got %s, %v, want 2 at the second try", res.Value, err)
	}
	if s := p.Stats(); s.StartupFailures != 1 || s.Submitted != 2 {
		t.Errorf("got %+v, want one failed start and two tries", s)
	}
	if _, err := sandbox.Eval(t.Context(), engine.Call{Script: engine.Script{Source: "throw 1"}}); !engine.ScriptFault(err) {
		t.Errorf("got %v, want a fault of the script", err)
	}
	if s := p.Stats(); s.Submitted != 3 {
		t.Errorf("a script that threw was tried %d times, want once", s.Submitted-2)
	}
}
