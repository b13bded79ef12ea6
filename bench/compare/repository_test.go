package compare

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbed/sandbed/bench/gate"
)

// suite is a command whose only row costs what cost.go says, and which has
// nothing but the standard library to link.
const suite = `package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"
)

func main() {
	args := os.Args[1:]
	if len(args) == 0 || args[0] != "sample" {
		os.Exit(2)
	}
	if slices.Contains(args, "--list") {
		fmt.Println(` + "`" + `{"schema":1,"environment":{"go":"go","engine":"toy"},"rows":["toy/op=spin"],"gated":[{"row":"toy/op=spin","theta":0.05}]}` + "`" + `)
		return
	}
	value := cost * (1 + float64(time.Now().UnixNano()%1000)/1e6)
	if i := slices.Index(args, "--inject"); i > 0 {
		pct, _ := strconv.ParseFloat(args[i+1], 64)
		value *= 1 + pct/100
	}
	fmt.Printf(` + "`" + `{"schema":1,"row":"toy/op=spin","unit":"sec","better":"lower","value":%v,"inner":3,"batch":25,"batch_sec":%v}` + "`" + `+"\n", value, 25*value)
}
`

// repository makes a git repository with a module below its top: its commits are
// tagged before (without the command sample), fast and slow.
func repository(t *testing.T) (module string, git func(args ...string) string) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	t.Setenv("GIT_CONFIG_SYSTEM", os.DevNull)
	t.Setenv("GOFLAGS", "")
	t.Setenv("GOWORK", filepath.Join(dir, "elsewhere.work")) // must not matter
	git = func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=t", "-c", "user.email=t@example.org"}, args...)...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	module = filepath.Join(dir, "toy")
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	commit := func(tag string) {
		t.Helper()
		git("add", ".")
		git("commit", "--quiet", "-m", tag)
		git("tag", tag)
	}
	git("init", "--quiet")
	write(".git/hooks/post-checkout", "#!/bin/sh\nexit 1\n") // must not run
	if err := os.Chmod(filepath.Join(dir, ".git/hooks/post-checkout"), 0o755); err != nil {
		t.Fatal(err)
	}
	write("toy/go.mod", "module example.org/toy\n\ngo 1.26\n")
	write("toy/main.go", "package main\n\nfunc main() {}\n")
	write(".gitignore", "ignored\n")
	commit("before")
	write("toy/main.go", suite)
	write("toy/cost.go", "package main\n\nconst cost = 1e-3\n")
	commit("fast")
	write("toy/cost.go", "package main\n\nconst cost = 1.3e-3\n")
	commit("slow")
	write("ignored", "x")
	return module, git
}

// settled checks that a comparison left the repository as it was, and nothing else.
func settled(t *testing.T, git func(...string) string, tmp, status string) {
	t.Helper()
	if got := git("worktree", "list"); strings.Count(got, "\n") != 0 {
		t.Errorf("worktrees are left:\n%s", got)
	}
	if got := git("status", "--porcelain"); got != status {
		t.Errorf("status %q, want %q", got, status)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("in the temporary directory: %v, %v", left, err)
	}
}

// TestRun compares commits of a throwaway repository: the only test that builds.
func TestRun(t *testing.T) {
	for _, tool := range []string{"git", "go"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("%v: package compare needs git and the go command", err)
		}
	}
	module, git := repository(t)
	tmp := t.TempDir()
	cache, err := exec.Command("go", "env", "GOCACHE").Output() // or it would be below TMPDIR
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOCACHE", strings.TrimSpace(string(cache)))
	t.Setenv("TMPDIR", tmp)
	config := func(base, head string) Config {
		return Config{Dir: module, Package: "example.org/toy", Base: base, Head: head, Out: t.TempDir(), Budget: time.Hour}
	}
	verdict := func(c Config) (gate.Row, gate.Report) {
		t.Helper()
		r, err := Run(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Report.Rows) != 1 {
			t.Fatalf("%d rows, want one", len(r.Report.Rows))
		}
		settled(t, git, tmp, git("status", "--porcelain"))
		return r.Report.Rows[0], r.Report
	}

	// An interrupt cleans up as well, and what was measured is continued.
	c := config("fast", "HEAD")
	ctx, cancel := context.WithCancel(t.Context())
	c.Progress = func(text string) {
		if strings.HasPrefix(text, "pass 4") {
			cancel()
		}
	}
	if _, err := Run(ctx, c); !errors.Is(err, ErrInterrupted) {
		t.Fatalf("interrupted: got %v", err)
	}
	settled(t, git, tmp, "")
	begun, err := load(c.Out)
	if err != nil || len(begun.launches) == 0 {
		t.Fatalf("after the interrupt: %d launches, %v", len(begun.launches), err)
	}
	c.Progress, c.Resume = nil, true
	// The machine's fitness is not this test's affair: the row is judged by its launches.
	row, report := verdict(c)
	if !strings.Contains(row.Reason, "slower") || !strings.Contains(row.Reason, "confirmed") || row.Ratio < 1.29 || row.Ratio > 1.31 {
		t.Errorf("30 %% slower: got %s, %.3f (%s)", row.Verdict, row.Ratio, row.Reason)
	}
	if report.Base.Commit != git("rev-parse", "fast") || report.Head.Commit != git("rev-parse", "slow") || report.Base.Name != "fast" || report.HeadEnv.Commit != report.Head.Commit || report.Fitness == nil {
		t.Errorf("report of %+v and %+v", report.Base, report.Head)
	}
	if len(report.Controls) != 2 || !report.Controls[0].Good || !report.Controls[1].Good {
		t.Errorf("controls %+v, want both as they must be", report.Controls)
	}
	ended, err := load(c.Out)
	if err != nil || len(ended.launches) <= len(begun.launches) || !slices.Equal(ended.launches[:len(begun.launches)], begun.launches) || ended.fitness == nil {
		t.Errorf("resumed: %d launches after %d, %v", len(ended.launches), len(begun.launches), err)
	}

	// What is not committed is refused, or taken by flag.
	change := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(module, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	change("cost.go", "package main\n\nconst cost = scale * 1e-3\n")
	change("scale.go", "package main\n\nconst scale = 1.0\n") // not even added
	var refused *Refused
	if _, err := Run(t.Context(), config("fast", "HEAD")); !errors.As(err, &refused) || !strings.Contains(err.Error(), "--dirty") {
		t.Errorf("uncommitted changes: got %v", err)
	}
	c = config("fast", "HEAD")
	c.Dirty = true
	if row, report := verdict(c); row.Verdict != gate.OK || !report.Head.Dirty || !report.HeadEnv.Modified {
		t.Errorf("the working tree: got %s (%s), head %+v, want OK and dirty", row.Verdict, row.Reason, report.Head)
	}

	for _, c := range []struct {
		name  string
		spoil func(*Config)
		want  string
	}{
		{"no such commit", func(c *Config) { c.Base = "nowhere" }, "--base"},
		{"an option for a commit", func(c *Config) { c.Base = "--all" }, "--base"},
		{"no repository", func(c *Config) { c.Dir = t.TempDir() }, "git repository"},
		{"an unknown row", func(c *Config) { c.Rows = []string{"toy/op=none"} }, "--row"},
		{"a row twice", func(c *Config) { c.Rows = []string{"toy/op=spin", "toy/op=spin"} }, "twice"},
		{"no budget", func(c *Config) { c.Budget = 0 }, "--budget"},
		{"a shard too many", func(c *Config) { c.Shard, c.Shards = 3, 2 }, "--shard"},
		{"dirty and a commit", func(c *Config) { c.Dirty = true }, "--dirty"},
		{"nothing to write to", func(c *Config) { c.Out = "" }, "--out"},
		{"nothing to resume", func(c *Config) { c.Resume = true }, "--resume"},
	} {
		config := config("fast", "slow")
		c.spoil(&config)
		if _, err := Run(t.Context(), config); !errors.As(err, &refused) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
	var cannot *Unmeasurable
	if _, err := Run(t.Context(), config("before", "slow")); !errors.As(err, &cannot) || cannot.Arm != gate.Base || cannot.Ref != "before" {
		t.Errorf("a base without the command sample: got %v", err)
	}
	change("scale.go", "package main\n\nconst scale = oops\n")
	c = config("fast", "HEAD")
	c.Dirty = true
	if _, err := Run(t.Context(), c); !errors.As(err, &cannot) || cannot.Arm != gate.Head || !strings.Contains(err.Error(), "oops") {
		t.Errorf("a head that does not build: got %v", err)
	}

	// The gate is measured by the same machinery.
	var records []Record
	v := Validation{
		Dir: module, Package: "example.org/toy", Ref: "fast", Runs: 1, Inject: []float64{0.10, 0}, Budget: time.Hour, Seed: 5, Command: "test",
		Observe: func(r Record) error { records = append(records, r); return nil },
	}
	if err := Validate(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	if len(records) != 2 {
		t.Fatalf("%d records, want one with a slowdown and one without", len(records))
	}
	for i, want := range []struct {
		kind   string
		inject float64
		word   gate.Word
	}{{KindPower, 0.10, gate.Regression}, {KindAA, 0, gate.OK}} {
		r := records[i]
		if r.Kind != want.kind || r.Injected != want.inject || len(r.Rows) != 1 || r.Rows[0].Word != want.word || r.Commit != git("rev-parse", "fast") {
			t.Errorf("record %d: got %+v, want %+v", i, r, want)
		}
	}
	settled(t, git, tmp, git("status", "--porcelain"))
}

func TestNoiseStops(t *testing.T) {
	for _, kind := range append(slices.Clone(Noises), "") {
		stop := noise(kind, 1)
		stop() // returns once all of it has ended
	}
}
