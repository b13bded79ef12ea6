package compare

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

	"github.com/sandbed/sandbed/bench/gate"
	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/bench/stat"
)

// steady is the σ of a round up to which a row counts as steady in a power curve.
const steady = 0.03

// AppendRecord adds a line to a file of records, which it makes.
func AppendRecord(name string, r Record) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// ReadRecords reads a file of records; one that is not there has none. A last line
// that an interrupt cut is left out.
func ReadRecords(name string) ([]Record, error) {
	data, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	var out []Record
	number := 0
	for line := range bytes.Lines(data) {
		number++
		if !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		var r Record
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", name, number, err)
		}
		if r.Schema != RecordSchema {
			return nil, fmt.Errorf("%s: line %d: schema %d is not readable: this build reads schema %d", name, number, r.Schema, RecordSchema)
		}
		out = append(out, r)
	}
	return out, nil
}

// FalseAlarms is what A/A runs came to.
type FalseAlarms struct {
	Runs   int `json:"runs"`
	Alarms int `json:"alarms"` // runs that a pull request would have been failed for
	// Bound is the largest rate of alarms that so few do not rule out, with 95 % confidence.
	Bound float64 `json:"bound"`
	// Refused are runs without a verdict: the machine was unfit, a control was not as it
	// must, or too many rows were undecided.
	Refused int `json:"refused"`
	// Words are rows that their launches alone call a regression or an improvement.
	Words int         `json:"words"`
	Rows  []RowSpread `json:"rows"`
}

// RowSpread is how far A/A runs move one row.
type RowSpread struct {
	Row string `json:"row"`
	N   int    `json:"n"`
	// P95 is the 95th percentile of |ln ratio| over the runs: aa_p95 of the reviewed list.
	P95   float64 `json:"aa_p95"`
	Sigma float64 `json:"sigma"` // median robust spread of one round
	// Undecided are runs in which the row got no verdict from its launches.
	Undecided int `json:"undecided"`
}

// SummarizeAA sums up A/A runs.
func SummarizeAA(records []Record) FalseAlarms {
	f := FalseAlarms{Runs: len(records)}
	moved, sigma, undecided := map[string][]float64{}, map[string][]float64{}, map[string]int{}
	var order []string
	for _, r := range records {
		switch r.Exit {
		case gate.ExitRegression:
			f.Alarms++
		case gate.ExitHeld:
		default:
			f.Refused++
		}
		for _, row := range r.Rows {
			if moved[row.Row] == nil {
				order = append(order, row.Row)
			}
			moved[row.Row] = append(moved[row.Row], math.Abs(math.Log(row.Ratio)))
			sigma[row.Row] = append(sigma[row.Row], row.Sigma)
			switch row.Word {
			case gate.Regression, gate.Improvement:
				f.Words++
			case gate.OK:
			default:
				undecided[row.Row]++
			}
		}
	}
	if f.Runs > 0 {
		f.Bound = stat.UpperBound(f.Alarms, f.Runs, 0.95)
	}
	for _, name := range order {
		f.Rows = append(f.Rows, RowSpread{name, len(moved[name]), sample.Quantile(moved[name], 0.95), sample.Quantile(sigma[name], 0.5), undecided[name]})
	}
	return f
}

// PowerPoint is how often a slowdown of one size was found.
type PowerPoint struct {
	Injected float64 `json:"injected"`
	All      Found   `json:"all"`
	Steady   Found   `json:"steady"` // rows whose σ is at most 3 %
	Tight    Found   `json:"tight"`  // of those, rows with a margin of at most 2 %
	Wrong    int     `json:"wrong"`  // rows called faster
	Refused  int     `json:"refused"`
	Runs     int     `json:"runs"`
}

// Found counts rows of runs, by the word of their launches.
type Found struct {
	Found    int           `json:"found"`
	Of       int           `json:"of"`
	Interval stat.Interval `json:"interval"` // of the rate, 95 %
}

func (f *Found) add(found bool) {
	if f.Of++; found {
		f.Found++
	}
}

// SummarizePower sums up runs with an injected slowdown, by its size.
func SummarizePower(records []Record) []PowerPoint {
	points := map[float64]*PowerPoint{}
	for _, r := range records {
		p := points[r.Injected]
		if p == nil {
			p = &PowerPoint{Injected: r.Injected}
			points[r.Injected] = p
		}
		p.Runs++
		if r.Exit == gate.ExitInconclusive {
			p.Refused++
		}
		for _, row := range r.Rows {
			found := row.Word == gate.Regression
			p.All.add(found)
			if row.Sigma <= steady {
				p.Steady.add(found)
				if row.Theta <= 0.02 {
					p.Tight.add(found)
				}
			}
			if row.Word == gate.Improvement {
				p.Wrong++
			}
		}
	}
	var out []PowerPoint
	for _, p := range points {
		for _, f := range []*Found{&p.All, &p.Steady, &p.Tight} {
			if f.Of > 0 {
				f.Interval = stat.ClopperPearson(f.Found, f.Of, 0.95)
			}
		}
		out = append(out, *p)
	}
	slices.SortFunc(out, func(a, b PowerPoint) int {
		if a.Injected < b.Injected {
			return -1
		}
		return 1
	})
	return out
}
