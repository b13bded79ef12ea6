package properties

import (
	"context"
	"flag"
	"fmt"
	"math/rand"
	randv2 "math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leanovate/gopter"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"

	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/engine/quickjs"
	fuzzgen "github.com/sandbed/sandbed/fuzz/gen"
	"github.com/sandbed/sandbed/fuzz/oracle"
	"github.com/sandbed/sandbed/pool"
)

var seedFlag = flag.Int64("seed", 0, "seed of the properties, to repeat a failure; 0 draws one for each")

// TestMain is also the worker processes of these tests.
func TestMain(m *testing.M) {
	pool.ServeWorker(func(ctx context.Context, b pool.Boot) (engine.VM, error) {
		e, err := quickjs.New(ctx, quickjs.Config{CacheDir: b.CacheDir})
		if err != nil {
			return nil, err
		}
		return e.NewVM(ctx)
	})
	os.Exit(m.Run())
}

// maxShrinks bounds the tries of making a failing case smaller: those that succeed, which
// gopter bounds, and in forAll all of them.
const maxShrinks = 400

// hold checks a property on this many cases, whose size grows from 0 to below size.
func hold(t *testing.T, runs, size int, p gopter.Prop) {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = randv2.Int64()
	}
	repeat := fmt.Sprintf("go test ./properties -run '^%s$' -seed=%d", t.Name(), seed)
	if os.Getenv("STRESS") == "1" {
		runs *= 20
		repeat = "STRESS=1 " + repeat
	}
	// Not t.Log, which a deadlock or a time-out would swallow.
	fmt.Printf("repeat: %s\n", repeat)
	parameters := gopter.DefaultTestParametersWithSeed(seed)
	parameters.MinSuccessfulTests, parameters.MaxSize, parameters.MaxShrinkCount = runs, size, maxShrinks
	result := p.Check(parameters)
	if result.Passed() {
		t.Logf("%d cases", result.Succeeded)
		return
	}
	t.Errorf("case %d: %s\n%srepeat: %s", result.Succeeded+1, result.Status, details(result), repeat)
}

// details is what a failure says of its case, the one made smaller first.
func details(r *gopter.TestResult) string {
	var b strings.Builder
	for _, l := range r.Labels {
		fmt.Fprintln(&b, l)
	}
	if r.Error != nil {
		fmt.Fprintf(&b, "%v\n%s", r.Error, r.ErrorStack)
	}
	for i, a := range r.Args {
		fmt.Fprintf(&b, "argument %d: %+v\n", i, a.Arg)
		if before := fmt.Sprintf("%+v", a.OrigArg); a.Shrinks > 0 {
			fmt.Fprintf(&b, "  before it was made smaller, %d times: %s\n", a.Shrinks, before)
		}
	}
	return b.String()
}

// forAll is the property that check finds nothing wrong with any value of g.
func forAll[T any](g gopter.Gen, check func(T) error) gopter.Prop {
	budget := &shrinking{left: maxShrinks}
	return prop.ForAll(func(v T) *gopter.PropResult {
		return budget.result(func() error { return check(v) })
	}, g)
}

// shrinking ends the search for a smaller case when its budget is used up.
type shrinking struct {
	failed bool
	left   int
}

func (s *shrinking) result(check func() error) *gopter.PropResult {
	if s.failed {
		if s.left--; s.left < 0 {
			return &gopter.PropResult{Status: gopter.PropTrue}
		}
	}
	if err := check(); err != nil {
		s.failed = true
		return &gopter.PropResult{Status: gopter.PropFalse, Labels: []string{err.Error()}}
	}
	return &gopter.PropResult{Status: gopter.PropTrue}
}

// draw makes a generator of a function that draws, without a way to make what it
// draws smaller.
func draw[T any](pick func(*rand.Rand) T) gopter.Gen {
	return func(p *gopter.GenParameters) *gopter.GenResult {
		return gopter.NewGenResult(pick(p.Rng), gopter.NoShrinker)
	}
}

// words generates documents as their words; words are dropped to make one smaller.
func words(pick func(*rand.Rand) string) gopter.Gen { return gen.SliceOf(draw(pick)) }

func oneOf[T any](r *rand.Rand, list ...T) T { return list[r.Intn(len(list))] }

// scriptWord draws a word of a script.
func scriptWord() func(*rand.Rand) string {
	all, cases := fuzzgen.ScriptNames(), fuzzgen.CaseNames()
	return func(r *rand.Rand) string {
		switch n := r.Intn(100); {
		case n < 72:
			return oneOf(r, all...)
		case n < 75:
			return "input"
		case n < 85:
			return oneOf(r, cases...)
		case n < 95:
			return fmt.Sprint(r.Intn(1 << r.Intn(20)))
		default:
			return string(rune('!' + r.Intn(90)))
		}
	}
}

// program decodes a document of a script.
func program(list []string) (*fuzzgen.Program, error) { return fuzzgen.Script(fuzzgen.Join(list...)) }

// theEngine is compiled once, with the cache on disk.
var theEngine = sync.OnceValues(func() (*quickjs.Engine, error) {
	return quickjs.New(context.Background(), quickjs.Config{})
})

func newEngine(t *testing.T) *quickjs.Engine {
	t.Helper()
	e, err := theEngine()
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// newVM gives a VM that no script has run on.
func newVM(t *testing.T, e *quickjs.Engine) engine.VM {
	t.Helper()
	vm, err := e.NewVM(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = vm.Close() }) // only counts down
	return vm
}

// newWorker is a pool of one goroutine worker of the engine.
func newWorker(t *testing.T, e *quickjs.Engine) engine.Backend {
	t.Helper()
	o := pool.DefaultOptions()
	o.Count, o.ColdStart = 1, time.Minute
	p, err := pool.New(e.NewVM, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// evaluate runs r once and notes what oracles want to know.
func evaluate(ctx context.Context, b engine.Backend, r engine.Request) *oracle.Run {
	return oracle.Watch(r, func(r engine.Request) (engine.Outcome, error) { return b.Run(ctx, r) })
}

// evaluateOn is evaluate on one VM.
func evaluateOn(vm engine.VM, r engine.Request) *oracle.Run {
	return oracle.Watch(r, func(r engine.Request) (engine.Outcome, error) { return vm.Eval(context.Background(), r), nil })
}

// verdict makes an error of what oracles found.
func verdict(log *oracle.Log, what any) error {
	found := log.Violations()
	if len(found) == 0 {
		return nil
	}
	lines := make([]string, 0, len(found))
	for _, v := range found {
		lines = append(lines, v.String())
	}
	return fmt.Errorf("%s\n%v", strings.Join(lines, "\n"), what)
}
