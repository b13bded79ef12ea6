package gate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/sandbed/sandbed/bench/stat"
)

// TestCriticalValues compares with counts of all arrangements.
func TestCriticalValues(t *testing.T) {
	// below[n][m][u]: arrangements of n and m values with at most u pairs the other way round.
	var ways func(n, m, u int) float64
	ways = func(n, m, u int) float64 {
		switch {
		case u < 0:
			return 0
		case n == 0 || m == 0:
			return 1 // of u = 0, and so of all above
		}
		// The largest value is of the second sample, or of the first.
		return ways(n, m-1, u-n) + ways(n-1, m, u)
	}
	for _, alpha := range []float64{0.05, 0.0025, 0.0005} {
		for n := 1; n <= 8; n++ {
			for m := 1; m <= 8; m++ {
				want := -1
				for u := 0; u < n*m && ways(n, m, u)/ways(n, m, n*m) <= alpha; u++ {
					want = u
				}
				if got := (ranks{}).critical(n, m, alpha); got != want {
					t.Errorf("%d and %d values, alpha %g: got %d, want %d", n, m, alpha, got, want)
				}
			}
		}
	}
	for alpha, want := range map[float64]int{0.5: 1, 0.05: 3, 0.0025: 6, 0.0005: 7} { // 1/C(2n,n)
		if got := enough(alpha); got != want {
			t.Errorf("alpha %g: %d values are enough, want %d", alpha, got, want)
		}
	}
}

// benchText is the output of go test -bench with n lines a benchmark.
func benchText(seed uint64, n int, names []string, scale func(name string) float64) string {
	r := rand.New(rand.NewPCG(seed, 1))
	var b strings.Builder
	fmt.Fprintln(&b, "goos: linux\npkg: example.com/x\ncpu: some")
	for range n {
		for _, name := range names {
			fmt.Fprintf(&b, "Benchmark%s-2 \t 100\t %.1f ns/op\t %.2f MB/s\t 96 B/op\t 3 allocs/op\t %.0f widgets\n",
				name, 1e6*scale(name)*math.Exp(0.01*r.NormFloat64()), 50/scale(name)*math.Exp(0.01*r.NormFloat64()), 7+math.Floor(2*r.Float64()))
		}
	}
	fmt.Fprintln(&b, "PASS\nok  \texample.com/x\t1.2s")
	return b.String()
}

func one(string) float64 { return 1 }

func judgeText(old, new string, o Options) (Report, error) {
	b, err := ReadBench(strings.NewReader(old), strings.NewReader(new))
	if err != nil {
		return Report{}, err
	}
	return DecideBench(DefaultDesign(nil, 0), b, o)
}

func find(t *testing.T, r Report, name, unit string) Row {
	t.Helper()
	for _, row := range r.Rows {
		if row.Name == name && row.Unit == unit {
			return row
		}
	}
	t.Fatalf("no row %s in %s", name, unit)
	return Row{}
}

func TestUnpaired(t *testing.T) {
	names := []string{"Same", "Slower", "Faster"}
	change := map[string]float64{"Same": 1, "Slower": 1.2, "Faster": 0.8}
	old := benchText(1, 10, names, one)
	r, err := judgeText(old, benchText(2, 10, names, func(n string) float64 { return change[n] }), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if r.Exit != ExitRegression || !r.Unpaired || len(r.Warnings) != 1 || r.Warnings[0] != UnpairedNote || r.Design.Kind != "unpaired-mann-whitney" {
		t.Errorf("exit %d, unpaired %v, warnings %q, kind %s", r.Exit, r.Unpaired, r.Warnings, r.Design.Kind)
	}
	for _, c := range []struct {
		name, unit, better string
		lane               string
		want               Word
		ratio              float64
	}{
		{"Same-2", "sec/op", "lower", Time, OK, 1},
		{"Slower-2", "sec/op", "lower", Time, Regression, 1.2},
		{"Faster-2", "sec/op", "lower", Time, Improvement, 0.8},
		{"Same-2", "B/s", "higher", Time, OK, 1},
		{"Slower-2", "B/s", "higher", Time, Regression, 1 / 1.2},
		{"Faster-2", "B/s", "higher", Time, Improvement, 1.25},
		{"Same-2", "allocs/op", "lower", Exact, Unchanged, 1},
		{"Same-2", "widgets", "lower", Time, Inconclusive, 1},
	} {
		row := find(t, r, c.name, c.unit)
		if row.Verdict != c.want || row.Better != c.better || row.Lane != c.lane || math.Abs(row.Ratio-c.ratio) > 0.03 && c.unit != "widgets" {
			t.Errorf("%s in %s: %s, %s, %s, ratio %.3f (%s), want %+v", c.name, c.unit, row.Verdict, row.Better, row.Lane, row.Ratio, row.Reason, c)
		}
		if c.unit == "widgets" != !row.Gated {
			t.Errorf("%s in %s: gated %v", c.name, c.unit, row.Gated)
		}
		if c.lane == Time && !(row.Interval.Low < row.Ratio && row.Ratio < row.Interval.High) && c.unit != "widgets" {
			t.Errorf("%s in %s: ratio %g outside %v", c.name, c.unit, row.Ratio, row.Interval)
		}
	}
	slower := find(t, r, "Slower-2", "sec/op")
	if want := 1 / 184756.0; math.Abs(slower.P/want-1) > 1e-9 || math.Abs(slower.PAdj/(6*want)-1) > 1e-9 {
		t.Errorf("p %g, adjusted %g, want 1 of C(20,10) and six times that", slower.P, slower.PAdj)
	}
	// Files exchanged, verdicts mirrored.
	m, err := judgeText(benchText(2, 10, names, func(n string) float64 { return change[n] }), old, Options{})
	if err != nil {
		t.Fatal(err)
	}
	mirror := map[Word]Word{Regression: Improvement, Improvement: Regression, OK: OK, Unchanged: Unchanged, Inconclusive: Inconclusive}
	for _, row := range r.Rows {
		if got := find(t, m, row.Name, row.Unit); got.Verdict != mirror[row.Verdict] {
			t.Errorf("%s in %s: %s, exchanged %s", row.Name, row.Unit, row.Verdict, got.Verdict)
		}
	}
}

func TestUnpairedFiles(t *testing.T) {
	names := []string{"A", "B"}
	ten := benchText(1, 10, names, one)
	for _, c := range []struct{ name, old, new, want string }{
		{"no results", "PASS\n", ten, "old: no benchmark results"},
		{"the other too", ten, "", "new: no benchmark results"},
		{"too few", benchText(1, 3, names, one), benchText(2, 3, names, one), "-count=5"},
		{"NaN", ten, "BenchmarkA-2 1 NaN ns/op\n", "give finite numbers"},
		{"infinite", ten, "BenchmarkA-2 1 +Inf ns/op\n", "give finite numbers"},
		{"a long line", ten, "BenchmarkA-2 1 " + strings.Repeat("1", 70_000) + " ns/op\n", "too long"},
		{"too many values", ten, strings.Repeat("BenchmarkA-2 1 1 ns/op\n", maxValues+1), "more than 1000 values"},
	} {
		if _, err := judgeText(c.old, c.new, Options{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
	r, err := judgeText(ten+"Benchmark broken line\n", strings.ReplaceAll(benchText(2, 10, names, one), "BenchmarkB", "BenchmarkC"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if find(t, r, "B-2", "sec/op").Verdict != Removed || find(t, r, "C-2", "sec/op").Verdict != New || len(r.Warnings) != 2 {
		t.Errorf("rows %+v, warnings %q", r.Rows, r.Warnings)
	}
	// Unit lines hold for both files, and two packages make two rows.
	unit := "Unit widgets better=higher\nUnit B/op assume=exact\n"
	r, err = judgeText(unit+ten, benchText(2, 10, names, one)+strings.ReplaceAll(ten, "pkg: example.com/x", "pkg: example.com/y"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if row := find(t, r, "example.com/x.A-2", "widgets"); row.Better != "higher" || !row.Gated {
		t.Errorf("widgets: %+v", row)
	}
	if row := find(t, r, "example.com/y.A-2", "sec/op"); row.Verdict != New {
		t.Errorf("a row of another package: %s", row.Verdict)
	}
	// An exact unit that varies proves nothing.
	r, err = judgeText("Unit sec/op assume=exact\n"+ten, benchText(2, 10, names, one), Options{})
	if err != nil || find(t, r, "A-2", "sec/op").Verdict != Unmeasurable {
		t.Errorf("%v, %+v", err, r.Rows)
	}
}

// TestUnpairedFalseAlarms counts, at a true change of exactly the margin, how often a
// row is judged slower, or not slower.
func TestUnpairedFalseAlarms(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	d := DefaultDesign(nil, 0)
	d.Gated = make([]RowPlan, MaxGated)
	rank := ranks{}
	const n = 20_000
	slower, not := 0, 0
	for range n {
		b := benchRow{name: "A", unit: "sec/op", better: -1}
		for range 10 {
			b.old = append(b.old, math.Exp(0.05*r.NormFloat64()))
			b.new = append(b.new, 1.05*math.Exp(0.05*r.NormFloat64()))
		}
		switch b.judge(d, rank).Verdict {
		case Regression:
			slower++
		case OK:
			not++
		}
	}
	if low := 1 - stat.UpperBound(n-slower, n, 0.999); low > d.alpha() || slower == 0 {
		t.Errorf("slower in %d of %d, designed at most %g", slower, n, d.alpha())
	}
	if low := 1 - stat.UpperBound(n-not, n, 0.999); low > d.ClearAlpha || not == 0 {
		t.Errorf("not slower in %d of %d, designed at most %g", not, n, d.ClearAlpha)
	}
}
