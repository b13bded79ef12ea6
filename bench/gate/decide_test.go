package gate

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
)

// pairs makes rounds of a row in which head is slower by a share, with 1 % of noise.
func pairs(row, stage, control string, n int, share float64, seed uint64) []Launch {
	r := rand.New(rand.NewPCG(seed, 5))
	other := Head
	if control != "" {
		other = control
	}
	var out []Launch
	for i := range n {
		for _, arm := range []string{Base, other} {
			l := launch(row, arm, i, 0.02*math.Exp(0.007*r.NormFloat64()))
			l.Stage, l.Control, l.Order = stage, control, []string{"AB", "BA", "BA", "AB"}[i%4]
			if stage == Confirm {
				l.Layout = 4
			}
			if arm == other {
				l.Value *= 1 + share
			}
			out = append(out, l)
		}
	}
	return out
}

// comparison is three gated rows with the slowdowns, confirmed, with good controls.
func comparison(seed uint64, shares ...float64) (Design, []Launch) {
	var plans []RowPlan
	var all []Launch
	for i, share := range shares {
		row := fmt.Sprintf("wall/row=%d", i)
		plans = append(plans, RowPlan{Row: row})
		all = append(all, pairs(row, Screen, "", 60, share, seed+uint64(i))...)
		if share != 0 {
			all = append(all, pairs(row, Confirm, "", 60, share, seed+100+uint64(i))...)
		}
	}
	all = append(all, pairs("kernel/row=n", Screen, Null, 60, 0, seed+200)...)
	all = append(all, pairs("kernel/row=i", Screen, Injected, 60, 0.1, seed+201)...)
	return DefaultDesign(plans, seed), all
}

func decide(t *testing.T, d Design, launches []Launch, o Options) Report {
	t.Helper()
	r, err := Decide(d, launches, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRowFigures(t *testing.T) {
	d, launches := comparison(1, 0.2, -0.2, 0)
	r := decide(t, d, launches, Options{})
	if r.Exit != ExitRegression || r.Verdict != "regression" {
		t.Fatalf("%d, %s: %s", r.Exit, r.Verdict, r.Proved)
	}
	by := map[string]Row{}
	for _, row := range r.Rows {
		by[row.Name] = row
	}
	slow, fast, same := by["wall/row=0"], by["wall/row=1"], by["wall/row=2"]
	within := func(what string, got, want, by float64) {
		if !(math.Abs(got-want) <= by) {
			t.Errorf("%s: got %g, want %g ± %g", what, got, want, by)
		}
	}
	// Three gated rows share 0.05: ten rounds of ten are already enough.
	if slow.Verdict != Regression || slow.Reason != "crossed 10 of 10 slower at look 1, confirmed 10 of 10" {
		t.Errorf("%s: %s", slow.Verdict, slow.Reason)
	}
	within("ratio", slow.Ratio, 1.2, 0.01)
	within("base", slow.Base.Median, 0.02, 2e-4)
	within("head", slow.Head.Median, 0.024, 2e-4)
	within("p", slow.P, math.Ldexp(1, -10), 1e-9)
	within("adjusted p", slow.PAdj, 3*math.Ldexp(1, -10), 1e-9)
	within("sigma", slow.Sigma, 0.01, 0.009)
	within("smallest slowdown seen", slow.MDE, 0.06, 0.012)
	within("confidence", slow.Interval.Confidence, 1, 0.05)
	within("margin", slow.Theta, 0.05, 0)
	within("floor", slow.Floor, 50e-6/0.02, 1e-12)
	if slow.Rounds != 10 || slow.Slower != 10 || len(slow.LogRatios) != 10 || len(slow.Orders) != 10 || len(slow.BaseVals) != 10 || slow.Base.N != 10 {
		t.Errorf("more than the deciding look is shown: %+v", slow)
	}
	if !(slow.Interval.Low > 1.05 && slow.Interval.Low < slow.Ratio && slow.Ratio < slow.Interval.High) {
		t.Errorf("interval %v of %g", slow.Interval, slow.Ratio)
	}
	if fast.Verdict != Improvement || !(fast.Interval.High < 1/1.05) {
		t.Errorf("%s: %v", fast.Verdict, fast.Interval)
	}
	within("ratio of the faster", fast.Ratio, 0.8, 0.01)
	if same.Verdict != OK || same.P < 0.5 || same.PAdj != 1 {
		t.Errorf("%s: p %g, %g", same.Verdict, same.P, same.PAdj)
	}
	// The null pair comes first, as it judges the other.
	if len(r.Controls) != 2 || r.Controls[0].Kind != Null || r.Controls[0].Fired || !r.Controls[0].Good || !r.Controls[1].Fired || !r.Controls[1].Good || r.Controls[1].Injected != 0.1 {
		t.Errorf("controls %+v", r.Controls)
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}

// TestHigherIsBetter: the inverse values of a unit of which more is better give the same
// verdicts, and inverse ratios.
func TestHigherIsBetter(t *testing.T) {
	d, launches := comparison(2, 0.2, -0.2, 0)
	inverse := slices.Clone(launches)
	for i := range inverse {
		inverse[i].Better, inverse[i].Value = "higher", 1/inverse[i].Value
	}
	a, b := decide(t, d, launches, Options{}), decide(t, d, inverse, Options{})
	for i := range a.Rows {
		x, y := a.Rows[i], b.Rows[i]
		if x.Name != y.Name || x.Verdict != y.Verdict || x.Reason != y.Reason || math.Abs(x.Ratio*y.Ratio-1) > 1e-9 || math.Abs(x.Interval.Low*y.Interval.High-1) > 1e-9 {
			t.Errorf("%s: %s, %g %v; inverse %s: %s, %g %v", x.Name, x.Verdict, x.Ratio, x.Interval, y.Name, y.Verdict, y.Ratio, y.Interval)
		}
	}
	if !reflect.DeepEqual(a.Exit, b.Exit) || !b.Controls[1].Good {
		t.Errorf("exit %d and %d, controls %+v", a.Exit, b.Exit, b.Controls)
	}
}

func TestDecideIsOfASet(t *testing.T) {
	check(t, prop.ForAll(func(seed uint64, a, b float64) string {
		d, launches := comparison(seed%1000, a, b)
		want := decide(t, d, launches, Options{})
		other := slices.Clone(launches)
		r := rand.New(rand.NewPCG(seed, 6))
		r.Shuffle(len(other), func(i, j int) { other[i], other[j] = other[j], other[i] })
		if got := decide(t, d, other, Options{}); !reflect.DeepEqual(got, want) {
			return fmt.Sprintf("in another order %+v, was %+v", got, want)
		}
		return ""
	}, gen.UInt64(), gen.Float64Range(-0.2, 0.2), gen.Float64Range(-0.2, 0.2)))
}

func TestScaledTimesKeepTheVerdicts(t *testing.T) {
	check(t, prop.ForAll(func(seed uint64, share float64, power int) string {
		d, launches := comparison(seed%1000, share)
		want := decide(t, d, launches, Options{})
		for i := range launches {
			launches[i].Value = math.Ldexp(launches[i].Value, power)
		}
		got := decide(t, d, launches, Options{})
		if got.Exit != want.Exit || got.Rows[0].Verdict != want.Rows[0].Verdict || got.Rows[0].Rounds != want.Rows[0].Rounds || math.Abs(got.Rows[0].Ratio/want.Rows[0].Ratio-1) > 1e-9 {
			return fmt.Sprintf("times 2^%d: %+v, was %+v", power, got, want)
		}
		return ""
	}, gen.UInt64(), gen.Float64Range(-0.15, 0.15), gen.IntRange(-15, 30)))
}

// TestNextAgrees: a runner that stops where Next says so gets the verdict that all
// launches would give.
func TestNextAgrees(t *testing.T) {
	check(t, prop.ForAll(func(seed uint64, share float64) string {
		d, launches := comparison(seed%1000, share)
		row := launches[:0:0]
		for _, l := range launches {
			if l.Control == "" {
				row = append(row, l)
			}
		}
		var made []Launch
		for range 20 {
			s, err := d.Next(made)
			if err != nil {
				return err.Error()
			}
			all := append(slices.Clone(made), launches[len(row):]...)
			if r := decide(t, d, all, Options{}); len(made) > 0 && r.Rows[0].Verdict != s.Word {
				return fmt.Sprintf("Next says %+v, Decide %s: %s", s, r.Rows[0].Verdict, r.Rows[0].Reason)
			}
			if s.Done {
				if r := decide(t, d, launches, Options{}); r.Rows[0].Verdict != s.Word {
					return fmt.Sprintf("Next ended with %+v, all launches give %s: %s", s, r.Rows[0].Verdict, r.Rows[0].Reason)
				}
				return ""
			}
			before := len(made)
			made = made[:0]
			for _, l := range row { // all of the screen that was asked for before stays
				if l.Stage == s.Stage && l.Round < s.Rounds || s.Stage == Confirm && l.Stage == Screen {
					made = append(made, l)
				}
			}
			if len(made) <= before && s.Stage == Screen {
				return fmt.Sprintf("%+v asks for nothing new", s)
			}
		}
		return "Next never ends"
	}, gen.UInt64(), gen.OneConstOf(0.0, 0.04, 0.05, 0.06, 0.1, 0.2, -0.05, -0.1)))
}

func TestDecideRefuses(t *testing.T) {
	d, launches := comparison(3, 0)
	for _, c := range []struct {
		name string
		edit func(*Design, *[]Launch)
		want string
	}{
		{"a design that cannot fire", func(d *Design, _ *[]Launch) { d.Looks = []int{2} }, "can never"},
		{"a launch twice", func(_ *Design, l *[]Launch) { *l = append(*l, (*l)[0]) }, "twice"},
		{"NaN", func(_ *Design, l *[]Launch) { (*l)[3].Value = math.NaN() }, "finite"},
		{"two units", func(_ *Design, l *[]Launch) { (*l)[3].Unit = "B" }, "launches of one suite"},
	} {
		d, l := d, slices.Clone(launches)
		c.edit(&d, &l)
		if _, err := Decide(d, l, Options{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

func TestControls(t *testing.T) {
	d, good := comparison(4, 0.2, 0)
	without := func(is func(Launch) bool) []Launch { return slices.DeleteFunc(slices.Clone(good), is) }
	is := func(kind string) func(Launch) bool { return func(l Launch) bool { return l.Control == kind } }
	with := func(kind string, share float64, rounds int) []Launch {
		return append(without(is(kind)), pairs("kernel/row=x", Screen, kind, rounds, share, 9)...)
	}
	failed := slices.Clone(good)
	for i := range failed {
		if failed[i].Control == Null && failed[i].Round == 3 {
			failed[i].Failed = "killed"
		}
	}
	for _, c := range []struct {
		name     string
		launches []Launch
		exit     int
		red, ok  Word // of the row that is slower, and of the other
		proved   string
	}{
		{"good", good, 1, Regression, OK, "1 regression proved"},
		{"null slower", with(Null, 0.1, 60), 3, Inconclusive, OK, "the null control fired"},
		{"null faster", with(Null, -0.1, 60), 3, Inconclusive, OK, "the null control fired"},
		{"null cut short", with(Null, 0.05, 9), 3, Inconclusive, OK, "not measured to a look"},
		{"null missing", without(is(Null)), 3, Inconclusive, OK, "the null control is missing"},
		{"null failed", failed, 3, Inconclusive, OK, "not measured to a look"},
		{"injection not there", with(Injected, 0, 60), 3, Inconclusive, Inconclusive, "was not found"},
		{"injection backwards", with(Injected, -0.1, 60), 3, Inconclusive, Inconclusive, "was not found"},
		{"injection missing", without(is(Injected)), 3, Inconclusive, Inconclusive, "the injected control is missing"},
		{"two null pairs, one bad", append(slices.Clone(good), pairs("kernel/row=x", Screen, Null, 60, 0.1, 9)...), 3, Inconclusive, OK, "the null control fired"},
	} {
		r := decide(t, d, c.launches, Options{})
		for _, row := range r.Rows {
			want := c.ok
			if row.Name == "wall/row=0" {
				want = c.red
			}
			if row.Verdict != want {
				t.Errorf("%s: %s is %s (%s), want %s", c.name, row.Name, row.Verdict, row.Reason, want)
			}
		}
		if r.Exit != c.exit || !strings.Contains(r.Proved, c.proved) {
			t.Errorf("%s: exit %d, %q, want %d, %q", c.name, r.Exit, r.Proved, c.exit, c.proved)
		}
	}
	d.Injection = 0 // planned without
	r := decide(t, d, without(func(l Launch) bool { return l.Control != "" }), Options{})
	if r.Exit != 1 || !slices.ContainsFunc(r.Warnings, func(w string) bool { return strings.HasPrefix(w, "no controls") }) {
		t.Errorf("without controls: exit %d, warnings %q", r.Exit, r.Warnings)
	}
}

func TestExitPrecedence(t *testing.T) {
	d, launches := comparison(5, 0.2, 0, 0, 0)
	unfit := &Fitness{Reasons: []string{"drift"}}
	exact := func(head float64) []Launch {
		a, b := launch("count/row=a", Base, 0, 100), launch("count/row=a", Head, 0, head)
		a.Lane, b.Lane, a.Unit, b.Unit = Exact, Exact, "B", "B"
		return []Launch{a, b}
	}
	fail := slices.Clone(launches)
	fail[0].Failed = "x"
	for _, c := range []struct {
		name     string
		launches []Launch
		o        Options
		want     int
	}{
		{"regression", launches, Options{}, 1},
		{"regression on an unfit machine", launches, Options{Fitness: unfit}, 3},
		{"exact regression on an unfit machine", append(slices.Clone(launches), exact(102)...), Options{Fitness: unfit}, 1},
		{"failure before all", append(fail, exact(102)...), Options{Fitness: unfit}, 4},
		{"nothing measured", nil, Options{}, 3},
	} {
		if r := decide(t, d, c.launches, c.o); r.Exit != c.want {
			t.Errorf("%s: exit %d (%s), want %d", c.name, r.Exit, r.Proved, c.want)
		}
	}
}

func TestWarnings(t *testing.T) {
	d, launches := comparison(6, 0.2)
	for _, c := range []struct {
		name string
		edit func([]Launch) []Launch
		want string
	}{
		{"a round with one arm", func(l []Launch) []Launch { return l[1:] }, "1 rounds lack one arm"},
		{"one order", func(l []Launch) []Launch {
			for i := range l {
				l[i].Order = "AB"
			}
			return l
		}, "in the same order"},
		{"an old layout", func(l []Launch) []Launch {
			for i := range l {
				l[i].Layout = 1
			}
			return l
		}, "a layout seed of the screen"},
		{"an order effect", func(l []Launch) []Launch {
			for i := range l {
				if (l[i].Order == "AB") != (l[i].Arm == Base) {
					l[i].Value *= 1.3
				}
			}
			return l
		}, "what ran second took +"},
		{"a removed row", func(l []Launch) []Launch {
			return slices.DeleteFunc(l, func(l Launch) bool { return l.Arm == Head && l.Control == "" })
		}, "name its successor"},
	} {
		r := decide(t, d, c.edit(slices.Clone(launches)), Options{})
		if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], c.want) {
			t.Errorf("%s: warnings %q, want %q", c.name, r.Warnings, c.want)
		}
	}
	if r := decide(t, d, launches, Options{}); len(r.Warnings) > 0 {
		t.Errorf("warnings of nothing: %q", r.Warnings)
	}
}
