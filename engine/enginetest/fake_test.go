package enginetest

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sandbed/sandbed/engine"
)

// answer is what the fake says to a script.
type answer struct {
	label   string
	value   string // JSON text, or "absent"
	endless bool   // ends by a guard of time or by a cancel alone
}

// answers replays what the data of the suite expects, by kind and source.
var answers = func() map[engine.Script]answer {
	m := map[engine.Script]answer{}
	put := func(kind engine.Kind, js, label, value string) {
		if value == "" {
			value = "1"
		}
		m[engine.Script{Source: js, Kind: kind}] = answer{label, value, label == "limit:wallClock" || label == "limit:fuel"}
	}
	for _, list := range [][]probe{runawayLoop, wallClock, allocationBomb, stackOverflow, noAmbientIO, forgedGuards, honestGuards,
		caughtGuards, resultValues, moduleResults, promiseResults, neverSettles, longMessages} {
		for _, p := range list {
			put(p.kind, p.js, p.want, p.value)
		}
	}
	for _, p := range endless {
		put("", p.js, "limit:wallClock", "")
	}
	for _, p := range capScripts {
		put("", p.js, "ok", `"`+strings.Repeat("x", capBytes-2)+`"`)
	}
	for _, p := range steady {
		label := "ok"
		if strings.HasPrefix(p.js, "throw") {
			label = "error"
		}
		put("", p.js, label, "7")
	}
	for _, p := range isolationPairs {
		label := "ok"
		switch {
		case p.wall > 0:
			label = "limit:wallClock"
		case strings.HasSuffix(p.first, exhaust):
			label = "limit:memory"
		case strings.HasSuffix(p.first, overflow):
			label = "limit:stack"
		case strings.Contains(p.first, "throw") && p.name != "then-replaced":
			label = "error"
		}
		put("", p.first, label, "")
		put("", p.second, "ok", `"undefined"`)
		put("", p.both(), "ok", `"mutated"`)
	}
	for js, value := range map[string]string{
		clocks: "[1,1,0,0.5,0.25,0]", standingClock: "0", `input.length>5`: "true", `1`: "1",
		`({rows:[{n:1},{n:2}]})`: `{"rows":[{"n":1},{"n":2}]}`, `({rows:"none"})`: `{"rows":"none"}`,
		`({rows:[{n:1},{n:"2"}]})`: `{"rows":[{"n":1},{"n":"2"}]}`, `({})`: "{}", `void "shape"`: "absent",
	} {
		put("", js, "ok", value)
	}
	put("", `throw new Error("no rows")`, "error", "")
	put("", overflow, "limit:stack", "")
	put("", exhaust, "limit:memory", "")
	put("", `"a".repeat(2000000)`, "limit:output", "")
	put("", `for(;;);`, "limit:wallClock", "")
	put("", `try{for(;;);}catch(e){"caught"}`, "limit:wallClock", "")
	for _, c := range Cases() {
		if c.Expected == labelInputNotSerializable || c.Expected == labelInputTooLarge {
			continue // the policy's, or by size below
		}
		put(c.Kind, c.JS, c.Expected, string(c.ExpectValue))
		if c.ThenJS != "" {
			put("", c.ThenJS, "ok", string(c.ThenExpect))
		}
	}
	put("", `1+1`, "ok", "2")
	return m
}()

const (
	fakeImage    = 10 * wasmPage
	endlessFuel  = 1 << 40
	fakeOverrun  = time.Millisecond
	fakeMessage  = "the promise never settles"
	fakeHeavyMin = 500_000 // bytes of input that do not fit 2 MiB
)

var counted = regexp.MustCompile(`i<(\d+);|repeat\((\d+)\)\.indexOf`)

// fake is a backend that conforms, by knowing the answers.
type fake struct {
	closed atomic.Bool
}

func (f *fake) Warm(context.Context) error        { return nil }
func (f *fake) VerifyImage(context.Context) error { return nil }
func (f *fake) Close() error                      { f.closed.Store(true); return nil }

func (f *fake) Run(ctx context.Context, r engine.Request) (engine.Outcome, error) {
	if f.closed.Load() {
		return engine.Outcome{}, engine.ErrClosed
	}
	if err := context.Cause(ctx); err != nil {
		return engine.Outcome{}, err
	}
	l := r.Limits.WithDefaults()
	o := engine.Outcome{Usage: engine.Usage{PeakMemoryBytes: fakeImage, ImageBytes: fakeImage, StackBytes: 1000}}
	time.Sleep(time.Duration(len(r.Input))) // seeding: a byte a nanosecond
	if l.MemoryBytes <= 2<<20 && len(r.Input) > fakeHeavyMin {
		o.Class, o.DuringSeed = engine.ClassInputTooLarge, true
		return o, nil
	}
	start := time.Now()
	if r.OnScriptStart != nil {
		r.OnScriptStart(start)
	}
	finish := func() {
		if r.OnFinished != nil {
			r.OnFinished(time.Now())
		}
	}
	a, known := answers[engine.Script{Source: r.Script.Source, Kind: r.Script.Kind}]
	fuel := int64(100 + len(r.Script.Source))
	if m := counted.FindStringSubmatch(r.Script.Source); m != nil {
		n, _ := strconv.ParseInt(m[1]+m[2], 10, 64)
		fuel += n
		if !known {
			a, known = answer{label: "ok", value: "7"}, true
		}
	}
	if r.Script.Source == double {
		n, _ := strconv.Atoi(string(r.Input))
		a = answer{label: "ok", value: strconv.Itoa(2 * n)}
	}
	if !known {
		o.Class, o.Message = engine.ClassEngineFault, fmt.Sprintf("the fake does not know %s", quote(r.Script.Source))
		return o, nil
	}
	if a.endless {
		fuel = endlessFuel
	}
	if l.Fuel > 0 && fuel > l.Fuel {
		o.Class, o.Guard, o.Killed, o.Usage.Fuel = engine.ClassLimit, engine.Fuel, true, l.Fuel+7
		return o, nil
	}
	o.Usage.Fuel = fuel
	if a.endless {
		o.Usage.Fuel = 12345
		t := time.NewTimer(l.WallClock + fakeOverrun)
		defer t.Stop()
		select {
		case <-ctx.Done():
			o.Class, o.Killed = engine.ClassCanceled, true
		case <-t.C:
			o.Class, o.Guard, o.Killed, o.Usage.Overrun = engine.ClassLimit, engine.WallClock, true, fakeOverrun
		}
		return o, nil
	}
	time.Sleep(time.Microsecond)
	class, guard, _ := strings.Cut(a.label, ":")
	o.Class, o.Guard = engine.Class(class), engine.Guard(guard)
	switch {
	case o.Class == engine.ClassOK && a.value == "absent":
	case o.Class == engine.ClassOK && int64(len(a.value)) > l.MaxOutputBytes:
		o.Class, o.Guard = engine.ClassLimit, engine.Output
	case o.Class == engine.ClassOK:
		o.Value = json.RawMessage(a.value)
	case o.Guard == engine.Memory:
		o.Usage.PeakMemoryBytes += l.MemoryBytes
	}
	if o.Class != engine.ClassOK {
		o.Message = fakeMessage
	}
	finish()
	return o, nil
}
