package command

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/sandbed/sandbed/bench"
)

type calibrateCmd struct {
	For  *string `placeholder:"TIME" help:"How long to watch between the two calibrations: 0s to 1h (default 1s)."`
	JSON bool    `help:"Print one line of JSON instead of a table."`
}

// Help is shown below the description.
func (calibrateCmd) Help() string {
	return `Exit code 3 says that the machine is not fit to compare on.

Examples:

    benchrun calibrate
    benchrun calibrate --for 1m --json`
}

func (c *calibrateCmd) Run(e *env, r *result) error {
	wait := time.Second
	if c.For != nil {
		var err error
		if wait, err = parseDuration("--for", c.For, 0, time.Hour); err != nil {
			return err
		}
	}
	before, err := bench.Calibrate(e.ctx)
	if err != nil {
		return err
	}
	select {
	case <-time.After(wait):
	case <-e.ctx.Done():
		return e.ctx.Err()
	}
	after, err := bench.Calibrate(e.ctx)
	if err != nil {
		return err
	}
	f := before.Fitness(after)
	if !f.Fit {
		r.code = exitUnfit
	}
	if c.JSON {
		return json.NewEncoder(e.stdout).Encode(f)
	}
	fmt.Fprintf(e.stdout, "%-12s %12s %12s %8s %8s\n", "kernel", "before", "after", "spread", "drift")
	for _, k := range f.Kernels {
		fmt.Fprintf(e.stdout, "%-12s %9.2f ms %9.2f ms %6.1f %% %+6.1f %%\n", k.Name, 1e3*k.Before, 1e3*k.After, 100*k.Spread, 100*k.Drift)
	}
	fmt.Fprintf(e.stdout, "steal %.1f %%", 100*f.Steal)
	if f.PSI >= 0 {
		fmt.Fprintf(e.stdout, ", processor pressure %.1f %% of the last ten seconds", f.PSI)
	}
	fmt.Fprintln(e.stdout)
	if f.Fit {
		fmt.Fprintln(e.stdout, "fit to compare on")
	}
	for _, reason := range f.Reasons {
		fmt.Fprintf(e.stdout, "unfit: %s\n", reason)
	}
	return nil
}
