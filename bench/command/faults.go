package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/sandbed/sandbed/bench"
	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/internal/atomicfile"
	"github.com/sandbed/sandbed/properties/faults"
)

type faultsCmd struct {
	Seeds string   `placeholder:"N" default:"5" help:"How many seeds each fault is given, 1 to 1000 (default ${default})."`
	Clean string   `placeholder:"N" default:"0" help:"How often the same tests run on the source as it is, where none may fail, 0 to 1000 (default ${default})."`
	ID    []string `placeholder:"ID,..." help:"Faults to plant instead of all; may be given several times."`
	Out   string   `placeholder:"FILE" default:"reports/faults.md" help:"Where the table is written (default ${default})."`
	JSON  bool     `help:"Print one line of JSON a fault instead of a table."`
}

// Help is shown below the description.
func (faultsCmd) Help() string {
	return `Plants faults in sandbed's own source, one at a time, and runs the tests that are
meant to find them. Needs a checkout of sandbed and the go command. Exit code 1 says
that a fault survived, or that a test failed on the source as it is.

Examples:

    benchrun faults
    benchrun faults --seeds 1 --id E1,W5 --out /tmp/faults.md`
}

// faultReport is a line of --json.
type faultReport struct {
	ID     string    `json:"id"`
	What   string    `json:"what"`
	Found  int       `json:"found"`
	Hung   int       `json:"hung"` // of Found: by passing the budget
	Of     int       `json:"of"`
	By     []string  `json:"by"`
	Times  []float64 `json:"times_sec"` // until found, builds not counted
	Alarms int       `json:"clean_alarms"`
	Clean  int       `json:"clean_runs"`
	Error  string    `json:"error,omitempty"`
}

func (c *faultsCmd) Run(e *env, r *result) error {
	seeds, err := parseCount("--seeds", &c.Seeds, 1, 1000)
	if err != nil {
		return err
	}
	clean, err := parseCount("--clean", &c.Clean, 0, 1000)
	if err != nil {
		return err
	}
	list, err := faults.Manifest()
	if err != nil {
		return err
	}
	if len(c.ID) > 0 {
		var chosen []faults.Fault
		for _, id := range c.ID {
			i := slices.IndexFunc(list, func(f faults.Fault) bool { return f.ID == id })
			if i < 0 {
				return &usage{"--id", id, "give one of properties/faults/manifest.json"}
			}
			chosen = append(chosen, list[i])
		}
		list = chosen
	}
	// The text that go mod reads says whether this is a checkout of sandbed.
	out, err := exec.CommandContext(e.ctx, "go", "list", "-m", "-f", "{{.Path}} {{.Dir}}").Output()
	path, root, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	if err != nil || path != "github.com/sandbed/sandbed" {
		dir, _ := os.Getwd()
		return &usage{"the working directory", dir, "run it in a checkout of github.com/sandbed/sandbed: the faults are edits of its source"}
	}
	planted, err := faults.NewBench(root)
	if err != nil {
		return err
	}
	defer planted.Close()
	show, done := e.progress()
	defer done()
	lines := json.NewEncoder(e.stdout)
	lines.SetEscapeHTML(false)
	var reports []faultReport
	for _, f := range list {
		if show != nil {
			show("fault " + f.ID)
		}
		one := c.plant(e, planted, f, seeds, clean)
		if err := e.ctx.Err(); err != nil {
			return err
		}
		reports = append(reports, one)
		if one.Found < one.Of || one.Alarms > 0 || one.Error != "" {
			r.code = exitBroken
		}
		done()
		if c.JSON {
			err = lines.Encode(one)
		} else {
			_, err = fmt.Fprintln(e.stdout, one.line())
		}
		if err != nil {
			return err
		}
	}
	if err := atomicfile.Write(c.Out, faultTable(reports)); err != nil {
		return &usage{"--out", c.Out, fmt.Sprintf("cannot be written (%v): give a file", err)}
	}
	return nil
}

func (c *faultsCmd) plant(e *env, b *faults.Bench, f faults.Fault, seeds, clean int64) faultReport {
	one := faultReport{ID: f.ID, What: f.What, Times: []float64{}}
	fail := func(err error) faultReport {
		one.Error = oneLine(err.Error())
		return one
	}
	for seed := range seeds {
		runs, err := b.Plant(e.ctx, f, seed+1)
		if err != nil {
			return fail(err)
		}
		one.Of++
		took := 0.0
		for _, run := range runs {
			took += run.Took.Seconds()
			if !run.Found() {
				continue
			}
			one.Found++
			one.Times = append(one.Times, took)
			if run.How == faults.Hung {
				one.Hung++
			}
			if by := strings.Trim(run.Killer.Pattern, "^$"); !slices.Contains(one.By, by) {
				one.By = append(one.By, by)
			}
		}
	}
	for seed := range clean {
		runs, err := b.Clean(e.ctx, f, 1000+seed)
		if err != nil {
			return fail(err)
		}
		for _, run := range runs {
			one.Clean++
			if run.Found() {
				one.Alarms++
			}
		}
	}
	return one
}

func (r faultReport) line() string {
	text := fmt.Sprintf("%-12s %-56s found %d of %d", r.ID, r.What, r.Found, r.Of)
	if len(r.Times) > 0 {
		text += fmt.Sprintf(", median %.1f s, worst %.1f s", sample.Quantile(r.Times, 0.5), slices.Max(r.Times))
	}
	if r.Clean > 0 {
		text += fmt.Sprintf("; clean: %d of %d failed", r.Alarms, r.Clean)
	}
	if r.Error != "" {
		text += "; " + r.Error
	}
	return text
}

// faultTable is the table that is kept, with where and when it was made.
func faultTable(reports []faultReport) []byte {
	var b bytes.Buffer
	env := bench.Environment("")
	var all []float64
	found, of := 0, 0
	for _, r := range reports {
		all = append(all, r.Times...)
		found, of = found+r.Found, of+r.Of
	}
	fmt.Fprintf(&b, "# Planted faults\n\nMade by `benchrun faults` on %s, %s, %d cores, %s, at commit %s. Times are of the tests, without their builds.\n\n",
		time.Now().UTC().Format(time.DateOnly), env.CPU, env.Cores, env.Go, env.Commit)
	fmt.Fprintf(&b, "%d faults, found in %d of %d runs", len(reports), found, of)
	if len(all) > 0 {
		fmt.Fprintf(&b, "; time to detection: median %.1f s, worst %.1f s", sample.Quantile(all, 0.5), slices.Max(all))
	}
	fmt.Fprintf(&b, ".\n\n| fault | what the edited code does | found by | found | median | worst | clean runs that failed |\n| --- | --- | --- | ---: | ---: | ---: | ---: |\n")
	for _, r := range reports {
		median, worst, cleanRuns, by := "–", "–", "–", strings.Join(r.By, ", ")
		if len(r.Times) > 0 {
			median, worst = fmt.Sprintf("%.1f s", sample.Quantile(r.Times, 0.5)), fmt.Sprintf("%.1f s", slices.Max(r.Times))
		}
		if r.Clean > 0 {
			cleanRuns = fmt.Sprintf("%d of %d", r.Alarms, r.Clean)
		}
		if r.Error != "" {
			by = r.Error
		}
		count := fmt.Sprintf("%d of %d", r.Found, r.Of)
		if r.Hung > 0 {
			count += fmt.Sprintf(" (%d by its budget)", r.Hung)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", r.ID, r.What, strings.ReplaceAll(by, "|", "\\|"), count, median, worst, cleanRuns)
	}
	return b.Bytes()
}
