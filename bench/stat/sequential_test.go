package stat

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	"gonum.org/v1/gonum/stat/distuv"
)

var designLooks = []int{10, 15, 20, 30, 40, 60}

func design(t *testing.T, alpha float64) Limits {
	t.Helper()
	l, err := Sequential(designLooks, alpha, 0.05)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestSequentialDesign holds the limits that the design publishes.
func TestSequentialDesign(t *testing.T) {
	for _, c := range []struct {
		alpha float64
		fail  []int
		spent float64
	}{
		{0.0025, []int{-1, 14, 18, 24, 31, 42}, 0.00245},
		{0.001, []int{-1, 15, 18, 25, 31, 44}, 0.00073},
	} {
		l := design(t, c.alpha)
		if !slices.Equal(l.Fail, c.fail) || math.Abs(l.SpentFail-c.spent) > 0.000005 {
			t.Errorf("alpha %v: got fail %v spent %v, want %v spent %v", c.alpha, l.Fail, l.SpentFail, c.fail, c.spent)
		}
		if want := []int{0, 2, 4, 9, 13, 22}; !slices.Equal(l.Clear, want) || math.Abs(l.SpentClear-0.0470) > 0.00005 {
			t.Errorf("alpha %v: got clear %v spent %v, want %v spent 0.0470", c.alpha, l.Clear, l.SpentClear, want)
		}
		if !slices.Equal(l.Looks, designLooks) {
			t.Errorf("alpha %v: got looks %v, want %v", c.alpha, l.Looks, designLooks)
		}
	}
}

// paths counts, over all 2ⁿ sequences of rounds, those that cross first at each look.
func paths(looks []int, crossed func(look, count int) bool) (first []int) {
	first = make([]int, len(looks))
	last := looks[len(looks)-1]
	for path := uint(0); path < 1<<last; path++ {
		for i, n := range looks {
			if crossed(i, bits.OnesCount(path&(1<<n-1))) {
				first[i]++
				break
			}
		}
	}
	return first
}

// TestSequentialPaths compares the limits with an enumeration of every path: what they
// spend keeps the budget at every look, and one less would not.
func TestSequentialPaths(t *testing.T) {
	for _, looks := range [][]int{{1}, {5}, {4, 8, 12}, {3, 4, 5, 6, 7}, {2, 9, 14}, {10, 15}} {
		for _, alpha := range []float64{0.49, 0.25, 0.1, 0.05, 1.0 / 64, 0.003} {
			last := looks[len(looks)-1]
			all := math.Ldexp(1, last)
			l, err := Sequential(looks, alpha, 0.3)
			if math.Ldexp(1, -last) > alpha {
				if err == nil {
					t.Errorf("%v alpha %v: got no error, want one", looks, alpha)
				}
				continue
			}
			if err != nil {
				t.Errorf("%v alpha %v: %v", looks, alpha, err)
				continue
			}
			limit := slices.Clone(l.Fail)
			for i, n := range looks {
				if limit[i] < 0 {
					limit[i] = n + 1
				}
			}
			spent := 0
			for i, c := range paths(looks, func(i, s int) bool { return s >= limit[i] }) {
				spent += c
				if budget := alpha * float64(looks[i]) / float64(last); float64(spent)/all > budget {
					t.Errorf("%v alpha %v: %d paths to look %d exceed %v", looks, alpha, spent, i, budget)
				}
			}
			if float64(spent)/all != l.SpentFail {
				t.Errorf("%v alpha %v: got spent %v, want %v", looks, alpha, l.SpentFail, float64(spent)/all)
			}
			for i := range looks {
				lower := slices.Clone(limit)
				lower[i]--
				spent := 0
				for _, c := range paths(looks[:i+1], func(k, s int) bool { return s >= lower[k] }) {
					spent += c
				}
				if got, budget := math.Ldexp(float64(spent), -looks[i]), alpha*float64(looks[i])/float64(last); got <= budget {
					t.Errorf("%v alpha %v: limit %d at look %d is too high: one less spends %v of %v", looks, alpha, limit[i], i, got, budget)
				}
			}
			spent = 0
			for _, c := range paths(looks, func(i, s int) bool { return s <= l.Clear[i] }) {
				spent += c
			}
			if float64(spent)/all != l.SpentClear {
				t.Errorf("%v: got spent on clearing %v, want %v", looks, l.SpentClear, float64(spent)/all)
			}
		}
	}
}

// TestOperatingPaths compares with the same enumeration, each path with its probability.
func TestOperatingPaths(t *testing.T) {
	for _, looks := range [][]int{{6}, {4, 8, 12}, {3, 4, 5, 6, 7}} {
		l, err := Sequential(looks, 0.1, 0.2)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []float64{0, 0.1, 0.5, 0.9, 1} {
			var fail, clear, rounds float64
			last := looks[len(looks)-1]
			for path := uint(0); path < 1<<last; path++ {
				ones := bits.OnesCount(path)
				weight := math.Pow(p, float64(ones)) * math.Pow(1-p, float64(last-ones))
				took := last
				for i, n := range looks {
					count := bits.OnesCount(path & (1<<n - 1))
					if l.Fail[i] >= 0 && count >= l.Fail[i] {
						fail += weight
						took = n
						break
					}
					if count <= l.Clear[i] {
						clear += weight
						took = n
						break
					}
				}
				rounds += weight * float64(took)
			}
			f, c, r := l.Operating(p)
			if !near(f, fail, 1e-12) || !near(c, clear, 1e-12) || !near(r, rounds, 1e-12) {
				t.Errorf("%v p %v: got %v %v %v, want %v %v %v", looks, p, f, c, r, fail, clear, rounds)
			}
		}
	}
}

// beyond is the probability that a normal log ratio of a slowdown is beyond the margin.
func beyond(slowdown, theta, sigma float64) float64 {
	return distuv.UnitNormal.CDF((math.Log1p(slowdown) - math.Log1p(theta)) / sigma)
}

// TestOperatingTable holds the published operating characteristics of the design at
// alpha 0.0025, and draws each of them again.
func TestOperatingTable(t *testing.T) {
	l := design(t, 0.0025)
	none := math.NaN() // not published
	for _, c := range []struct {
		theta, sigma, slowdown float64
		fail, clear, rounds    float64
	}{
		{0.05, 0.02, 0, none, 1, 10},
		{0.05, 0.02, 0.08, 1, none, 19},
		{0.05, 0.02, 0.10, 1, none, 15},
		{0.05, 0.02, 0.15, 1, none, 15},
		{0.05, 0.03, 0, none, 1, 12},
		{0.05, 0.03, 0.08, 0.995, none, 30},
		{0.05, 0.03, 0.10, 1, none, 17},
		{0.05, 0.03, 0.15, 1, none, 15},
		{0.05, 0.05, 0, none, 1, 19},
		{0.05, 0.05, 0.08, 0.66, none, 51},
		{0.05, 0.05, 0.10, 0.995, none, 31},
		{0.05, 0.05, 0.15, 1, none, 16},
		{0.05, 0.08, 0, none, 0.968, 31},
		{0.05, 0.08, 0.08, 0.21, none, none},
		{0.05, 0.08, 0.10, 0.70, none, 50},
		{0.05, 0.08, 0.15, 0.9999, none, 24},
		{0.03, 0.03, 0, none, 1, 19},
		{0.03, 0.03, 0.08, 1, none, 17},
		{0.03, 0.03, 0.10, 1, none, 15},
		{0.03, 0.03, 0.15, 1, none, none},
		{0.03, 0.05, 0, none, 0.959, 32},
		{0.03, 0.05, 0.08, 0.996, none, 30},
		{0.03, 0.05, 0.10, 1, none, 20},
		{0.03, 0.05, 0.15, 1, none, none},
		{0.03, 0.08, 0, none, 0.67, 46},
		{0.03, 0.08, 0.08, 0.72, none, 50},
		{0.03, 0.08, 0.10, 0.97, none, 36},
		{0.03, 0.08, 0.15, 1, none, none},
		// The boundary: the worst case of a false failure and of a false clearance.
		{0.05, 0.05, 0.05, 0.0024, 0.047, none},
	} {
		fail, clear, rounds := l.Operating(beyond(c.slowdown, c.theta, c.sigma))
		if c.slowdown == 0 && fail > 0.0001 {
			t.Errorf("%+v: got false alarms %v, want at most 0.0001", c, fail)
		}
		// As published: rounded to half a per cent where it says so, and to whole rounds.
		if math.Abs(fail-c.fail) > 0.005 || math.Abs(clear-c.clear) > 0.002 || math.Abs(rounds-c.rounds) > 0.5 {
			t.Errorf("%+v: got fail %.4f clear %.4f rounds %.1f", c, fail, clear, rounds)
		}

		const draws = 4000
		r := rand.New(rand.NewPCG(5, 1))
		var failed, cleared int
		var took, squares float64
		for range draws {
			count, n := 0, 0
			for i, look := range l.Looks {
				for ; n < look; n++ {
					if d := math.Log1p(c.slowdown) + c.sigma*r.NormFloat64(); d > math.Log1p(c.theta) {
						count++
					}
				}
				if l.Fail[i] >= 0 && count >= l.Fail[i] {
					failed++
					break
				}
				if count <= l.Clear[i] {
					cleared++
					break
				}
			}
			took += float64(n)
			squares += float64(n) * float64(n)
		}
		within(t, "fail", failed, draws, fail)
		within(t, "clear", cleared, draws, clear)
		mean := took / draws
		if room := 4.5*math.Sqrt((squares/draws-mean*mean)/draws) + 0.1; math.Abs(mean-rounds) > room {
			t.Errorf("%+v: got %.2f rounds drawn, want %.2f ± %.2f", c, mean, rounds, room)
		}
	}
}

// TestMDE finds the effect again by a search along the slowdown.
func TestMDE(t *testing.T) {
	l := design(t, 0.0025)
	for _, theta := range []float64{0, 0.02, 0.05} {
		for _, sigma := range []float64{0, 0.01, 0.03, 0.08} {
			for _, power := range []float64{0.5, 0.8, 0.95, 0.999} {
				got := l.MDE(theta, sigma, power)
				if sigma == 0 {
					if got != theta {
						t.Errorf("theta %v without noise: got %v, want theta", theta, got)
					}
					continue
				}
				lo, hi := 0.0, 2.0
				for range 50 {
					mid := (lo + hi) / 2
					if fail, _, _ := l.Operating(beyond(mid, theta, sigma)); fail < power {
						lo = mid
					} else {
						hi = mid
					}
				}
				if !near(got, hi, 1e-9) {
					t.Errorf("theta %v sigma %v power %v: got %v, want %v", theta, sigma, power, got, hi)
				}
			}
		}
	}
	// The targets of the design: +10 % at margin 5 %, +5 % at margin 2 %, each at σ 3 %.
	if got := l.MDE(0.05, 0.03, 0.95); got > 0.10 {
		t.Errorf("margin 5 %%: got %v, want at most 0.10", got)
	}
	if got := l.MDE(0.02, 0.03, 0.95); got > 0.05 {
		t.Errorf("margin 2 %%: got %v, want at most 0.05", got)
	}
}

// TestRepeatedInterval watches the interval at every look: over all looks together it
// misses the true median with at most the probability spent, whatever the shape.
func TestRepeatedInterval(t *testing.T) {
	// Generous limits, so that misses are frequent enough to be counted.
	l, err := Sequential(designLooks, 0.05, 0.05)
	if err != nil {
		t.Fatal(err)
	}
	const draws = 4000
	for _, s := range shapes {
		paired := func(r *rand.Rand) float64 { return math.Log(s.draw(r)) - math.Log(s.draw(r)) }
		for _, c := range []struct {
			name   string
			draw   func(*rand.Rand) float64
			median float64
		}{
			{"values", s.draw, s.quantile(0.5)}, // skewed
			{"log ratios of pairs", paired, 0},  // symmetric
		} {
			r := rand.New(rand.NewPCG(6, 1))
			below, above := 0, 0
			for range draws {
				var d []float64
				low, high := false, false
				for i, n := range l.Looks {
					for len(d) < n {
						d = append(d, c.draw(r))
					}
					got := l.Interval(i, d)
					low = low || got.High < c.median
					high = high || got.Low > c.median
				}
				if low {
					below++
				}
				if high {
					above++
				}
			}
			// Without ties each side is missed exactly so often.
			within(t, s.name+", "+c.name+": below", below, draws, l.SpentFail)
			within(t, s.name+", "+c.name+": above", above, draws, l.SpentFail)
		}
	}
}

func TestRepeatedIntervalEnds(t *testing.T) {
	l := design(t, 0.0025)
	d := make([]float64, 60)
	for i := range d {
		d[i] = float64((i*7)%60 + 1) // 1 … 60, shuffled
	}
	d = append(slices.Sorted(slices.Values(d[:15])), d[15:]...)
	confidence := 1 - 2*l.SpentFail
	open := Interval{math.Inf(-1), inf, confidence}
	if got, want := l.Interval(1, d), (Interval{d[1], d[13], confidence}); got != want {
		t.Errorf("look of 15: got %v, want the values 2 and 14, %v", got, want)
	}
	if got, want := l.Interval(5, d), (Interval{19, 42, confidence}); got != want {
		t.Errorf("look of 60: got %v, want %v", got, want)
	}
	for name, got := range map[string]Interval{
		"a look that cannot fail": l.Interval(0, d),
		"no such look":            l.Interval(6, d),
		"before any look":         l.Interval(-1, d),
		"too few values":          l.Interval(1, d[:14]),
		"none":                    l.Interval(1, nil),
	} {
		if got != open {
			t.Errorf("%s: got %v, want open ends", name, got)
		}
	}
	d[20] = nan
	if got := l.Interval(5, d); !isNaN(got) {
		t.Errorf("NaN: got %v, want NaN", got)
	}
}

func TestSequentialErrors(t *testing.T) {
	long := MaxRounds + 1
	for _, c := range []struct {
		looks        []int
		alpha, clear float64
		want         string
	}{
		{nil, 0.05, 0.05, "looks: none given"},
		{[]int{0, 10}, 0.05, 0.05, "looks: 0 at place 1"},
		{[]int{10, 10}, 0.05, 0.05, "looks: 10 at place 2"},
		{[]int{20, 10}, 0.05, 0.05, "looks: 10 at place 2"},
		{[]int{long}, 0.05, 0.05, "must ascend from 1 to 1000"},
		{[]int{10}, 0, 0.05, "alpha: 0"},
		{[]int{10}, 0.5, 0.05, "alpha: 0.5"},
		{[]int{10}, nan, 0.05, "alpha: NaN"},
		{[]int{10}, 0.05, -1, "clear: -1"},
		{[]int{10}, 0.05, inf, "clear: +Inf"},
		{[]int{5, 8}, 0.0025, 0.05, "plan a last look of 9 rounds or more"},
		{[]int{4}, 1.0 / 32, 0.05, "plan a last look of 5 rounds or more"},
	} {
		if _, err := Sequential(c.looks, c.alpha, c.clear); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v %v %v: got %v, want %q", c.looks, c.alpha, c.clear, err, c.want)
		}
	}
	for _, remedy := range []struct {
		n     int
		alpha float64
	}{{9, 0.0025}, {5, 1.0 / 32}, {MaxRounds, 0.0025}} {
		if _, err := Sequential([]int{remedy.n}, remedy.alpha, 0.05); err != nil {
			t.Errorf("%d rounds at %v: %v", remedy.n, remedy.alpha, err)
		}
	}
}

func TestLimitsBadInput(t *testing.T) {
	l := design(t, 0.0025)
	for _, p := range []float64{nan, inf, -0.1, 1.1} {
		if f, c, r := l.Operating(p); !math.IsNaN(f) || !math.IsNaN(c) || !math.IsNaN(r) {
			t.Errorf("operating %v: got %v %v %v, want NaN", p, f, c, r)
		}
	}
	for _, c := range [][3]float64{
		{nan, 1, 0.9}, {-1, 1, 0.9}, {inf, 1, 0.9},
		{0.05, nan, 0.9}, {0.05, -1, 0.9}, {0.05, inf, 0.9},
		{0.05, 1, nan}, {0.05, 1, 0}, {0.05, 1, 1},
	} {
		if got := l.MDE(c[0], c[1], c[2]); !math.IsNaN(got) {
			t.Errorf("MDE %v: got %v, want NaN", c, got)
		}
	}
	var zero Limits
	if f, _, _ := zero.Operating(0.5); !math.IsNaN(f) || !math.IsNaN(zero.MDE(0.05, 0.03, 0.95)) {
		t.Error("limits of no looks: got numbers, want NaN")
	}
	if got := zero.Interval(0, []float64{1}); !math.IsInf(got.Low, -1) || !math.IsInf(got.High, 1) {
		t.Errorf("limits of no looks: got %v, want open ends", got)
	}
}

// TestSequentialMirrored: with equal levels, clearing is failing with the sides of the
// coin swapped.
func TestSequentialMirrored(t *testing.T) {
	check(t, prop.ForAll(func(steps []int, alpha float64) bool {
		looks := ascending(steps)
		l, err := Sequential(looks, alpha, alpha)
		if err != nil {
			return math.Ldexp(1, -looks[len(looks)-1]) > alpha
		}
		for i, n := range looks {
			if (l.Fail[i] < 0) != (l.Clear[i] < 0) || l.Fail[i] >= 0 && l.Clear[i] != n-l.Fail[i] {
				return false
			}
		}
		f, c, r := l.Operating(0.3)
		mf, mc, mr := l.Operating(0.7)
		return l.SpentFail == l.SpentClear && near(f, mc, 1e-12) && near(c, mf, 1e-12) && near(r, mr, 1e-12)
	}, gen.SliceOfN(4, gen.IntRange(1, 12)), gen.Float64Range(0.0001, 0.49)))
}

// TestSequentialMonotone: limits ascend with the looks, stay on their side of the
// middle, and keep what was allowed; a higher p fails more and clears less.
func TestSequentialMonotone(t *testing.T) {
	check(t, prop.ForAll(func(steps []int, alpha, clear, p, q float64) bool {
		looks := ascending(steps)
		l, err := Sequential(looks, alpha, clear)
		if err != nil {
			return math.Ldexp(1, -looks[len(looks)-1]) > alpha
		}
		before := 0
		for i, n := range looks {
			if l.Clear[i] >= 0 && 2*l.Clear[i] >= n || l.Fail[i] >= 0 && (2*l.Fail[i] <= n || l.Fail[i] < before || l.Fail[i] > n) {
				return false
			}
			before = max(before, l.Fail[i])
		}
		p, q = min(p, q), max(p, q)
		pf, pc, pr := l.Operating(p)
		qf, qc, _ := l.Operating(q)
		return l.SpentFail <= alpha && l.SpentClear <= clear && pf <= qf+1e-12 && pc >= qc-1e-12 &&
			pf+pc <= 1+1e-12 && pr <= float64(looks[len(looks)-1])+1e-9 && pr >= float64(looks[0])-1e-9
	}, gen.SliceOfN(5, gen.IntRange(1, 12)), gen.Float64Range(0.0001, 0.49), gen.Float64Range(0.0001, 0.49), gen.Float64Range(0, 1), gen.Float64Range(0, 1)))
}

// TestRepeatedIntervalMirrored: swapping base and head negates the log ratios and
// mirrors the interval; a shift moves it.
func TestRepeatedIntervalMirrored(t *testing.T) {
	l := design(t, 0.0025)
	check(t, prop.ForAll(func(d []float64, look int) bool {
		got, mirrored := l.Interval(look, d), l.Interval(look, negated(d))
		shifted := l.Interval(look, each(d, func(v float64) float64 { return v + 8 }))
		return got.Low == -mirrored.High && got.High == -mirrored.Low && got.Low <= got.High &&
			got.Low+8 == shifted.Low && got.High+8 == shifted.High
	}, values(), gen.IntRange(-1, 6)))
}

func ascending(steps []int) []int {
	var looks []int
	n := 0
	for _, s := range steps {
		n += s
		looks = append(looks, n)
	}
	return looks
}
