package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbed/sandbed/bench"
	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/engine/enginetest"
)

func TestParseSize(t *testing.T) {
	const lo, hi = 1 << 10, 2 << 30
	for _, c := range []struct {
		text string
		want int64 // -1 for a usage error
	}{
		{"1024", 1 << 10}, {"1KiB", 1 << 10}, {"1024B", 1 << 10}, {"32MiB", 32 << 20}, {"2GiB", 2 << 30}, {"2147483648", 2 << 30},
		{"", -1}, {"1023", -1}, {"2147483649", -1}, {"3GiB", -1}, {"0", -1}, {"-1", -1}, {"+2048", -1}, {"32Mi", -1}, {"32MB", -1}, {"32mib", -1},
		{"1.5MiB", -1}, {" 2048", -1}, {"2048 ", -1}, {"MiB", -1}, {"0x800", -1}, {"2_048", -1}, {"9223372036854775807", -1},
		{"9223372036854775808", -1}, {"9223372036854775807KiB", -1}, {"8589934592GiB", -1}, {"17179869185GiB", -1},
	} {
		got, err := parseSize("--memory", &c.text, lo, hi)
		if c.want >= 0 {
			if err != nil || got != c.want {
				t.Errorf("%q: got %d, %v, want %d", c.text, got, err, c.want)
			}
			continue
		}
		var bad *usage
		if !errors.As(err, &bad) || bad.flag != "--memory" || bad.value != c.text || !strings.Contains(bad.allowed, "1KiB to 2GiB") {
			t.Errorf("%q: got %d, %v, want a usage error", c.text, got, err)
		}
	}
}

func TestFlagNotGiven(t *testing.T) {
	if got, err := parseSize("--memory", nil, 1, 2); got != 0 || err != nil {
		t.Errorf("got %d, %v, want 0", got, err)
	}
}

// canned is a backend that gives one outcome.
type canned struct {
	outcome engine.Outcome
	err     error
	mu      sync.Mutex
	seen    engine.Request // the last
}

func (c *canned) Run(_ context.Context, r engine.Request) (engine.Outcome, error) {
	c.mu.Lock()
	c.seen = r
	c.mu.Unlock()
	for _, hook := range []func(time.Time){r.OnScriptStart, r.OnFinished} {
		if hook != nil {
			hook(time.Now())
		}
	}
	return c.outcome, c.err
}
func (c *canned) Warm(context.Context) error { return nil }
func (c *canned) Close() error               { return nil }

// run runs the command over a suite without meterings.
func run(t *testing.T, b engine.Backend, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	s := bench.Suite{Engine: "canned", Open: func(context.Context, bench.Options) (*bench.Instance, error) {
		if b == nil {
			return nil, errors.New("no wasm today")
		}
		return &bench.Instance{Backend: b, Close: func() error { return nil }}, nil
	}}
	code = Main(s, args, strings.NewReader(stdin), &out, &errs)
	return code, out.String(), errs.String()
}

// TestEvalLine pins the fields of the line, their order and what is left out.
func TestEvalLine(t *testing.T) {
	u := engine.Usage{Fuel: 1, PeakMemoryBytes: 2, ImageBytes: 3, Seed: 4, Script: 5, Dump: 6, Overrun: 7, StackBytes: 8, Copy: 9}
	const usageJSON = `"usage":{"fuel":1,"memory_peak_bytes":2,"image_bytes":3,"seed_ns":4,"script_ns":5,"dump_ns":6,"overrun_ns":7}}` + "\n"
	for _, c := range []struct {
		name    string
		outcome engine.Outcome
		want    string
		code    int
	}{
		{"ok", engine.Outcome{Class: engine.ClassOK, Value: json.RawMessage(`{"a": "<>"}`)}, `{"class":"ok","value":{"a":"<>"},`, 0},
		{"absent", engine.Outcome{Class: engine.ClassOK}, `{"class":"ok",`, 0},
		{"error", engine.Outcome{Class: engine.ClassScriptError, Message: "a\nb", JSStack: "at x"}, `{"class":"error","message":"a\nb","js_stack":"at x","failure":"ScriptError",`, 1},
		{"no JSON", engine.Outcome{Class: engine.ClassResultNotSerializable, Message: "m"}, `{"class":"resultNotSerializable","message":"m","failure":"ScriptError",`, 1},
		{"fault", engine.Outcome{Class: engine.ClassEngineFault, Message: "trap", Killed: true}, `{"class":"engineFault","killed":true,"message":"trap","failure":"EngineFault",`, 1},
	} {
		c.outcome.Usage = u
		code, stdout, stderr := run(t, &canned{outcome: c.outcome}, "1", "eval", "--script", "-")
		if code != c.code || stdout != c.want+usageJSON || stderr != "" {
			t.Errorf("%s: got %d, %s%s, want %d, %s", c.name, code, stdout, stderr, c.code, c.want+usageJSON)
		}
	}

	// The message of a limit is ours and says what to raise.
	_, stdout, _ := run(t, &canned{outcome: engine.Outcome{Class: engine.ClassLimit, Guard: engine.Memory, Message: "null", Killed: true}}, "1", "eval", "--script", "-")
	if !strings.HasPrefix(stdout, `{"class":"limit:memory","guard":"memory","killed":true,"message":"engine: `) || !strings.Contains(stdout, `MemoryBytes`) || !strings.Contains(stdout, `"failure":"LimitExceeded"`) {
		t.Errorf("limit: got %s", stdout)
	}
}

func TestEvalPassesLimits(t *testing.T) {
	b := &canned{outcome: engine.Outcome{Class: engine.ClassOK}}
	code, _, stderr := run(t, b, "'src'", "eval", "--script", "-", "--memory", "4MiB", "--stack", "128KiB", "--wall", "250ms", "--fuel", "77", "--max-input", "2KiB", "--max-output", "9")
	if code != 0 {
		t.Fatal(stderr)
	}
	l := b.seen.Limits
	want := engine.Limits{MemoryBytes: 4 << 20, StackBytes: 128 << 10, WallClock: 250 * time.Millisecond, Fuel: 77, MaxInputBytes: 2 << 10, MaxOutputBytes: 9, MaxScriptBytes: engine.DefaultMaxScriptBytes}
	if l != want || b.seen.Script.Source != "'src'" || b.seen.Input != nil {
		t.Errorf("got %+v, want limits %+v", b.seen, want)
	}
}

func TestHostFailures(t *testing.T) {
	code, stdout, stderr := run(t, nil, "1", "eval", "--script", "-")
	if code != 1 || !strings.HasPrefix(stdout, `{"class":"startup",`) || !strings.Contains(stdout, "no wasm today") || !strings.Contains(stdout, `"failure":"WorkerStartupError"`) || stderr != "" {
		t.Errorf("eval without an engine: got %d, %s%s", code, stdout, stderr)
	}
	code, stdout, _ = run(t, &canned{err: errors.New("disk on fire")}, "1", "eval", "--script", "-")
	if code != 1 || !strings.HasPrefix(stdout, `{"class":"host","message":"disk on fire",`) {
		t.Errorf("eval with a backend that fails: got %d, %s", code, stdout)
	}
	code, _, stderr = run(t, nil, "", "run", "--quick", "--out", t.TempDir())
	if code != 4 || !strings.HasPrefix(stderr, "benchrun: bench: the sandbox does not start") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("run without an engine: got %d, %s", code, stderr)
	}
	code, _, stderr = run(t, nil, "", "guarantees")
	if code != 1 {
		t.Errorf("guarantees without an engine: got %d, %s", code, stderr)
	}
}

// TestGuaranteesOfALiar: a backend that answers everything with 2 breaks most of
// the suite, and says so in both forms.
func TestGuaranteesOfALiar(t *testing.T) {
	liar := &canned{outcome: engine.Outcome{Class: engine.ClassOK, Value: json.RawMessage("2")}}
	corpus := filepath.Join(t.TempDir(), "corpus.jsonl")
	text := `{"id": "X1", "class": "result", "js": "1+1", "expected": "ok", "expect_value": "2"}
{"id": "X2", "class": "cpu-loop", "js": "for(;;);", "expected": "limit:wallClock"}
`
	if err := os.WriteFile(corpus, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := run(t, liar, "", "guarantees", "--corpus", corpus, "--json")
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if code != 1 || len(lines) != 3 || stderr != "" {
		t.Fatalf("got %d, %s%s, want 1 and three lines", code, stdout, stderr)
	}
	if !strings.Contains(lines[0], `"pass":true`) || !strings.Contains(lines[1], `"pass":false`) {
		t.Errorf("got %s and %s, want pass and fail", lines[0], lines[1])
	}
	var last struct{ Summary summary }
	if err := json.Unmarshal([]byte(lines[2]), &last); err != nil {
		t.Fatal(err)
	}
	if s := last.Summary; s.Cases != 2 || s.Passed != 1 || len(s.Failed) != 1 || s.Failed[0] != "X2" || len(s.Laws["broken"]) == 0 {
		t.Errorf("got %+v", s)
	}
	code, stdout, _ = run(t, liar, "", "guarantees", "--corpus", corpus)
	if code != 1 || !strings.Contains(stdout, "\nbroken: class: X2: ") || strings.Contains(stdout, "\x1b") ||
		!regexp.MustCompile(`(?m)^It stops +0 of 1 +0 of 1 +[0-9]+ of 2$`).MatchString(stdout) || !strings.Contains(stdout, "\nnot offered: fits: ") {
		t.Errorf("got %d, %s", code, stdout)
	}
}

// TestEveryLawHasAGuarantee: a law or a group that is in no row of the table
// would not be counted.
func TestEveryLawHasAGuarantee(t *testing.T) {
	laws, groups := map[string]int{}, map[string]int{}
	for _, g := range enginetest.Guarantees() {
		for _, l := range g.Laws {
			laws[l]++
		}
		for _, gr := range g.Groups {
			groups[gr]++
		}
	}
	check := func(what, name string, n int) {
		if n != 1 {
			t.Errorf("%s %q is under %d guarantees, want 1", what, name, n)
		}
	}
	known := map[string]bool{}
	for _, l := range enginetest.Laws() {
		check("law", l.Name, laws[l.Name])
		known[l.Name] = true
	}
	for l := range laws {
		if !known[l] {
			t.Errorf("the table names a law %q that the suite does not have", l)
		}
	}
	for _, gr := range enginetest.Cases() {
		check("group", gr.Group, groups[gr.Group])
	}
}

// TestBackendFlags: what the two flags mean for suites with several backends,
// with one, and with pools alone.
func TestBackendFlags(t *testing.T) {
	const inproc, pool, process = bench.BackendInProcess, bench.BackendPool, bench.BackendProcess
	all, pools := []string{inproc, pool, process}, []string{process, pool}
	cores := runtime.GOMAXPROCS(0)
	none := "" // stands for a flag that was not given
	for _, c := range []struct {
		backends         []string
		backend, workers string
		want             bench.Options
		flag, allowed    string // of a usage error
	}{
		{all, none, none, bench.Options{Backend: inproc}, "", ""},
		{all, inproc, none, bench.Options{Backend: inproc}, "", ""},
		{all, inproc, "0", bench.Options{Backend: inproc}, "", ""},
		{all, pool, none, bench.Options{Backend: pool, Workers: cores}, "", ""},
		{all, process, "7", bench.Options{Backend: process, Workers: 7}, "", ""},
		{all, process, "1024", bench.Options{Backend: process, Workers: 1024}, "", ""},
		{all, process, "0", bench.Options{Backend: inproc}, "", ""},
		{all, none, "3", bench.Options{}, "--workers", "needs --backend pool or process"},
		{all, inproc, "1", bench.Options{}, "--workers", "needs --backend pool or process"},
		{all, pool, "1025", bench.Options{}, "--workers", "from 0 to 1024"},
		{all, "fork", none, bench.Options{}, "--backend", "give inproc, pool, process"},
		{nil, none, none, bench.Options{}, "", ""},
		{nil, inproc, "0", bench.Options{}, "", ""},
		{nil, none, "2", bench.Options{}, "--workers", "has no workers"},
		{nil, pool, none, bench.Options{}, "--backend", "give inproc"},
		{pools, none, none, bench.Options{Backend: process, Workers: cores}, "", ""},
		{pools, pool, "0", bench.Options{}, "--workers", "does not evaluate in-process"},
	} {
		var f backendFlags
		if c.backend != none {
			f.Backend = &c.backend
		}
		if c.workers != none {
			f.Workers = &c.workers
		}
		var got bench.Options
		err := f.options(bench.Suite{Engine: "x", Backends: c.backends}, &got)
		var bad *usage
		switch {
		case c.flag == "" && (err != nil || got != c.want):
			t.Errorf("%v %q %q: got %+v, %v, want %+v", c.backends, c.backend, c.workers, got, err, c.want)
		case c.flag != "" && (!errors.As(err, &bad) || bad.flag != c.flag || !strings.Contains(bad.allowed, c.allowed)):
			t.Errorf("%v %q %q: got %v, want a usage error of %s: %s", c.backends, c.backend, c.workers, err, c.flag, c.allowed)
		}
	}
}

// TestBackendReachesOpen: every subcommand opens the backend it was asked for.
func TestBackendReachesOpen(t *testing.T) {
	corpus := filepath.Join(t.TempDir(), "corpus.jsonl")
	if err := os.WriteFile(corpus, []byte(`{"id": "X1", "class": "result", "js": "1+1", "expected": "ok", "expect_value": "2"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"eval", "--script", "-"},
		{"guarantees", "--corpus", corpus},
		{"cold", "--cache-dir", t.TempDir()},
		{"run", "--quick", "--script", "-", "--out", t.TempDir()},
	} {
		var opened []bench.Options
		s := bench.Suite{Engine: "canned", Backends: []string{bench.BackendInProcess, bench.BackendPool}, Open: func(_ context.Context, o bench.Options) (*bench.Instance, error) {
			opened = append(opened, o)
			return &bench.Instance{Backend: &canned{outcome: engine.Outcome{Class: engine.ClassOK, Value: json.RawMessage("2")}}, Close: func() error { return nil }}, nil
		}}
		var out, errs bytes.Buffer
		if code := Main(s, append(args, "--backend", "pool", "--workers", "5"), strings.NewReader("1+1"), &out, &errs); code != 0 {
			t.Errorf("%v: code %d: %s%s", args, code, out.String(), errs.String())
		}
		if len(opened) == 0 {
			t.Errorf("%v opened nothing", args)
		}
		for _, o := range opened {
			if o.Backend != bench.BackendPool || o.Workers != 5 {
				t.Errorf("%v opened %+v, want a pool of 5", args, o)
			}
		}
	}
}
