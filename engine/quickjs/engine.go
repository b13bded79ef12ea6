// Package quickjs is the sandbox: QuickJS-NG in WebAssembly on wazero, made so
// that any script ends within its limits, says why, and leaves nothing.
//
// An [Engine] compiles once. Each [VM] has a linear memory of its own, restored
// byte for byte to the boot image after every evaluation; nothing but the fixed
// clock is linked to WASI. It is the only package that imports wazero.
//
// It does not promise conformance beyond that of QuickJS-NG 0.15.1, nor
// protection from a fault in wazero's compiler; process workers of package pool
// put an operating-system boundary round that.
package quickjs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"github.com/sandbed/sandbed/engine"
)

// Engine is the compiled QuickJS with its boot image. It is safe for concurrent use.
type Engine struct {
	config   Config
	runtime  wazero.Runtime
	cache    wazero.CompilationCache
	compiled wazero.CompiledModule
	slots    []uint32 // of the interrupt handler and the usable-size function
	image    *image

	mu     sync.Mutex
	closed bool
	idle   []*VM
	live   sync.WaitGroup // VMs that are open
}

// New compiles the engine, or loads its code from the cache, and boots the
// image. It takes about a second with a cold cache and tens of milliseconds with
// a warm one. Close gives everything back.
func New(ctx context.Context, c Config) (_ *Engine, err error) {
	e := &Engine{}
	if e.config, err = c.withDefaults(); err != nil {
		return nil, err
	}
	module, err := instrument(e.config.Metering == On)
	if err != nil {
		return nil, err
	}
	e.slots = module.Slots
	// The cache must not keep an engine from starting: a directory that cannot
	// be written costs only time.
	if dir := e.config.CacheDir; dir != "" && os.MkdirAll(dir, 0o700) == nil {
		if e.cache, err = wazero.NewCompilationCacheWithDir(dir); err != nil {
			e.cache = nil
		}
	}
	rc := wazero.NewRuntimeConfigCompiler().
		WithCloseOnContextDone(e.config.Metering == CloseOnDone).
		WithDebugInfoEnabled(false)
	if e.cache != nil {
		rc = rc.WithCompilationCache(e.cache)
	}
	e.runtime = wazero.NewRuntimeWithConfig(ctx, rc)
	defer func() {
		if err != nil {
			_ = e.Close() // the first error is the one to report
		}
	}()
	if e.compiled, err = e.runtime.CompileModule(ctx, module.Wasm); err != nil {
		return nil, fmt.Errorf("quickjs: compiling the module: %w", err)
	}
	if err = e.link(ctx); err != nil {
		return nil, err
	}
	if e.image, err = e.boot(ctx); err != nil {
		return nil, err
	}
	return e, nil
}

// link builds the host modules: the hook and the interrupt handler, and a stub
// for every WASI import.
func (e *Engine) link(ctx context.Context) error {
	b := e.runtime.NewHostModuleBuilder(hostModule)
	b.NewFunctionBuilder().WithGoFunction(api.GoFunc(func(ctx context.Context, _ []uint64) {
		ctx.(*callContext).vm.hook()
	}), nil, nil).Export("hook")
	b.NewFunctionBuilder().WithGoFunction(api.GoFunc(func(ctx context.Context, stack []uint64) {
		stack[0] = 0
		if ctx.(*callContext).vm.interrupt() {
			stack[0] = 1
		}
	}), []api.ValueType{api.ValueTypeI32, api.ValueTypeI32}, []api.ValueType{api.ValueTypeI32}).Export("interrupt")
	b.NewFunctionBuilder().WithGoFunction(api.GoFunc(func(ctx context.Context, stack []uint64) {
		ctx.(*callContext).vm.mark(int32(stack[0]))
	}), []api.ValueType{api.ValueTypeI32}, nil).Export("mark")
	if _, err := b.Instantiate(ctx); err != nil {
		return fmt.Errorf("quickjs: linking the host functions: %w", err)
	}
	wasi := map[string]wazero.HostModuleBuilder{}
	for _, f := range e.compiled.ImportedFunctions() {
		module, name, _ := f.Import()
		if module == hostModule {
			continue
		}
		if wasi[module] == nil {
			wasi[module] = e.runtime.NewHostModuleBuilder(module)
		}
		wasi[module].NewFunctionBuilder().
			WithGoFunction(api.GoFunc(func(ctx context.Context, stack []uint64) {
				ctx.(*callContext).vm.wasi(name, stack)
			}), f.ParamTypes(), f.ResultTypes()).Export(name)
	}
	for module, b := range wasi {
		if _, err := b.Instantiate(ctx); err != nil {
			return fmt.Errorf("quickjs: linking %s: %w", module, err)
		}
	}
	return nil
}

// callContext carries the VM into host functions. wazero hands on the context
// of the call as it is, so a type assertion finds it without a look-up.
type callContext struct {
	context.Context
	vm *VM
}

// WASI error numbers.
const (
	errnoBadf  = 8
	errnoNosys = 52
)

// wasi answers every import. A script can reach none of them: what is not part of
// boot is counted, and the conformance suite fails on the count.
func (v *VM) wasi(name string, stack []uint64) {
	switch name {
	case "clock_time_get":
		ns := uint64(v.engine.config.Now.UnixNano())
		// While the context is created, the clock of the day is the seed of Math.random.
		if v.booting && uint32(stack[0]) == 0 {
			ns = mix(v.engine.config.Seed) % (1 << 43) * 1000
		}
		if at := uint64(uint32(stack[2])); at+8 <= uint64(v.mem.size) {
			binary.LittleEndian.PutUint64(v.mem.bytes()[at:], ns)
		}
		stack[0] = 0
		return
	case "environ_sizes_get":
		if v.booting {
			for _, at := range []uint64{uint64(uint32(stack[0])), uint64(uint32(stack[1]))} {
				if at+4 <= uint64(v.mem.size) {
					binary.LittleEndian.PutUint32(v.mem.bytes()[at:], 0)
				}
			}
			stack[0] = 0
			return
		}
	case "fd_prestat_get":
		if v.booting {
			stack[0] = errnoBadf
			return
		}
	}
	v.wasiCalls++
	if len(stack) == 0 || name == "proc_exit" {
		panic(errDeniedExit)
	}
	stack[0] = errnoNosys
}

var errDeniedExit = errors.New("quickjs: the engine called proc_exit")

// mix spreads a seed over 64 bits (the finaliser of splitmix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Close closes idle VMs and the runtime. Evaluations under way must have ended;
// VMs handed out by NewVM must have been closed.
func (e *Engine) Close() error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	idle := e.idle
	e.idle = nil
	e.mu.Unlock()
	for _, v := range idle {
		_ = v.Close() // only counts down
	}
	e.live.Wait()
	ctx := context.Background()
	err := e.runtime.Close(ctx)
	if e.cache != nil {
		err = errors.Join(err, e.cache.Close(ctx))
	}
	return err
}

// InProcess is the Backend that evaluates on the caller's goroutine, on VMs that
// are kept between calls. Its Close closes the engine.
func (e *Engine) InProcess() engine.Backend { return &inProcess{e} }

type inProcess struct{ e *Engine }

// Warm makes one VM ready.
func (b *inProcess) Warm(ctx context.Context) error {
	v, err := b.e.take(ctx)
	if err == nil {
		b.e.give(v)
	}
	return err
}

// Run evaluates r on a VM of the engine. Bad limits are a *engine.LimitError.
func (b *inProcess) Run(ctx context.Context, r engine.Request) (engine.Outcome, error) {
	if err := b.e.config.CheckLimits(r.Limits); err != nil {
		return engine.Outcome{}, err
	}
	if ctx.Err() != nil {
		return engine.Outcome{}, context.Cause(ctx)
	}
	v, err := b.e.take(ctx)
	if err != nil {
		return engine.Outcome{}, err
	}
	defer b.e.give(v)
	if r.Input == nil {
		return v.Eval(ctx, r), nil // nothing is parsed before the clock is armed
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := &engine.WorkerStartupError{Phase: engine.PhaseStart, Err: errors.New("the input was not parsed in time")}
	window := time.AfterFunc(r.Limits.WithDefaults().WallClock+startWindow, func() { cancel(late) })
	defer window.Stop()
	started := r.OnScriptStart
	r.OnScriptStart = func(at time.Time) {
		window.Stop()
		if started != nil {
			started(at)
		}
	}
	o := v.Eval(ctx, r)
	if o.Class == engine.ClassCanceled && o.DuringSeed && context.Cause(ctx) == late {
		return o, late
	}
	return o, nil
}

// startWindow is what parsing the input may take beyond the wall clock: the
// grace and the start-up liveness that the pool defaults to, so that a backend
// is no excuse for another answer.
const startWindow = 12 * time.Second

// Close implements engine.Backend.
func (b *inProcess) Close() error { return b.e.Close() }

// VerifyImage compares the memory of every idle VM with the boot image, byte for
// byte, and reports the first difference. The conformance suite calls it after
// every case.
func (b *inProcess) VerifyImage(context.Context) error {
	b.e.mu.Lock()
	defer b.e.mu.Unlock()
	for _, v := range b.e.idle {
		if err := v.verify(); err != nil {
			return err
		}
	}
	return nil
}

// take gives an idle VM or a new one.
func (e *Engine) take(ctx context.Context) (*VM, error) {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil, engine.ErrClosed
	}
	if n := len(e.idle); n > 0 {
		v := e.idle[n-1]
		e.idle = e.idle[:n-1]
		e.mu.Unlock()
		return v, nil
	}
	e.mu.Unlock()
	return e.newVM(ctx)
}

// give keeps v for the next caller, up to one VM a processor.
func (e *Engine) give(v *VM) {
	e.mu.Lock()
	keep := !e.closed && len(e.idle) < runtime.GOMAXPROCS(0)
	if keep {
		e.idle = append(e.idle, v)
	}
	e.mu.Unlock()
	if !keep {
		_ = v.Close() // only counts down
	}
}

// withMemory makes wazero use m for the instance that ctx instantiates.
func withMemory(ctx context.Context, m *linearMemory) context.Context {
	return experimental.WithMemoryAllocator(ctx, experimental.MemoryAllocatorFunc(func(_, _ uint64) experimental.LinearMemory {
		return m
	}))
}
