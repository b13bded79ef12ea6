package command

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/sandbed/sandbed/bench/compare"
	"github.com/sandbed/sandbed/bench/gate"
	"github.com/sandbed/sandbed/reports"
)

// inputFlags say what is judged: what compare left on disk, or two files.
type inputFlags struct {
	Files []string `arg:"" optional:"" name:"OLD NEW" help:"Two files of go test -bench, in place of --in."`
	In    *string  `placeholder:"DIR" help:"Directory that compare wrote (default bench-out)."`
}

// judge reads what the flags name and comes to the verdict. Two files have no launches.
func (f inputFlags) judge(o gate.Options) (gate.Report, []gate.Launch, error) {
	switch {
	case len(f.Files) == 0:
		dir := "bench-out"
		if f.In != nil {
			dir = *f.In
		}
		result, err := compare.Merge([]string{dir}, o)
		var refused *compare.Refused
		if errors.As(err, &refused) {
			return gate.Report{}, nil, &usage{"--in", dir, refused.Remedy + ": give the directory that compare wrote"}
		} else if err != nil {
			return gate.Report{}, nil, err
		}
		return result.Report, result.Launches, nil
	case f.In != nil:
		return gate.Report{}, nil, &usage{"--in", *f.In, "leave it out beside OLD and NEW"}
	case len(f.Files) != 2:
		return gate.Report{}, nil, &usage{"OLD NEW", f.Files[0], "give two files of go test -bench, or --in DIR"}
	}
	var in [2]*os.File
	for i, name := range f.Files {
		file, err := os.Open(name)
		if err != nil {
			return gate.Report{}, nil, unreadable("OLD NEW", name, err)
		}
		defer file.Close()
		in[i] = file
	}
	both := f.Files[0] + " " + f.Files[1]
	b, err := gate.ReadBench(in[0], in[1])
	if err != nil {
		return gate.Report{}, nil, &usage{"OLD NEW", both, err.Error()}
	}
	report, err := gate.DecideBench(gate.DefaultDesign(nil, 0), b, o)
	if err != nil {
		return gate.Report{}, nil, &usage{"OLD NEW", both, err.Error()}
	}
	report.Base.Name, report.Head.Name = f.Files[0], f.Files[1]
	return report, nil, nil
}

type gateCmd struct {
	inputFlags
	judgeFlags
	JSON bool `help:"Print the whole verdict as JSON."`
}

// Help is shown below the description.
func (gateCmd) Help() string {
	return `Judges again what is on disk; measures nothing. Exit codes: 0 no regression, 1 a regression is
proved, 2 input that cannot be read, 3 no verdict (machine, controls, or too many rows), 4 a benchmark failed.

Examples:

    benchrun gate --in bench-out --waivers bench/waivers.txt
    benchrun gate old.txt new.txt`
}

func (c *gateCmd) Run(e *env, r *result) error {
	waivers, err := c.waivers(e)
	if err != nil {
		return err
	}
	report, _, err := c.judge(gate.Options{Waivers: waivers, Strict: c.Strict, Today: time.Now()})
	if err != nil {
		return err
	}
	r.code = report.Exit
	if c.JSON {
		data, err := reports.EncodeComparison(report)
		if err != nil {
			return err
		}
		_, err = e.stdout.Write(data)
		return err
	}
	return printVerdict(e.stdout, report)
}

// printVerdict writes the sentence, and below it what did not simply hold.
func printVerdict(to io.Writer, r gate.Report) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s\n", r.Proved)
	printed := false
	for _, row := range r.Rows {
		if row.Verdict == gate.OK || row.Verdict == gate.Unchanged {
			continue
		}
		if !printed {
			fmt.Fprintf(&b, "\n%-12s  %-44s %12s %12s %7s  %s\n", "verdict", "row", "base", "head", "ratio", "why")
			printed = true
		}
		name := row.Name
		if !row.Gated {
			name += " (not gated)"
		}
		ratio := "–"
		if row.Base.N > 0 && row.Head.N > 0 {
			ratio = strconv.FormatFloat(row.Ratio, 'f', 3, 64)
		}
		fmt.Fprintf(&b, "%-12s  %-44s %12s %12s %7s  %s\n", row.Verdict, plain(name), armText(row.Base, row.Unit), armText(row.Head, row.Unit), ratio, plain(row.Reason))
	}
	if len(r.Controls) > 0 {
		fmt.Fprintln(&b)
	}
	for _, c := range r.Controls {
		state := "not as it must"
		if c.Good {
			state = "as it must"
		}
		fired := "not fired"
		if c.Fired {
			fired = "fired"
		}
		fmt.Fprintf(&b, "control %-8s  %-44s %.3f × after %d rounds: %s, %s\n", c.Kind, plain(c.Row), c.Ratio, c.Rounds, fired, state)
	}
	if len(r.Waivers) > 0 {
		fmt.Fprintln(&b)
	}
	for _, w := range r.Waivers {
		fmt.Fprintf(&b, "waiver %-8s   %-44s up to %g × until %s, %s: %s\n", w.State, plain(w.Row), w.Ceiling, w.Expires.Format(time.DateOnly), plain(w.Issue), plain(w.Reason))
	}
	if len(r.Warnings) > 0 {
		fmt.Fprintln(&b)
	}
	for _, w := range r.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", plain(w))
	}
	fmt.Fprintf(&b, "\n%s (exit %d)\n", r.Verdict, r.Exit)
	_, err := to.Write(b.Bytes())
	return err
}

func armText(a gate.Arm, unit string) string {
	if a.N == 0 {
		return "–"
	}
	return reports.Value(a.Median, unit)
}

// plain quotes what a terminal would not print as it is: names and reasons come from files.
func plain(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) || len(s) > 1000 {
		return fmt.Sprintf("%.1000q", s)
	}
	return s
}
