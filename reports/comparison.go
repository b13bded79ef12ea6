package reports

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"github.com/sandbed/sandbed/bench/gate"
	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/bench/stat"
)

// GitHub refuses a comment of more than 65,536 characters and drops a job summary
// of more than 1024 KiB whole: each stays below with room for what is put round it.
const (
	commentLimit = 60_000    // characters
	summaryLimit = 900 << 10 // bytes
)

// HistoryFile is the file in a report's directory that its history is read from.
const HistoryFile = "history.ndjson"

// comparison is a report in the making.
type comparison struct {
	gate.Report
	launches []gate.Launch
	history  []Series // empty without HistoryFile
}

// WriteComparison puts the report of a comparison into dir, which it makes:
//
//	report.md, report.html      for people; plots/*.svg and *.png are what they show
//	comment.md, summary.md      report.md within what GitHub takes
//	report.json                 r; DecodeComparison reads it
//	badge.json                  endpoint of shields.io
//	bench/base.txt, head.txt    benchfmt, one line a launch; benchstat compares them
//	bmf.json                    Bencher Metric Format
//	smaller-is-better.json      github-action-benchmark
//	env.json, calib.json, design.json
//
// A history.ndjson in dir is shown as well. Each file appears whole or not at all, and
// those that this comparison has nothing for are removed; report.md comes last. An r
// that cannot be written, or a history that cannot be read, is an error before any
// file is touched.
func WriteComparison(dir string, r gate.Report, launches []gate.Launch) error {
	c := comparison{Report: r, launches: launches}
	history, err := os.ReadFile(filepath.Join(dir, HistoryFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	runs, err := DecodeHistory(bytes.NewReader(history))
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(dir, HistoryFile), err)
	}
	if c.history, err = History(runs); err != nil {
		return err
	}
	plots, err := render(c.drawings()...)
	if err != nil {
		return err
	}
	files := plots
	for _, f := range []struct {
		name string
		make func() ([]byte, error)
	}{
		{"report.json", func() ([]byte, error) { return EncodeComparison(r) }},
		{"env.json", c.environmentJSON},
		{"calib.json", c.calibrationJSON},
		{"design.json", func() ([]byte, error) { return indented(r.Design) }},
		{"badge.json", c.badge},
		{"bench/base.txt", func() ([]byte, error) { return c.benchfmt(gate.Base) }},
		{"bench/head.txt", func() ([]byte, error) { return c.benchfmt(gate.Head) }},
		{"bmf.json", c.bencher},
		{"smaller-is-better.json", c.smallerIsBetter},
		{"report.html", func() ([]byte, error) { return c.html(plots) }},
		{"comment.md", func() ([]byte, error) { return c.fit(commentLimit, utf8.RuneCount), nil }},
		{"summary.md", func() ([]byte, error) { return c.fit(summaryLimit, func(b []byte) int { return len(b) }), nil }},
		{"report.md", func() ([]byte, error) { return c.markdown(layout{pictures: true, rows: math.MaxInt}), nil }},
	} {
		data, err := f.make()
		if err != nil {
			return fmt.Errorf("reports: %s: %w", f.name, err)
		}
		files = append(files, file{filepath.FromSlash(f.name), data})
	}
	return place(dir, files)
}

// EncodeComparison returns r as indented JSON. What is not a number, and infinite
// figures other than the ends of intervals, are written as 0: there is none.
func EncodeComparison(r gate.Report) ([]byte, error) {
	r.Rows = slices.Clone(r.Rows)
	for i := range r.Rows {
		row := &r.Rows[i]
		for _, v := range []*float64{&row.Base.Median, &row.Head.Median, &row.Ratio, &row.Theta, &row.Floor, &row.P, &row.PAdj, &row.MDE, &row.Sigma, &row.Lag1} {
			*v = number(*v)
		}
		for _, list := range []*[]float64{&row.LogRatios, &row.BaseVals, &row.HeadVals} {
			*list = slices.Clone(*list)
			for j := range *list {
				(*list)[j] = number((*list)[j])
			}
		}
	}
	r.Controls = slices.Clone(r.Controls)
	for i := range r.Controls {
		r.Controls[i].Ratio = number(r.Controls[i].Ratio)
	}
	return indented(r)
}

func number(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	return v
}

// comparisonSchema is the version of gate.Report that this build reads.
const comparisonSchema = 1

// DecodeComparison reads what EncodeComparison wrote, and refuses another schema.
func DecodeComparison(data []byte) (gate.Report, error) {
	var r gate.Report
	if err := json.Unmarshal(data, &r); err != nil {
		return gate.Report{}, fmt.Errorf("reports: %w", err)
	}
	if r.Schema != comparisonSchema {
		return gate.Report{}, fmt.Errorf("reports: schema %d is not readable: this build reads schema %d", r.Schema, comparisonSchema)
	}
	if r.Verdict == "" {
		return gate.Report{}, errors.New("reports: verdict is missing: give the report.json of a comparison, not that of a run")
	}
	return r, nil
}

// indented is JSON for people and for diffs.
func indented(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(v)
	return b.Bytes(), err
}

// Which rows are shown where.

// changed are the rows of the time lane that somebody must look at.
func (c *comparison) changed() (rows []gate.Row) {
	for _, r := range c.Rows {
		if r.Lane != gate.Exact && notable(r) {
			rows = append(rows, r)
		}
	}
	return rows
}

func notable(r gate.Row) bool {
	switch r.Verdict {
	case gate.OK, gate.Unchanged:
		return false
	case gate.Inconclusive, gate.Unmeasurable:
		return r.Gated // the others are measured too little to say more
	}
	return true
}

// exact are the rows of the exact lane: those that changed, and how many did not.
func (c *comparison) exact() (rows []gate.Row, equal int) {
	for _, r := range c.Rows {
		switch {
		case r.Lane != gate.Exact:
		case r.Verdict == gate.Unchanged:
			equal++
		default:
			rows = append(rows, r)
		}
	}
	return rows, equal
}

// paired are the rows that have a ratio and an interval to draw, as they are listed.
func (c *comparison) paired() (rows []gate.Row) {
	for _, r := range c.Rows {
		if r.Lane != gate.Exact && r.Ratio > 0 && !math.IsInf(r.Ratio, 0) {
			rows = append(rows, r)
		}
	}
	return rows
}

// words are the verdicts in the order in which they are counted and sorted.
var words = []gate.Word{gate.Regression, gate.Failed, gate.Waived, gate.Improvement, gate.OK, gate.Inconclusive, gate.Unmeasurable, gate.New, gate.Removed, gate.Changed, gate.Unchanged}

// counts says how many rows have each verdict, gated and not.
func (c *comparison) counts() (counts []wordCount) {
	for _, word := range words {
		n := wordCount{Word: word}
		for _, r := range c.Rows {
			if r.Verdict == word {
				n.All++
				if r.Gated {
					n.Gated++
				}
			}
		}
		if n.All > 0 {
			counts = append(counts, n)
		}
	}
	return counts
}

type wordCount struct {
	Word       gate.Word
	All, Gated int
}

// Said says the count as people would.
func (n wordCount) Said() string {
	return fmt.Sprintf("%d %s", n.All, map[gate.Word]string{
		gate.Regression: "regressed", gate.Failed: "failed", gate.Waived: "waived", gate.Improvement: "improved", gate.OK: "proved no worse",
		gate.Inconclusive: "inconclusive", gate.Unmeasurable: "unmeasurable", gate.New: "new", gate.Removed: "removed", gate.Changed: "changed (exact)", gate.Unchanged: "unchanged (exact)",
	}[n.Word])
}

// How figures are written.

// symbol marks a verdict so that it can be found by eye; the word says it.
func symbol(w gate.Word) string {
	switch w {
	case gate.Regression, gate.Failed:
		return "🔴 "
	case gate.Improvement:
		return "🟢 "
	case gate.Inconclusive, gate.Unmeasurable, gate.Waived:
		return "🟡 "
	}
	return ""
}

// banner is what the verdict of the whole comparison is called, and its symbol.
func banner(verdict string) (symbol, words string) {
	switch verdict {
	case "ok":
		return "✅", "OK"
	case "regression":
		return "❌", "Regression"
	case "inconclusive":
		return "⚠️", "Inconclusive"
	case "unfit":
		return "🛠", "Runner unfit"
	case "failed":
		return "💥", "Failed"
	}
	return "❔", plain(cut(verdict, longName))
}

// none stands where there is no figure.
const none = "–"

func ratio(v float64) string {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0) || v <= 0:
		return none
	case v >= 100 || v < 0.01:
		return digits(v)
	}
	return fmt.Sprintf("%.3f", v)
}

// span writes an interval of a ratio; an end that is open is left out.
func span(i stat.Interval) string {
	low, high := !math.IsInf(i.Low, 0) && i.Low > 0, !math.IsInf(i.High, 0) && i.High > 0
	switch {
	case low && high:
		return ratio(i.Low) + " – " + ratio(i.High)
	case low:
		return "≥ " + ratio(i.Low)
	case high:
		return "≤ " + ratio(i.High)
	}
	return none
}

// share writes a share as a percentage; none for 0 and what is no number.
func share(v float64) string {
	if number(v) == 0 {
		return none
	}
	return Value(v, sample.Share)
}

func chance(p float64) string {
	switch {
	case math.IsNaN(p):
		return none
	case p < 0.0001:
		return "< 0.0001"
	}
	return digits(p)
}

// arm writes a median; none if the arm has no values.
func arm(a gate.Arm, unit string) string {
	if a.N == 0 {
		return none
	}
	return plain(Value(a.Median, cut(unit, longUnit)))
}

// whole writes an exact value to its last digit.
func whole(a gate.Arm, unit string) string {
	unit = plain(cut(unit, longUnit))
	switch {
	case a.N == 0:
		return none
	case a.Median == math.Trunc(a.Median) && math.Abs(a.Median) < 1<<53:
		if unit == sample.Count {
			return thousands(a.Median)
		}
		return thousands(a.Median) + " " + unit
	}
	return fmt.Sprintf("%g %s", a.Median, unit)
}

// change is what an exact row changed by.
func change(r gate.Row) string {
	if r.Base.N == 0 || r.Head.N == 0 {
		return none
	}
	by := r.Head.Median - r.Base.Median
	text := thousands(by)
	if by != math.Trunc(by) {
		text = fmt.Sprintf("%g", by)
	}
	if by > 0 {
		text = "+" + text
	}
	if r.Base.Median != 0 {
		text += fmt.Sprintf(" (%+.3g %%)", 100*by/r.Base.Median)
	}
	return text
}
