package stat

import (
	"math"
	"slices"
	"sort"

	"gonum.org/v1/gonum/mathext"
)

// SignTest returns the one-sided p of a sign test: the probability of above or more
// heads in n throws of a fair coin. Values equal to the margin count as not above. It is NaN unless
// 0 ≤ above ≤ n.
func SignTest(above, n int) float64 {
	if above < 0 || above > n {
		return math.NaN()
	}
	// By symmetry as many tails: this form keeps its digits far out.
	return atMost(n-above, n, 0.5)
}

// atMost is P(X ≤ k) for X binomial of n and p.
func atMost(k, n int, p float64) float64 {
	switch {
	case k < 0:
		return 0
	case k >= n:
		return 1
	}
	return mathext.RegIncBeta(float64(n-k), float64(k+1), 1-p)
}

// MedianInterval returns the order-statistic interval of the median of x: exact
// for any continuous distribution, and with at least its confidence for any other.
// Nothing is assumed of the shape. It is not valid at several looks: see
// [Limits.Interval]. See [QuantileInterval] for the rest.
func MedianInterval(x []float64, confidence float64) Interval {
	return QuantileInterval(x, 0.5, confidence)
}

// QuantileInterval returns the order-statistic interval of the quantile q of x,
// with at most (1 − confidence)/2 beyond each end. An end is infinite where x has
// too few values: 95 % of a median needs 6. Confidence is what is attained. The
// interval is NaN if x is empty or holds NaN, or unless q and confidence are inside 0 … 1.
func QuantileInterval(x []float64, q, confidence float64) Interval {
	if len(x) == 0 || hasNaN(x) || !level(q) || !level(confidence) {
		return noInterval()
	}
	n := len(x)
	// Rounding must not refuse a tail that is exact, as 2⁻⁵.
	tail := (1 - confidence) / 2 * (1 + 1e-9)
	// lo is the largest order with P(B < lo) ≤ tail, hi the least with P(B ≥ hi) ≤ tail, where
	// B values of x are at most the quantile; 0 and n+1 stand for the open ends.
	lo := sort.Search(n, func(k int) bool { return atMost(k, n, q) > tail })
	hi := n + 1 - sort.Search(n, func(k int) bool { return atMost(k, n, 1-q) > tail })
	sorted := slices.Sorted(slices.Values(x))
	i := Interval{math.Inf(-1), math.Inf(1), 1}
	if lo > 0 {
		i.Low = sorted[lo-1]
		i.Confidence -= atMost(lo-1, n, q)
	}
	if hi <= n {
		i.High = sorted[hi-1]
		i.Confidence -= atMost(n-hi, n, 1-q)
	}
	i.Confidence = max(0, i.Confidence) // one value may be both ends, and tails round
	return i
}
