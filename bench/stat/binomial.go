package stat

import (
	"math"

	"gonum.org/v1/gonum/mathext"
)

// ClopperPearson returns the exact two-sided interval of a probability of which k
// of n trials were seen. It covers with at least its confidence, which is the
// one asked for. It is NaN unless 0 ≤ k ≤ n, n ≥ 1, and confidence is inside 0 … 1.
func ClopperPearson(k, n int, confidence float64) Interval {
	if n < 1 || k < 0 || k > n || !level(confidence) {
		return noInterval()
	}
	tail := (1 - confidence) / 2
	// The lower end is the mirrored upper end of the trials that were not seen.
	return Interval{1 - upperBound(n-k, n, tail), upperBound(k, n, tail), confidence}
}

// UpperBound returns the exact one-sided upper bound of a probability of which k
// of n trials were seen: 0 of 300 proves at most 1 % with a confidence of 95 %. It
// is NaN unless 0 ≤ k ≤ n, n ≥ 1, and confidence is inside 0 … 1.
func UpperBound(k, n int, confidence float64) float64 {
	if n < 1 || k < 0 || k > n || !level(confidence) {
		return math.NaN()
	}
	return upperBound(k, n, 1-confidence)
}

func upperBound(k, n int, tail float64) float64 {
	if k == n {
		return 1
	}
	return mathext.InvRegIncBeta(float64(k+1), float64(n-k), 1-tail)
}
