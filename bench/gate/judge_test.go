package gate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/leanovate/gopter"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	"github.com/sandbed/sandbed/bench/stat"
)

// twenty is the design of the full suite.
func twenty(t *testing.T) (Design, limits) {
	t.Helper()
	plans := make([]RowPlan, MaxGated)
	for i := range plans {
		plans[i].Row = fmt.Sprintf("wall/row=%d", i)
	}
	d := DefaultDesign(plans, 1)
	if err := d.Validate(); err != nil {
		t.Fatal(err)
	}
	l, err := d.limits()
	if err != nil {
		t.Fatal(err)
	}
	return d, l
}

// numbered makes rounds of the given slowness, in ABBA blocks.
func numbered(slow []float64) []round {
	out := make([]round, len(slow))
	for i := range slow {
		out[i] = round{number: i, order: []string{"AB", "BA", "BA", "AB"}[i%4]}
	}
	return out
}

// counted makes n[len−1] rounds of which counts[i] of the first n[i] are 20 % slower, the
// others equal but for a little noise, mixed so that neither lag nor order shows.
func counted(t *testing.T, n, counts []int) []float64 {
	t.Helper()
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 0))
		var d []float64
		for i := range n {
			part := make([]float64, n[i]-len(d))
			slow := counts[i]
			if i > 0 {
				slow -= counts[i-1]
			}
			for j := range part {
				part[j] = 1e-3 * r.NormFloat64()
				if j < slow {
					part[j] += math.Log(1.2)
				}
			}
			r.Shuffle(len(part), func(a, b int) { part[a], part[b] = part[b], part[a] })
			d = append(d, part...)
		}
		mixed := true
		for _, k := range n {
			_, order := blocks(d[:k], numbered(d[:k]))
			mixed = mixed && order == 0 && math.Abs(stat.Lag1(d[:k])) < dependence
		}
		if mixed {
			return d
		}
	}
	t.Fatalf("no mix of %v in %v", counts, n)
	return nil
}

func TestJudgeAtEachLimit(t *testing.T) {
	_, l := twenty(t)
	p := l.pairs
	for look, n := range p.Looks {
		// Undecided at every look before, as evenly as that allows.
		before := func(count int) (counts []int) {
			for i, u := range p.Fail[:look] {
				if u < 0 {
					u = p.Looks[i] + 1
				}
				counts = append(counts, min(u-1, max(p.Clear[i]+1, count*p.Looks[i]/n)))
			}
			return counts
		}
		for _, c := range []struct {
			name  string
			count int
			want  answer
			skip  bool
		}{
			{"fail", p.Fail[look], proved, p.Fail[look] < 0},
			{"one less", p.Fail[look] - 1, open, p.Fail[look] < 0},
			{"all, where none can fail", n, open, p.Fail[look] >= 0},
			{"clear", p.Clear[look], refuted, false},
			{"one more", p.Clear[look] + 1, open, false},
		} {
			if c.skip {
				continue
			}
			counts := before(c.count)
			slow := counted(t, p.Looks[:look+1], append(counts, c.count))
			o := l.judge(slow, numbered(slow), 0.05)
			if o.slower != c.want || o.look != look+1 || o.above != c.count || len(o.unit) != n {
				t.Errorf("look %d, %s: slower %d (%d of %d) at look %d, want %d (%d of %d)", look+1, c.name, o.slower, o.above, len(o.unit), o.look, c.want, c.count, n)
			}
			// The interval says the same.
			if above := o.interval.Low > math.Log1p(0.05); above != (c.want == proved) {
				t.Errorf("look %d, %s: slower %d with the interval %v", look+1, c.name, o.slower, o.interval)
			}
		}
	}
}

func TestBlocksAreJudgedByTheirOwnLimits(t *testing.T) {
	d, l := twenty(t)
	if !slices.Equal(l.blocks.Looks, []int{5, 7, 10, 15, 20, 30}) {
		t.Fatalf("blocks are judged at %v", l.blocks.Looks)
	}
	if got := l.pairs.SpentClear + l.blocks.SpentClear; got > d.ClearAlpha {
		t.Errorf("a false OK is up to %g likely, want at most %g", got, d.ClearAlpha)
	}
	if got := math.Pow(l.pairs.SpentFail+l.blocks.SpentFail, 2); got > d.alpha() {
		t.Errorf("two crossings are up to %g likely, want at most %g", got, d.alpha())
	}
	// What runs second takes 30 % longer: every round is beyond the margin, no block is.
	r := rand.New(rand.NewPCG(1, 1))
	bias := func(n int, effect float64) ([]float64, []round) {
		slow := make([]float64, n)
		rounds := numbered(slow)
		for i := range slow {
			slow[i] = effect + 0.01*r.NormFloat64() - 0.26
			if rounds[i].order == "AB" {
				slow[i] += 2 * 0.26
			}
		}
		return slow, rounds
	}
	for _, c := range []struct {
		effect float64
		want   answer
		look   int
	}{{0, refuted, 3}, {math.Log(1.2), proved, 4}} {
		o := l.judge(first(bias(60, c.effect)), numbered(make([]float64, 60)), 0.05)
		if !o.blocks || o.slower != c.want || o.look != c.look || math.Abs(o.order-0.26) > 0.02 {
			t.Errorf("effect %.2f: blocks %v, slower %d at look %d, order %.3f, want %d at %d", c.effect, o.blocks, o.slower, o.look, o.order, c.want, c.look)
		}
		if len(o.unit) != l.pairs.Looks[c.look-1]/2 {
			t.Errorf("effect %.2f: %d blocks at look %d", c.effect, len(o.unit), o.look)
		}
	}
	// A round that is missing takes its block with it, and no other.
	slow, rounds := bias(12, 0)
	means, _ := blocks(slow, rounds)
	holed, _ := blocks(slices.Delete(slices.Clone(slow), 4, 5), slices.Delete(rounds, 4, 5))
	if want := slices.Delete(means, 2, 3); !slices.Equal(holed, want) {
		t.Errorf("without round 4 the blocks are %v, want %v", holed, want)
	}
}

func first[A, B any](a A, _ B) A { return a }

// TestCrossingsAtTheMargin holds the bounds by simulation: rounds whose median is exactly
// the margin, of a normal and of a very skewed distribution.
func TestCrossingsAtTheMargin(t *testing.T) {
	d, l := twenty(t)
	const n = 20_000
	for _, c := range []struct {
		name string
		draw func(*rand.Rand) float64
	}{
		{"normal", func(r *rand.Rand) float64 { return r.NormFloat64() }},
		{"skewed", func(r *rand.Rand) float64 { return math.Expm1(1.2 * r.NormFloat64()) }},
	} {
		r := rand.New(rand.NewPCG(7, 7))
		crossed, cleared, faster := 0, 0, 0
		slow := make([]float64, 60)
		rounds := numbered(slow)
		for range n {
			for i := range slow {
				slow[i] = math.Log1p(0.05) + 0.03*c.draw(r)
			}
			switch o := l.judge(slow, rounds, 0.05); {
			case o.faster == proved:
				faster++
			case o.slower == proved:
				crossed++
			case o.slower == refuted:
				cleared++
			}
		}
		atMost := func(what string, k int, bound float64) {
			if lower := 1 - stat.UpperBound(n-k, n, 0.999); lower > bound {
				t.Errorf("%s: %s in %d of %d, designed at most %g", c.name, what, k, n, bound)
			}
		}
		atMost("crossed", crossed, 2*d.alpha())
		atMost("cleared", cleared, d.ClearAlpha)
		atMost("faster", faster, 0)
		if crossed == 0 || cleared == 0 {
			t.Errorf("%s: crossed %d, cleared %d: the simulation shows nothing", c.name, crossed, cleared)
		}
	}
}

// TestFalseAlarms simulates base against base: no row may even cross.
func TestFalseAlarms(t *testing.T) {
	_, l := twenty(t)
	r := rand.New(rand.NewPCG(8, 8))
	slow := make([]float64, 60)
	for i := range 20_000 {
		for j := range slow {
			slow[j] = 0.03 * r.NormFloat64()
		}
		if o := l.judge(slow, numbered(slow), 0.05); o.slower == proved || o.faster == proved {
			t.Fatalf("row %d: slower %d, faster %d", i, o.slower, o.faster)
		}
	}
}

// genSlow makes up to 70 rounds around an effect of −20 % to 20 %, now and then with ties, an
// order effect or a trend.
func genSlow() gopter.Gen {
	return gen.UInt64().Map(func(seed uint64) []float64 {
		r := rand.New(rand.NewPCG(seed, 3))
		d := make([]float64, r.IntN(71))
		effect, trend, order := 0.4*(r.Float64()-0.5), 0.0, 0.0
		if r.IntN(4) == 0 {
			trend = 0.01 * r.NormFloat64()
		}
		if r.IntN(4) == 0 {
			order = 0.1 * r.NormFloat64()
		}
		ties := r.IntN(8) == 0
		for i := range d {
			d[i] = effect + 0.05*r.NormFloat64() + trend*float64(i)
			if numbered(d)[i].order == "AB" {
				d[i] += order
			}
			if ties && r.IntN(4) == 0 {
				d[i] = 0
			}
		}
		return d
	})
}

func check(t *testing.T, p gopter.Prop) {
	t.Helper()
	parameters := gopter.DefaultTestParameters()
	parameters.MinSuccessfulTests = 300
	properties := gopter.NewProperties(parameters)
	properties.Property(t.Name(), p)
	t.Logf("seed %d", parameters.Seed())
	properties.TestingRun(t)
}

func TestSwappedArmsMirror(t *testing.T) {
	_, l := twenty(t)
	check(t, prop.ForAll(func(slow []float64) string {
		minus := make([]float64, len(slow))
		rounds := numbered(slow)
		swapped := slices.Clone(rounds)
		for i := range slow {
			minus[i] = -slow[i]
			swapped[i].order = rounds[i].order[1:] + rounds[i].order[:1]
		}
		a, b := l.judge(slow, rounds, 0.05), l.judge(minus, swapped, 0.05)
		if a.slower != b.faster || a.faster != b.slower || a.look != b.look || a.tied != b.tied || a.blocks != b.blocks ||
			a.interval.Low != -b.interval.High || a.interval.High != -b.interval.Low {
			return fmt.Sprintf("%+v mirrored is %+v", a, b)
		}
		return ""
	}, genSlow()))
}

func TestNothingAfterTheDecidingLookCounts(t *testing.T) {
	_, l := twenty(t)
	check(t, prop.ForAll(func(slow, after []float64) string {
		a := l.judge(slow, numbered(slow), 0.05)
		if a.look == 0 || !a.tied && (a.slower == open || a.faster == open) && a.look < len(l.pairs.Looks) {
			return "" // not decided
		}
		more := append(slices.Clone(slow[:a.rounds]), after...)
		b := l.judge(more, numbered(more), 0.05)
		if a.slower != b.slower || a.faster != b.faster || a.rounds != b.rounds || a.tied != b.tied || a.above != b.above || a.interval != b.interval {
			return fmt.Sprintf("%+v, with %d other rounds after it %+v", a, len(after), b)
		}
		return ""
	}, genSlow(), genSlow()))
}

func TestNothingBetweenLooksCounts(t *testing.T) {
	_, l := twenty(t)
	check(t, prop.ForAll(func(slow []float64) string {
		a := l.judge(slow, numbered(slow), 0.05)
		if a.look == 0 {
			return ""
		}
		// The rounds after the last look at hand, which decided nothing.
		for n := a.rounds; n <= len(slow) && (a.look == len(l.pairs.Looks) || n < l.pairs.Looks[a.look]); n++ {
			b := l.judge(slow[:n], numbered(slow[:n]), 0.05)
			if a.slower != b.slower || a.faster != b.faster || a.rounds != b.rounds || a.interval != b.interval {
				return fmt.Sprintf("%d rounds: %+v, %d rounds: %+v", len(slow), a, n, b)
			}
		}
		return ""
	}, genSlow()))
}
