package command

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/sandbed/sandbed/bench/compare"
	"github.com/sandbed/sandbed/bench/gate"
	"github.com/sandbed/sandbed/reports"
)

// judgeFlags are what a verdict depends on beside the samples.
type judgeFlags struct {
	Waivers *string `placeholder:"FILE" help:"Known regressions that may pass: benchmark | metric | ceiling | expires | issue | reason."`
	Strict  bool    `help:"One undecided row is too many (exit code 3)."`
}

func (f judgeFlags) waivers(e *env) ([]gate.Waiver, error) {
	if f.Waivers == nil {
		return nil, nil
	}
	text, err := readFile("--waivers", *f.Waivers, e.stdin)
	if err != nil {
		return nil, err
	}
	w, err := gate.ReadWaivers(strings.NewReader(string(text)))
	if err != nil {
		return nil, &usage{"--waivers", *f.Waivers, oneLine(err.Error())}
	}
	return w, nil
}

type compareCmd struct {
	Base    string   `placeholder:"REF" help:"The commit to compare with."`
	Head    string   `placeholder:"REF" default:"HEAD" help:"The commit to judge (default ${default})."`
	Budget  *string  `placeholder:"TIME" help:"How long all may take (default 8m, with --quick 2m)."`
	Quick   bool     `help:"Six rows and few rounds: finds large slowdowns only, and says so."`
	Row     []string `placeholder:"NAME" help:"A row that decides, in place of the reviewed list; may be given several times."`
	Shard   *string  `placeholder:"I/N" help:"Measure the I-th of N parts of the rows; benchrun merge judges."`
	Resume  bool     `help:"Continue what an interrupt left in --out."`
	Dirty   bool     `help:"Compare the working tree, with what is not committed, as head."`
	Seed    *string  `placeholder:"N" help:"Seed of the orders (default: another each time)."`
	Package *string  `placeholder:"PATH" help:"Import path of the command to build (default: this one's)."`
	Out     string   `placeholder:"DIR" default:"bench-out" help:"Where the report is written (default ${default})."`
	judgeFlags
	JSON bool `help:"Print the report as JSON instead of a table."`
}

// Help is shown below the description.
func (compareCmd) Help() string {
	return `Both commits are checked out beside the repository and built; their processes
take turns. The repository is not touched.

Examples:

    benchrun compare --base origin/main
    benchrun compare --base v1.2.0 --head v1.3.0 --budget 15m
    benchrun compare --base HEAD --dirty --quick`
}

func (c *compareCmd) Run(e *env, r *result) error {
	if c.Base == "" {
		return &usage{"--base", "", "give the commit to compare with, such as origin/main"}
	}
	config := compare.Config{Base: c.Base, Head: c.Head, Dirty: c.Dirty, Out: c.Out, Resume: c.Resume, Quick: c.Quick, Rows: c.Row, Strict: c.Strict}
	var err error
	if config.Package, err = mainPackage(c.Package); err != nil {
		return err
	}
	if config.Budget, err = budget(c.Budget, c.Quick); err != nil {
		return err
	}
	if config.Seed, err = seedFlag(c.Seed); err != nil {
		return err
	}
	if c.Shard != nil {
		if n, err := fmt.Sscanf(*c.Shard, "%d/%d", &config.Shard, &config.Shards); n != 2 || err != nil || fmt.Sprintf("%d/%d", config.Shard, config.Shards) != *c.Shard || config.Shards < 1 {
			return &usage{"--shard", *c.Shard, "give I/N, such as 1/3"}
		}
	}
	if config.Waivers, err = c.waivers(e); err != nil {
		return err
	}
	show, done := e.progress()
	config.Progress = show
	result, err := compare.Run(e.ctx, config)
	done()
	if err != nil {
		return notCompared(e, r, err)
	}
	if !result.Judged {
		fmt.Fprintf(e.stdout, "shard %s: %d launches in %s; benchrun merge judges all shards\n", *c.Shard, len(result.Launches), c.Out)
		return nil
	}
	return showComparison(e, r, c.Out, result, c.JSON)
}

// showComparison writes the report of a comparison and prints what it came to.
func showComparison(e *env, r *result, out string, c compare.Result, asJSON bool) error {
	r.code = c.Report.Exit
	if err := reports.WriteComparison(out, c.Report, c.Launches); err != nil {
		return unwritable(out, err)
	}
	if asJSON {
		return printed(e, reports.EncodeComparison, c.Report)
	}
	if err := printVerdict(e.stdout, c.Report); err != nil {
		return err
	}
	_, err := fmt.Fprintf(e.stdout, "report: %s\n", filepath.Join(out, "report.md"))
	return err
}

// notCompared turns what kept a comparison from being made into an exit code.
func notCompared(e *env, r *result, err error) error {
	var refused *compare.Refused
	var unmeasurable *compare.Unmeasurable
	switch {
	case errors.As(err, &refused):
		return &usage{refused.Field, refused.Value, refused.Remedy}
	case errors.Is(err, compare.ErrInterrupted):
		r.code = exitUnfit // there is no verdict
	case errors.As(err, &unmeasurable) && unmeasurable.Arm == gate.Base:
		r.code = exitUsage // nothing was found wrong with head
	default:
		return err
	}
	fmt.Fprintf(e.stderr, "benchrun: %s\n", oneLine(err.Error()))
	return nil
}

// mainPackage is the import path of the command to build in both trees.
func mainPackage(given *string) (string, error) {
	if given != nil {
		if *given == "" || strings.HasPrefix(*given, "-") {
			return "", &usage{"--package", *given, "give an import path"}
		}
		return *given, nil
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Path == "" || info.Path == "command-line-arguments" {
		return "", &usage{"--package", "", "give the import path of the command to build: this one was not built by its own"}
	}
	return info.Path, nil
}

func budget(given *string, quick bool) (time.Duration, error) {
	switch {
	case given != nil:
		return parseDuration("--budget", given, time.Second, 24*time.Hour)
	case quick:
		return 2 * time.Minute, nil
	}
	return 8 * time.Minute, nil
}

// seedFlag reads --seed; 0 if it was not given.
func seedFlag(given *string) (uint64, error) {
	n, err := parseCount("--seed", given, 1, 1<<62)
	return uint64(n), err
}
