package command

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbed/sandbed/bench"
	"github.com/sandbed/sandbed/bench/compare"
	"github.com/sandbed/sandbed/bench/gate"
	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/engine"
)

// TestCompareRefuses: each argument that cannot be meant is named, before anything is built.
func TestCompareRefuses(t *testing.T) {
	t.Chdir(t.TempDir()) // in no repository
	for _, c := range []struct {
		args string
		want string // in the one line that is printed
	}{
		{"compare", `--base ""`},
		{"compare --base a --budget 0s", `--budget "0s"`},
		{"compare --base a --budget soon", `--budget "soon"`},
		{"compare --base a --shard 0/2 --package p", `--shard "0/2"`},
		{"compare --base a --shard 3/2 --package p", `--shard "3/2"`},
		{"compare --base a --shard 1/2/3 --package p", `--shard "1/2/3"`},
		{"compare --base a --shard one --package p", `--shard "one"`},
		{"compare --base a --seed 0 --package p", `--seed "0"`},
		{"compare --base a --waivers nowhere --package p", `--waivers "nowhere"`},
		{"compare --base a --package -x", `--package "-x"`},
		{"compare --base a --package p", "git repository"},
		{"merge", "DIR"},
		{"merge nowhere", `DIR "nowhere"`},
		{"aa --runs 0 --package p", `--runs "0"`},
		{"aa --noise loud --package p", `--noise "loud"`},
		{"aa --package p", "git repository"},
		{"power --inject 5,x --package p", `--inject "x"`},
		{"power --inject 0 --package p", `--inject "0"`},
		{"calibrate --for -1s", `--for "-1s"`},
		{"sample", `--row ""`},
		{"sample --row wall/workload=none/size=medium", `--row "wall/workload=none/size=medium"`},
		{"sample --row fresh/op=eval --batch 0", `--batch "0"`},
		{"sample --row fresh/op=eval --inject x", `--inject "x"`},
		{"sample --row fresh/op=eval --inject 1001", `--inject "1001"`},
	} {
		code, stdout, stderr := run(t, &canned{}, "", strings.Fields(c.args)...)
		if code != exitUsage || stdout != "" || !strings.Contains(stderr, c.want) && !strings.Contains(strings.ToLower(stderr), strings.ToLower(c.want)) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: got %d, %s%s, want %d and a line with %q", c.args, code, stdout, stderr, exitUsage, c.want)
		}
	}
}

func TestSample(t *testing.T) {
	two := &canned{outcome: engine.Outcome{Class: engine.ClassOK, Value: []byte("2")}}
	code, stdout, stderr := run(t, two, "", "sample", "--row", "fresh/op=eval", "--batch", "3")
	var r bench.Reading
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != 0 || r.Batch != 3 || r.Row != "fresh/op=eval" || r.Value <= 0 || strings.Count(stdout, "\n") != 1 {
		t.Errorf("got %d, %s%s, %v", code, stdout, stderr, err)
	}
	code, stdout, _ = run(t, two, "", "sample", "--list")
	var l bench.Listing
	if err := json.Unmarshal([]byte(stdout), &l); err != nil || code != 0 || len(l.Rows) < 20 || len(l.Gated) == 0 || l.Environment.Engine != "canned" {
		t.Errorf("got %d, %.200s, %v", code, stdout, err)
	}
	two.outcome.Value = []byte("3")
	if code, stdout, stderr := run(t, two, "", "sample", "--row", "fresh/op=eval", "--batch", "3"); code != exitFailed || stdout != "" || !strings.Contains(stderr, "fresh/op=eval") {
		t.Errorf("a wrong answer: got %d, %s%s", code, stdout, stderr)
	}
}

func TestCalibrateCommand(t *testing.T) {
	code, stdout, stderr := run(t, &canned{}, "", "calibrate", "--for", "0s", "--json")
	var f gate.Fitness
	if err := json.Unmarshal([]byte(stdout), &f); err != nil || len(f.Kernels) < 5 {
		t.Fatalf("got %s%s, %v", stdout, stderr, err)
	}
	want := exitHeld
	if !f.Fit {
		want = exitUnfit
	}
	if code != want || f.Fit == (len(f.Reasons) > 0) {
		t.Errorf("exit code %d for %+v, want %d", code, f, want)
	}
	if _, stdout, _ := run(t, &canned{}, "", "calibrate", "--for", "0s"); !strings.Contains(stdout, "interpreter") || !strings.Contains(stdout, "fit") {
		t.Errorf("got %s", stdout)
	}
}

// shard writes what compare --shard leaves of a row whose head costs factor times base.
func shard(t *testing.T, i, n int, row string, factor float64) string {
	t.Helper()
	dir := t.TempDir()
	plans := []gate.RowPlan{{Row: "wall/workload=a"}, {Row: "wall/workload=b"}}
	d := gate.DefaultDesign(plans, 1)
	d.Injection = 0
	d.LayoutSeeds = []int{1, 2, 3, 4, 5, 6}
	var launches []gate.Launch
	for stage, layout := range map[string]int{gate.Screen: 1, gate.Confirm: 4} {
		for round := range 15 {
			for k, arm := range []string{gate.Base, gate.Head} {
				value := 1e-3 * (1 + float64((7*round+3*k)%10)/1e5)
				if arm == gate.Head {
					value *= factor
				}
				launches = append(launches, gate.Launch{
					Schema: gate.Schema, Row: row, Unit: sample.Seconds, Better: "lower", Lane: gate.Time, Stage: stage,
					Arm: arm, Round: round, Order: []string{"AB", "BA"}[round%2], First: round%2 == k, Layout: layout, Value: value, Inner: 3, Batch: 0.025, Started: time.Unix(1e9, 0),
				})
			}
		}
	}
	write := func(name string, f func(*os.File) error) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		file, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if err := f(file); err != nil {
			t.Fatal(err)
		}
	}
	write("raw/samples.ndjson", func(f *os.File) error { return gate.Write(f, launches...) })
	write("design.json", func(f *os.File) error { return gate.WriteDesign(f, d) })
	write("raw/run.json", func(f *os.File) error {
		_, err := fmt.Fprintf(f, `{"schema":1,"shard":%d,"shards":%d,"base":{"name":"main","commit":"abc"},"head":{"name":"HEAD","commit":"def"}}`, i, n)
		return err
	})
	write("calib.json", func(f *os.File) error { return json.NewEncoder(f).Encode(gate.Fitness{Fit: true}) })
	return dir
}

func TestMergeCommand(t *testing.T) {
	one, two := shard(t, 1, 2, "wall/workload=a", 1), shard(t, 2, 2, "wall/workload=b", 1.3)
	out := t.TempDir()
	code, stdout, stderr := run(t, &canned{}, "", "merge", one, two, "--out", out)
	if code != exitBroken || !strings.Contains(stdout, "REGRESSION") || !strings.Contains(stdout, "wall/workload=b") || stderr != "" {
		t.Errorf("got %d, %s%s, want the regression of the second shard", code, stdout, stderr)
	}
	if _, err := os.Stat(filepath.Join(out, "report.md")); err != nil {
		t.Error(err)
	}
	waivers := filepath.Join(t.TempDir(), "waivers")
	if err := os.WriteFile(waivers, []byte("wall/workload=b | sec | 1.4 | 9999-12-31 | #1 | known\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, stdout, _ := run(t, &canned{}, "", "merge", one, two, "--out", out, "--waivers", waivers); code != exitHeld || !strings.Contains(stdout, "WAIVED") {
		t.Errorf("waived: got %d, %s", code, stdout)
	}
	if code, stdout, _ := run(t, &canned{}, "", "merge", one, "--out", out, "--json"); code != exitUnfit || !json.Valid([]byte(stdout)) {
		t.Errorf("one shard of two: got %d, %.100s", code, stdout)
	}
}

// TestRecordIsReadFirst: a record that cannot be continued is said before anything is measured.
func TestRecordIsReadFirst(t *testing.T) {
	dir := t.TempDir()
	for range 3 {
		if err := compare.AppendRecord(filepath.Join(dir, "aa.ndjson"), compare.Record{Schema: compare.RecordSchema, Kind: compare.KindAA}); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(t.TempDir())
	if code, stdout, stderr := run(t, &canned{}, "", "aa", "--package", "p", "--out", dir); code != exitUsage || stdout != "" {
		t.Errorf("outside a repository: got %d, %s%s, want a usage error and no summary", code, stdout, stderr)
	}
	if err := os.WriteFile(filepath.Join(dir, "aa.ndjson"), []byte("what?\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := run(t, &canned{}, "", "aa", "--package", "p", "--out", dir); code != exitUsage || !strings.Contains(stderr, "line 1") {
		t.Errorf("a record that cannot be read: got %d, %s", code, stderr)
	}
}
