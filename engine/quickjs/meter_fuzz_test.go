package quickjs_test

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/sandbed/sandbed/engine/quickjs/meter"
	"github.com/sandbed/sandbed/engine/quickjs/meter/metertest"
	"github.com/sandbed/sandbed/fuzz"
	"github.com/sandbed/sandbed/fuzz/cover"
	"github.com/sandbed/sandbed/fuzz/gen"
	"github.com/sandbed/sandbed/fuzz/oracle"
)

// FuzzMeter makes random modules and meters them: the metered one does what the
// plain one does, uses the same fuel twice, and always stops. A damaged module is
// refused or, where it is valid, comes out valid and without an unmetered cycle.
//
// It stands here because this package alone may import wazero.
func FuzzMeter(f *testing.F) {
	fuzz.Run(f, meterTarget(f))
}

func meterTarget(tb testing.TB) fuzz.Target {
	plain, metered := newArena(tb, wazero.NewRuntimeConfigCompiler()), newArena(tb, wazero.NewRuntimeConfigCompiler())
	moves := sync.OnceValue(func() *movers { return newMovers(metered) })
	ctx := context.Background()
	validator := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigInterpreter())
	tb.Cleanup(func() { _ = validator.Close(ctx) }) // the process is about to end
	return fuzz.Target{
		Seeds: fuzz.Documents(gen.Version,
			"module:1 size:40",
			"module:2 size:40 stack",
			"module:3 size:120",
			"module:4 size:200 stack",
			"module:5 size:10",
			"copy chunk-more none one fill all one none copy two-more 5 back-one copy all-more none none",
			"copy two chunk chunk-less copy two chunk back-one copy chunk-more none chunk-less fill chunk none most",
			"module:6 mutate:1",
			"module:7 mutate:2 mutate:3 stack",
			"module:8 size:80 mutate:4 mutate:5 mutate:6",
			"module:9 size:20 mutate:7",
			"module:10 mutate:8",
			"module:11 mutate:9",
			"module:12 mutate:10",
		),
		Check: func(t *testing.T, data []byte, log *oracle.Log) error {
			m, err := gen.ModuleOf(data)
			if err != nil {
				return err
			}
			if len(m.Moves) > 0 {
				checkMoves(t, metered, moves, m.Moves, log)
				return nil
			}
			o := meterOptions()
			if m.Stack {
				o.StackPointer = metertest.StackPointer // its limit stays 0, which nothing is below
			}
			wasm := metertest.Generate(m.Seed, m.Size)
			if len(m.Mutations) == 0 {
				checkMetered(t, plain, metered, wasm, m.Seed, o, log)
				return nil
			}
			for _, s := range m.Mutations {
				wasm = metertest.Mutate(s, wasm)
			}
			checkDamaged(wasm, o, log, func(wasm []byte) error {
				c, err := validator.CompileModule(ctx, wasm)
				if err == nil {
					err = c.Close(ctx)
				}
				return err
			})
			return nil
		},
		Oracles: []oracle.ID{oracle.Meter, oracle.Stops, oracle.Same, oracle.Fault, oracle.Panic, oracle.Fuel},
		Document: func(data []byte) []byte {
			m, err := gen.ModuleOf(data)
			if err != nil {
				return data
			}
			return m.Document()
		},
	}
}

// movers are two instances of a module that copies and fills, one of them metered.
type movers struct{ plain, metered api.Module }

func newMovers(a *arena) *movers {
	three := strings.Repeat(string(rune(metertest.I32)), 3)
	b := metertest.NewBuilder()
	typ := b.Type(three, "")
	b.Memory(gen.MoveMemory>>16, gen.MoveMemory>>16)
	b.Export("memory", metertest.ExportMemory, 0)
	b.Export("copy", metertest.ExportFunc, b.Func(typ, "", metertest.Asm().Get(0).Get(1).Get(2).Op(0xFC0A, 0, 0)))
	b.Export("fill", metertest.ExportFunc, b.Func(typ, "", metertest.Asm().Get(0).Get(1).Get(2).Op(0xFC0B, 0)))
	ins, err := meter.Instrument(b.Bytes(), meterOptions())
	if err != nil {
		panic(err)
	}
	instance := func(wasm []byte) api.Module {
		m, err := a.r.InstantiateWithConfig(context.Background(), wasm, wazero.NewModuleConfig().WithName(""))
		if err != nil {
			panic(err)
		}
		return m
	}
	return &movers{instance(b.Bytes()), instance(ins.Wasm)}
}

// checkMoves makes the same moves in both, to the byte and to the trap, and holds
// that what was moved was charged.
func checkMoves(t *testing.T, a *arena, get func() *movers, moves []gen.Move, log *oracle.Log) {
	m := get()
	memory := func(m api.Module) []byte {
		b, _ := m.Memory().Read(0, gen.MoveMemory)
		return b
	}
	pattern(memory(m.plain), 7)
	pattern(memory(m.metered), 7)
	for _, mv := range moves {
		name := "copy"
		if mv.Fill {
			name = "fill"
		}
		a.granted = 0
		fuelOf(m.metered).Set(0)
		try := func(m api.Module) string {
			_, err := m.ExportedFunction(name).Call(t.Context(), uint64(mv.To), uint64(mv.From), uint64(mv.Length))
			if err == nil {
				return "no trap"
			}
			line, _, _ := strings.Cut(err.Error(), "\n")
			return line
		}
		want, got := try(m.plain), try(m.metered)
		log.Check(want == got, oracle.Meter, "%+v: plain %s, metered %s", mv, want, got)
		log.Check(bytes.Equal(memory(m.plain), memory(m.metered)), oracle.Meter, "%+v: the memories differ", mv)
		used, least := a.granted-int64(int32(fuelOf(m.metered).Get())), int64(mv.Length>>meter.BulkShift)
		log.Check(want != "no trap" || used >= least && used <= least+meter.BulkChunk>>meter.BulkShift, oracle.Fuel, "%+v used %d units, want %d and at most a chunk more", mv, used, least)
		cover.Mark(55, cover.Name(name), cover.Name(got), cover.Log2(int64(mv.Length)), cover.Log2(int64(mv.To)-int64(mv.From)))
	}
}

var meterSpec = metertest.Spec{Fuel: meter.FuelExport, HookModule: "sandbed", HookName: "hook"}

func checkMetered(t *testing.T, plain, metered *arena, wasm []byte, seed uint64, o meter.Options, log *oracle.Log) {
	ins, err := meter.Instrument(wasm, o)
	log.Check(err == nil, oracle.Fault, "Instrument: %v", err)
	if err != nil {
		return
	}
	violations, err := metertest.CheckCycles(ins.Wasm, meterSpec)
	log.Check(err == nil && len(violations) == 0, oracle.Stops, "%v, %v", violations, err)
	if len(violations) > 0 {
		return // it might really not stop
	}
	got, ended := metered.run(t, ins.Wasm, seed, 1<<30)
	again, _ := metered.run(t, ins.Wasm, seed, 1<<30)
	log.Check(len(got) == len(again), oracle.Same, "%d steps and %d", len(got), len(again))
	for i := range min(len(got), len(again)) {
		log.Check(got[i].equal(again[i]) && got[i].fuel == again[i].fuel, oracle.Same, "%v, fuel %d, then %v, fuel %d", got[i], got[i].fuel, again[i], again[i].fuel)
	}
	fuel, traps := int64(0), 0
	for _, s := range got {
		fuel = max(fuel, s.fuel)
		if s.trap != "" {
			traps++
		}
	}
	cover.Mark(50, cover.Log2(fuel), cover.Log2(int64(traps)), cover.Log2(int64(len(got))))
	cover.Mark(51, cover.Log2(int64(len(wasm))), cover.Log2(int64(len(ins.Wasm)-len(wasm))))
	if !ended {
		cover.Mark(52, cover.Log2(int64(len(got))))
	}
	if len(got) == 0 || overflow(got) { // the depth that the host allows depends on the frames
		return
	}
	want, _ := plain.run(t, wasm, seed, len(got)) // only the steps that end
	log.Check(len(want) == len(got), oracle.Meter, "the plain module made %d steps, the metered one %d", len(want), len(got))
	for i := range min(len(want), len(got)) {
		log.Check(want[i].equal(got[i]), oracle.Meter, "plain %v, metered %v", want[i], got[i])
	}
}

func checkDamaged(wasm []byte, o meter.Options, log *oracle.Log, valid func([]byte) error) {
	var ins meter.Instrumented
	var err error
	func() {
		defer func() {
			p := recover()
			log.Check(p == nil, oracle.Panic, "Instrument: %v", p)
		}()
		ins, err = meter.Instrument(wasm, o)
	}()
	if ins.Wasm == nil {
		if err != nil {
			cover.Mark(53, cover.Name(withoutNumbers(err.Error())))
		}
		return
	}
	violations, err := metertest.CheckCycles(ins.Wasm, meterSpec)
	if valid(wasm) != nil {
		return
	}
	cover.Mark(54, cover.Log2(int64(len(ins.Wasm))))
	log.Check(err == nil && len(violations) == 0, oracle.Stops, "a damaged module that is valid: %v, %v", violations, err)
	err = valid(ins.Wasm)
	log.Check(err == nil, oracle.Meter, "a damaged module is valid, but not when it is metered: %v", err)
}

// withoutNumbers keeps what tells one refusal from another.
func withoutNumbers(s string) string {
	out := make([]byte, 0, len(s))
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			out = append(out, s[i])
		}
	}
	return string(out)
}

// The sizes that fuzz/gen makes moves round are the meter's own.
func TestMovesFitTheMeter(t *testing.T) {
	if gen.MoveChunk != meter.BulkChunk {
		t.Errorf("gen.MoveChunk is %d, meter.BulkChunk %d", gen.MoveChunk, meter.BulkChunk)
	}
}

// The target is not deaf, and most of its documents are modules that can be judged.
func TestMeterTarget(t *testing.T) {
	target := meterTarget(t)
	if err := target.SelfTest(t); err != nil {
		t.Error(err)
	}
	for _, seed := range target.Seeds {
		if doc := target.Document(seed); !bytes.Equal(doc, seed) {
			t.Errorf("%q means %q", seed, doc)
		}
	}
}
