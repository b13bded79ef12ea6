package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fake is a Backend that answers with run and records what it was asked.
type fake struct {
	mu   sync.Mutex
	reqs []Request
	run  func(ctx context.Context, n int, r Request) (Outcome, error) // n counts from 1
}

func (f *fake) Run(ctx context.Context, r Request) (Outcome, error) {
	f.mu.Lock()
	f.reqs = append(f.reqs, r)
	n := len(f.reqs)
	f.mu.Unlock()
	if f.run == nil {
		return Outcome{Class: ClassOK, Value: r.Input}, nil
	}
	return f.run(ctx, n, r)
}
func (f *fake) Warm(context.Context) error { return nil }
func (f *fake) Close() error               { return nil }

func (f *fake) calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.reqs)
}

func newSandbox(t testing.TB, b Backend, s Spec) *Sandbox {
	t.Helper()
	sb, err := NewSandbox(b, s)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

type transpileFunc func(Script) (Script, error)

func (f transpileFunc) Transpile(_ context.Context, s Script) (Script, error) { return f(s) }

type shapeFunc func(json.RawMessage) error

func (f shapeFunc) Check(v json.RawMessage) error { return f(v) }

type storeFunc func(context.Context, string, int64) (Script, error)

func (f storeFunc) Fetch(ctx context.Context, ref string, max int64) (Script, error) {
	return f(ctx, ref, max)
}

type panics struct{}

func (panics) MarshalJSON() ([]byte, error) { panic("boom\x00") }

type refuses struct{}

func (refuses) MarshalJSON() ([]byte, error) { return nil, errors.New("will not") }

type cyclic struct{ Next *cyclic }

type counted struct{ n *int }

func (c counted) MarshalJSON() ([]byte, error) { *c.n++; return []byte(`"x"`), nil }

func TestInput(t *testing.T) {
	ring := &cyclic{}
	ring.Next = ring
	loop := map[string]any{}
	loop["self"] = loop
	list := []any{nil}
	list[0] = list

	tests := []struct {
		name string
		in   any
		want string // the text, or "-" for an undefined input
		fail string // part of the reason
	}{
		{"absent", nil, "-", ""},
		{"absent raw", json.RawMessage(nil), "-", ""},
		{"null", json.RawMessage("null"), "null", ""},
		{"typed nil", (*cyclic)(nil), "null", ""},
		{"raw as it is", json.RawMessage(" {\"a\":\t1e400} \n"), " {\"a\":\t1e400} \n", ""},
		{"markup is not escaped", map[string]any{"a": "<&>\u2028"}, `{"a":"<&>\u2028"}`, ""},
		{"newline at the end of a string", "a\n", `"a\n"`, ""},
		{"number", 12, "12", ""},
		{"mended string", "a\xffb", `"a\ufffdb"`, ""},
		{"empty raw", json.RawMessage{}, "", "unexpected end"},
		{"raw cut", json.RawMessage(`{"a":`), "", "unexpected end"},
		{"raw trailing", json.RawMessage(`{} x`), "", "byte 4"},
		{"raw two values", json.RawMessage(`1 2`), "", "byte 3"},
		{"raw bom", json.RawMessage("\xef\xbb\xbf{}"), "", "byte order mark"},
		{"raw not UTF-8", json.RawMessage("\"\xc3\xa9\xff\""), "", "byte 3 is not valid UTF-8"},
		{"raw surrogate in UTF-8", json.RawMessage("\"\xed\xa0\x80\""), "", "byte 1 is not valid UTF-8"},
		{"raw NaN", json.RawMessage("NaN"), "", "byte 1"},
		{"raw single quotes", json.RawMessage("'a'"), "", "byte 1"},
		{"raw inside, not UTF-8", map[string]any{"a": json.RawMessage("\"\xff\"")}, "", "not valid UTF-8"},
		{"raw inside, not JSON", []any{json.RawMessage("{")}, "", "unexpected end"},
		{"channel", make(chan int), "", "chan int"},
		{"func", func() {}, "", "func()"},
		{"deep func", map[string]any{"a": []any{func() {}}}, "", "func()"},
		{"cycle by pointer", ring, "", "cycle"},
		{"cycle by map", loop, "", "cycle"},
		{"cycle by slice", list, "", "cycle"},
		{"NaN", math.NaN(), "", "NaN"},
		{"infinity", []float64{math.Inf(-1)}, "", "Inf"},
		{"complex", 1i, "", "complex128"},
		{"map with a bad key", map[[2]int]int{{1, 2}: 3}, "", "map[[2]int]int"},
		{"marshaller panics", panics{}, "", `boom\x00`},
		{"marshaller refuses", refuses{}, "", "will not"},
		{"too deep", json.RawMessage(strings.Repeat("[", 20000) + strings.Repeat("]", 20000)), "", "depth"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := &fake{}
			_, err := newSandbox(t, f, Spec{}).Eval(t.Context(), Call{Input: tt.in})
			if tt.fail != "" {
				var e *InputNotSerializable
				if !errors.As(err, &e) || !strings.Contains(e.Reason, tt.fail) {
					t.Fatalf("got %v, want InputNotSerializable with %q", err, tt.fail)
				}
				if f.calls() != 0 {
					t.Fatal("the backend was touched")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := f.reqs[0].Input
			if tt.want == "-" {
				if got != nil {
					t.Fatalf("got %q, want no input", got)
				}
			} else if string(got) != tt.want {
				t.Fatalf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestInputSerialisedOnce(t *testing.T) {
	n := 0
	f := &fake{run: func(_ context.Context, n int, r Request) (Outcome, error) {
		if n < 3 {
			return Outcome{}, &WorkerStartupError{Phase: PhaseStart}
		}
		return Outcome{Class: ClassOK}, nil
	}}
	sb := newSandbox(t, f, Spec{Retry: &Retry{Max: 2}})
	if _, err := sb.Eval(t.Context(), Call{Input: counted{&n}}); err != nil {
		t.Fatal(err)
	}
	if n != 1 {
		t.Fatalf("serialised %d times, want 1", n)
	}
	for i, r := range f.reqs {
		if string(r.Input) != `"x"` {
			t.Fatalf("attempt %d got input %q", i+1, r.Input)
		}
	}
}

// Sizes are counted in UTF-8 bytes of the JSON text, quotes and escapes included.
func TestSizes(t *testing.T) {
	sb := newSandbox(t, &fake{}, Spec{Limits: Limits{MaxInputBytes: 8, MaxScriptBytes: 4}})
	input := func(v any, wantBytes int64) {
		t.Helper()
		_, err := sb.Eval(t.Context(), Call{Input: v})
		var e *InputTooLarge
		if wantBytes == 0 {
			if err != nil {
				t.Errorf("%q: %v", v, err)
			}
		} else if !errors.As(err, &e) || *e != (InputTooLarge{wantBytes, 8, "MaxInputBytes"}) {
			t.Errorf("%q: got %v, want %d bytes over 8", v, err, wantBytes)
		}
	}
	input("12345", 0)
	input("123456", 0)
	input("1234567", 9)
	input("ééé", 0)
	input("éééé", 10)
	input("a\nbcd", 0)    // \n counts two
	input("a\nbcdef", 10) // so this is over
	input(json.RawMessage(" 123456 "), 0)
	input(json.RawMessage(" 1234567 "), 9)

	script := func(src string, wantBytes int64) {
		t.Helper()
		_, err := sb.Eval(t.Context(), Call{Script: Script{Source: src}})
		var e *ScriptTooLarge
		if wantBytes == 0 {
			if err != nil {
				t.Errorf("%q: %v", src, err)
			}
		} else if !errors.As(err, &e) || *e != (ScriptTooLarge{"", wantBytes, 4}) {
			t.Errorf("%q: got %v, want %d bytes over 4", src, err, wantBytes)
		}
	}
	script("", 0)
	script("123", 0)
	script("1234", 0)
	script("12345", 5)
	script("éé", 0)
	script("ééé", 6)
}

// Each row breaks every check from its own on; the first must be reported, and
// nothing behind it may be reached.
func TestOrderOfChecks(t *testing.T) {
	var reached []string
	note := func(s string) { reached = append(reached, s) }
	f := &fake{run: func(context.Context, int, Request) (Outcome, error) {
		note("backend")
		return Outcome{Class: ClassOK, Value: json.RawMessage("1")}, nil
	}}
	source := ""
	spec := Spec{
		Limits: Limits{MaxInputBytes: 4, MaxScriptBytes: 4},
		Scripts: storeFunc(func(_ context.Context, ref string, max int64) (Script, error) {
			note(fmt.Sprintf("store %d", max))
			if ref == "missing" {
				return Script{}, &ScriptMissing{Ref: ref}
			}
			return Script{Source: source}, nil
		}),
		Transpile: transpileFunc(func(s Script) (Script, error) {
			note("transpile")
			if s.Source == "bad" {
				return s, &ScriptError{Reason: NotTranspilable}
			}
			s.Source = "a source that is longer than the limit"
			return s, nil
		}),
	}
	sb := newSandbox(t, f, spec)
	shape := shapeFunc(func(json.RawMessage) error { note("shape"); return &ShapeMismatch{} })
	tests := []struct {
		input       any
		ref, source string
		label       string
		reached     []string
	}{
		{func() {}, "missing", "", "inputNotSerializable", nil},
		{"12345", "missing", "", "inputTooLarge", nil},
		{1, "missing", "", "scriptMissing", []string{"store 4"}},
		{1, "a", "bad, and long", "scriptTooLarge", []string{"store 4"}},
		{1, "a", "bad", "error", []string{"store 4", "transpile"}},
		{1, "a", "ok", "shapeMismatch", []string{"store 4", "transpile", "backend", "shape"}},
	}
	for _, tt := range tests {
		reached, source = nil, tt.source
		_, err := sb.Eval(t.Context(), Call{ScriptRef: tt.ref, Input: tt.input, Shape: shape})
		if label, _ := Describe(err); label != tt.label {
			t.Errorf("%+v: got %s (%v)", tt, label, err)
		}
		if !slices.Equal(reached, tt.reached) {
			t.Errorf("%s: reached %q, want %q", tt.label, reached, tt.reached)
		}
	}
	if got := f.reqs[0].Script.Source; !strings.HasPrefix(got, "a source that is longer") {
		t.Errorf("the backend got %q, want what the transpiler made", got)
	}
}

func TestRequestCarriesTheLimits(t *testing.T) {
	f := &fake{}
	sb := newSandbox(t, f, Spec{Limits: Limits{Fuel: 7}})
	if _, err := sb.Eval(t.Context(), Call{Script: Script{Source: "1", Name: "n", Kind: Module}}); err != nil {
		t.Fatal(err)
	}
	want := Request{Script: Script{"1", "n", Module}, Limits: Limits{Fuel: 7}.WithDefaults()}
	if got := f.reqs[0]; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestSpecIsChecked(t *testing.T) {
	tests := []struct {
		name    string
		backend Backend
		spec    Spec
		want    []string
	}{
		{"no backend", nil, Spec{}, []string{"Backend"}},
		{"limits", &fake{}, Spec{Limits: Limits{MemoryBytes: 1, Fuel: -1}}, []string{"Limits.MemoryBytes = 1", "Limits.Fuel = -1"}},
		{"retry", &fake{}, Spec{Retry: &Retry{Max: -1, FirstDelay: -2, MaxDelay: -3}}, []string{"Spec.Retry.Max = -1", "FirstDelay = -2ns", "MaxDelay = -3ns"}},
		{"delays", &fake{}, Spec{Retry: &Retry{FirstDelay: 2, MaxDelay: 1}}, []string{"Spec.Retry.MaxDelay = 1ns"}},
		{"all at once", nil, Spec{Limits: Limits{Fuel: -1}, Retry: &Retry{Max: -1}}, []string{"Backend", "Fuel", "Retry.Max"}},
	}
	for _, tt := range tests {
		_, err := NewSandbox(tt.backend, tt.spec)
		if err == nil {
			t.Errorf("%s: no error", tt.name)
			continue
		}
		for _, w := range tt.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: got %v, want it to name %s", tt.name, err, w)
			}
		}
	}
}

func TestCallIsChecked(t *testing.T) {
	f := &fake{}
	check := func(spec Spec, c Call, field string) {
		t.Helper()
		_, err := newSandbox(t, f, spec).Eval(t.Context(), c)
		var e *UsageError
		if !errors.As(err, &e) || e.Field != field {
			t.Errorf("got %v, want a UsageError of %s", err, field)
		}
	}
	check(Spec{}, Call{ScriptRef: "a"}, "Call.ScriptRef")
	check(Spec{Scripts: &MemoryStore{}}, Call{ScriptRef: "a", Script: Script{Source: "1"}}, "Call.ScriptRef")
	check(Spec{Scripts: &MemoryStore{}}, Call{ScriptRef: "../a"}, "ref")
	if f.calls() != 0 {
		t.Error("the backend was touched")
	}
}

func TestRetry(t *testing.T) {
	startup := &WorkerStartupError{Phase: PhaseCompile, Err: errors.New("slow host")}
	tests := []struct {
		name  string
		retry *Retry
		err   error // of every attempt but the last of good
		good  int   // attempt that succeeds; 0 for none
		want  int   // attempts
	}{
		{"default gives up after two retries", nil, startup, 0, 3},
		{"default mends", nil, startup, 3, 3},
		{"wrapped is retryable", nil, fmt.Errorf("pool: %w", startup), 2, 2},
		{"zero never retries", &Retry{}, startup, 0, 1},
		{"five", &Retry{Max: 5, FirstDelay: time.Millisecond, MaxDelay: time.Second}, startup, 0, 6},
		{"queue full is not retried", nil, ErrQueueFull, 0, 1},
		{"closed is not retried", nil, ErrClosed, 0, 1},
		{"others are not retried", nil, errors.New("disk"), 0, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{run: func(_ context.Context, n int, _ Request) (Outcome, error) {
					if n == tt.good {
						return Outcome{Class: ClassOK}, nil
					}
					return Outcome{}, tt.err
				}}
				res, err := newSandbox(t, f, Spec{Retry: tt.retry}).Eval(t.Context(), Call{})
				if res.Attempts != tt.want || f.calls() != tt.want {
					t.Errorf("got %d attempts, %d runs, want %d", res.Attempts, f.calls(), tt.want)
				}
				if tt.good == 0 && !errors.Is(err, tt.err) || tt.good != 0 && err != nil {
					t.Errorf("got %v", err)
				}
			})
		})
	}

	for _, class := range []Class{ClassScriptError, ClassResultNotSerializable, ClassLimit, ClassInputTooLarge, ClassEngineFault} {
		f := &fake{run: func(context.Context, int, Request) (Outcome, error) {
			return Outcome{Class: class, Guard: Fuel}, nil
		}}
		res, err := newSandbox(t, f, Spec{}).Eval(t.Context(), Call{})
		if err == nil || res.Attempts != 1 {
			t.Errorf("%s: got %v after %d attempts, want a failure after 1", class, err, res.Attempts)
		}
	}
}

func TestRetryBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := Retry{Max: 6, FirstDelay: 10 * time.Millisecond, MaxDelay: 65 * time.Millisecond}
		want := []time.Duration{10, 20, 40, 65, 65, 65} // ms, at most; at least half
		var starts []time.Time
		f := &fake{run: func(context.Context, int, Request) (Outcome, error) {
			starts = append(starts, time.Now())
			return Outcome{}, &WorkerStartupError{Phase: PhaseStart}
		}}
		sb := newSandbox(t, f, Spec{Retry: &r})
		seen := map[time.Duration]bool{}
		for range 20 {
			starts = nil
			if _, err := sb.Eval(t.Context(), Call{}); !Retryable(err) {
				t.Fatal(err)
			}
			for i, w := range want {
				got, w := starts[i+1].Sub(starts[i]), w*time.Millisecond
				if got < w/2 || got > w {
					t.Errorf("retry %d after %v, want %v to %v", i+1, got, w/2, w)
				}
			}
			seen[starts[1].Sub(starts[0])] = true
		}
		if len(seen) < 2 {
			t.Error("20 first back-offs were all the same: no jitter")
		}
	})
}

func TestRetryDelayDoesNotOverflow(t *testing.T) {
	r := Retry{FirstDelay: 1, MaxDelay: math.MaxInt64}
	for n := 1; n < 200; n++ {
		if d := r.delay(n); d < 1 || n > 1 && d < r.delay(n-1) {
			t.Fatalf("delay(%d) = %v", n, d)
		}
	}
}

var errWhy = errors.New("the user went away")

func TestCancelInBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		f := &fake{run: func(context.Context, int, Request) (Outcome, error) {
			return Outcome{}, &WorkerStartupError{Phase: PhaseStart}
		}}
		sb := newSandbox(t, f, Spec{Retry: &Retry{Max: 5, FirstDelay: time.Hour, MaxDelay: time.Hour}})
		time.AfterFunc(time.Second, func() { cancel(errWhy) })
		start := time.Now()
		res, err := sb.Eval(ctx, Call{})
		if !errors.Is(err, errWhy) || res.Attempts != 1 {
			t.Errorf("got %v after %d attempts, want %v after 1", err, res.Attempts, errWhy)
		}
		if d := time.Since(start); d != time.Second {
			t.Errorf("returned after %v, want at the cancellation", d)
		}
	})
}

func TestCanceled(t *testing.T) {
	// check runs one call whose backend or store cancels it, and wants the cause.
	check := func(name string, run func(ctx context.Context) (Outcome, error), runs int) {
		t.Helper()
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		f := &fake{run: func(ctx context.Context, _ int, _ Request) (Outcome, error) {
			cancel(errWhy)
			return run(ctx)
		}}
		spec, call := Spec{}, Call{}
		switch name {
		case "before anything":
			cancel(errWhy)
		case "store":
			call.ScriptRef = "a"
			spec.Scripts = storeFunc(func(ctx context.Context, _ string, _ int64) (Script, error) {
				cancel(errWhy)
				return Script{}, ctx.Err()
			})
		}
		_, err := newSandbox(t, f, spec).Eval(ctx, call)
		if label, failure := Describe(err); !errors.Is(err, errWhy) || label != "canceled" || failure != "Canceled" {
			t.Errorf("%s: got %v (%s, %s), want the cause", name, err, label, failure)
		}
		if f.calls() != runs {
			t.Errorf("%s: %d runs, want %d", name, f.calls(), runs)
		}
		if ScriptFault(err) || Retryable(err) {
			t.Errorf("%s: a cancelled call is nobody's fault", name)
		}
	}
	check("before anything", nil, 0)
	check("store", nil, 0)
	check("outcome", func(context.Context) (Outcome, error) { return Outcome{Class: ClassCanceled}, nil }, 1)
	check("context error", func(ctx context.Context) (Outcome, error) { return Outcome{}, fmt.Errorf("queued: %w", ctx.Err()) }, 1)
	check("cause as error", func(ctx context.Context) (Outcome, error) { return Outcome{}, context.Cause(ctx) }, 1)

	// An ended context does not hide what the backend itself reports.
	ctx, cancel := context.WithCancel(t.Context())
	closed := &fake{run: func(context.Context, int, Request) (Outcome, error) { cancel(); return Outcome{}, ErrClosed }}
	if _, err := newSandbox(t, closed, Spec{}).Eval(ctx, Call{}); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
}

func TestResultTellsTheOutcomeOfAFailure(t *testing.T) {
	o := Outcome{Class: ClassLimit, Guard: Fuel, Killed: true, Message: "m", Usage: Usage{Fuel: 9}}
	f := &fake{run: func(context.Context, int, Request) (Outcome, error) { return o, nil }}
	res, err := newSandbox(t, f, Spec{Limits: Limits{Fuel: 8}}).Eval(t.Context(), Call{})
	var e *LimitExceeded
	if !errors.As(err, &e) || *e != (LimitExceeded{Fuel, 8, 9, true}) {
		t.Errorf("got %+v", err)
	}
	if !reflect.DeepEqual(res, Result{o, 1}) {
		t.Errorf("got %+v, want the outcome", res)
	}
}

func TestShape(t *testing.T) {
	value := json.RawMessage(`{"a":1}`)
	f := &fake{run: func(context.Context, int, Request) (Outcome, error) {
		return Outcome{Class: ClassOK, Value: value}, nil
	}}
	sb := newSandbox(t, f, Spec{})
	eval := func(judge error) (json.RawMessage, error) {
		var saw json.RawMessage
		res, err := sb.Eval(t.Context(), Call{Shape: shapeFunc(func(v json.RawMessage) error { saw = v; return judge })})
		if string(saw) != string(value) || string(res.Value) != string(value) {
			t.Errorf("the shape saw %q, the caller %q, want %q", saw, res.Value, value)
		}
		return saw, err
	}
	if _, err := eval(nil); err != nil {
		t.Error(err)
	}
	mismatch := &ShapeMismatch{Violations: []Violation{{"/a", "type", "want a string"}}}
	if _, err := eval(mismatch); err != mismatch {
		t.Errorf("got %v, want the mismatch", err)
	}
	var fault *EngineFault
	if _, err := eval(errors.New("not JSON")); !errors.As(err, &fault) {
		t.Errorf("got %v, want an EngineFault", err)
	}
	value = nil
	if saw, _ := eval(mismatch); saw != nil {
		t.Errorf("an absent result reached the shape as %q", saw)
	}

	failing := &fake{run: func(context.Context, int, Request) (Outcome, error) { return Outcome{Class: ClassScriptError}, nil }}
	_, err := newSandbox(t, failing, Spec{}).Eval(t.Context(), Call{Shape: shapeFunc(func(json.RawMessage) error {
		t.Error("the result of a failed script was judged")
		return nil
	})})
	if label, _ := Describe(err); label != "error" {
		t.Errorf("got %v", err)
	}
}

// Many callers, one Sandbox: every call gets its own answer, and the backend
// sees each attempt once.
func TestSandboxHammer(t *testing.T) {
	store := &MemoryStore{}
	for i := range 8 {
		if err := store.Put(fmt.Sprint("s", i), Script{Source: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	var runs, flips atomic.Int64
	f := backendFunc(func(ctx context.Context, r Request) (Outcome, error) {
		switch n := runs.Add(1); {
		case n%7 == 0:
			flips.Add(1)
			return Outcome{}, &WorkerStartupError{Phase: PhaseStart}
		case ctx.Err() != nil:
			return Outcome{Class: ClassCanceled}, nil
		}
		return Outcome{Class: ClassOK, Value: json.RawMessage(r.Script.Source + string(r.Input))}, nil
	})
	sb := newSandbox(t, f, Spec{Scripts: store, Retry: &Retry{Max: 1000}})
	const workers, each = 8, 200
	var attempts atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				ctx, cancel := context.WithCancel(t.Context())
				stop := i%5 == 0
				if stop {
					go cancel()
				}
				res, err := sb.Eval(ctx, Call{ScriptRef: fmt.Sprint("s", w), Input: i})
				attempts.Add(int64(res.Attempts))
				if err == nil && string(res.Value) != fmt.Sprint(w, i)[:1]+fmt.Sprint(i) {
					t.Errorf("worker %d, call %d: got %s", w, i, res.Value)
				}
				if err != nil && !(stop && errors.Is(err, context.Canceled)) {
					t.Errorf("worker %d, call %d: %v", w, i, err)
				}
				if i%11 == 0 {
					if err := store.Put(fmt.Sprint("s", w), Script{Source: fmt.Sprint(w)}); err != nil {
						t.Error(err)
					}
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if attempts.Load() != runs.Load() || flips.Load() == 0 {
		t.Errorf("callers count %d attempts, the backend %d runs with %d start-up failures", attempts.Load(), runs.Load(), flips.Load())
	}
}

type backendFunc func(context.Context, Request) (Outcome, error)

func (f backendFunc) Run(ctx context.Context, r Request) (Outcome, error) { return f(ctx, r) }
func (backendFunc) Warm(context.Context) error                            { return nil }
func (backendFunc) Close() error                                          { return nil }
