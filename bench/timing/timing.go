// Package timing checks the speed of code in tests without a fixed bound in
// time. It is for tests of this module and of sandboxes that use its suites.
//
// A check states a claim about a ratio, which holds on any machine:
//
//   - [Growth]: doubling the work costs at most so much more;
//   - [Paired]: the guarded work costs at most so many times the same work
//     that bypasses the guard;
//   - [Deadline]: a thing is late by no more than some multiple of how late an
//     idle timer is in the same window.
//
// Take the first form that fits. Every check decides by counting rounds. If
// the claim holds in the sense that a round violates it with probability at
// most 1/2, the check fails with probability at most [FalseAlarm], computed
// exactly. A check stops as soon as its verdict is settled, so a claim that
// holds clearly costs Rounds-limit+1 rounds. The price: a claim that is
// violated in only some rounds passes. Under heavy load a fault is found surely
// only if it passes its bound by a factor of two or more.
//
// Checks must not run in parallel with other tests of their package: do not
// call them after t.Parallel.
package timing

import (
	"cmp"
	"fmt"
	"math"
	"math/big"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// FalseAlarm bounds the probability that a check fails though its claim holds.
const FalseAlarm = 1e-4

const (
	defaultRounds = 25
	minRounds     = 14 // 2^-14 is the first power below FalseAlarm
	maxRounds     = 1000

	// minSample is how long one timed sample lasts at least; shorter work is
	// repeated. It is many steps of any clock that Go runs on.
	minSample = time.Millisecond
	// tries of a sample, of which the least counts: other load only ever adds.
	tries = 5
	// maxRepeat bounds the repetition of work that takes no time at all.
	maxRepeat = 1 << 20

	maxScale = 8 // a machine slower than this against the nominal one is unfit
	windows  = 3 // tries of a window whose control is late before the machine is unfit
)

var skipped atomic.Int64

// Skipped counts the checks of this process that were skipped because the
// machine was unfit.
func Skipped() int64 { return skipped.Load() }

// Growth claims that the cost of a function grows no faster than n^Power.
type Growth struct {
	Name string
	// N is the smaller size, at least 1; the larger is 2N. Choose it so large
	// that what does not grow with n no longer matters.
	N int
	// Power is the claimed order: 1 for linear, 0 for constant. It has no
	// default. Not negative.
	Power float64
	// Slack is the allowed excess: t(2N)/t(N) <= 2^Power * (1+Slack). Default
	// 0.5, so that a linear claim allows 3 where a quadratic cost shows 4.
	Slack float64
	// Prepare makes the work of size n; only the function it returns is timed.
	// The function must be repeatable.
	Prepare func(n int) func()
	Rounds  int // default 25, 14 to 1000
}

// Check runs the check. It fails, skips or passes t.
func (g Growth) Check(t testing.TB) {
	t.Helper()
	g.check(t, system())
}

func (g Growth) check(t testing.TB, c clock) {
	t.Helper()
	g.Slack = cmp.Or(g.Slack, 0.5)
	if g.N < 1 || g.N > math.MaxInt/2 || g.Power < 0 || g.Slack < 0 || g.Prepare == nil {
		t.Fatalf("timing: Growth %s: got N %d, Power %g, Slack %g, Prepare set %t: N must be at least 1, Power and Slack not negative, Prepare set",
			g.Name, g.N, g.Power, g.Slack, g.Prepare != nil)
		return
	}
	claim := ratio{
		form: "Growth", name: g.Name, base: g.Prepare(g.N), subject: g.Prepare(2 * g.N), rounds: g.Rounds,
		bound: math.Pow(2, g.Power) * (1 + g.Slack),
		what:  fmt.Sprintf("t(%d)/t(%d)", 2*g.N, g.N),
	}
	claim.check(t, c)
}

// Paired claims that Subject costs at most Factor times what Control costs.
// Control is the same function on input that bypasses the guarded property, or
// else a kernel of the same kind of work.
type Paired struct {
	Name             string
	Subject, Control func() // must be repeatable
	Factor           float64
	Rounds           int // default 25, 14 to 1000
}

// Check runs the check. It fails, skips or passes t.
func (p Paired) Check(t testing.TB) {
	t.Helper()
	p.check(t, system())
}

func (p Paired) check(t testing.TB, c clock) {
	t.Helper()
	if p.Subject == nil || p.Control == nil || !(p.Factor > 0) {
		t.Fatalf("timing: Paired %s: got Factor %g, Subject set %t, Control set %t: set both, and a Factor above 0",
			p.Name, p.Factor, p.Subject != nil, p.Control != nil)
		return
	}
	ratio{
		form: "Paired", name: p.Name, base: p.Control, subject: p.Subject, rounds: p.Rounds, bound: p.Factor, what: "subject/control",
	}.check(t, c)
}

// ratio is what Growth and Paired share: subject takes at most bound times base.
type ratio struct {
	form, name, what string
	base, subject    func()
	bound            float64
	rounds           int
}

func (r ratio) check(t testing.TB, c clock) {
	t.Helper()
	v, ok := newVerdict(t, r.form, r.name, r.rounds)
	if !ok {
		return
	}
	reps := repeats(c, r.base)
	for v.open() {
		b, s := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
		for i := range tries {
			// The order alternates, so that a drift of the machine favours neither.
			if (v.n+i)%2 == 0 {
				b, s = min(b, sample(c, r.base, reps)), min(s, sample(c, r.subject, reps))
			} else {
				s, b = min(s, sample(c, r.subject, reps)), min(b, sample(c, r.base, reps))
			}
		}
		v.add(float64(s)/float64(max(b, 1)), float64(s) > r.bound*float64(b))
	}
	v.report(t, fmt.Sprintf("%s at most %.3g", r.what, r.bound))
}

// repeats is how often f must run to last minSample.
func repeats(c clock, f func()) int {
	for n := 1; ; n *= 2 {
		if sample(c, f, n) >= minSample || n >= maxRepeat {
			return n
		}
	}
}

func sample(c clock, f func(), reps int) time.Duration {
	start := c.now()
	for range reps {
		f()
	}
	return c.now().Sub(start)
}

// Deadline claims that something due after Wait is late by at most Factor times
// the lateness of an idle timer in the same window, plus Allowance.
type Deadline struct {
	Name string
	// Wait is when the thing is due, counted from the start of Run. Above 0.
	Wait time.Duration
	// Run does the thing and returns when it has happened.
	Run func()
	// Factor is k; at least 1.
	Factor float64
	// Allowance is what the thing may need beyond its due time on the nominal
	// machine, which runs the calibration kernel at 1 ns a step. On a slower or
	// busier machine it is scaled up, to at most 8 times; never down. Above 0.
	Allowance time.Duration
	Rounds    int // default 25, 14 to 1000
}

// Check runs the check. It fails, skips or passes t.
//
// A window in which the idle timer was later than 8 times Allowance is tried
// again, three times in all; then the machine is unfit and the check is
// skipped. But if the idle timer is on time without Run beside it, then it is
// Run that disturbs the process, and the round counts as a violation.
func (d Deadline) Check(t testing.TB) {
	t.Helper()
	d.check(t, system())
}

func (d Deadline) check(t testing.TB, c clock) {
	t.Helper()
	if d.Run == nil || d.Wait <= 0 || !(d.Factor >= 1) || d.Allowance <= 0 {
		t.Fatalf("timing: Deadline %s: got Wait %v, Factor %g, Allowance %v, Run set %t: Wait and Allowance must be above 0, Factor at least 1, Run set",
			d.Name, d.Wait, d.Factor, d.Allowance, d.Run != nil)
		return
	}
	v, ok := newVerdict(t, "Deadline", d.Name, d.Rounds)
	if !ok {
		return
	}
	top := 1.0
	for v.open() {
		late, control, scale, disturbed, why := d.window(c)
		if why != "" {
			unfit(t, "Deadline", d.Name, why)
			return
		}
		top = max(top, scale)
		bound := d.Factor*float64(control) + scale*float64(d.Allowance)
		v.add(float64(late)/bound, disturbed || float64(late) > bound)
	}
	v.report(t, fmt.Sprintf("late by at most %.3g times an idle timer plus %v, scaled by up to %.2g; as a share of that bound", d.Factor, d.Allowance, top))
}

// window is one round. why says that the machine is unfit.
func (d Deadline) window(c clock) (late, control time.Duration, scale float64, disturbed bool, why string) {
	for range windows {
		if scale = c.scale(); scale > maxScale {
			why = fmt.Sprintf("the calibration kernel runs %.3g times slower than nominal, more than %d", scale, maxScale)
			continue
		}
		late, control = c.beside(d.Wait, d.Run)
		if control <= maxScale*d.Allowance {
			return late, control, scale, false, ""
		}
		if alone, _ := c.beside(d.Wait, func() { c.sleep(d.Wait) }); alone <= maxScale*d.Allowance {
			return late, 0, scale, true, ""
		}
		why = fmt.Sprintf("an idle timer was %v late, more than %d times the allowance of %v", control, maxScale, d.Allowance)
	}
	return 0, 0, 0, false, why
}

// clock is what a check knows of the machine.
type clock struct {
	now   func() time.Time
	sleep func(time.Duration)
	// scale is how many times slower than nominal the machine is now; at least 1.
	scale func() float64
	// beside runs f while an idle timer waits for d beside it. It returns how
	// late after d each of them was; not negative.
	beside func(d time.Duration, f func()) (late, control time.Duration)
}

func system() clock {
	return clock{now: time.Now, sleep: time.Sleep, scale: kernelScale, beside: beside}
}

func beside(d time.Duration, f func()) (late, control time.Duration) {
	ready, idle := make(chan struct{}), make(chan time.Duration)
	go func() {
		close(ready)
		start := time.Now()
		time.Sleep(d)
		idle <- time.Since(start) - d
	}()
	<-ready
	start := time.Now()
	f()
	late = time.Since(start) - d
	return max(late, 0), max(<-idle, 0)
}

const kernelSteps = 1 << 17

var kernelSink atomic.Uint64

// kernelScale times a kernel of dependent steps, three times, and takes the
// median: a machine that is busy shows in it as one that is slow.
func kernelScale() float64 {
	var took [3]time.Duration
	for i := range took {
		start := time.Now()
		x := uint64(start.UnixNano()) | 1
		for range kernelSteps {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
		}
		took[i] = time.Since(start)
		kernelSink.Store(x)
		runtime.Gosched()
	}
	slices.Sort(took[:])
	return max(1, float64(took[1])/kernelSteps)
}

// verdict counts the rounds of one check.
type verdict struct {
	form, name string
	rounds     int // at most
	limit      int // so many violations fail the check
	n, over    int
	seen       []float64
}

func newVerdict(t testing.TB, form, name string, rounds int) (*verdict, bool) {
	t.Helper()
	rounds = cmp.Or(rounds, defaultRounds)
	if rounds < minRounds || rounds > maxRounds {
		t.Fatalf("timing: %s %s: Rounds = %d: give %d to %d, or 0 for %d", form, name, rounds, minRounds, maxRounds, defaultRounds)
		return nil, false
	}
	return &verdict{form: form, name: name, rounds: rounds, limit: violations(rounds)}, true
}

// open reports whether more rounds could change the verdict.
func (v *verdict) open() bool { return !v.failed() && v.n-v.over <= v.rounds-v.limit }

func (v *verdict) failed() bool { return v.over >= v.limit }

func (v *verdict) add(measured float64, violated bool) {
	v.n++
	if violated {
		v.over++
	}
	v.seen = append(v.seen, measured)
}

func (v *verdict) report(t testing.TB, claim string) {
	t.Helper()
	slices.Sort(v.seen)
	text := fmt.Sprintf("timing: %s %s: %s: median %.3g, %.3g to %.3g; %d of %d rounds violate it, %d of %d would fail",
		v.form, v.name, claim, v.seen[len(v.seen)/2], v.seen[0], v.seen[len(v.seen)-1], v.over, v.n, v.limit, v.rounds)
	if v.failed() {
		t.Error(text)
		return
	}
	t.Log(text)
}

// unfit skips the check and counts it; under REQUIRE_ALL=1 it fails instead.
func unfit(t testing.TB, form, name, why string) {
	t.Helper()
	skipped.Add(1)
	text := fmt.Sprintf("timing: %s %s: the machine is unfit: %s", form, name, why)
	if os.Getenv("REQUIRE_ALL") == "1" {
		t.Fatal(text + " (REQUIRE_ALL=1 makes this skip a failure)")
		return
	}
	t.Skip(text)
}

// violations is the least u with P(X >= u) <= FalseAlarm for X ~ Bin(n, 1/2),
// in exact arithmetic. n is at least minRounds.
func violations(n int) int {
	tail, term := new(big.Int), big.NewInt(1) // sum of C(n, k) for k >= u; C(n, u)
	most := new(big.Rat).SetFloat64(FalseAlarm)
	all := new(big.Int).Lsh(big.NewInt(1), uint(n))
	for u := n; ; u-- {
		tail.Add(tail, term)
		if new(big.Rat).SetFrac(tail, all).Cmp(most) > 0 {
			return u + 1
		}
		term.Mul(term, big.NewInt(int64(u)))
		term.Div(term, big.NewInt(int64(n-u+1)))
	}
}
