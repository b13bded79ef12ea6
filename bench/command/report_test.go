package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbed/sandbed/bench/gate"
	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/reports"
)

// put writes files into a new directory.
func put(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// compared is the directory that a comparison leaves: one row, head slower by the ratio.
func compared(t *testing.T, ratio float64) string {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	started := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	design := gate.DefaultDesign([]gate.RowPlan{{Row: "wall/workload=join"}}, 1)
	var launches []gate.Launch
	pair := func(stage, control, arm string, ratio float64, layout int) {
		for round := range 15 {
			for k, a := range []string{gate.Base, arm} {
				order := []string{"AB", "BA", "BA", "AB"}[round%4]
				if stage == gate.Confirm {
					order = []string{"BA", "AB", "AB", "BA"}[round%4]
				}
				launches = append(launches, gate.Launch{Schema: 1, Row: "wall/workload=join", Unit: sample.Seconds, Better: "lower", Lane: gate.Time, Stage: stage, Control: control, Arm: a, Round: round,
					Order: order, First: (k == 0) == (order == "AB"), Layout: layout + round%3, Value: 0.02 * math.Pow(ratio, float64(k)) * math.Exp(0.005*rng.NormFloat64()), Inner: 5, Batch: 0.02, Started: started})
			}
		}
	}
	pair(gate.Screen, "", gate.Head, ratio, 1)
	pair(gate.Screen, gate.Null, gate.Null, 1, 1)
	pair(gate.Screen, gate.Injected, gate.Injected, 1.1, 1)
	if ratio > 1.05 {
		pair(gate.Confirm, "", gate.Head, ratio, 4)
	}
	var samples, plan bytes.Buffer
	if err := gate.Write(&samples, launches...); err != nil {
		t.Fatal(err)
	}
	if err := gate.WriteDesign(&plan, design); err != nil {
		t.Fatal(err)
	}
	return put(t, map[string]string{
		"raw/samples.ndjson": samples.String(), "design.json": plan.String(), "calib.json": `{"fit": true, "kernels": [{"name": "arithmetic", "before_sec": 0.02, "after_sec": 0.02, "spread": 0.01, "drift": 0.01}], "steal": 0, "psi_avg10": -1}`,
		"raw/run.json": `{"schema": 1, "base": {"name": "main", "commit": "0123abc"}, "head": {"name": "HEAD", "commit": "fedcba9"}, "started": "2026-01-02T03:04:05Z"}`,
	})
}

// TestReport: what is on disk is judged again and written; the verdict does not change the exit code.
func TestReport(t *testing.T) {
	dir := compared(t, 1.2)
	code, stdout, stderr := run(t, nil, "", "report", "--in", dir)
	if code != exitHeld || stderr != "" || !strings.Contains(stdout, "report: "+filepath.Join(dir, "report.md")) {
		t.Fatalf("got %d, %q, %q", code, stdout, stderr)
	}
	text, err := os.ReadFile(filepath.Join(dir, "report.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<!-- benchrun:report v=1", "**❌ Regression.**", "| `wall/workload=join` | 20", "10 / 10", "🔴 REGRESSION", "fired, as it must"} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("report.md does not say %q:\n%s", want, text)
		}
	}
	// What was measured of the machine is what compare wrote, however often it is judged.
	if calib, err := os.ReadFile(filepath.Join(dir, "calib.json")); err != nil || !bytes.Contains(calib, []byte(`"name": "arithmetic"`)) || !bytes.Contains(calib, []byte(`"psi_avg10": -1`)) {
		t.Errorf("calib.json, %v: %s", err, calib)
	}
	// Again, into another place, as JSON: the same verdict.
	out := filepath.Join(t.TempDir(), "other")
	code, stdout, stderr = run(t, nil, "", "report", "--in", dir, "--out", out, "--json")
	again, err := reports.DecodeComparison([]byte(stdout))
	if code != exitHeld || err != nil || again.Exit != gate.ExitRegression {
		t.Fatalf("got %d, %v, exit %d, %q", code, err, again.Exit, stderr)
	}
	for _, name := range []string{"report.md", "report.html", "comment.md", "plots/forest.png", "bench/base.txt"} {
		if _, err := os.Stat(filepath.Join(out, filepath.FromSlash(name))); err != nil {
			t.Error(err)
		}
	}
}

// benchText is what go test -bench writes, ten times.
func benchText(rng *rand.Rand, ns float64) string {
	var b strings.Builder
	b.WriteString("goos: linux\ngoarch: amd64\npkg: example.org/p\n")
	for range 10 {
		fmt.Fprintf(&b, "BenchmarkJoin/size=small-2 1000 %.1f ns/op 48 B/op 3 allocs/op\n", ns*math.Exp(0.01*rng.NormFloat64()))
	}
	return b.String()
}

func TestReportOfBenchFiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	dir := put(t, map[string]string{"old.txt": benchText(rng, 1000), "new.txt": benchText(rng, 1200)})
	out := filepath.Join(dir, "out")
	code, stdout, stderr := run(t, nil, "", "report", filepath.Join(dir, "old.txt"), filepath.Join(dir, "new.txt"), "--out", out)
	if code != exitHeld || stderr != "" {
		t.Fatalf("got %d, %q, %q", code, stdout, stderr)
	}
	text, err := os.ReadFile(filepath.Join(out, "report.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Join/size=small-2", "🔴 REGRESSION", "unpaired files", "Mann-Whitney", "benchrun report ", "µs/op"} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("report.md does not say %q:\n%s", want, text)
		}
	}
	values, err := os.ReadFile(filepath.Join(out, "bench", "head.txt"))
	if err != nil || bytes.Count(values, []byte("\nBenchmarkJoin/size=small-2 1 ")) != 30 { // three units
		t.Errorf("head.txt, %v:\n%s", err, values)
	}
}

// TestReportOfOneBuild: the directory of benchrun run is drawn again.
func TestReportOfOneBuild(t *testing.T) {
	text, err := sample.Encode(sample.Run{Environment: sample.Environment{Engine: "canned"}, Samples: []sample.Sample{sample.New("wall/workload=join", sample.Seconds, []float64{1, 2, 3})}})
	if err != nil {
		t.Fatal(err)
	}
	dir := put(t, map[string]string{"report.json": string(text)})
	code, stdout, stderr := run(t, nil, "", "report", "--in", dir)
	if code != exitHeld || !strings.Contains(stdout, "1 rows of one build") {
		t.Fatalf("got %d, %q, %q", code, stdout, stderr)
	}
	if report, err := os.ReadFile(filepath.Join(dir, "report.md")); err != nil || !bytes.HasPrefix(report, []byte("<!-- benchrun:run v=1 suite=canned -->")) {
		t.Errorf("%v: %.100s", err, report)
	}
}

func TestReportRefuses(t *testing.T) {
	dir := put(t, map[string]string{"new.txt": "nothing", "a/report.json": "{}", "file": ""})
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--in", filepath.Join(dir, "missing")}, "--in"},
		{[]string{"--in", filepath.Join(dir, "a")}, "--in"},
		{[]string{filepath.Join(dir, "new.txt")}, "two files"},
		{[]string{filepath.Join(dir, "new.txt"), filepath.Join(dir, "new.txt"), "--out", filepath.Join(dir, "out")}, "new.txt"},
		{[]string{"--in", compared(t, 1), "--out", filepath.Join(dir, "file", "x")}, "--out"},
		{[]string{"--in", compared(t, 1), "--waivers", filepath.Join(dir, "missing")}, "--waivers"},
	} {
		code, stdout, stderr := run(t, nil, "", append([]string{"report"}, c.args...)...)
		if code != exitUsage || stdout != "" || !strings.Contains(stderr, c.want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: got %d, %q, %q, want %q in one line", c.args, code, stdout, stderr, c.want)
		}
	}
}

func TestHistory(t *testing.T) {
	dir := compared(t, 1)
	if code, _, stderr := run(t, nil, "", "report", "--in", dir); code != exitHeld {
		t.Fatalf("report: %d, %q", code, stderr)
	}
	file := filepath.Join(dir, reports.HistoryFile)
	for i, want := range []string{"added 1 rows of fedcba9 against 0123abc\n", "fedcba9 is there already\n"} {
		code, stdout, stderr := run(t, nil, "", "history", "add", "--in", dir, "--file", file)
		if code != exitHeld || stdout != want {
			t.Errorf("time %d: got %d, %q, %q, want %q", i+1, code, stdout, stderr, want)
		}
	}
	code, stdout, stderr := run(t, nil, "", "history", "show", "--file", file, "--out", filepath.Join(dir, "drawn"))
	if code != exitHeld || !strings.HasPrefix(stdout, "1 runs against 0123abc\nwall/workload=join") {
		t.Errorf("show: got %d, %q, %q", code, stdout, stderr)
	}
	if _, err := os.Stat(filepath.Join(dir, "drawn", "plots", "history.png")); err != nil {
		t.Error(err)
	}
	_, stdout, _ = run(t, nil, "", "history", "show", "--file", file, "--json")
	var series []reports.Series
	if err := json.Unmarshal([]byte(stdout), &series); err != nil || len(series) != 1 || len(series[0].Points) != 1 {
		t.Errorf("show --json: %v, %q", err, stdout)
	}
	// The report of a directory that holds a history shows it.
	if code, _, stderr := run(t, nil, "", "report", "--in", dir); code != exitHeld {
		t.Fatalf("report: %d, %q", code, stderr)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "report.md")); err != nil || !bytes.Contains(text, []byte("<summary>History</summary>")) {
		t.Errorf("report.md has no history (%v)", err)
	}
	bad := put(t, map[string]string{"history.ndjson": "{", "empty": "", "report.json": `{"schema": 1}`})
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"show"}, "--file"},
		{[]string{"show", "--file", filepath.Join(bad, "history.ndjson")}, "line 1"},
		{[]string{"show", "--file", filepath.Join(bad, "empty")}, "has no runs"},
		{[]string{"show", "--file", filepath.Join(bad, "missing")}, "cannot be read"},
		{[]string{"add", "--in", bad, "--file", file}, "not that of a run"},
		{[]string{"add", "--in", dir, "--file", filepath.Join(bad, "history.ndjson")}, "line 1"},
		{[]string{"add", "--in", dir}, "--file"},
	} {
		code, stdout, stderr := run(t, nil, "", append([]string{"history"}, c.args...)...)
		if code != exitUsage || stdout != "" || !strings.Contains(stderr, c.want) {
			t.Errorf("%q: got %d, %q, %q, want %q", c.args, code, stdout, stderr, c.want)
		}
	}
}
