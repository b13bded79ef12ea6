package quickjs_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/sandbed/sandbed/engine/quickjs/meter"
	"github.com/sandbed/sandbed/engine/quickjs/meter/metertest"
)

var (
	meterSeed  = flag.Uint64("meter.seed", 0, "run this one seed of the differential test of the meter")
	meterSeeds = flag.Uint64("meter.seeds", 400, "how many seeds the differential test of the meter runs")
)

const (
	fuelSlice = 4000    // what the hook refills
	fuelBound = 300_000 // for one instance; 400 guarded calls of small bodies need far less
	// hang is when a run is given up; nothing that works comes near it.
	hang = 2 * time.Minute
)

var errFuel = errors.New("out of fuel")

// step is what can be seen of one call.
type step struct {
	name    string
	results []uint64
	trap    string // first line of the error
	memory  uint64 // hash
	globals []uint64
	notes   int // calls of the host so far
	fuel    int64
}

func (s step) String() string {
	return fmt.Sprintf("%s: results %x, trap %q, memory %x, globals %x, %d notes", s.name, s.results, s.trap, s.memory, s.globals, s.notes)
}

func (s step) equal(o step) bool {
	return s.name == o.name && slices.Equal(s.results, o.results) && s.trap == o.trap && s.memory == o.memory &&
		slices.Equal(s.globals, o.globals) && s.notes == o.notes
}

var memorySeed = maphash.MakeSeed()

// arena runs modules on one engine.
type arena struct {
	r wazero.Runtime
	// Of the instance that runs: the state of the host functions.
	granted int64
	notes   []uint64
}

func newArena(t testing.TB, c wazero.RuntimeConfig) *arena {
	ctx := context.Background()
	a := &arena{r: wazero.NewRuntimeWithConfig(ctx, c.WithCloseOnContextDone(true))}
	t.Cleanup(func() { a.r.Close(ctx) })
	env := a.r.NewHostModuleBuilder(metertest.ImportModule)
	env.NewFunctionBuilder().WithFunc(func(v uint32) { a.notes = append(a.notes, uint64(v)) }).Export("note")
	env.NewFunctionBuilder().WithFunc(func(v uint64) uint64 {
		a.notes = append(a.notes, v)
		return v*0x9E3779B97F4A7C15 + uint64(len(a.notes))
	}).Export("ask")
	if _, err := env.Instantiate(ctx); err != nil {
		t.Fatal(err)
	}
	hook := a.r.NewHostModuleBuilder("sandbed")
	hook.NewFunctionBuilder().WithFunc(func(_ context.Context, m api.Module) {
		left := int64(int32(fuelOf(m).Get()))
		if left >= 0 {
			panic(fmt.Errorf("the hook is called with %d units left", left))
		}
		if a.granted-left > fuelBound {
			panic(errFuel)
		}
		fuelOf(m).Set(uint64(uint32(fuelSlice)))
		a.granted += fuelSlice - left
	}).Export("hook")
	if _, err := hook.Instantiate(ctx); err != nil {
		t.Fatal(err)
	}
	return a
}

func fuelOf(m api.Module) api.MutableGlobal {
	return m.ExportedGlobal(meter.FuelExport).(api.MutableGlobal)
}

// run instantiates a module and calls each of its functions; the arguments
// follow from the seed. It stops after limit steps, or when fuel runs out. ended
// says that every call came to its end.
func (a *arena) run(t testing.TB, wasm []byte, seed uint64, limit int) (steps []step, ended bool) {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	a.granted, a.notes = 0, nil
	compiled, err := a.r.CompileModule(ctx, wasm)
	if err != nil {
		t.Fatalf("seed %d: the module is not valid: %v", seed, err)
	}
	defer compiled.Close(ctx)
	var mod api.Module
	look := func(name string, results []uint64, err error) bool {
		s := step{name: name, results: results, notes: len(a.notes)}
		for _, n := range a.notes {
			s.notes = s.notes*31 + int(n) // their values and order, too
		}
		if err != nil {
			if errors.Is(err, errFuel) {
				return false
			}
			if ctx.Err() != nil {
				t.Fatalf("seed %d: %s did not stop: %v", seed, name, err)
			}
			s.trap, _, _ = strings.Cut(err.Error(), "\n")
			if i := strings.Index(s.trap, "wasm error"); i > 0 {
				s.trap = s.trap[i:] // without the number of the start function
			}
		}
		if mod != nil {
			mem := mod.Memory()
			b, _ := mem.Read(0, mem.Size())
			s.memory = maphash.Bytes(memorySeed, b)
			for i := -1; ; i++ {
				g := "budget"
				if i >= 0 {
					g = fmt.Sprintf("g%d", i)
				}
				x := mod.ExportedGlobal(g)
				if x == nil {
					break
				}
				s.globals = append(s.globals, x.Get())
			}
			if mod.ExportedGlobal(meter.FuelExport) != nil {
				s.fuel = a.granted - int64(int32(fuelOf(mod).Get()))
			}
		}
		steps = append(steps, s)
		return true
	}
	mod, err = a.r.InstantiateModule(ctx, compiled, wazero.NewModuleConfig().WithName("").WithStartFunctions())
	if err != nil {
		mod = nil
		return steps, look("instantiate", nil, err)
	}
	defer mod.Close(ctx)
	if !look("instantiate", nil, nil) {
		return steps, false
	}
	r := rand.New(rand.NewPCG(seed, 1))
	// Memory in which every place is told from the others, so that a copy that
	// goes wrong shows.
	mem := mod.Memory()
	b, _ := mem.Read(0, mem.Size())
	pattern(b, seed)
	for i := 0; len(steps) < limit; i++ {
		name := fmt.Sprintf("f%d", i)
		f := mod.ExportedFunction(name)
		if f == nil {
			return steps, true
		}
		args := make([]uint64, len(f.Definition().ParamTypes()))
		for j, p := range f.Definition().ParamTypes() {
			switch p {
			case api.ValueTypeI32:
				args[j] = uint64(r.Uint32() >> r.UintN(32))
			case api.ValueTypeI64:
				args[j] = r.Uint64() >> r.UintN(64)
			case api.ValueTypeF32:
				args[j] = api.EncodeF32(float32(r.NormFloat64() * 100))
			default:
				args[j] = api.EncodeF64(r.NormFloat64() * 100)
			}
		}
		results, err := f.Call(ctx, args...)
		for j, p := range f.Definition().ResultTypes() {
			// The upper half of a 32-bit result is not defined.
			if err == nil && (p == api.ValueTypeI32 || p == api.ValueTypeF32) {
				results[j] = uint64(uint32(results[j]))
			}
		}
		if !look(name, results, err) {
			return steps, false
		}
	}
	return steps, true
}

// pattern fills b with bytes whose period is longer than any memory here.
func pattern(b []byte, seed uint64) {
	x := seed*2 + 1
	for i := range b {
		x = x*6364136223846793005 + 1442695040888963407
		b[i] = byte(x >> 56)
	}
}

func meterOptions() meter.Options {
	var o meter.Options
	o.Hook.Module, o.Hook.Name = "sandbed", "hook"
	return o
}

func overflow(s []step) bool {
	return slices.ContainsFunc(s, func(x step) bool { return strings.Contains(x.trap, "stack overflow") })
}

// A metered module does what the plain one does, and stops.
func TestMeterDifferential(t *testing.T) {
	plain, metered := newArena(t, wazero.NewRuntimeConfigCompiler()), newArena(t, wazero.NewRuntimeConfigCompiler())
	referee := newArena(t, wazero.NewRuntimeConfigInterpreter())
	spec := metertest.Spec{Fuel: meter.FuelExport, HookModule: "sandbed", HookName: "hook"}
	first, last := uint64(1), *meterSeeds
	if *meterSeed != 0 {
		first, last = *meterSeed, *meterSeed
	}
	var modules, ended, stopped, calls, traps, overflows, refereed int
	for seed := first; seed <= last; seed++ {
		fail := func(format string, args ...any) {
			t.Helper()
			t.Errorf("seed %d: %s\n\trepeat: go test ./engine/quickjs -run '^%s$' -meter.seed=%d", seed, fmt.Sprintf(format, args...), t.Name(), seed)
		}
		wasm := metertest.Generate(seed, 20+int(seed%10)*20)
		o := meterOptions()
		if seed%2 == 0 {
			o.StackPointer = metertest.StackPointer // its limit stays 0, which nothing is below
		}
		ins, err := meter.Instrument(wasm, o)
		if err != nil {
			fail("Instrument: %v", err)
			continue
		}
		violations, err := metertest.CheckCycles(ins.Wasm, spec)
		if err != nil {
			fail("CheckCycles: %v", err)
		}
		for _, v := range violations {
			fail("%v", v)
		}
		modules++
		got, done := metered.run(t, ins.Wasm, seed, 1<<30)
		if done {
			ended++
		} else {
			stopped++
		}
		again, _ := metered.run(t, ins.Wasm, seed, 1<<30)
		for i := range min(len(got), len(again)) {
			if got[i].fuel != again[i].fuel || !got[i].equal(again[i]) {
				fail("a second run differs: %v, fuel %d, then %v, fuel %d", got[i], got[i].fuel, again[i], again[i].fuel)
			}
		}
		if len(got) != len(again) {
			fail("a second run made %d steps, the first %d", len(again), len(got))
		}
		if len(got) == 0 { // the start function ran out of fuel: the plain module might never be there
			continue
		}
		if overflow(got) { // the depth that the host allows depends on the frames
			overflows++
			continue
		}
		// Only the steps that end are run without a meter.
		want, _ := plain.run(t, wasm, seed, len(got))
		compare := func(who string, want, got []step) {
			if len(want) != len(got) {
				fail("%s made %d steps, the metered module %d", who, len(want), len(got))
				return
			}
			for i := range want {
				if !want[i].equal(got[i]) {
					fail("%s differs from the metered module:\n\t%v\n\t%v", who, want[i], got[i])
					return
				}
			}
		}
		compare("the plain module", want, got)
		if seed%5 == 0 {
			refereed++
			judged, judgedDone := referee.run(t, ins.Wasm, seed, 1<<30)
			if overflow(judged) {
				continue
			}
			if judgedDone != done {
				fail("the interpreter came to the end: %v, the compiler: %v", judgedDone, done)
			}
			compare("the interpreter", judged, got)
			for i := range min(len(judged), len(got)) {
				if judged[i].fuel != got[i].fuel {
					fail("the interpreter used %d units, the compiler %d", judged[i].fuel, got[i].fuel)
				}
			}
		}
		for _, s := range got {
			calls++
			if s.trap != "" {
				traps++
			}
		}
		if t.Failed() && *meterSeed == 0 && seed > first+50 {
			break
		}
	}
	t.Logf("%d modules: %d ended, %d ran out of fuel, %d overflowed the stack; %d calls compared, %d trapped; %d refereed",
		modules, ended, stopped, overflows, calls, traps, refereed)
	if *meterSeed == 0 && (ended*2 < modules || stopped*50 < modules || traps*20 < calls || traps*2 > calls) {
		t.Errorf("the modules are too much alike to show anything")
	}
}

// Copies and fills round every bound of what one instruction may move, with
// every kind of overlap, do what the plain instructions do: to the byte, and to
// the trap.
func TestMeterBulkInChunks(t *testing.T) {
	const chunk, pages = meter.BulkChunk, 66
	const size = pages << 16
	i32x3 := strings.Repeat(string(rune(metertest.I32)), 3)
	mod := metertest.NewBuilder()
	typ := mod.Type(i32x3, "")
	mod.Memory(pages, pages)
	mod.Export("memory", metertest.ExportMemory, 0)
	mod.Export("copy", metertest.ExportFunc, mod.Func(typ, "", metertest.Asm().Get(0).Get(1).Get(2).Op(0xFC0A, 0, 0)))
	mod.Export("fill", metertest.ExportFunc, mod.Func(typ, "", metertest.Asm().Get(0).Get(1).Get(2).Op(0xFC0B, 0)))
	wasm := mod.Bytes()
	ins, err := meter.Instrument(wasm, meterOptions())
	if err != nil {
		t.Fatal(err)
	}
	a := newArena(t, wazero.NewRuntimeConfigCompiler())
	ctx := context.Background()
	instance := func(b []byte) api.Module {
		m, err := a.r.InstantiateWithConfig(ctx, b, wazero.NewModuleConfig().WithName(""))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	plain, metered := instance(wasm), instance(ins.Wasm)
	memory := func(m api.Module) []byte {
		b, _ := m.Memory().Read(0, size)
		return b
	}
	pattern(memory(plain), 7)
	pattern(memory(metered), 7)
	trapped, done := 0, 0
	try := func(name string, d, s, n uint32) {
		t.Helper()
		a.granted = 0
		fuelOf(metered).Set(0)
		_, want := plain.ExportedFunction(name).Call(ctx, uint64(d), uint64(s), uint64(n))
		_, got := metered.ExportedFunction(name).Call(ctx, uint64(d), uint64(s), uint64(n))
		first := func(err error) string {
			if err == nil {
				return "no trap"
			}
			line, _, _ := strings.Cut(err.Error(), "\n")
			return line
		}
		if first(want) != first(got) {
			t.Errorf("%s(%d, %d, %d): got %s, want %s", name, d, s, n, first(got), first(want))
		}
		if !bytes.Equal(memory(plain), memory(metered)) {
			t.Errorf("%s(%d, %d, %d): the memories differ", name, d, s, n)
			copy(memory(metered), memory(plain))
		}
		used := a.granted - int64(int32(fuelOf(metered).Get()))
		if want == nil && (used < int64(n>>meter.BulkShift) || used > int64(n>>meter.BulkShift)+chunk>>meter.BulkShift) {
			t.Errorf("%s of %d bytes: %d units, want %d and at most one chunk more", name, n, used, n>>meter.BulkShift)
		}
		if want != nil {
			trapped++
		} else {
			done++
		}
	}
	lengths := []uint32{0, 1, 255, chunk - 1, chunk, chunk + 1, 2*chunk - 1, 2 * chunk, 2*chunk + 1, size - 1, size, size + 1, 1 << 31, 1<<32 - 1}
	shifts := []int64{0, 1, -1, 4096, -4096, chunk - 1, chunk, chunk + 1, -chunk + 1, -chunk, -chunk - 1, 2 * chunk, -2 * chunk}
	for _, n := range lengths {
		for _, s := range []int64{0, 3, chunk + 5, size - int64(n) - 1, size - int64(n), size - int64(n) + 1, 1<<32 - 1} {
			for _, shift := range shifts {
				try("copy", uint32(s+shift), uint32(s), n)
			}
			try("fill", uint32(s), uint32(s)|1, n)
			pattern(memory(plain)[:4*chunk], uint64(n)+uint64(s))
			copy(memory(metered), memory(plain))
		}
	}
	if trapped < 100 || done < 100 {
		t.Errorf("%d trapped, %d ended: that tests little", trapped, done)
	}
}

// A broken module is refused or comes out as another; it never panics. Where
// the damage left a valid module, the metered one is valid and has no cycle.
func TestMeterSurvivesMutants(t *testing.T) {
	ctx := context.Background()
	validator := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigInterpreter())
	defer validator.Close(ctx)
	valid := func(wasm []byte) error {
		c, err := validator.CompileModule(ctx, wasm)
		if err == nil {
			c.Close(ctx)
		}
		return err
	}
	spec := metertest.Spec{Fuel: meter.FuelExport, HookModule: "sandbed", HookName: "hook"}
	var tried, accepted, alive int
	refusals := map[string]int{} // by text without numbers
	digits := regexp.MustCompile(`0x[0-9a-f]+|[0-9]+`)
	try := func(seed uint64, bad []byte) {
		defer func() {
			if e := recover(); e != nil {
				t.Errorf("mutant %d: panic: %v", seed, e)
			}
		}()
		tried++
		o := meterOptions()
		o.StackPointer = metertest.StackPointer
		ins, err := meter.Instrument(bad, o)
		if err != nil {
			refusals[digits.ReplaceAllString(err.Error(), "#")]++
			return
		}
		accepted++
		violations, err := metertest.CheckCycles(ins.Wasm, spec)
		if valid(bad) != nil {
			return
		}
		alive++
		if err != nil || len(violations) > 0 {
			t.Errorf("mutant %d: %v, %v", seed, violations, err)
		}
		if err := valid(ins.Wasm); err != nil {
			t.Errorf("mutant %d is valid, but not when it is metered: %v", seed, err)
		}
	}
	for seed := uint64(1); seed <= 300; seed++ {
		wasm := metertest.Generate(seed, 60)
		for k := range uint64(20) {
			if bad := metertest.Mutate(seed*1000+k, wasm); !bytes.Equal(bad, wasm) {
				try(seed*1000+k, bad)
			}
		}
	}
	for text, n := range refusals {
		t.Logf("%5d %s", n, text)
	}
	t.Logf("%d mutants, %d instrumented, %d of them valid; the others refused for %d reasons", tried, accepted, alive, len(refusals))
	if accepted*50 < tried || alive < 100 || len(refusals) < 20 {
		t.Errorf("the mutants test little")
	}
}
