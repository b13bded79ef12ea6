package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/sandbed/sandbed/reports"
)

type historyCmd struct {
	Add  historyAddCmd  `cmd:"" help:"Add a comparison with the pinned reference to a history file."`
	Show historyShowCmd `cmd:"" help:"Show a history and where it changed."`
}

type historyAddCmd struct {
	In   string `placeholder:"DIR" help:"The directory of benchrun compare, with the pinned reference as base (default bench-out)." default:"bench-out"`
	File string `placeholder:"FILE" help:"The history, one line of JSON a run; made if it is not there."`
	JSON bool   `help:"Print the line instead of what was done."`
}

// Help is shown below the description.
func (historyAddCmd) Help() string {
	return `Compare the newest commit with the same reference each time, in one job, and add
what came of it. A history.ndjson in the directory of a report is shown in it.

Example:

    benchrun compare --base v1.0.0 --head HEAD --out bench-out
    benchrun history add --in bench-out --file history.ndjson`
}

func (c *historyAddCmd) Run(e *env, _ *result) error {
	if c.File == "" {
		return &usage{"--file", "", "give the history file, such as history.ndjson"}
	}
	name := filepath.Join(c.In, "report.json")
	data, err := readFile("--in", name, nil)
	if err != nil {
		return err
	}
	report, err := reports.DecodeComparison(data)
	if err != nil {
		return &usage{"--in", name, err.Error()}
	}
	run, err := reports.NewHistoryRun(report)
	if err != nil {
		return &usage{"--in", name, err.Error()}
	}
	added, err := reports.AddHistory(c.File, run)
	if err != nil {
		return &usage{"--file", c.File, err.Error()}
	}
	if c.JSON {
		return json.NewEncoder(e.stdout).Encode(run)
	}
	if !added {
		fmt.Fprintf(e.stdout, "%s is there already\n", oneLine(run.Commit))
		return nil
	}
	fmt.Fprintf(e.stdout, "added %d rows of %s against %s\n", len(run.Rows), oneLine(run.Commit), oneLine(run.Reference))
	return nil
}

type historyShowCmd struct {
	File string `placeholder:"FILE" help:"The history."`
	Out  string `placeholder:"DIR" help:"Draw it into this directory too: plots/history.svg and .png."`
	JSON bool   `help:"Print the series and their change points as JSON."`
}

// Help is shown below the description.
func (historyShowCmd) Help() string {
	return `A change point is where two detectors (Potts and E-divisive) agree on a step of 3 %
or more that lasted for 5 runs. It says where to look; it fails nothing.

Example:

    benchrun history show --file history.ndjson --out bench-out`
}

func (c *historyShowCmd) Run(e *env, _ *result) error {
	if c.File == "" {
		return &usage{"--file", "", "give the history file, such as history.ndjson"}
	}
	data, err := readFile("--file", c.File, nil)
	if err != nil {
		return err
	}
	runs, err := reports.DecodeHistory(bytes.NewReader(data))
	if err != nil {
		return &usage{"--file", c.File, err.Error()}
	}
	history, err := reports.History(runs)
	if err != nil {
		return &usage{"--file", c.File, err.Error()}
	}
	if len(history) == 0 {
		return &usage{"--file", c.File, "has no runs: benchrun history add makes some"}
	}
	if c.Out != "" {
		if err := reports.WriteHistory(c.Out, history); err != nil {
			return unwritable(c.Out, err)
		}
	}
	if c.JSON {
		return json.NewEncoder(e.stdout).Encode(history)
	}
	fmt.Fprintf(e.stdout, "%d runs against %s\n%s", len(runs), oneLine(history[0].Reference), reports.HistoryText(history))
	return nil
}
