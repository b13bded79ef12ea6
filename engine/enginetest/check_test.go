package enginetest

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandbed/sandbed/engine"
)

// light is the corpus without the inputs of many megabytes, which the good
// backend alone is put through.
func light() []Case {
	return slices.DeleteFunc(Cases(), func(c Case) bool {
		for _, in := range c.Inputs {
			if raw, ok := in.Value.(json.RawMessage); ok && len(raw) > 1<<20 {
				return true
			}
		}
		return false
	})
}

func TestGoodBackendHasNoFinding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cases, lawResults int
		r := Examine(t.Context(), func(context.Context) (engine.Backend, error) { return &fake{}, nil }, Options{
			OnCase: func(rec Record, f []Finding) {
				cases++
				if !rec.Pass || !rec.Exact || !rec.CleanAfter || rec.Class != rec.Expected {
					t.Errorf("record %+v, want exact and clean", rec)
				}
			},
			OnLaw: func(LawResult) { lawResults++ },
		})
		for _, f := range r.Findings {
			t.Error(f)
		}
		for _, l := range r.Laws {
			if l.Status != Held {
				t.Errorf("law %s is %s: %v", l.Name, l.Status, l.Notes)
			}
			if len(l.Notes) > 0 {
				t.Errorf("law %s has notes: %v", l.Name, l.Notes)
			}
		}
		if want := len(Cases()); cases != want || len(r.Records) != want {
			t.Errorf("%d callbacks and %d records, want %d", cases, len(r.Records), want)
		}
		if lawResults < 20 || len(r.Laws) != len(Laws()) {
			t.Errorf("%d law callbacks and %d results of %d laws", lawResults, len(r.Laws), len(Laws()))
		}
	})
}

// spoiled is the fake with a fault. before may answer instead of it, after may
// change what it answers.
type spoiled struct {
	fake
	before func(ctx context.Context, r *engine.Request) (engine.Outcome, error, bool)
	after  func(r engine.Request, o *engine.Outcome)
	verify func() error
	close  func() error
}

func (s *spoiled) Run(ctx context.Context, r engine.Request) (engine.Outcome, error) {
	if s.before != nil {
		if o, err, done := s.before(ctx, &r); done {
			return o, err
		}
	}
	o, err := s.fake.Run(ctx, r)
	if s.after != nil && err == nil {
		s.after(r, &o)
	}
	return o, err
}

func (s *spoiled) VerifyImage(ctx context.Context) error {
	if s.verify != nil {
		return s.verify()
	}
	return nil
}

func (s *spoiled) Close() error {
	if s.close != nil {
		return s.close()
	}
	return s.fake.Close()
}

// start calls the hooks as the fake would, for answers in its place.
func start(r *engine.Request) {
	if r.OnScriptStart != nil {
		r.OnScriptStart(time.Now())
	}
}

func ok(value string) engine.Outcome {
	return engine.Outcome{Class: engine.ClassOK, Value: json.RawMessage(value),
		Usage: engine.Usage{Fuel: 104, PeakMemoryBytes: fakeImage, ImageBytes: fakeImage}}
}

// after makes a fault that changes answers, whenever when holds of source and label.
func after(when func(js, label string) bool, do func(r engine.Request, o *engine.Outcome)) func(<-chan struct{}) *spoiled {
	return func(<-chan struct{}) *spoiled {
		return &spoiled{after: func(r engine.Request, o *engine.Outcome) {
			if when(r.Script.Source, o.Label()) {
				do(r, o)
			}
		}}
	}
}

func before(do func(ctx context.Context, r *engine.Request) (engine.Outcome, error, bool)) func(<-chan struct{}) *spoiled {
	return func(<-chan struct{}) *spoiled { return &spoiled{before: do} }
}

func labelled(want string) func(string, string) bool {
	return func(_, label string) bool { return label == want }
}

func says(part string) func(string, string) bool {
	return func(js, _ string) bool { return strings.Contains(js, part) }
}

func becomes(label, value string) func(engine.Request, *engine.Outcome) {
	return func(_ engine.Request, o *engine.Outcome) {
		class, guard, _ := strings.Cut(label, ":")
		o.Class, o.Guard, o.Value = engine.Class(class), engine.Guard(guard), nil
		if value != "" {
			o.Value = json.RawMessage(value)
		}
	}
}

// faulty are the backends that must fail, each with the laws that must say so.
var faulty = []struct {
	name string
	laws []string
	make func(release <-chan struct{}) *spoiled
}{
	{"ignores its deadline", []string{"stops"}, after(labelled("limit:wallClock"), func(r engine.Request, _ *engine.Outcome) { time.Sleep(2 * time.Second) })},
	{"ignores cancels", []string{"cancel"}, before(func(ctx context.Context, r *engine.Request) (engine.Outcome, error, bool) {
		if strings.Contains(r.Script.Source, "cancel") {
			start(r)
			time.Sleep(r.Limits.WallClock)
			return engine.Outcome{Class: engine.ClassLimit, Guard: engine.WallClock, Usage: ok("").Usage}, nil, true
		}
		return engine.Outcome{}, nil, false
	})},
	{"slow to cancel", []string{"cancel"}, after(labelled("canceled"), func(engine.Request, *engine.Outcome) { time.Sleep(time.Second) })},
	{"runs under an ended context", []string{"cancel"}, before(func(ctx context.Context, r *engine.Request) (engine.Outcome, error, bool) {
		if r.Script.Source != `"too late"` {
			return engine.Outcome{}, nil, false
		}
		start(r)
		return ok(`"too late"`), nil, true
	})},
	{"late cancels hit the next run", []string{"late-cancel"}, func(<-chan struct{}) *spoiled {
		var last atomic.Pointer[context.Context]
		return &spoiled{before: func(ctx context.Context, r *engine.Request) (engine.Outcome, error, bool) {
			prev := last.Swap(&ctx)
			time.Sleep(time.Microsecond)
			if prev != nil && errors.Is(context.Cause(*prev), errKill) && r.Script.Source == work(1000) {
				start(r)
				return engine.Outcome{Class: engine.ClassCanceled, Usage: ok("").Usage}, nil, true
			}
			return engine.Outcome{}, nil, false
		}}
	}},
	{"hangs", []string{"returns"}, func(release <-chan struct{}) *spoiled {
		return &spoiled{before: func(_ context.Context, r *engine.Request) (engine.Outcome, error, bool) {
			if strings.Contains(r.Script.Source, "1000000000") {
				<-release
			}
			return engine.Outcome{}, nil, false
		}}
	}},
	{"deadlocks under concurrency", []string{"returns"}, func(release <-chan struct{}) *spoiled {
		var running atomic.Int32
		return &spoiled{before: func(_ context.Context, r *engine.Request) (engine.Outcome, error, bool) {
			defer running.Add(-1)
			if running.Add(1) > 1 {
				<-release
			}
			time.Sleep(time.Microsecond)
			return engine.Outcome{}, nil, false
		}}
	}},
	{"panics", []string{"panics"}, before(func(_ context.Context, r *engine.Request) (engine.Outcome, error, bool) {
		if strings.Contains(r.Script.Source, "getPrototypeOf") {
			panic("index out of range")
		}
		return engine.Outcome{}, nil, false
	})},
	{"panics under concurrency", []string{"concurrent"}, before(func(_ context.Context, r *engine.Request) (engine.Outcome, error, bool) {
		if string(r.Input) == "7" && r.Script.Source == double {
			panic("concurrent map writes")
		}
		return engine.Outcome{}, nil, false
	})},
	{"mixes its callers up", []string{"concurrent"}, func(<-chan struct{}) *spoiled {
		var mu sync.Mutex
		var shared string
		return &spoiled{before: func(_ context.Context, r *engine.Request) (engine.Outcome, error, bool) {
			mu.Lock()
			shared = string(r.Input)
			mu.Unlock()
			time.Sleep(time.Microsecond)
			mu.Lock()
			defer mu.Unlock()
			if r.Script.Source == double {
				r.Input = json.RawMessage(shared)
			}
			return engine.Outcome{}, nil, false
		}}
	}},
	{"ignores memory", []string{"fits", "allocation-bomb", "class"}, after(labelled("limit:memory"), func(r engine.Request, o *engine.Outcome) {
		becomes("ok", "1")(r, o)
		o.Usage.PeakMemoryBytes = 300 << 20
	})},
	{"grows a page too far", []string{"fits"}, after(labelled("limit:memory"), func(_ engine.Request, o *engine.Outcome) { o.Usage.PeakMemoryBytes += wasmPage })},
	{"refuses honest memory", []string{"allocation-bomb"}, after(says("4194304"), becomes("limit:memory", ""))},
	{"traps on recursion", []string{"stack-overflow", "class", "fault"}, after(labelled("limit:stack"), becomes("engineFault", ""))},
	{"keeps globals", []string{"isolation"}, func(<-chan struct{}) *spoiled {
		var last atomic.Value
		return &spoiled{after: func(r engine.Request, o *engine.Outcome) {
			prev, _ := last.Swap(r.Script.Source).(string)
			if strings.HasPrefix(prev, "globalThis.") && strings.HasPrefix(r.Script.Source, "typeof ") {
				becomes("ok", `"number"`)(r, o)
			}
		}}
	}},
	{"keeps jobs", []string{"isolation"}, func(<-chan struct{}) *spoiled {
		var last atomic.Value
		return &spoiled{after: func(r engine.Request, o *engine.Outcome) {
			prev, _ := last.Swap(r.Script.Source).(string)
			if strings.HasPrefix(prev, "Promise.resolve().then(()=>{globalThis.late") && r.Script.Source == "typeof late" {
				becomes("ok", `"number"`)(r, o)
			}
		}}
	}},
	{"is unclean after a kill", []string{"clean"}, func(<-chan struct{}) *spoiled {
		var killed atomic.Bool
		return &spoiled{after: func(r engine.Request, o *engine.Outcome) {
			if killed.Swap(o.Killed) {
				becomes("engineFault", "")(r, o)
			}
		}}
	}},
	{"does not restore its image", []string{"image"}, func(<-chan struct{}) *spoiled {
		var killed atomic.Bool
		return &spoiled{
			after: func(_ engine.Request, o *engine.Outcome) { killed.Store(killed.Load() || o.Guard == engine.WallClock) },
			verify: func() error {
				if killed.Load() {
					return errors.New("byte 4096 is 1, in the image 0")
				}
				return nil
			},
		}
	}},
	{"reads the guard from the text", []string{"forged-guards", "class", "fault"}, after(func(js, label string) bool {
		return label == "error" && strings.Contains(js, "out of memory")
	}, becomes("limit:memory", ""))},
	{"believes a forged stack text", []string{"forged-guards"}, after(func(js, label string) bool {
		return label == "error" && strings.Contains(js, "call stack size")
	}, becomes("limit:stack", ""))},
	{"takes null for exhaustion", []string{"forged-guards", "class"}, after(says("throw null"), becomes("limit:memory", ""))},
	{"needs the text to see a guard", []string{"honest-guards"}, after(says("nothing"), becomes("error", ""))},
	{"reports guards that were caught", []string{"caught-guards"}, after(says(`catch(e){"caught"}`), func(r engine.Request, o *engine.Outcome) {
		if o.Class == engine.ClassOK {
			becomes("limit:memory", "")(r, o)
		}
	})},
	{"lets loops catch the interrupt", []string{"runaway-loop"}, after(says(`try{for(;;);}catch(e){"caught"}`), becomes("ok", `"caught"`))},
	{"does not end builtins", []string{"wall-clock"}, after(says(".lastIndexOf.call({length:4294967295},2)"), becomes("ok", "-1"))},
	{"gives the script a process", []string{"no-ambient-io", "class"}, after(says("process"), becomes("ok", `"object"`))},
	{"reports no fuel for some", []string{"metering"}, after(labelled("limit:wallClock"), func(_ engine.Request, o *engine.Outcome) { o.Usage.Fuel = 0 })},
	{"forgets the fuel of killed runs", []string{"metering"}, after(labelled("canceled"), func(_ engine.Request, o *engine.Outcome) { o.Usage.Fuel = 0 })},
	{"reports random fuel", []string{"fuel-same"}, after(says(""), func(_ engine.Request, o *engine.Outcome) { o.Usage.Fuel += rand.Int64N(1 << 30) })},
	{"reports fuel by history", []string{"fuel-same"}, func(<-chan struct{}) *spoiled {
		var n atomic.Int64
		return &spoiled{after: func(_ engine.Request, o *engine.Outcome) { o.Usage.Fuel += n.Add(1) / 700 }}
	}},
	{"reports the same fuel for all", []string{"fuel-monotone"}, after(says(""), func(_ engine.Request, o *engine.Outcome) { o.Usage.Fuel = max(1, min(o.Usage.Fuel, 1)) })},
	{"meters bytecode alone", []string{"fuel-monotone"}, after(says(".indexOf("), func(_ engine.Request, o *engine.Outcome) { o.Usage.Fuel = 12 })},
	{"ignores its fuel limit", []string{"fuel-limit", "class"}, before(func(_ context.Context, r *engine.Request) (engine.Outcome, error, bool) {
		r.Limits.Fuel = 0
		return engine.Outcome{}, nil, false
	})},
	{"stops before the fuel is used", []string{"fuel-limit"}, after(labelled("limit:fuel"), func(_ engine.Request, o *engine.Outcome) { o.Usage.Fuel /= 2 })},
	{"reports the wrong class", []string{"class", "fault"}, after(labelled("limit:output"), becomes("limit:memory", ""))},
	{"answers wrongly", []string{"results"}, after(says("undefined,b:1"), becomes("ok", `{"a":null,"b":1}`))},
	{"answers wrongly in a case", []string{"value"}, after(says("[NaN,Infinity,-Infinity,-0]"), becomes("ok", `[null,null,null,-0]`))},
	{"runs toJSON twice", []string{"results"}, after(says("toJSON(){return ++n}"), becomes("ok", "2"))},
	{"does not call default exports", []string{"modules"}, after(says("export default function"), becomes("resultNotSerializable", ""))},
	{"returns promises", []string{"promises"}, after(says("Promise.resolve(7)"), becomes("ok", "{}"))},
	{"says nothing of promises", []string{"promises"}, after(says("new Promise(()=>{})"), func(_ engine.Request, o *engine.Outcome) { o.Message = "failed" })},
	{"does not cut messages", []string{"messages"}, after(says("repeat(100000)"), func(_ engine.Request, o *engine.Outcome) { o.Message = strings.Repeat("x", 100000) })},
	{"cuts inside a character", []string{"messages"}, after(says("repeat(100000)"), func(_ engine.Request, o *engine.Outcome) { o.JSStack = "z\xc3" })},
	{"counts characters", []string{"output-cap"}, before(func(_ context.Context, r *engine.Request) (engine.Outcome, error, bool) {
		if strings.Contains(r.Script.Source, `\u00e9".repeat(600)`) {
			r.Limits.MaxOutputBytes *= 2
		}
		return engine.Outcome{}, nil, false
	})},
	{"is one byte strict", []string{"output-cap"}, before(func(_ context.Context, r *engine.Request) (engine.Outcome, error, bool) {
		r.Limits.MaxOutputBytes--
		return engine.Outcome{}, nil, false
	})},
	{"has a running clock", []string{"determinism"}, after(says(clocks), func(_ engine.Request, o *engine.Outcome) {
		o.Value, _ = json.Marshal(time.Now().UnixMilli())
	})},
	{"has a clock that runs within a script", []string{"determinism"}, after(says(standingClock), becomes("ok", "3"))},
	{"charges seeding", []string{"seeding"}, before(func(_ context.Context, r *engine.Request) (engine.Outcome, error, bool) {
		if r.Script.Source != `input.length>5` {
			return engine.Outcome{}, nil, false
		}
		start(r)
		time.Sleep(time.Duration(len(r.Input)))
		r.OnFinished(time.Now())
		return ok("true"), nil, true
	})},
	{"calls its hooks twice", []string{"hooks"}, before(func(_ context.Context, r *engine.Request) (engine.Outcome, error, bool) {
		start(r)
		return engine.Outcome{}, nil, false
	})},
	{"forgets its hooks", []string{"hooks"}, before(func(_ context.Context, r *engine.Request) (engine.Outcome, error, bool) {
		r.OnFinished = nil
		return engine.Outcome{}, nil, false
	})},
	{"reports a guard with ok", []string{"sound"}, after(says("1+1"), func(_ engine.Request, o *engine.Outcome) { o.Guard = engine.Memory })},
	{"gives values that are no JSON", []string{"sound"}, after(says("Date.parse"), becomes("ok", "NaN"))},
	{"gives a value with an error", []string{"sound"}, after(labelled("error"), func(_ engine.Request, o *engine.Outcome) { o.Value = json.RawMessage("1") })},
	{"leaks a goroutine a run", []string{"leaks"}, func(release <-chan struct{}) *spoiled {
		return &spoiled{before: func(context.Context, *engine.Request) (engine.Outcome, error, bool) {
			go func() { <-release }()
			return engine.Outcome{}, nil, false
		}}
	}},
	{"leaks a goroutine at Close", []string{"leaks"}, func(release <-chan struct{}) *spoiled {
		s := &spoiled{}
		s.close = func() error { go func() { <-release }(); return s.fake.Close() }
		return s
	}},
	{"serves after Close", []string{"close"}, func(<-chan struct{}) *spoiled { return &spoiled{close: func() error { return nil }} }},
	{"cannot be closed", []string{"close"}, func(<-chan struct{}) *spoiled { return &spoiled{close: func() error { return errors.New("busy") }} }},
	{"does not return from Close", []string{"close"}, func(release <-chan struct{}) *spoiled {
		return &spoiled{close: func() error { <-release; return nil }}
	}},
	{"gives results of one shape", []string{"shape-mismatch"}, after(says("rows:"), becomes("ok", `{"rows":[]}`))},
	{"fails what is stored", []string{"erased-script", "clean"}, after(says("1+1"), becomes("error", ""))},
	{"fails inputs", []string{"refused-input"}, after(says("typeof input"), becomes("error", ""))},
}

func TestFaultyBackendsAreFound(t *testing.T) {
	covered := map[string]bool{"suite": true} // TestSuiteSaysThatItStopped
	for _, f := range faulty {
		for _, law := range f.laws {
			covered[law] = true
		}
		t.Run(f.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				defer func() { close(release); time.Sleep(24 * time.Hour) }() // what was left behind ends
				findings := Check(t.Context(), func(context.Context) (engine.Backend, error) { return f.make(release), nil }, Options{Cases: light()})
				for _, law := range f.laws {
					if !slices.ContainsFunc(findings, func(x Finding) bool { return x.Law == law }) {
						t.Errorf("no finding names the law %q; of %d: %.10q", law, len(findings), findings)
					}
				}
			})
		})
	}
	for _, l := range laws {
		if !covered[l.Name] {
			t.Errorf("no backend here breaks the law %q", l.Name)
		}
	}
}

// plain hides what the fake offers beside the contract.
type plain struct{ engine.Backend }

func (p plain) Run(ctx context.Context, r engine.Request) (engine.Outcome, error) {
	o, err := p.Backend.Run(ctx, r)
	o.Usage = engine.Usage{}
	return o, err
}

func TestWhatIsNotOfferedIsNotHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := Examine(t.Context(), func(context.Context) (engine.Backend, error) { return plain{&fake{}}, nil }, Options{Cases: light()})
		var got []string
		for _, l := range r.Laws {
			if l.Status == NotOffered {
				got = append(got, l.Name)
				if len(l.Notes) == 0 {
					t.Errorf("law %s is not offered, without a reason", l.Name)
				}
			}
		}
		// A limit of fuel was given and is not metered, which breaks that law.
		want := []string{"fits", "metering", "image", "fuel-same", "fuel-monotone"}
		if !slices.Equal(got, want) {
			t.Errorf("not offered: %v, want %v", got, want)
		}
	})
}

func TestSuiteSaysThatItStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		check := func(name string, f Factory, o Options, want string) {
			t.Helper()
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if name == "cancelled" {
				o.OnCase = func(Record, []Finding) { cancel(errors.New("enough")) }
			}
			findings := Check(ctx, f, o)
			if !slices.ContainsFunc(findings, func(x Finding) bool { return x.Law == "suite" && strings.Contains(x.Detail, want) }) {
				t.Errorf("%s: findings %q, want one of the law suite with %q", name, findings, want)
			}
		}
		good := func(context.Context) (engine.Backend, error) { return &fake{}, nil }
		check("cancelled", good, Options{Cases: light()}, "enough")
		check("no cases", good, Options{Cases: []Case{}}, "no case")
		check("broken factory", func(context.Context) (engine.Backend, error) { return nil, errors.New("no memory") }, Options{Cases: light()}, "no memory")
		check("nil backend", func(context.Context) (engine.Backend, error) { return nil, nil }, Options{Cases: light()}, "no backend")
	})
}

func TestRecordOfAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &spoiled{after: func(r engine.Request, o *engine.Outcome) {
			switch {
			case r.Script.Source == "for(;;)1":
				time.Sleep(time.Second)
				o.Usage.PeakMemoryBytes = 99 * wasmPage
			case r.Script.Source == "1+1":
				o.Value = json.RawMessage("3")
			}
		}}
		answers[engine.Script{Source: "for(;;)1"}] = answer{label: "limit:wallClock", endless: true}
		cases, err := ParseCases(strings.NewReader(`{"id":"X","class":"cpu-loop","js":"for(;;)1","expected":"limit:fuel","any_of":["limit:fuel","limit:wallClock"]}`))
		if err != nil {
			t.Fatal(err)
		}
		r := Examine(t.Context(), func(context.Context) (engine.Backend, error) { return b, nil }, Options{Cases: cases})
		got, err := json.Marshal(r.Records[0])
		if err != nil {
			t.Fatal(err)
		}
		const want = `{"id":"X","class":"limit:wallClock","expected":"limit:fuel","any_of":["limit:fuel","limit:wallClock"],"pass":false,"exact":false,"overrun_ns":1001000000,"memory_peak_bytes":6488064,"clean_after":false}`
		if string(got) != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	})
}

// TestRun puts a backend through the suite as its own tests would, in real time.
func TestRun(t *testing.T) {
	r := Run(t, func(testing.TB) engine.Backend { return &fake{} })
	if len(r.Records) != len(Cases()) || len(r.Findings) != 0 {
		t.Errorf("%d records and findings %q, want %d and none", len(r.Records), r.Findings, len(Cases()))
	}
}

// TestRunReportsFaults runs this binary again, since a test that must fail
// cannot be a part of one that passes.
func TestRunReportsFaults(t *testing.T) {
	const child = "ENGINETEST_FAULTY"
	if os.Getenv(child) != "" {
		Run(t, func(testing.TB) engine.Backend {
			return after(func(js, label string) bool { return label == "limit:output" || js == "[undefined,()=>1,Symbol(\"x\")]" }, becomes("ok", "1"))(nil)
		})
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestRunReportsFaults$/(case|law)/(H20|H19|results|output-cap|hooks)$", "-test.v")
	cmd.Env = append(os.Environ(), child+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Errorf("the run of a faulty backend passed:\n%s", out)
	}
	for _, want := range []string{
		"--- FAIL: TestRunReportsFaults/case/H20", "--- PASS: TestRunReportsFaults/case/H19",
		"--- FAIL: TestRunReportsFaults/law/results", "--- FAIL: TestRunReportsFaults/law/output-cap", "--- PASS: TestRunReportsFaults/law/hooks",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("output lacks %q:\n%s", want, out)
		}
	}
}

// TestUsageOfAnEndedWorker: who kills a process cannot ask it what it has used.
func TestUsageOfAnEndedWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := after(labelled("canceled"), func(_ engine.Request, o *engine.Outcome) { o.Usage = engine.Usage{} })
		for _, f := range Check(t.Context(), func(context.Context) (engine.Backend, error) { return ended(nil), nil }, Options{Cases: light()}) {
			t.Error(f)
		}
	})
}
