package stat

import (
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"
)

// MaxRounds bounds the last look of [Sequential].
const MaxRounds = 1000

// Limits are the limits of a group-sequential sign test: after Looks[i] rounds, of
// which count were beyond the margin, the test fails if count ≥ Fail[i], clears if
// count ≤ Clear[i], and goes on otherwise. A limit of −1 is never reached at its look.
type Limits struct {
	Looks []int `json:"looks"`
	Fail  []int `json:"fail"`
	Clear []int `json:"clear"`
	// SpentFail is the probability of a failure at any look when the true median is
	// exactly the margin, the worst case of "not beyond it"; SpentClear, that of a
	// clearance. Each holds whether or not the other limit is obeyed.
	SpentFail  float64 `json:"spent_fail"`
	SpentClear float64 `json:"spent_clear"`
}

// Sequential computes exact limits for the given looks, the numbers of rounds at
// which the test is judged: ascending, from 1 to [MaxRounds]. A true median at
// the margin makes each round a fair coin, whatever the distribution, so that the
// probability of every path is known. Up to a look of n out of N rounds the test
// spends at most alpha × n/N on failures and clear × n/N on clearances; both are
// above 0 and below 1/2.
//
// Sequential returns an error if no look can fail. Clear limits may all be −1.
func Sequential(looks []int, alpha, clear float64) (Limits, error) {
	if len(looks) == 0 {
		return Limits{}, fmt.Errorf("looks: none given: give the numbers of rounds at which to judge, as 10, 20, 40")
	}
	for i, n := range looks {
		if n < 1 || n > MaxRounds || i > 0 && n <= looks[i-1] {
			return Limits{}, fmt.Errorf("looks: %d at place %d of %v: must ascend from 1 to %d", n, i+1, looks, MaxRounds)
		}
	}
	for _, p := range []struct {
		name  string
		value float64
	}{{"alpha", alpha}, {"clear", clear}} {
		if !(p.value > 0 && p.value < 0.5) {
			return Limits{}, fmt.Errorf("%s: %v: must be above 0 and below 0.5, as 0.05", p.name, p.value)
		}
	}
	l := Limits{Looks: slices.Clone(looks)}
	l.Fail, l.SpentFail = upper(looks, alpha)
	if slices.Max(l.Fail) < 0 {
		return Limits{}, fmt.Errorf("looks: %v can never fail at alpha %v: even %d of %d has a probability of %.2g: plan a last look of %d rounds or more, or fewer rows to share alpha",
			looks, alpha, looks[len(looks)-1], looks[len(looks)-1], math.Ldexp(1, -looks[len(looks)-1]), int(math.Ceil(-math.Log2(alpha))))
	}
	// A count of at most l is a mirrored count of at least n−l.
	l.Clear, l.SpentClear = upper(looks, clear)
	for i, u := range l.Clear {
		if u >= 0 {
			l.Clear[i] = looks[i] - u
		}
	}
	return l, nil
}

// upper returns, per look, the least count whose crossing keeps within the share of
// alpha that is spent up to that look, −1 if none does, and what is spent in all.
func upper(looks []int, alpha float64) (limits []int, spent float64) {
	last := looks[len(looks)-1]
	w := newWalk(0.5, last)
	for _, n := range looks {
		w.to(n)
		budget := alpha * float64(n) / float64(last)
		u, sum := n+1, 0.0
		for u > 0 && spent+sum+w.at[u-1] <= budget {
			u--
			sum += w.at[u]
		}
		spent += sum
		w.cut(u, n+1)
		if u > n {
			u = -1
		}
		limits = append(limits, u)
	}
	return limits, spent
}

// walk is the distribution of the count of successes over the paths still open.
type walk struct {
	p  float64
	n  int
	at []float64 // at[s]: s successes in n rounds
}

func newWalk(p float64, last int) *walk {
	w := &walk{p: p, at: make([]float64, last+2)}
	w.at[0] = 1
	return w
}

// to takes the walk to n rounds.
func (w *walk) to(n int) {
	for ; w.n < n; w.n++ {
		for s := w.n + 1; s > 0; s-- {
			w.at[s] = w.at[s]*(1-w.p) + w.at[s-1]*w.p
		}
		w.at[0] *= 1 - w.p
	}
}

// cut ends the paths with from ≤ count < to and returns their probability.
func (w *walk) cut(from, to int) (sum float64) {
	for s := max(from, 0); s < to; s++ {
		sum += w.at[s]
		w.at[s] = 0
	}
	return sum
}

// Interval returns the repeated confidence interval of the median of d at the
// look with this index, from 0: the one that stays valid at every look and for any
// reason to stop. With u = Fail[look] and n = Looks[look] its ends are the order
// statistics n−u+1 and u of the first n values; both are infinite if u is −1, if fewer than n
// values are there, or if there is no such look. Its confidence, 1 − 2·SpentFail,
// is that of all looks together. NaN in the values gives NaN.
func (l Limits) Interval(look int, d []float64) Interval {
	if hasNaN(d) {
		return noInterval()
	}
	i := Interval{math.Inf(-1), math.Inf(1), 1 - 2*l.SpentFail}
	if look < 0 || look >= len(l.Looks) || l.Fail[look] < 0 || len(d) < l.Looks[look] {
		return i
	}
	n, u := l.Looks[look], l.Fail[look]
	sorted := slices.Sorted(slices.Values(d[:n]))
	i.Low, i.High = sorted[n-u], sorted[u-1]
	return i
}

// Operating returns the operating characteristics of the limits when each round
// is beyond the margin with probability p: the probabilities to fail and to clear, and
// the mean number of rounds. What is left to 1 ends undecided after the last look.
// All are NaN if p is not a probability.
func (l Limits) Operating(p float64) (fail, clear, rounds float64) {
	if !probability(p) || len(l.Looks) == 0 {
		return math.NaN(), math.NaN(), math.NaN()
	}
	last := l.Looks[len(l.Looks)-1]
	w := newWalk(p, last)
	open, before := 1.0, 0
	for i, n := range l.Looks {
		w.to(n)
		rounds += open * float64(n-before)
		before = n
		if u := l.Fail[i]; u >= 0 {
			stopped := w.cut(u, n+1)
			fail += stopped
			open -= stopped
		}
		stopped := w.cut(0, l.Clear[i]+1)
		clear += stopped
		open -= stopped
	}
	return fail, clear, rounds
}

// MDE returns the minimum detectable effect: the smallest true slowdown, as ratio − 1,
// that fails the margin theta with the given power, if the log ratios are
// normal with standard deviation sigma and a round is beyond the margin if its
// log ratio is above ln(1+theta). It is NaN unless theta and sigma are finite and at
// least 0, and power is inside 0 … 1.
func (l Limits) MDE(theta, sigma, power float64) float64 {
	if !(theta >= 0 && sigma >= 0 && level(power)) || math.IsInf(theta+sigma, 0) || len(l.Looks) == 0 {
		return math.NaN()
	}
	// The power rises with p: more rounds beyond the margin never undo a crossing.
	lo, hi := 0.0, 1.0
	for range 60 {
		mid := (lo + hi) / 2
		if fail, _, _ := l.Operating(mid); fail < power {
			lo = mid
		} else {
			hi = mid
		}
	}
	if sigma == 0 {
		return theta
	}
	return math.Expm1(math.Log1p(theta) + sigma*distuv.UnitNormal.Quantile(hi))
}
