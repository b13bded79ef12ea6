package reports

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbed/sandbed/bench/gate"
	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/bench/stat"
)

// inventedComparison has rows of every verdict and lane. The figures are drawn, not measured.
func inventedComparison() (gate.Report, []gate.Launch) {
	rng := rand.New(rand.NewPCG(3, 4))
	started := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	env := sample.Environment{Go: "go1.26.0", OS: "linux", Arch: "amd64", CPU: "A | processor", Cores: 2, GOMAXPROCS: 2, Engine: "an engine, version 1.0"}
	headEnv := env
	headEnv.Engine = "an engine, version 1.1"
	r := gate.Report{
		Schema: 1, Verdict: "regression", Exit: 1,
		Proved: "2 of 20 gated rows are slower by 5 % or more; 15 are proved not to be, 1 is inconclusive.",
		Base:   gate.Ref{Name: "main", Commit: "0123456789abcdef0123456789abcdef01234567"},
		Head:   gate.Ref{Name: "feature/faster", Commit: "fedcba9876543210fedcba9876543210fedcba98", Dirty: true},
		Design: gate.Design{Schema: 1, Kind: "abba-sign-gs", Theta: 0.05, Tight: 0.02, FamilyAlpha: 0.05, ClearAlpha: 0.05, Looks: []int{10, 15, 20, 30, 40, 60},
			Seed: 7, LayoutSeeds: []int{1, 2, 3}, Injection: 0.1, AbsoluteFloor: 50e-6, ExactLimit: 0.01},
		FailAt: []int{-1, 14, 18, 24, 31, 42}, ClearAt: []int{0, 2, 4, 9, 13, 22},
		BaseEnv: env, HeadEnv: headEnv, Started: started, Took: 432.4,
		Fitness: &gate.Fitness{Fit: true, Steal: 0.012, PSI: 0.031, Kernels: []gate.Kernel{{Name: "arithmetic", Before: 0.0201, After: 0.0203, Spread: 0.021, Drift: 0.01}, {Name: "pointer chase", Before: 0.031, After: 0.030, Spread: 0.052, Drift: -0.032}}},
		Controls: []gate.Control{
			{Kind: gate.Null, Row: "wall/workload=join/size=medium", Ratio: 1.002, Interval: stat.Interval{Low: 0.994, High: 1.011, Confidence: 0.9975}, Rounds: 15, Good: true},
			{Kind: gate.Injected, Row: "wall/workload=join/size=medium", Injected: 0.1, Ratio: 1.098, Interval: stat.Interval{Low: 1.084, High: 1.113, Confidence: 0.9975}, Rounds: 15, Fired: true, Good: true},
		},
		Waivers:  []gate.Waiver{{Row: "wall/workload=date/size=medium", Unit: sample.Seconds, Ceiling: 1.15, Expires: started.AddDate(0, 1, 0), Issue: "#12", Reason: "correct first, fast later", State: "used"}},
		Warnings: []string{"the null control of base used 15 rounds; a second one would prove more"},
	}
	var launches []gate.Launch
	add := func(name string, median, ratio, sigma float64, rounds int, word gate.Word, gated bool) {
		row := gate.Row{Name: name, Unit: sample.Seconds, Better: "lower", Lane: gate.Time, Gated: gated, Theta: 0.05, Rounds: rounds, Sigma: sigma, Verdict: word, MDE: 0.05 + 1.4*sigma}
		if gated {
			r.Design.Gated = append(r.Design.Gated, gate.RowPlan{Row: name, Theta: 0.05})
		}
		for i := range rounds {
			base := median * math.Exp(0.02*rng.NormFloat64())
			d := math.Log(ratio) + sigma*rng.NormFloat64()
			order := []string{"AB", "BA", "BA", "AB"}[i%4]
			row.LogRatios = append(row.LogRatios, d)
			row.Orders = append(row.Orders, order)
			row.BaseVals = append(row.BaseVals, base)
			row.HeadVals = append(row.HeadVals, base*math.Exp(d))
			if d > math.Log(1.05) {
				row.Slower++
			}
			for k, arm := range []string{gate.Base, gate.Head} {
				launches = append(launches, gate.Launch{Schema: 1, Row: name, Unit: row.Unit, Better: row.Better, Lane: row.Lane, Stage: gate.Screen, Arm: arm, Round: i, Order: order,
					First: (k == 0) == (order == "AB"), Layout: 1 + i%3, Value: []float64{base, base * math.Exp(d)}[k], Inner: 5, Batch: 0.02, Started: started.Add(time.Duration(len(launches)) * time.Second)})
			}
		}
		sorted := slices.Sorted(slices.Values(row.LogRatios))
		row.Ratio = math.Exp(sample.Quantile(sorted, 0.5))
		row.Interval = stat.Interval{Low: math.Inf(-1), High: math.Inf(1), Confidence: 0.9975}
		if rounds >= 15 {
			row.Interval.Low, row.Interval.High = math.Exp(sorted[1]), math.Exp(sorted[rounds-2])
		}
		row.P = stat.SignTest(row.Slower, rounds)
		row.PAdj = min(1, 20*row.P)
		for k, values := range [][]float64{row.BaseVals, row.HeadVals} {
			a := gate.Arm{Median: sample.Quantile(values, 0.5), N: rounds, CI: stat.MedianInterval(values, 0.95)}
			if k == 0 {
				row.Base = a
			} else {
				row.Head = a
			}
		}
		if word == gate.Regression {
			row.Reason = fmt.Sprintf("crossed %d of %d at look 2, confirmed 15 of 15", row.Slower, rounds)
		}
		r.Rows = append(r.Rows, row)
	}
	add("wall/workload=reshape/size=medium", 0.012, 1.111, 0.02, 15, gate.Regression, true)
	add("kill/gc=on", 0.0012, 1.19, 0.05, 20, gate.Regression, true)
	add("wall/workload=date/size=medium", 0.021, 1.12, 0.02, 15, gate.Waived, true)
	add("wall/workload=json/size=medium", 0.004, 0.90, 0.02, 15, gate.Improvement, true)
	add("loop/of=reshapes/backend=pool/workers=4/gc=on/figure=longest", 0.004, 1.03, 0.09, 60, gate.Inconclusive, true)
	for _, w := range []string{"join", "template", "extract", "sort", "classes", "kernel"} {
		for _, size := range []string{"small", "medium"} {
			add("wall/workload="+w+"/size="+size, 0.01, 1+0.004*rng.NormFloat64(), 0.02, 15, gate.OK, true)
		}
	}
	add("fresh/op=eval", 25e-6, 1.001, 0.02, 10, gate.OK, true)
	add("cold/of=vm", 5e-4, 0.999, 0.02, 10, gate.OK, true)
	add("fresh/op=runtime", 3.4e-4, 1.001, 0.03, 10, gate.OK, true)
	add("cold/of=process/cache=filled", 0.2, 1.02, 0.06, 10, gate.Inconclusive, false)
	add("marshal/dir=in/size=16MiB/backend=process", 0.034, 0.97, 0.05, 10, gate.Inconclusive, false)
	r.Rows = append(r.Rows, gate.Row{Name: "wall/workload=new/size=medium", Unit: sample.Seconds, Better: "lower", Lane: gate.Time, Verdict: gate.New, Head: gate.Arm{Median: 0.01, N: 5}})
	exact := func(name, unit string, base, head float64, word gate.Word, gated bool) {
		r.Rows = append(r.Rows, gate.Row{Name: name, Unit: unit, Better: "lower", Lane: gate.Exact, Gated: gated, Base: gate.Arm{Median: base, N: 1}, Head: gate.Arm{Median: head, N: 1}, Ratio: head / base, Verdict: word})
		for i, v := range []float64{base, head} {
			launches = append(launches, gate.Launch{Schema: 1, Row: name, Unit: unit, Better: "lower", Lane: gate.Exact, Stage: gate.Screen, Arm: []string{gate.Base, gate.Head}[i], Value: v, Inner: 1, Started: started})
		}
	}
	exact("fuel/workload=reshape/size=medium", sample.Fuel, 1234567, 1234567, gate.Unchanged, true)
	exact("allocs/workload=reshape/size=medium", sample.Count, 120, 131, gate.Regression, true)
	exact("peak/workload=join/size=medium", sample.Bytes, 3<<20, 3<<20-65536, gate.Changed, true)
	return r, launches
}

// inventedHistory has a step of 6 % in its first row and none in the second; its
// reference was pinned anew, with enough runs against both.
func inventedHistory() []HistoryRun {
	rng := rand.New(rand.NewPCG(5, 6))
	var runs []HistoryRun
	add := func(i int, reference string, scale float64) {
		row := func(name string, ratio float64) HistoryRow {
			return HistoryRow{Row: name, Unit: sample.Seconds, Better: "lower", Ratio: scale * ratio * math.Exp(0.006*rng.NormFloat64())}
		}
		level := 1.0
		if i >= 30 {
			level = 1.06
		}
		runs = append(runs, HistoryRun{Schema: 1, Started: time.Date(2026, 1, 1+i, 0, 0, len(runs), 0, time.UTC), Commit: fmt.Sprintf("%040x", 0xabc000+i), Reference: reference, CPU: "A | processor",
			Rows: []HistoryRow{row("wall/workload=reshape/size=medium", level), row("wall/workload=join/size=medium", 1.01)}})
	}
	for i := range 50 {
		if i < 22 {
			add(i, "old", 1.25)
		}
		if i >= 10 {
			add(i, "new", 1)
		}
	}
	return runs
}

// hostile has names, refs and texts that try to be markup, to hide or to burst the page.
func hostile() gate.Report {
	bad := []string{
		"a|b", "`code` ``more``", "<script>alert(1)</script>", "</script><img src=x onerror=alert(1)>", "[link](http://example.com)", "@everyone #1", "*bold* _it_ \\| \\", "two\nlines\r\n| x |", "-->",
		"\u202egnp.exe", "עברית/مثال", strings.Repeat("very-long/", 200), "", "</details></table>", "```\nfence", "\x00\x1b[31m", "\xff\xfe",
	}
	r := gate.Report{Schema: 1, Verdict: bad[3], Proved: bad[2] + bad[7], Base: gate.Ref{Name: bad[1], Commit: bad[4]}, Head: gate.Ref{Name: bad[2], Commit: bad[9]}, Warnings: bad}
	r.BaseEnv.Engine, r.HeadEnv.Engine, r.HeadEnv.CPU = bad[8], bad[8]+bad[2], bad[7]
	for i, name := range bad {
		row := gate.Row{Name: name, Unit: "sec", Better: "lower", Lane: gate.Time, Gated: i%2 == 0, Ratio: 1, Theta: 0.05, Rounds: 10, Verdict: gate.Regression, Reason: name, LogRatios: []float64{0, 0.1, math.NaN()}, Orders: []string{"AB"},
			BaseVals: []float64{1, 2}, HeadVals: []float64{2, 1}, MDE: math.Inf(1), P: math.NaN(), PAdj: math.NaN(), Interval: stat.Interval{Low: math.NaN(), High: math.Inf(1)}}
		row.Base, row.Head = gate.Arm{Median: 1, N: 2}, gate.Arm{Median: 1, N: 2}
		r.Rows = append(r.Rows, row)
		r.Rows = append(r.Rows, gate.Row{Name: name, Unit: name, Lane: gate.Exact, Verdict: gate.Word(name), Base: row.Base, Head: row.Head})
		r.Controls = append(r.Controls, gate.Control{Kind: name, Row: name, Ratio: math.NaN()})
		r.Waivers = append(r.Waivers, gate.Waiver{Row: name, Unit: name, Issue: name, Reason: name, State: name})
	}
	return r
}

func TestComparisonMarkdown(t *testing.T) {
	r, launches := inventedComparison()
	history, err := History(inventedHistory())
	if err != nil {
		t.Fatal(err)
	}
	c := &comparison{Report: r, launches: launches, history: history}
	golden(t, "comparison.md", c.markdown(layout{pictures: true, rows: math.MaxInt}))
	quiet := gate.Report{Schema: 1, Verdict: "ok", Proved: "No slowdown of 5 % or more.", Unpaired: true, Base: gate.Ref{Name: "old.txt"}, Head: gate.Ref{Name: "new.txt"}}
	golden(t, "comparison-empty.md", (&comparison{Report: quiet}).markdown(layout{pictures: true, rows: math.MaxInt}))
	golden(t, "comparison-hostile.md", (&comparison{Report: hostile()}).markdown(layout{rows: math.MaxInt}))
}
