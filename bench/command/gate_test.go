package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbed/sandbed/bench/gate"
	"github.com/sandbed/sandbed/bench/gate/gatetest"
	"github.com/sandbed/sandbed/reports"
)

// pairs makes 60 rounds of a row, confirmed, in which other is slower by a share.
func pairs(row, control string, share float64) []gate.Launch {
	r := rand.New(rand.NewPCG(uint64(len(row)), 11))
	other := gate.Head
	if control != "" {
		other = control
	}
	var out []gate.Launch
	for _, stage := range []string{gate.Screen, gate.Confirm} {
		if stage == gate.Confirm && control != "" {
			break
		}
		for i := range 60 {
			for _, arm := range []string{gate.Base, other} {
				v := 0.02 * math.Exp(0.01*r.NormFloat64())
				if arm == other {
					v *= 1 + share
				}
				out = append(out, gate.Launch{Schema: gate.Schema, Row: row, Unit: "sec", Better: "lower", Lane: gate.Time, Stage: stage, Control: control, Arm: arm,
					Round: i, Order: []string{"AB", "BA", "BA", "AB"}[i%4], Layout: len(stage), Value: v, Inner: 5, Batch: 0.02})
			}
		}
	}
	return out
}

// directory is what compare leaves.
func directory(t *testing.T, launches []gate.Launch) string {
	t.Helper()
	dir := t.TempDir()
	var design, samples bytes.Buffer
	if err := gate.WriteDesign(&design, gate.DefaultDesign([]gate.RowPlan{{Row: "wall/row=a"}, {Row: "wall/row=b"}}, 1)); err != nil {
		t.Fatal(err)
	}
	if err := gate.Write(&samples, launches...); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{
		"design.json": design.String(), "calib.json": `{"fit":true,"kernels":[],"steal":0,"psi_avg10":0}`,
		"raw/samples.ndjson": samples.String(), "raw/run.json": `{"schema":1,"base":{"name":"main"},"head":{"name":"HEAD"}}`,
	} {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestGate(t *testing.T) {
	join := func(parts ...[]gate.Launch) []gate.Launch { return slices.Concat(parts...) }
	controls := join(pairs("kernel/of=x", gate.Null, 0), pairs("kernel/of=x", gate.Injected, 0.1))
	same := join(pairs("wall/row=a", "", 0), pairs("wall/row=b", "", 0), controls)
	slow := join(pairs("wall/row=a", "", 0.2), pairs("wall/row=b", "", 0), controls)
	failed := slices.Clone(same)
	failed[7].Failed = "wrong\x1b[31m answer\n"
	waivers := filepath.Join(t.TempDir(), "waivers.txt")
	day := time.Now().AddDate(0, 0, 2).UTC().Format(time.DateOnly)
	if err := os.WriteFile(waivers, []byte("wall/row=a | sec | 1.5 | "+day+" | #7 | known\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name     string
		launches []gate.Launch
		args     []string
		code     int
		want     []string
	}{
		{"held", same, nil, exitHeld, []string{"No slowdown of 5 % or more: 2 of 2 rows proved.", "control null", "control injected", "ok (exit 0)"}},
		{"regression", slow, nil, exitBroken, []string{"1 regression proved: wall/row=a (+", "REGRESSION", "crossed", "confirmed", "regression (exit 1)"}},
		{"waived", slow, []string{"--waivers", waivers}, exitHeld, []string{"WAIVED", "waiver used", "#7: known"}},
		{"stale", same, []string{"--waivers", waivers}, exitHeld, []string{"waiver stale"}},
		{"no controls", slow[:len(slow)-len(controls)], nil, exitUnfit, []string{"Nothing proved: the injected control is missing", "INCONCLUSIVE"}},
		{"strict", join(pairs("wall/row=a", "", 0)[:18], pairs("wall/row=b", "", 0), controls), []string{"--strict"}, exitUnfit, []string{"9 rounds, the first look is at 10"}},
		{"failed", failed, nil, exitFailed, []string{"Nothing proved: 1 row failed", `wrong\x1b[31m answer\n`}},
	} {
		code, stdout, stderr := run(t, nil, "", append([]string{"gate", "--in", directory(t, c.launches)}, c.args...)...)
		if code != c.code || stderr != "" {
			t.Errorf("%s: got %d, %s%s, want %d", c.name, code, stdout, stderr, c.code)
		}
		for _, want := range c.want {
			if !strings.Contains(stdout, want) {
				t.Errorf("%s: %q is not in\n%s", c.name, want, stdout)
			}
		}
		if strings.Contains(stdout, "\x1b") {
			t.Errorf("%s: a control character in %q", c.name, stdout)
		}
	}
	code, stdout, _ := run(t, nil, "", "gate", "--json", "--in", directory(t, slow))
	r, err := reports.DecodeComparison([]byte(stdout))
	if err != nil || code != exitBroken || r.Exit != code || r.Base.Name != "main" || len(r.Rows) != 2 {
		t.Errorf("--json: %d, %v, %+v", code, err, r)
	}
}

func TestGateOfFiles(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, n int, scale float64) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "BenchmarkA-2 100 %d ns/op\n", int(scale*float64(1_000_000+1000*i)))
		}
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return name
	}
	old, slower, few := file("old", 8, 1), file("slower", 8, 1.2), file("few", 2, 1)
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{old, slower}, exitBroken, "REGRESSION"},
		{[]string{slower, old}, exitHeld, "IMPROVEMENT"},
		{[]string{old, old}, exitHeld, "warning: unpaired files"},
		{[]string{few, few}, exitUsage, "-count=3"},
		{[]string{old}, exitUsage, "give two files"},
		{[]string{old, old, old}, exitUsage, "give two files"},
		{[]string{old, filepath.Join(dir, "none")}, exitUsage, "give a file that can"},
		{[]string{old, old, "--in", dir}, exitUsage, "leave it out beside OLD and NEW"},
		{[]string{"--in", dir}, exitUsage, "give the directory that compare wrote"},
		{[]string{old, slower, "--waivers", old}, exitUsage, "waivers: line 1"},
	} {
		code, stdout, stderr := run(t, nil, "", append([]string{"gate"}, c.args...)...)
		if code != c.code || !strings.Contains(stdout+stderr, c.want) || strings.Count(stderr, "\n") > 1 {
			t.Errorf("%q: got %d, %s%s, want %d, %q", c.args, code, stdout, stderr, c.code, c.want)
		}
	}
}

func TestSelftest(t *testing.T) {
	// The cases and the first stream: package gatetest runs them all.
	test := func(g gatetest.Gate, asJSON bool) (int, string) {
		var out bytes.Buffer
		var r result
		e := &env{ctx: context.Background(), stdout: &out, stderr: &out}
		some := func(yield func(gatetest.Result) bool) {
			for one := range gatetest.All(g) {
				if !yield(one) || one.Runs > 0 {
					return
				}
			}
		}
		if err := selftest(e, &r, some, asJSON); err != nil {
			t.Fatal(err)
		}
		return r.code, out.String()
	}
	code, text := test(gatetest.Real(), true)
	lines := strings.Split(strings.TrimSpace(text), "\n")
	var s selftestSummary
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &s); err != nil || code != exitHeld || len(s.Failed) > 0 || s.Streams != 1 || s.Cases != len(lines)-2 || s.Cases < 20 {
		t.Errorf("got %d, %v, %+v of %d lines", code, err, s, len(lines))
	}
	var stream gatetest.Result
	if err := json.Unmarshal([]byte(lines[len(lines)-2]), &stream); err != nil || stream.Seed == 0 || stream.Rows == 0 || len(stream.Claims) == 0 || stream.Claims[0].Interval.High == 0 {
		t.Errorf("stream: %v, %+v", err, stream)
	}
	// A gate that sees nothing.
	code, text = test(gatetest.Gate{Next: gate.Design.Next, Decide: func(gate.Design, []gate.Launch, gate.Options) (gate.Report, error) {
		return gate.Report{}, nil
	}}, false)
	if code != exitBroken || !strings.Contains(text, "NOT AS DESIGNED") || !strings.Contains(text, "not as designed: limits") {
		t.Errorf("a blind gate: got %d,\n%s", code, text)
	}
	// An interrupt ends it.
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := selftest(&env{ctx: ctx, stdout: io.Discard, stderr: io.Discard}, &result{}, gatetest.All(gatetest.Real()), true); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}
