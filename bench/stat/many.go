package stat

import (
	"cmp"
	"math"
	"slices"
)

// Bonferroni returns p × len(p), at most 1: adjusted values that bound the
// probability of any false finding, whatever the dependence. A value that is not a
// probability stays NaN and still counts as a test.
func Bonferroni(p []float64) []float64 {
	out := make([]float64, len(p))
	for i, v := range p {
		out[i] = math.NaN()
		if probability(v) {
			out[i] = min(1, v*float64(len(p)))
		}
	}
	return out
}

// Holm returns p adjusted by Holm's step-down procedure, in the order of p. It
// bounds what [Bonferroni] bounds and never gives a larger value. A value that is not
// a probability stays NaN and still counts as a test.
func Holm(p []float64) []float64 {
	out := make([]float64, len(p))
	var order []int
	for i, v := range p {
		out[i] = math.NaN()
		if probability(v) {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(p[a], p[b]) })
	largest := 0.0
	for rank, i := range order {
		largest = max(largest, min(1, p[i]*float64(len(p)-rank)))
		out[i] = largest
	}
	return out
}
