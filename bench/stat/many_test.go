package stat

import (
	"math"
	"math/bits"
	"slices"
	"testing"

	"github.com/leanovate/gopter/prop"
)

// closed adjusts p by the closed testing procedure with Bonferroni tests: a value
// is the largest over every set of hypotheses that holds its own. Holm is its shortcut.
func closed(p []float64) []float64 {
	out := make([]float64, len(p))
	for set := uint(1); set < 1<<len(p); set++ {
		least := inf
		for i, v := range p {
			if set>>i&1 == 1 {
				least = min(least, v)
			}
		}
		whole := min(1, least*float64(bits.OnesCount(set)))
		for i := range p {
			if set>>i&1 == 1 {
				out[i] = max(out[i], whole)
			}
		}
	}
	return out
}

func TestHolmClosed(t *testing.T) {
	for _, p := range [][]float64{
		{}, {0.03}, {0.01, 0.02}, {0.04, 0.04}, {0, 1, 0.5}, {0.01, 0.04, 0.03, 0.005},
		{0.9, 0.001, 0.2, 0.02, 0.02, 0.0101, 0.3, 0.6},
	} {
		if got, want := Holm(p), closed(p); !slices.EqualFunc(got, want, func(a, b float64) bool { return near(a, b, 1e-15) }) {
			t.Errorf("%v: got %v, want %v", p, got, want)
		}
	}
	// Holm, 1979: four tests, of which the two smallest hold at 0.05.
	if got, want := Holm([]float64{0.01, 0.04, 0.03, 0.005}), []float64{0.03, 0.06, 0.06, 0.02}; !slices.EqualFunc(got, want, func(a, b float64) bool { return near(a, b, 1e-15) }) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestManyBadInput(t *testing.T) {
	p := []float64{0.01, nan, -0.1, 1.5, 0.02}
	for name, got := range map[string][]float64{"holm": Holm(p), "bonferroni": Bonferroni(p)} {
		for i, v := range got {
			if math.IsNaN(v) != (i >= 1 && i <= 3) {
				t.Errorf("%s: got %v for %v", name, v, p[i])
			}
		}
		if got[0] != 0.05 { // what is no probability still counts
			t.Errorf("%s: got %v, want 0.05", name, got[0])
		}
	}
	if len(Holm(nil)) != 0 || len(Bonferroni(nil)) != 0 {
		t.Error("none: got values")
	}
}

// TestHolmProperties: between p and Bonferroni, in the order of p, and the same for any
// order of the tests.
func TestHolmProperties(t *testing.T) {
	check(t, prop.ForAll(func(p []float64) bool {
		holm, bonferroni := Holm(p), Bonferroni(p)
		if !slices.Equal(reversed(holm), Holm(reversed(p))) {
			return false
		}
		for i := range p {
			if holm[i] < p[i] || holm[i] > bonferroni[i] || bonferroni[i] != min(1, p[i]*float64(len(p))) {
				return false
			}
			for j := range p {
				if p[i] < p[j] && holm[i] > holm[j] {
					return false
				}
			}
		}
		return true
	}, probabilities()))
}
