package compare

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandbed/sandbed/bench"
	"github.com/sandbed/sandbed/bench/gate"
	"github.com/sandbed/sandbed/bench/sample"
)

// fake is a suite whose rows cost what it says. Its values depend on what is
// launched and on nothing else.
type fake struct {
	slower map[string]float64 // head ÷ base by row; 1 if absent
	fails  map[string]string  // arm by row
	sleep  time.Duration
	seen   []launch
	before func(n int) error // called with the number of launches so far
}

func (f *fake) start(ctx context.Context, l launch) (bench.Reading, error) {
	if f.before != nil {
		if err := f.before(len(f.seen)); err != nil {
			return bench.Reading{}, err
		}
	}
	if err := ctx.Err(); err != nil {
		return bench.Reading{}, err
	}
	f.seen = append(f.seen, l)
	time.Sleep(f.sleep)
	if f.fails[l.row] == l.arm {
		return bench.Reading{}, errors.New("a wrong answer")
	}
	h := fnv.New64a()
	fmt.Fprint(h, l.row, l.arm, l.layout)
	value := 1e-3 * (1 + 0.002*float64(h.Sum64()%1000)/1000) * (1 + l.inject)
	if r := f.slower[l.row]; r > 0 && l.arm == gate.Head {
		value *= r
	}
	batch := l.batch
	if batch == 0 {
		batch = 25
	}
	r := bench.Reading{Schema: bench.LaunchSchema, Row: l.row, Unit: sample.Seconds, Better: "lower", Value: value, Inner: 3, Batch: batch, BatchSec: value * float64(batch)}
	if l.exact {
		r.Exact = []sample.Sample{sample.NewExact(strings.Replace(l.row, "wall/", "fuel/", 1), sample.Fuel, 1000, 1)}
	}
	return r, nil
}

func rowName(s string) string { return "wall/workload=" + s }

func design(names ...string) gate.Design {
	var rows []gate.RowPlan
	for _, n := range names {
		rows = append(rows, gate.RowPlan{Row: rowName(n)})
	}
	d := gate.DefaultDesign(rows, 42)
	d.LayoutSeeds = layoutSeeds(d.LayoutSeeds)
	return d
}

// session makes a session over the fake, with time enough.
func (f *fake) session(names ...string) *session {
	s := newSession(design(names...), f.start)
	s.deadline, s.budget = time.Now().Add(time.Hour), time.Hour
	s.run.Schema = runSchema
	for _, n := range names {
		s.run.BaseRows, s.run.HeadRows = append(s.run.BaseRows, rowName(n)), append(s.run.HeadRows, rowName(n))
	}
	return s
}

func (s *session) all(t *testing.T) gate.Report {
	t.Helper()
	if err := s.ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.measure(t.Context()); err != nil {
		t.Fatal(err)
	}
	r, err := gate.Decide(s.design, s.launches(), gate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestOrders(t *testing.T) {
	s := (&fake{}).session("a")
	x := &series{row: "a"}
	kinds := map[string]int{}
	for block := range 200 {
		word := s.order(x, gate.Screen, 2*block) + s.order(x, gate.Screen, 2*block+1)
		kinds[word]++
		if confirm := s.order(x, gate.Confirm, 2*block) + s.order(x, gate.Confirm, 2*block+1); confirm == word {
			t.Errorf("block %d: %s in the screen and in the confirmation", block, word)
		}
	}
	// A fair coin gives 60 to 140 of 200 but once in 10^8.
	if len(kinds) != 2 || kinds["ABBA"] < 60 || kinds["BAAB"] < 60 {
		t.Errorf("blocks %v, want ABBA and BAAB about as often", kinds)
	}
}

func TestMeasure(t *testing.T) {
	f := &fake{slower: map[string]float64{rowName("slow"): 1.3, rowName("fast"): 0.7, rowName("new"): 1}, fails: map[string]string{rowName("wrong"): gate.Head}}
	s := f.session("same", "slow", "fast", "wrong", "new", "gone")
	s.run.BaseRows = slices.DeleteFunc(s.run.BaseRows, func(n string) bool { return n == rowName("new") })
	s.run.HeadRows = slices.DeleteFunc(s.run.HeadRows, func(n string) bool { return n == rowName("gone") })
	r := s.all(t)
	want := map[string]gate.Word{"same": gate.OK, "slow": gate.Regression, "fast": gate.Improvement, "wrong": gate.Failed, "new": gate.New, "gone": gate.Removed}
	for _, row := range r.Rows {
		if row.Lane == gate.Exact {
			if row.Verdict != gate.Unchanged || row.Base.N != 2 {
				t.Errorf("%s: %s from %d launches, want UNCHANGED from 2", row.Name, row.Verdict, row.Base.N)
			}
			continue
		}
		if w := want[strings.TrimPrefix(row.Name, rowName(""))]; row.Verdict != w {
			t.Errorf("%s: got %s (%s), want %s", row.Name, row.Verdict, row.Reason, w)
		}
	}
	if len(r.Controls) != 2 || !r.Controls[0].Good || !r.Controls[1].Good || r.Exit != gate.ExitFailed {
		t.Errorf("controls %+v, exit %d, want both good and 4 for the row that failed", r.Controls, r.Exit)
	}
	if len(r.Warnings) > 1 { // of the row that is gone
		t.Errorf("warnings %q", r.Warnings)
	}
	screen := s.screenLayouts()
	rounds := map[string]int{}
	for _, l := range s.launches() {
		if l.Lane == gate.Exact || l.Failed != "" || l.Absent {
			continue
		}
		rounds[l.Row+l.Stage+l.Control] = max(rounds[l.Row+l.Stage+l.Control], l.Round+1)
		if slices.Contains(screen, l.Layout) != (l.Stage == gate.Screen) {
			t.Errorf("%s: layout %d in stage %s", l.Row, l.Layout, l.Stage)
		}
		for _, o := range s.launches() {
			if o.Row == l.Row && o.Stage == l.Stage && o.Control == l.Control && o.Round == l.Round && o.Arm != l.Arm && o.Lane == l.Lane && !o.Absent {
				if (o.Layout == l.Layout) == (l.Control == gate.Null) {
					t.Errorf("%s, control %q: layouts %d and %d in one round", l.Row, l.Control, l.Layout, o.Layout)
				}
				if o.First == l.First || o.Order != l.Order {
					t.Errorf("%s, round %d: %+v and %+v", l.Row, l.Round, l, o)
				}
			}
		}
	}
	// What is settled stops at its look.
	for _, c := range []struct {
		what string
		want int
	}{{rowName("same") + gate.Screen, 10}, {rowName("slow") + gate.Screen, 10}, {rowName("slow") + gate.Confirm, 10}, {rowName("fast") + gate.Confirm, 10}, {rowName("same") + gate.Confirm, 0}, {rowName("new") + gate.Screen, newRounds}} {
		if got := rounds[c.what]; got != c.want {
			t.Errorf("%s: %d rounds, want %d", c.what, got, c.want)
		}
	}
}

// TestStopsInABlock: a look may come in the middle of a block, and with it the end.
func TestStopsInABlock(t *testing.T) {
	var names []string
	for i := range gate.MaxGated { // so many that only the look at 15 can fail a row
		names = append(names, fmt.Sprint("r", i))
	}
	f := &fake{slower: map[string]float64{rowName("r3"): 1.3}}
	s := f.session(names...)
	s.all(t)
	for _, x := range s.series {
		if x.row == rowName("r3") && (len(x.launches) != 2*15*2 || x.step.Word != gate.Regression) {
			t.Errorf("%d launches and %s, want 15 rounds in the screen and 15 in the confirmation", len(x.launches), x.step.Word)
		}
	}
}

// TestShuffles: neighbours in time differ from pass to pass.
func TestShuffles(t *testing.T) {
	f := &fake{}
	s := f.session("a", "b", "c", "d", "e")
	s.all(t)
	var rows []string // one a block: a block has two launches of head
	for _, l := range f.seen {
		if l.batch > 1 && l.arm == gate.Head {
			rows = append(rows, l.row[len(l.row)-1:])
		}
	}
	var passes []string
	for pass := range slices.Chunk(rows, 2*5) {
		passes = append(passes, strings.Join(pass, ""))
	}
	slices.Sort(passes)
	if passes = slices.Compact(passes); len(passes) < 3 {
		t.Errorf("the passes ran in %d orders, want several: %q", len(passes), passes)
	}
}

// TestResume interrupts a comparison after every so many launches and continues
// it: what comes out is the same set.
func TestResume(t *testing.T) {
	begin := func(f *fake, dir string, resume bool) (*session, error) {
		s := f.session("same", "slow", "wrong")
		c := Config{Out: dir, Resume: resume}
		var err error
		if s.store, err = c.store(s); err != nil {
			return nil, err
		}
		defer s.store.close()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if inner := f.before; inner != nil {
			f.before = func(n int) error {
				if err := inner(n); err != nil {
					cancel()
				}
				return nil
			}
		}
		if err := s.ready(ctx); err != nil {
			return s, err
		}
		return s, s.measure(ctx)
	}
	suite := func() *fake {
		return &fake{slower: map[string]float64{rowName("slow"): 1.3}, fails: map[string]string{rowName("wrong"): gate.Head}}
	}
	read := func(dir string) []gate.Launch {
		t.Helper()
		st, err := load(dir)
		if err != nil {
			t.Fatal(err)
		}
		for i := range st.launches {
			st.launches[i].Started = time.Time{}
		}
		slices.SortFunc(st.launches, func(a, b gate.Launch) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		return st.launches
	}
	whole := t.TempDir()
	f := suite()
	if _, err := begin(f, whole, false); err != nil {
		t.Fatal(err)
	}
	want := read(whole)
	if len(want) < 100 {
		t.Fatalf("only %d launches", len(want))
	}
	total := len(f.seen)
	for stop := 1; stop < total; stop += 5 {
		dir := t.TempDir()
		f := suite()
		f.before = func(n int) error {
			if n >= stop {
				return errors.New("stop")
			}
			return nil
		}
		if _, err := begin(f, dir, false); !errors.Is(err, context.Canceled) {
			t.Fatalf("stopped after %d launches: got %v", stop, err)
		}
		// The interrupt came in the middle of a write, in half of the cases.
		name := filepath.Join(dir, samplesFile)
		if data, err := os.ReadFile(name); err != nil {
			t.Fatal(err)
		} else if stop%2 == 0 && len(data) > 900 {
			if err := os.WriteFile(name, data[:len(data)-(stop*37)%900], 0o644); err != nil {
				t.Fatal(err)
			}
		}
		f = suite()
		if _, err := begin(f, dir, true); err != nil {
			t.Fatalf("resumed after %d launches: %v", stop, err)
		}
		// Both halves need the same batches.
		if i := slices.IndexFunc(f.seen, func(l launch) bool { return l.batch == 0 }); i >= 0 && stop > 10 {
			t.Errorf("resumed after %d launches: the batch of %s was sized again", stop, f.seen[i].row)
		}
		if got := read(dir); !reflect.DeepEqual(got, want) {
			t.Fatalf("resumed after %d launches: %d launches, want the same %d", stop, len(got), len(want))
		}
	}
}

func TestResumeRefuses(t *testing.T) {
	dir := t.TempDir()
	f := &fake{}
	first := f.session("a")
	first.run.Base.Commit, first.run.Head.Commit = "1", "2"
	st, err := Config{Out: dir}.store(first)
	if err != nil {
		t.Fatal(err)
	}
	st.close()
	for _, c := range []struct {
		name  string
		spoil func(*session, *Config)
		want  string
	}{
		{"nothing there", func(_ *session, c *Config) { c.Out = t.TempDir() }, "no comparison"},
		{"another base", func(s *session, _ *Config) { s.run.Base.Commit = "3" }, "base is 1"},
		{"another head", func(s *session, _ *Config) { s.run.Head.Commit = "3" }, "head is 2"},
		{"a dirty head", func(s *session, _ *Config) { s.run.Head.Dirty = true }, "head is 2"},
		{"other rows", func(s *session, _ *Config) { s.design.Gated[0].Theta = 0.1 }, "design differs"},
		{"another seed", func(s *session, c *Config) { s.design.Seed, c.Seed = 7, 7 }, "design differs"},
		{"another shard", func(s *session, _ *Config) { s.run.Shard = 1 }, "shard 0"},
		{"more shards", func(s *session, _ *Config) { s.run.Shards = 2 }, "shards"},
	} {
		s := f.session("a")
		s.run.Base.Commit, s.run.Head.Commit = "1", "2"
		config := Config{Out: dir, Resume: true}
		c.spoil(s, &config)
		var refused *Refused
		if _, err := config.store(s); !errors.As(err, &refused) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

// TestBudget: a row that is undecided when the time is up is left so, and said.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{slower: map[string]float64{rowName("close"): 1.05}, sleep: time.Second}
		s := f.session("same", "close")
		if err := s.ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.budget = 150 * time.Second
		s.deadline = time.Now().Add(s.budget)
		if err := s.measure(t.Context()); err != nil {
			t.Fatal(err)
		}
		// A block that was begun is ended: four launches at most.
		if over := time.Since(s.deadline); over > 4*time.Second || over < 0 {
			t.Errorf("ended %v after the budget", over)
		}
		if text := strings.Join(s.warnings, "\n"); !strings.Contains(text, "2m30s") || !strings.Contains(text, "=close") || strings.Contains(text, "=same,") {
			t.Errorf("warnings %q, want the row that is undecided", text)
		}
	})
}

// TestConfirmationIsKeptRoom: the last quarter of the budget is for rows that crossed.
func TestConfirmationIsKeptRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Rows whose rounds never settle take all the screen that they get.
		f := &fake{slower: map[string]float64{rowName("slow"): 1.3}, sleep: time.Second}
		start := f.start
		n := 0
		s := f.session("slow", "a", "b", "c", "d")
		s.start = func(ctx context.Context, l launch) (bench.Reading, error) {
			r, err := start(ctx, l)
			if n++; l.row != rowName("slow") && n%3 == 0 {
				r.Value *= 1.2
			}
			return r, err
		}
		if err := s.ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.budget = 400 * time.Second
		s.deadline = time.Now().Add(s.budget)
		if err := s.measure(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, x := range s.series {
			if x.row == rowName("slow") && x.control == "" && x.step.Word != gate.Regression {
				t.Errorf("the row that crossed ended as %s after %d launches", x.step.Word, len(x.launches))
			}
		}
		if len(s.at(gate.Screen)) == 0 {
			t.Error("no row was undecided: the test shows nothing")
		}
	})
}

func TestSize(t *testing.T) {
	for _, c := range []struct {
		readings []int
		want     int
		warned   bool
	}{
		{[]int{100, 110}, 110, false},
		{[]int{10, 100, 101}, 101, false}, // an interrupted first reading
		{[]int{100, 10, 100, 100}, 100, false},
		{[]int{1, 2}, 2, false}, // whole numbers this small cannot agree within a fifth
		{[]int{1, 10, 100, 1000, 10000}, 10000, true},
	} {
		n := 0
		s := newSession(design("a"), func(context.Context, launch) (bench.Reading, error) {
			n++
			return bench.Reading{Batch: c.readings[n-1]}, nil
		})
		got, err := s.size(t.Context(), "a")
		if got != c.want || err != nil || n != len(c.readings) || (len(s.warnings) > 0) != c.warned {
			t.Errorf("%v: got %d after %d readings, %v, warnings %q, want %d", c.readings, got, n, err, s.warnings, c.want)
		}
	}
}

// TestMerge: two shards give the verdicts of one comparison.
func TestMerge(t *testing.T) {
	names := []string{"a", "slow", "b", "c"}
	shard := func(i, n int) string {
		dir := t.TempDir()
		f := &fake{slower: map[string]float64{rowName("slow"): 1.3}}
		s := f.session(names...)
		s.run.Shard, s.run.Shards = i, n
		var err error
		if s.store, err = (Config{Out: dir}).store(s); err != nil {
			t.Fatal(err)
		}
		defer s.store.close()
		if err := s.ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.measure(t.Context()); err != nil {
			t.Fatal(err)
		}
		fit := gate.Fitness{Fit: true, Steal: float64(i) / 100, Kernels: []gate.Kernel{{Name: "timer", Before: 1, After: 1}}}
		if err := writeJSON(filepath.Join(dir, calibFile), fit); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	one, two := shard(1, 2), shard(2, 2)
	r, err := Merge([]string{one, two}, gate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if r.Report.Verdict != "regression" || len(r.Report.Controls) != 4 || r.Report.Fitness.Steal != 0.02 || len(r.Report.Fitness.Kernels) != 2 {
		t.Errorf("got %s (%s), %d controls, fitness %+v, want a regression, 4 and the worse machine", r.Report.Verdict, r.Report.Proved, len(r.Report.Controls), r.Report.Fitness)
	}
	for _, row := range r.Report.Rows {
		if row.Lane == gate.Time && row.Verdict != gate.OK && row.Name != rowName("slow") {
			t.Errorf("%s: %s (%s)", row.Name, row.Verdict, row.Reason)
		}
	}
	if r, err := Merge([]string{one}, gate.Options{}); err != nil || r.Report.Exit != gate.ExitInconclusive || !strings.Contains(strings.Join(r.Report.Warnings, "\n"), "2/2") {
		t.Errorf("one shard of two: got %v, exit %d, %q", err, r.Report.Exit, r.Report.Warnings)
	}
	if err := writeJSON(filepath.Join(two, calibFile), gate.Fitness{Reasons: []string{"steal"}}); err != nil {
		t.Fatal(err)
	}
	for _, dirs := range [][]string{{one, two}, {two, one}} {
		if r, err := Merge(dirs, gate.Options{}); err != nil || r.Report.Fitness.Fit || strings.Join(r.Report.Fitness.Reasons, "") != "shard 2: steal" {
			t.Errorf("one unfit machine of two: got %v, %+v", err, r.Report.Fitness)
		}
	}
	if err := os.Remove(filepath.Join(two, calibFile)); err != nil {
		t.Fatal(err)
	}
	if r, err := Merge([]string{one, two}, gate.Options{}); err != nil || r.Report.Fitness.Fit {
		t.Errorf("a shard that did not end: got %v, fitness %+v", err, r.Report.Fitness)
	}
	var refused *Refused
	for _, dirs := range [][]string{{}, {one, one}, {one, t.TempDir()}, {one, shard(1, 3)}} {
		if _, err := Merge(dirs, gate.Options{}); !errors.As(err, &refused) {
			t.Errorf("%d directories that do not belong together: got %v", len(dirs), err)
		}
	}
}
