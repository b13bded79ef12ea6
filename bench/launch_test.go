package bench

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbed/sandbed/bench/gate"
	"github.com/sandbed/sandbed/engine"
)

func TestLaunch(t *testing.T) {
	p := newParrot(t)
	s := p.suite(MeteringOn)
	l, err := List(s)
	if err != nil {
		t.Fatal(err)
	}
	plan := LaunchPlan{Row: "wall/workload=json/size=small", Seed: 7, Exact: true, CacheDir: "here"}
	open := s.Open
	s.Open = func(ctx context.Context, o Options) (*Instance, error) {
		if o.CacheDir != "here" {
			t.Errorf("opened with the cache directory %q, want that of the plan", o.CacheDir)
		}
		return open(ctx, o)
	}
	r, err := Launch(t.Context(), s, plan)
	if err != nil {
		t.Fatal(err)
	}
	if r.Batch < 2 || r.Inner != innerRuns || r.Value <= 0 || r.Unit != "sec" || r.Better != "lower" || r.Schema != LaunchSchema {
		t.Errorf("got %+v", r)
	}
	if got := r.BatchSec / float64(r.Batch); got != r.Value {
		t.Errorf("a batch of %d in %v s, value %v s", r.Batch, r.BatchSec, r.Value)
	}
	var exact []string
	for _, e := range r.Exact {
		exact = append(exact, e.Name)
	}
	if want := []string{"fuel/workload=json/size=small", "output/workload=json/size=small", "peak/workload=json/size=small", "allocs/workload=json/size=small"}; !slices.Equal(exact, want) {
		t.Errorf("exact rows %q, want %q", exact, want)
	}

	// The batch is the caller's, and so is the slowdown.
	plan.Exact = false
	plan.Batch = r.Batch
	if r, err = Launch(t.Context(), s, plan); err != nil || r.Batch != plan.Batch || r.Exact != nil {
		t.Errorf("got %+v, %v, want a batch of %d and nothing exact", r, err, plan.Batch)
	}
	plan.Inject = 9
	slow, err := Launch(t.Context(), s, plan)
	if err != nil || slow.Value < 4*r.Value {
		t.Errorf("with 9 times the time on top: %v s, without %v s, %v", slow.Value, r.Value, err)
	}

	// Every row that is listed can be opened, and what is measured is checked.
	for _, name := range l.Rows {
		if strings.Contains(name, "size=large") || strings.Contains(name, "MiB") {
			continue // the same, longer
		}
		if _, err := Launch(t.Context(), s, LaunchPlan{Row: name, Seed: 7, Batch: 1, CacheDir: "here"}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := p.vms.Load(); n != 0 {
		t.Errorf("%d VMs were not closed", n)
	}
}

// TestSizeBatch: an iteration of 100 µs of which every other reading is interrupted.
func TestSizeBatch(t *testing.T) {
	calls := 0
	run := func(n int) (time.Duration, error) {
		calls++
		took := time.Duration(n) * 100 * time.Microsecond
		if calls%2 == 1 {
			took += 40 * time.Millisecond
		}
		return took, nil
	}
	if got, err := sizeBatch(run); got != 250 || err != nil {
		t.Errorf("got a batch of %d, %v, want 250: 25 ms", got, err)
	}
	if got, err := sizeBatch(func(int) (time.Duration, error) { return time.Second, nil }); got != 1 || err != nil {
		t.Errorf("an iteration of a second: got a batch of %d, %v, want 1", got, err)
	}
	if got, err := sizeBatch(func(int) (time.Duration, error) { return 0, nil }); got != maxBatch || err != nil {
		t.Errorf("no time at all: got a batch of %d, %v, want %d", got, err, maxBatch)
	}
	broken := errors.New("broken")
	if _, err := sizeBatch(func(int) (time.Duration, error) { return 0, broken }); err != broken {
		t.Errorf("got %v", err)
	}
}

func TestLaunchRefuses(t *testing.T) {
	p := newParrot(t)
	var unknown *UnknownRow
	if _, err := Launch(t.Context(), p.suite(MeteringOn), LaunchPlan{Row: "wall/workload=nothing/size=small"}); !errors.As(err, &unknown) {
		t.Errorf("an unknown row: got %v", err)
	}
	for _, plan := range []LaunchPlan{{Batch: -1}, {Batch: maxBatch + 1}, {Inject: -0.1}, {Inject: 11}} {
		plan.Row = "fresh/op=eval"
		if _, err := Launch(t.Context(), p.suite(MeteringOn), plan); err == nil || !strings.Contains(err.Error(), "give ") {
			t.Errorf("%+v: got %v", plan, err)
		}
	}
	p.spoil = func(_ engine.Request, o *engine.Outcome) { o.Value = []byte(`"x"`) }
	var wrong *WrongAnswer
	for _, row := range []string{"fresh/op=eval", "wall/workload=json/size=small", "marshal/dir=in/size=4KiB/backend=inproc"} {
		if _, err := Launch(t.Context(), p.suite(MeteringOn), LaunchPlan{Row: row, Seed: 7, Batch: 1}); !errors.As(err, &wrong) {
			t.Errorf("%s with a wrong answer: got %v", row, err)
		}
	}
}

// TestGated holds the reviewed list to its form, and to rows that exist.
func TestGated(t *testing.T) {
	plans, err := parseGated(gatedFile)
	if err != nil {
		t.Fatal(err)
	}
	s := Suite{Backends: []string{BackendInProcess, BackendPool, BackendProcess}}
	for _, p := range plans {
		if !slices.ContainsFunc(launchRows(s), func(r launchRow) bool { return r.name == p.Row }) {
			t.Errorf("gated.csv names %s, which no launch measures", p.Row)
		}
	}
	const head = "row,margin,aa_p95,reason\n"
	for _, c := range []struct{ text, want string }{
		{head, "0 rows"},
		{head + "a,0.05,0.01,x\na,0.05,0.01,x\n", "twice"},
		{head + "a,0,0.01,x\n", "margin"},
		{head + "a,0.16,0.01,x\n", "margin"},
		{head + "a,NaN,0.01,x\n", "margin"},
		{head + "a,0.05,-1,x\n", "aa_p95"},
		{head + "a,0.05,0.01, \n", "reason"},
		{head + "a,0.05,0.01\n", "fields"},
		{head + "a,0.05,0.01,x\n" + manyRows(gate.MaxGated), "21 rows"},
	} {
		if _, err := parseGated(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60q: got %v, want %q", c.text, err, c.want)
		}
	}
	if got, err := parseGated(head + manyRows(gate.MaxGated)); err != nil || len(got) != gate.MaxGated {
		t.Errorf("%d rows: got %d, %v", gate.MaxGated, len(got), err)
	}
}

func manyRows(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString("row" + strings.Repeat("x", i) + ",0.05,0.01,x\n")
	}
	return b.String()
}
