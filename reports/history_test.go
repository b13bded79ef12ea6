package reports

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbed/sandbed/bench/gate"
	"github.com/sandbed/sandbed/bench/stat"
)

func TestHistoryFindsTheStep(t *testing.T) {
	history, err := History(inventedHistory())
	if err != nil {
		t.Fatal(err)
	}
	if len(history) != 2 {
		t.Fatalf("got %d series, want 2", len(history))
	}
	step, flat := history[0], history[1]
	if step.Row != "wall/workload=reshape/size=medium" || len(step.Changes) != 1 || len(flat.Changes) != 0 {
		t.Fatalf("got changes %v of %s and %v, want one step in the first", step.Changes, step.Row, flat.Changes)
	}
	// The reference was pinned anew at run 10 with 12 runs against both: all 50 commits are one
	// series, and the 25 % between the references is no step.
	if len(step.Points) != 50 || step.Cut != "" || step.Reference != "new" {
		t.Errorf("got %d points, cut %q, reference %q, want 50 against the newer", len(step.Points), step.Cut, step.Reference)
	}
	c := step.Changes[0]
	if c.Commit != fmt.Sprintf("%06x%034x", 0xabc000+30, 0) || math.Abs(c.Step-0.06) > 0.01 {
		t.Errorf("got %v, want about +6 %% at commit 30", c)
	}
	if got := c.String(); !strings.HasPrefix(got, "+6.") && !strings.HasPrefix(got, "+5.") || !strings.Contains(got, " % at abc01e000000 (") {
		t.Errorf("got %q", got)
	}
}

func TestHistorySplice(t *testing.T) {
	at := func(i int) time.Time { return time.Date(2026, 1, 1, 0, i, 0, 0, time.UTC) }
	run := func(i int, commit, reference string, ratio float64) HistoryRun {
		return HistoryRun{Schema: 1, Started: at(i), Commit: commit, Reference: reference, Rows: []HistoryRow{{Row: "a/b=c", Unit: "sec", Better: "lower", Ratio: ratio}}}
	}
	for _, c := range []struct {
		name         string
		both, points int
		cut          bool
	}{{"nine on both", spliceRuns - 1, spliceRuns, true}, {"ten on both", spliceRuns, spliceRuns + 2, false}} {
		t.Run(c.name, func(t *testing.T) {
			runs := []HistoryRun{run(0, "first", "old", 2)}
			for i := range c.both {
				commit := fmt.Sprintf("both%d", i)
				runs = append(runs, run(1+2*i, commit, "old", 2.2), run(2+2*i, commit, "new", 1.1))
			}
			runs = append(runs, run(100, "last", "new", 1.1))
			runs[0], runs[3] = runs[3], runs[0] // the order of the file does not matter
			history, err := History(runs)
			if err != nil {
				t.Fatal(err)
			}
			s := history[0]
			if len(s.Points) != c.points || (s.Cut != "") != c.cut {
				t.Fatalf("got %d points, cut %q, want %d, %v", len(s.Points), s.Cut, c.points, c.cut)
			}
			if !c.cut && (s.Points[0].Commit != "first" || math.Abs(s.Points[0].Ratio-1) > 1e-12) {
				t.Errorf("got %+v, want the first run at 2 ÷ 2", s.Points[0])
			}
			if c.cut && !strings.Contains(s.Cut, "against old are left out: 9 commits") {
				t.Errorf("it says %q", s.Cut)
			}
		})
	}
}

func TestAddHistory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "history.ndjson")
	r, _ := inventedComparison()
	if _, err := NewHistoryRun(r); err == nil || !strings.Contains(err.Error(), "uncommitted") {
		t.Errorf("a head with changes: got %v", err)
	}
	r.Head.Dirty = false
	run, err := NewHistoryRun(r)
	if err != nil {
		t.Fatal(err)
	}
	if run.Commit != r.Head.Commit || run.Reference != r.Base.Commit || len(run.Rows) != 25 { // a new row has no ratio
		t.Errorf("got %d rows of %s against %s", len(run.Rows), run.Commit, run.Reference)
	}
	for i, want := range []bool{true, false} {
		if added, err := AddHistory(file, run); added != want || err != nil {
			t.Errorf("the same run, time %d: got %v, %v, want %v", i+1, added, err, want)
		}
	}
	later := run
	later.Started = later.Started.Add(time.Hour)
	if added, err := AddHistory(file, later); !added || err != nil {
		t.Errorf("a later run: got %v, %v", added, err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	runs, err := DecodeHistory(bytes.NewReader(data))
	if err != nil || len(runs) != 2 || bytes.Count(data, []byte("\n")) != 2 {
		t.Fatalf("got %d runs in %d lines, %v, want 2", len(runs), bytes.Count(data, []byte("\n")), err)
	}
	if got, want := runs[0].Rows[4].Interval, run.Rows[4].Interval; got != want {
		t.Errorf("interval: got %v, want %v", got, want)
	}

	for _, c := range []struct {
		name string
		edit func(*gate.Report)
		want string
	}{
		{"unpaired", func(r *gate.Report) { r.Unpaired = true }, "unpaired"},
		{"unfit", func(r *gate.Report) { r.Verdict = "unfit" }, "unfit"},
		{"no commit", func(r *gate.Report) { r.Base.Commit = "" }, "commit is missing"},
		{"no rows", func(r *gate.Report) { r.Rows = nil }, "no row"},
	} {
		bad := r
		c.edit(&bad)
		if _, err := NewHistoryRun(bad); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

// TestHistoryRefuses: an error names the line, and leaves the file as it was.
func TestHistoryRefuses(t *testing.T) {
	good, err := json.Marshal(HistoryRun{Schema: 1, Commit: "c", Rows: []HistoryRow{{Row: "a", Ratio: 1, Interval: stat.Interval{Low: math.Inf(-1), High: math.Inf(1)}}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ text, want string }{
		{string(good) + "\n{\n", "line 2"},
		{"\n" + strings.Replace(string(good), `"schema":1`, `"schema":9`, 1), "line 2: schema 9"},
		{strings.Replace(string(good), `"ratio":1`, `"ratio":0`, 1), `row "a": ratio 0`},
		{strings.Replace(string(good), `"ratio":1`, `"ratio":-1`, 1), "ratio -1"},
	} {
		file := filepath.Join(t.TempDir(), "history.ndjson")
		if err := os.WriteFile(file, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := AddHistory(file, HistoryRun{Schema: 1}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got %v, want %q", c.text, err, c.want)
		}
		if after, err := os.ReadFile(file); err != nil || string(after) != c.text {
			t.Errorf("a refused file was changed: %q, %v", after, err)
		}
	}
}

func TestSparkline(t *testing.T) {
	points := func(ratios ...float64) (out []HistoryPoint) {
		for _, r := range ratios {
			out = append(out, HistoryPoint{Ratio: r})
		}
		return out
	}
	for _, c := range []struct {
		points []HistoryPoint
		want   string
	}{{points(1, 1.5, 2), "▁▅█"}, {points(1, 1.001), "▁▁"}, {points(), ""}, {points(2, 1), "█▁"}} {
		if got := sparkline(c.points); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
