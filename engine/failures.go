package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// The failures of a call. Each type says whose fault it was and what to
// change. Use errors.As; texts may change.

// ErrQueueFull is returned when a backend's queue holds as many runs as it may.
var ErrQueueFull = errors.New("engine: the queue is full: send fewer calls at once, or raise the backend's MaxQueue")

// ErrClosed is returned by a backend after Close or Drain.
var ErrClosed = errors.New("engine: the backend is closed: make a new one")

// Lengths to which guest text is cut.
const (
	maxGuestText = 4 << 10 // kept in a failure
	maxErrorText = 200     // quoted in the text of an error
)

// cut shortens s to at most n bytes, never inside a rune.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// quoted gives guest or caller text a bounded place in an error.
func quoted(s string) string {
	if c := cut(s, maxErrorText); len(c) < len(s) {
		return fmt.Sprintf("%q… (%d bytes)", c, len(s))
	}
	return fmt.Sprintf("%q", s)
}

// UsageError is a field of a Spec, a Call or a store's argument that cannot be
// meant. It is the calling program's fault and not retryable.
type UsageError struct {
	Field  string // as in the struct: "Call.ScriptRef"
	Value  any
	Remedy string
}

func (e *UsageError) Error() string {
	v := fmt.Sprint(e.Value)
	if s, ok := e.Value.(string); ok {
		v = quoted(s)
	}
	return fmt.Sprintf("engine: %s = %s: %s", e.Field, v, e.Remedy)
}

// InputNotSerializable is an input that is not JSON in UTF-8 and cannot become it.
type InputNotSerializable struct {
	Reason string
}

func (e *InputNotSerializable) Error() string {
	return "engine: the input cannot become JSON: " + e.Reason
}

// InputTooLarge is an input that is over a limit. No rewrite of the
// script can mend it.
type InputTooLarge struct {
	Bytes int64 // length of the JSON text in UTF-8
	Limit int64 // in bytes
	// Field is the field of Limits that the input passed: MaxInputBytes, or
	// MemoryBytes when the parsed input overflowed the VM.
	Field string
}

func (e *InputTooLarge) Error() string {
	if e.Field == "MemoryBytes" {
		return fmt.Sprintf("engine: the input of %d bytes does not fit the VM's memory once parsed: send less, or raise Limits.MemoryBytes (%d)", e.Bytes, e.Limit)
	}
	return fmt.Sprintf("engine: the input of %d bytes is too large: send less, or raise Limits.%s (%d)", e.Bytes, e.Field, e.Limit)
}

// ScriptMissing is a ref for which the store has no script.
type ScriptMissing struct {
	Ref    string
	Erased bool // there was one, and it was erased on purpose
}

func (e *ScriptMissing) Error() string {
	if e.Erased {
		return fmt.Sprintf("engine: the script %s was erased: use another ref, or put it again", quoted(e.Ref))
	}
	return fmt.Sprintf("engine: there is no script %s: check the ref, or put the script first", quoted(e.Ref))
}

// ScriptTooLarge is a source over Limits.MaxScriptBytes.
type ScriptTooLarge struct {
	Ref   string // empty for a script given in the call
	Bytes int64  // size in bytes; a lower bound if the store stopped reading
	Limit int64
}

func (e *ScriptTooLarge) Error() string {
	what := "the script"
	if e.Ref != "" {
		what += " " + quoted(e.Ref)
	}
	return fmt.Sprintf("engine: %s of %d bytes is too large: shorten it, or raise Limits.MaxScriptBytes (%d)", what, e.Bytes, e.Limit)
}

// Reason says in which way a script failed.
type Reason string

// The reasons of a ScriptError.
const (
	Threw           Reason = "threw"                 // it threw, did not parse, or its promise rejected or never settled
	NotSerializable Reason = "resultNotSerializable" // its result is a function, a symbol, a cycle or a BigInt
	NotTranspilable Reason = "notTranspilable"       // the transpiler refused its source; nothing ran
)

// ScriptError is an error of the script itself.
type ScriptError struct {
	Reason Reason
	// Message and JSStack are written by the script, or by the transpiler about
	// it: data, at most 4 KiB each.
	Message, JSStack string
	// Line and Column are the place in the source as written, from 1; 0 when unknown.
	Line, Column int
}

func (e *ScriptError) Error() string {
	var at string
	if e.Line > 0 {
		at = fmt.Sprintf(" at line %d, column %d", e.Line, e.Column)
	}
	switch e.Reason {
	case NotSerializable:
		return "engine: the script's result is not JSON: return plain data: " + quoted(e.Message)
	case NotTranspilable:
		return "engine: the script cannot be transpiled" + at + ": " + quoted(e.Message)
	}
	return "engine: the script failed" + at + ": " + quoted(e.Message)
}

// LimitExceeded is a guard that ended a script.
type LimitExceeded struct {
	Kind Guard
	// Limit and Used are in the unit of the guard: nanoseconds for WallClock,
	// units for Fuel, bytes for the others. Limit is 0 where the backend's own
	// bound held (Stack); Used is 0 where it is not known (Output).
	Limit, Used int64
	Killed      bool // by a trap, or with its worker
}

func (e *LimitExceeded) Error() string {
	field, show := "", func(v int64) string { return fmt.Sprintf("%d bytes", v) }
	switch e.Kind {
	case WallClock:
		field, show = "WallClock", func(v int64) string { return time.Duration(v).String() }
	case Fuel:
		field, show = "Fuel", func(v int64) string { return fmt.Sprintf("%d units", v) }
	case Memory:
		field = "MemoryBytes"
	case Stack:
		field = "StackBytes"
	case Output:
		field = "MaxOutputBytes"
	default:
		return fmt.Sprintf("engine: the script passed the limit %s", quoted(string(e.Kind)))
	}
	limit := "the backend's own"
	if e.Limit > 0 {
		limit = show(e.Limit)
	}
	var used string
	if e.Used > 0 {
		used = ", used " + show(e.Used)
	}
	return fmt.Sprintf("engine: the script passed its %s limit: make it use less, or raise Limits.%s (%s%s)", e.Kind, field, limit, used)
}

// Violation is one place where a result is not of its shape.
type Violation struct {
	Path   string // JSON pointer into the result; "" is the result itself
	Rule   string // the rule that it broke: "type", "required", "absent"
	Detail string // what was wanted; names from the script are quoted and cut
}

// ShapeMismatch is a result that is not of the call's shape.
type ShapeMismatch struct {
	Violations []Violation
	Dropped    int // violations found but not listed
}

func (e *ShapeMismatch) Error() string {
	var b strings.Builder
	b.WriteString("engine: the result is not of the wanted shape: change what the script returns")
	for i, v := range e.Violations {
		if i == 3 {
			break
		}
		fmt.Fprintf(&b, "; at %s: %s: %s", quoted(v.Path), v.Rule, cut(v.Detail, maxErrorText))
	}
	if n := len(e.Violations) + e.Dropped - 3; n > 0 {
		fmt.Fprintf(&b, "; and %d more", n)
	}
	return b.String()
}

// Phase is a part of a run that is charged to the host.
type Phase string

// The phases of a start-up.
const (
	PhaseCompile Phase = "compile" // making the worker ready
	PhaseStart   Phase = "start"   // from a ready worker's taking the run to the armed clock
)

// WorkerStartupError is a worker that never began the script. It is the host's
// fault and the one failure that is retryable.
type WorkerStartupError struct {
	Phase Phase
	Err   error // may be nil
}

func (e *WorkerStartupError) Error() string {
	var why string
	if e.Err != nil {
		why = ": " + e.Err.Error()
	}
	return fmt.Sprintf("engine: a worker did not start the script (phase %s): give the host more time or fewer workers%s", e.Phase, why)
}

func (e *WorkerStartupError) Unwrap() error { return e.Err }

// EngineFault is a trap that no guard explains, or a backend that broke the
// contract. It is the host's fault, and nobody else's to mend.
type EngineFault struct {
	Message, JSStack string // data, at most 4 KiB each
	Killed           bool
}

func (e *EngineFault) Error() string {
	return "engine: fault of the engine, please report it with the script: " + quoted(e.Message)
}

// Canceled is a call whose context ended it. It unwraps to the
// context's cause.
type Canceled struct {
	Cause error // context.Cause; never nil
}

func (e *Canceled) Error() string { return "engine: the call was cancelled: " + e.Cause.Error() }

func (e *Canceled) Unwrap() error { return e.Cause }

// FailureOf turns the outcome of r, evaluated under ctx, into a failure; nil
// for class OK. Every place that maps outcomes uses it, so that all agree.
func FailureOf(ctx context.Context, r Request, o Outcome) error {
	l := r.Limits.WithDefaults()
	msg, stack := cut(o.Message, maxGuestText), cut(o.JSStack, maxGuestText)
	switch o.Class {
	case ClassOK:
		return nil
	case ClassScriptError:
		if o.DuringSeed { // no line of the script has run
			return &InputNotSerializable{Reason: msg}
		}
		return &ScriptError{Reason: Threw, Message: msg, JSStack: stack}
	case ClassResultNotSerializable:
		return &ScriptError{Reason: NotSerializable, Message: msg, JSStack: stack}
	case ClassInputTooLarge:
		return &InputTooLarge{Bytes: int64(len(r.Input)), Limit: l.MemoryBytes, Field: "MemoryBytes"}
	case ClassCanceled:
		if cause := context.Cause(ctx); cause != nil {
			return &Canceled{cause}
		}
		return &EngineFault{Message: "the backend reported a cancelled run though its context lives"}
	case ClassEngineFault:
		return &EngineFault{Message: msg, JSStack: stack, Killed: o.Killed}
	case ClassLimit:
		e := &LimitExceeded{Kind: o.Guard, Killed: o.Killed}
		switch o.Guard {
		case WallClock:
			e.Limit, e.Used = int64(l.WallClock), int64(o.Usage.Script+o.Usage.Dump)
		case Fuel:
			e.Limit, e.Used = l.Fuel, o.Usage.Fuel
		case Memory:
			e.Limit, e.Used = l.MemoryBytes, o.Usage.PeakMemoryBytes-o.Usage.ImageBytes
		case Stack:
			e.Limit, e.Used = l.StackBytes, o.Usage.StackBytes
		case Output:
			e.Limit = l.MaxOutputBytes
		default:
			return &EngineFault{Message: "the backend reported the unknown guard " + quoted(string(o.Guard))}
		}
		return e
	}
	return &EngineFault{Message: "the backend reported the unknown class " + quoted(string(o.Class))}
}

// ScriptFault reports whether a rewrite of the script can mend err.
func ScriptFault(err error) bool {
	switch _, failure := Describe(err); failure {
	case "ScriptError", "LimitExceeded", "ShapeMismatch":
		return true
	}
	return false
}

// Retryable reports whether the same call may succeed on another attempt.
func Retryable(err error) bool {
	_, failure := Describe(err)
	return failure == "WorkerStartupError"
}

// Describe gives the two stable names of what Eval returned. label is the
// class as corpora and reports name it: "ok", "error", "limit:fuel",
// "resultNotSerializable", "inputNotSerializable", "inputTooLarge",
// "scriptMissing", "scriptTooLarge", "shapeMismatch", "startup",
// "engineFault", "canceled", "queueFull", "closed", "usage"; "host" for any
// other error. failure is the name of the typed failure: "ScriptError",
// "LimitExceeded" and so on; empty for nil and for "host".
func Describe(err error) (label, failure string) {
	var (
		notSerial *InputNotSerializable
		large     *InputTooLarge
		missing   *ScriptMissing
		long      *ScriptTooLarge
		script    *ScriptError
		limit     *LimitExceeded
		shape     *ShapeMismatch
		startup   *WorkerStartupError
		fault     *EngineFault
		canceled  *Canceled
		usage     *UsageError
	)
	switch {
	case err == nil:
		return string(ClassOK), ""
	// What wraps a cause comes first: a cause may be any error, one of these too.
	case errors.As(err, &canceled):
		return string(ClassCanceled), "Canceled"
	case errors.As(err, &startup):
		return "startup", "WorkerStartupError"
	case errors.As(err, &notSerial):
		return "inputNotSerializable", "InputNotSerializable"
	case errors.As(err, &large):
		return string(ClassInputTooLarge), "InputTooLarge"
	case errors.As(err, &missing):
		return "scriptMissing", "ScriptMissing"
	case errors.As(err, &long):
		return "scriptTooLarge", "ScriptTooLarge"
	case errors.As(err, &script):
		if script.Reason == NotSerializable {
			return string(ClassResultNotSerializable), "ScriptError"
		}
		return string(ClassScriptError), "ScriptError"
	case errors.As(err, &limit):
		return Outcome{Class: ClassLimit, Guard: limit.Kind}.Label(), "LimitExceeded"
	case errors.As(err, &shape):
		return "shapeMismatch", "ShapeMismatch"
	case errors.As(err, &fault):
		return string(ClassEngineFault), "EngineFault"
	case errors.As(err, &usage):
		return "usage", "UsageError"
	case errors.Is(err, ErrQueueFull):
		return "queueFull", "QueueFull"
	case errors.Is(err, ErrClosed):
		return "closed", "Closed"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return string(ClassCanceled), "Canceled"
	}
	return "host", ""
}
