package reports

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/perf/benchfmt"
	"image/png"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

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
		Fitness: &gate.Fitness{Fit: true, Steal: 0.012, PSI: 3.1, Kernels: []gate.Kernel{{Name: "arithmetic", Before: 0.0201, After: 0.0203, Spread: 0.021, Drift: 0.01}, {Name: "pointer chase", Before: 0.031, After: 0.030, Spread: 0.052, Drift: -0.032}}},
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
		runs = append(runs, HistoryRun{Schema: 1, Started: time.Date(2026, 1, 1+i, 0, 0, len(runs), 0, time.UTC), Commit: fmt.Sprintf("%06x%034x", 0xabc000+i, 0), Reference: reference, CPU: "A | processor",
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

// cells splits a row of a table as GitHub does: at each bar that no backslash takes away.
func cells(line string) int {
	n := -1
	for i := 0; i < len(line); i++ {
		switch line[i] {
		case '\\':
			i++
		case '|':
			n++
		}
	}
	return n
}

func TestHostileMarkdown(t *testing.T) {
	text := string((&comparison{Report: hostile()}).markdown(layout{rows: math.MaxInt}))
	width, tables, fenced, open := 0, 0, false, 0
	for _, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		switch {
		case fenced:
		case strings.HasPrefix(line, "|"):
			if width == 0 {
				width, tables = cells(line), tables+1
			}
			if got := cells(line); got != width {
				t.Errorf("%d cells in a table of %d: %s", got, width, line)
			}
		default:
			width = 0
		}
		open += strings.Count(line, "<details>") - strings.Count(line, "</details>")
		if !fenced && strings.Contains(strings.NewReplacer("<details>", "", "</details>", "", "<summary>", "", "</summary>", "", "<code>", "", "</code>", "", "<!-- benchrun", "").Replace(line), "<") {
			t.Errorf("an element that is not the report's: %s", line)
		}
	}
	if tables < 5 || open != 0 || fenced {
		t.Errorf("got %d tables, %d folds and a fence (%v) left open", tables, open, fenced)
	}
	before, rest, _ := strings.Cut(text, "```sh\n")
	_, after, _ := strings.Cut(rest, "\n```\n")
	for _, bad := range []string{"\u202e", "@everyone", "\x00", "\x1b", "\xff", "]("} {
		if i := strings.Index(strings.NewReplacer("`@everyone #1`", "", "`[link](http://example.com)`", "", "\\[link](", "").Replace(before+after), bad); i >= 0 {
			t.Errorf("%q is in the report as it came", bad)
		}
	}
	if first, _, _ := strings.Cut(text, "\n"); first != "<!-- benchrun:report v=1 suite=script-alert-1-/script -->" {
		t.Errorf("marker %q", first)
	}
}

// TestFit: parts go in their order, the text says so, and what decides stays.
func TestFit(t *testing.T) {
	r, launches := inventedComparison()
	history, err := History(inventedHistory())
	if err != nil {
		t.Fatal(err)
	}
	rows := r.Rows
	seen := map[int]bool{}
	last := 0
	for _, n := range []int{0, 40, 60, 80, 100, 120, 140, 144, 148, 152, 156, 160, 164, 168, 172, 176, 180, 184, 188, 192, 196, 400} {
		r.Rows = slices.Clone(rows)
		for i := range n {
			row := rows[i%5]
			row.Name = fmt.Sprintf("wall/workload=%s%d/size=medium", strings.Repeat("long", 23), i)
			r.Rows = append(r.Rows, row)
		}
		long := slices.Clone(history)
		for i := range 30 { // about as long as the other parts
			s := history[0]
			s.Row = fmt.Sprintf("row=%d/%s", i, strings.Repeat("long", 20))
			long = append(long, s)
		}
		c := &comparison{Report: r, launches: launches, history: long}
		text := string(c.fit(commentLimit, utf8.RuneCount))
		if got := utf8.RuneCountInString(text); got > commentLimit {
			t.Errorf("%d more rows: %d characters", n, got)
		}
		left := 0
		for i, part := range []string{"<summary>History<", "<summary>All rows<", "<summary>Environment<"} {
			if strings.Contains(text, part) {
				continue
			}
			if left != i {
				t.Errorf("%d more rows: %s is gone, one that should go sooner is not", n, part)
			}
			left = i + 1
		}
		want := "Left out for length: " + strings.Join(droppable[:left], ", ") + "."
		if (left > 0) != strings.Contains(text, want) {
			t.Errorf("%d more rows: the text does not say %q, or without cause", n, want)
		}
		if left < last {
			t.Errorf("%d more rows: %d parts left out, of a shorter report %d", n, left, last)
		}
		last, seen[left] = left, true
		for _, want := range []string{"<!-- benchrun:report v=1 suite=an-engine -->\n", "**❌ Regression.** 2 of 20", "## Controls", "fired, as it must", "exit code 1."} {
			if !strings.Contains(text, want) {
				t.Errorf("%d more rows: %q is gone", n, want)
			}
		}
	}
	if !seen[0] || !seen[1] || !seen[2] || !seen[3] {
		t.Errorf("parts left out: %v, want reports with none, one, two and three", seen)
	}
	// Nothing but rows: fewer are shown.
	h := hostile()
	for len(h.Rows) < 3000 {
		h.Rows = append(h.Rows, h.Rows[:34]...)
	}
	for i := range h.Rows {
		h.Rows[i].Name = strings.Repeat("<|>`", 50)
	}
	text := (&comparison{Report: h}).fit(commentLimit, utf8.RuneCount)
	if utf8.RuneCount(text) > commentLimit || !strings.Contains(string(text), "more rows, in report.md") {
		t.Errorf("%d characters of hostile rows, or it does not say that some are left out", utf8.RuneCount(text))
	}
	if got := len((&comparison{Report: h}).fit(summaryLimit, func(b []byte) int { return len(b) })); got > summaryLimit {
		t.Errorf("a summary of %d bytes", got)
	}
}

func TestWriteComparison(t *testing.T) {
	r, launches := inventedComparison()
	dir := written(t, r, launches)
	read := func(name string) []byte {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, name := range []string{"report.md", "comment.md", "summary.md"} {
		if !bytes.HasPrefix(read(name), []byte("<!-- benchrun:report v=1 suite=an-engine -->\n")) {
			t.Errorf("%s: no marker", name)
		}
	}
	back, err := DecodeComparison(read("report.json"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, back, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("report.json is not what was written (−want +got):\n%s", diff)
	}
	for name, want := range map[string][]string{
		"badge.json":             {`"schemaVersion": 1`, `"label": "benchmarks"`, `"message": "3 regressed"`, `"color": "red"`},
		"env.json":               {`"commit": "0123456789abcdef0123456789abcdef01234567"`, `"engine": "an engine, version 1.1"`},
		"calib.json":             {`"fit": true`, `"pointer chase"`},
		"design.json":            {`"kind": "abba-sign-gs"`, `"seed": 7`},
		"bmf.json":               {`"kill/gc=on": {`, `"latency": {`, `"lower_value": `, `"fuel": {`},
		"smaller-is-better.json": {`"name": "kill/gc=on"`, `"unit": "sec"`, `"range": "± `, `"extra": "REGRESSION; base `},
	} {
		data := read(name)
		if !json.Valid(data) {
			t.Errorf("%s is not JSON", name)
		}
		for _, w := range want {
			if !bytes.Contains(data, []byte(w)) {
				t.Errorf("%s does not say %s:\n%.600s", name, w, data)
			}
		}
	}
	for name, want := range map[string][]string{
		forestPlot:  {"Head against base, by row", "head ÷ base (logarithmic)", "regression", "improvement", "OK", "within the margin", "not bounded yet", "wall/workload=reshape/size=medium", "(not gated)"},
		roundsPlot:  {"Ratio by round (logarithmic): the first 6 of 22 rows", "base first", "head first", "median", "margin", "round", "head ÷ base"},
		ecdfPlot:    {"Launches within a value", "base", "head", "launches, %", "ms"},
		historyPlot: {"Ratio to the reference by run", "level (median)", "change point", "run ÷ reference"},
	} {
		checkPlot(t, dir, name, want)
	}

	// A report of nothing: what it has nothing for is gone, and nothing half written is left.
	if err := os.Remove(filepath.Join(dir, HistoryFile)); err != nil {
		t.Fatal(err)
	}
	if err := WriteComparison(dir, gate.Report{Schema: 1, Verdict: "inconclusive"}, nil); err != nil {
		t.Fatal(err)
	}
	var names []string
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			t.Fatal(err)
		}
		if !d.IsDir() {
			names = append(names, d.Name())
		}
		return nil
	})
	if got := strings.Join(names, " "); got != "badge.json base.txt head.txt bmf.json comment.md design.json env.json report.html report.json report.md smaller-is-better.json summary.md" {
		t.Errorf("after a report of nothing: %s", got)
	}
}

// checkPlot: both files are there, well formed, as wide as they must be, and say what they show.
func checkPlot(t *testing.T, dir, name string, want []string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "plots", name+".png"))
	if err != nil {
		t.Fatal(err)
	}
	if img, err := png.Decode(bytes.NewReader(data)); err != nil || img.Bounds().Dx() != 800 {
		t.Errorf("%s.png: %v, want a picture 800 pixels wide", name, err)
	}
	svg, err := os.ReadFile(filepath.Join(dir, "plots", name+".svg"))
	if err != nil {
		t.Fatal(err)
	}
	text := "\n"
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%s.svg: %v", name, err)
		}
		if c, ok := tok.(xml.CharData); ok {
			text += string(c) + "\n"
		}
	}
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("%s.svg does not say %q", name, w)
		}
	}
	if got, want := bytes.Count(svg, []byte("textLength=")), bytes.Count(svg, []byte("<text ")); got != want || got == 0 {
		t.Errorf("%s.svg: %d of %d texts say how wide they are", name, got, want)
	}
}

func TestHostilePlots(t *testing.T) {
	dir := written(t, hostile(), nil)
	for _, name := range []string{forestPlot, roundsPlot, ecdfPlot} {
		checkPlot(t, dir, name, nil)
	}
}

// TestWriteComparisonKeepsTheOldFiles: what cannot be written changes nothing.
func TestWriteComparisonKeepsTheOldFiles(t *testing.T) {
	r, launches := inventedComparison()
	dir := written(t, r, launches)
	before, err := os.ReadFile(filepath.Join(dir, "report.md"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, HistoryFile), []byte("{\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r.Proved = "something else"
	if err := WriteComparison(dir, r, launches); err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Fatalf("got %v, want an error that names the line", err)
	}
	if after, err := os.ReadFile(filepath.Join(dir, "report.md")); err != nil || !bytes.Equal(before, after) {
		t.Errorf("a refused report changed report.md (%v)", err)
	}
}

func TestDecodeComparisonRefuses(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"{", "unexpected end"}, {`{"schema": 2, "verdict": "ok"}`, "schema 2"}, {`{"schema": 1, "samples": []}`, "not that of a run"},
	} {
		if _, err := DecodeComparison([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.text, err, c.want)
		}
	}
}

// TestBenchfmt: a reader finds each launch once, in keys that both files share.
func TestBenchfmt(t *testing.T) {
	r, launches := inventedComparison()
	for _, c := range []struct {
		name     string
		r        gate.Report
		launches []gate.Launch
		want     [2]int // results a file
	}{
		{"launches", r, launches, [2]int{len(launches) / 2, len(launches) / 2}},
		{"values of rows", gate.Report{Rows: r.Rows[:2]}, nil, [2]int{35, 35}},
		{"hostile", hostile(), nil, [2]int{34, 34}},
		{"failed and absent", r, []gate.Launch{
			{Row: "a/b=c", Unit: "sec", Arm: gate.Base, Value: 1}, {Row: "a/b=c", Unit: "sec", Arm: gate.Head, Failed: "wrong\nBenchmarkX 1 2 sec/op"},
			{Row: "a/b=d", Unit: "sec", Arm: gate.Base, Absent: true}, {Row: "a/b=d", Unit: "sec", Arm: gate.Head, Value: 1},
			{Row: "a/b=c", Unit: "sec", Control: gate.Null, Arm: gate.Base, Value: 1},
		}, [2]int{1, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			page := &comparison{Report: c.r, launches: c.launches}
			var configs [2]string
			for i, arm := range []string{gate.Base, gate.Head} {
				data, err := page.benchfmt(arm)
				if err != nil {
					t.Fatal(err)
				}
				n := 0
				for in := benchfmt.NewReader(bytes.NewReader(data), arm); in.Scan(); {
					switch rec := in.Result().(type) {
					case *benchfmt.Result:
						n++
						configs[i] = fmt.Sprint(rec.Config)
						if len(rec.Values) != 1 {
							t.Errorf("%s: %d values in a line", rec.Name, len(rec.Values))
						}
					case *benchfmt.SyntaxError:
						t.Error(rec)
					}
				}
				if n != c.want[i] {
					t.Errorf("%s: got %d results, want %d:\n%.800s", arm, n, c.want[i], data)
				}
			}
			if configs[0] != configs[1] {
				t.Errorf("keys of the files differ, so benchstat would compare nothing:\n%s\n%s", configs[0], configs[1])
			}
		})
	}
}

// TestBenchstat: the tool itself prints one table a unit, with a delta.
func TestBenchstat(t *testing.T) {
	r, launches := inventedComparison()
	dir := written(t, r, launches)
	cmd := exec.Command("go", "tool", "benchstat", "base="+filepath.Join(dir, "bench", "base.txt"), "head="+filepath.Join(dir, "bench", "head.txt"))
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=readonly", "GOPROXY=off")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("benchstat: %v\n%s", err, out)
	}
	for pattern, want := range map[string]int{
		`(?m)│ +sec/op +│ +sec/op +vs base +│`: 1,
		`(?m)vs base`: 4, // sec, fuel, count, B
		`(?m)^Wall/workload=reshape/size=medium-2 .*\+1[01]\.\d+% \(p=0\.000 n=15\)`: 1,
		`(?m)^Allocs/workload=reshape/size=medium-2 .*\+9\.17% \(n=1\)`:              1, // exact: no p
		`(?m)^goos: linux`: 1,
	} {
		if got := len(regexp.MustCompile(pattern).FindAll(out, -1)); got != want {
			t.Errorf("%s: got %d, want %d in\n%s", pattern, got, want, out)
		}
	}
}

func TestBadge(t *testing.T) {
	for verdict, want := range map[string]string{"ok": "no slowdown of 5 %", "inconclusive": "inconclusive", "unfit": "runner unfit", "failed": "failed"} {
		c := &comparison{Report: gate.Report{Verdict: verdict, Design: gate.Design{Theta: 0.05}}}
		if b, err := c.badge(); err != nil || !bytes.Contains(b, []byte(`"message": "`+want+`"`)) {
			t.Errorf("%s: got %s, %v, want %q", verdict, b, err, want)
		}
	}
}

func TestSpan(t *testing.T) {
	inf := math.Inf(1)
	for _, c := range []struct {
		low, high float64
		want      string
	}{{1.0941, 1.131, "1.094 – 1.131"}, {-inf, 1.2, "≤ 1.200"}, {0, 1.2, "≤ 1.200"}, {0.9, inf, "≥ 0.900"}, {-inf, inf, "–"}, {math.NaN(), math.NaN(), "–"}} {
		if got := span(stat.Interval{Low: c.low, High: c.high}); got != c.want {
			t.Errorf("%v to %v: got %q, want %q", c.low, c.high, got, c.want)
		}
	}
}

func TestValidationPlots(t *testing.T) {
	dir := t.TempDir()
	var points []PowerPoint
	for i, found := range []int{0, 3, 19, 20} {
		points = append(points, PowerPoint{"margin 5 %", []float64{0.02, 0.05, 0.1, 0.2}[i], found, 20}, PowerPoint{"margin 2 %", []float64{0.02, 0.05, 0.1, 0.2}[i], min(20, found*6), 20})
	}
	if err := WritePower(dir, points); err != nil {
		t.Fatal(err)
	}
	checkPlot(t, dir, "power", []string{"Power: injected slowdowns that the gate found", "injected slowdown, %", "95 % interval", "margin 5 %", "margin 2 %", "aim: 95 %", "\n20\n"})
	if err := WriteAA(dir, []float64{0.01, -0.02, 0.001, 0.002, math.NaN()}, 0.05, 0, 40); err != nil {
		t.Fatal(err)
	}
	checkPlot(t, dir, "aa", []string{"0 of 40 comparisons fired (at most 7.22 % with 95 % confidence)", "4 rows", "margin: 5 %", "difference found where there is none, %"})
	// Of nothing there is no plot, nor an old one.
	if err := WritePower(dir, nil); err != nil {
		t.Fatal(err)
	}
	if err := WriteAA(dir, nil, 0.05, 0, 0); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "plots", "*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}
