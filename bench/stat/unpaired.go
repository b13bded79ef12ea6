package stat

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"golang.org/x/perf/benchmath"
)

// exactRanks is the largest number of values for which [MannWhitney] counts
// every arrangement: the count grows with its fourth power.
const exactRanks = 60

// MannWhitney returns the two-sided p of the Mann-Whitney U test of two unpaired
// samples: twice the smaller tail, at most 1. It is exact, ties included, for up to 60 values
// together; above that it is what benchstat computes. It is NaN if a sample is empty
// or holds NaN.
//
// A small p says that the samples differ, not that the code does: without pairs, a machine
// that changed between them looks the same.
func MannWhitney(x, y []float64) float64 {
	if len(x) == 0 || len(y) == 0 || hasNaN(x) || hasNaN(y) {
		return math.NaN()
	}
	if len(x)+len(y) > exactRanks {
		// NewSample sorts what it is given.
		a := benchmath.NewSample(slices.Clone(x), &benchmath.DefaultThresholds)
		b := benchmath.NewSample(slices.Clone(y), &benchmath.DefaultThresholds)
		return min(1, benchmath.AssumeNothing.Compare(a, b).P)
	}
	// benchmath's exact distribution is wrong for ties (go-moremath at f10218a38794: p
	// above 1, and another p when x and y are swapped), so it is counted here.
	ranks := doubledRanks(slices.Concat(x, y))
	seen := 0
	for _, r := range ranks[:len(x)] {
		seen += r
	}
	below, at, above := rankSums(ranks, len(x), seen)
	return min(1, 2*(min(below, above)+at)/(below+at+above))
}

// doubledRanks returns twice the mid-rank of each value, from 2: whole numbers, even for ties.
func doubledRanks(z []float64) []int {
	order := make([]int, len(z))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(z[a], z[b]) })
	ranks := make([]int, len(z))
	for i := 0; i < len(order); {
		j := i + 1
		for j < len(order) && z[order[j]] == z[order[i]] {
			j++
		}
		for _, k := range order[i:j] {
			ranks[k] = i + 1 + j
		}
		i = j
	}
	return ranks
}

// rankSums counts the ways to choose n of ranks by their sum: below seen, at it, above it.
func rankSums(ranks []int, n, seen int) (below, at, above float64) {
	total := 0
	for _, r := range ranks {
		total += r
	}
	ways := make([][]float64, n+1) // ways[k][s]: k chosen, sum s
	for k := range ways {
		ways[k] = make([]float64, total+1)
	}
	ways[0][0] = 1
	for _, r := range ranks {
		for k := n; k > 0; k-- {
			for s := total; s >= r; s-- {
				ways[k][s] += ways[k-1][s-r]
			}
		}
	}
	for s, w := range ways[n] {
		switch {
		case s < seen:
			below += w
		case s == seen:
			at += w
		default:
			above += w
		}
	}
	return below, at, above
}

// BootstrapRatio returns the 95 % percentile-bootstrap interval of median(head) ÷
// median(base) from n resamples of each arm on its own; 10,000 are enough for two
// digits. It is for display: its level is approximate and it depends on
// the seed, so it decides nothing. It is NaN unless both arms hold finite values
// above 0 and n ≥ 1.
func BootstrapRatio(base, head []float64, seed uint64, n int) Interval {
	positive := func(x []float64) bool {
		for _, v := range x {
			if finite(v) == nil || v <= 0 {
				return false
			}
		}
		return len(x) > 0
	}
	if n < 1 || !positive(base) || !positive(head) {
		return noInterval()
	}
	const confidence = 0.95
	rng := rand.New(rand.NewPCG(seed, 0))
	resampled := func(x, into []float64) float64 {
		for i := range into {
			into[i] = x[rng.IntN(len(x))]
		}
		slices.Sort(into)
		return median(into)
	}
	b, h := make([]float64, len(base)), make([]float64, len(head))
	ratios := make([]float64, n)
	for i := range ratios {
		ratios[i] = resampled(head, h) / resampled(base, b)
	}
	slices.Sort(ratios)
	cut := int(math.Floor((1 - confidence) / 2 * float64(n)))
	return Interval{ratios[cut], ratios[n-1-cut], confidence}
}

// median is the median of sorted values that are not none. Halves first: a sum may overflow.
func median(sorted []float64) float64 {
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return sorted[n/2-1]/2 + sorted[n/2]/2
}
