package command

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/sandbed/sandbed/bench"
	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/reports"
)

type runCmd struct {
	Quick  bool    `help:"Few repetitions and one size: under a minute."`
	Script *string `placeholder:"FILE" help:"Measure this script instead of the built-in workloads."`
	Input  *string `placeholder:"FILE" help:"What the script of --script sees as input: one JSON text."`
	Out    string  `placeholder:"DIR" default:"bench-out" help:"Where the report is written (default ${default})."`
	Seed   *string `placeholder:"N" help:"Seed of the workloads' inputs (default 1)."`
	backendFlags
	JSON bool `help:"Print the samples as JSON when done, instead of a table as it goes."`
}

// Help is shown below the description.
func (runCmd) Help() string {
	return `Examples:

    benchrun --quick
    benchrun run --backend pool --workers 4
    benchrun run --script reshape.js --input data.json --out mine`
}

func (c *runCmd) Run(e *env, r *result) error {
	plan := bench.Plan{Quick: c.Quick, Seed: 1}
	seed, err := parseCount("--seed", c.Seed, 0, 1<<62)
	if err != nil {
		return err
	}
	if c.Seed != nil {
		plan.Seed = uint64(seed)
	}
	var opts bench.Options
	if err := c.backendFlags.options(e.suite, &opts); err != nil {
		return err
	}
	plan.Backend, plan.Workers = opts.Backend, opts.Workers
	if c.Script == nil && c.Input != nil {
		return &usage{"--input", *c.Input, "needs --script: the built-in workloads bring their own input"}
	}
	if c.Script != nil {
		source, err := readFile("--script", *c.Script, e.stdin)
		if err != nil {
			return err
		}
		input, err := readInput(c.Input)
		if err != nil {
			return err
		}
		plan.Own = &bench.Own{
			Script: engine.Script{Source: string(source), Name: filepath.Base(*c.Script)},
			Input:  input,
			// It is here to be timed, not stopped.
			Limits: engine.Limits{WallClock: time.Minute, MemoryBytes: 1 << 30, MaxOutputBytes: 64 << 20, MaxInputBytes: engine.MaxMemoryBytes, MaxScriptBytes: engine.MaxMemoryBytes},
		}
	}
	if c.Out == "" {
		return &usage{"--out", c.Out, "give a directory"}
	}
	// Before minutes of measuring, not after them.
	if err := os.MkdirAll(c.Out, 0o755); err != nil {
		return unwritable(c.Out, err)
	}
	if plan.Self, err = self(); err != nil {
		return err
	}
	show, clear := e.progress()
	plan.Progress = show
	if !c.JSON {
		fmt.Fprintf(e.stdout, "%-58s %14s\n", "row", "median")
		plan.Observe = func(s sample.Sample) {
			if s.Key("case") != "" {
				return // in the report
			}
			clear()
			fmt.Fprintln(e.stdout, reports.Row(s))
		}
	}
	run, err := bench.Measure(e.ctx, e.suite, plan)
	clear()
	if err != nil {
		return err
	}
	if err := reports.Write(c.Out, run); err != nil {
		return unwritable(c.Out, err)
	}
	if len(run.Broken) > 0 {
		r.code = exitBroken
	}
	if c.JSON {
		b, err := sample.Encode(run)
		if err != nil {
			return err
		}
		_, err = e.stdout.Write(b)
		return err
	}
	for _, w := range run.Warnings {
		fmt.Fprintf(e.stdout, "warning: %s\n", w)
	}
	for _, b := range run.Broken {
		fmt.Fprintf(e.stdout, "BROKEN: %s\n", b)
	}
	fmt.Fprintf(e.stdout, "%d rows in %s; report: %s\n", len(run.Samples), time.Duration(run.Took*float64(time.Second)).Round(100*time.Millisecond), filepath.Join(c.Out, "report.md"))
	return nil
}

func unwritable(dir string, err error) error {
	if pe, ok := err.(*os.PathError); ok {
		err = fmt.Errorf("%s: %w", pe.Path, pe.Err)
	}
	return &usage{"--out", dir, fmt.Sprintf("cannot be written (%v): give a directory that can", err)}
}

// self is the command that starts this program again.
func self() ([]string, error) {
	path, err := exec.LookPath(os.Args[0])
	if err != nil {
		if path, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	return []string{path}, nil
}

// coldCmd is started by run.
type coldCmd struct {
	CacheDir string `required:"" placeholder:"DIR" help:"Where compiled code is kept."`
	backendFlags
}

// Help is shown below the description.
func (coldCmd) Help() string { return "Example:\n\n    benchrun cold --cache-dir /tmp/cache" }

func (c *coldCmd) Run(e *env, _ *result) error {
	opts := bench.Options{Metering: e.suite.Metering(), CacheDir: c.CacheDir}
	if err := c.backendFlags.options(e.suite, &opts); err != nil {
		return err
	}
	return bench.Cold(e.ctx, e.suite, opts, e.stdout)
}
