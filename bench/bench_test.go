package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/bench/workload"
	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/engine/enginetest"
)

// parrot is a sandbox that knows every answer by heart. It waits for nothing: a
// script that should run into its clock reports an overrun of 1 ms at once.
type parrot struct {
	answers map[string]string // by script and input
	classes map[string]string // of the corpus, by script
	spoil   func(engine.Request, *engine.Outcome)
	vms     atomic.Int64
}

func newParrot(t *testing.T) *parrot {
	t.Helper()
	p := &parrot{answers: map[string]string{"1+1": "2", burner: "true"}, classes: map[string]string{}}
	for _, w := range workload.All() {
		for _, size := range workload.Sizes {
			c, err := w.Case(size, 7)
			if err != nil {
				t.Fatal(err)
			}
			p.answers[w.Script.Source+string(c.Input)] = string(c.Want)
		}
	}
	for _, n := range []int{1, 2, 10} { // what a parrot, which takes no time, is asked for
		w := workload.Reshapes(n)
		c, err := w.Case(workload.Medium, 7)
		if err != nil {
			t.Fatal(err)
		}
		p.answers[w.Script.Source+string(c.Input)] = string(c.Want)
	}
	for _, c := range enginetest.Cases() {
		p.classes[c.JS] = c.Expected
	}
	return p
}

func (p *parrot) Run(_ context.Context, r engine.Request) (engine.Outcome, error) {
	o := engine.Outcome{Class: engine.ClassScriptError, Usage: engine.Usage{Fuel: int64(len(r.Script.Source)), ImageBytes: 1 << 20, PeakMemoryBytes: 2 << 20}}
	if answer, ok := p.answers[r.Script.Source+string(r.Input)]; ok {
		o.Class, o.Value = engine.ClassOK, []byte(answer)
	} else if text, ok := marshalled(r); ok {
		o.Class, o.Value = engine.ClassOK, text
	} else if class, ok := p.classes[r.Script.Source]; ok {
		kind, guard, _ := strings.Cut(class, ":")
		o.Class, o.Guard = engine.Class(kind), engine.Guard(guard)
		if o.Guard == engine.WallClock {
			o.Usage.Overrun = time.Millisecond
		}
	}
	if p.spoil != nil {
		p.spoil(r, &o)
	}
	return o, nil
}

func (p *parrot) Warm(context.Context) error { return nil }
func (p *parrot) Close() error               { return nil }

// marshalled is the answer to the scripts of the group marshal.
func marshalled(r engine.Request) ([]byte, bool) {
	n := 0
	if _, err := fmt.Sscanf(r.Script.Source, "'x'.repeat(%d)", &n); err == nil {
		return []byte(`"` + strings.Repeat("x", n) + `"`), true
	}
	return fmt.Append(nil, len(r.Input)-2), r.Script.Source == "input.length"
}

type parrotVM struct{ p *parrot }

func (v parrotVM) Eval(ctx context.Context, r engine.Request) engine.Outcome {
	o, _ := v.p.Run(ctx, r)
	return o
}

func (v parrotVM) Close() error { v.p.vms.Add(-1); return nil }

func (p *parrot) suite(meterings ...string) Suite {
	return Suite{Engine: "parrot", Meterings: meterings, Open: func(context.Context, Options) (*Instance, error) {
		return &Instance{
			Backend: p,
			NewVM: func(context.Context) (engine.VM, error) {
				p.vms.Add(1)
				return parrotVM{p}, nil
			},
			FreshRuntime: func(_ context.Context, n int) (time.Duration, error) {
				return time.Duration(n) * time.Millisecond, nil
			},
			Close: func() error { return nil },
		}, nil
	}}
}

func names(r sample.Run) []string {
	var out []string
	for _, s := range r.Samples {
		out = append(out, s.Name)
	}
	return out
}

// TestMain lets the test binary stand in for the program that Measure starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "cold" {
		fmt.Println(os.Getenv("COLD_ANSWER"))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestMeasureQuick(t *testing.T) {
	t.Setenv("COLD_ANSWER", "2")
	p := newParrot(t)
	var seen []string
	r, err := Measure(t.Context(), p.suite(MeteringOn, MeteringOff, MeteringCloseOnDone), Plan{
		Quick: true, Seed: 7, Self: []string{os.Args[0]}, Observe: func(s sample.Sample) { seen = append(seen, s.Name) },
	})
	if err != nil {
		t.Fatal(err)
	}
	got := names(r)
	if !slices.Equal(got, seen) {
		t.Errorf("observed %d rows, the run has %d", len(seen), len(got))
	}
	for _, want := range []string{
		"calibration/kernel=arithmetic/when=before", "calibration/kernel=timer/when=after",
		"wall/workload=reshape/size=medium", "fuel/workload=kernel/size=medium", "output/workload=json/size=medium", "peak/workload=sort/size=medium",
		"guard/metering=on/workload=join/size=medium", "guard/metering=close-on-done/workload=join/size=medium", "guard/metering=on", "guard/metering=close-on-done",
		"fresh/op=eval", "fresh/op=runtime", "fresh/op=gain",
		"cold/of=process/cache=empty", "cold/of=process/cache=filled", "cold/of=vm",
		"memory/case=A01", "memory/figure=share", "kill/gc=off", "kill/gc=on", "kill/gc=off/case=A04",
		"loop/metering=none/figure=longest", "loop/metering=on/figure=longest", "loop/metering=off/figure=unavailable",
		"loop/of=nothing/gc=on/figure=longest", "loop/of=reshapes/backend=inproc/gc=off/figure=wall", "marshal/dir=out/size=3.68MiB/backend=inproc",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("no row %s in\n%s", want, strings.Join(got, "\n"))
		}
	}
	if len(r.Broken) > 0 {
		t.Errorf("broken: %q", r.Broken)
	}
	if n := p.vms.Load(); n != 0 {
		t.Errorf("%d VMs were not closed", n)
	}
	// Every kill of the parrot took 1 ms.
	if s, _ := r.Find("kill/gc=on"); s.Value != 0.001 || s.Unit != sample.Seconds {
		t.Errorf("kill/gc=on: got %v %s, want 0.001 sec", s.Value, s.Unit)
	}
	b, err := sample.Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sample.Decode(bytes.NewReader(b)); err != nil {
		t.Error(err)
	}
}

func TestMeasureWithoutExtras(t *testing.T) {
	p := newParrot(t)
	s := p.suite()
	open := s.Open
	s.Open = func(ctx context.Context, o Options) (*Instance, error) {
		if o.Metering != "" {
			t.Errorf("opened with metering %q", o.Metering)
		}
		i, err := open(ctx, o)
		i.NewVM, i.FreshRuntime = nil, nil
		return i, err
	}
	p.spoil = func(_ engine.Request, o *engine.Outcome) { o.Usage.Fuel = 0 }
	r, err := Measure(t.Context(), s, Plan{Quick: true, Seed: 7})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names(r) {
		for _, not := range []string{"guard", "cold", "fuel", "fresh/op=runtime", "loop/metering=on"} {
			if strings.HasPrefix(name, not) {
				t.Errorf("row %s of a sandbox that does not offer it", name)
			}
		}
	}
	if !slices.Contains(names(r), "loop/figure=longest") {
		t.Error("no loop row for a sandbox without metering")
	}
}

func TestMeasureOwn(t *testing.T) {
	p := newParrot(t)
	p.answers["own"+"[1]"] = "42"
	own := &Own{Script: engine.Script{Source: "own"}, Input: []byte("[1]")}
	r, err := Measure(t.Context(), p.suite(MeteringOn, MeteringOff), Plan{Quick: true, Own: own})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"fuel/script=own", "output/script=own", "peak/script=own", "wall/script=own", "guard/metering=on/script=own"}
	got := slices.DeleteFunc(names(r), func(name string) bool { return strings.HasPrefix(name, "calibration/") })
	if !slices.Equal(got, want) {
		t.Errorf("got rows %q, want %q", got, want)
	}

	calls := 0
	p.spoil = func(_ engine.Request, o *engine.Outcome) {
		calls++
		o.Value = fmt.Append(nil, calls)
	}
	var wrong *WrongAnswer
	if _, err := Measure(t.Context(), p.suite(MeteringOn), Plan{Quick: true, Own: own}); !errors.As(err, &wrong) {
		t.Errorf("a script that gives another answer each time: got %v", err)
	}
}

// TestMeasureFindsFaults spoils the parrot in the ways that Measure has to see.
func TestMeasureFindsFaults(t *testing.T) {
	medium, err := workload.All()[3].Case(workload.Medium, 7)
	if err != nil {
		t.Fatal(err)
	}
	isMedium := func(r engine.Request) bool { return bytes.Equal(r.Input, medium.Input) && len(r.Input) > 0 }
	flips := 0
	for _, c := range []struct {
		name   string
		spoil  func(engine.Request, *engine.Outcome)
		wrong  string // in the text of a WrongAnswer
		broken string // in Broken
	}{
		{"a wrong answer", func(r engine.Request, o *engine.Outcome) {
			if isMedium(r) {
				o.Value = []byte(`"x"`)
			}
		}, "workload=format/size=medium", ""},
		{"a script error", func(r engine.Request, o *engine.Outcome) {
			if isMedium(r) {
				o.Class, o.Message = engine.ClassScriptError, "ReferenceError"
			}
		}, "ended as error", ""},
		{"1+1 is 3", func(r engine.Request, o *engine.Outcome) {
			if r.Script.Source == "1+1" {
				o.Value = []byte("3")
			}
		}, "fresh/op=eval", ""},
		{"fuel that changes", func(r engine.Request, o *engine.Outcome) {
			if isMedium(r) {
				flips++
				o.Usage.Fuel += int64(flips)
			}
		}, "", "same: workload=format"},
		{"memory over its ceiling", func(r engine.Request, o *engine.Outcome) {
			if o.Guard == engine.Memory {
				o.Usage.PeakMemoryBytes = o.Usage.ImageBytes + int64(len(r.Input)) + r.Limits.MemoryBytes + 1
			}
		}, "", "fits: case"},
		{"no clock", func(_ engine.Request, o *engine.Outcome) {
			if o.Guard == engine.WallClock {
				o.Guard = engine.Fuel
			}
		}, "", "stops: none"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newParrot(t)
			p.spoil = c.spoil
			r, err := Measure(t.Context(), p.suite(MeteringOn), Plan{Quick: true, Seed: 7})
			var wrong *WrongAnswer
			if c.wrong != "" {
				if !errors.As(err, &wrong) || !strings.Contains(err.Error(), c.wrong) {
					t.Errorf("got %v, want a wrong answer that says %q", err, c.wrong)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(r.Broken, "\n"); !strings.Contains(got, c.broken) {
				t.Errorf("broken: %q, want %q", got, c.broken)
			}
		})
	}
}

func TestColdStartWithAWrongAnswer(t *testing.T) {
	t.Setenv("COLD_ANSWER", "3")
	var wrong *WrongAnswer
	_, err := Measure(t.Context(), newParrot(t).suite(MeteringOn), Plan{Quick: true, Seed: 7, Self: []string{os.Args[0]}})
	if !errors.As(err, &wrong) || wrong.Row != "cold/of=process" {
		t.Errorf("got %v, want a wrong answer of cold/of=process", err)
	}
}

func TestCold(t *testing.T) {
	p := newParrot(t)
	var out bytes.Buffer
	if err := Cold(t.Context(), p.suite(MeteringOn), Options{Metering: MeteringOn, CacheDir: t.TempDir()}, &out); err != nil || out.String() != "2\n" {
		t.Errorf("got %q, %v, want 2", out.String(), err)
	}
	p.answers["1+1"] = "3"
	if err := Cold(t.Context(), p.suite(MeteringOn), Options{Metering: MeteringOn, CacheDir: t.TempDir()}, &out); err == nil {
		t.Error("1+1 = 3 passed")
	}
}
