package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"

	"github.com/sandbed/sandbed/bench/compare"
	"github.com/sandbed/sandbed/bench/gate"
	"github.com/sandbed/sandbed/reports"
)

type aaCmd struct{ validationFlags }

// Help is shown below the description.
func (aaCmd) Help() string {
	return `Each run is a whole comparison of two builds of one commit. Exit code 1 says that
one of the new runs gave a false alarm.

Examples:

    benchrun aa --runs 40
    benchrun aa --runs 10 --noise bursts`
}

func (c *aaCmd) Run(e *env, r *result) error {
	records, fresh, err := c.run(e, compare.KindAA, nil)
	if len(records) == 0 {
		return notCompared(e, r, err)
	}
	f := compare.SummarizeAA(records)
	if compare.SummarizeAA(records[len(records)-fresh:]).Alarms > 0 {
		r.code = exitBroken
	}
	if err != nil {
		if err := notCompared(e, r, err); err != nil {
			return err
		}
	}
	var moved []float64
	for _, run := range records {
		for _, row := range run.Rows {
			moved = append(moved, math.Log(row.Ratio))
		}
	}
	if err := reports.WriteAA(c.Out, moved, gate.DefaultDesign(nil, 1).Theta, f.Alarms, f.Runs); err != nil {
		return unwritable(c.Out, err)
	}
	if c.JSON {
		return json.NewEncoder(e.stdout).Encode(f)
	}
	fmt.Fprintf(e.stdout, "\n%d false alarms in %d runs: at most %.1f %% (95 %% confidence); %d runs refused; %d rows called changed by their launches\n", f.Alarms, f.Runs, 100*f.Bound, f.Refused, f.Words)
	fmt.Fprintf(e.stdout, "%-44s %6s %9s %9s %9s\n", "row", "runs", "A/A p95", "σ", "undecided")
	for _, row := range f.Rows {
		fmt.Fprintf(e.stdout, "%-44s %6d %7.2f %% %7.2f %% %9d\n", row.Row, row.N, 100*row.P95, 100*row.Sigma, row.Undecided)
	}
	return nil
}

// validationFlags are those of aa and power.
type validationFlags struct {
	Runs    string   `placeholder:"N" default:"40" help:"How many runs, 1 to 100000 (default ${default})."`
	Ref     string   `placeholder:"REF" default:"HEAD" help:"The commit to compare with itself (default ${default})."`
	Row     []string `placeholder:"NAME" help:"A row that decides, in place of the reviewed list; may be given several times."`
	Budget  *string  `placeholder:"TIME" help:"How long one run may take (default 8m)."`
	Noise   string   `placeholder:"KIND" help:"What disturbs the machine meanwhile: bursts or memory (default: nothing)."`
	Seed    *string  `placeholder:"N" help:"Seed of the orders of the first run (default: another each time)."`
	Package *string  `placeholder:"PATH" help:"Import path of the command to build (default: this one's)."`
	Out     string   `placeholder:"DIR" default:"reports/validation" help:"Where the record is kept (default ${default})."`
	JSON    bool     `help:"Print the summary as one line of JSON instead of a table."`
}

// run runs a validation, and appends each run to a file of the record. It returns the runs
// of the record that were made under the same noise, and how many of them are new.
func (f validationFlags) run(e *env, kind string, inject []float64) (all []compare.Record, fresh int, err error) {
	v := compare.Validation{Ref: f.Ref, Rows: f.Row, Noise: f.Noise, Inject: inject, Command: "benchrun " + strings.Join(e.args, " ")}
	runs, err := parseCount("--runs", &f.Runs, 1, 100_000)
	if err != nil {
		return nil, 0, err
	}
	v.Runs = int(runs)
	if v.Package, err = mainPackage(f.Package); err != nil {
		return nil, 0, err
	}
	if v.Budget, err = budget(f.Budget, false); err != nil {
		return nil, 0, err
	}
	if v.Seed, err = seedFlag(f.Seed); err != nil {
		return nil, 0, err
	}
	if f.Noise != "" {
		if err := oneOf("--noise", f.Noise, compare.Noises...); err != nil {
			return nil, 0, err
		}
	}
	name := filepath.Join(f.Out, kind+".ndjson")
	if _, err := compare.ReadRecords(name); err != nil {
		return nil, 0, &usage{"--out", f.Out, "holds a record that cannot be read: " + oneLine(err.Error())}
	}
	show, done := e.progress()
	v.Progress = show
	v.Observe = func(r compare.Record) error {
		fresh++
		done()
		what := ""
		if r.Injected > 0 {
			what = fmt.Sprintf(", %+g %% injected", 100*r.Injected)
		}
		if !f.JSON {
			fmt.Fprintf(e.stdout, "run %d%s: %s, %.0f s", fresh, what, r.Verdict, r.Took)
			for _, reason := range r.Unfit {
				fmt.Fprintf(e.stdout, "; %s", reason)
			}
			fmt.Fprintln(e.stdout)
		}
		if err := compare.AppendRecord(name, r); err != nil {
			return unwritable(f.Out, err)
		}
		return nil
	}
	err = compare.Validate(e.ctx, v)
	done()
	// What was measured counts, also when an interrupt ended it.
	if err != nil && !(errors.Is(err, compare.ErrInterrupted) && fresh > 0) {
		return nil, 0, err
	}
	records, rerr := compare.ReadRecords(name)
	for _, r := range records {
		if r.Noise == f.Noise {
			all = append(all, r)
		}
	}
	return all, fresh, errors.Join(err, rerr)
}
