package stat

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/leanovate/gopter"
	"github.com/leanovate/gopter/gen"
	"gonum.org/v1/gonum/stat/distuv"
)

var nan, inf = math.NaN(), math.Inf(1)

// near reports whether got is want, NaN and infinities included, or within a relative
// or absolute tolerance.
func near(got, want, tolerance float64) bool {
	if math.IsNaN(want) || math.IsInf(want, 0) {
		return got == want || math.IsNaN(got) && math.IsNaN(want)
	}
	return math.Abs(got-want) <= tolerance*max(1, math.Abs(want))
}

func isNaN(i Interval) bool {
	return math.IsNaN(i.Low) && math.IsNaN(i.High) && math.IsNaN(i.Confidence)
}

// within fails unless hits of n agree with probability p to 4.5 standard errors. Every
// simulation has a fixed seed, so it passes always or never.
func within(t *testing.T, what string, hits, n int, p float64) {
	t.Helper()
	got, room := float64(hits)/float64(n), 4.5*math.Sqrt(p*(1-p)/float64(n))+1/float64(n)
	if math.Abs(got-p) > room {
		t.Errorf("%s: got %.5f of %d draws, want %.5f ± %.5f", what, got, n, p, room)
	}
}

// atLeast fails if hits of n are too few for a probability of p or more.
func atLeast(t *testing.T, what string, hits, n int, p float64) {
	t.Helper()
	got, room := float64(hits)/float64(n), 4.5*math.Sqrt(p*(1-p)/float64(n))+1/float64(n)
	if got < p-room {
		t.Errorf("%s: got %.5f of %d draws, want at least %.5f − %.5f", what, got, n, p, room)
	}
}

// shape is a distribution of latency with a known quantile function.
type shape struct {
	name     string
	quantile func(p float64) float64
}

func (s shape) draw(r *rand.Rand) float64 { return s.quantile(r.Float64()) }

func (s shape) sample(r *rand.Rand, n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = s.draw(r)
	}
	return x
}

var shapes = []shape{
	{"log-normal", distuv.LogNormal{Sigma: 0.5}.Quantile},
	{"exponential", distuv.Exponential{Rate: 1}.Quantile},
	{"pareto 2.5", distuv.Pareto{Xm: 1, Alpha: 2.5}.Quantile},
	{"bimodal", bimodal},
}

// bimodal is log-normal around 1, and around 3 in two of five draws.
func bimodal(p float64) float64 {
	if p < 0.6 {
		return distuv.LogNormal{Sigma: 0.05}.Quantile(p / 0.6)
	}
	return distuv.LogNormal{Mu: math.Log(3), Sigma: 0.05}.Quantile((p - 0.6) / 0.4)
}

// check runs one property with a fixed seed: gopter prints the arguments that break it, shrunk.
func check(t *testing.T, p gopter.Prop) {
	t.Helper()
	parameters := gopter.DefaultTestParametersWithSeed(1)
	parameters.MinSuccessfulTests = 200
	parameters.MinSize, parameters.MaxSize = 1, 40
	properties := gopter.NewProperties(parameters)
	properties.Property(t.Name(), p)
	properties.TestingRun(t)
}

// values generates samples of 1 to 39 values with ties.
func values() gopter.Gen {
	return gen.SliceOf(gen.IntRange(-12, 12).Map(func(i int) float64 { return float64(i) / 4 })).
		SuchThat(func(x []float64) bool { return len(x) > 0 })
}

func probabilities() gopter.Gen { return gen.SliceOf(gen.Float64Range(0, 1)) }

func each(x []float64, f func(float64) float64) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = f(v)
	}
	return out
}

func negated(x []float64) []float64 { return each(x, func(v float64) float64 { return -v }) }

func reversed[T any](x []T) []T {
	out := slices.Clone(x)
	slices.Reverse(out)
	return out
}

func TestIntervalJSON(t *testing.T) {
	for _, c := range []struct {
		in   Interval
		want string
	}{
		{Interval{1, 2, 0.95}, `{"low":1,"high":2,"confidence":0.95}`},
		{Interval{math.Inf(-1), 2, 0.95}, `{"low":null,"high":2,"confidence":0.95}`},
		{Interval{1, inf, 0.95}, `{"low":1,"high":null,"confidence":0.95}`},
		{Interval{math.Inf(-1), inf, 1}, `{"low":null,"high":null,"confidence":1}`},
		{Interval{nan, nan, nan}, `{"low":null,"high":null,"confidence":null}`},
	} {
		got, err := json.Marshal(c.in)
		if err != nil || string(got) != c.want {
			t.Errorf("marshal %v: got %s, %v, want %s", c.in, got, err, c.want)
		}
		back := Interval{Low: 7, High: 7, Confidence: 7}
		if err := json.Unmarshal(got, &back); err != nil {
			t.Errorf("unmarshal %s: %v", got, err)
		}
		if !near(back.Low, c.in.Low, 0) || !near(back.High, c.in.High, 0) || !near(back.Confidence, c.in.Confidence, 0) {
			t.Errorf("round trip: got %v, want %v", back, c.in)
		}
	}
	var i Interval
	if err := json.Unmarshal([]byte(`{"low":"x"}`), &i); err == nil {
		t.Error("unmarshal of a string as number: got no error")
	}
}

// TestPure hands one slice to every function and finds it as it was.
func TestPure(t *testing.T) {
	x := []float64{3, 1, 2, 5, 4, 9, 8, 7, 6, 10, 12, 11}
	y := slices.Clone(x)
	l := design(t, 0.0025)
	l.Interval(0, x)
	MedianInterval(x, 0.95)
	Holm(x)
	Bonferroni(x)
	RobustSigma(x)
	Lag1(x)
	Potts(x, 1)
	EDivisive(x, 1, 0.1)
	MannWhitney(x, x)
	MannWhitney(x, slices.Repeat(x, 6))
	BootstrapRatio(x, x, 1, 10)
	if _, err := Describe(x); err != nil {
		t.Error(err)
	}
	if _, err := ChangePoints(x, 1); err != nil {
		t.Error(err)
	}
	if !slices.Equal(x, y) {
		t.Errorf("input changed: got %v, want %v", x, y)
	}
}
