package fuzz_test

import (
	"encoding/json"
	"errors"
	"hash/crc32"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"testing"

	"github.com/sandbed/sandbed/bench/stat"
	"github.com/sandbed/sandbed/fuzz"
	"github.com/sandbed/sandbed/fuzz/gen"
	"github.com/sandbed/sandbed/fuzz/oracle"
)

// FuzzStats calls the statistics of the gate with anything and compares what they
// say with an enumeration: every path of a walk, every arrangement of two samples, every
// segmentation, every set of hypotheses. A document names a statistic; the words
// after it are numbers, and / parts two samples.
func FuzzStats(f *testing.F) {
	fuzz.Run(f, fuzz.Target{
		Seeds: fuzz.Documents(gen.Version,
			// The tables of the tests of bench/stat.
			"limits 0.05 0.05 0.5 4 8 12",
			"limits 0.0025 0.05 0.9 9 10 12",
			"limits 0.49 0.3 0.1 3 4 5 6 7",
			"limits 0.001 0.05 0.5 5 8",
			"limits NaN 0.05 0.5 5 5 3",
			"quantile 0.5 0.95 1 2 3 4 5 6 7 8 9 10",
			"quantile 0.5 0.9375 5 4 3 2 1",
			"quantile 0.99 0.95 1 1 2 -Inf +Inf",
			"quantile 0.5 0.95 NaN",
			"repeated 1 0.5 -0.25 0.125 1 1 2 3 5 8",
			"repeated 0 NaN 1 2 3 4 5",
			"binomial 0.95 0 40",
			"binomial 0.95 3 10",
			"binomial 0.999 60 60",
			"binomial 1 -1 0",
			"holm 0.01 0.04 0.03 0.005",
			"holm 0 1 NaN 1.5 0.5",
			"ranks 1 2 3 / 4 5 6 7",
			"ranks 2 3 3 / 2 1 2 1 3",
			"ranks 1 / 1 2 1 1 1",
			"ranks 1 1 1 2 / 1 2 2 2 3",
			"ranks 5 5 / 5 5 5 1 9",
			"ranks NaN / -Inf +Inf",
			"potts 3 0 0 1 0 5 6 5 5 0 1",
			"potts 2 0 4 1 3 0 9 7 9 8 3",
			"potts 0 1 1 1 1 1 2 2 2 2 2",
			"potts 1 1e308 -1e308 1e308",
			"change 0 0.01 0 0.01 0 0.01 0 0.01 0 0.01 0.1 0.11 0.1 0.11 0.1 0.11 0.1 0.11 0.1 0.11",
			"change 1 1 1 1 1 1 1 1 1 1 1 1",
			"change 1 2 1 2 1 2 1 2 1 2 11 12 11 12 11 12 11 12 11 12 31 32 31 32 31 32 31 32 31 32 30",
			"change 1 2 1 2 1 2 1 2 1 2 31 32 31 32 31 32 31 32 31 32 41 42 41 42 41 42 41 42 41 42 40",
			"change NaN",
			"describe 9 1 4 2 7",
			"describe 1 2 +Inf",
			"describe 1e308 1e308 -1e308",
			"bootstrap 1 1.3 2 5 / 1.1 1.9 2.6 7",
			"bootstrap 0 1 / 2",
		),
		Check:   checkStats,
		Oracles: []oracle.ID{oracle.Value, oracle.Same, oracle.Sound},
	})
}

type statistic struct {
	name  string
	check func(log *oracle.Log, x, y []float64)
}

var statistics = []statistic{
	{"limits", checkLimits}, {"quantile", checkQuantile}, {"repeated", checkRepeated}, {"binomial", checkBinomial},
	{"holm", checkHolm}, {"ranks", checkRanks}, {"potts", checkPotts}, {"change", checkChange},
	{"describe", checkDescribe}, {"bootstrap", checkBootstrap},
}

// oddities are what words that are no number stand for, one in five times.
var oddities = []float64{0, 1, -1, 0.5, 0.05, 0.95, 2, 1e-300, 1e300, math.Inf(1), math.Inf(-1), math.NaN()}

func checkStats(_ *testing.T, data []byte, log *oracle.Log) error {
	words, err := gen.Split(data)
	if err != nil {
		return err
	}
	if len(words) == 0 {
		return errors.New("stats: no statistic is named")
	}
	at := slices.IndexFunc(statistics, func(s statistic) bool { return s.name == words[0] })
	if at < 0 {
		at = int(crc32.ChecksumIEEE([]byte(words[0])) % uint32(len(statistics)))
	}
	var samples [2][]float64
	side := 0
	for _, w := range words[1:] {
		if w == "/" {
			side = 1
			continue
		}
		v, err := strconv.ParseFloat(w, 64)
		if err != nil && !errors.Is(err, strconv.ErrRange) {
			// Small quarters, so that ties are many, and now and then an oddity.
			h := int(crc32.ChecksumIEEE([]byte(w)))
			v = float64(h%41-20) / 4
			if h%5 == 0 {
				v = oddities[h/5%len(oddities)]
			}
		}
		samples[side] = append(samples[side], v)
	}
	before := [2][]float64{slices.Clone(samples[0]), slices.Clone(samples[1])}
	statistics[at].check(log, samples[0], samples[1])
	for i := range before {
		log.Check(slices.EqualFunc(samples[i], before[i], same), oracle.Same, "%s: the input was changed from %v to %v", words[0], before[i], samples[i])
	}
	return nil
}

func same(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) }

func near(a, b, tolerance float64) bool {
	return same(a, b) || math.Abs(a-b) <= tolerance*max(1, math.Abs(a), math.Abs(b))
}

// take cuts the next number off, 0 if none is left.
func take(x []float64) (v float64, rest []float64) {
	if len(x) == 0 {
		return 0, nil
	}
	return x[0], x[1:]
}

func firstOf(x []float64, n int) []float64 { return x[:min(len(x), n)] }

func anyOf(x []float64, is func(float64) bool) bool { return slices.ContainsFunc(x, is) }

func unbounded(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) }

// tame values leave an oracle in floating point its digits.
func tame(x []float64) bool {
	return !anyOf(x, func(v float64) bool { return unbounded(v) || math.Abs(v) > 1e6 })
}

func negated(x []float64) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = -v
	}
	return out
}

// checkInterval holds what is true of every interval: its ends are in order, and it survives JSON.
func checkInterval(log *oracle.Log, what string, i stat.Interval) {
	none := math.IsNaN(i.Low) && math.IsNaN(i.High) && math.IsNaN(i.Confidence)
	log.Check(none || i.Low <= i.High && i.Confidence >= 0 && i.Confidence <= 1, oracle.Sound, "%s: %v is no interval", what, i)
	text, err := json.Marshal(i)
	var back stat.Interval
	if err == nil {
		err = json.Unmarshal(text, &back)
	}
	// An end at the wrong infinity comes back as open, which is wider.
	kept := err == nil && same(back.Confidence, i.Confidence) && (same(back.Low, i.Low) || math.IsInf(i.Low, 1)) && (same(back.High, i.High) || math.IsInf(i.High, -1))
	log.Check(kept, oracle.Sound, "%s: %v became %s and then %v, %v", what, i, text, back, err)
}

// checkLimits: x is alpha, clear, p, looks…
func checkLimits(log *oracle.Log, x, _ []float64) {
	alpha, x := take(x)
	clear, x := take(x)
	p, x := take(x)
	var looks []int
	ascending := true
	for _, v := range firstOf(x, 6) {
		n := 0
		if v >= 0 && v <= 12 {
			n = int(v)
		}
		ascending = ascending && n >= 1 && (len(looks) == 0 || n > looks[len(looks)-1])
		looks = append(looks, n)
	}
	inside := func(level float64) bool { return level > 0 && level < 0.5 }
	can := len(looks) > 0 && ascending && inside(alpha) && inside(clear) && math.Ldexp(1, -looks[len(looks)-1]) <= alpha
	l, err := stat.Sequential(looks, alpha, clear)
	log.Check((err == nil) == can, oracle.Value, "limits of %v, %v, %v: got error %v", looks, alpha, clear, err)
	if err != nil || !can {
		return
	}
	last := looks[len(looks)-1]
	var failed, cleared, fail, clears, rounds float64
	spent := make([]float64, len(looks)) // on failures, by look
	for path := range uint(1) << last {
		ones := bits.OnesCount(path)
		weight := math.Pow(p, float64(ones)) * math.Pow(1-p, float64(last-ones))
		count := func(i int) int { return bits.OnesCount(path & (1<<looks[i] - 1)) }
		up, down := -1, -1
		for i := len(looks) - 1; i >= 0; i-- {
			if l.Fail[i] >= 0 && count(i) >= l.Fail[i] {
				up = i
			}
			if count(i) <= l.Clear[i] {
				down = i
			}
		}
		if up >= 0 {
			failed++
			spent[up]++
		}
		if down >= 0 {
			cleared++
		}
		switch {
		case up >= 0 && (down < 0 || up < down):
			fail += weight
			rounds += weight * float64(looks[up])
		case down >= 0:
			clears += weight
			rounds += weight * float64(looks[down])
		default:
			rounds += weight * float64(last)
		}
	}
	all := math.Ldexp(1, last)
	log.Check(l.SpentFail == failed/all && l.SpentClear == cleared/all, oracle.Value, "limits of %v, %v, %v: got %+v, spent are %v and %v", looks, alpha, clear, l, failed/all, cleared/all)
	sum := 0.0
	for i, n := range looks {
		sum += spent[i] / all
		log.Check(sum <= alpha*float64(n)/float64(last), oracle.Value, "limits of %v at %v: got %v, which spend %v by look %d", looks, alpha, l.Fail, sum, i)
	}
	f, c, r := l.Operating(p)
	if p >= 0 && p <= 1 {
		log.Check(near(f, fail, 1e-9) && near(c, clears, 1e-9) && near(r, rounds, 1e-9), oracle.Value, "operating %+v at %v: got %v %v %v, want %v %v %v", l, p, f, c, r, fail, clears, rounds)
	} else {
		log.Check(math.IsNaN(f+c+r), oracle.Sound, "operating at %v: got %v %v %v, want NaN", p, f, c, r)
	}
}

// pmf is the binomial distribution of n throws, by recursion over them.
func pmf(n int, p float64) []float64 {
	at := make([]float64, n+1)
	at[0] = 1
	for k := 1; k <= n; k++ {
		for s := k; s > 0; s-- {
			at[s] = at[s]*(1-p) + at[s-1]*p
		}
		at[0] *= 1 - p
	}
	return at
}

func total(x []float64) (sum float64) {
	for _, v := range x {
		sum += v
	}
	return sum
}

// checkQuantile: x is q, confidence, values…
func checkQuantile(log *oracle.Log, x, _ []float64) {
	q, x := take(x)
	confidence, x := take(x)
	x = firstOf(x, 60)
	got := stat.QuantileInterval(x, q, confidence)
	checkInterval(log, "quantile", got)
	inside := q > 0 && q < 1 && confidence > 0 && confidence < 1
	if len(x) == 0 || anyOf(x, math.IsNaN) || !inside {
		log.Check(math.IsNaN(got.Low), oracle.Value, "quantile %v at %v of %v: got %v, want NaN", q, confidence, x, got)
		return
	}
	if q < 1e-3 || q > 1-1e-3 || confidence < 1e-3 || confidence > 1-1e-6 {
		return // the sums below would need more digits
	}
	n, sorted, at, tail := len(x), slices.Sorted(slices.Values(x)), pmf(len(x), q), (1-confidence)/2
	const slack = 1e-8 // a tail this near to its half may fall either way
	lo, hi, loose := 0, n+1, false
	for lo < n && total(at[:lo+1]) <= tail {
		lo++
	}
	for hi > 1 && total(at[hi-1:]) <= tail {
		hi--
	}
	for k := range at {
		loose = loose || math.Abs(total(at[:k])-tail) < slack || math.Abs(total(at[k:])-tail) < slack
	}
	if loose {
		return
	}
	want := stat.Interval{Low: math.Inf(-1), High: math.Inf(1), Confidence: total(at[lo:min(hi, n+1)])}
	if lo > 0 {
		want.Low = sorted[lo-1]
	}
	if hi <= n {
		want.High = sorted[hi-1]
	}
	log.Check(got.Low == want.Low && got.High == want.High && near(got.Confidence, want.Confidence, 1e-9), oracle.Value, "quantile %v at %v of %v: got %v, want %v", q, confidence, x, got, want)
}

// checkRepeated: x is a look and log ratios…
func checkRepeated(log *oracle.Log, x, _ []float64) {
	l, err := stat.Sequential([]int{3, 6, 9}, 0.1, 0.1)
	if err != nil {
		log.Check(false, oracle.Value, "limits: %v", err)
		return
	}
	look, d := take(x)
	if !(math.Abs(look) < 10) {
		look = -1
	}
	got, mirrored := l.Interval(int(look), d), l.Interval(int(look), negated(d))
	checkInterval(log, "repeated", got)
	log.Check(same(got.Low, -mirrored.High) && same(got.High, -mirrored.Low), oracle.Same, "repeated interval of %v: got %v, mirrored %v", d, got, mirrored)
	if anyOf(d, math.IsNaN) {
		log.Check(math.IsNaN(got.Low), oracle.Value, "repeated interval of %v: got %v, want NaN", d, got)
		return
	}
	// An end excludes a median just when that many values are on the other side.
	for _, m := range d {
		if i := int(look); i >= 0 && i < 3 && len(d) >= l.Looks[i] {
			above := 0
			for _, v := range d[:l.Looks[i]] {
				if v > m {
					above++
				}
			}
			log.Check((got.Low > m) == (l.Fail[i] >= 0 && above >= l.Fail[i]), oracle.Value, "repeated interval of %v: got %v with %d above %v", d, got, above, m)
		}
	}
}

// checkBinomial: x is confidence, k, n.
func checkBinomial(log *oracle.Log, x, _ []float64) {
	confidence, x := take(x)
	kf, x := take(x)
	nf, _ := take(x)
	whole := func(v float64) int {
		if math.Abs(v) <= 60 {
			return int(v)
		}
		return -1
	}
	k, n := whole(kf), whole(nf)
	got, bound, sign := stat.ClopperPearson(k, n, confidence), stat.UpperBound(k, n, confidence), stat.SignTest(k, n)
	checkInterval(log, "binomial", got)
	valid := n >= 0 && k >= 0 && k <= n
	if valid {
		log.Check(near(sign, total(pmf(n, 0.5)[k:]), 1e-12), oracle.Value, "sign test %d of %d: got %v", k, n, sign)
	}
	log.Check(math.IsNaN(sign) != valid, oracle.Value, "sign test %d of %d: got %v", k, n, sign)
	if valid = valid && n >= 1 && confidence > 0 && confidence < 1; !valid {
		log.Check(math.IsNaN(got.Low) && math.IsNaN(bound), oracle.Value, "binomial %d of %d at %v: got %v, %v, want NaN", k, n, confidence, got, bound)
		return
	}
	if confidence < 1e-3 || confidence > 1-1e-6 {
		return
	}
	// The end put back: what was seen, or more, must be as likely as the tail.
	tail := (1 - confidence) / 2
	if k > 0 {
		p := total(pmf(n, got.Low)[k:])
		log.Check(near(p, tail, 1e-9), oracle.Value, "binomial %d of %d at %v: low %v has tail %v", k, n, confidence, got.Low, p)
	}
	if k < n {
		p, q := total(pmf(n, got.High)[:k+1]), total(pmf(n, bound)[:k+1])
		log.Check(near(p, tail, 1e-9) && near(q, 2*tail, 1e-9), oracle.Value, "binomial %d of %d at %v: %v and %v have tails %v and %v", k, n, confidence, got.High, bound, p, q)
	}
}

// checkHolm compares with the closed testing procedure over every set of hypotheses.
func checkHolm(log *oracle.Log, x, _ []float64) {
	p := firstOf(x, 10)
	holm, bonferroni := stat.Holm(p), stat.Bonferroni(p)
	valid := !anyOf(p, func(v float64) bool { return !(v >= 0 && v <= 1) })
	want := make([]float64, len(p))
	for set := uint(1); set < 1<<len(p); set++ {
		least := 1.0
		for i, v := range p {
			if set>>i&1 == 1 {
				least = min(least, v)
			}
		}
		for i := range p {
			if set>>i&1 == 1 {
				want[i] = max(want[i], min(1, least*float64(bits.OnesCount(set))))
			}
		}
	}
	for i, v := range p {
		bad := !(v >= 0 && v <= 1)
		log.Check(math.IsNaN(holm[i]) == bad && math.IsNaN(bonferroni[i]) == bad, oracle.Value, "holm of %v: got %v and %v", p, holm, bonferroni)
		if valid {
			log.Check(near(holm[i], want[i], 1e-15) && bonferroni[i] == min(1, v*float64(len(p))), oracle.Value, "holm of %v: got %v and %v, want %v", p, holm, bonferroni, want)
		}
	}
}

// checkRanks deals the values out in every way.
func checkRanks(log *oracle.Log, x, y []float64) {
	got, swapped := stat.MannWhitney(x, y), stat.MannWhitney(y, x)
	log.Check(near(got, swapped, 1e-9), oracle.Same, "ranks of %v and %v: got %v, swapped %v", x, y, got, swapped)
	if len(x) == 0 || len(y) == 0 || anyOf(x, math.IsNaN) || anyOf(y, math.IsNaN) {
		log.Check(math.IsNaN(got), oracle.Value, "ranks of %v and %v: got %v, want NaN", x, y, got)
		return
	}
	log.Check(got >= 0 && got <= 1, oracle.Sound, "ranks of %v and %v: got %v", x, y, got)
	z := slices.Concat(x, y)
	if len(z) > 11 {
		return
	}
	u := func(set uint) (twice int) {
		for i := range z {
			for j := range z {
				if set>>i&1 == 1 && set>>j&1 == 0 && z[i] >= z[j] {
					twice++
					if z[i] > z[j] {
						twice++
					}
				}
			}
		}
		return twice
	}
	var less, more, all float64
	seen := u(1<<len(x) - 1)
	for set := uint(0); set < 1<<len(z); set++ {
		if bits.OnesCount(set) == len(x) {
			all++
			v := u(set)
			if v <= seen {
				less++
			}
			if v >= seen {
				more++
			}
		}
	}
	want := min(1, 2*min(less, more)/all)
	log.Check(near(got, want, 1e-12), oracle.Value, "ranks of %v and %v: got %v, want %v", x, y, got, want)
}

func checkPoints(log *oracle.Log, what string, n, apart int, points []int) {
	last := 0
	ok := true
	for i, p := range append(slices.Clone(points), n) {
		ok = ok && (i == len(points) && i == 0 || p >= last+apart && p > last && p <= n)
		last = p
	}
	log.Check(ok, oracle.Sound, "%s: %v are no change points of %d values, %d apart", what, points, n, apart)
}

func cost(y []float64, points []int, penalty float64) float64 {
	sum, from := penalty*float64(len(points)), 0
	for _, to := range append(slices.Clone(points), len(y)) {
		segment := slices.Sorted(slices.Values(y[from:to]))
		for _, v := range segment {
			sum += math.Abs(v - segment[len(segment)/2])
		}
		from = to
	}
	return sum
}

// checkPotts: x is a penalty and values…, cut in every way.
func checkPotts(log *oracle.Log, x, _ []float64) {
	penalty, y := take(x)
	got := stat.Potts(y, penalty)
	checkPoints(log, "potts", len(y), 1, got)
	if unbounded(penalty) || anyOf(y, unbounded) {
		log.Check(got == nil, oracle.Value, "potts of %v at %v: got %v, want none", y, penalty, got)
		return
	}
	y = firstOf(y, 11)
	if !tame(y) || len(y) == 0 || !(penalty > 0 && penalty < 1e6) {
		return
	}
	got = stat.Potts(y, penalty)
	best := math.Inf(1)
	for set := range uint(1) << (len(y) - 1) {
		var points []int
		for i := 1; i < len(y); i++ {
			if set>>(i-1)&1 == 1 {
				points = append(points, i)
			}
		}
		best = min(best, cost(y, points, penalty))
	}
	log.Check(near(cost(y, got, penalty), best, 1e-12), oracle.Value, "potts of %v at %v: got %v at cost %v, want %v", y, penalty, got, cost(y, got, penalty), best)
}

func checkChange(log *oracle.Log, x, _ []float64) {
	y := firstOf(x, 40)
	bad := anyOf(y, unbounded)
	points := stat.EDivisive(y, 1, 0.05)
	checkPoints(log, "change", len(y), 5, points)
	log.Check(slices.Equal(points, stat.EDivisive(y, 1, 0.05)), oracle.Same, "change of %v: got %v and then another", y, points)
	got, err := stat.ChangePoints(y, 1)
	log.Check((err != nil) == bad && (!bad || got == nil && points == nil), oracle.Value, "change of %v: got %v, %v, %v", y, points, got, err)
	mirrored, _ := stat.ChangePoints(negated(y), 1)
	log.Check(len(mirrored) == len(got), oracle.Same, "change of %v: got %v, mirrored %v", y, got, mirrored)
	var at []int
	for _, c := range got {
		at = append(at, c.At)
		log.Check(math.Abs(c.After-c.Before) >= math.Log(1.03)-1e-12, oracle.Sound, "change of %v: got %+v, below 3 %%", y, c)
	}
	checkPoints(log, "change", len(y), 5, at)
}

func checkDescribe(log *oracle.Log, x, _ []float64) {
	got, err := stat.Describe(x)
	log.Check((err != nil) == (len(x) == 0 || anyOf(x, unbounded)), oracle.Value, "describe %v: got %+v, %v", x, got, err)
	sigma, lag := stat.RobustSigma(x), stat.Lag1(x)
	log.Check(math.IsNaN(sigma) || sigma >= 0, oracle.Sound, "describe %v: got sigma %v", x, sigma)
	log.Check(math.IsNaN(lag) || math.Abs(lag) <= 1+1e-12, oracle.Sound, "describe %v: got lag %v", x, lag)
	if err != nil || len(x) == 0 || !tame(x) {
		return
	}
	sorted := slices.Sorted(slices.Values(x))
	middle := func(s []float64) float64 { return (s[(len(s)-1)/2] + s[len(s)/2]) / 2 }
	deviations := make([]float64, len(x))
	sum, squares := 0.0, 0.0
	for i, v := range x {
		deviations[i] = math.Abs(v - middle(sorted))
		sum += v
	}
	mean := sum / float64(len(x))
	for _, v := range x {
		squares += (v - mean) * (v - mean)
	}
	slices.Sort(deviations)
	want := stat.Summary{N: len(x), Min: sorted[0], Max: sorted[len(sorted)-1], Median: middle(sorted), Q1: sorted[0], Q3: sorted[0], Mean: mean, MAD: middle(deviations)}
	if n := len(x); n > 1 {
		want.Q1, want.Q3, want.StdDev = middle(sorted[:n/2]), middle(sorted[(n+1)/2:]), math.Sqrt(squares/float64(n-1))
	}
	ok := got.N == want.N
	for _, pair := range [][2]float64{{got.Min, want.Min}, {got.Q1, want.Q1}, {got.Median, want.Median}, {got.Q3, want.Q3}, {got.Max, want.Max}, {got.Mean, want.Mean}, {got.MAD, want.MAD}} {
		ok = ok && near(pair[0], pair[1], 1e-9)
	}
	log.Check(ok && near(got.StdDev, want.StdDev, 1e-6) && near(sigma, 1.482602218505602*want.MAD, 1e-9), oracle.Value, "describe %v: got %+v, want %+v", x, got, want)
}

func checkBootstrap(log *oracle.Log, base, head []float64) {
	base, head = firstOf(base, 40), firstOf(head, 40)
	got := stat.BootstrapRatio(base, head, 1, 40)
	checkInterval(log, "bootstrap", got)
	log.Check(got == stat.BootstrapRatio(base, head, 1, 40) || math.IsNaN(got.Low), oracle.Same, "bootstrap of %v and %v: got %v and then another", base, head, got)
	bad := func(x []float64) bool {
		return len(x) == 0 || anyOf(x, func(v float64) bool { return unbounded(v) || v <= 0 })
	}
	if bad(base) || bad(head) {
		log.Check(math.IsNaN(got.Low), oracle.Value, "bootstrap of %v and %v: got %v, want NaN", base, head, got)
		return
	}
	log.Check(got.Low >= slices.Min(head)/slices.Max(base)*(1-1e-12) && got.High <= slices.Max(head)/slices.Min(base)*(1+1e-12), oracle.Value, "bootstrap of %v and %v: got %v, outside of every ratio", base, head, got)
}
