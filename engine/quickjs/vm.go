package quickjs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/tetratelabs/wazero/api"

	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/engine/quickjs/meter"
)

const (
	// quantum is how much fuel runs between two looks at the clock: some tens of
	// microseconds of interpreter.
	quantum = 8192
	// yieldEvery is how often a script lets other goroutines run in its place. A
	// yield wakes an idle processor to look for work, which finds this script and
	// takes it over: at each quantum that cost 3 to 6 % of the speed, and the
	// scheduler's own preemption comes after 10 ms.
	yieldEvery = 500 * time.Microsecond
	// unwind is how long after its deadline a script may take to end through
	// QuickJS's own exception, which still knows where the script was, before it is trapped.
	unwind = 200 * time.Microsecond
	// maxText is how much of a message or a stack is kept.
	maxText = 4 << 10
)

// VM is one QuickJS instance. It implements engine.VM.
type VM struct {
	engine *Engine
	module api.Module // nil after a discard or Close
	mem    *linearMemory
	ctx    *callContext
	fn     functions
	stack  [8]uint64 // arguments and result of a call

	fuel, sp, stackLimit, stackLow, pending api.MutableGlobal
	captured, capturedKind                  [meter.Captures]api.MutableGlobal

	booting   bool
	closed    bool
	wasiCalls int

	run run
}

// functions are the exports that an evaluation calls. Each holds a native stack
// that grows up to 50 MB and never shrinks, so they are fetched anew after deep use.
type functions struct {
	malloc, free, eval, evalFunction, namespace, getProperty, setProperty     api.Function
	call, isFunction, isPromise, promiseState, promiseResult, jobPending, job api.Function
	getException, parseJSON, stringify, toCString, isError, ownProperty       api.Function
}

func (v *VM) fetch() error {
	var missing []string
	get := func(name string) api.Function {
		f := v.module.ExportedFunction(name)
		if f == nil {
			missing = append(missing, name)
		}
		return f
	}
	f := &v.fn
	f.malloc, f.free = get("malloc"), get("free")
	f.eval, f.evalFunction = get("JS_Eval"), get("JS_EvalFunction")
	f.namespace, f.getProperty, f.setProperty = get("JS_GetModuleNamespace"), get("JS_GetPropertyStr"), get("JS_SetPropertyStr")
	f.call, f.isFunction = get("JS_Call"), get("JS_IsFunction")
	f.isPromise, f.promiseState, f.promiseResult = get("JS_IsPromise"), get("JS_PromiseState"), get("JS_PromiseResult")
	f.jobPending, f.job = get("JS_IsJobPending"), get("JS_ExecutePendingJob")
	f.getException, f.isError, f.ownProperty = get("JS_GetException"), get("JS_IsError"), get("JS_GetOwnProperty")
	f.parseJSON, f.stringify, f.toCString = get("JS_ParseJSON"), get("JS_JSONStringify"), get("JS_ToCStringLen2")
	if len(missing) > 0 {
		return fmt.Errorf("quickjs: the module does not export %s", strings.Join(missing, ", "))
	}
	return nil
}

// NewVM makes a VM from the boot image, in well under a millisecond. The caller closes it.
func (e *Engine) NewVM(ctx context.Context) (engine.VM, error) { return e.newVM(ctx) }

func (e *Engine) newVM(ctx context.Context) (*VM, error) {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil, engine.ErrClosed
	}
	e.live.Add(1)
	e.mu.Unlock()
	v := &VM{engine: e}
	if err := v.renew(ctx); err != nil {
		v.discard()
		e.live.Done()
		return nil, err
	}
	return v, nil
}

// Close implements engine.VM.
func (v *VM) Close() error {
	if v.closed {
		return nil
	}
	v.closed = true
	v.discard()
	v.engine.live.Done()
	return nil
}

// discard gives the instance back; the next evaluation makes a new one.
func (v *VM) discard() {
	if v.module != nil {
		_ = v.module.Close(context.Background()) // closes no resource that can fail
		v.module = nil
	}
}

// renew gives the VM a new instance, which starts as the image.
func (v *VM) renew(ctx context.Context) error {
	if err := v.instantiate(ctx); err != nil {
		return err
	}
	v.stackLow.Set(uint64(v.engine.image.stackTop)) // its stack is untouched
	return v.restore()
}

// invoke calls an export. An error is a trap or a panic of the host, never a
// JavaScript exception.
func (v *VM) invoke(f api.Function, args ...uint64) (uint64, error) {
	copy(v.stack[:], args)
	err := f.CallWithStack(v.ctx, v.stack[:])
	return v.stack[0], err
}

func (v *VM) callByName(name string, args ...uint64) (uint64, error) {
	f := v.module.ExportedFunction(name)
	if f == nil {
		return 0, fmt.Errorf("the module does not export %s", name)
	}
	return v.invoke(f, args...)
}

// run is the state of one evaluation.
type run struct {
	done     <-chan struct{} // the caller's kill
	deadline time.Time       // zero before the clock is armed
	yielded  time.Time       // when it last let other goroutines run
	fuelEnd  int64           // fuel at which the budget is used up
	refill   int64           // what the fuel global was last set to
	spent    int64           // fuel used before that
	tripped  engine.Guard    // the host has decided to end the script
	at       time.Time       // when it decided
	atFuel   int64
	canceled bool
	trapped  bool // by the hook
	limits   engine.Limits
	// mallocLimit is what QuickJS's accounting may hold, without the headroom.
	mallocLimit uint32
}

// errStop is what the hook panics with; no guest can make it.
var errStop = errors.New("quickjs: stopped by a guard")

func (v *VM) refuel(n int64) {
	v.run.refill = n
	v.fuel.Set(api.EncodeI32(int32(n)))
}

// used is the fuel used since the evaluation began.
func (v *VM) used() int64 {
	if v.engine.config.Metering != On {
		return 0
	}
	return v.run.spent + v.run.refill - int64(int32(v.fuel.Get()))
}

// hook runs when the fuel of a quantum is used up. It is where a script meets
// its clock, its budget and its caller's kill, and where other goroutines get the processor.
func (v *VM) hook() {
	r := &v.run
	r.spent = v.used()
	r.refill = 0
	v.fuel.Set(0)
	if v.booting {
		v.refuel(1 << 30)
		return
	}
	select {
	case <-r.done:
		r.canceled = true
		v.trap()
	default:
	}
	now := time.Now()
	next := int64(quantum)
	if !r.deadline.IsZero() {
		switch {
		case r.tripped == engine.WallClock && now.Sub(r.at) > unwind,
			r.tripped == engine.Fuel && r.spent-r.atFuel > 4*quantum,
			r.tripped == engine.Fuel && now.After(r.deadline):
			v.trap()
		case r.tripped != "":
		case now.After(r.deadline):
			v.trip(engine.WallClock, now)
		case r.fuelEnd > 0 && r.spent >= r.fuelEnd:
			v.trip(engine.Fuel, now)
		case r.fuelEnd > 0:
			next = min(next, r.fuelEnd-r.spent)
		}
	}
	v.refuel(next)
	if now.Sub(r.yielded) >= yieldEvery {
		runtime.Gosched()
		r.yielded = time.Now() // what the others took is not this script's turn
	}
}

// trip decides that the script ends now, and makes QuickJS ask its interrupt
// handler at the next poll, so that the exception can say where the script was.
func (v *VM) trip(g engine.Guard, now time.Time) {
	v.run.tripped, v.run.at, v.run.atFuel = g, now, v.run.spent
	if at := uint64(v.engine.image.js) + ctxInterrupt; at+4 <= uint64(v.mem.size) {
		v.store32(uint32(at), 1)
	}
}

func (v *VM) trap() {
	v.run.trapped = true
	panic(errStop)
}

// mark is called when the engine is about to build the error of a guard, and
// with 0 when it has: a full memory lends the headroom in between.
func (v *VM) mark(kind int32) {
	if v.booting {
		return
	}
	limit := v.run.mallocLimit
	if kind == markMemory {
		limit = min(limit, 1<<32-1-headroom) + headroom
	}
	v.store32(v.engine.image.rt+rtMallocLimit, limit)
}

// interrupt answers QuickJS's own handler.
func (v *VM) interrupt() bool {
	r := &v.run
	if v.booting {
		return false
	}
	if r.tripped == "" && v.engine.config.Metering != On && !r.deadline.IsZero() {
		// Without a hook this is the only look at the clock and the kill.
		select {
		case <-r.done:
			r.canceled, r.tripped = true, engine.WallClock
		default:
			if now := time.Now(); now.After(r.deadline) {
				r.tripped, r.at = engine.WallClock, now
			}
		}
	}
	return r.tripped != ""
}

// Eval implements engine.VM.
func (v *VM) Eval(ctx context.Context, req engine.Request) (out engine.Outcome) {
	switch {
	case v.closed:
		return engine.Outcome{Class: engine.ClassEngineFault, Message: "the VM is closed"}
	case ctx.Err() != nil:
		return engine.Outcome{Class: engine.ClassCanceled}
	}
	if err := v.engine.config.CheckLimits(req.Limits); err != nil {
		return engine.Outcome{Class: engine.ClassEngineFault, Message: err.Error()}
	}
	if v.module == nil {
		if err := v.renew(ctx); err != nil {
			return engine.Outcome{Class: engine.ClassEngineFault, Message: err.Error()}
		}
	}
	limits := req.Limits.WithDefaults()
	v.run = run{done: ctx.Done(), limits: limits}
	ev := evaluation{VM: v, req: req, out: &out, ctx: ctx}
	ev.evaluate()
	if ev.cancel != nil {
		ev.cancel()
		v.ctx = &callContext{context.Background(), v}
	}
	out.Usage.Fuel = v.used()
	out.Usage.ImageBytes = int64(len(v.engine.image.memory))
	out.Usage.PeakMemoryBytes = v.mem.peak
	if v.engine.config.Metering == On {
		top := v.engine.image.stackTop
		if low := uint32(v.stackLow.Get()); low < top {
			out.Usage.StackBytes = int64(top - low)
		}
	}
	if v.wasiCalls > 0 {
		out = engine.Outcome{Class: engine.ClassEngineFault, Usage: out.Usage,
			Message: fmt.Sprintf("the script reached a WASI call, %d times", v.wasiCalls)}
	}
	v.recycle(&out)
	if end := time.Now(); !v.run.deadline.IsZero() && end.After(v.run.deadline) {
		out.Usage.Overrun = end.Sub(v.run.deadline)
	}
	return out
}

// deepStack is the use of the C stack beyond which the native stacks of the
// exports are taken to have grown, and are replaced.
const deepStack = 64 << 10

// recycle makes the VM fresh, or discards it after a fault.
func (v *VM) recycle(out *engine.Outcome) {
	v.wasiCalls = 0
	if out.Class == engine.ClassEngineFault || v.engine.config.Metering == CloseOnDone && v.module.IsClosed() {
		v.discard()
		return
	}
	err := v.restore()
	if err == nil && (v.run.trapped || out.Killed || out.Usage.StackBytes > deepStack) {
		err = v.fetch()
	}
	if err != nil {
		v.discard()
		*out = engine.Outcome{Class: engine.ClassEngineFault, Message: err.Error(), Usage: out.Usage}
	}
}

// evaluation is one run of a script on a VM.
type evaluation struct {
	*VM
	req engine.Request
	out *engine.Outcome
	ctx context.Context
	// dumping: the script has given its result, which is being turned into JSON.
	dumping, seeding bool
	failed           bool  // the outcome is settled
	serializing      bool  // the exception explained last is the engine's own, of JSON.stringify
	killed           bool  // a trap cut the formatting of an exception short
	formatting       bool  // an exception is being turned into text
	trap             error // what a call did not return for
	cancel           func()
}

// JS_Eval's flags.
const (
	evalGlobal  = 0
	evalModule  = 1
	compileOnly = 1 << 5
)

// evaluate seeds, runs and dumps, and settles the outcome.
func (e *evaluation) evaluate() {
	img, limits := e.engine.image, e.run.limits
	input := e.req.Input
	// What the input text needs comes on top of the script's own limit; in
	// whole pages downward, so that the bound holds exactly.
	ceiling := int64(len(img.memory)) + int64(len(input)) + limits.MemoryBytes
	e.mem.ceiling = min(ceiling/pageSize*pageSize, reserveCeiling)
	e.mem.peak, e.mem.refused = e.mem.size, 0
	e.run.mallocLimit = uint32(min(int64(img.mallocSize)+limits.MemoryBytes-headroom, 1<<32-1))
	e.mark(0)
	e.store32(img.rt+rtGCThreshold, uint32(min(int64(img.mallocSize)+limits.MemoryBytes/4, 1<<32-1)))
	if limits.StackBytes > 0 && limits.StackBytes < e.engine.config.StackBytes {
		low := img.stackTop - uint32(limits.StackBytes)
		e.store32(img.rt+rtStackLimit, low+stackMargin(limits.StackBytes))
		e.stackLimit.Set(uint64(low + redZone))
	}
	if e.engine.config.Metering == On {
		e.refuel(quantum)
	} else {
		e.refuel(1 << 30)
	}

	inputValue := valUndefined
	begin := time.Now()
	if input != nil {
		e.seeding = true
		inputValue = e.seed(input)
		e.seeding = false
		if e.failed {
			e.out.Usage.Seed = time.Since(begin)
			return
		}
	}
	armed := time.Now()
	e.out.Usage.Seed = armed.Sub(begin)
	e.arm(armed)
	if e.req.OnScriptStart != nil {
		e.req.OnScriptStart(armed)
	}
	value := e.script(inputValue)
	ran := time.Now()
	e.out.Usage.Script = ran.Sub(armed)
	if e.failed {
		return
	}
	e.dumping = true
	at, n := e.dump(value)
	dumped := time.Now()
	e.out.Usage.Dump = dumped.Sub(ran)
	if e.failed {
		return
	}
	if e.req.OnFinished != nil {
		e.req.OnFinished(dumped)
	}
	e.out.Class = engine.ClassOK
	if n >= 0 {
		e.out.Value = bytes.Clone(e.mem.bytes()[at : at+uint32(n)])
	}
	e.out.Usage.Copy = time.Since(dumped)
}

// arm starts the clock and the fuel budget.
func (e *evaluation) arm(now time.Time) {
	r := &e.VM.run
	r.deadline, r.yielded = now.Add(r.limits.WallClock), now
	if r.limits.Fuel > 0 {
		used := e.used()
		r.fuelEnd = used + r.limits.Fuel
		r.spent = used
		e.refuel(min(quantum, r.limits.Fuel))
	}
	if e.engine.config.Metering == CloseOnDone {
		ctx, cancel := context.WithDeadline(e.ctx, r.deadline)
		e.VM.ctx = &callContext{ctx, e.VM}
		e.cancel = cancel
	}
}
