package engine

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestFailureOf(t *testing.T) {
	r := Request{Input: []byte(`"abc"`), Limits: Limits{Fuel: 10, StackBytes: 1 << 16}}
	u := Usage{Fuel: 11, PeakMemoryBytes: 30, ImageBytes: 10, StackBytes: 40, Script: 5 * time.Second, Dump: time.Second}
	tests := []struct {
		o              Outcome
		want           error
		label, failure string
		script, retry  bool
	}{
		{Outcome{Class: ClassOK}, nil, "ok", "", false, false},
		{Outcome{Class: ClassScriptError, Message: "m", JSStack: "s"}, &ScriptError{Reason: Threw, Message: "m", JSStack: "s"}, "error", "ScriptError", true, false},
		{Outcome{Class: ClassResultNotSerializable, Message: "m"}, &ScriptError{Reason: NotSerializable, Message: "m"}, "resultNotSerializable", "ScriptError", true, false},
		{Outcome{Class: ClassInputTooLarge, DuringSeed: true}, &InputTooLarge{5, DefaultMemoryBytes, "MemoryBytes"}, "inputTooLarge", "InputTooLarge", false, false},
		{Outcome{Class: ClassEngineFault, Message: "trap", Killed: true}, &EngineFault{"trap", "", true}, "engineFault", "EngineFault", false, false},
		{Outcome{Class: ClassLimit, Guard: WallClock, Killed: true}, &LimitExceeded{WallClock, int64(time.Second), int64(6 * time.Second), true}, "limit:wallClock", "LimitExceeded", true, false},
		{Outcome{Class: ClassLimit, Guard: Fuel}, &LimitExceeded{Fuel, 10, 11, false}, "limit:fuel", "LimitExceeded", true, false},
		{Outcome{Class: ClassLimit, Guard: Memory}, &LimitExceeded{Memory, DefaultMemoryBytes, 20, false}, "limit:memory", "LimitExceeded", true, false},
		{Outcome{Class: ClassLimit, Guard: Stack}, &LimitExceeded{Stack, 1 << 16, 40, false}, "limit:stack", "LimitExceeded", true, false},
		{Outcome{Class: ClassLimit, Guard: Output}, &LimitExceeded{Output, DefaultMaxOutputBytes, 0, false}, "limit:output", "LimitExceeded", true, false},
		// A backend that breaks the contract is never the script's fault.
		{Outcome{Class: ClassLimit, Guard: "luck"}, &EngineFault{Message: `the backend reported the unknown guard "luck"`}, "engineFault", "EngineFault", false, false},
		{Outcome{}, &EngineFault{Message: `the backend reported the unknown class ""`}, "engineFault", "EngineFault", false, false},
		{Outcome{Class: ClassCanceled}, &EngineFault{Message: "the backend reported a cancelled run though its context lives"}, "engineFault", "EngineFault", false, false},
	}
	for _, tt := range tests {
		tt.o.Usage = u
		got := FailureOf(t.Context(), r, tt.o)
		if !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: got %#v, want %#v", tt.o.Label(), got, tt.want)
		}
		for _, err := range []error{got, wrapped(got)} {
			label, failure := Describe(err)
			if label != tt.label || failure != tt.failure {
				t.Errorf("%v: got %q, %q, want %q, %q", err, label, failure, tt.label, tt.failure)
			}
			if ScriptFault(err) != tt.script || Retryable(err) != tt.retry {
				t.Errorf("%v: script's fault %t, retryable %t", err, ScriptFault(err), Retryable(err))
			}
		}
	}
}

func wrapped(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("caller: %w", err)
}

func TestDescribeTheRest(t *testing.T) {
	tests := []struct {
		err            error
		label, failure string
		retry          bool
	}{
		{&InputNotSerializable{}, "inputNotSerializable", "InputNotSerializable", false},
		{&InputTooLarge{}, "inputTooLarge", "InputTooLarge", false},
		{&ScriptMissing{}, "scriptMissing", "ScriptMissing", false},
		{&ScriptMissing{Erased: true}, "scriptMissing", "ScriptMissing", false},
		{&ScriptTooLarge{}, "scriptTooLarge", "ScriptTooLarge", false},
		{&ScriptError{Reason: NotTranspilable}, "error", "ScriptError", false},
		{&WorkerStartupError{Phase: PhaseCompile}, "startup", "WorkerStartupError", true},
		{&WorkerStartupError{Phase: PhaseStart, Err: &ScriptError{}}, "startup", "WorkerStartupError", true},
		{&Canceled{&WorkerStartupError{}}, "canceled", "Canceled", false},
		{context.DeadlineExceeded, "canceled", "Canceled", false},
		{ErrQueueFull, "queueFull", "QueueFull", false},
		{ErrClosed, "closed", "Closed", false},
		{&UsageError{}, "usage", "UsageError", false},
		{errors.New("disk"), "host", "", false},
	}
	for _, tt := range tests {
		label, failure := Describe(tt.err)
		if label != tt.label || failure != tt.failure {
			t.Errorf("%T: got %q, %q, want %q, %q", tt.err, label, failure, tt.label, tt.failure)
		}
		if Retryable(tt.err) != tt.retry {
			t.Errorf("%T: retryable %t", tt.err, !tt.retry)
		}
		if want := failure == "ScriptError"; ScriptFault(tt.err) != want {
			t.Errorf("%T: script's fault %t", tt.err, !want)
		}
	}
}

// Each text names what to change.
func TestErrorTexts(t *testing.T) {
	tests := []struct {
		err  error
		want []string
	}{
		{&InputTooLarge{9, 8, "MaxInputBytes"}, []string{"9 bytes", "raise Limits.MaxInputBytes (8)"}},
		{&InputTooLarge{9, 8, "MemoryBytes"}, []string{"parsed", "raise Limits.MemoryBytes (8)"}},
		{&ScriptTooLarge{"a", 9, 8}, []string{`"a"`, "Limits.MaxScriptBytes (8)"}},
		{&ScriptMissing{Ref: "a"}, []string{`no script "a"`}},
		{&ScriptMissing{Ref: "a", Erased: true}, []string{`"a" was erased`}},
		{&ScriptError{Reason: NotTranspilable, Message: "m", Line: 2, Column: 3}, []string{"line 2, column 3", `"m"`}},
		{&LimitExceeded{Kind: WallClock, Limit: 5e7, Used: 6e7}, []string{"Limits.WallClock (50ms, used 60ms)"}},
		{&LimitExceeded{Kind: Fuel, Limit: 5, Used: 6}, []string{"Limits.Fuel (5 units, used 6 units)"}},
		{&LimitExceeded{Kind: Stack}, []string{"Limits.StackBytes (the backend's own)"}},
		{&LimitExceeded{Kind: Output, Limit: 5}, []string{"Limits.MaxOutputBytes (5 bytes)"}},
		{&LimitExceeded{Kind: "x\n"}, []string{`"x\n"`}},
		{&WorkerStartupError{PhaseStart, errors.New("slow")}, []string{"phase start", "slow"}},
		{&ShapeMismatch{Violations: []Violation{{"/a", "type", "d1"}, {"", "r", "d2"}, {"", "r", "d3"}, {"", "r", "d4"}}, Dropped: 5}, []string{`at "/a": type: d1`, "d3", "6 more"}},
		{&UsageError{"Call.X", "v\n", "do Y"}, []string{`Call.X = "v\n": do Y`}},
	}
	for _, tt := range tests {
		for _, w := range tt.want {
			if !strings.Contains(tt.err.Error(), w) {
				t.Errorf("got %q, want it to contain %q", tt.err, w)
			}
		}
	}
}

// Whatever the guest writes, a failure and its text stay small, quoted and UTF-8.
func TestGuestTextIsBounded(t *testing.T) {
	long := strings.Repeat("é\x1b[31m", 1<<20)
	for _, class := range []Class{ClassScriptError, ClassResultNotSerializable, ClassEngineFault, Class(long)} {
		err := FailureOf(t.Context(), Request{}, Outcome{Class: class, Message: long, JSStack: long})
		text := err.Error()
		if len(text) > 1500 || !utf8.ValidString(text) || strings.Contains(text, "\x1b") {
			t.Errorf("%.20s: text of %d bytes is not bounded and quoted", class, len(text))
		}
		var e *ScriptError
		if errors.As(err, &e) && (len(e.Message) > 4<<10 || len(e.JSStack) > 4<<10 || !utf8.ValidString(e.Message)) {
			t.Errorf("%s: message of %d bytes", class, len(e.Message))
		}
	}
	for n := range 6 {
		if got := cut("aéb", n); !utf8.ValidString(got) || len(got) > n || len(got) < min(n, 4)-1 {
			t.Errorf("cut at %d: %q", n, got)
		}
	}
}
