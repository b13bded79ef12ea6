package enginetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/sandbed/sandbed/engine"
)

// Law is one thing that every backend must do.
type Law struct {
	Name     string
	Sentence string
	check    func(*scope) // nil for a law that binds every run and has no scripts of its own
}

// Laws lists every law by name, those that bind every run first.
func Laws() []Law { return append([]Law(nil), laws...) }

var laws = []Law{
	{Name: "suite", Sentence: "The suite runs to its end."},
	{Name: "class", Sentence: "A case ends in one of the classes it accepts."},
	{Name: "value", Sentence: "A case that gives a value gives the one expected."},
	{Name: "stops", Sentence: "A run is back, and the VM free, within its wall clock plus the grace."},
	{Name: "returns", Sentence: "A run comes back at all."},
	{Name: "panics", Sentence: "No script makes the backend panic."},
	{Name: "fits", Sentence: "Linear memory stays within image plus input text plus MemoryBytes, in whole pages."},
	{Name: "sound", Sentence: "An outcome is one of the contract's: a guard only with class limit, a value only with ok, as valid JSON."},
	{Name: "hooks", Sentence: "OnScriptStart comes before OnFinished, each at most once, and both for a run that gave a value."},
	{Name: "metering", Sentence: "A backend that meters reports fuel for every script that ran."},
	{Name: "clean", Sentence: "After every case the next 1+1 is 2."},
	{Name: "image", Sentence: "After every case memory is byte for byte the boot image."},

	{"runaway-loop", "A loop without end, in whatever form, ends by the wall clock and cannot be caught.", probes("runaway-loop", runawayLoop)},
	{"wall-clock", "The wall clock ends builtins that never ask, and nothing that is in time.", probes("wall-clock", wallClock)},
	{"allocation-bomb", "Allocation without end ends by the memory guard, at any limit, and honest use is left alone.", probes("allocation-bomb", allocationBomb)},
	{"stack-overflow", "Recursion without end ends by the stack guard, never in a trap, and moderate recursion succeeds.", probes("stack-overflow", stackOverflow)},
	{"no-ambient-io", "A script finds no file, network, process, timer, module or host path.", probes("no-ambient-io", noAmbientIO)},
	{"forged-guards", "What a script throws is a script error, however much it looks like a guard.", probes("forged-guards", forgedGuards)},
	{"honest-guards", "A guard that ended a script is reported though the script hides its text.", probes("honest-guards", honestGuards)},
	{"caught-guards", "A script that meets a memory or stack guard, catches the error and returns a value is ok.", probes("caught-guards", caughtGuards)},
	{"results", "Results become JSON as JSON.stringify says, once; undefined is absent; what is no JSON says so.", probes("results", resultValues)},
	{"modules", "A module's result is its default export, called with the input if it is a function.", probes("modules", moduleResults)},
	{"promises", "A promise counts with its settled value; one that never settles is an error that says so.", promises},
	{"messages", "Message and JSStack are cut at 4 KiB, never inside a character.", probes("messages", longMessages)},
	{"output-cap", "A result of exactly MaxOutputBytes UTF-8 bytes passes, one byte more is limit:output.", outputCap},
	{"isolation", "Nothing that a script does is seen by the next.", isolation},
	{"determinism", "Date, performance.now and Math.random give the same on every run, whatever the time.", determinism},
	{"fuel-same", "The same script and input use the same fuel, memory and stack on every run, whatever ran before.", fuelSame},
	{"fuel-monotone", "More work uses more fuel, in bytecode and in builtins.", fuelMonotone},
	{"fuel-limit", "A fuel limit ends a script once it is used up, and not before.", fuelLimit},
	{"cancel", "Cancelling the context ends the run at once with class canceled, and the next is clean.", cancelRun},
	{"late-cancel", "Cancelling a run that is over does not touch the next one.", lateCancel},
	{"seeding", "Parsing the input is not charged to the script: the clock is armed after it.", seeding},
	{"concurrent", "Concurrent callers get their own answers.", concurrent},
	{"leaks", "Runs, kills and cancels leave no goroutine and no descriptor, and Close gives back the rest.", leaks},
	{"close", "Close returns without error, and a run after it is refused.", closing},

	{"shape-mismatch", "Under the policy a result of another shape is a ShapeMismatch of the script.", shapeMismatch},
	{"erased-script", "Under the policy an erased or missing script is the caller's fault and nothing runs.", erasedScript},
	{"refused-input", "Under the policy a bad input is refused before script and backend are touched, to the byte.", refusedInput},
	{"fault", "Under the policy every failure names whose fault it was.", fault},
}

// meteredLaws are not offered by a backend that never reports fuel.
var meteredLaws = map[string]bool{"metering": true, "fuel-same": true, "fuel-monotone": true, "fuel-limit": true}

func program(source string) engine.Script { return engine.Script{Source: source} }

func promises(sc *scope) {
	probes("promises", promiseResults)(sc)
	probes("promises", neverSettles)(sc)
	for _, p := range neverSettles {
		sub := sc.sub(p.name)
		got := sub.eval(sc.s.ctx, p.request(sc.s))
		if !got.lost && !strings.Contains(strings.ToLower(got.out.Message), "promise") {
			sub.add("promises", "the message of a promise that never settles does not speak of it: %s", sub.why(got))
		}
	}
}

// capBytes is the size of the results of outputCap, quotes included.
const capBytes = 1202

var capScripts = []probe{
	{name: "one-byte", js: `"a".repeat(1200)`},
	{name: "two-bytes", js: `"\u00e9".repeat(600)`},
	{name: "four-bytes", js: `"\u{1f600}".repeat(300)`},
	{name: "escaped", js: `"\u0001".repeat(200)`},
	{name: "by-toJSON", js: `({toJSON(){return "b".repeat(1200)}})`},
}

func outputCap(sc *scope) {
	for _, p := range capScripts {
		for _, d := range []int64{-1, 0, 1} {
			sub := sc.sub(fmt.Sprintf("%s/%+d", p.name, d))
			r := p.request(sc.s)
			r.Limits.MaxOutputBytes = capBytes + d
			want := "ok"
			if d < 0 {
				want = "limit:output"
			}
			got := sub.eval(sc.s.ctx, r)
			if !got.lost && (got.label != want || want == "ok" && len(got.out.Value) != capBytes) {
				sub.add("output-cap", "%s under a limit of %d gave %s of %d bytes, want %s of %d", quote(p.js), r.Limits.MaxOutputBytes, got.label, len(got.out.Value), want, capBytes)
			}
		}
	}
}

func isolation(sc *scope) {
	s := sc.s
	for _, p := range isolationPairs {
		if s.stopped() {
			return
		}
		sub := sc.sub(p.name)
		show := func(source string, wall time.Duration) (string, bool) {
			got := sub.eval(s.ctx, engine.Request{Script: program(source), Limits: s.limits(wall)})
			return got.label + " " + got.value(), !got.lost
		}
		before, ok1 := show(p.second, 0)
		together, ok2 := show(p.both(), 0)
		_, ok3 := show(p.first, p.wall)
		after, ok4 := show(p.second, 0)
		if !ok1 || !ok2 || !ok3 || !ok4 {
			continue // already a finding
		}
		if before != after {
			sub.add("isolation", "%s gave %s alone and %s after %s", quote(p.second), quote(before), quote(after), quote(p.first))
		}
		if before == together {
			s.note("isolation", "%s proves nothing here: %s does not change %s within one script", p.name, quote(p.first), quote(p.second))
		}
		sub.clean()
	}
}

const clocks = `[Date.now(),new Date().getTime(),new Date().getTimezoneOffset(),Math.random(),Math.random(),typeof performance==="object"?performance.now():0]`

const standingClock = `const a=Date.now();let n=0;for(let i=0;i<200000;i++)n+=i;Date.now()-a`

func determinism(sc *scope) {
	s := sc.s
	var first string
	for n := range 3 {
		got := sc.eval(s.ctx, engine.Request{Script: program(clocks), Limits: s.limits(0)})
		if got.lost {
			return
		}
		switch {
		case got.label != "ok":
			sc.add("determinism", "%s gave %s: %s", quote(clocks), got.label, sc.why(got))
		case n == 0:
			first = got.value()
		case got.value() != first:
			sc.add("determinism", "%s gave %s and %s", quote(clocks), quote(first), quote(got.value()))
		}
		time.Sleep(10 * time.Millisecond) // so that a clock that runs gives another value
	}
	got := sc.eval(s.ctx, engine.Request{Script: program(standingClock), Limits: s.limits(0)})
	if !got.lost && (got.label != "ok" || got.value() != "0") {
		sc.add("determinism", "the clock moved within a script: %s gave %s %s", quote(standingClock), got.label, quote(got.value()))
	}
}

// work is a script whose work is proportional to n.
func work(n int) string { return fmt.Sprintf("let n=0;for(let i=0;i<%d;i++)n+=i;n", n) }

// search is work inside one builtin, proportional to n.
func search(n int) string { return fmt.Sprintf(`"a".repeat(%d).indexOf("b")`, n) }

// steady are the scripts whose use must not vary.
var steady = []probe{
	{name: "arithmetic", js: `1+1`},
	{name: "loop", js: work(1000)},
	{name: "search", js: search(100000)},
	{name: "json", js: `JSON.stringify(Array.from({length:1000},(_, i)=>({i}))).length`},
	{name: "recursion", js: `(function f(n){return n?f(n-1)+1:0})(150)`},
	{name: "regexp", js: `"a1b22c333".repeat(50).replace(/\d+/g,x=>x.length)`},
	{name: "sort", js: `[...Array(500).keys()].sort((a,b)=>(a*7919%503)-(b*7919%503)).length`},
	{name: "objects", js: `let m=new Map();for(let i=0;i<500;i++)m.set("k"+i,{i});m.size`},
	{name: "input", js: `input.length`, input: `[1,2,3,{"a":"b"}]`},
	{name: "throws", js: `throw new Error("x")`},
}

func fuelSame(sc *scope) {
	s := sc.s
	const rounds = 5
	first := map[string]engine.Usage{}
	// Rounds in different orders, not repetitions: scripts follow different ones.
	for round := range rounds {
		for _, i := range rand.New(rand.NewPCG(1, uint64(round))).Perm(len(steady)) {
			p := steady[i]
			sub := sc.sub(p.name)
			got := sub.eval(s.ctx, p.request(s))
			if got.lost {
				return
			}
			u := got.out.Usage
			f, seen := first[p.name]
			if !seen {
				first[p.name] = u
				continue
			}
			if u.Fuel != f.Fuel || u.PeakMemoryBytes != f.PeakMemoryBytes || u.StackBytes != f.StackBytes || u.ImageBytes != f.ImageBytes {
				sub.add("fuel-same", "fuel, peak, stack, image were %d, %d, %d, %d and are %d, %d, %d, %d",
					f.Fuel, f.PeakMemoryBytes, f.StackBytes, f.ImageBytes, u.Fuel, u.PeakMemoryBytes, u.StackBytes, u.ImageBytes)
			}
		}
	}
}

func fuelMonotone(sc *scope) {
	s := sc.s
	for _, kind := range []struct {
		name   string
		script func(int) string
		sizes  []int
	}{{"bytecode", work, []int{0, 1000, 2000, 4000}}, {"builtin", search, []int{1, 100000, 200000, 400000}}} {
		sub := sc.sub(kind.name)
		last := int64(0)
		for i, n := range kind.sizes {
			got := sub.eval(s.ctx, engine.Request{Script: program(kind.script(n)), Limits: s.limits(0)})
			if got.lost || !s.metered {
				return
			}
			if fuel := got.out.Usage.Fuel; i > 0 && fuel <= last {
				sub.add("fuel-monotone", "work of %d used %d fuel, work of %d used %d", kind.sizes[i-1], last, n, fuel)
			}
			last = got.out.Usage.Fuel
		}
	}
}

func fuelLimit(sc *scope) {
	s := sc.s
	run := func(source string, fuel int64) run {
		r := engine.Request{Script: program(source), Limits: s.limits(0)}
		r.Limits.Fuel = fuel
		return sc.eval(s.ctx, r)
	}
	source := work(20000)
	free := run(source, 0)
	if free.lost || !s.metered {
		return
	}
	used := free.out.Usage.Fuel
	for _, c := range []struct {
		source string
		fuel   int64
		want   string
	}{
		{source, 2 * used, "ok"},
		{source, used / 2, "limit:fuel"},
		{source, 1, "limit:fuel"},
		{`for(;;);`, 500000, "limit:fuel"},
		{`try{for(;;);}catch(e){"caught"}`, 500000, "limit:fuel"},
		{`({toJSON(){for(;;);}})`, 500000, "limit:fuel"},
		{neverPolls, 500000, "limit:fuel"},
	} {
		if c.fuel < 1 {
			continue
		}
		if got := run(c.source, c.fuel); !got.lost && got.label != c.want {
			sc.add("fuel-limit", "%s under a limit of %d fuel gave %s with %d used, want %s", quote(c.source), c.fuel, got.label, got.out.Usage.Fuel, c.want)
		}
		sc.clean()
	}
}

// endless are scripts to be cancelled. Their clock is far away.
var endless = []probe{
	{name: "loop", js: `for(;;){/*cancel*/}`},
	{name: "builtin", js: `"cancel",` + neverPolls},
	{name: "microtasks", js: `(async()=>{for(;;)await "cancel"})()`},
	{name: "dump", js: `({toJSON(){for(;;){/*cancel*/}}})`},
}

var errKill = errors.New("enginetest: the caller changed its mind")

func cancelRun(sc *scope) {
	s := sc.s
	for _, p := range endless {
		if s.stopped() {
			return
		}
		sub := sc.sub(p.name)
		var late time.Duration
		for range 3 { // lateness counts three times of three
			got, lag := sub.cancelled(p)
			if got.lost {
				late = 0
				break
			}
			if got.err != nil || got.label != string(engine.ClassCanceled) {
				sub.add("cancel", "cancelled while it ran, and gave %s: %s", got.label, sub.why(got))
			}
			if late = lag; late <= s.o.Grace {
				late = 0
				break
			}
		}
		if late > 0 {
			sub.add("cancel", "back %v after the cancel, with a grace of %v, three times of three", late, s.o.Grace)
		}
		sub.clean()
	}
	// A context that has ended already runs nothing.
	ctx, cancel := context.WithCancelCause(s.ctx)
	cancel(errKill)
	got := sc.eval(ctx, engine.Request{Script: program(`"too late"`), Limits: s.limits(0)})
	if !got.lost && (got.starts > 0 || got.label != string(engine.ClassCanceled) && !errors.Is(got.err, errKill)) {
		sc.add("cancel", "under a context that had ended it gave %s after %d starts: %s", got.label, got.starts, sc.why(got))
	}
	if cause := context.Cause(ctx); cause != errKill {
		sc.add("cancel", "the cause of the context is %v, it was %v", cause, errKill)
	}
}

// cancelled runs p, cancels it once its script has begun, and says how long
// after the cancel the run was back.
func (sc *scope) cancelled(p probe) (run, time.Duration) {
	s := sc.s
	r := p.request(s)
	ctx, cancel := context.WithCancelCause(s.ctx)
	defer cancel(nil)
	var (
		mu sync.Mutex
		at time.Time
	)
	b := s.ready(sc)
	if b == nil {
		return run{lost: true}, 0
	}
	got := sc.once(ctx, func(ctx context.Context, r engine.Request) (engine.Outcome, error) {
		start := r.OnScriptStart
		r.OnScriptStart = func(t time.Time) {
			start(t)
			time.AfterFunc(5*time.Millisecond, func() {
				mu.Lock()
				at = time.Now()
				mu.Unlock()
				cancel(errKill)
			})
		}
		return b.Run(ctx, r)
	}, r)
	mu.Lock()
	defer mu.Unlock()
	if at.IsZero() {
		return got, 0
	}
	return got, got.returned.Sub(at)
}

func lateCancel(sc *scope) {
	s := sc.s
	for n := range 20 {
		b := s.ready(sc)
		if b == nil {
			return
		}
		ctx, cancel := context.WithCancelCause(s.ctx)
		r := engine.Request{Script: program(work(1000)), Limits: s.limits(0)}
		// The suite's own context would end with the run: the kill must be a late one.
		first := sc.once(s.ctx, func(_ context.Context, r engine.Request) (engine.Outcome, error) { return b.Run(ctx, r) }, r)
		if first.lost {
			cancel(nil)
			return
		}
		go cancel(errKill) // while the next one begins
		second := sc.once(s.ctx, b.Run, r)
		cancel(nil)
		if second.lost {
			return
		}
		if second.label != "ok" || second.value() != first.value() {
			sc.add("late-cancel", "round %d: the run after a cancelled one gave %s %s: %s", n, second.label, quote(second.value()), sc.why(second))
		}
	}
}

// seedInput is one long text: quick to check, slow to parse against a trivial script.
func seedInput() json.RawMessage {
	b := bytes.Repeat([]byte("a"), 16<<20)
	b[0], b[len(b)-1] = '"', '"'
	return b
}

func seeding(sc *scope) {
	s := sc.s
	var before, during time.Duration
	for range 3 { // a charged parse is charged three times of three
		got := sc.eval(s.ctx, engine.Request{Script: program(`input.length>5`), Input: seedInput(), Limits: s.limits(0)})
		if got.lost {
			return
		}
		if got.label != "ok" || got.value() != "true" {
			sc.add("seeding", "an input of 16 MiB and a trivial script gave %s %s: %s", got.label, quote(got.value()), sc.why(got))
			return
		}
		before, during = got.armed.Sub(got.called), got.finished.Sub(got.armed)
		if before > during {
			return
		}
	}
	sc.add("seeding", "an input of 16 MiB took %v before the clock was armed, and the trivial script %v after: it was parsed under the clock", before, during)
}

func concurrent(sc *scope) {
	s := sc.s
	b := s.ready(sc)
	if b == nil {
		return
	}
	const callers, rounds = 4, 5
	problems := make(chan string, callers*rounds)
	done := make(chan struct{})
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					problems <- "the backend panicked: " + quote(fmt.Sprint(p))
				}
			}()
			for n := range rounds {
				id := c*rounds + n
				r := engine.Request{Script: program(double), Input: json.RawMessage(fmt.Sprint(id)), Limits: s.limits(0)}
				out, err := b.Run(s.ctx, r)
				if want := fmt.Sprint(2 * id); err != nil || out.Class != engine.ClassOK || string(out.Value) != want {
					problems <- fmt.Sprintf("caller %d gave %d and got %s %s, want %s (%v)", c, id, labelOf(out, err), quote(string(out.Value)), want, err)
				}
			}
		})
	}
	go func() { wg.Wait(); close(done) }()
	t := time.NewTimer(callers*rounds*s.limits(0).WallClock + s.o.HangAfter)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		sc.add("returns", "%d concurrent callers had not all been answered", callers)
		s.discard(sc)
		return
	}
	close(problems)
	for p := range problems {
		sc.add("concurrent", "%s", p)
	}
}

// double is the script of concurrent callers: long enough to overlap.
const double = `let n=0;for(let i=0;i<20000;i++)n+=i;input*2`

// census counts what a process may leak. Descriptors are -1 where /proc is not.
func census() (goroutines, descriptors int) {
	descriptors = -1
	if d, err := os.ReadDir("/proc/self/fd"); err == nil {
		descriptors = len(d)
	}
	return runtime.NumGoroutine(), descriptors
}

// settled is the census once it has come down to the bound, or after a while:
// what a run left behind may need a moment to end.
func settled(goroutines, descriptors int) (int, int) {
	for n := 0; ; n++ {
		g, d := census()
		if g <= goroutines && d <= descriptors || n == 100 {
			return g, d
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func leaks(sc *scope) {
	s := sc.s
	b, err := s.factory(s.ctx)
	if err != nil || b == nil {
		sc.add("suite", "the factory failed: %v", err)
		return
	}
	old := s.backend
	s.backend = b // so that a hang discards this one
	defer func() { s.backend = old }()
	g0, d0 := census()
	if err := b.Warm(s.ctx); err != nil {
		sc.add("class", "Warm: %v", err)
	}
	batch := func() bool {
		for range 4 {
			for _, r := range []engine.Request{
				{Script: program(`1+1`), Limits: s.limits(0)},
				{Script: program(`throw new Error("x")`), Limits: s.limits(0)},
				{Script: program(`for(;;){}`), Limits: s.limits(burn / 5)},
			} {
				if s.backend == nil || sc.eval(s.ctx, r).lost {
					return false
				}
			}
			if got, _ := sc.cancelled(endless[0]); got.lost {
				return false
			}
		}
		return true
	}
	if !batch() { // fills what is kept on purpose
		return
	}
	g1, d1 := settled(g0, d0)
	if !batch() {
		return
	}
	g2, d2 := settled(g1, d1)
	if g2 > g1+1 || d2 > d1+1 { // one may be another's
		sc.add("leaks", "goroutines and descriptors were %d and %d after 16 runs, and %d and %d after 32", g1, d1, g2, d2)
	}
	sc.closeBackend(b)
	s.backend = nil
	if g, d := settled(g0, d0); g > g0 || d > d0 {
		sc.add("leaks", "goroutines and descriptors were %d and %d before Warm, and %d and %d after Close", g0, d0, g, d)
	}
}

func (sc *scope) closeBackend(b engine.Backend) { sc.s.closeBackend(sc, b) }

func closing(sc *scope) {
	s := sc.s
	b, err := s.factory(s.ctx)
	if err != nil || b == nil {
		sc.add("suite", "the factory failed: %v", err)
		return
	}
	sc.closeBackend(b)
	got := sc.once(s.ctx, b.Run, engine.Request{Script: program(`1+1`), Limits: s.limits(0)})
	if !got.lost && !errors.Is(got.err, engine.ErrClosed) {
		sc.add("close", "a run after Close gave %s (%v), want engine.ErrClosed", got.label, got.err)
	}
}
