package stat

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	"golang.org/x/perf/benchmath"
)

func benchstat(x, y []float64) float64 {
	sample := func(v []float64) *benchmath.Sample {
		return benchmath.NewSample(slices.Clone(v), &benchmath.DefaultThresholds)
	}
	return benchmath.AssumeNothing.Compare(sample(x), sample(y)).P
}

// arrangements is the test by its definition: every way to deal out the values, by U.
func arrangements(x, y []float64) float64 {
	z := slices.Concat(x, y)
	u := func(set uint) (u float64) {
		for i := range z {
			for j := range z {
				if set>>i&1 == 1 && set>>j&1 == 0 {
					switch {
					case z[i] > z[j]:
						u++
					case z[i] == z[j]:
						u += 0.5
					}
				}
			}
		}
		return u
	}
	seen := u(1<<len(x) - 1)
	var less, more, all float64
	for set := uint(0); set < 1<<len(z); set++ {
		if bits.OnesCount(set) != len(x) {
			continue
		}
		all++
		if u(set) <= seen {
			less++
		}
		if u(set) >= seen {
			more++
		}
	}
	return min(1, 2*min(less, more)/all)
}

func TestMannWhitneyArrangements(t *testing.T) {
	r := rand.New(rand.NewPCG(12, 1))
	for range 400 {
		x, y := make([]float64, 1+r.IntN(5)), make([]float64, 1+r.IntN(5))
		kinds := 1 + r.IntN(12) // from all equal to nearly no ties
		for _, v := range [][]float64{x, y} {
			for i := range v {
				v[i] = float64(r.IntN(kinds))
			}
		}
		if got, want := MannWhitney(x, y), arrangements(x, y); !near(got, want, 1e-12) {
			t.Errorf("%v %v: got %v, want %v", x, y, got, want)
		}
	}
	// Least possible: all of one above all of the other.
	if got, want := MannWhitney([]float64{1, 2, 3, 4, 5}, []float64{6, 7, 8, 9, 10}), 2.0/252; !near(got, want, 1e-14) {
		t.Errorf("5 against 5 apart: got %v, want %v", got, want)
	}
}

// TestMannWhitneyBenchstat: without ties benchmath is exact too, to 50 values a side; from
// 60 together it is what we return.
func TestMannWhitneyBenchstat(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 1))
	for _, n := range [][2]int{{1, 1}, {3, 8}, {10, 10}, {20, 40}, {30, 30}, {30, 31}, {50, 50}, {80, 90}} {
		for _, shift := range []float64{0, 0.5, 2} {
			x, y := normal(r, n[0], 1), normal(r, n[1], 1)
			for i := range x {
				x[i] += shift
			}
			if got, want := MannWhitney(x, y), benchstat(x, y); !near(got, want, 1e-9) {
				t.Errorf("%v shifted by %v: got %v, want %v", n, shift, got, want)
			}
		}
	}
}

// TestMannWhitneyContinuous: exact and approximate form meet where one takes over.
func TestMannWhitneyContinuous(t *testing.T) {
	r := rand.New(rand.NewPCG(14, 1))
	for range 20 {
		x, y := make([]float64, 30), make([]float64, 30)
		for i := range x {
			x[i], y[i] = float64(r.IntN(8)), float64(r.IntN(8)+r.IntN(2))
		}
		exact, approximate := MannWhitney(x, y), benchstat(x, y) // ties above 25: normal
		if math.Abs(exact-approximate) > 0.02 {
			t.Errorf("got %v, approximately %v", exact, approximate)
		}
	}
}

func TestMannWhitneyBadInput(t *testing.T) {
	one := []float64{1, 2, 3}
	for name, got := range map[string]float64{
		"no x": MannWhitney(nil, one), "no y": MannWhitney(one, nil),
		"NaN in x": MannWhitney([]float64{1, nan}, one), "NaN in y": MannWhitney(one, []float64{nan}),
	} {
		if !math.IsNaN(got) {
			t.Errorf("%s: got %v, want NaN", name, got)
		}
	}
	long := slices.Repeat([]float64{7}, 50)
	for name, got := range map[string]float64{"equal": MannWhitney([]float64{7, 7}, []float64{7}), "equal, many": MannWhitney(long, long)} {
		if got != 1 {
			t.Errorf("%s: got %v, want 1", name, got)
		}
	}
	if got, want := MannWhitney([]float64{math.Inf(-1), 0}, []float64{1, inf}), 2.0/6; !near(got, want, 1e-15) {
		t.Errorf("infinite: got %v, want %v", got, want)
	}
}

// TestMannWhitneyMirrored: swapped samples, another order and any ascending or descending map
// leave p as it is.
func TestMannWhitneyMirrored(t *testing.T) {
	check(t, prop.ForAll(func(x, y []float64) bool {
		got := MannWhitney(x, y)
		return got > 0 && got <= 1 && near(MannWhitney(y, x), got, 1e-12) && near(MannWhitney(negated(x), negated(y)), got, 1e-12) &&
			near(MannWhitney(each(reversed(x), math.Exp), each(y, math.Exp)), got, 1e-12)
	}, values(), values()))
}

// TestBootstrapRatioExhaustive compares with all 4⁴ × 4⁴ resamples.
func TestBootstrapRatioExhaustive(t *testing.T) {
	base, head := []float64{1, 1.3, 2, 5}, []float64{1.1, 1.9, 2.6, 7}
	medians := func(x []float64) (m []float64) {
		for i := range 256 {
			m = append(m, medianOf([]float64{x[i&3], x[i>>2&3], x[i>>4&3], x[i>>6&3]}))
		}
		return m
	}
	var ratios []float64
	for _, b := range medians(base) {
		for _, h := range medians(head) {
			ratios = append(ratios, h/b)
		}
	}
	slices.Sort(ratios)
	share := func(limit float64, inclusive bool) float64 { // of ratios below
		n := 0
		for _, r := range ratios {
			if r < limit || inclusive && r == limit {
				n++
			}
		}
		return float64(n) / float64(len(ratios))
	}
	got := BootstrapRatio(base, head, 1, 40_000)
	// 2.5 % ± 0.4 % of the whole distribution lie beyond each end, which is one of its steps.
	if share(got.Low, false) > 0.029 || share(got.Low, true) < 0.021 || share(got.High, true) < 0.971 || share(got.High, false) > 0.979 {
		t.Errorf("got %v, with %v and %v of all resamples below", got, share(got.Low, true), share(got.High, false))
	}
}

func TestBootstrapRatioCoverage(t *testing.T) {
	const draws = 300
	for _, s := range shapes[:3] { // a median between two modes is nobody's
		r := rand.New(rand.NewPCG(15, 1))
		hits := 0
		for i := range draws {
			base, head := s.sample(r, 25), s.sample(r, 25)
			for j := range head {
				head[j] *= 1.1
			}
			if got := BootstrapRatio(base, head, uint64(i), 200); got.Low <= 1.1 && 1.1 <= got.High {
				hits++
			}
		}
		// A nominal 95 %: the percentile form is known to be a little off either way.
		if share := float64(hits) / draws; share < 0.90 || share > 0.995 {
			t.Errorf("%s: got coverage %v, want about 0.95", s.name, share)
		}
	}
}

func TestBootstrapRatioSeeded(t *testing.T) {
	r := rand.New(rand.NewPCG(16, 1))
	base, head := shapes[0].sample(r, 30), shapes[0].sample(r, 30)
	if a, b := BootstrapRatio(base, head, 5, 1000), BootstrapRatio(base, head, 5, 1000); a != b {
		t.Errorf("one seed: got %v and %v", a, b)
	}
	if a, b := BootstrapRatio(base, head, 5, 1000), BootstrapRatio(base, head, 6, 1000); a == b {
		t.Errorf("two seeds: got %v twice", a)
	}
	if got := BootstrapRatio([]float64{2}, []float64{3}, 1, 1); got != (Interval{1.5, 1.5, 0.95}) {
		t.Errorf("one value each: got %v, want 1.5", got)
	}
	for name, got := range map[string]Interval{
		"no base":   BootstrapRatio(nil, head, 1, 10),
		"no head":   BootstrapRatio(base, nil, 1, 10),
		"zero":      BootstrapRatio([]float64{0, 1}, head, 1, 10),
		"NaN":       BootstrapRatio(base, []float64{nan}, 1, 10),
		"infinite":  BootstrapRatio(base, []float64{inf}, 1, 10),
		"resamples": BootstrapRatio(base, head, 1, 0),
	} {
		if !isNaN(got) {
			t.Errorf("%s: got %v, want NaN", name, got)
		}
	}
}

// TestBootstrapRatioScale: a head twice as large has twice the ratio.
func TestBootstrapRatioScale(t *testing.T) {
	check(t, prop.ForAll(func(x, y []float64, seed uint64) bool {
		base, head := each(x, math.Exp), each(y, math.Exp)
		got, twice := BootstrapRatio(base, head, seed, 50), BootstrapRatio(base, each(head, func(v float64) float64 { return 2 * v }), seed, 50)
		return twice.Low == 2*got.Low && twice.High == 2*got.High && got.Low <= got.High
	}, values(), values(), gen.UInt64()))
}
