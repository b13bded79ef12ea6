package command

import (
	"time"

	"github.com/sandbed/sandbed/bench/compare"
	"github.com/sandbed/sandbed/bench/gate"
)

type mergeCmd struct {
	Dirs []string `arg:"" name:"dir" help:"What compare --shard wrote: the directories of all shards."`
	Out  string   `placeholder:"DIR" default:"bench-out" help:"Where the report is written (default ${default})."`
	judgeFlags
	JSON bool `help:"Print the report as JSON instead of a table."`
}

// Help is shown below the description.
func (mergeCmd) Help() string {
	return "Example:\n\n    benchrun merge shard-1 shard-2 shard-3 --out bench-out"
}

func (c *mergeCmd) Run(e *env, r *result) error {
	waivers, err := c.waivers(e)
	if err != nil {
		return err
	}
	merged, err := compare.Merge(c.Dirs, gate.Options{Waivers: waivers, Strict: c.Strict, Today: time.Now()})
	if err != nil {
		return notCompared(e, r, err)
	}
	return showComparison(e, r, c.Out, merged, c.JSON)
}
