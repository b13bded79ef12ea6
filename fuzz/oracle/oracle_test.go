package oracle

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sandbed/sandbed/engine"
)

// good is a run that no oracle has anything against.
func good() *Run {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return &Run{
		Request: engine.Request{Limits: engine.Limits{Fuel: 1000, MaxOutputBytes: 10, MemoryBytes: 1 << 20}},
		Out: engine.Outcome{Class: engine.ClassOK, Value: []byte("12"),
			Usage: engine.Usage{Fuel: 900, ImageBytes: 5 * wasmPage, PeakMemoryBytes: 6 * wasmPage}},
		Starts: 1, Finishes: 1, Armed: at, Finished: at.Add(time.Millisecond), Returned: at.Add(2 * time.Millisecond), Label: "ok",
	}
}

// Each oracle meets a run that it must not pass, and says so with its id first.
func TestEveryOracleCanFail(t *testing.T) {
	var log Log
	Judge(&log, good())
	Equal(&log, Same, "twice", good(), good(), true)
	if v := log.Violations(); len(v) > 0 {
		t.Fatalf("a good run: %v", v)
	}
	for name, c := range map[string]struct {
		id    ID
		spoil func(*Run)
	}{
		"panic":             {Panic, func(r *Run) { r.Panicked = "x" }},
		"host fault":        {Fault, func(r *Run) { r.Err = errors.New("x") }},
		"unknown class":     {Sound, func(r *Run) { r.Out.Class, r.Out.Value = "mystery", nil }},
		"guard with ok":     {Sound, func(r *Run) { r.Out.Guard = engine.Stack }},
		"limit, no guard":   {Sound, func(r *Run) { r.Out.Class, r.Out.Value = engine.ClassLimit, nil }},
		"unknown guard":     {Sound, func(r *Run) { r.Out.Class, r.Out.Value, r.Out.Guard = engine.ClassLimit, nil, "x" }},
		"value with error":  {Sound, func(r *Run) { r.Out.Class = engine.ClassScriptError }},
		"large after seed":  {Sound, func(r *Run) { r.Out.Class, r.Out.Value = engine.ClassInputTooLarge, nil }},
		"ok during seed":    {Sound, func(r *Run) { r.Out.DuringSeed = true }},
		"no JSON":           {Output, func(r *Run) { r.Out.Value = []byte("{") }},
		"no UTF-8":          {Output, func(r *Run) { r.Out.Value = []byte("\"\xff\"") }},
		"above the cap":     {Output, func(r *Run) { r.Out.Value = []byte("12345678901") }},
		"long message":      {Text, func(r *Run) { r.Out.Message = strings.Repeat("x", maxText+1) }},
		"stack not UTF-8":   {Text, func(r *Run) { r.Out.JSStack = "\xff" }},
		"fuel without need": {Fuel, func(r *Run) { r.Out.Class, r.Out.Value, r.Out.Guard = engine.ClassLimit, nil, engine.Fuel }},
		"too much fuel":     {Fuel, func(r *Run) { r.Out.Usage.Fuel = 1001 }},
		"armed twice":       {Hooks, func(r *Run) { r.Starts = 2 }},
		"ok unfinished":     {Hooks, func(r *Run) { r.Finishes = 0 }},
		"wrong order":       {Hooks, func(r *Run) { r.Finished = r.Armed.Add(-1) }},
		"unarmed":           {Hooks, func(r *Run) { r.FinishedUnarmed = true }},
		"above memory":      {Memory, func(r *Run) { r.Out.Usage.PeakMemoryBytes = 22 * wasmPage }},
		"below the image":   {Memory, func(r *Run) { r.Out.Usage.PeakMemoryBytes = 4 * wasmPage }},
	} {
		t.Run(name, func(t *testing.T) {
			r := good()
			c.spoil(r)
			var log Log
			Judge(&log, r)
			v := log.Violations()
			if len(v) == 0 || v[0].ID != c.id || !strings.HasPrefix(v[0].String(), "["+string(c.id)+"] ") {
				t.Errorf("got %v, want %s first", v, c.id)
			}
		})
	}
	for name, spoil := range map[string]func(*Run){
		"label":   func(r *Run) { r.Label = "error" },
		"value":   func(r *Run) { r.Out.Value = []byte("13") },
		"message": func(r *Run) { r.Out.Message = "x" },
		"stack":   func(r *Run) { r.Out.JSStack = "x" },
		"fuel":    func(r *Run) { r.Out.Usage.Fuel++ },
		"peak":    func(r *Run) { r.Out.Usage.PeakMemoryBytes++ },
		"depth":   func(r *Run) { r.Out.Usage.StackBytes++ },
	} {
		t.Run("differs in "+name, func(t *testing.T) {
			r := good()
			spoil(r)
			var log Log
			Equal(&log, Backends, "x", good(), r, true)
			if v := log.Violations(); len(v) != 1 || v[0].ID != Backends {
				t.Errorf("got %v, want one", v)
			}
		})
	}
}

// What a clock ended is compared with nothing.
func TestByClock(t *testing.T) {
	r := good()
	r.Label, r.Out.Value = "limit:wallClock", nil
	var log Log
	Equal(&log, Same, "x", good(), r, true)
	if v := log.Violations(); len(v) > 0 {
		t.Errorf("got %v, want nothing", v)
	}
	if got := r.Overrun(); got != 0 {
		t.Errorf("overrun %v, want 0", got)
	}
	r.Returned = r.Armed.Add(3 * time.Second)
	if got := r.Overrun(); got != 2*time.Second {
		t.Errorf("overrun %v, want 2s", got)
	}
}

func TestTripwire(t *testing.T) {
	log := Log{Tripwire: true}
	Judge(&log, good())
	if len(log.Violations()) < 8 || len(log.Asked()) < 6 {
		t.Errorf("got %d violations of %v: every oracle must be false", len(log.Violations()), log.Asked())
	}
}
