package quickjs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbed/sandbed/engine"
)

func newTestEngine(tb testing.TB, c Config) *Engine {
	tb.Helper()
	e, err := New(tb.Context(), c)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := e.Close(); err != nil {
			tb.Errorf("closing the engine: %v", err)
		}
	})
	return e
}

func newTestVM(tb testing.TB, e *Engine) *VM {
	tb.Helper()
	v, err := e.newVM(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := v.Close(); err != nil {
			tb.Errorf("closing the VM: %v", err)
		}
	})
	return v
}

// long keeps cases that must not end by clock away from it, however slow the machine.
const long = 10 * time.Minute

func eval(v *VM, source string, l engine.Limits) engine.Outcome {
	if l.WallClock == 0 {
		l.WallClock = long
	}
	return v.Eval(context.Background(), engine.Request{Script: engine.Script{Source: source}, Limits: l})
}

func mustVerify(t *testing.T, v *VM) {
	t.Helper()
	if err := v.verify(); err != nil {
		t.Fatal(err)
	}
}

func TestEval(t *testing.T) {
	v := newTestVM(t, newTestEngine(t, Config{}))
	for _, c := range []struct {
		source string
		kind   engine.Kind
		label  string
		value  string
	}{
		{"1+1", "", "ok", "2"},
		{"undefined", "", "ok", ""},
		{"null", "", "ok", "null"},
		{"({a:[1,'é',NaN,undefined]})", "", "ok", `{"a":[1,"é",null,null]}`},
		{"input.n+1", "", "ok", "42"},
		{"export default input.n", "", "ok", "41"},
		{"export default i => i.n*2", "", "ok", "82"},
		{"export default async i => { await null; return i.n }", "", "ok", "41"},
		{"input = {n:1}; export default i => i.n", "", "error", ""}, // modules are strict, input is a global all the same
		{"globalThis.input = {n:1}; export default i => i.n", "", "ok", "41"},
		{"export const x = 1", "", "ok", ""},
		{"/* export default 5 */ 'import'", "", "ok", `"import"`},
		{"with({a:1}) a", "", "ok", "1"}, // a program is not strict
		{"with({a:1}) a", engine.Module, "error", ""},
		{"export default 1", engine.Program, "error", ""},
		{"export defaul 1", "", "error", ""},
		{"import x from 'y'; export default x", "", "error", ""},
		{"import('y')", "", "error", ""},
		{"Promise.reject(new Error('no'))", "", "error", ""},
		{"new Promise(()=>{})", "", "error", ""},
		{"(async()=>{await 1; return [2]})()", "", "ok", "[2]"},
		{"let r=[]; Promise.resolve().then(()=>r.push(1)); r", "", "ok", "[1]"},
		{"()=>1", "", "resultNotSerializable", ""},
		{"Symbol()", "", "resultNotSerializable", ""},
		{"1n", "", "resultNotSerializable", ""},
		{"let o={};o.o=o;o", "", "resultNotSerializable", ""},
		{"({toJSON(){throw new TypeError('circular reference')}})", "", "error", ""},
		{"throw 5", "", "error", ""},
		{"a b", "", "error", ""},
		{"1\x002", "", "error", ""},
	} {
		o := v.Eval(t.Context(), engine.Request{Script: engine.Script{Source: c.source, Kind: c.kind}, Input: []byte(`{"n":41}`), Limits: engine.Limits{WallClock: long}})
		if o.Label() != c.label && !(c.source[0] == 'i' && o.Class == engine.ClassOK) || string(o.Value) != c.value && c.value != "" {
			t.Errorf("%q gave %s %s (%q), want %s %s", c.source, o.Label(), o.Value, o.Message, c.label, c.value)
		}
		if (o.Value == nil) != (c.value == "") && o.Label() == c.label {
			t.Errorf("%q gave the value %q, want %q", c.source, o.Value, c.value)
		}
		mustVerify(t, v)
	}
}

// Every guard, with the class it must give, and a clean VM behind it.
func TestGuards(t *testing.T) {
	v := newTestVM(t, newTestEngine(t, Config{}))
	short := engine.Limits{WallClock: 20 * time.Millisecond}
	for _, c := range []struct {
		source string
		limits engine.Limits
		label  string
		killed bool
	}{
		{"for(;;);", short, "limit:wallClock", false},
		{"10n**10000000n", short, "limit:wallClock", true},
		{"try{for(;;);}finally{for(;;);}", short, "limit:wallClock", false},
		{"(async()=>{for(;;)await 1})()", short, "limit:wallClock", false},
		{"({toJSON(){for(;;);}})", short, "limit:wallClock", false},
		{"throw {toString(){for(;;);}}", short, "limit:wallClock", false},
		{"let e=new Error('m');Object.defineProperty(e,'stack',{get(){for(;;);}});throw e", engine.Limits{}, "error", false},
		{"for(;;);", engine.Limits{Fuel: 100000}, "limit:fuel", false},
		{"let a=[];for(;;)a.push({})", engine.Limits{MemoryBytes: 2 << 20}, "limit:memory", false},
		{"'x'.repeat(5e8)", engine.Limits{}, "limit:memory", false},
		{"try{'x'.repeat(5e8)}catch(e){var s=e}; throw s", engine.Limits{}, "limit:memory", false},
		{"try{'x'.repeat(5e8)}catch(e){}; throw new InternalError('out of memory')", engine.Limits{}, "error", false},
		{"try{'x'.repeat(5e8)}catch(e){7}", engine.Limits{}, "ok", false},
		{"(async()=>{'x'.repeat(5e8)})()", engine.Limits{}, "limit:memory", false},
		{"(function f(){f()})()", engine.Limits{}, "limit:stack", false},
		{"(async function(){(function f(){f()})()})()", engine.Limits{}, "limit:stack", false},
		{"(function f(){try{f()}catch(e){throw new RangeError('Maximum call stack size exceeded')}})()", engine.Limits{}, "error", false},
		{"new RegExp('(?:'.repeat(100000))", engine.Limits{}, "limit:stack", false},
		{"Error.prepareStackTrace=()=>{throw 1};(function f(){f()})()", engine.Limits{}, "limit:stack", false},
		{"'x'.repeat(100)", engine.Limits{MaxOutputBytes: 101}, "limit:output", false},
		{"'x'.repeat(100)", engine.Limits{MaxOutputBytes: 102}, "ok", false},
		{"throw null", engine.Limits{}, "error", false},
		{"throw new InternalError('interrupted')", engine.Limits{}, "error", false},
	} {
		o := eval(v, c.source, c.limits)
		if o.Label() != c.label {
			t.Errorf("%q gave %s (%q), want %s", c.source, o.Label(), o.Message, c.label)
		}
		if c.killed && !o.Killed {
			t.Errorf("%q was not killed, though nothing in it polls", c.source)
		}
		mustVerify(t, v)
		if o := eval(v, "1+1", engine.Limits{}); string(o.Value) != "2" {
			t.Fatalf("1+1 after %q gave %s %s", c.source, o.Label(), o.Value)
		}
	}
}

// A clean interrupt says where the script was.
func TestInterruptNamesThePlace(t *testing.T) {
	v := newTestVM(t, newTestEngine(t, Config{}))
	o := eval(v, "function inner(){for(;;);}\ninner()", engine.Limits{Fuel: 50_000})
	if o.Label() != "limit:fuel" || !strings.Contains(o.JSStack, "inner (script.js:1") {
		t.Fatalf("got %s with stack %q, want limit:fuel with the place", o.Label(), o.JSStack)
	}
}

func TestFuelIsExactAndDeterministic(t *testing.T) {
	v := newTestVM(t, newTestEngine(t, Config{}))
	source := "let s=0;for(let i=0;i<20000;i++)s+=i;s"
	first := eval(v, source, engine.Limits{})
	if first.Class != engine.ClassOK || first.Usage.Fuel < 20000 {
		t.Fatalf("got %s with fuel %d, want ok with at least 20,000", first.Label(), first.Usage.Fuel)
	}
	for i := range 100 {
		if i%3 == 0 {
			eval(v, "let a=[];for(;;)a.push({})", engine.Limits{MemoryBytes: 2 << 20})
		}
		o := eval(v, source, engine.Limits{})
		if o.Usage.Fuel != first.Usage.Fuel || o.Usage.PeakMemoryBytes != first.Usage.PeakMemoryBytes || string(o.Value) != string(first.Value) {
			t.Fatalf("run %d: fuel %d, peak %d, value %s; want %d, %d, %s", i, o.Usage.Fuel, o.Usage.PeakMemoryBytes, o.Value,
				first.Usage.Fuel, first.Usage.PeakMemoryBytes, first.Value)
		}
	}
	// The budget itself: what a run used is enough for it, a unit less is not.
	if o := eval(v, source, engine.Limits{Fuel: first.Usage.Fuel + 1}); o.Class != engine.ClassOK {
		t.Errorf("with fuel %d got %s, want ok", first.Usage.Fuel+1, o.Label())
	}
	if o := eval(v, source, engine.Limits{Fuel: first.Usage.Fuel / 2}); o.Label() != "limit:fuel" {
		t.Errorf("with half the fuel got %s, want limit:fuel", o.Label())
	}
	twice := eval(v, strings.Replace(source, "20000", "40000", 1), engine.Limits{})
	if r := float64(twice.Usage.Fuel) / float64(first.Usage.Fuel); math.Abs(r-2) > 0.1 {
		t.Errorf("twice the loop used %.2f times the fuel, want about 2", r)
	}
}

// The same in another process: the test binary runs itself.
func TestSameInAnotherProcess(t *testing.T) {
	if os.Getenv("SANDBED_PRINT_USAGE") != "" {
		v := newTestVM(t, newTestEngine(t, Config{}))
		fmt.Printf("usage %s\n", sameRun(v))
		return
	}
	v := newTestVM(t, newTestEngine(t, Config{}))
	want := sameRun(v)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSameInAnotherProcess$", "-test.v")
	cmd.Env = append(os.Environ(), "SANDBED_PRINT_USAGE=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !strings.Contains(string(out), "usage "+want+"\n") {
		t.Fatalf("another process gave\n%swant usage %s", out, want)
	}
}

func sameRun(v *VM) string {
	o := eval(v, "let m=new Map();for(let i=0;i<3000;i++)m.set('k'+i,{i,r:Math.random()});[...m.values()].sort((a,b)=>a.r-b.r).slice(0,9).concat(Date.now())", engine.Limits{})
	return fmt.Sprintf("%s %d %d %d %s", o.Label(), o.Usage.Fuel, o.Usage.PeakMemoryBytes, o.Usage.StackBytes, o.Value)
}

// Growth stops at image + input + MemoryBytes, exactly, in whole pages.
func TestMemoryCeiling(t *testing.T) {
	v := newTestVM(t, newTestEngine(t, Config{}))
	for _, limit := range []int64{1 << 20, 3<<20 + 12345, 8 << 20, 32 << 20} {
		for _, input := range []string{"", `"` + strings.Repeat("x", 100_000) + `"`} {
			for _, source := range []string{"let a=[];for(;;)a.push({})", "let s=[];for(;;)s.push(new Uint8Array(50000))", "let s='ab';for(;;)s+=s+s.length"} {
				r := engine.Request{Script: engine.Script{Source: source}, Limits: engine.Limits{MemoryBytes: limit, WallClock: long}}
				if input != "" {
					r.Input = json.RawMessage(input)
				}
				o := v.Eval(t.Context(), r)
				most := o.Usage.ImageBytes + int64(len(input)) + limit
				if o.Usage.PeakMemoryBytes > most {
					t.Errorf("limit %d, input %d, %q: peak %d, want at most %d", limit, len(input), source, o.Usage.PeakMemoryBytes, most)
				}
				if o.Label() != "limit:memory" && o.Class != engine.ClassScriptError { // strings also end as "string too long"
					t.Errorf("limit %d: %q gave %s", limit, source, o.Label())
				}
				mustVerify(t, v)
			}
		}
	}
}

func TestInputThatDoesNotFit(t *testing.T) {
	v := newTestVM(t, newTestEngine(t, Config{}))
	for _, c := range []struct{ name, input string }{
		{"numbers", "[" + strings.Repeat("1,", 400_000) + "1]"},
		{"nesting", strings.Repeat("[", 200_000) + strings.Repeat("]", 200_000)},
	} {
		started := false
		o := v.Eval(t.Context(), engine.Request{Script: engine.Script{Source: "1"}, Input: json.RawMessage(c.input),
			Limits: engine.Limits{MemoryBytes: 2 << 20, WallClock: long}, OnScriptStart: func(time.Time) { started = true }})
		if o.Class != engine.ClassInputTooLarge || !o.DuringSeed || started {
			t.Errorf("%s: got %s, during seed %v, clock armed %v; want inputTooLarge before the clock", c.name, o.Label(), o.DuringSeed, started)
		}
		mustVerify(t, v)
	}
}

// TestShrink pins behaviour of wazero that is not written down: a memory takes
// the size of the slice that its allocator returns, also a smaller one.
func TestShrink(t *testing.T) {
	v := newTestVM(t, newTestEngine(t, Config{}))
	size := v.module.Memory().Size()
	eval(v, "'x'.repeat(3e6).length", engine.Limits{})
	if got := v.module.Memory().Size(); got != size {
		t.Fatalf("the memory has %d bytes after a restore, want %d", got, size)
	}
	// A load beyond the shrunk memory must trap, not read.
	if v.module.Memory().WriteByte(size, 1) {
		t.Fatal("a write beyond the shrunk memory went through")
	}
	mustVerify(t, v)
}

// A script that corrupts memory cannot leave anything behind, wherever it writes.
func TestRestoreAfterCorruption(t *testing.T) {
	v := newTestVM(t, newTestEngine(t, Config{}))
	img := v.engine.image
	for _, at := range []uint32{0, 1024, 100_000, img.stackLow, img.stackLow + 4096, (img.stackLow + img.stackTop) / 2, img.stackTop - 1, img.stackTop, img.rt, img.js, uint32(len(img.memory)) - 1} {
		v.mem.bytes()[at] ^= 0x55
		if v.verify() == nil {
			t.Fatalf("verify did not see a changed byte at %#x", at)
		}
		if err := v.restore(); err != nil {
			t.Fatal(err)
		}
		mustVerify(t, v)
	}
}

func TestKill(t *testing.T) {
	v := newTestVM(t, newTestEngine(t, Config{}))
	for _, source := range []string{"for(;;);", "Array.prototype.reverse.call({length:9007199254740991})"} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("the pool says so")
		o := v.Eval(ctx, engine.Request{Script: engine.Script{Source: source}, Limits: engine.Limits{WallClock: long},
			OnScriptStart: func(time.Time) { cancel(cause) }})
		if o.Class != engine.ClassCanceled || !o.Killed || context.Cause(ctx) != cause {
			t.Errorf("%q: got %s, killed %v", source, o.Label(), o.Killed)
		}
		mustVerify(t, v)
	}
	// A kill while the input is parsed.
	ctx, cancel := context.WithCancel(t.Context())
	go cancel()
	o := v.Eval(ctx, engine.Request{Script: engine.Script{Source: "1"}, Input: json.RawMessage("[" + strings.Repeat(`{"a":1},`, 1_500_000) + "1]"),
		Limits: engine.Limits{WallClock: long, MemoryBytes: 1 << 30}})
	if o.Class != engine.ClassCanceled {
		t.Errorf("a kill while seeding gave %s", o.Label())
	}
	mustVerify(t, v)
}

func TestCallbacks(t *testing.T) {
	v := newTestVM(t, newTestEngine(t, Config{}))
	var calls []string
	record := func(s string) func(time.Time) { return func(time.Time) { calls = append(calls, s) } }
	for source, want := range map[string]string{"1": "start finish", "throw 1": "start", "({toJSON(){throw 1}})": "start"} {
		calls = nil
		v.Eval(t.Context(), engine.Request{Script: engine.Script{Source: source}, OnScriptStart: record("start"), OnFinished: record("finish")})
		if got := strings.Join(calls, " "); got != want {
			t.Errorf("%q: callbacks %q, want %q", source, got, want)
		}
	}
}

// The native stacks of the exports grow with deep recursion and never shrink,
// so deep use must replace them.
func TestNativeStacksAreReplaced(t *testing.T) {
	v := newTestVM(t, newTestEngine(t, Config{}))
	before := v.fn.eval
	eval(v, "1+1", engine.Limits{})
	if v.fn.eval != before {
		t.Error("a shallow run replaced the functions, which costs microseconds for nothing")
	}
	eval(v, "(function f(){f()})()", engine.Limits{})
	if v.fn.eval == before {
		t.Error("a stack overflow kept the grown native stack")
	}
}

func TestStackLimit(t *testing.T) {
	e := newTestEngine(t, Config{})
	v := newTestVM(t, e)
	depth := func(stack int64) int {
		o := eval(v, "let n=0;function f(){n++;f()};try{f()}catch{};n", engine.Limits{StackBytes: stack})
		var n int
		if err := json.Unmarshal(o.Value, &n); err != nil {
			t.Fatalf("stack %d: %s %s", stack, o.Label(), o.Message)
		}
		return n
	}
	full, half, least := depth(0), depth(512<<10), depth(64<<10)
	if full < 2*half-half/5 || half < 6*least || least < 50 {
		t.Errorf("frames with 1 MiB, 512 KiB and 64 KiB: %d, %d, %d; want them in proportion", full, half, least)
	}
	if _, err := e.InProcess().Run(t.Context(), engine.Request{Limits: engine.Limits{StackBytes: 2 << 20}}); err == nil {
		t.Error("a larger stack than the engine's was accepted")
	}
}

func TestClosed(t *testing.T) {
	e, err := New(t.Context(), Config{})
	if err != nil {
		t.Fatal(err)
	}
	v, err := e.newVM(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	}
	if o := eval(v, "1", engine.Limits{}); o.Class != engine.ClassEngineFault {
		t.Errorf("Eval after Close gave %s", o.Label())
	}
	b := e.InProcess()
	if err := b.Warm(t.Context()); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := b.Run(t.Context(), engine.Request{}); !errors.Is(err, engine.ErrClosed) {
		t.Errorf("Run after Close gave %v", err)
	}
	if _, err := e.NewVM(t.Context()); !errors.Is(err, engine.ErrClosed) {
		t.Errorf("NewVM after Close gave %v", err)
	}
}

func TestMeteringKinds(t *testing.T) {
	for _, m := range []Metering{Off, CloseOnDone} {
		e := newTestEngine(t, Config{Metering: m})
		v := newTestVM(t, e)
		for range 2 { // CloseOnDone loses its instance and must make a new one
			if o := eval(v, "for(;;);", engine.Limits{WallClock: 10 * time.Millisecond}); o.Label() != "limit:wallClock" {
				t.Errorf("%s: an endless loop gave %s (%s)", m, o.Label(), o.Message)
			}
			if o := eval(v, "1+1", engine.Limits{}); string(o.Value) != "2" || o.Usage.Fuel != 0 {
				t.Errorf("%s: 1+1 gave %s %s with fuel %d", m, o.Label(), o.Value, o.Usage.Fuel)
			}
			mustVerify(t, v)
		}
		if _, err := e.InProcess().Run(t.Context(), engine.Request{Limits: engine.Limits{Fuel: 5}}); err == nil {
			t.Errorf("%s: a fuel limit was accepted", m)
		}
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		config Config
		names  string
	}{
		{Config{Metering: "of"}, "Config.Metering"},
		{Config{StackBytes: 1}, "Config.StackBytes"},
		{Config{StackBytes: 1 << 40}, "Config.StackBytes"},
		{Config{Now: time.Date(1900, 1, 1, 0, 0, 0, 0, time.UTC)}, "Config.Now"},
	} {
		if _, err := New(t.Context(), c.config); err == nil || !strings.Contains(err.Error(), c.names) {
			t.Errorf("%+v gave %v, want an error that names %s", c.config, err, c.names)
		}
	}
	values := map[string]bool{}
	for _, seed := range []uint64{0, 1, 1} {
		v := newTestVM(t, newTestEngine(t, Config{Seed: seed, Now: time.Unix(1234, 0), StackBytes: 100_000}))
		o := eval(v, "[Math.random(),Math.random(),Date.now(),performance.now()]", engine.Limits{})
		if !strings.HasSuffix(string(o.Value), ",1234000,0]") {
			t.Errorf("got %s, want the clock at 1234 s", o.Value)
		}
		values[string(o.Value)] = true
	}
	if len(values) != 2 {
		t.Errorf("two seeds gave %d sequences: %v", len(values), values)
	}
	// A cache directory that cannot be made costs time, not the engine.
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	newTestEngine(t, Config{CacheDir: filepath.Join(file, "dir")})
}

// Many goroutines on one engine, with kills, under -race.
func TestBackend_hammer(t *testing.T) {
	b := newTestEngine(t, Config{}).InProcess()
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 25 {
				ctx, cancel := context.WithCancel(t.Context())
				source, want := fmt.Sprintf("%d+%d", g, i), fmt.Sprint(g+i)
				r := engine.Request{Script: engine.Script{Source: source}, Limits: engine.Limits{WallClock: long}}
				if i%5 == 0 {
					r.Script.Source, r.OnScriptStart = "for(;;);", func(time.Time) { cancel() }
				}
				o, err := b.Run(ctx, r)
				if err != nil {
					t.Error(err)
				} else if i%5 == 0 && o.Class != engine.ClassCanceled || i%5 != 0 && string(o.Value) != want {
					t.Errorf("%q gave %s %s", r.Script.Source, o.Label(), o.Value)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if err := b.(*inProcess).VerifyImage(t.Context()); err != nil {
		t.Error(err)
	}
}

// A VM that is running does not keep the collector waiting: with the hook it
// enters Go every quantum. The same burner without metering is the control.
func TestCollectorIsNotHeldUp(t *testing.T) {
	if runtime.GOMAXPROCS(0) < 2 {
		t.Fatal("needs two processors to see a stop-the-world wait: set GOMAXPROCS to 2 or more")
	}
	collections := func(m Metering) int {
		v := newTestVM(t, newTestEngine(t, Config{Metering: m}))
		n, done := 0, make(chan struct{})
		r := engine.Request{Script: engine.Script{Source: "(3n**300000n)%7n===0n"}, Limits: engine.Limits{WallClock: long}}
		started := make(chan struct{})
		r.OnScriptStart = func(time.Time) { close(started) }
		go func() { defer close(done); v.Eval(context.Background(), r) }()
		<-started
		for {
			select {
			case <-done:
				return n
			default:
				runtime.GC()
				n++
			}
		}
	}
	with, without := collections(On), collections(Off)
	t.Logf("collections while one power ran: %d with metering, %d without", with, without)
	if with < 3*without {
		t.Errorf("while one BigInt power ran the collector finished %d times with metering and %d without, want at least 3 times as many", with, without)
	}
}
