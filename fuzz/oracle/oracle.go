// Package oracle judges what came of a run, independently of who ran it and how
// its script was made.
//
// Each oracle has an id that leads its message: a finding is filed, and a
// reducer accepts a candidate, by the id. What counts as a violation and what
// does not is in fuzz/README.md.
package oracle

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/sandbed/sandbed/engine"
)

// ID names an oracle.
type ID string

// The oracles.
const (
	Panic    ID = "panic"     // the host panicked
	Fault    ID = "hostfault" // the host failed where nothing gave it cause
	Late     ID = "late"      // back later than wall clock, grace and slack, every time of three
	Sound    ID = "sound"     // class, guard and value contradict each other
	Output   ID = "output"    // the value is above its cap, or no JSON
	Text     ID = "text"      // message or stack above 4 KiB, or no UTF-8
	Memory   ID = "memory"    // linear memory above image, input and limit
	Fuel     ID = "fuel"      // fuel and its limit contradict each other
	Hooks    ID = "hooks"     // the clock was not armed and ended once each, in order
	Same     ID = "same"      // two runs of the same differ
	Backends ID = "backends"  // two backends differ
	Clean    ID = "clean"     // a later run is affected
	Guard    ID = "guard"     // the wrong guard, or none where one was due
	Verdict  ID = "verdict"   // the outcome is not the one that was due
	Value    ID = "value"     // the value is not the one that was due
	Charge   ID = "charge"    // a run was charged, or spared, time that is not its own
	Order    ID = "order"     // a later run was served before an earlier one
	Closed   ID = "closed"    // something happened after Close, or did not end with it
	Books    ID = "books"     // counts do not add up
	Contract ID = "contract"  // a VM was used against its contract
	Frees    ID = "frees"     // a kill cost the worker that it should have freed
	Alive    ID = "alive"     // a trivial run did not succeed afterwards
	Stops    ID = "stops"     // metered code did not stop
	Meter    ID = "meter"     // a metered module differs from the plain one
)

// Violation is one breach.
type Violation struct {
	ID     ID
	Detail string
}

func (v Violation) String() string { return "[" + string(v.ID) + "] " + v.Detail }

// Log collects what the oracles find in one input. The zero value is ready. It
// belongs to one goroutine.
type Log struct {
	// Tripwire makes every oracle false: how a target shows at its start that its
	// oracles are asked and that their answer arrives.
	Tripwire bool
	found    []Violation
	asked    []ID
}

// Check notes a violation unless ok. The detail is formatted only then.
func (l *Log) Check(ok bool, id ID, format string, args ...any) {
	if l.Tripwire && !slices.Contains(l.asked, id) {
		l.asked = append(l.asked, id)
	}
	if ok && !l.Tripwire {
		return
	}
	l.found = append(l.found, Violation{id, fmt.Sprintf(format, args...)})
}

// Violations are what was found, in order.
func (l *Log) Violations() []Violation { return l.found }

// Asked are the oracles that were asked while Tripwire was set, each once.
func (l *Log) Asked() []ID { return l.asked }

// Run is one evaluation as its driver saw it.
type Run struct {
	Request          engine.Request
	Out              engine.Outcome
	Err              error
	Starts, Finishes int // calls of the hooks
	Armed, Finished  time.Time
	Returned         time.Time
	FinishedUnarmed  bool
	Panicked         any
	Label            string // the outcome's, or what Describe says of Err
}

// Watch runs r by run and keeps what its hooks saw. A hook that r has for its start is
// called as well.
func Watch(r engine.Request, run func(engine.Request) (engine.Outcome, error)) *Run {
	got := &Run{Request: r}
	var mu sync.Mutex // the hooks run on the evaluating goroutine
	started := r.OnScriptStart
	r.OnScriptStart = func(at time.Time) {
		mu.Lock()
		defer mu.Unlock()
		got.Starts++
		got.Armed = at
		if started != nil {
			started(at)
		}
	}
	r.OnFinished = func(at time.Time) {
		mu.Lock()
		defer mu.Unlock()
		got.FinishedUnarmed = got.FinishedUnarmed || got.Starts == 0
		got.Finishes++
		got.Finished = at
	}
	out, err := run(r)
	mu.Lock()
	defer mu.Unlock()
	got.Out, got.Err, got.Returned = out, err, time.Now()
	if got.Label = out.Label(); err != nil {
		got.Label, _ = engine.Describe(err)
	}
	return got
}

// Overrun is how long after its wall clock the run came back.
func (r *Run) Overrun() time.Duration {
	if r.Starts == 0 {
		return 0
	}
	return max(0, r.Returned.Sub(r.Armed)-r.Request.Limits.WithDefaults().WallClock)
}

// ByClock says that a clock ended the run, or that it was so near to it that
// another try may end otherwise: such a run is compared with none.
func (r *Run) ByClock() bool {
	wall := r.Request.Limits.WithDefaults().WallClock
	return r.Label == "limit:wallClock" || r.Label == "canceled" || r.Out.Usage.Script+r.Out.Usage.Dump > wall/2
}

const (
	maxText  = 4 << 10
	wasmPage = 64 << 10
)

// Judge holds a run against what binds every run of every backend.
func Judge(log *Log, r *Run) {
	log.Check(r.Panicked == nil, Panic, "the host panicked: %v", r.Panicked)
	if r.Panicked != nil {
		return
	}
	log.Check(r.Err == nil, Fault, "%v", r.Err)
	if r.Err != nil {
		return
	}
	o, l := r.Out, r.Request.Limits.WithDefaults()
	known := slices.Contains([]engine.Class{engine.ClassOK, engine.ClassScriptError, engine.ClassResultNotSerializable, engine.ClassLimit,
		engine.ClassInputTooLarge, engine.ClassEngineFault, engine.ClassCanceled}, o.Class)
	guard := slices.Contains([]engine.Guard{engine.WallClock, engine.Fuel, engine.Memory, engine.Stack, engine.Output}, o.Guard)
	log.Check(known && guard == (o.Class == engine.ClassLimit) && (guard || o.Guard == ""), Sound, "class %q with guard %q", o.Class, o.Guard)
	log.Check(o.Value == nil || o.Class == engine.ClassOK, Sound, "class %q carries a value", o.Class)
	log.Check(o.Class != engine.ClassInputTooLarge || o.DuringSeed, Sound, "an input too large that was found after seeding")
	log.Check(!o.DuringSeed || o.Class != engine.ClassOK && r.Starts == 0, Sound, "class %q during seeding, after %d starts", o.Class, r.Starts)
	log.Check(o.Value == nil || json.Valid(o.Value) && utf8.Valid(o.Value), Output, "the value is no JSON in UTF-8: %.200q", o.Value)
	log.Check(int64(len(o.Value)) <= l.MaxOutputBytes, Output, "a value of %d bytes under a limit of %d", len(o.Value), l.MaxOutputBytes)
	for _, s := range []string{o.Message, o.JSStack} {
		log.Check(len(s) <= maxText && utf8.ValidString(s), Text, "a text of %d bytes, %.80q", len(s), s)
	}
	log.Check(o.Guard != engine.Fuel || l.Fuel > 0 && o.Usage.Fuel >= l.Fuel, Fuel, "limit:fuel after %d units of %d", o.Usage.Fuel, l.Fuel)
	log.Check(o.Class != engine.ClassOK || l.Fuel == 0 || r.Starts == 0 || o.Usage.Fuel <= l.Fuel+seedFuel(r), Fuel,
		"ok after %d units of %d", o.Usage.Fuel, l.Fuel)
	log.Check(r.Starts <= 1 && r.Finishes <= 1 && !r.FinishedUnarmed && (r.Finishes == 0 || !r.Finished.Before(r.Armed)) &&
		(o.Class != engine.ClassOK || r.Starts == 1 && r.Finishes == 1), Hooks,
		"class %q after %d calls of OnScriptStart and %d of OnFinished", o.Class, r.Starts, r.Finishes)
	if u := o.Usage; u.PeakMemoryBytes > 0 {
		most := (u.ImageBytes + int64(len(r.Request.Input)) + l.MemoryBytes + wasmPage - 1) / wasmPage * wasmPage
		log.Check(u.PeakMemoryBytes <= most && u.PeakMemoryBytes >= u.ImageBytes, Memory, "a peak of %d bytes, allowed %d (image %d, input %d, limit %d)",
			u.PeakMemoryBytes, most, u.ImageBytes, len(r.Request.Input), l.MemoryBytes)
	}
}

// seedFuel is what parsing the input may have added to Usage.Fuel: the limit
// binds script and dump alone, and an outcome does not say how much seeding was.
func seedFuel(r *Run) int64 {
	if r.Request.Input == nil {
		return 0
	}
	return 1 << 40
}

// Equal holds two runs of the same request against each other, in everything
// that does not hang on the clock. With usage, fuel and memory must be equal too.
func Equal(log *Log, id ID, who string, a, b *Run, usage bool) {
	if a.ByClock() || b.ByClock() {
		return
	}
	log.Check(a.Label == b.Label, id, "%s: %s and %s (%.200q, %.200q)", who, a.Label, b.Label, a.Out.Message, b.Out.Message)
	log.Check(string(a.Out.Value) == string(b.Out.Value), id, "%s: values %.200q and %.200q", who, a.Out.Value, b.Out.Value)
	log.Check(a.Out.Message == b.Out.Message && a.Out.JSStack == b.Out.JSStack, id, "%s: messages %.200q and %.200q", who,
		a.Out.Message+a.Out.JSStack, b.Out.Message+b.Out.JSStack)
	if usage {
		log.Check(a.Out.Usage.Fuel == b.Out.Usage.Fuel, id, "%s: fuel %d and %d", who, a.Out.Usage.Fuel, b.Out.Usage.Fuel)
		log.Check(a.Out.Usage.PeakMemoryBytes == b.Out.Usage.PeakMemoryBytes && a.Out.Usage.StackBytes == b.Out.Usage.StackBytes, id,
			"%s: memory %d and %d, stack %d and %d", who, a.Out.Usage.PeakMemoryBytes, b.Out.Usage.PeakMemoryBytes, a.Out.Usage.StackBytes, b.Out.Usage.StackBytes)
	}
}
