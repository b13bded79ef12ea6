// Package engine is the contract of a JavaScript sandbox and the policy that
// sits on it.
//
// A [VM] evaluates one script at a time under [Limits] and reports an [Outcome]:
// what happened, never what it means. A [Backend] runs evaluations for many
// callers, in-process or in a pool. [Sandbox] turns outcomes into typed
// failures that say whose fault they are.
//
// The package imports the standard library alone, so that any sandbox can
// implement the contract and be put through engine/enginetest.
package engine

import (
	"context"
	"encoding/json"
	"time"
)

// Kind says how the source text of a script is to be read.
type Kind string

// The kinds of script.
const (
	Detect  Kind = ""        // the engine decides, as QuickJS's JS_DetectModule does
	Program Kind = "program" // the result is the completion value
	Module  Kind = "module"  // the result is the default export; a function there is called with input
)

// Script is the untrusted JavaScript that is evaluated.
type Script struct {
	Source string
	Name   string // in stack traces; default "script.js"
	Kind   Kind
}

// Request is one evaluation.
type Request struct {
	Script Script
	// Input is one JSON text that the script sees as the global input; nil
	// leaves input undefined. It must be valid JSON in UTF-8.
	Input  json.RawMessage
	Limits Limits

	// OnScriptStart, if set, is called with the instant at which the wall clock
	// was armed: after boot and after the input was parsed. It runs on the
	// evaluating goroutine and must not block.
	OnScriptStart func(time.Time)
	// OnFinished, if set, is called with the instant at which the result was
	// dumped: nothing of the script runs after it. Same rules.
	OnFinished func(time.Time)
}

// Class says how an evaluation ended.
type Class string

// The classes of outcome.
const (
	ClassOK                    Class = "ok"
	ClassScriptError           Class = "error"                 // the script threw, did not parse, or its promise rejected or never settled
	ClassResultNotSerializable Class = "resultNotSerializable" // the result is not JSON: function, symbol, cycle, BigInt
	ClassLimit                 Class = "limit"                 // a guard ended the script; Outcome.Guard says which
	ClassInputTooLarge         Class = "inputTooLarge"         // parsing the input overflowed the VM's memory
	ClassEngineFault           Class = "engineFault"           // a trap that no guard explains; the instance was discarded
	ClassCanceled              Class = "canceled"              // the caller's context ended the run; its cause says why
)

// Guard is a limit that ended a script.
type Guard string

// The guards.
const (
	WallClock Guard = "wallClock"
	Fuel      Guard = "fuel"
	Memory    Guard = "memory"
	Stack     Guard = "stack"
	Output    Guard = "output"
)

// Outcome is what the engine reports of one evaluation.
type Outcome struct {
	Class Class
	Guard Guard // set with class Limit
	// Value is the result as one JSON text; nil when the result is undefined.
	// The bytes belong to the caller.
	Value json.RawMessage
	// Message and JSStack describe the exception or the trap. They are written
	// by the script: data to quote and to cut (at most 4 KiB each), never to match.
	Message, JSStack string
	// DuringSeed is true when the evaluation ended while the input was parsed,
	// before any line of the script ran.
	DuringSeed bool
	// Killed is true when the script was ended by a trap (or its worker was),
	// false when it ended through QuickJS's own exceptions.
	Killed bool
	Usage  Usage
}

// Label is the class with its guard, as corpora and reports name it:
// "ok", "error", "limit:wallClock".
func (o Outcome) Label() string {
	if o.Class == ClassLimit {
		return string(o.Class) + ":" + string(o.Guard)
	}
	return string(o.Class)
}

// Usage is what one evaluation used. A run whose worker was ended from outside
// may report none of it: the figures went with the worker.
type Usage struct {
	// Fuel is the metered work of seeding, script and dump, in units of about
	// one bytecode operation. The same script, input, limits and build use the same fuel,
	// unless a clock ended the run. Zero without metering.
	Fuel int64
	// PeakMemoryBytes is the largest size of linear memory, ImageBytes its size
	// before the evaluation; both in whole 64 KiB pages.
	PeakMemoryBytes, ImageBytes int64
	// StackBytes is the deepest use of the C stack in linear memory.
	StackBytes int64

	Seed   time.Duration // parsing the input; charged to nobody
	Script time.Duration // from the armed clock to the settled result
	Dump   time.Duration // turning the result into JSON in the VM; still under the clock
	Copy   time.Duration // copying the bytes to the host; charged to nobody
	// Overrun is how long after its wall clock the VM was free for the next
	// evaluation (restored); zero for a run that met its clock.
	Overrun time.Duration
}

// VM is one virtual machine. It serves one goroutine at a time.
type VM interface {
	// Eval runs one evaluation in a fresh state and leaves the VM fresh.
	// Cancelling ctx is the kill: it ends the evaluation within a few
	// milliseconds with class Canceled, and context.Cause(ctx) says why. A late
	// kill cannot hit the next run, since it names its run by its context.
	Eval(ctx context.Context, r Request) Outcome
	// Close gives back the VM's memory. Eval after Close reports an engine fault.
	Close() error
}

// Backend runs evaluations for any number of concurrent callers.
type Backend interface {
	// Run evaluates r. The error is the host's fault, never the script's:
	// *WorkerStartupError, ErrQueueFull, ErrClosed, or the context's error when
	// the caller gave up before the run began.
	Run(ctx context.Context, r Request) (Outcome, error)
	// Warm makes the backend ready to serve without a cold start.
	Warm(ctx context.Context) error
	// Close ends what runs and gives back every resource.
	Close() error
}
