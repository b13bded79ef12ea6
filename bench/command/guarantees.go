package command

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/sandbed/sandbed/bench"
	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/engine/enginetest"
)

type guaranteesCmd struct {
	Corpus *string `placeholder:"FILE" help:"Cases to run instead of the built-in ones: one JSON object a line."`
	backendFlags
	JSON bool `help:"Print one line of JSON a case, and a last line with the summary."`
}

// Help is shown below the description.
func (guaranteesCmd) Help() string {
	return `Examples:

    benchrun guarantees
    benchrun guarantees --backend pool --workers 4
    benchrun guarantees --corpus cases.jsonl --json`
}

// summary is the last line of --json.
type summary struct {
	Engine     string              `json:"engine"`
	Cases      int                 `json:"cases"`
	Passed     int                 `json:"passed"`
	Exact      int                 `json:"exact"`
	Clean      int                 `json:"clean_after"`
	Failed     []string            `json:"failed"` // ids
	Laws       map[string][]string `json:"laws"`   // by status
	WorstNs    int64               `json:"worst_overrun_ns"`
	WorstBytes int64               `json:"worst_memory_peak_bytes"`
}

func (c *guaranteesCmd) Run(e *env, r *result) error {
	settings := bench.Options{Metering: e.suite.Metering()}
	if err := c.backendFlags.options(e.suite, &settings); err != nil {
		return err
	}
	opts := enginetest.Options{Cases: enginetest.Cases()}
	if c.Corpus != nil {
		text, err := readFile("--corpus", *c.Corpus, nil)
		if err != nil {
			return err
		}
		if opts.Cases, err = enginetest.ParseCases(bytes.NewReader(text)); err != nil {
			return &usage{"--corpus", *c.Corpus, err.Error()}
		}
		opts.CasesOnly = true
	}
	show, clear := e.progress()
	defer clear()
	step := func(what string) {
		if show != nil {
			show(what)
		}
	}
	lines := json.NewEncoder(e.stdout)
	lines.SetEscapeHTML(false)
	var writeErr error
	opts.OnCase = func(rec enginetest.Record, _ []enginetest.Finding) {
		step("case " + rec.ID)
		if c.JSON && writeErr == nil {
			clear()
			writeErr = lines.Encode(rec)
		}
	}
	opts.OnLaw = func(l enginetest.LawResult) { step("law " + l.Name) }

	var opened []*bench.Instance
	defer func() {
		for _, i := range opened {
			i.Close()
		}
	}()
	report := enginetest.Examine(e.ctx, func(ctx context.Context) (engine.Backend, error) {
		i, err := e.suite.Open(ctx, settings)
		if err != nil {
			return nil, err
		}
		opened = append(opened, i)
		return i.Backend, nil
	}, opts)
	clear()
	if writeErr != nil {
		return writeErr
	}
	if len(report.Findings) > 0 {
		r.code = exitBroken
	}
	s := summarise(e.suite.Engine, report)
	if len(s.Failed) > 0 {
		r.code = exitBroken
	}
	if c.JSON {
		return lines.Encode(map[string]summary{"summary": s})
	}
	return table(e.stdout, s, report, opts.Cases)
}

func summarise(name string, r enginetest.Report) summary {
	s := summary{Engine: name, Cases: len(r.Records), Failed: []string{}, Laws: map[string][]string{}}
	for _, rec := range r.Records {
		if rec.Pass {
			s.Passed++
		} else {
			s.Failed = append(s.Failed, rec.ID)
		}
		if rec.Exact {
			s.Exact++
		}
		if rec.CleanAfter {
			s.Clean++
		}
		s.WorstNs = max(s.WorstNs, rec.OverrunNs)
		s.WorstBytes = max(s.WorstBytes, rec.MemoryPeakBytes)
	}
	for _, l := range r.Laws {
		s.Laws[string(l.Status)] = append(s.Laws[string(l.Status)], l.Name)
	}
	return s
}

// table writes the result for people: a line a guarantee, then what did not
// hold and what is not offered.
func table(w io.Writer, s summary, r enginetest.Report, cases []enginetest.Case) error {
	good, bad, plain := "", "", ""
	if colours(w) {
		good, bad, plain = "\x1b[32m", "\x1b[31m", "\x1b[0m"
	}
	var b strings.Builder
	share := func(n, of int) string {
		if of == 0 {
			return fmt.Sprintf("%12s", "–")
		}
		colour := good
		if n < of {
			colour = bad
		}
		return fmt.Sprintf("%s%12s%s", colour, fmt.Sprintf("%d of %d", n, of), plain)
	}
	fmt.Fprintf(&b, "%s: %d cases, %d laws\n\n", s.Engine, s.Cases, len(r.Laws))
	fmt.Fprintf(&b, "%-20s %12s %12s %12s\n", "guarantee", "cases passed", "exact", "laws held")
	for _, g := range enginetest.Guarantees() {
		n := g.Score(r, cases)
		exact := "–"
		if n.Cases > 0 {
			exact = fmt.Sprintf("%d of %d", n.Exact, n.Cases)
		}
		fmt.Fprintf(&b, "%-20s %s %12s %s\n", g.Name, share(n.Passed, n.Cases), exact, share(n.Held, n.Laws))
	}
	fmt.Fprintf(&b, "\nworst overrun %.2f ms, largest memory %d bytes, clean after %d of %d cases\n", float64(s.WorstNs)/1e6, s.WorstBytes, s.Clean, s.Cases)
	for _, l := range r.Laws {
		if l.Status == enginetest.NotOffered {
			fmt.Fprintf(&b, "not offered: %s: %s\n", l.Name, l.Sentence)
		}
	}
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%sbroken%s: %s\n", bad, plain, oneLine(f.String()))
	}
	_, err := io.WriteString(w, b.String())
	return err
}
