package stat

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

const (
	minSegment   = 5     // runs on each side of a change point
	minStep      = 0.03  // smallest step that is reported
	agreeWithin  = 2     // runs between the places that two detectors give to one change
	significance = 0.001 // of EDivisive in ChangePoints
)

// Change is a change point of a history of log ratios.
type Change struct {
	At     int     `json:"at"`     // index of the first run after the change
	Before float64 `json:"before"` // median log ratio of the segment before
	After  float64 `json:"after"`  // of the segment after
	Step   float64 `json:"step"`   // exp(After − Before) − 1: 0.05 is 5 % more
}

// ChangePoints returns the change points of a history, in order: y holds, run by
// run, ln(head ÷ pinned reference) of one row. A change is reported where [Potts] and
// [EDivisive] agree to within 2 runs and which keeps, after the weakest are merged away,
//
//   - 5 runs or more on each side, up to the next change or the end;
//   - a step of 3 % or more between the medians, in either direction;
//   - its level: the last 5 runs of its segment are nearer to it than to the old one.
//
// It is a hint where to bisect, not a gate. The seed is that of EDivisive. It
// returns an error if a value is not finite.
func ChangePoints(y []float64, seed uint64) ([]Change, error) {
	for i, v := range y {
		if finite(v) == nil {
			return nil, fmt.Errorf("change points: run %d of %d is %v: leave out what was not measured", i+1, len(y), v)
		}
	}
	return settle(y, agreed(Potts(y, 0), EDivisive(y, seed, significance))), nil
}

// agreed returns the points that have one of the others near.
func agreed(points, others []int) []int {
	var both []int
	for _, p := range points {
		if slices.ContainsFunc(others, func(o int) bool { return max(o-p, p-o) <= agreeWithin }) {
			both = append(both, p)
		}
	}
	return both
}

// settle merges the weakest step away until all that are left are accepted.
func settle(y []float64, at []int) []Change {
	for {
		changes := describeChanges(y, at)
		weakest := -1
		for i, c := range changes {
			if !c.accepted(y, at, i) && (weakest < 0 || math.Abs(c.After-c.Before) < math.Abs(changes[weakest].After-changes[weakest].Before)) {
				weakest = i
			}
		}
		if weakest < 0 {
			return changes
		}
		at = slices.Delete(at, weakest, weakest+1)
	}
}

func describeChanges(y []float64, at []int) []Change {
	var changes []Change
	for i, p := range at {
		from, to := around(y, at, i)
		c := Change{At: p, Before: medianOf(y[from:p]), After: medianOf(y[p:to])}
		c.Step = math.Expm1(c.After - c.Before)
		changes = append(changes, c)
	}
	return changes
}

// around returns where the segments before and after change i begin and end.
func around(y []float64, at []int, i int) (from, to int) {
	to = len(y)
	if i > 0 {
		from = at[i-1]
	}
	if i+1 < len(at) {
		to = at[i+1]
	}
	return from, to
}

func (c Change) accepted(y []float64, at []int, i int) bool {
	from, to := around(y, at, i)
	if c.At-from < minSegment || to-c.At < minSegment {
		return false
	}
	// Of the logarithm, so that a change and its mirror are judged alike.
	if math.Abs(c.After-c.Before) < math.Log1p(minStep) {
		return false
	}
	end := medianOf(y[to-minSegment : to])
	return math.Abs(end-c.After) < math.Abs(end-c.Before)
}

func medianOf(x []float64) float64 { return median(slices.Sorted(slices.Values(x))) }

// Potts returns the change points of the step function that minimises
//
//	Σ |y − level| + penalty × number of steps
//
// over all step functions (the L1 Potts functional; the levels are medians), as
// indices of the first value after each step. Of equal minima it takes one with the
// fewest steps. An outlier far enough away is a level of its own.
// The penalty is in the unit of y; 0 or less stands for 4·ln n times the mean
// absolute noise, which is taken from the differences of neighbours so that steps
// do not count as noise. That is the information criterion of asv's step
// detection. It is nil if a value or the penalty is not finite. Time grows with n².
func Potts(y []float64, penalty float64) []int {
	for _, v := range append([]float64{penalty}, y...) {
		if finite(v) == nil {
			return nil
		}
	}
	n := len(y)
	if n < 2 {
		return nil
	}
	if penalty <= 0 {
		penalty = 4 * math.Log(float64(n)) * noise(y)
	}
	// cost[r] is the least cost of y[:r], steps[r] the steps it takes, from[r] where
	// its last segment begins.
	cost, steps, from := make([]float64, n+1), make([]int, n+1), make([]int, n+1)
	// The first segment pays a penalty too, which all step functions do alike.
	segment := make([]float64, 0, n)
	for r := 1; r <= n; r++ {
		cost[r] = math.Inf(1)
		segment = segment[:0]
		spread := 0.0 // Σ |y − median| of y[l:r]
		for l := r - 1; l >= 0; l-- {
			v := y[l]
			if k := len(segment); k > 0 {
				// Any point between the two middle values minimises the old sum, and the
				// one nearest to v the new sum too.
				lo, hi := segment[(k-1)/2], segment[k/2]
				spread += max(0, lo-v, v-hi)
			}
			at, _ := slices.BinarySearch(segment, v)
			segment = slices.Insert(segment, at, v)
			total := cost[l] + penalty + spread
			if total < cost[r] || total == cost[r] && steps[l]+1 < steps[r] {
				cost[r], steps[r], from[r] = total, steps[l]+1, l
			}
		}
	}
	var points []int
	for r := from[n]; r > 0; r = from[r] {
		points = append(points, r)
	}
	slices.Reverse(points)
	return points
}

// noise estimates the mean absolute deviation of y from its level at each place.
func noise(y []float64) float64 {
	diffs := make([]float64, len(y)-1)
	mean := 0.0
	for i := range diffs {
		diffs[i] = math.Abs(y[i+1] - y[i])
		mean += diffs[i] / float64(len(diffs))
	}
	// For normal noise the median difference is 0.9539 σ, the deviation 0.7979 σ.
	if m := medianOf(diffs); m > 0 {
		return 0.8365 * m
	}
	return 0.8365 * mean // most neighbours are equal
}

// EDivisive returns the change points of y by E-divisive (Matteson and James,
// 2014), as indices of the first value after each change. It splits a segment at
// the place where its beginning and what follows, up to any end, have the largest energy
// distance; keeps the split if a permutation test finds it at the given significance,
// 0.001 say; and goes on in both parts. The energy distance has exponent 1 and
// the unbiased divisors n(n−1)/2 within a side; a side has 5 values or more. It
// is nil if a value is not finite, or unless the significance is at least 10⁻⁶
// and below 1.
//
// The same seed gives the same points. One test takes up to 2/significance
// permutations, each of time n²: at 0.001 and 365 values, half a second.
func EDivisive(y []float64, seed uint64, significance float64) []int {
	if !(significance >= 1e-6 && significance < 1) {
		return nil
	}
	for _, v := range y {
		if finite(v) == nil {
			return nil
		}
	}
	e := newEnergy(len(y))
	var points []int
	var divide func(lo, hi int)
	divide = func(lo, hi int) {
		if hi-lo < 2*minSegment {
			return
		}
		// A source for each segment: what one part draws changes nothing in another.
		rng := rand.New(rand.NewPCG(seed, uint64(lo)<<32|uint64(hi)))
		at, found := e.split(y[lo:hi], rng, significance)
		if !found {
			return
		}
		divide(lo, lo+at)
		points = append(points, lo+at)
		divide(lo+at, hi)
	}
	divide(0, len(y))
	return points
}

// energy finds the best split of a series; it holds what that needs room for.
type energy struct {
	prefix  []float64 // prefix[k]: Σ |distances| over the pairs of y[:k]
	right   []float64 // right[k]: the same of y[at:k]
	inverse []float64 // inverse[k]: 1/k
}

func newEnergy(n int) *energy {
	e := &energy{prefix: make([]float64, n+1), right: make([]float64, n+1), inverse: make([]float64, n+1)}
	for k := 1; k <= n; k++ {
		e.inverse[k] = 1 / float64(k)
	}
	return e
}

// best returns the place at which y[:at] and y[at:end] are farthest apart for any end,
// and their energy distance, scaled by the sizes l and m of both: l·m/(l+m) × (mean between −
// means within).
func (e *energy) best(y []float64) (at int, largest float64) {
	n := len(y)
	for k, v := range y {
		row := 0.0
		for _, w := range y[:k] {
			row += math.Abs(v - w)
		}
		e.prefix[k+1] = e.prefix[k] + row
	}
	clear(e.right)
	largest = math.Inf(-1)
	for l := n - 1; l >= minSegment; l-- {
		left, row := e.prefix[l], 0.0
		for k := l + 1; k < n; k++ {
			row += math.Abs(y[l] - y[k])
			right := e.right[k+1] + row
			e.right[k+1] = right
			m := k + 1 - l
			if m < minSegment {
				continue
			}
			between := e.prefix[k+1] - left - right
			q := 2 * e.inverse[k+1] * (between - left*float64(m)*e.inverse[l-1] - right*float64(l)*e.inverse[m-1])
			if q > largest {
				at, largest = l, q
			}
		}
	}
	return at, largest
}

// split returns the best split and whether it is significant: at most that share
// of the orders, the one seen included, split as well or better.
func (e *energy) split(y []float64, rng *rand.Rand, significance float64) (at int, found bool) {
	at, seen := e.best(y)
	if !(seen > 0) {
		return at, false // no difference, or sums beyond the range of float64
	}
	seen -= 1e-9 * seen // equal splits must count as equal
	permutations := math.Ceil(2/significance) - 1
	asGood := 1.0
	y = slices.Clone(y)
	for range int(permutations) {
		rng.Shuffle(len(y), func(i, j int) { y[i], y[j] = y[j], y[i] })
		if _, q := e.best(y); q >= seen {
			asGood++
			if asGood > significance*(permutations+1) {
				return at, false
			}
		}
	}
	return at, true
}
