package fuzz

import (
	"context"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/engine/enginetest"
	"github.com/sandbed/sandbed/engine/quickjs"
	"github.com/sandbed/sandbed/fuzz/cover"
	"github.com/sandbed/sandbed/fuzz/oracle"
	"github.com/sandbed/sandbed/pool"
)

// TestMain is also the worker processes of these tests.
func TestMain(m *testing.M) {
	pool.ServeWorker(func(ctx context.Context, b pool.Boot) (engine.VM, error) {
		e, err := quickjs.New(ctx, quickjs.Config{CacheDir: b.CacheDir})
		if err != nil {
			return nil, err
		}
		return e.NewVM(ctx)
	})
	os.Exit(m.Run())
}

// slack is what a run may be late beyond its wall clock before it is tried
// again: room for a loaded machine, since lateness counts three times of three.
const slack = time.Second

// backend is one way to run a script, with the name that findings give it.
type backend struct {
	name string
	engine.Backend
	clean int64 // fuel of 1+1; 0: not known yet
}

// rig is the engine, compiled once a process with the cache on disk, and its
// backends.
type rig struct {
	inProcess, workers *backend
	processes          func() (*backend, error) // started when first needed
}

var theRig = sync.OnceValues(func() (*rig, error) {
	e, err := quickjs.New(context.Background(), quickjs.Config{})
	if err != nil {
		return nil, err
	}
	o := pool.DefaultOptions()
	o.Count, o.ColdStart = 1, time.Minute
	workers, err := pool.New(e.NewVM, o)
	if err != nil {
		return nil, err
	}
	return &rig{
		inProcess: &backend{name: "in-process", Backend: e.InProcess()},
		workers:   &backend{name: "goroutine worker", Backend: workers},
		processes: sync.OnceValues(func() (*backend, error) {
			p, err := pool.NewProcesses(pool.Command{CacheDir: quickjs.DefaultCacheDir()}, o)
			if err != nil {
				return nil, err
			}
			return &backend{name: "process worker", Backend: p}, nil
		}),
	}, nil
})

// theEngine compiles before the first input, which has ten seconds to live.
func theEngine(tb testing.TB) *rig {
	tb.Helper()
	r, err := theRig()
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// hasProcesses says whether the platform has process workers.
const hasProcesses = runtime.GOOS == "linux"

// run evaluates r once and judges it, a late run up to three times.
func (b *backend) run(log *oracle.Log, r engine.Request) *oracle.Run {
	got := b.once(r)
	for tries := 1; got.Overrun() > slack; tries++ {
		if tries == 3 {
			log.Check(false, oracle.Late, "%s: back %v after its wall clock, the last of 3 tries", b.name, got.Overrun())
			break
		}
		got = b.once(r)
	}
	log.Check(got.Overrun() <= slack || log.Violations() != nil, oracle.Late, "late")
	oracle.Judge(log, got)
	return got
}

func (b *backend) once(r engine.Request) *oracle.Run {
	var panicked any
	got := oracle.Watch(r, func(r engine.Request) (engine.Outcome, error) {
		defer func() { panicked = recover() }()
		return b.Run(context.Background(), r)
	})
	if panicked != nil {
		got.Panicked, got.Label = panicked, "panic"
	}
	return got
}

// cleanAfter shows that nothing is left: 1+1 is 2, at its usual fuel, in memory
// that is the boot image.
func (b *backend) cleanAfter(log *oracle.Log) {
	got := b.run(log, engine.Request{Script: engine.Script{Source: "1+1"}})
	log.Check(got.Label == "ok" && string(got.Out.Value) == "2", oracle.Clean, "%s: the next 1+1 gave %s %q %q", b.name, got.Label, got.Out.Value, got.Out.Message)
	if b.clean == 0 {
		b.clean = got.Out.Usage.Fuel
	}
	log.Check(got.Out.Usage.Fuel == b.clean, oracle.Clean, "%s: the next 1+1 used %d fuel, the first %d", b.name, got.Out.Usage.Fuel, b.clean)
	if v, ok := b.Backend.(enginetest.ImageVerifier); ok {
		err := v.VerifyImage(context.Background())
		log.Check(err == nil, oracle.Clean, "%s: %v", b.name, err)
	}
}

// markRun shows the fuzzer what coverage of Go code cannot see of a run.
func markRun(r *oracle.Run) {
	u := r.Out.Usage
	label := cover.Name(r.Label)
	cover.Mark(10, label, cover.Log2(u.Fuel))
	cover.Mark(11, label, cover.Log2((u.PeakMemoryBytes-u.ImageBytes)>>16), cover.Log2(u.StackBytes))
	cover.Mark(12, label, cover.Log2(int64(len(r.Out.Value))), cover.Log2(int64(len(r.Out.Message))), uint64(r.Starts), uint64(r.Finishes))
}
