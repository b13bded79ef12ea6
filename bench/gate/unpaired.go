package gate

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/bench/stat"
	"golang.org/x/perf/benchfmt"
)

const (
	// maxBench bounds a file of go test -bench.
	maxBench = 256 << 20
	// maxValues bounds the values of a row and arm: their differences are compared one by one.
	maxValues = 1000
)

// UnpairedNote is what two files of go test -bench can prove and what they cannot.
const UnpairedNote = "unpaired files: that the figures differ is tested, not why; a machine that changed between the two runs looks like a change of the code; no controls, no confirmation"

// Bench is what two files of go test -bench hold in common form.
type Bench struct {
	rows     []benchRow
	Warnings []string
}

type benchRow struct {
	name, unit string
	better     int // as benchfmt: +1 higher, −1 lower, 0 unknown
	exact      bool
	old, new   []float64
}

// ReadBench reads two outputs of go test -bench. Units become base units (ns/op becomes
// sec/op); better= and assume=exact of Unit lines are heeded, allocs/op and B/op that do not vary are
// exact. Lines that benchfmt cannot parse become warnings; a value that is not finite,
// or a file without results, is an error.
func ReadBench(old, new io.Reader) (Bench, error) {
	var b Bench
	type id struct{ pkg, name, unit string }
	at := map[id]int{}
	ids := []id{}
	pkgs := map[string]bool{}
	var r benchfmt.Reader // one for both: unit lines hold for both files
	for file, in := range []io.Reader{old, new} {
		name := []string{"old", "new"}[file]
		limited := &io.LimitedReader{R: in, N: maxBench + 1}
		r.Reset(limited, name)
		results := 0
		for r.Scan() {
			switch rec := r.Result().(type) {
			case *benchfmt.SyntaxError:
				b.Warnings = append(b.Warnings, fmt.Sprintf("%.200s", rec.Error()))
			case *benchfmt.Result:
				results++
				_, line := rec.Pos()
				pkg := rec.GetConfig("pkg")
				pkgs[pkg] = true
				for _, v := range rec.Values {
					if math.IsNaN(v.Value) || math.IsInf(v.Value, 0) {
						return Bench{}, fmt.Errorf("%s, line %d: %.100q: %s = %v: give finite numbers", name, line, rec.Name, v.Unit, v.Value)
					}
					k := id{pkg, string(rec.Name), v.Unit}
					i, ok := at[k]
					if !ok {
						i = len(b.rows)
						at[k], ids = i, append(ids, k)
						b.rows = append(b.rows, benchRow{name: k.name, unit: k.unit})
					}
					values := &b.rows[i].old
					if file == 1 {
						values = &b.rows[i].new
					}
					if len(*values) == maxValues {
						return Bench{}, fmt.Errorf("%s, line %d: %.100q: more than %d values: give fewer runs", name, line, rec.Name, maxValues)
					}
					*values = append(*values, v.Value)
				}
			}
		}
		switch {
		case r.Err() != nil:
			return Bench{}, r.Err()
		case limited.N == 0:
			return Bench{}, fmt.Errorf("%s: more than %d bytes: give the output of go test -bench", name, maxBench)
		case results == 0:
			return Bench{}, fmt.Errorf("%s: no benchmark results: give the output of go test -bench", name)
		}
	}
	units := r.Units()
	for i := range b.rows {
		row := &b.rows[i]
		if len(pkgs) > 1 && ids[i].pkg != "" {
			row.name = ids[i].pkg + "." + row.name
		}
		row.better = units.GetBetter(row.unit)
		assumed := units.Get(row.unit, "assume")
		counted := row.unit == "allocs/op" || row.unit == "B/op"
		row.exact = assumed != nil && assumed.Value == "exact" || counted && same(row.old) && same(row.new)
	}
	return b, nil
}

func same(v []float64) bool { return len(v) > 0 && slices.Min(v) == slices.Max(v) }

// DecideBench comes to the verdict on two files of go test -bench, from what d says of
// margins and levels; its rows and looks do not matter. Every row in both files whose unit says
// which way is better is gated, by the Mann-Whitney test against the margin. A
// regression found that way is exit 1, though it may be the machine's: see
// [UnpairedNote]. An error is a file from which no row could prove a regression.
func DecideBench(d Design, b Bench, o Options) (Report, error) {
	d.Kind, d.Looks, d.LayoutSeeds, d.Gated, d.Injection = "unpaired-mann-whitney", nil, nil, nil, 0
	if !(d.Theta > 0 && d.Theta <= maxMargin && d.FamilyAlpha > 0 && d.FamilyAlpha <= 0.2 && d.ClearAlpha > 0 && d.ClearAlpha <= 0.2 && d.ExactLimit >= 0 && d.ExactLimit < 1) {
		return Report{}, errors.New("design: theta, alpha_family, alpha_clear or exact_limit is out of its range: begin with DefaultDesign")
	}
	for _, row := range b.rows {
		if row.timed() {
			d.Gated = append(d.Gated, RowPlan{Row: row.name, Theta: d.Theta})
		}
	}
	rank := ranks{}
	r := Report{Schema: Schema, Design: d, Unpaired: true, Warnings: append(slices.Clone(b.Warnings), UnpairedNote), Fitness: o.Fitness}
	can, few := false, 0 // whether a row can be proved worse, and the largest count of those that cannot
	for _, row := range b.rows {
		if row.timed() {
			if rank.critical(len(row.old), len(row.new), d.alpha()) >= 0 {
				can = true
			} else {
				few = max(few, min(len(row.old), len(row.new)))
			}
		}
		r.Rows = append(r.Rows, row.judge(d, rank))
	}
	if len(d.Gated) > 0 && !can {
		return Report{}, fmt.Errorf("old and new: %d values a row can never prove a %s (%g over %d rows): run go test -bench with -count=%d or more",
			few, Regression, d.FamilyAlpha, len(d.Gated), enough(d.alpha()))
	}
	r.conclude(o)
	return r, nil
}

// timed says whether the row is judged by its distribution.
func (b benchRow) timed() bool {
	return b.better != 0 && !b.exact && len(b.old) > 0 && len(b.new) > 0
}

// judge makes the row. The interval is that of the shift of the logarithms, in which the
// test would not reject: its ends are differences between a value of new and one of old.
func (b benchRow) judge(d Design, rank ranks) Row {
	row := Row{Name: b.name, Unit: b.unit, Better: "lower", Lane: Time, Gated: b.better != 0, Ratio: 1, Theta: d.Theta, P: 1, PAdj: 1,
		Base: arm(b.old), Head: arm(b.new), BaseVals: b.old, HeadVals: b.new, Interval: unbounded(), Verdict: Inconclusive}
	if b.better > 0 {
		row.Better = "higher"
	}
	if b.exact {
		row.Lane = Exact
	}
	switch {
	case len(b.old) == 0:
		row.Verdict, row.Reason = New, "old lacks the row"
		return row
	case len(b.new) == 0:
		row.Verdict, row.Reason = Removed, "new lacks the row"
		return row
	case b.exact && !(same(b.old) && same(b.new)):
		row.Verdict, row.Reason = Unmeasurable, "not exact: its values vary"
		return row
	case b.exact:
		row.settleExact(b.old[0], b.new[0], d.ExactLimit)
		return row
	}
	sign := 1.0
	if b.better > 0 {
		sign = -1
	}
	worse := func(values []float64) []float64 {
		out := make([]float64, len(values))
		for i, v := range values {
			out[i] = sign * math.Log(max(v, least))
		}
		return out
	}
	x, y := worse(b.old), worse(b.new)
	var shifts []float64
	for _, h := range y {
		for _, v := range x {
			shifts = append(shifts, h-v)
		}
	}
	slices.Sort(shifts)
	ends := func(alpha float64) (lo, hi float64) {
		k := rank.critical(len(x), len(y), alpha)
		if k < 0 {
			return math.Inf(-1), math.Inf(1)
		}
		return shifts[k], shifts[len(shifts)-1-k]
	}
	m := math.Log1p(d.Theta)
	lo, hi := ends(d.alpha())
	_, below := ends(d.ClearAlpha)
	row.Ratio = orZero(math.Exp(sign * (sample.Quantile(y, 0.5) - sample.Quantile(x, 0.5))))
	row.Interval = stat.Interval{Low: lo, High: hi, Confidence: 1 - 2*d.alpha()}
	if math.IsInf(lo, -1) {
		row.Reason = fmt.Sprintf("%d and %d values are too few to prove anything of %d rows", len(x), len(y), len(d.Gated))
	} else if sign < 0 {
		row.Interval.Low, row.Interval.High = math.Exp(-hi), math.Exp(-lo)
	} else {
		row.Interval.Low, row.Interval.High = math.Exp(lo), math.Exp(hi)
	}
	row.P = against(x, y, m)
	row.PAdj = min(1, row.P*float64(len(d.Gated)))
	switch {
	case b.better == 0:
		row.Reason = "reported only: which way is better is unknown: add a line " + strconv.Quote("Unit "+b.unit+" better=lower")
	case lo > m:
		row.Verdict, row.Reason = Regression, "slower by the Mann-Whitney test; see the note on unpaired files"
	case hi < -m:
		row.Verdict, row.Reason = Improvement, "faster by the Mann-Whitney test"
	case below < m:
		row.Verdict, row.Reason = OK, "not slower by the Mann-Whitney test"
	case row.Reason == "":
		row.Reason = "neither slower nor not slower is proved"
	}
	return row
}

// against is the one-sided p that y is above x by more than m.
func against(x, y []float64, m float64) float64 {
	moved := make([]float64, len(x))
	wins, all := 0.0, float64(len(x)*len(y))
	for i, v := range x {
		moved[i] = v + m
		for _, h := range y {
			switch {
			case h > moved[i]:
				wins++
			case h == moved[i]:
				wins += 0.5
			}
		}
	}
	p := stat.MannWhitney(moved, y) / 2 // the smaller tail
	if wins < all/2 {
		return 1 - p
	}
	return p
}

// ranks keeps critical values of the Mann-Whitney test.
type ranks map[[3]float64]int

// critical returns the largest U whose one-sided p is at most alpha, −1 if there is
// none, for n and m values without ties. Of the n×m sorted differences it leaves out
// that many at each end, which ties only make stricter.
func (r ranks) critical(n, m int, alpha float64) int {
	k := [3]float64{float64(n), float64(m), alpha}
	if u, ok := r[k]; ok {
		return u
	}
	p := func(u int) float64 { return stat.MannWhitney(withU(n, m, u)) / 2 }
	lo, hi := -1, n*m/2 // p(lo) ≤ alpha < p(hi)
	for hi-lo > 1 {
		if mid := (lo + hi) / 2; p(mid) <= alpha {
			lo = mid
		} else {
			hi = mid
		}
	}
	r[k] = lo
	return lo
}

// withU returns samples of n and m values without ties in which u of the n×m pairs
// have the second value above the first.
func withU(n, m, u int) (x, y []float64) {
	for i := range n {
		x = append(x, float64(i))
	}
	for j := range m {
		above := min(n, max(0, u-j*n)) // of x below this y
		y = append(y, float64(above)-0.5-float64(j)/float64(2*m))
	}
	return x, y
}

// enough is the least number of values in each file that can reach alpha: 1 ÷ C(2n, n).
func enough(alpha float64) int {
	p := 1.0
	n := 0
	for p > alpha {
		n++
		p *= float64(n) / float64(2*(2*n-1))
	}
	return n
}
