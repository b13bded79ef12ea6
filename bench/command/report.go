package command

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sandbed/sandbed/bench/gate"
	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/reports"
)

type reportCmd struct {
	inputFlags
	judgeFlags
	Out  string `placeholder:"DIR" help:"Where the report is written (default: the directory of --in, or bench-out)."`
	JSON bool   `help:"Print the report as JSON instead of where it is."`
}

// Help is shown below the description.
func (reportCmd) Help() string {
	return `The verdict does not change the exit code; "benchrun gate" does that.

Examples:

    benchrun report --in bench-out
    benchrun report old.txt new.txt --out mine`
}

func (c *reportCmd) Run(e *env, _ *result) error {
	in, out := "bench-out", c.Out
	if c.In != nil {
		in = *c.In
	}
	if out == "" {
		if out = in; len(c.Files) > 0 {
			out = "bench-out"
		}
	}
	if run, ok := single(in); ok && len(c.Files) == 0 {
		if err := reports.Write(out, run); err != nil {
			return unwritable(out, err)
		}
		if c.JSON {
			return printed(e, sample.Encode, run)
		}
		fmt.Fprintf(e.stdout, "%d rows of one build\nreport: %s\n", len(run.Samples), filepath.Join(out, "report.md"))
		return nil
	}
	waivers, err := c.waivers(e)
	if err != nil {
		return err
	}
	judged, launches, err := c.judge(gate.Options{Waivers: waivers, Strict: c.Strict, Today: time.Now()})
	if err != nil {
		return err
	}
	if err := reports.WriteComparison(out, judged, launches); err != nil {
		return unwritable(out, err)
	}
	if c.JSON {
		return printed(e, reports.EncodeComparison, judged)
	}
	fmt.Fprintf(e.stdout, "%s\nreport: %s\n", oneLine(judged.Proved), filepath.Join(out, "report.md"))
	return nil
}

// single reads the samples of one build, where dir holds no comparison.
func single(dir string) (sample.Run, bool) {
	if _, err := os.Stat(filepath.Join(dir, "raw", "samples.ndjson")); err == nil {
		return sample.Run{}, false
	}
	f, err := os.Open(filepath.Join(dir, "report.json"))
	if err != nil {
		return sample.Run{}, false
	}
	defer f.Close()
	run, err := sample.Decode(f)
	return run, err == nil && len(run.Samples) > 0
}

func printed[T any](e *env, encode func(T) ([]byte, error), v T) error {
	b, err := encode(v)
	if err == nil {
		_, err = e.stdout.Write(b)
	}
	return err
}
