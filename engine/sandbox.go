package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
	"unicode/utf8"
)

// A Transpiler turns a script into JavaScript before it runs. The error is a
// *ScriptError with reason NotTranspilable when the source is at fault. It
// must be safe for concurrent use; engine/typescript is one.
type Transpiler interface {
	Transpile(ctx context.Context, s Script) (Script, error)
}

// A Shape is what a result must look like; engine/shape is one. Check returns
// nil, a *ShapeMismatch, or another error when the value cannot be judged.
// value is nil when the result is undefined. It must be safe for concurrent use.
type Shape interface {
	Check(value json.RawMessage) error
}

// Retry says how often and how soon a call is tried again. Only what is
// [Retryable] is.
type Retry struct {
	// Max counts retries after the first attempt; 0 never retries. Not negative.
	Max int
	// FirstDelay is the back-off before the first retry; each later one is twice
	// as long, up to MaxDelay. What is slept is drawn evenly from the upper half,
	// so that callers do not return in step. 0 retries at once. Not negative.
	FirstDelay, MaxDelay time.Duration
}

// DefaultRetry is what a Spec without Retry uses: 2 retries, after about
// 100 ms and 200 ms.
func DefaultRetry() Retry {
	return Retry{Max: 2, FirstDelay: 100 * time.Millisecond, MaxDelay: 2 * time.Second}
}

func (r Retry) validate() error {
	var errs []error
	if r.Max < 0 {
		errs = append(errs, &UsageError{"Spec.Retry.Max", r.Max, "give 0 for no retry, or more"})
	}
	if r.FirstDelay < 0 {
		errs = append(errs, &UsageError{"Spec.Retry.FirstDelay", r.FirstDelay, "give 0 to retry at once, or more"})
	}
	if r.MaxDelay < r.FirstDelay {
		errs = append(errs, &UsageError{"Spec.Retry.MaxDelay", r.MaxDelay, "give at least FirstDelay"})
	}
	return errors.Join(errs...)
}

// delay is the back-off before retry n, counted from 1, before jitter.
func (r Retry) delay(n int) time.Duration {
	d := r.FirstDelay
	for range n - 1 {
		if d > r.MaxDelay/2 {
			return r.MaxDelay
		}
		d *= 2
	}
	return d
}

// Spec says how a Sandbox runs its calls.
type Spec struct {
	Limits    Limits      // zero fields mean their defaults
	Scripts   ScriptStore // needed for calls with a ScriptRef
	Transpile Transpiler  // nil runs scripts as they are
	Retry     *Retry      // nil means DefaultRetry
}

// Call is one use of a Sandbox.
type Call struct {
	// ScriptRef names a script in Spec.Scripts. With an empty ref, Script is
	// evaluated; giving both is an error.
	ScriptRef string
	Script    Script
	// Input is what the script sees as input. nil, also a nil json.RawMessage,
	// leaves it undefined; to pass null, give json.RawMessage("null"). A
	// json.RawMessage is one JSON text in UTF-8, used as it is: it must not
	// change before Eval returns. Any other value goes through encoding/json
	// (so []byte becomes base64, and a Go string that is not UTF-8 is mended).
	Input any
	// Shape, if set, is what the result must look like.
	Shape Shape
}

// Result is what became of a call. With a failure it still tells what the last
// attempt used; its Outcome is zero when the backend gave none.
type Result struct {
	Outcome
	Attempts int // runs handed to the backend; 0 for a call that was refused before
}

// Sandbox is the policy over a Backend: it checks calls, retries what the host
// got wrong, and turns outcomes into typed failures. It is safe for concurrent
// use. The backend stays the caller's to close.
type Sandbox struct {
	backend Backend
	limits  Limits
	scripts ScriptStore
	trans   Transpiler
	retry   Retry
}

// NewSandbox validates s and returns a Sandbox over b. The error joins every
// fault: *LimitError and *UsageError.
func NewSandbox(b Backend, s Spec) (*Sandbox, error) {
	sb := &Sandbox{backend: b, limits: s.Limits.WithDefaults(), scripts: s.Scripts, trans: s.Transpile, retry: DefaultRetry()}
	errs := []error{s.Limits.Validate()}
	if b == nil {
		errs = append(errs, &UsageError{"Backend", nil, "give a backend, such as the InProcess of an engine"})
	}
	if s.Retry != nil {
		sb.retry = *s.Retry
		errs = append(errs, sb.retry.validate())
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return sb, nil
}

// Eval runs one call. It checks in this order, and what fails first is what it
// reports: the call makes sense, the input is JSON, the input's size, the
// script exists, its size, it transpiles, it runs, its result has the shape.
// No worker is touched before the run. [Describe] names the error.
func (s *Sandbox) Eval(ctx context.Context, c Call) (Result, error) {
	r := Request{Limits: s.limits}
	if err := context.Cause(ctx); err != nil {
		return Result{}, &Canceled{err}
	}
	switch {
	case c.ScriptRef == "":
	case c.Script != Script{}:
		return Result{}, &UsageError{"Call.ScriptRef", c.ScriptRef, "give ScriptRef or Script, not both"}
	case s.scripts == nil:
		return Result{}, &UsageError{"Call.ScriptRef", c.ScriptRef, "set Spec.Scripts to look refs up, or give Call.Script"}
	}

	var err error
	if r.Input, err = inputText(c.Input); err != nil {
		return Result{}, err
	}
	if n := int64(len(r.Input)); n > s.limits.MaxInputBytes {
		return Result{}, &InputTooLarge{Bytes: n, Limit: s.limits.MaxInputBytes, Field: "MaxInputBytes"}
	}
	if r.Script, err = s.script(ctx, c); err != nil {
		return Result{}, err
	}

	res, err := s.run(ctx, r)
	if err != nil || c.Shape == nil {
		return res, err
	}
	if err := c.Shape.Check(res.Value); err != nil {
		var mismatch *ShapeMismatch
		if !errors.As(err, &mismatch) {
			err = &EngineFault{Message: cut("the result could not be judged: "+err.Error(), maxGuestText)}
		}
		return res, err
	}
	return res, nil
}

// script is the JavaScript of c.
func (s *Sandbox) script(ctx context.Context, c Call) (Script, error) {
	sc := c.Script
	if c.ScriptRef != "" {
		var err error
		if sc, err = s.scripts.Fetch(ctx, c.ScriptRef, s.limits.MaxScriptBytes); err != nil {
			return sc, canceledOr(ctx, err)
		}
	}
	if n := int64(len(sc.Source)); n > s.limits.MaxScriptBytes {
		return sc, &ScriptTooLarge{Ref: c.ScriptRef, Bytes: n, Limit: s.limits.MaxScriptBytes}
	}
	if s.trans == nil {
		return sc, nil
	}
	sc, err := s.trans.Transpile(ctx, sc)
	return sc, canceledOr(ctx, err)
}

// run evaluates r, again and again as the retry policy allows.
func (s *Sandbox) run(ctx context.Context, r Request) (Result, error) {
	for attempt := 1; ; attempt++ {
		o, err := s.backend.Run(ctx, r)
		res := Result{Outcome: o, Attempts: attempt}
		if err == nil {
			err = FailureOf(ctx, r, o)
		} else {
			err = canceledOr(ctx, err)
		}
		if err == nil || !Retryable(err) || attempt > s.retry.Max {
			return res, err
		}
		if err := sleep(ctx, s.retry.delay(attempt)); err != nil {
			return res, err
		}
	}
}

// sleep waits for between d/2 and d, or for the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	if half := d / 2; half > 0 {
		d = half + rand.N(d-half+1)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return &Canceled{context.Cause(ctx)}
	}
}

// canceledOr is err, or the end of ctx where err is only its echo.
func canceledOr(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if err == nil || cause == nil {
		return err
	}
	if errors.Is(err, ctx.Err()) || errors.Is(err, cause) {
		return &Canceled{cause}
	}
	return err
}

// inputText is the one JSON text of an input: what is sized, and what runs.
func inputText(v any) (text json.RawMessage, err error) {
	switch v := v.(type) {
	case nil:
		return nil, nil
	case json.RawMessage:
		if v == nil {
			return nil, nil
		}
		return v, checkText(v)
	}
	defer func() {
		// A MarshalJSON of the caller's may do anything.
		if p := recover(); p != nil {
			text, err = nil, &InputNotSerializable{Reason: quoted(fmt.Sprintf("%T: panic: %v", v, p))}
		}
	}()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, &InputNotSerializable{Reason: cut(err.Error(), maxGuestText)}
	}
	text = bytes.TrimSuffix(b.Bytes(), []byte("\n"))
	if !utf8.Valid(text) { // a json.RawMessage inside v is copied byte for byte
		return nil, checkText(text)
	}
	return text, nil
}

// checkText reports why text is not one JSON text in UTF-8; nil if it is.
func checkText(text []byte) error {
	if !utf8.Valid(text) {
		at := 0
		for at < len(text) {
			r, n := utf8.DecodeRune(text[at:])
			if r == utf8.RuneError && n == 1 {
				break
			}
			at += n
		}
		return &InputNotSerializable{Reason: fmt.Sprintf("byte %d is not valid UTF-8", at)}
	}
	if json.Valid(text) {
		return nil
	}
	if bytes.HasPrefix(text, []byte("\xef\xbb\xbf")) {
		return &InputNotSerializable{Reason: "it begins with a byte order mark: remove it"}
	}
	var v json.RawMessage
	err := json.Unmarshal(text, &v) // Valid does not say what is wrong
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return &InputNotSerializable{Reason: fmt.Sprintf("not valid JSON at byte %d: %v", syntax.Offset, err)}
	}
	return &InputNotSerializable{Reason: fmt.Sprintf("not valid JSON: %v", err)}
}
