package enginetest

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/sandbed/sandbed/engine"
)

// probe is one script of a law and what must come of it.
type probe struct {
	name, js string
	kind     engine.Kind
	input    string
	wall     time.Duration // 0 means a clock that the script is not meant to meet
	memory   int64         // 0 means the reference limit
	want     string        // label
	also     []string      // labels that are accepted too
	value    string        // JSON text, or "absent", of an ok run; empty: not compared
	message  bool          // the outcome must carry a message
}

func (p probe) request(s *suite) engine.Request {
	r := engine.Request{Script: engine.Script{Source: p.js, Kind: p.kind}, Limits: s.limits(p.wall)}
	if p.input != "" {
		r.Input = json.RawMessage(p.input)
	}
	if p.memory > 0 {
		r.Limits.MemoryBytes = p.memory
	}
	return r
}

// probes makes the check of a law out of scripts. Each is followed by a clean 1+1.
func probes(law string, list []probe) func(*scope) {
	return func(sc *scope) {
		for _, p := range list {
			if sc.s.stopped() {
				return
			}
			sub := sc.sub(p.name)
			got := sub.eval(sc.s.ctx, p.request(sc.s))
			switch {
			case got.lost:
			case got.label != p.want && !slices.Contains(p.also, got.label):
				sub.add(law, "%s gave %s %s, want %s: %s", quote(p.js), got.label, quote(got.value()), p.want, sub.why(got))
			case got.label == "ok" && p.value != "" && got.value() != p.value:
				sub.add(law, "%s gave %s, want %s", quote(p.js), quote(got.value()), p.value)
			case p.message && got.out.Message == "":
				sub.add(law, "%s gave %s without a message", quote(p.js), got.label)
			case p.want == "error" && got.label == "error" && got.out.Killed:
				sub.add(law, "%s is a script error, and the run says it was killed", quote(p.js))
			}
			sub.clean()
		}
	}
}

// sub is a scope for one script of a law; its findings are the law's too.
func (sc *scope) sub(name string) *scope {
	return &scope{s: sc.s, name: sc.name + "/" + name}
}

const (
	burn = ReferenceWallClock
	mib  = 1 << 20

	// ie is QuickJS's class for its own guards, or what stands in for it elsewhere.
	ie = `const IE=globalThis.InternalError||Error;`

	stackText  = `"Maximum call stack size exceeded"`
	overflow   = `(function f(){f()})()`
	exhaust    = `{const k=[];for(;;)k.push(new Array(1000).fill(k))}`
	neverPolls = `("a".repeat(1000000)).indexOf("a".repeat(400000)+"b")`
)

var runawayLoop = []probe{
	{name: "for", js: `for(;;){}`, wall: burn, want: "limit:wallClock"},
	{name: "while", js: `let n=0;while(true)n++`, wall: burn, want: "limit:wallClock"},
	{name: "catch", js: `try{for(;;);}catch(e){"caught"}`, wall: burn, want: "limit:wallClock"},
	{name: "finally", js: `try{for(;;);}finally{for(;;);}`, wall: burn, want: "limit:wallClock"},
	{name: "catch-in-loop", js: `for(;;){try{for(;;);}catch(e){}}`, wall: burn, want: "limit:wallClock"},
	{name: "await", js: `(async()=>{for(;;)await null})()`, wall: burn, want: "limit:wallClock"},
	{name: "microtasks", js: `new Promise(r=>{(function f(){Promise.resolve().then(f)})()})`, wall: burn, want: "limit:wallClock"},
	{name: "recursion-that-catches", js: `function f(){try{f()}catch(e){f()}};f()`, wall: burn, want: "limit:wallClock", also: []string{"limit:stack"}},
	{name: "module", js: `export default ()=>{for(;;);}`, kind: engine.Module, wall: burn, want: "limit:wallClock"},
	{name: "toJSON", js: `({toJSON(){for(;;);}})`, wall: burn, want: "limit:wallClock"},
	{name: "message-getter", js: `const e=new Error();Object.defineProperty(e,"message",{get(){for(;;);}});throw e`, wall: burn, want: "limit:wallClock", also: []string{"error"}},
}

var wallClock = []probe{
	{name: "search", js: neverPolls, wall: burn, want: "limit:wallClock"},
	{name: "array-like", js: `Array.prototype.lastIndexOf.call({length:4294967295},2)`, wall: burn, want: "limit:wallClock"},
	{name: "array-like-reverse", js: `Array.prototype.reverse.call({length:9007199254740990})`, wall: burn, want: "limit:wallClock"},
	{name: "regexp", js: `/^(a+)+$/.test("a".repeat(40)+"!")`, wall: burn, want: "limit:wallClock"},
	{name: "during-the-dump", js: `({toJSON(){return ` + neverPolls + `}})`, wall: burn, want: "limit:wallClock"},
	{name: "short-scripts-are-left-alone", js: `let n=0;for(let i=0;i<20000;i++)n+=i;n`, want: "ok", value: "199990000"},
}

var allocationBomb = []probe{
	{name: "objects-1MiB", js: `let a=[];for(;;)a.push({x:1,y:2})`, memory: mib, want: "limit:memory"},
	{name: "objects-4MiB", js: `let a=[];for(;;)a.push({x:1,y:2,z:3,w:4})`, memory: 4 * mib, want: "limit:memory"},
	{name: "arrays-8MiB", js: `let a=[];for(;;)a.push(new Array(1000).fill(7))`, memory: 8 * mib, want: "limit:memory"},
	{name: "buffers-32MiB", js: `let a=[];for(;;){const b=new Uint8Array(100000);b[0]=1;a.push(b)}`, want: "limit:memory"},
	{name: "strings-32MiB", js: `let a=[];for(let i=0;;i++)a.push("x".repeat(262144)+i)`, want: "limit:memory"},
	{name: "one-huge-string", js: `"xyz".repeat(100000000).length`, want: "limit:memory"},
	{name: "during-the-dump", js: `({toJSON(){let a=[];for(;;)a.push(new Array(999).fill(7))}})`, want: "limit:memory"},
	{name: "half-is-allowed", js: `new Uint8Array(4194304).length`, memory: 8 * mib, want: "ok", value: "4194304"},
	{name: "garbage-is-not-use", js: `for(let i=0;i<200;i++)new Uint8Array(1048576);"done"`, memory: 8 * mib, want: "ok", value: `"done"`},
}

var stackOverflow = []probe{
	{name: "recursion", js: `function f(){return f()+2}f()`, want: "limit:stack"},
	{name: "getter", js: `const o={get x(){return this.x}};o.x`, want: "limit:stack"},
	{name: "json", js: `JSON.parse("[".repeat(100001))`, want: "limit:stack", also: []string{"error"}},
	{name: "eval", js: `eval("(".repeat(50001)+"1"+")".repeat(50001))`, want: "limit:stack", also: []string{"error"}},
	{name: "proxy", js: `let p={};for(let i=0;i<100000;i++)p=new Proxy(p,{});p.x`, want: "limit:stack", also: []string{"error", "limit:memory"}},
	{name: "during-the-dump", js: `({toJSON(){return (function f(){return f()+3})()}})`, want: "limit:stack"},
	{name: "moderate-recursion-is-allowed", js: `(function f(n){return n?f(n-1)+1:0})(199)`, want: "ok", value: "199"},
}

// ambient probes a name without touching it: typeof of an undeclared name is harmless.
const ambient = `["std","os","bjson","require","module","exports","process","Deno","Bun","fetch","XMLHttpRequest","WebSocket",` +
	`"setTimeout","setInterval","setImmediate","WebAssembly","Worker","SharedWorker","importScripts","navigator","location",` +
	`"console","print","scriptArgs","gc","load","read","readFile","open","evalScript","__loadScript","Java","javax"]` +
	`.filter(n=>eval("typeof "+n)!=="undefined").join()`

var noAmbientIO = []probe{
	{name: "names", js: ambient, want: "ok", value: `""`},
	{name: "names-in-a-module", js: `export default ()=>["std","os","require","process","fetch","WebAssembly"].filter(n=>typeof globalThis[n]!=="undefined").join()`, kind: engine.Module, want: "ok", value: `""`},
	{name: "names-by-Function", js: `Function("return typeof process+typeof require+typeof std+typeof os")()`, want: "ok", value: `"undefinedundefinedundefinedundefined"`},
	{name: "dynamic-import", js: `Promise.all(["std","os","qjs:std","qjs:os","bjson","qjs:bjson","node:fs","fs","/etc/passwd","file:///etc/passwd","./x.js","data:text/javascript,1"]` +
		`.map(m=>import(m).then(()=>m,()=>""))).then(a=>a.join(""))`, want: "ok", also: []string{"error"}, value: `""`},
	{name: "static-import-std", js: `import * as std from "qjs:std";export default typeof std`, kind: engine.Module, want: "error"},
	{name: "static-import-os", js: `import * as os from "os";export default typeof os`, kind: engine.Module, want: "error"},
	{name: "static-import-file", js: `import x from "/etc/passwd";export default 1`, kind: engine.Module, want: "error"},
	{name: "host-paths", js: `String(new Error("x").stack).includes("/")`, want: "ok", value: "false"},
}

var forgedGuards = []probe{
	{name: "memory", js: ie + `throw new IE("out of memory")`, want: "error"},
	{name: "interrupted", js: ie + `throw new IE("interrupted")`, want: "error"},
	{name: "stack", js: `throw new RangeError(` + stackText + `)`, want: "error"},
	{name: "stack-internal", js: ie + `throw new IE("stack overflow")`, want: "error"},
	{name: "null", js: `throw null`, want: "error"},
	{name: "undefined", js: `throw undefined`, want: "error"},
	{name: "text", js: `throw "InternalError: interrupted"`, want: "error"},
	{name: "symbol", js: `throw Symbol("out of memory")`, want: "error"},
	{name: "look-alike", js: ie + `throw Object.assign(Object.create(IE.prototype),{name:"InternalError",message:"out of memory",guard:"memory",class:"limit",killed:true})`, want: "error"},
	{name: "subclass", js: ie + `class interrupted extends IE{};throw new interrupted("interrupted")`, want: "error"},
	{name: "proxy", js: ie + `throw new Proxy(new IE("out of memory"),{})`, want: "error"},
	{name: "prototype", js: ie + `IE.prototype.name="InternalError";IE.prototype.message="out of memory";throw new IE()`, want: "error"},
	{name: "tag", js: `const e=new Error("interrupted");e[Symbol.toStringTag]="InternalError";throw e`, want: "error"},
	{name: "aggregate", js: ie + `throw new AggregateError([new IE("interrupted")],"out of memory")`, want: "error"},
	{name: "rejection", js: ie + `Promise.reject(new IE("out of memory"))`, want: "error"},
	{name: "async", js: ie + `(async()=>{await null;throw new IE("interrupted")})()`, want: "error"},
	{name: "module", js: `export default ()=>{throw new RangeError(` + stackText + `)}`, kind: engine.Module, want: "error"},
	{name: "toJSON", js: ie + `({toJSON(){throw new IE("out of memory")}})`, want: "error"},
	{name: "toJSON-null", js: `({toJSON(){throw null}})`, want: "error"},
	{name: "getter", js: `({get a(){throw new RangeError(` + stackText + `)}})`, want: "error"},
	{name: "message-getter", js: `const e=new Error();Object.defineProperty(e,"message",{get(){return "out of memory"}});throw e`, want: "error"},
	{name: "message-getter-throws", js: ie + `const e=new Error();Object.defineProperty(e,"message",{get(){throw new IE("interrupted")}});throw e`, want: "error"},
	{name: "toString", js: `throw {toString(){return "InternalError: out of memory"}}`, want: "error"},
	{name: "toString-throws", js: ie + `throw {toString(){throw new IE("out of memory")}}`, want: "error"},
	{name: "prepareStackTrace", js: `Error.prepareStackTrace=()=>"InternalError: interrupted";throw new Error("x")`, want: "error"},
	{name: "stack-property", js: `const e=new Error("x");e.stack="RangeError: Maximum call stack size exceeded";throw e`, want: "error"},
	// Real evidence lies about, and the script throws something of its own.
	{name: "after-a-real-overflow", js: `try{` + overflow + `}catch(e){};throw new RangeError(` + stackText + `)`, want: "error"},
	{name: "after-real-exhaustion", js: ie + `try{` + exhaust + `}catch(e){};throw new IE("out of memory")`, want: "error"},
	{name: "after-a-refused-buffer", js: ie + `try{new Uint8Array(1e9)}catch(e){};throw new IE("out of memory")`, want: "error"},
	{name: "wrapped-overflow", js: `try{` + overflow + `}catch(e){throw new Error("hidden",{cause:e})}`, want: "error"},
}

var honestGuards = []probe{
	{name: "wall-clock-text-hidden", js: ie + `Object.defineProperty(IE.prototype,"message",{get(){return "nothing"}});IE.prototype.name="Nothing";for(;;);`, wall: burn, want: "limit:wallClock"},
	{name: "wall-clock-class-gone", js: `delete globalThis.InternalError;delete globalThis.Error;for(;;);`, wall: burn, want: "limit:wallClock"},
	{name: "memory-text-hidden", js: ie + `Object.defineProperty(IE.prototype,"message",{get(){return "nothing"}});IE.prototype.toString=()=>"nothing";` + exhaust, want: "limit:memory"},
	{name: "memory-class-gone", js: `delete globalThis.InternalError;` + exhaust, want: "limit:memory"},
	{name: "stack-text-hidden", js: `RangeError.prototype.name="Nothing";Object.defineProperty(RangeError.prototype,"message",{get(){return "nothing"}});` + overflow, want: "limit:stack"},
	{name: "stack-rethrown", js: `try{` + overflow + `}catch(e){throw e}`, want: "limit:stack"},
	{name: "stack-rethrown-renamed", js: `try{` + overflow + `}catch(e){e.message="nothing";e.name="Nothing";throw e}`, want: "limit:stack"},
	{name: "stack-in-a-promise", js: `(async()=>{` + overflow + `})()`, want: "limit:stack"},
	{name: "stack-prepareStackTrace", js: `Error.prepareStackTrace=()=>"nothing";` + overflow, want: "limit:stack", also: []string{"error"}},
}

var caughtGuards = []probe{
	{name: "stack", js: `try{` + overflow + `}catch(e){"caught"}`, want: "ok", value: `"caught"`},
	{name: "memory", js: `try{` + exhaust + `}catch(e){"caught"}`, want: "ok", value: `"caught"`},
	{name: "one-refused-buffer", js: `try{new Uint8Array(1e9)}catch(e){"caught"}`, want: "ok", value: `"caught"`},
	{name: "stack-many-times", js: `let n=0;for(let i=0;i<20;i++)try{` + overflow + `}catch(e){n++}n`, want: "ok", value: "20"},
}

var resultValues = []probe{
	{name: "undefined", js: `undefined`, want: "ok", value: "absent"},
	{name: "void", js: `void "x"`, want: "ok", value: "absent"},
	{name: "null", js: `null`, want: "ok", value: "null"},
	{name: "NaN", js: `NaN`, want: "ok", value: "null"},
	{name: "infinity", js: `[1/0,-1/0,NaN]`, want: "ok", value: "[null,null,null]"},
	{name: "minus-zero", js: `-0`, want: "ok", value: "0"},
	{name: "undefined-keys", js: `({a:undefined,b:1,c:()=>1,d:Symbol("x")})`, want: "ok", value: `{"b":1}`},
	{name: "undefined-elements", js: `[undefined,()=>1,Symbol("x")]`, want: "ok", value: "[null,null,null]"},
	{name: "text", js: `"\u00e9\ud83d\ude00\n\"\\"`, want: "ok", value: "\"\u00e9\U0001F600\\n\\\"\\\\\""},
	{name: "lone-surrogate", js: `"\ud800"`, want: "ok", value: `"\ud800"`},
	{name: "date", js: `new Date(0)`, want: "ok", value: `"1970-01-01T00:00:00.000Z"`},
	{name: "map", js: `new Map([[1,2]])`, want: "ok", value: "{}"},
	{name: "boxed", js: `[new Number(1),new String("s"),new Boolean(true)]`, want: "ok", value: `[1,"s",true]`},
	{name: "key-order", js: `({b:1,a:2,1:3})`, want: "ok", value: `{"1":3,"b":1,"a":2}`},
	{name: "function", js: `(function(){return 1})`, want: "resultNotSerializable"},
	{name: "symbol", js: `Symbol("s")`, want: "resultNotSerializable"},
	{name: "cycle", js: `let a={};a.a=a;a`, want: "resultNotSerializable"},
	{name: "bigint", js: `12n`, want: "resultNotSerializable"},
	{name: "toJSON-undefined", js: `({toJSON(){}})`, want: "resultNotSerializable"},
	{name: "toJSON-once", js: `let n=0;({toJSON(){return ++n}})`, want: "ok", value: "1"},
	{name: "toJSON-throws", js: `({toJSON(){throw new Error("mine")}})`, want: "error", message: true},
	{name: "getter-once", js: `let n=0;({get a(){return ++n}})`, want: "ok", value: `{"a":1}`},
	{name: "JSON-replaced", js: `globalThis.JSON={stringify(){return "1"},parse(){return 2}};({a:[true]})`, want: "ok", value: `{"a":[true]}`},
	{name: "input", js: `input`, input: `{"b":[1,"é",null,true],"a":{"__proto__":1}}`, want: "ok", value: `{"b":[1,"é",null,true],"a":{"__proto__":1}}`},
	{name: "input-null", js: `input===null`, input: `null`, want: "ok", value: "true"},
	{name: "input-absent", js: `typeof input`, want: "ok", value: `"undefined"`},
	{name: "syntax-error", js: `let let = ;`, want: "error", message: true},
}

var moduleResults = []probe{
	{name: "value", js: `export default 42`, kind: engine.Module, want: "ok", value: "42"},
	{name: "detected", js: `export default 43`, want: "ok", value: "43"},
	{name: "function", js: `export default function(i){return i.a*2}`, kind: engine.Module, input: `{"a":21}`, want: "ok", value: "42"},
	{name: "function-sees-the-global-input", js: `export default i=>i===input`, kind: engine.Module, input: `{"a":21}`, want: "ok", value: "true"},
	{name: "function-without-input", js: `export default i=>typeof i`, kind: engine.Module, want: "ok", value: `"undefined"`},
	{name: "async-function", js: `export default async i=>{await null;return i.a+1}`, kind: engine.Module, input: `{"a":41}`, want: "ok", value: "42"},
	{name: "promise", js: `export default Promise.resolve({a:[1]})`, kind: engine.Module, want: "ok", value: `{"a":[1]}`},
	{name: "top-level-await", js: `const x=await Promise.resolve(6);export default x*7`, kind: engine.Module, want: "ok", value: "42"},
	{name: "throws", js: `export default ()=>{throw new Error("mine")}`, kind: engine.Module, want: "error", message: true},
	{name: "throws-at-top-level", js: `throw new Error("mine");export default 1`, kind: engine.Module, want: "error", message: true},
	{name: "returns-a-function", js: `export default ()=>()=>1`, kind: engine.Module, want: "resultNotSerializable"},
	{name: "not-as-a-program", js: `export default 44`, kind: engine.Program, want: "error", message: true},
}

var promiseResults = []probe{
	{name: "resolved", js: `Promise.resolve(7)`, want: "ok", value: "7"},
	{name: "nested", js: `Promise.resolve(Promise.resolve([7]))`, want: "ok", value: "[7]"},
	{name: "async", js: `(async()=>{await null;await null;return {a:1}})()`, want: "ok", value: `{"a":1}`},
	{name: "undefined", js: `Promise.resolve()`, want: "ok", value: "absent"},
	{name: "function", js: `Promise.resolve(()=>1)`, want: "resultNotSerializable"},
	{name: "rejected", js: `Promise.reject(new Error("mine"))`, want: "error", message: true},
	{name: "jobs-run-before-the-dump", js: `const o={n:0};Promise.resolve().then(()=>{o.n=1}).then(()=>{o.n=2});o`, want: "ok", value: `{"n":2}`},
}

// neverSettles are the scripts whose message must speak of the promise.
var neverSettles = []probe{
	{name: "never", js: `new Promise(()=>{"never"})`, want: "error", message: true},
	{name: "never-awaited", js: `(async()=>{await new Promise(()=>{})})()`, want: "error", message: true},
	{name: "never-in-a-module", js: `export default new Promise(()=>{})`, kind: engine.Module, want: "error", message: true},
}

var longMessages = []probe{
	{name: "message", js: `throw new Error("x".repeat(100000))`, want: "error", message: true},
	{name: "message-of-two-byte-characters", js: `throw new Error("y"+"\u00e9".repeat(100000))`, want: "error", message: true},
	{name: "message-of-four-byte-characters", js: `throw new Error("y\u{1f600}".repeat(50000))`, want: "error", message: true},
	{name: "message-of-a-lone-surrogate", js: `throw new Error("\ud800".repeat(50000))`, want: "error", message: true},
	{name: "thrown-text", js: `throw "x".repeat(100001)`, want: "error", message: true},
	{name: "stack", js: `const e=new Error("m");e.stack="s".repeat(100000);throw e`, want: "error", message: true},
	{name: "stack-of-two-byte-characters", js: `const e=new Error("m");e.stack="z"+"\u00e9".repeat(100000);throw e`, want: "error", message: true},
	{name: "function-name", js: `const o={["n".repeat(100000)](){throw new Error("m")}};o["n".repeat(100000)]()`, want: "error", message: true},
}

// pair is one isolation pair: what second gives must not depend on first.
type pair struct {
	name, first, second string
	wall                time.Duration // of first
	// together, if set, shows within one script that first would be seen by
	// second; by default that script is both in a row.
	together string
}

func (p pair) both() string {
	if p.together != "" {
		return p.together
	}
	return p.first + ";\n" + p.second
}

var isolationPairs = []pair{
	{name: "global", first: `globalThis.leak=1;1`, second: `typeof leak`},
	{name: "lexical", first: `let leak2=1;1`, second: `typeof leak2`},
	{name: "object-prototype", first: `Object.prototype.planted=1;1`, second: `typeof ({}).planted`},
	{name: "array-method", first: `Array.prototype.map=()=>["leaked"];1`, second: `[1].map(x=>x)`},
	{name: "array-iterator", first: `Array.prototype[Symbol.iterator]=function*(){yield 9};1`, second: `[...[1,2]].join()`},
	{name: "function-call", first: `Function.prototype.call=()=>9;1`, second: `(function(){return 1}).call()`},
	{name: "string-method", first: `String.prototype.trim=()=>"leaked";1`, second: `" a ".trim()`},
	{name: "symbol-registry", first: `Object.prototype[Symbol.for("k")]=1;1`, second: `typeof ({})[Symbol.for("k")]`},
	{name: "regexp-exec", first: `RegExp.prototype.exec=()=>null;1`, second: `/a/.test("a")`},
	{name: "regexp-statics", first: `/(secret)/.exec("secret");1`, second: `String(RegExp.$1)+String(RegExp.lastMatch)`},
	{name: "date", first: `Date.now=()=>5;1`, second: `Date.now()`},
	{name: "date-class", first: `globalThis.Date=class{getTime(){return 5}};1`, second: `new Date(7).getTime()`},
	{name: "random-replaced", first: `Math.random=()=>0.5;1`, second: `Math.random()`},
	{name: "random-state", first: `for(let i=0;i<10;i++)Math.random();1`, second: `Math.random()+1`},
	{name: "pending-job", first: `Promise.resolve().then(()=>{globalThis.late=1});1`, second: `typeof late`, together: `globalThis.late=1;typeof late`},
	{name: "pending-promise", first: `globalThis.settle=null;new Promise(r=>{settle=r});1`, second: `typeof settle`},
	{name: "then-replaced", first: `Promise.prototype.then=function(){throw new Error("leaked")};1`, second: `Promise.resolve(1).then(x=>x+1)`},
	{name: "finalization", first: `globalThis.reg=new FinalizationRegistry(()=>{globalThis.fin=1});(()=>{reg.register({},1)})();1`, second: `typeof reg+typeof fin`},
	{name: "weakref", first: `globalThis.weak=new WeakRef({});1`, second: `typeof weak`},
	{name: "prepareStackTrace", first: `Error.prepareStackTrace=()=>"leaked";1`, second: `String(new Error("x").stack)==="leaked"`},
	{name: "frozen", first: `Object.freeze(Array.prototype);1`, second: `Array.prototype.z=1;typeof [].z`},
	{name: "deleted", first: `delete globalThis.JSON;1`, second: `typeof JSON`},
	{name: "global-prototype", first: `Object.setPrototypeOf(globalThis,null);1`, second: `"hasOwnProperty" in globalThis`},
	{name: "global-accessor", first: `Object.defineProperty(globalThis,"planted",{get(){return 1}});1`, second: `typeof planted`},
	{name: "eval-declaration", first: `(0,eval)("var leak3=1");1`, second: `typeof leak3`},
	{name: "after-a-throw", first: `globalThis.leak4=1;throw new Error("x")`, second: `typeof leak4`, together: `globalThis.leak4=1;typeof leak4`},
	{name: "after-the-wall-clock", first: `globalThis.leak5=1;for(;;);`, second: `typeof leak5`, wall: burn, together: `globalThis.leak5=1;typeof leak5`},
	{name: "after-exhaustion", first: `globalThis.leak6=1;` + exhaust, second: `typeof leak6`, together: `globalThis.leak6=1;typeof leak6`},
	{name: "after-an-overflow", first: `globalThis.leak7=1;` + overflow, second: `typeof leak7`, together: `globalThis.leak7=1;typeof leak7`},
	{name: "after-a-dump-that-threw", first: `({toJSON(){globalThis.leak8=1;throw 1}})`, second: `typeof leak8`, together: `globalThis.leak8=1;typeof leak8`},
	{name: "job-left-by-the-wall-clock", first: `Promise.resolve().then(()=>{globalThis.late2=1});for(;;);`, second: `typeof late2`, wall: burn, together: `globalThis.late2=1;typeof late2`},
}
