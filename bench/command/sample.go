package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/sandbed/sandbed/bench"
)

type sampleCmd struct {
	Row      string  `placeholder:"NAME" help:"The row to measure; --list names them."`
	Batch    *string `placeholder:"N" help:"Iterations of a batch, 1 to 16777216 (default: as many as take 25 ms)."`
	Inject   *string `placeholder:"PCT" help:"A slowdown to add, in percent of the measured time: 0 to 1000."`
	Exact    bool    `help:"Measure too what repeats exactly: fuel, output, peak memory, allocations."`
	Seed     *string `placeholder:"N" help:"Seed of the workloads' inputs (default 1)."`
	CacheDir string  `placeholder:"DIR" help:"Where compiled code is kept (default: the user's cache directory)."`
	List     bool    `help:"Print the rows, those that decide, and the environment instead."`
}

// Help is shown below the description.
func (sampleCmd) Help() string {
	return `Examples:

    benchrun sample --row wall/workload=join/size=medium
    benchrun sample --row fresh/op=eval --batch 1000 --inject 10
    benchrun sample --list`
}

func (c *sampleCmd) Run(e *env, _ *result) error {
	if c.List {
		l, err := bench.List(e.suite)
		if err != nil {
			return err
		}
		return json.NewEncoder(e.stdout).Encode(l)
	}
	if c.Row == "" {
		return &usage{"--row", "", "give a row, such as wall/workload=join/size=medium; --list names all"}
	}
	plan := bench.LaunchPlan{Row: c.Row, Exact: c.Exact, Seed: 1, CacheDir: c.CacheDir}
	batch, err := parseCount("--batch", c.Batch, 1, 1<<24)
	if err != nil {
		return err
	}
	plan.Batch = int(batch)
	if c.Inject != nil {
		if plan.Inject, err = parsePercent("--inject", *c.Inject, 0, 1000); err != nil {
			return err
		}
	}
	if c.Seed != nil {
		seed, err := parseCount("--seed", c.Seed, 0, 1<<62)
		if err != nil {
			return err
		}
		plan.Seed = uint64(seed)
	}
	r, err := bench.Launch(e.ctx, e.suite, plan)
	if unknown := (*bench.UnknownRow)(nil); errors.As(err, &unknown) {
		return &usage{"--row", c.Row, "is no row of " + e.suite.Engine + " that a launch can measure: sample --list names them"}
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(e.stdout).Encode(r)
}

// parsePercent reads a number of percent and returns it as a share.
func parsePercent(flag, text string, lo, hi float64) (float64, error) {
	v, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
	if err != nil || !(v >= lo && v <= hi) {
		return 0, &usage{flag, text, fmt.Sprintf("give a percentage from %g to %g, such as %g", lo, hi, min(max(10, lo), hi))}
	}
	return v / 100, nil
}
