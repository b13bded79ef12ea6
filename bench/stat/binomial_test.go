package stat

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	"gonum.org/v1/gonum/stat/distuv"
)

func TestUpperBound(t *testing.T) {
	for _, c := range []struct {
		k, n int
		want float64
	}{
		// What the design claims for its A/A runs: the rule of three, made exact.
		{0, 40, 0.0722}, {0, 100, 0.0295}, {0, 300, 0.00994}, {1, 300, 0.0157},
	} {
		if got := UpperBound(c.k, c.n, 0.95); math.Abs(got-c.want) > 0.00005 {
			t.Errorf("%d of %d: got %.5f, want %.5f", c.k, c.n, got, c.want)
		}
	}
	for _, n := range []int{1, 2, 40, 300, 100000} {
		for _, confidence := range []float64{0.5, 0.95, 0.999} {
			if got, want := UpperBound(0, n, confidence), -math.Expm1(math.Log1p(-confidence)/float64(n)); !near(got, want, 1e-12) {
				t.Errorf("0 of %d at %v: got %v, want %v", n, confidence, got, want)
			}
			if got := UpperBound(n, n, confidence); got != 1 {
				t.Errorf("%d of %d at %v: got %v, want 1", n, n, confidence, got)
			}
		}
	}
	// 59 of 59 found proves a power of 95 %; 8 of 10, of 49 % only.
	if got := 1 - UpperBound(0, 59, 0.95); got < 0.95 || got > 0.951 {
		t.Errorf("59 of 59: got %v, want 0.95", got)
	}
	if got := 1 - UpperBound(2, 10, 0.95); math.Abs(got-0.493) > 0.0005 {
		t.Errorf("8 of 10: got %v, want 0.493", got)
	}
}

// TestClopperPearson puts each end back into the binomial distribution: what was
// seen, or more, must be as likely as the tail.
func TestClopperPearson(t *testing.T) {
	for _, n := range []int{1, 2, 10, 40, 1000} {
		for _, k := range []int{0, 1, n / 3, n - 1, n} {
			for _, confidence := range []float64{0.5, 0.95, 0.9999} {
				got := ClopperPearson(k, n, confidence)
				tail := (1 - confidence) / 2
				if got.Confidence != confidence {
					t.Errorf("%d of %d: got confidence %v, want %v", k, n, got.Confidence, confidence)
				}
				if k == 0 && got.Low != 0 || k == n && got.High != 1 {
					t.Errorf("%d of %d: got %v, want an end at the edge", k, n, got)
				}
				if k > 0 {
					if p := 1 - (distuv.Binomial{N: float64(n), P: got.Low}).CDF(float64(k-1)); !near(p, tail, 1e-9) {
						t.Errorf("%d of %d at %v: low %v has tail %v, want %v", k, n, confidence, got.Low, p, tail)
					}
				}
				if k < n {
					if p := (distuv.Binomial{N: float64(n), P: got.High}).CDF(float64(k)); !near(p, tail, 1e-9) {
						t.Errorf("%d of %d at %v: high %v has tail %v, want %v", k, n, confidence, got.High, p, tail)
					}
				}
			}
		}
	}
	if got := ClopperPearson(3, 10, 0.95); math.Abs(got.Low-0.0667) > 0.00005 || math.Abs(got.High-0.6525) > 0.00005 {
		t.Errorf("3 of 10: got %v, want the published 0.0667 … 0.6525", got)
	}
}

func TestClopperPearsonCoverage(t *testing.T) {
	const draws, n = 20000, 40
	for _, p := range []float64{0.005, 0.1, 0.5, 0.93} {
		r := rand.New(rand.NewPCG(8, 1))
		two, one := 0, 0
		for range draws {
			k := 0
			for range n {
				if r.Float64() < p {
					k++
				}
			}
			if i := ClopperPearson(k, n, 0.95); i.Low <= p && p <= i.High {
				two++
			}
			if p <= UpperBound(k, n, 0.95) {
				one++
			}
		}
		atLeast(t, "interval", two, draws, 0.95)
		atLeast(t, "bound", one, draws, 0.95)
	}
}

func TestClopperPearsonBadInput(t *testing.T) {
	for _, c := range []struct {
		k, n       int
		confidence float64
	}{{0, 0, 0.95}, {-1, 5, 0.95}, {6, 5, 0.95}, {0, -5, 0.95}, {1, 5, 0}, {1, 5, 1}, {1, 5, nan}, {1, 5, 95}} {
		if got := ClopperPearson(c.k, c.n, c.confidence); !isNaN(got) {
			t.Errorf("%+v: got %v, want NaN", c, got)
		}
		if got := UpperBound(c.k, c.n, c.confidence); !math.IsNaN(got) {
			t.Errorf("%+v: got %v, want NaN", c, got)
		}
	}
}

// TestClopperPearsonMirrored: what was not seen has the mirrored interval; one more
// seen moves both ends up; more confidence widens it.
func TestClopperPearsonMirrored(t *testing.T) {
	check(t, prop.ForAll(func(k, more int, confidence float64) bool {
		n := k + more
		got, mirrored, next := ClopperPearson(k, n, confidence), ClopperPearson(n-k, n, confidence), ClopperPearson(k+1, n, confidence)
		wide := ClopperPearson(k, n, (1+confidence)/2)
		return near(got.Low, 1-mirrored.High, 1e-12) && near(got.High, 1-mirrored.Low, 1e-12) &&
			got.Low <= float64(k)/float64(n) && float64(k)/float64(n) <= got.High &&
			next.Low > got.Low && next.High >= got.High && wide.Low <= got.Low && wide.High >= got.High
	}, gen.IntRange(0, 200), gen.IntRange(1, 200), gen.Float64Range(0.01, 0.999)))
}
