package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbed/sandbed/bench"
	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/engine/enginetest"
	"github.com/sandbed/sandbed/pool"
)

// patience is what a case may take in-process before it is left out of the turn
// of the pools: about four cases do nothing but burn a clock of 5 s. It chooses
// cases and judges nothing; REQUIRE_ALL and STRESS put every case through.
const patience = 2 * time.Second

var errImpatient = fmt.Errorf("longer than %v", patience)

// recorder is a backend that keeps the first outcome of every request. The
// suite, which makes no copies of what it was given, must reach the one behind
// it through Backend alone.
type recorder struct {
	engine.Backend
	patience time.Duration // 0 means for ever
	mu       *sync.Mutex
	outcomes map[string]engine.Outcome
}

func (r *recorder) Run(ctx context.Context, q engine.Request) (engine.Outcome, error) {
	if r.patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, r.patience, errImpatient)
		defer cancel()
	}
	o, err := r.Backend.Run(ctx, q)
	if err == nil {
		key := fmt.Sprintf("%s %s %+v %x", q.Script.Source, q.Script.Kind, q.Limits.WithDefaults(), sha256.Sum256(q.Input))
		r.mu.Lock()
		defer r.mu.Unlock()
		if _, seen := r.outcomes[key]; !seen {
			r.outcomes[key] = o
		}
	}
	return o, err
}

// answer is what must not depend on where a script ran.
func answer(o engine.Outcome) string {
	return fmt.Sprintf("%s, fuel %d, peak %d of %d, stack %d, seed %v, killed %v, message %.200q, stack trace %.200q, value %x %.60q",
		o.Label(), o.Usage.Fuel, o.Usage.PeakMemoryBytes, o.Usage.ImageBytes, o.Usage.StackBytes, o.DuringSeed, o.Killed, o.Message, o.JSStack, sha256.Sum256(o.Value), o.Value)
}

// byClock says that a clock ended the run: what it had used by then is chance.
func byClock(o engine.Outcome) bool {
	return o.Class == engine.ClassCanceled || o.Guard == engine.WallClock
}

// compare returns how the outcomes of the same requests differ, and how many
// were compared to the last figure.
func compare(want, got map[string]engine.Outcome) (differences []string, exactly int) {
	for key, w := range want {
		if w.Class == engine.ClassCanceled {
			continue // left out
		}
		g, there := got[key]
		switch {
		case !there:
			differences = append(differences, fmt.Sprintf("%.200q did not run", key))
		case byClock(w) || byClock(g): // the suite has judged the class
		case answer(w) != answer(g):
			differences = append(differences, fmt.Sprintf("%.200q\nin-process %s\nin a pool  %s", key, answer(w), answer(g)))
		default:
			exactly++
		}
	}
	slices.Sort(differences)
	return differences, exactly
}

// TestConformance puts the real engine in both kinds of pool through the whole
// suite, and compares every answer with that of the engine in-process.
func TestConformance(t *testing.T) {
	cache := t.TempDir()
	all := os.Getenv("REQUIRE_ALL") != "" || os.Getenv("STRESS") != ""
	var pools []*pool.Pool
	record := func(backend string, wait time.Duration) (map[string]engine.Outcome, func(context.Context) (engine.Backend, error)) {
		outcomes, mu := map[string]engine.Outcome{}, &sync.Mutex{}
		return outcomes, func(ctx context.Context) (engine.Backend, error) {
			o := bench.Options{Metering: bench.MeteringOn, CacheDir: cache, Backend: backend}
			if backend != bench.BackendInProcess {
				o.Workers = 2
			}
			in, err := open(ctx, o)
			if err != nil {
				return nil, err
			}
			if p, ok := in.Backend.(*pool.Pool); ok {
				pools = append(pools, p)
			}
			return &recorder{Backend: closing{in.Backend, in.Close}, patience: wait, mu: mu, outcomes: outcomes}, nil
		}
	}

	wait := patience
	if all {
		wait = 0
	}
	want, factory := record(bench.BackendInProcess, wait)
	var cases []enginetest.Case
	var left []string
	enginetest.Examine(t.Context(), factory, enginetest.Options{CasesOnly: true, OnCase: func(r enginetest.Record, _ []enginetest.Finding) {
		c := enginetest.Cases()[len(cases)+len(left)]
		if r.Class == string(engine.ClassCanceled) {
			left = append(left, c.ID)
			return
		}
		cases = append(cases, c)
	}})
	if all && len(left) > 0 || len(left) > len(enginetest.Cases())/10 {
		t.Fatalf("%d cases took longer than %v in-process: %q; set REQUIRE_ALL=1 on a slow machine", len(left), patience, left)
	}
	if len(left) > 0 {
		t.Logf("left out, since they took longer than %v in-process: %q; REQUIRE_ALL=1 runs them", patience, left)
	}

	for _, backend := range suite.Backends {
		if backend == bench.BackendInProcess {
			continue // package engine/quickjs has its own
		}
		t.Run(backend, func(t *testing.T) {
			pools = nil
			got, factory := record(backend, 0)
			enginetest.RunWith(t, func(tb testing.TB) engine.Backend {
				b, err := factory(tb.Context())
				if err != nil {
					tb.Fatal(err)
				}
				return b
			}, enginetest.Options{Cases: cases})

			differences, exactly := compare(want, got)
			for _, d := range differences {
				t.Error(d)
			}
			if exactly < len(cases)/2 {
				t.Errorf("only %d answers of %d cases could be compared: a clock ended the others", exactly, len(cases))
			}
			t.Logf("%d answers agree with those in-process, fuel, peak memory and messages included", exactly)
			if len(pools) == 0 {
				t.Error("no pool was opened")
			}
			for _, p := range pools {
				s := p.Stats()
				var settled int64
				for _, n := range s.Settled {
					settled += n
				}
				if s.Submitted != settled || s.Starting+s.Idle+s.Running+s.Leaving+s.Abandoned+s.Queued+s.Processes != 0 || s.StartupFailures != 0 || s.AbandonedEver != 0 {
					t.Errorf("after Close: %+v, want every run settled, and no worker left, abandoned or failed", s)
				}
				for _, m := range s.Hardening {
					if !m.Applied {
						t.Logf("not applied: %s: %s", m.Name, m.Reason)
					}
				}
			}
		})
	}
}

// closing is a backend whose Close gives back what was opened for it.
type closing struct {
	engine.Backend
	close func() error
}

func (c closing) Close() error { return c.close() }

// TestCompareCanFail plants a difference in every part of an answer.
func TestCompareCanFail(t *testing.T) {
	ok := engine.Outcome{Class: engine.ClassOK, Value: []byte("2"), Usage: engine.Usage{Fuel: 10, PeakMemoryBytes: 1 << 16, ImageBytes: 1 << 16}}
	clock := engine.Outcome{Class: engine.ClassLimit, Guard: engine.WallClock, Usage: engine.Usage{Fuel: 99}}
	change := func(f func(*engine.Outcome)) engine.Outcome {
		o := ok
		f(&o)
		return o
	}
	for _, c := range []struct {
		name      string
		want, got engine.Outcome
		differ    string // in the difference
	}{
		{"equal", ok, ok, ""},
		{"value", ok, change(func(o *engine.Outcome) { o.Value = []byte("3") }), `"3"`},
		{"no value", ok, change(func(o *engine.Outcome) { o.Value = nil }), `""`},
		{"class", ok, change(func(o *engine.Outcome) { o.Class = engine.ClassScriptError }), "in a pool  error"},
		{"guard", ok, change(func(o *engine.Outcome) { o.Class, o.Guard = engine.ClassLimit, engine.Memory }), "limit:memory"},
		{"fuel", ok, change(func(o *engine.Outcome) { o.Usage.Fuel++ }), "fuel 11"},
		{"memory", ok, change(func(o *engine.Outcome) { o.Usage.PeakMemoryBytes = 2 << 16 }), "peak 131072"},
		{"message", ok, change(func(o *engine.Outcome) { o.Message = "no" }), `message "no"`},
		{"ended by clock", clock, ok, ""},
		{"left out", engine.Outcome{Class: engine.ClassCanceled}, ok, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			differences, _ := compare(map[string]engine.Outcome{"x": c.want}, map[string]engine.Outcome{"x": c.got})
			if got := strings.Join(differences, "\n"); (got == "") != (c.differ == "") || !strings.Contains(got, c.differ) {
				t.Errorf("got %q, want %q in it", got, c.differ)
			}
		})
	}
	if differences, _ := compare(map[string]engine.Outcome{"x": ok}, nil); len(differences) != 1 {
		t.Errorf("an answer that is missing gave %q", differences)
	}
}
