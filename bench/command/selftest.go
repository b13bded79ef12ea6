package command

import (
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/sandbed/sandbed/bench/gate"
	"github.com/sandbed/sandbed/bench/gate/gatetest"
)

type selftestCmd struct {
	JSON bool `help:"Print one line of JSON a stream, and a last line with the summary."`
}

// Help is shown below the description.
func (selftestCmd) Help() string {
	return `Launches of known truth go through the gate, from the bytes of samples.ndjson to the exit code: streams
with stated seeds, whose rates of verdicts must be as designed, and cases that have one answer. Exit code 1 says
that the gate does not decide as designed. Takes about ten seconds.

Examples:

    benchrun selftest
    benchrun selftest --json`
}

// selftestSummary is the last line of --json.
type selftestSummary struct {
	Streams int      `json:"streams"`
	Cases   int      `json:"cases"`
	Failed  []string `json:"failed"` // names
}

func (c *selftestCmd) Run(e *env, r *result) error {
	return selftest(e, r, gatetest.All(gatetest.Real()), c.JSON)
}

func selftest(e *env, r *result, results iter.Seq[gatetest.Result], asJSON bool) error {
	show, clear := e.progress()
	defer clear()
	lines := json.NewEncoder(e.stdout)
	lines.SetEscapeHTML(false)
	s := selftestSummary{Failed: []string{}}
	if !asJSON {
		fmt.Fprintf(e.stdout, "%-27s %5s %5s %7s  %-34s %s\n", "stream", "seed", "rows", "rounds", "verdicts", "expected")
	}
	for one := range results {
		if err := e.ctx.Err(); err != nil {
			return err
		}
		clear()
		if one.Runs > 0 {
			s.Streams++
		} else {
			s.Cases++
		}
		mark := "as designed"
		if !one.Pass() {
			s.Failed = append(s.Failed, one.Name)
			mark = "NOT AS DESIGNED"
		}
		if asJSON {
			if err := lines.Encode(one); err != nil {
				return err
			}
		} else {
			verdicts := mark
			if one.Runs > 0 {
				verdicts = verdictText(one.Verdicts)
			}
			seed, rows, rounds := "", "", ""
			if one.Runs > 0 {
				seed, rows, rounds = fmt.Sprint(one.Seed), fmt.Sprint(one.Rows), fmt.Sprintf("%.1f", one.Rounds)
			}
			fmt.Fprintf(e.stdout, "%-27s %5s %5s %7s  %-34s %s\n", one.Name, seed, rows, rounds, verdicts, one.Expected)
			for _, f := range one.Faults {
				fmt.Fprintf(e.stdout, "    NOT AS DESIGNED: %s\n", plain(f))
			}
		}
		if show != nil {
			show("after " + one.Name)
		}
	}
	clear()
	if len(s.Failed) > 0 {
		r.code = exitBroken
	}
	if asJSON {
		return lines.Encode(s)
	}
	verdict := "as designed"
	if len(s.Failed) > 0 {
		verdict = "not as designed: " + strings.Join(s.Failed, ", ")
	}
	_, err := fmt.Fprintf(e.stdout, "\n%d streams and %d cases: %s\n", s.Streams, s.Cases, verdict)
	return err
}

// verdictText writes counts, the largest first.
func verdictText(counts map[gate.Word]int) string {
	words := make([]gate.Word, 0, len(counts))
	for w := range counts {
		words = append(words, w)
	}
	slices.SortFunc(words, func(a, b gate.Word) int {
		if counts[a] != counts[b] {
			return counts[b] - counts[a]
		}
		return strings.Compare(string(a), string(b))
	})
	parts := make([]string, len(words))
	for i, w := range words {
		parts[i] = fmt.Sprintf("%s %d", w, counts[w])
	}
	return strings.Join(parts, ", ")
}
