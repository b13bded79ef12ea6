package gate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/bench/stat"
)

// Schema is the version of the JSON forms of this package. It grows by one with
// every change that an older reader would misread.
const Schema = 1

// Kind is the one kind of Design: pairs in ABBA or BAAB blocks, sign test,
// group-sequential limits.
const Kind = "abba-sign-gs"

const (
	// MaxGated bounds the gated rows: they share FamilyAlpha, and a launch costs about 150 ms.
	MaxGated = 20
	// maxMargin is the margin above which a row is UNMEASURABLE.
	maxMargin = 0.15
	// spreadFactor times a row's own A/A p95 is the least margin it can have.
	spreadFactor = 1.5
	// mdePower is the power at which the smallest slowdown that a row can see is meant.
	mdePower = 0.95
	// maxDesign bounds what is read of a design.json.
	maxDesign = 1 << 20
)

// DefaultDesign returns the design of a comparison of these rows, with a row's
// Theta of 0 replaced by the default margin. Seed chooses the orders.
func DefaultDesign(rows []RowPlan, seed uint64) Design {
	d := Design{
		Schema: Schema, Kind: Kind,
		Theta: 0.05, Tight: 0.02, FamilyAlpha: 0.05, ClearAlpha: 0.05,
		Looks: []int{10, 15, 20, 30, 40, 60},
		Seed:  seed, LayoutSeeds: []int{1, 2, 3},
		Gated:     slices.Clone(rows),
		Injection: 0.10, AbsoluteFloor: 50e-6, ExactLimit: 0.01,
	}
	for i := range d.Gated {
		if d.Gated[i].Theta == 0 {
			d.Gated[i].Theta = d.Theta
		}
	}
	return d
}

// Quick returns d with three looks only: a third of the rounds, for large slowdowns. With
// fewer, rounds that depend on each other by chance would leave rows without a verdict.
func (d Design) Quick() Design {
	d.Looks = []int{10, 15, 20}
	// Its control is what so few rounds can be sure of: +10 % was missed in one of the first runs.
	d.Injection = 0.20
	return d
}

// Validate reports everything that makes d unusable, a design that could never
// say REGRESSION among it.
func (d Design) Validate() error {
	var errs []error
	bad := func(field string, value any, allowed string) {
		errs = append(errs, fmt.Errorf("design: %s = %v: %s", field, value, allowed))
	}
	between := func(field string, v, lo, hi float64) {
		if !(v > lo && v <= hi) {
			bad(field, v, fmt.Sprintf("give a number above %g, at most %g", lo, hi))
		}
	}
	if d.Schema != Schema {
		bad("schema", d.Schema, fmt.Sprintf("this build reads schema %d", Schema))
	}
	if d.Kind != Kind {
		bad("kind", fmt.Sprintf("%q", d.Kind), "give "+Kind)
	}
	between("theta", d.Theta, 0, maxMargin)
	between("tight", d.Tight, 0, maxMargin)
	between("alpha_family", d.FamilyAlpha, 0, 0.2)
	between("alpha_clear", d.ClearAlpha, 0, 0.2)
	if !(d.AbsoluteFloor >= 0 && d.AbsoluteFloor <= 1) {
		bad("absolute_floor_sec", d.AbsoluteFloor, "give 0 to 1 second")
	}
	if !(d.ExactLimit >= 0 && d.ExactLimit < 1) {
		bad("exact_limit", d.ExactLimit, "give a share from 0 to below 1")
	}
	if d.Injection != 0 && !(d.Injection > d.Theta && d.Injection <= 1) {
		bad("injection", d.Injection, fmt.Sprintf("give more than theta (%g), or it could never be found, and at most 1; 0 for a run without controls", d.Theta))
	}
	if n := len(d.Gated); n < 1 || n > MaxGated {
		bad("gated", fmt.Sprintf("%d rows", n), fmt.Sprintf("name 1 to %d rows", MaxGated))
	}
	seen := map[string]bool{}
	measurable := false
	for _, p := range d.Gated {
		field := fmt.Sprintf("gated %q", p.Row)
		if err := (sample.Sample{Name: p.Row, Unit: sample.Seconds, Count: 1}).Validate(); err != nil {
			errs = append(errs, fmt.Errorf("design: gated: %w", err))
		}
		if seen[p.Row] {
			bad(field, "twice", "name a row once")
		}
		seen[p.Row] = true
		between(field+".theta", p.Theta, 0, maxMargin)
		if !(p.Spread >= 0 && p.Spread <= 10) {
			bad(field+".aa_p95", p.Spread, "give 0 to 10")
		}
		measurable = measurable || spreadFactor*p.Spread <= maxMargin
	}
	if len(d.Gated) > 0 && !measurable {
		bad("gated", "no row that can be judged", fmt.Sprintf("%g × aa_p95 of each is above %s: gate steadier rows", spreadFactor, percent(maxMargin)))
	}
	if len(errs) == 0 {
		if _, err := d.limits(); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// alpha is a row's share of FamilyAlpha.
func (d Design) alpha() float64 { return d.FamilyAlpha / float64(max(1, len(d.Gated))) }

// limits are what the rounds of a row are counted against.
type limits struct {
	pairs stat.Limits
	// blocks judge the means of blocks of two rounds, at half the looks. Choosing the unit
	// by the data is a second try, so that blocks may only clear with what pairs leave of
	// ClearAlpha. They may fail with alpha once more: a crossing is at most 2 alpha
	// likely at the margin, and a REGRESSION takes two, (2 alpha)² < alpha. No Looks: not used.
	blocks stat.Limits
	// reaches holds what reach found: the search takes longer than all else of a row.
	reaches map[bool]float64
}

// reach is what the smallest slowdown that can be seen has above the margin, as a
// logarithm and for each unit of sigma.
func (l limits) reach(blocks bool) float64 {
	v, ok := l.reaches[blocks]
	if !ok {
		of := l.pairs
		if blocks {
			of = l.blocks
		}
		v = math.Log1p(of.MDE(0, 1, mdePower))
		l.reaches[blocks] = v
	}
	return v
}

func (d Design) limits() (limits, error) {
	l := limits{reaches: map[bool]float64{}}
	var err error
	if l.pairs, err = stat.Sequential(d.Looks, d.alpha(), d.ClearAlpha); err != nil {
		return limits{}, fmt.Errorf("design: this can never say %s: %w (alpha is %g over %d gated rows)", Regression, err, d.FamilyAlpha, len(d.Gated))
	}
	var halves []int
	for _, n := range d.Looks {
		if n >= 2 && (len(halves) == 0 || n/2 > halves[len(halves)-1]) {
			halves = append(halves, n/2)
		}
	}
	// A design too short for blocks is no fault: rounds that depend on each other then prove nothing.
	if left := d.ClearAlpha - l.pairs.SpentClear; left > 0 {
		l.blocks, _ = stat.Sequential(halves, d.alpha(), left)
	}
	return l, nil
}

// plan returns what is planned for a row, and whether it is gated.
func (d Design) plan(row string) (RowPlan, bool) {
	for _, p := range d.Gated {
		if p.Row == row {
			return p, true
		}
	}
	return RowPlan{Row: row, Theta: d.Theta}, false
}

// margin returns the margin of a row whose batches take this many seconds, 0 if
// unknown, and the floor that is in it.
func (d Design) margin(p RowPlan, batch float64) (theta, floor float64) {
	floor = spreadFactor * p.Spread
	if batch > 0 {
		floor = max(floor, d.AbsoluteFloor/batch)
	}
	return max(p.Theta, floor), floor
}

// WriteDesign writes d as indented JSON: design.json. It refuses what Validate does.
func WriteDesign(w io.Writer, d Design) error {
	if err := d.Validate(); err != nil {
		return err
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(d)
}

// ReadDesign reads a design.json of at most 1 MiB, and refuses what Validate does.
func ReadDesign(r io.Reader) (Design, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxDesign+1))
	if err != nil {
		return Design{}, err
	}
	if len(data) > maxDesign {
		return Design{}, fmt.Errorf("design: more than %d bytes: give the design.json of a comparison", maxDesign)
	}
	var d Design
	if err := json.Unmarshal(data, &d); err != nil {
		return Design{}, fmt.Errorf("design: %w: give the design.json of a comparison", err)
	}
	return d, d.Validate()
}

// percent writes a share as "5 %", "0.25 %".
func percent(v float64) string {
	return fmt.Sprintf("%g %%", math.Round(v*1e4)/1e2)
}
