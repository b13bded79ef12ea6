package properties

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/engine/quickjs"
	"github.com/sandbed/sandbed/fuzz/oracle"
	"github.com/sandbed/sandbed/pool"
)

var background = context.Background()

// P1: backends agree on everything but times, fuel included.
func TestP1BackendsAgree(t *testing.T) {
	e := newEngine(t)
	inProcess, worker := e.InProcess(), newWorker(t, e)
	var process engine.Backend
	if runtime.GOOS == "linux" { // the platform of process workers
		o := pool.DefaultOptions()
		o.Count, o.ColdStart = 1, time.Minute
		p, err := pool.NewProcesses(pool.Command{CacheDir: quickjs.DefaultCacheDir()}, o)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		process = p
	}
	n := 0
	hold(t, 120, 25, forAll(words(scriptWord()), func(list []string) error {
		p, err := program(list)
		if err != nil {
			return err
		}
		var log oracle.Log
		first := evaluate(background, inProcess, p.Request)
		oracle.Judge(&log, first)
		oracle.Equal(&log, oracle.Backends, "in-process and goroutine worker", first, evaluate(background, worker, p.Request), true)
		if n++; process != nil && (n%4 == 0 || log.Violations() != nil) {
			far := evaluate(background, process, p.Request)
			oracle.Equal(&log, oracle.Backends, "in-process and process worker", first, far, !far.Out.Killed)
		}
		return verdict(&log, p.Request.Script.Source)
	}))
}

// swallows finds what may catch a guard's error and go on: such a script may do
// anything when a limit is raised. So may one that sees when garbage is collected.
var swallows = regexp.MustCompile(`catch|finally|Promise|async|await|then|import|export|yield|Weak|Finalization|eval|Function\(|\.return`)

// raise is a document, how often a loop behind it turns, and which of its limits is
// raised how much: the one with this number, or all.
type raise struct {
	Words  []string
	Turns  int
	Field  int
	Factor int64
}

// P2: raising a limit never turns an ok run into a limited one, unless the script
// has seen a guard, or another budget was nearly used up.
func TestP2RaisingALimitLimitsNothing(t *testing.T) {
	e := newEngine(t)
	backend := e.InProcess()
	judged, tried, word := 0, 0, scriptWord()
	hold(t, 500, 20, forAll(draw(func(r *rand.Rand) raise {
		w := []string{"limits/quick"}
		for range r.Intn(1 + r.Intn(12)) {
			w = append(w, word(r))
		}
		return raise{w, r.Intn(10_000), r.Intn(6), 2 + r.Int63n(30)}
	}), func(c raise) error {
		p, err := program(c.Words)
		if err != nil {
			return err
		}
		tried++
		if p.Request.Script.Kind == engine.Detect {
			p.Request.Script.Source += fmt.Sprintf("\n;for(let $i=0;$i<%d;$i++)$q=$i;$r", c.Turns)
		}
		first := evaluate(background, backend, p.Request)
		u := first.Out.Usage
		l := p.Request.Limits
		if first.Label != "ok" || first.ByClock() || swallows.MatchString(p.Request.Script.Source) || l.Fuel > 0 && u.Fuel > l.Fuel/2 {
			return nil
		}
		judged++
		raised := p.Request
		raised.Limits = l.WithDefaults()
		rl := &raised.Limits
		for field, raise := range []func(){
			func() { rl.MemoryBytes = min(rl.MemoryBytes*c.Factor, engine.MaxMemoryBytes) },
			func() { rl.StackBytes = min(rl.StackBytes*c.Factor, engine.DefaultStackBytes) },
			func() { rl.Fuel *= c.Factor },
			func() { rl.WallClock *= time.Duration(c.Factor) },
			func() { rl.MaxOutputBytes = min(rl.MaxOutputBytes*c.Factor, engine.MaxMemoryBytes) },
		} {
			if c.Field == field || c.Field == 5 {
				raise()
			}
		}
		second := evaluate(background, backend, raised)
		for again := 1; again < 3 && second.Label == "limit:wallClock"; again++ { // the machine may be busy, not three times
			second = evaluate(background, backend, raised)
		}
		if second.Label != "ok" || !bytes.Equal(first.Out.Value, second.Out.Value) {
			return fmt.Errorf("ok %.100q under %+v, %s %.100q %.100q under %+v\n%s", first.Out.Value, l, second.Label, second.Out.Value, second.Out.Message,
				raised.Limits, p.Request.Script.Source)
		}
		return nil
	}))
	t.Logf("%d of %d cases were judged", judged, tried)
	if !t.Failed() && *seedFlag == 0 && judged*10 < tried {
		t.Errorf("%d of %d cases were judged, want a tenth: the generator makes too few plain scripts", judged, tried)
	}
}

// endless are scripts that never end by themselves, each busy in another phase.
var endless = []string{
	`for(;;){}`,
	`while(true){try{for(;;){}}catch{}finally{for(;;){}}}`,
	`(function f(){Promise.resolve().then(f)})()`,
	`(async()=>{for(;;)await 0})()`,
	`({toJSON(){for(;;){}}})`,
	`({get x(){for(;;){}}})`,
	`[1,{get y(){for(;;)new Map([[1,2]])}}]`,
	`throw {toString(){for(;;){}}}`,
	`Promise.reject({toString(){for(;;){}}})`,
	`export default function(){for(;;){}}`,
	`export default ({toJSON(){for(;;){}}})`,
	`await (async()=>{for(;;)await 0})(); export default 1`,
	`/(a*)*b/.exec("a".repeat(40))`,
	`new Array(2**32-1).join("x")`,
	`Array.prototype.reverse.call({length:2**53-1})`,
	`Array.prototype.includes.call({length:2**53-1},1)`,
	`let b=3n**200000n; for(let i=0;i<90;i++) b=b*b`,
	`for(const x of (function*(){for(;;)yield 1})()){}`,
	`new Proxy({}, {ownKeys(){for(;;){}}})`,
	`[3,2,1].sort(()=>{for(;;){}})`,
	`"x".replace(/x/,()=>{for(;;){}})`,
	`class A{static{for(;;){}}}`,
}

// burn is an endless script, what runs before it, and its wall clock in 1/10 ms.
type burn struct {
	Script int
	Before string
	Wall   int
}

// P3: a run ends by its wall clock and what the machine needs to notice, in-process;
// on a worker by the grace more.
func TestP3EndsByItsClock(t *testing.T) {
	e := newEngine(t)
	inProcess, worker := e.InProcess(), newWorker(t, e)
	unit := func() time.Duration { // what 16 looks at the clock cost here and now
		begun := time.Now()
		evaluate(background, inProcess, engine.Request{Script: engine.Script{Source: "for(;;){}"}, Limits: engine.Limits{Fuel: 1 << 17, WallClock: time.Hour}})
		return time.Since(begun)
	}
	// try returns how late the run was, and how late it may be.
	try := func(b engine.Backend, r engine.Request) (late, slack time.Duration, label string) {
		slack = 20 * unit()
		var idle atomic.Int64 // how late a timer is that is due when the clock is
		due := time.Now().Add(r.Limits.WallClock)
		timer := time.AfterFunc(r.Limits.WallClock, func() { idle.Store(int64(time.Since(due))) })
		defer timer.Stop()
		ctx, cancel := context.WithTimeout(background, r.Limits.WallClock+20*slack)
		defer cancel()
		got := evaluate(ctx, b, r)
		if got.Err != nil {
			return 0, 0, got.Err.Error()
		}
		return got.Overrun(), slack + 20*time.Duration(idle.Load()), got.Label
	}
	hold(t, 100, 10, forAll(draw(func(r *rand.Rand) burn {
		return burn{r.Intn(len(endless)), oneOf(r, "", "", "var q=[];", "1;", "globalThis.z=1;", "/*é*/"), 10 + r.Intn(60)}
	}), func(c burn) error {
		r := engine.Request{Script: engine.Script{Source: c.Before + endless[c.Script]}, Limits: engine.Limits{WallClock: time.Duration(c.Wall) * time.Millisecond / 10}}
		for _, b := range []struct {
			name string
			engine.Backend
		}{{"in-process", inProcess}, {"goroutine worker", worker}} {
			for again := 1; ; again++ {
				late, slack, label := try(b.Backend, r)
				if label == "limit:wallClock" && late <= slack {
					break
				}
				// The machine may have been busy; it is not so three times.
				if label != "limit:wallClock" && label != "canceled" || again == 3 {
					return fmt.Errorf("%s: ended as %s, %v after its clock of %v, allowed %v: %s", b.name, label, late, r.Limits.WallClock, slack, r.Script.Source)
				}
			}
		}
		return nil
	}))
}

// seeding is an input of so many numbers.
type seeding struct{ Numbers int }

// P5, on the real engine and counted in fuel: parsing the input is charged to no
// script. P5 in time is TestP5DelaysChangeNothing.
func TestP5SeedingCostsNoFuel(t *testing.T) {
	e := newEngine(t)
	backend := e.InProcess()
	const script = "let n=0; for(let i=0;i<100;i++) n+=i; n"
	plain := evaluate(background, backend, engine.Request{Script: engine.Script{Source: script}})
	if plain.Label != "ok" {
		t.Fatalf("%s %s", plain.Label, plain.Out.Message)
	}
	hold(t, 60, 10, forAll(draw(func(r *rand.Rand) seeding { return seeding{r.Intn(20_000)} }), func(c seeding) error {
		input := "[0" + strings.Repeat(",7", c.Numbers) + "]"
		got := evaluate(background, backend, engine.Request{Script: engine.Script{Source: script}, Input: json.RawMessage(input),
			Limits: engine.Limits{Fuel: plain.Out.Usage.Fuel * 2}})
		if got.Label != "ok" || string(got.Out.Value) != "4950" {
			return fmt.Errorf("with %d bytes of input the script ended as %s %q; it needs %d fuel, the limit was twice that, the run used %d",
				len(input), got.Label, got.Out.Value, plain.Out.Usage.Fuel, got.Out.Usage.Fuel)
		}
		return nil
	}))
}

// P6: sizes of results, inputs and scripts are bytes of UTF-8: a limit of just the
// size lets it pass, one less does not.
func TestP6SizesAreBytes(t *testing.T) {
	e := newEngine(t)
	eval := func(l engine.Limits, c engine.Call) string {
		s, err := engine.NewSandbox(e.InProcess(), engine.Spec{Limits: l})
		if err != nil {
			return err.Error()
		}
		_, err = s.Eval(background, c)
		if err == nil {
			return "ok"
		}
		var limit *engine.LimitExceeded
		if errors.As(err, &limit) {
			return "limit:" + string(limit.Kind)
		}
		var input *engine.InputTooLarge
		var script *engine.ScriptTooLarge
		switch {
		case errors.As(err, &input):
			return "input"
		case errors.As(err, &script):
			return "script"
		}
		return err.Error()
	}
	texts := []string{"x", "é", "漢", "😀", "\\n", "\\u0001"}
	hold(t, 150, 60, forAll(words(func(r *rand.Rand) string { return oneOf(r, texts...) }), func(list []string) error {
		literal := `"` + strings.Join(list, "") + `"`
		n := int64(len(literal)) // each of texts is written in JSON as it is written here
		for _, c := range []struct {
			what, over string
			call       engine.Call
			limits     func(int64) engine.Limits
			size       int64
		}{
			{"result", "limit:output", engine.Call{Script: engine.Script{Source: literal}}, func(n int64) engine.Limits { return engine.Limits{MaxOutputBytes: n} }, n},
			{"input", "input", engine.Call{Script: engine.Script{Source: "1"}, Input: json.RawMessage(literal)}, func(n int64) engine.Limits { return engine.Limits{MaxInputBytes: n} }, n},
			{"script", "script", engine.Call{Script: engine.Script{Source: literal}}, func(n int64) engine.Limits { return engine.Limits{MaxScriptBytes: n} }, n},
		} {
			for by := int64(-1); by <= 1; by++ {
				want := "ok"
				if by < 0 {
					want = c.over
				}
				if got := eval(c.limits(c.size+by), c.call); got != want {
					return fmt.Errorf("a %s of %d bytes under a limit of %d: got %s, want %s: %s", c.what, c.size, c.size+by, got, want, literal)
				}
			}
		}
		return nil
	}))
}

// globals shows everything that can be reached from the global object by names, and
// what a script can find out about its past otherwise.
const globals = `(()=>{const seen=new Set(),out=[];
const walk=(o,path,depth)=>{if((typeof o!=="object"||o===null)&&typeof o!=="function"||seen.has(o)||depth>3)return;seen.add(o);
for(const k of Reflect.ownKeys(o)){const d=Reflect.getOwnPropertyDescriptor(o,k),p=path+"."+String(k);
out.push(p,d.writable,d.enumerable,d.configurable,typeof d.value,d.value===Object(d.value)?0:String(d.value));
walk(d.value,p,depth+1);walk(d.get,p,depth+1);walk(d.set,p,depth+1)}
walk(Reflect.getPrototypeOf(o),path+".__proto__",depth+1)};
walk(globalThis,"",0);return [out.join(),Math.random(),Math.random(),Date.now(),new Error("x").stack]})()`

// P10: a run is as if it were the first: whatever ran before on the VM, globals,
// random numbers, fuel and memory are those of a VM that was just made.
func TestP10NoRunSeesAnother(t *testing.T) {
	e := newEngine(t)
	used := newVM(t, e)
	probe := engine.Request{Script: engine.Script{Source: globals}}
	want := evaluateOn(newVM(t, e), probe)
	if want.Label != "ok" {
		t.Fatalf("%s %s", want.Label, want.Out.Message)
	}
	hold(t, 150, 25, forAll(words(scriptWord()), func(list []string) error {
		p, err := program(list)
		if err != nil {
			return err
		}
		evaluateOn(used, p.Request)
		var log oracle.Log
		oracle.Equal(&log, oracle.Clean, "on a VM just made and after the script", want, evaluateOn(used, probe), true)
		return verdict(&log, p.Request.Script.Source)
	}))
}

// P11: the same script on two VMs gives the same value, message, fuel and memory.
func TestP11EqualRunsEqualFuel(t *testing.T) {
	e := newEngine(t)
	hold(t, 100, 25, forAll(words(scriptWord()), func(list []string) error {
		p, err := program(list)
		if err != nil {
			return err
		}
		// What a script can see of time and chance is part of every case.
		p.Request.Script.Source = "var $t=[Date.now(),Math.random(),new Date().toString(),typeof performance==='object'?performance.now():0];\n" + p.Request.Script.Source
		if p.Request.Script.Kind == engine.Detect {
			p.Request.Script.Source += "\n;[$t,String($r)]"
		}
		var runs [2]*oracle.Run
		for i := range runs {
			vm, err := e.NewVM(background)
			if err != nil {
				return err
			}
			runs[i] = evaluateOn(vm, p.Request)
			if err := vm.Close(); err != nil {
				return err
			}
		}
		var log oracle.Log
		oracle.Equal(&log, oracle.Same, "two VMs", runs[0], runs[1], true)
		return verdict(&log, p.Request.Script.Source)
	}))
}

// forgery is an error that a script makes up, and how it gets out.
type forgery struct{ Value, Way int }

var (
	forgedValues = []string{
		`null`, `undefined`, `"out of memory"`, `new InternalError("out of memory")`, `new InternalError("interrupted")`,
		`new InternalError("stack overflow")`, `new RangeError("Maximum call stack size exceeded")`, `new RangeError("invalid array length")`,
		`Object.assign(new Error("fuel"),{name:"limit",guard:"fuel",class:"limit"})`, `{class:"limit",guard:"wallClock"}`,
		`Object.create(InternalError.prototype,{message:{value:"out of memory"}})`, `new Error("stopped by a guard")`,
		`new Error("quickjs: stopped by a guard")`, `Object.freeze(new InternalError("interrupted"))`, `new WebAssemblyTrap()`, `1`, `Symbol("limit")`, `()=>1`,
		`(()=>{const e=new InternalError("interrupted"); e.name="InternalError"; e.stack=""; return e})()`,
		`new AggregateError([new InternalError("out of memory")],"out of memory")`, `new Proxy(new InternalError("out of memory"),{})`,
	}
	forgedWays = []string{
		`throw %s`, `Promise.reject(%s)`, `(async()=>{throw %s})()`, `({get x(){throw %s}})`, `({toJSON(){throw %s}})`,
		`throw {toString(){throw %s}}`, `[1].map(()=>{throw %s})`, `new Proxy({},{ownKeys(){throw %s}})`, `export default (()=>{throw %s})()`,
		`export default function(){throw %s}`, `new Promise((_,no)=>no(%s))`,
	}
	// Each meets its guard, and says something else.
	hidden = []struct{ js, want string }{
		{`function f(){try{f()}catch(e){throw null}} f()`, "error"}, // it was caught, and null is the script's own
		{`let a=[]; for(;;) a.push(new ArrayBuffer(1<<16))`, "limit:memory"},
		{`let s="x"; const a=[]; for(;;){s+=s.slice(0,1<<16);a.push([s,s.length])}`, "limit:memory"},
		{`function f(){return f()+1} f()`, "limit:stack"},
		{`Error.prepareStackTrace=()=>"error"; function f(){return [f()]} f()`, "limit:stack"},
		{`RangeError.prototype.name="TypeError"; delete RangeError.prototype.message; (function f(){f();f()})()`, "limit:stack"},
		{`InternalError=Error; let a=[]; for(;;) a.push(new Uint8Array(1<<16))`, "limit:memory"},
		{`for(;;){}`, "limit:fuel"},
		{`InternalError.prototype.toString=()=>"fine"; for(;;){}`, "limit:fuel"},
	}
)

// P12: what a script throws never passes for a guard, and no guard passes for what
// a script throws.
func TestP12GuardsCannotBeForged(t *testing.T) {
	e := newEngine(t)
	backend := e.InProcess()
	limits := engine.Limits{Fuel: 4_000_000, MemoryBytes: 4 << 20, StackBytes: 160 << 10, WallClock: time.Minute}
	hold(t, 200, 10, forAll(draw(func(r *rand.Rand) forgery {
		n := r.Intn(len(forgedValues) + 2)
		if n >= len(forgedValues) {
			return forgery{-1 - r.Intn(len(hidden)), 0}
		}
		return forgery{n, r.Intn(len(forgedWays))}
	}), func(c forgery) error {
		source, want := "", "error"
		if c.Value < 0 {
			source, want = hidden[-1-c.Value].js, hidden[-1-c.Value].want
		} else {
			source = fmt.Sprintf(forgedWays[c.Way], "("+forgedValues[c.Value]+")")
		}
		got := evaluate(background, backend, engine.Request{Script: engine.Script{Source: source}, Limits: limits})
		if got.Label != want {
			return fmt.Errorf("%s ended as %s (%.100q), want %s", source, got.Label, got.Out.Message, want)
		}
		return nil
	}))
}

// work is something to do so many times.
type work struct{ Kind, Times, More int }

var works = []struct {
	js   string // %d is how often
	step int    // what Times counts in
}{
	{`for(let i=0;i<%d;i++){}`, 1},
	{`let n=0; for(let i=0;i<%d;i++) n+=i; n`, 1},
	{`let i=0; while(i<%d) i++; i`, 1},
	{`let i=0; do i++; while(i<%d); i`, 1},
	{`(function f(n){return n?f(n-1)+1:0})(%d%%500)`, 1},
	{`const a=[]; for(let i=0;i<%d;i++) a.push(i); a.length`, 1},
	{`let s=""; for(let i=0;i<%d;i++) s+=i; s.length`, 1},
	{`const m=new Map; for(let i=0;i<%d;i++) m.set(i,i); m.size`, 1},
	{`(async()=>{for(let i=0;i<%d;i++) await i})()`, 1},
	{`let n=0; for(const x of (function*(){for(let i=0;i<%d;i++) yield i})()) n+=x; n`, 1},
	{`new Array(%d).fill(1).map(x=>x+1).length`, 1},
	{`JSON.stringify(new Array(%d).fill(7)).length`, 64},
	{`"ab".repeat(%d).split("a").length`, 64},
	{`/c/.test("ab".repeat(%d))`, 64},
	{`"ab".repeat(%d).indexOf("c")`, 1024},
	{`new Uint8Array(%d).indexOf(1)`, 1024},
	{`new Uint8Array(%d).fill(3).length`, 4096},
	{`const a=new Uint8Array(%d); a.slice().length`, 4096},
	{`const a=new Uint8Array(%d); a.copyWithin(1,0); a.length`, 4096},
	{`(10n**BigInt(%d)).toString().length`, 16},
	{`new Array(%d).fill(0).sort().length`, 64},
}

// P15: more work takes more fuel, and the same work takes the same in-process and on a worker.
func TestP15FuelFollowsWork(t *testing.T) {
	e := newEngine(t)
	inProcess, worker := e.InProcess(), newWorker(t, e)
	hold(t, 120, 10, forAll(draw(func(r *rand.Rand) work {
		return work{r.Intn(len(works)), 1 + r.Intn(200), 1 + r.Intn(20)}
	}), func(c work) error {
		w := works[c.Kind]
		var fuel [2]int64
		for i, n := range []int{c.Times, c.Times + c.More} {
			r := engine.Request{Script: engine.Script{Source: fmt.Sprintf(w.js, n*w.step)}, Limits: engine.Limits{WallClock: time.Minute}}
			near, far := evaluate(background, inProcess, r), evaluate(background, worker, r)
			if near.Label != "ok" {
				return fmt.Errorf("%s ended as %s %q", r.Script.Source, near.Label, near.Out.Message)
			}
			if near.Out.Usage.Fuel != far.Out.Usage.Fuel {
				return fmt.Errorf("%s used %d fuel in-process and %d on a worker", r.Script.Source, near.Out.Usage.Fuel, far.Out.Usage.Fuel)
			}
			fuel[i] = near.Out.Usage.Fuel
		}
		if fuel[1] <= fuel[0] {
			return fmt.Errorf("%s used %d fuel for %d and %d for %d", w.js, fuel[0], c.Times*w.step, fuel[1], (c.Times+c.More)*w.step)
		}
		return nil
	}))
}

// left is what a process holds that a pool could forget.
func left(t *testing.T) (n struct{ Goroutines, Mappings, Descriptors int }) {
	t.Helper()
	runtime.GC() // what finalizers give back is given back
	n.Goroutines = runtime.NumGoroutine()
	if runtime.GOOS != "linux" {
		return n
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	// The regions of linear memory, and nothing that the runtime may map meanwhile.
	for line := range strings.Lines(string(maps)) {
		var from, to uint64
		if _, err := fmt.Sscanf(line, "%x-%x ", &from, &to); err == nil && strings.Contains(line, "---p 00000000 00:00 0") && to-from >= 1<<30 {
			n.Mappings++
		}
	}
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n.Descriptors = len(files)
	return n
}

// P13, on the real engine: after Close of a pool its goroutines, the memory of its VMs and
// its descriptors are gone. P13 in virtual time is TestP13NothingIsLeft.
func TestP13EngineLeavesNothing(t *testing.T) {
	e := newEngine(t)
	evaluate(background, e.InProcess(), engine.Request{Script: engine.Script{Source: "1"}})
	before := left(t)
	hold(t, 12, 20, forAll(words(scriptWord()), func(list []string) error {
		p, err := program(list)
		if err != nil {
			return err
		}
		o := pool.DefaultOptions()
		o.Count, o.Spare, o.ColdStart, o.HardKillGrace = 2, 1, time.Minute, time.Minute
		workers, err := pool.New(e.NewVM, o)
		if err != nil {
			return err
		}
		var wg sync.WaitGroup
		for i := range 4 {
			ctx, cancel := context.WithCancel(background)
			r := p.Request
			if i%2 == 1 { // ended from outside, in the middle
				r.Script.Source, r.Limits = "for(;;){}", engine.Limits{WallClock: time.Minute}
				r.OnScriptStart = func(time.Time) { cancel() }
			}
			wg.Go(func() {
				defer cancel()
				evaluate(ctx, workers, r)
			})
		}
		wg.Wait()
		if err := workers.Close(); err != nil {
			return err
		}
		after := left(t)
		for again := 0; after != before && again < 100; again++ { // a goroutine that ends may still be counted
			runtime.Gosched()
			after = left(t)
		}
		if after != before {
			return fmt.Errorf("before the pool there were %+v, after its Close %+v", before, after)
		}
		return nil
	}))
}
