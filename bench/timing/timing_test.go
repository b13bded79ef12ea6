package timing

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// recorder is a testing.TB that notes the verdict instead of acting on it.
type recorder struct {
	testing.TB
	verdict, text string
}

func (r *recorder) Helper()                   {}
func (r *recorder) note(v string, a ...any)   { r.verdict, r.text = v, fmt.Sprint(a...) }
func (r *recorder) Log(a ...any)              { r.note("pass", a...) }
func (r *recorder) Error(a ...any)            { r.note("fail", a...) }
func (r *recorder) Fatal(a ...any)            { r.note("fatal", a...) }
func (r *recorder) Fatalf(f string, a ...any) { r.note("fatal", fmt.Sprintf(f, a...)) }
func (r *recorder) Skip(a ...any)             { r.note("skip", a...) }

// machine is a clock in which work takes what the test says.
type machine struct {
	t      time.Time
	factor func() float64 // how many times slower than nominal, now
	late   func() time.Duration
	alone  func() time.Duration
	speed  float64 // what the calibration kernel shows
	calls  int
}

func (m *machine) work(d time.Duration) func() {
	return func() {
		m.calls++
		f := 1.0
		if m.factor != nil {
			f = m.factor()
		}
		m.t = m.t.Add(time.Duration(float64(d) * f))
	}
}

func (m *machine) clock() clock {
	return clock{
		now:   func() time.Time { return m.t },
		sleep: func(d time.Duration) { m.t = m.t.Add(d) },
		scale: func() float64 { return max(1, m.speed) },
		beside: func(d time.Duration, f func()) (time.Duration, time.Duration) {
			start, calls := m.t, m.calls
			f()
			control := m.late
			if m.calls == calls { // f was the idle wait itself
				control = m.alone
				l := control()
				return l, l
			}
			return max(m.t.Sub(start)-d, 0), control()
		},
	}
}

func constant(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

// The limits of the binomial count against the closed form of the tail.
func TestViolations(t *testing.T) {
	tail := func(n, u int) float64 { // P(X >= u), X ~ Bin(n, 1/2)
		sum := 0.0
		for k := u; k <= n; k++ {
			a, _ := math.Lgamma(float64(n + 1))
			b, _ := math.Lgamma(float64(k + 1))
			c, _ := math.Lgamma(float64(n - k + 1))
			sum += math.Exp(a - b - c - float64(n)*math.Ln2)
		}
		return sum
	}
	for n := minRounds; n <= 400; n++ {
		u := violations(n)
		if u > n {
			t.Fatalf("%d rounds can never fail", n)
		}
		if p := tail(n, u); p > FalseAlarm*(1+1e-9) {
			t.Errorf("%d of %d: a false alarm in %g of checks, want at most %g", u, n, p, FalseAlarm)
		}
		if p := tail(n, u-1); p <= FalseAlarm*(1-1e-9) {
			t.Errorf("%d of %d: %d would do (%g)", u, n, u-1, p)
		}
	}
	// By hand: 2^-14 = 6.1e-5; (1+15)/2^15 = 4.9e-4 and 1/2^15 = 3.1e-5; (1+25+300)/2^25 = 9.7e-6,
	// with C(25,3) = 2300 it is 7.8e-5, with C(25,4) = 12650 4.6e-4.
	for n, want := range map[int]int{14: 14, 15: 15, 25: 22} {
		if got := violations(n); got != want {
			t.Errorf("of %d: got %d, want %d", n, got, want)
		}
	}
	if u := violations(minRounds - 1); u <= minRounds-1 {
		t.Errorf("%d rounds can fail at %d, so minRounds is not the least", minRounds-1, u)
	}
}

// The probability that the stopping rule fails, over every path it can take,
// is that of the plain count.
func TestStoppingEarlyCostsNothing(t *testing.T) {
	for _, n := range []int{14, 15, 21, 25, 40} {
		memo := map[[2]int]float64{}
		var fails func(v verdict) float64
		fails = func(v verdict) float64 {
			if !v.open() {
				if v.failed() {
					return 1
				}
				return 0
			}
			key := [2]int{v.n, v.over}
			if p, ok := memo[key]; ok {
				return p
			}
			bad := v
			bad.n, bad.over = v.n+1, v.over+1
			good := v
			good.n++
			p := (fails(bad) + fails(good)) / 2
			memo[key] = p
			return p
		}
		v, _ := newVerdict(t, "", "", n)
		if p := fails(*v); p > FalseAlarm || p == 0 {
			t.Errorf("%d rounds: a false alarm in %g of checks, want above 0 and at most %g", n, p, FalseAlarm)
		}
	}
}

// Verdicts on a machine whose speed swings up to eightfold from call to call.
func TestGrowthAndPairedUnderLoad(t *testing.T) {
	busy := func(seed uint64) *machine {
		r := rand.New(rand.NewPCG(seed, 1))
		return &machine{t: time.Unix(0, 0), factor: func() float64 { return math.Exp2(3 * r.Float64()) }}
	}
	growth := func(seed uint64, power float64, claim float64) string {
		m, r := busy(seed), &recorder{TB: t}
		Growth{Name: "g", N: 8, Power: claim, Prepare: func(n int) func() {
			return m.work(time.Duration(float64(20*time.Microsecond) * math.Pow(float64(n), power)))
		}}.check(r, m.clock())
		return r.verdict
	}
	paired := func(seed uint64, subject time.Duration, factor float64) string {
		m, r := busy(seed), &recorder{TB: t}
		Paired{Name: "p", Control: m.work(100 * time.Microsecond), Subject: m.work(subject), Factor: factor}.check(r, m.clock())
		return r.verdict
	}
	const seeds = 100
	found := map[string]int{}
	for seed := range uint64(seeds) {
		for _, c := range []struct{ what, got string }{
			{"linear claimed linear", growth(seed, 1, 1)},
			{"constant claimed constant", growth(seed, 0, 0)},
			{"quadratic claimed quadratic", growth(seed, 2, 2)},
			{"equal within 1.5", paired(seed, 100*time.Microsecond, 1.5)},
		} {
			if c.got != "pass" {
				t.Errorf("seed %d, %s: got %s, want pass", seed, c.what, c.got)
			}
		}
		for what, got := range map[string]string{
			"cubic claimed linear":       growth(seed, 3, 1),
			"quadratic claimed constant": growth(seed, 2, 0),
			"five times within 2":        paired(seed, 500*time.Microsecond, 2),
		} {
			if got == "fail" {
				found[what]++
			}
		}
	}
	// A fault little above the bound hides in such noise now and then; it must
	// not do so often.
	if len(found) != 3 {
		t.Errorf("found %v, want three kinds", found)
	}
	for what, n := range found {
		if n < seeds*95/100 {
			t.Errorf("%s was found under %d of %d seeds, want 95 %%", what, n, seeds)
		}
	}
}

func TestDeadlineVerdicts(t *testing.T) {
	const ms = time.Millisecond
	tests := []struct {
		name    string
		takes   time.Duration // due after 10 ms, allowance 2 ms, factor 3
		control time.Duration // lateness of the idle timer beside Run
		alone   time.Duration // and without it
		speed   float64
		want    string
	}{
		{"on time", 11 * ms, 0, 0, 1, "pass"},
		{"early", 5 * ms, 0, 0, 1, "pass"},
		{"at the bound", 12 * ms, 0, 0, 1, "pass"},
		{"late", 13 * ms, 0, 0, 1, "fail"},
		{"late as the timers are", 18 * ms, 2 * ms, 2 * ms, 1, "pass"},
		{"later than that", 19 * ms, 2 * ms, 2 * ms, 1, "fail"},
		{"slow machine", 18 * ms, 0, 0, 4, "pass"},
		{"later than a slow machine explains", 19 * ms, 0, 0, 4, "fail"},
		{"a fast machine is not held to more", 12 * ms, 0, 0, 0.1, "pass"},
		{"at the clamp", 26 * ms, 0, 0, 8, "pass"},
		{"beyond the clamp", 11 * ms, 0, 0, 8.1, "skip"},
		{"timers beyond the clamp", 11 * ms, 17 * ms, 17 * ms, 1, "skip"},
		{"Run is what makes the timers late", 11 * ms, 17 * ms, 1 * ms, 1, "fail"},
	}
	for _, tt := range tests {
		for _, strict := range []string{"0", "1"} {
			t.Run(tt.name+", REQUIRE_ALL="+strict, func(t *testing.T) {
				t.Setenv("REQUIRE_ALL", strict)
				m := &machine{t: time.Unix(0, 0), speed: tt.speed, late: constant(tt.control), alone: constant(tt.alone)}
				r, before := &recorder{TB: t}, Skipped()
				Deadline{Name: "d", Wait: 10 * ms, Run: m.work(tt.takes), Factor: 3, Allowance: 2 * ms}.check(r, m.clock())
				want := tt.want
				if want == "skip" && strict == "1" {
					want = "fatal"
				}
				if r.verdict != want {
					t.Errorf("got %s (%s), want %s", r.verdict, r.text, want)
				}
				if n := Skipped() - before; (n == 1) != (tt.want == "skip") {
					t.Errorf("%d skips were counted", n)
				}
				if tt.want == "skip" && !strings.Contains(r.text, "unfit") {
					t.Errorf("the skip gives no reason: %s", r.text)
				}
			})
		}
	}
}

// A window spoilt once or twice is tried again, and only then given up.
func TestDeadlineRetriesAWindow(t *testing.T) {
	for bad, want := range map[int]string{1: "pass", 2: "pass", 3: "skip"} {
		t.Setenv("REQUIRE_ALL", "0")
		n := 0
		late := func() time.Duration {
			if n++; n <= bad {
				return time.Hour
			}
			return 0
		}
		m := &machine{t: time.Unix(0, 0), late: late, alone: constant(time.Hour)}
		r := &recorder{TB: t}
		Deadline{Name: "d", Wait: 10, Run: m.work(10), Factor: 1, Allowance: 1}.check(r, m.clock())
		if r.verdict != want {
			t.Errorf("%d spoilt windows: got %s (%s), want %s", bad, r.verdict, r.text, want)
		}
	}
}

// A claim that holds clearly is settled in the fewest rounds that can settle it.
func TestStopsEarlyOnSuccess(t *testing.T) {
	m, r := &machine{t: time.Unix(0, 0)}, &recorder{TB: t}
	samples := 0
	Paired{Name: "p", Control: m.work(minSample), Subject: func() { samples++; m.work(minSample)() }, Factor: 2}.check(r, m.clock())
	if want := defaultRounds - violations(defaultRounds) + 1; r.verdict != "pass" || samples != want*tries {
		t.Errorf("got %s after %d samples, want pass after %d", r.verdict, samples, want*tries)
	}
	if !strings.Contains(r.text, "median 1, 1 to 1; 0 of 4 rounds violate it, 22 of 25 would fail") {
		t.Errorf("the report is not whole: %s", r.text)
	}
}

// Work too short for the clock is repeated until it can be timed, and work
// that takes no time at all ends the search.
func TestShortWorkIsRepeated(t *testing.T) {
	m, r := &machine{t: time.Unix(0, 0)}, &recorder{TB: t}
	Paired{Name: "p", Control: m.work(1), Subject: m.work(3), Factor: 2}.check(r, m.clock())
	if r.verdict != "fail" {
		t.Errorf("got %s (%s), want fail", r.verdict, r.text)
	}
	if n := repeats(m.clock(), func() {}); n != maxRepeat {
		t.Errorf("gave up after %d repetitions, want %d", n, maxRepeat)
	}
}

func TestMisuseIsRefused(t *testing.T) {
	f := func() {}
	prep := func(int) func() { return f }
	bad := map[string]func(*recorder){
		"no N":           func(r *recorder) { Growth{Name: "x", Prepare: prep}.Check(r) },
		"N that doubles": func(r *recorder) { Growth{Name: "x", N: math.MaxInt, Prepare: prep}.Check(r) },
		"power":          func(r *recorder) { Growth{Name: "x", N: 1, Power: -1, Prepare: prep}.Check(r) },
		"slack":          func(r *recorder) { Growth{Name: "x", N: 1, Slack: -1, Prepare: prep}.Check(r) },
		"no Prepare":     func(r *recorder) { Growth{Name: "x", N: 1}.Check(r) },
		"no Subject":     func(r *recorder) { Paired{Name: "x", Control: f, Factor: 1}.Check(r) },
		"no Factor":      func(r *recorder) { Paired{Name: "x", Control: f, Subject: f}.Check(r) },
		"NaN":            func(r *recorder) { Paired{Name: "x", Control: f, Subject: f, Factor: math.NaN()}.Check(r) },
		"few rounds":     func(r *recorder) { Paired{Name: "x", Control: f, Subject: f, Factor: 1, Rounds: 13}.Check(r) },
		"many rounds":    func(r *recorder) { Paired{Name: "x", Control: f, Subject: f, Factor: 1, Rounds: 1001}.Check(r) },
		"no Wait":        func(r *recorder) { Deadline{Name: "x", Run: f, Factor: 1, Allowance: 1}.Check(r) },
		"small Factor":   func(r *recorder) { Deadline{Name: "x", Run: f, Wait: 1, Factor: 0.5, Allowance: 1}.Check(r) },
		"no Allowance":   func(r *recorder) { Deadline{Name: "x", Run: f, Wait: 1, Factor: 1}.Check(r) },
		"no Run":         func(r *recorder) { Deadline{Name: "x", Wait: 1, Factor: 1, Allowance: 1}.Check(r) },
	}
	for name, check := range bad {
		r := &recorder{TB: t}
		check(r)
		if r.verdict != "fatal" || !strings.Contains(r.text, " x: ") {
			t.Errorf("%s: got %s (%s), want a fatal error that names the check", name, r.verdict, r.text)
		}
	}
}

// On the real clock: a true claim passes, and a planted fault of each form fails.
func TestRealClock(t *testing.T) {
	var sink uint64
	spin := func(n int) func() {
		return func() {
			x := sink | 1
			for range n {
				x ^= x << 13
				x ^= x >> 7
				x ^= x << 17
			}
			sink = x
		}
	}
	const n = 2000
	Growth{Name: "linear", N: n, Power: 1, Prepare: spin}.Check(t)
	Paired{Name: "same work", Control: spin(n), Subject: spin(n), Factor: 1.5}.Check(t)

	wait := 5 * time.Millisecond
	Deadline{Name: "a timer", Wait: wait, Run: func() { time.Sleep(wait) }, Factor: 4, Allowance: wait}.Check(t)

	planted := func(name string, check func(testing.TB)) {
		t.Helper()
		r := &recorder{TB: t}
		for range 3 { // a loaded machine may hide a fault once, never invent one
			if check(r); r.verdict == "fail" {
				return
			}
		}
		t.Errorf("%s: got %s (%s), want fail", name, r.verdict, r.text)
	}
	planted("cubic", Growth{Name: "cubic", N: 16, Power: 1, Prepare: func(n int) func() { return spin(n * n * n) }}.Check)
	planted("slow", Paired{Name: "slow", Control: spin(n), Subject: spin(10 * n), Factor: 2}.Check)
	planted("late", Deadline{Name: "late", Wait: wait, Run: func() { time.Sleep(12 * wait) }, Factor: 1.5, Allowance: time.Millisecond}.Check)
}

func TestKernelScaleIsNeverBelowOne(t *testing.T) {
	for range 5 {
		if s := kernelScale(); !(s >= 1) || math.IsInf(s, 0) {
			t.Fatalf("got %g", s)
		}
	}
}
