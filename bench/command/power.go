package command

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/sandbed/sandbed/bench/compare"
	"github.com/sandbed/sandbed/reports"
)

type powerCmd struct {
	Inject string `placeholder:"PCT,…" default:"2,3,5,8,10,20" help:"Slowdowns to inject, in percent (default ${default})."`
	validationFlags
}

// Help is shown below the description.
func (powerCmd) Help() string {
	return `Each run is a comparison of two builds of one commit, of which one spins for a
known share of its own time.

Examples:

    benchrun power --runs 20
    benchrun power --inject 5,10 --runs 20 --row wall/workload=join/size=medium`
}

func (c *powerCmd) Run(e *env, r *result) error {
	var sizes []float64
	for text := range strings.SplitSeq(c.Inject, ",") {
		size, err := parsePercent("--inject", text, 0.1, 1000)
		if err != nil {
			return err
		}
		sizes = append(sizes, size)
	}
	records, _, err := c.run(e, compare.KindPower, sizes)
	if len(records) == 0 {
		return notCompared(e, r, err)
	}
	if err != nil {
		if err := notCompared(e, r, err); err != nil {
			return err
		}
	}
	points := compare.SummarizePower(records)
	var curve []reports.PowerPoint
	for _, p := range points {
		for _, series := range []struct {
			name string
			of   compare.Found
		}{{"all rows", p.All}, {"rows with σ ≤ 3 %", p.Steady}, {"of those, tight", p.Tight}} {
			if series.of.Of > 0 {
				curve = append(curve, reports.PowerPoint{Series: series.name, Injected: p.Injected, Found: series.of.Found, Of: series.of.Of})
			}
		}
	}
	if err := reports.WritePower(c.Out, curve); err != nil {
		return unwritable(c.Out, err)
	}
	if c.JSON {
		return json.NewEncoder(e.stdout).Encode(points)
	}
	text := func(f compare.Found) string {
		if f.Of == 0 {
			return "–"
		}
		return fmt.Sprintf("%d of %d, %.0f – %.0f %%", f.Found, f.Of, 100*f.Interval.Low, 100*f.Interval.High)
	}
	fmt.Fprintf(e.stdout, "\n%8s %5s %24s %24s %24s %6s %8s\n", "injected", "runs", "found", "rows with σ ≤ 3 %", "of those, tight", "wrong", "refused")
	for _, p := range points {
		fmt.Fprintf(e.stdout, "%6.3g %% %5d %24s %24s %24s %6d %8d\n", 100*p.Injected, p.Runs, text(p.All), text(p.Steady), text(p.Tight), p.Wrong, p.Refused)
	}
	return nil
}
