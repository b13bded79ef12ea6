package stat

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	"golang.org/x/perf/benchmath"
	"gonum.org/v1/gonum/stat/distuv"
)

// atMostExact sums the binomial distribution in rational numbers.
func atMostExact(k, n int, p *big.Rat) *big.Rat {
	q := new(big.Rat).Sub(big.NewRat(1, 1), p)
	sum := new(big.Rat)
	for i := 0; i <= k; i++ {
		term := new(big.Rat).SetInt(new(big.Int).Binomial(int64(n), int64(i)))
		for range i {
			term.Mul(term, p)
		}
		for range n - i {
			term.Mul(term, q)
		}
		sum.Add(sum, term)
	}
	return sum
}

func TestSignTest(t *testing.T) {
	half := big.NewRat(1, 2)
	for _, n := range []int{0, 1, 2, 10, 15, 60} {
		for above := 0; above <= n; above++ {
			want, _ := atMostExact(n-above, n, half).Float64()
			if got := SignTest(above, n); math.Abs(got-want) > 1e-12*want {
				t.Errorf("%d of %d: got %v, want %v", above, n, got, want)
			}
		}
	}
	// Far out, the digits stay: 1 of 2³⁰⁰ paths.
	if got, want := SignTest(300, 300), math.Ldexp(1, -300); math.Abs(got-want) > 1e-9*want {
		t.Errorf("300 of 300: got %v, want %v", got, want)
	}
	if got, want := SignTest(5210, 10000), 1-(distuv.Binomial{N: 10000, P: 0.5}).CDF(5209); !near(got, want, 1e-9) {
		t.Errorf("5210 of 10000: got %v, want %v", got, want)
	}
	for _, c := range [][2]int{{-1, 5}, {6, 5}, {0, -1}} {
		if got := SignTest(c[0], c[1]); !math.IsNaN(got) {
			t.Errorf("%v: got %v, want NaN", c, got)
		}
	}
}

func ascend(n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = float64(i + 1)
	}
	return x
}

// TestQuantileIntervalExact compares orders and confidence with rational sums: each
// tail is within its half, and one order further in would not be.
func TestQuantileIntervalExact(t *testing.T) {
	for _, q := range []*big.Rat{big.NewRat(1, 2), big.NewRat(9, 10), big.NewRat(1, 4), big.NewRat(99, 100)} {
		// 0.9375 and 0.5 have tails that some sample meets exactly.
		for _, confidence := range []*big.Rat{big.NewRat(19, 20), big.NewRat(99, 100), big.NewRat(15, 16), big.NewRat(1, 2)} {
			tail := new(big.Rat).Mul(new(big.Rat).Sub(big.NewRat(1, 1), confidence), big.NewRat(1, 2))
			for _, n := range []int{1, 2, 3, 5, 6, 10, 11, 20, 37, 40} {
				below := func(k int) *big.Rat { return atMostExact(k-1, n, q) } // P(B < k)
				lo := 0
				for lo < n && below(lo+1).Cmp(tail) <= 0 {
					lo++
				}
				hi := n + 1
				for hi > 1 && new(big.Rat).Sub(big.NewRat(1, 1), below(hi-1)).Cmp(tail) <= 0 {
					hi--
				}
				want := Interval{math.Inf(-1), inf, 0}
				covered := new(big.Rat).Sub(below(hi), below(lo))
				if hi == n+1 {
					covered.Sub(big.NewRat(1, 1), below(lo))
				} else {
					want.High = float64(hi)
				}
				if lo > 0 {
					want.Low = float64(lo)
				}
				want.Confidence, _ = covered.Float64()
				qf, _ := q.Float64()
				cf, _ := confidence.Float64()
				got := QuantileInterval(reversed(ascend(n)), qf, cf)
				if got.Low != want.Low || got.High != want.High || !near(got.Confidence, want.Confidence, 1e-12) {
					t.Errorf("n %d, quantile %v at %v: got %v, want %v", n, qf, cf, got, want)
				}
			}
		}
	}
}

// TestMedianIntervalBenchmath: benchmath may give up one order on one side, because it adds
// up the likeliest orders; where it does not, both agree. Values are orders here.
func TestMedianIntervalBenchmath(t *testing.T) {
	same := 0
	for n := 1; n <= 30; n++ { // above, benchmath approximates
		for _, confidence := range []float64{0.8, 0.95, 0.99} {
			x := ascend(n)
			got := MedianInterval(x, confidence)
			theirs := benchmath.AssumeNothing.Summary(benchmath.NewSample(x, &benchmath.DefaultThresholds), confidence)
			if got.Low > theirs.Lo || got.High < theirs.Hi || got.Confidence < theirs.Confidence-1e-12 {
				t.Errorf("n %d at %v: got %v, narrower than %v", n, confidence, got, theirs)
			}
			if got.Low == theirs.Lo && got.High == theirs.Hi {
				same++
				if !near(got.Confidence, theirs.Confidence, 1e-12) {
					t.Errorf("n %d at %v: got confidence %v, want %v", n, confidence, got.Confidence, theirs.Confidence)
				}
			} else if order := func(v float64) float64 { return min(max(v, 0), float64(n+1)) }; order(got.High)-order(got.Low) != order(theirs.Hi)-order(theirs.Lo)+1 {
				t.Errorf("n %d at %v: got %v, benchmath %v: more than one order apart", n, confidence, got, theirs)
			}
		}
	}
	if same < 45 {
		t.Errorf("got %d of 90 intervals as benchmath has them, want half or more", same)
	}
	for _, c := range []struct {
		n      int
		lo, hi float64
		level  float64
	}{{10, 2, 9, 0.97852}, {20, 6, 15, 0.95861}, {6, 1, 6, 0.96875}, {5, math.Inf(-1), inf, 1}} {
		got := MedianInterval(ascend(c.n), 0.95)
		if got.Low != c.lo || got.High != c.hi || math.Abs(got.Confidence-c.level) > 5e-6 {
			t.Errorf("n %d: got %v, want %v", c.n, got, c)
		}
	}
}

// TestQuantileIntervalCoverage draws: the interval covers as often as it says, for
// every shape.
func TestQuantileIntervalCoverage(t *testing.T) {
	const draws = 3000
	for _, s := range shapes {
		for _, q := range []float64{0.5, 0.9} {
			for _, n := range []int{10, 60} {
				r := rand.New(rand.NewPCG(7, uint64(n)))
				truth := s.quantile(q)
				hits, confidence := 0, 0.0
				for range draws {
					got := QuantileInterval(s.sample(r, n), q, 0.95)
					confidence = got.Confidence
					if got.Low <= truth && truth <= got.High {
						hits++
					}
				}
				name := fmt.Sprintf("%s, quantile %v of %d", s.name, q, n)
				if confidence < 0.95 {
					t.Errorf("%s: got confidence %v, want 0.95 or more", name, confidence)
				}
				within(t, name, hits, draws, confidence)
			}
		}
	}
	// With ties it covers at least as often.
	r := rand.New(rand.NewPCG(7, 7))
	hits := 0
	for range draws {
		x := make([]float64, 15)
		for i := range x {
			x[i] = float64(r.IntN(3)) // median 1
		}
		if got := MedianInterval(x, 0.95); got.Low <= 1 && 1 <= got.High {
			hits++
		}
	}
	atLeast(t, "three values", hits, draws, 0.95)
}

func TestQuantileIntervalBadInput(t *testing.T) {
	for name, got := range map[string]Interval{
		"empty":        MedianInterval(nil, 0.95),
		"NaN":          MedianInterval([]float64{1, nan, 2}, 0.95),
		"confidence 0": MedianInterval(ascend(9), 0),
		"confidence 1": MedianInterval(ascend(9), 1),
		"no confid.":   MedianInterval(ascend(9), nan),
		"quantile 0":   QuantileInterval(ascend(9), 0, 0.95),
		"quantile NaN": QuantileInterval(ascend(9), nan, 0.95),
		"quantile 95":  QuantileInterval(ascend(9), 95, 0.95),
	} {
		if !isNaN(got) {
			t.Errorf("%s: got %v, want NaN", name, got)
		}
	}
	x := append(ascend(10), math.Inf(-1), inf)
	if got := MedianInterval(x, 0.95); got.Low != 2 || got.High != 9 {
		t.Errorf("infinite values: got %v, want 2 … 9", got)
	}
}

// TestQuantileIntervalNarrow: with next to no confidence one value is both ends, and rounding
// makes neither the confidence negative nor the ends cross.
func TestQuantileIntervalNarrow(t *testing.T) {
	for n := 1; n <= 40; n++ {
		for k := 1; k < 100; k++ {
			got := QuantileInterval(ascend(n), float64(k)/100, 1e-12)
			if !(got.Low <= got.High && got.Confidence >= 0) {
				t.Errorf("n %d, quantile 0.%02d: got %v", n, k, got)
			}
		}
	}
}

// TestQuantileIntervalMirrored: negated values have the mirrored interval at 1 − q; any
// ascending map of the values maps the interval.
func TestQuantileIntervalMirrored(t *testing.T) {
	check(t, prop.ForAll(func(x []float64, q, confidence float64) bool {
		got, mirrored := QuantileInterval(x, q, confidence), QuantileInterval(negated(x), 1-q, confidence)
		mapped := QuantileInterval(each(x, math.Exp), q, confidence)
		open := func(v float64) bool { return math.IsInf(v, 0) }
		return got.Low == -mirrored.High && got.High == -mirrored.Low && got.Low <= got.High &&
			near(got.Confidence, mirrored.Confidence, 1e-9) && got.Confidence >= confidence-1e-8 &&
			(open(got.Low) || mapped.Low == math.Exp(got.Low)) && (open(got.High) || mapped.High == math.Exp(got.High))
	}, values(), gen.Float64Range(0.01, 0.99), gen.Float64Range(0.05, 0.999)))
}

// TestQuantileIntervalMonotone: more confidence never narrows it.
func TestQuantileIntervalMonotone(t *testing.T) {
	check(t, prop.ForAll(func(x []float64, q, a, b float64) bool {
		narrow, wide := QuantileInterval(x, q, min(a, b)), QuantileInterval(x, q, max(a, b))
		return wide.Low <= narrow.Low && narrow.High <= wide.High && narrow.Confidence <= wide.Confidence+1e-12
	}, values(), gen.Float64Range(0.01, 0.99), gen.Float64Range(0.05, 0.999), gen.Float64Range(0.05, 0.999)))
}
