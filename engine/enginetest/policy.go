package enginetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/engine/shape"
)

// labelOf is the label of what came of a run: the outcome's, or that of the error.
func labelOf(out engine.Outcome, err error) string {
	if err != nil {
		label, _ := engine.Describe(err)
		return label
	}
	return out.Label()
}

// counter is a backend that counts what reaches the one behind it.
type counter struct {
	engine.Backend
	runs int
	last engine.Outcome
}

func (c *counter) Run(ctx context.Context, r engine.Request) (engine.Outcome, error) {
	c.runs++
	out, err := c.Backend.Run(ctx, r)
	c.last = out
	return out, err
}

// underPolicy evaluates calls through a Sandbox over b, without retries, with
// the hooks of the request that carries them.
func (sc *scope) underPolicy(b engine.Backend, limits engine.Limits, scripts engine.ScriptStore) (*engine.Sandbox, *counter) {
	c := &counter{Backend: b}
	sb, err := engine.NewSandbox(c, engine.Spec{Limits: limits, Scripts: scripts, Retry: &engine.Retry{}})
	if err != nil {
		panic("enginetest: " + err.Error()) // the suite's own limits
	}
	return sb, c
}

// hooked puts the hooks of a request onto every run behind a policy, which has none.
type hooked struct {
	engine.Backend
	from engine.Request
}

func (h hooked) Run(ctx context.Context, r engine.Request) (engine.Outcome, error) {
	r.OnScriptStart, r.OnFinished = h.from.OnScriptStart, h.from.OnFinished
	return h.Backend.Run(ctx, r)
}

// call evaluates r with any input through the policy, and holds what reached
// the backend against the laws that bind every run.
func (sc *scope) call(r engine.Request, input any) run {
	b := sc.s.ready(sc)
	if b == nil {
		return run{lost: true, label: "none"}
	}
	return sc.evalOn(sc.s.ctx, func(ctx context.Context, r engine.Request) (engine.Outcome, error) {
		sb, c := sc.underPolicy(hooked{b, r}, r.Limits, nil)
		_, err := sb.Eval(ctx, engine.Call{Script: r.Script, Input: input})
		if c.runs == 0 {
			return engine.Outcome{}, err
		}
		if label, _ := engine.Describe(err); label != c.last.Label() {
			return engine.Outcome{}, fmt.Errorf("the backend reported %s and the policy %s: %w", c.last.Label(), label, err)
		}
		return c.last, nil
	}, r)
}

// policyProbe is one call under the policy, what must come of it, and whether
// the backend may hear of it.
type policyProbe struct {
	name    string
	call    engine.Call
	limits  func(*engine.Limits)
	want    string // label
	reaches bool
	check   func(error) bool
}

func (sc *scope) policy(law string, scripts engine.ScriptStore, list []policyProbe) {
	s := sc.s
	for _, p := range list {
		sub := sc.sub(p.name)
		b := s.ready(sub)
		if b == nil {
			return
		}
		limits := s.limits(0)
		if p.limits != nil {
			p.limits(&limits)
		}
		var (
			runs    int
			failure error
		)
		got := sub.evalOn(s.ctx, func(ctx context.Context, r engine.Request) (engine.Outcome, error) {
			sb, c := sub.underPolicy(b, r.Limits, scripts)
			_, err := sb.Eval(ctx, p.call)
			runs, failure = c.runs, err
			return engine.Outcome{}, errors.Join(errJudged, err)
		}, engine.Request{Limits: limits})
		if got.lost {
			continue
		}
		label, _ := engine.Describe(failure)
		if label != p.want || p.check != nil && !p.check(failure) {
			sub.add(law, "got %s, want %s: %s", label, p.want, quote(fmt.Sprintf("%#v", failure)))
		}
		if reached := runs > 0; reached != p.reaches {
			sub.add(law, "%d runs reached the backend for a call that is %s", runs, p.want)
		}
	}
}

// errJudged keeps the laws that bind outcomes away from what a policy probe judges itself.
var errJudged = errors.New("enginetest: judged by the law")

// rowsSchema is what the law of shapes asks of a result.
const rowsSchema = `{"type":"object","required":["rows"],"properties":{"rows":{"type":"array","items":{"type":"object","required":["n"],"properties":{"n":{"type":"number"}}}}}}`

func shapeMismatch(sc *scope) {
	want, err := shape.Compile([]byte(rowsSchema))
	if err != nil {
		panic("enginetest: " + err.Error()) // the suite's own schema
	}
	at := func(path string) func(error) bool {
		return func(err error) bool {
			var m *engine.ShapeMismatch
			return errors.As(err, &m) && len(m.Violations) == 1 && m.Violations[0].Path == path && engine.ScriptFault(err) && !engine.Retryable(err)
		}
	}
	call := func(js string) engine.Call { return engine.Call{Script: program(js), Shape: want} }
	sc.policy("shape-mismatch", nil, []policyProbe{
		{name: "right", call: call(`({rows:[{n:1},{n:2}]})`), want: "ok", reaches: true},
		{name: "type", call: call(`({rows:"none"})`), want: "shapeMismatch", reaches: true, check: at("/rows")},
		{name: "deep", call: call(`({rows:[{n:1},{n:"2"}]})`), want: "shapeMismatch", reaches: true, check: at("/rows/1/n")},
		{name: "missing", call: call(`({})`), want: "shapeMismatch", reaches: true, check: at("")},
		{name: "absent", call: call(`void "shape"`), want: "shapeMismatch", reaches: true, check: at("")},
		{name: "throws", call: call(`throw new Error("no rows")`), want: "error", reaches: true},
	})
}

func erasedScript(sc *scope) {
	store := &engine.MemoryStore{}
	for _, err := range []error{
		store.Put("kept", program(`1+1`)), store.Put("erased", program(`"erased"`)), store.Erase("erased"),
	} {
		if err != nil {
			panic("enginetest: " + err.Error())
		}
	}
	missing := func(erased bool) func(error) bool {
		return func(err error) bool {
			var m *engine.ScriptMissing
			return errors.As(err, &m) && m.Erased == erased && !engine.ScriptFault(err)
		}
	}
	sc.policy("erased-script", store, []policyProbe{
		{name: "kept", call: engine.Call{ScriptRef: "kept"}, want: "ok", reaches: true},
		{name: "erased", call: engine.Call{ScriptRef: "erased"}, want: "scriptMissing", check: missing(true)},
		{name: "missing", call: engine.Call{ScriptRef: "never-was"}, want: "scriptMissing", check: missing(false)},
		{name: "too-large", call: engine.Call{Script: program(`"123456789"`)}, want: "scriptTooLarge",
			limits: func(l *engine.Limits) { l.MaxScriptBytes = 10 }},
	})
}

func refusedInput(sc *scope) {
	const n = 1000
	text := func(n int) json.RawMessage { // n bytes, of two-byte characters in the middle
		return json.RawMessage(`"` + strings.Repeat("é", (n-2)/2) + strings.Repeat("x", n%2) + `"`)
	}
	limit := func(l *engine.Limits) { l.MaxInputBytes = n }
	call := func(in any) engine.Call { return engine.Call{Script: program(`typeof input`), Input: in} }
	caller := func(err error) bool { return !engine.ScriptFault(err) && !engine.Retryable(err) }
	store := &engine.MemoryStore{}
	list := []policyProbe{
		{name: "n-1", call: call(text(n - 1)), limits: limit, want: "ok", reaches: true},
		{name: "n", call: call(text(n)), limits: limit, want: "ok", reaches: true},
		{name: "n+1", call: call(text(n + 1)), limits: limit, want: labelInputTooLarge, check: caller},
		// A bad input and a missing script: the input is named, the store not asked.
		{name: "before-the-script", call: engine.Call{ScriptRef: "never-was", Input: text(n + 1)}, limits: limit, want: labelInputTooLarge, check: caller},
		{name: "not-json", call: call(json.RawMessage(`{]`)), want: labelInputNotSerializable, check: caller},
		{name: "two-texts", call: call(json.RawMessage(`1 2`)), want: labelInputNotSerializable, check: caller},
		{name: "not-utf8", call: call(json.RawMessage("\"\xff\"")), want: labelInputNotSerializable, check: caller},
	}
	for name, v := range goValues() {
		list = append(list, policyProbe{name: name, call: call(v), want: labelInputNotSerializable, check: caller})
	}
	sc.policy("refused-input", store, list)
}

func fault(sc *scope) {
	limit := func(kind engine.Guard) func(error) bool {
		return func(err error) bool {
			var l *engine.LimitExceeded
			return errors.As(err, &l) && l.Kind == kind && engine.ScriptFault(err) && !engine.Retryable(err)
		}
	}
	reason := func(want engine.Reason) func(error) bool {
		return func(err error) bool {
			var f *engine.ScriptError
			return errors.As(err, &f) && f.Reason == want && engine.ScriptFault(err) && !engine.Retryable(err)
		}
	}
	wall := func(l *engine.Limits) { l.WallClock = sc.s.limits(burn).WallClock }
	call := func(js string) engine.Call { return engine.Call{Script: program(js)} }
	sc.policy("fault", nil, []policyProbe{
		{name: "wall-clock", call: call(`for(;;){}`), limits: wall, want: "limit:wallClock", reaches: true, check: limit(engine.WallClock)},
		{name: "memory", call: call(exhaust), want: "limit:memory", reaches: true, check: limit(engine.Memory)},
		{name: "stack", call: call(overflow), want: "limit:stack", reaches: true, check: limit(engine.Stack)},
		{name: "output", call: call(`"a".repeat(2000000)`), want: "limit:output", reaches: true, check: limit(engine.Output)},
		{name: "throw", call: call(`throw new Error("x")`), want: "error", reaches: true, check: reason(engine.Threw)},
		{name: "forged", call: call(forgedGuards[0].js), want: "error", reaches: true, check: reason(engine.Threw)},
		{name: "result", call: call(`(function(){return 1})`), want: "resultNotSerializable", reaches: true, check: reason(engine.NotSerializable)},
		{name: "input-in-memory", call: engine.Call{Script: program(`1`), Input: heavyInput()}, want: labelInputTooLarge, reaches: true,
			limits: func(l *engine.Limits) { l.MemoryBytes = 2 * mib },
			check: func(err error) bool {
				var f *engine.InputTooLarge
				return errors.As(err, &f) && f.Field == "MemoryBytes" && !engine.ScriptFault(err)
			}},
	})
}

// heavyInput passes every limit as text and does not fit 2 MiB once parsed.
func heavyInput() json.RawMessage {
	return json.RawMessage("[" + strings.Repeat("1,", 400000) + "1]")
}
