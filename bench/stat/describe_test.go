package stat

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	gonum "gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

func normal(r *rand.Rand, n int, sigma float64) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = sigma * r.NormFloat64()
	}
	return x
}

func TestRobustSigma(t *testing.T) {
	if got := 1 / distuv.UnitNormal.Quantile(0.75); !near(normalMAD, got, 1e-14) {
		t.Errorf("got factor %v, want %v", normalMAD, got)
	}
	if got, want := RobustSigma([]float64{1, 1, 2, 2, 4, 6, 9}), normalMAD; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	x := normal(rand.New(rand.NewPCG(9, 1)), 100_000, 0.03)
	if got := RobustSigma(x); math.Abs(got-0.03) > 0.0005 {
		t.Errorf("normal values: got %v, want 0.03", got)
	}
	for i := range 20_000 { // every fifth spoilt
		x[i] = 1e6
	}
	if got := RobustSigma(x); got > 0.05 {
		t.Errorf("a fifth are outliers: got %v, want less than 0.05", got)
	}
	for name, d := range map[string][]float64{"none": nil, "NaN": {1, nan, 2}, "infinite median": {inf, inf, 1}} {
		if got := RobustSigma(d); !math.IsNaN(got) {
			t.Errorf("%s: got %v, want NaN", name, got)
		}
	}
	if got := RobustSigma([]float64{5, 5, 5, 9}); got != 0 {
		t.Errorf("mostly equal: got %v, want 0", got)
	}
	if got := RobustSigma([]float64{1, 2, inf}); got != normalMAD {
		t.Errorf("one infinite: got %v, want %v", got, normalMAD)
	}
}

func TestLag1(t *testing.T) {
	// By hand: mean 2, squares 4+1+1+4 = 10, products 2+(−1)+2 = 3.
	if got := Lag1([]float64{0, 1, 3, 4}); !near(got, 0.3, 1e-15) {
		t.Errorf("got %v, want 0.3", got)
	}
	r := rand.New(rand.NewPCG(10, 1))
	for _, phi := range []float64{-0.6, 0, 0.4, 0.9} { // autoregressive
		x := make([]float64, 20_000)
		for i := 1; i < len(x); i++ {
			x[i] = phi*x[i-1] + r.NormFloat64()
		}
		if got := Lag1(x); math.Abs(got-phi) > 0.03 {
			t.Errorf("autoregressive %v: got %v", phi, got)
		}
	}
	for name, d := range map[string][]float64{"none": nil, "one": {1}, "NaN": {1, nan, 2}, "infinite": {1, inf, 2}} {
		if got := Lag1(d); !math.IsNaN(got) {
			t.Errorf("%s: got %v, want NaN", name, got)
		}
	}
	if got := Lag1([]float64{4, 4, 4}); got != 0 {
		t.Errorf("all equal: got %v, want 0", got)
	}
}

// TestSpreadInvariance: neither depends on a shift or the sign; the order reversed
// leaves them too; sigma scales.
func TestSpreadInvariance(t *testing.T) {
	check(t, prop.ForAll(func(x []float64, shift, scale int) bool {
		moved := each(x, func(v float64) float64 { return float64(shift) - float64(scale)*v })
		if !near(RobustSigma(moved), float64(scale)*RobustSigma(x), 1e-12) || RobustSigma(reversed(x)) != RobustSigma(x) {
			return false
		}
		if len(x) < 2 {
			return math.IsNaN(Lag1(x))
		}
		got := Lag1(x)
		return near(Lag1(moved), got, 1e-9) && near(Lag1(reversed(x)), got, 1e-9) && math.Abs(got) <= 1
	}, values(), gen.IntRange(-100, 100), gen.IntRange(1, 100)))
}

func TestDescribe(t *testing.T) {
	got, err := Describe([]float64{9, 1, 4, 2, 7})
	want := Summary{N: 5, Min: 1, Q1: 1.5, Median: 4, Q3: 8, Max: 9, Mean: 4.6, StdDev: math.Sqrt(45.2 / 4), MAD: 3}
	if err != nil || !near(got.StdDev, want.StdDev, 1e-14) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	got.StdDev = want.StdDev
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got, err := Describe([]float64{3}); err != nil || got != (Summary{N: 1, Min: 3, Q1: 3, Median: 3, Q3: 3, Max: 3, Mean: 3}) {
		t.Errorf("one value: got %+v, %v", got, err)
	}
	for _, s := range shapes {
		x := s.sample(rand.New(rand.NewPCG(11, 1)), 501)
		got, err := Describe(x)
		if err != nil {
			t.Fatal(err)
		}
		sorted := slices.Sorted(slices.Values(x))
		mean, dev := gonum.MeanStdDev(x, nil)
		if !near(got.Mean, mean, 1e-12) || !near(got.StdDev, dev, 1e-12) || got.Median != sorted[250] ||
			got.Min != sorted[0] || got.Max != sorted[500] || got.Q1 != (sorted[124]+sorted[125])/2 || got.Q3 != (sorted[375]+sorted[376])/2 {
			t.Errorf("%s: got %+v, want mean %v deviation %v", s.name, got, mean, dev)
		}
	}
	for want, x := range map[string][]float64{"no values": nil, "value 2 of 3 is NaN": {1, nan, 3}, "value 1 of 1 is -Inf": {math.Inf(-1)}} {
		if got, err := Describe(x); err == nil || !strings.Contains(err.Error(), want) || got != (Summary{}) {
			t.Errorf("got %+v, %v, want %q", got, err, want)
		}
	}
}
