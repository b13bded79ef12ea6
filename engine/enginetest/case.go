package enginetest

import (
	"bufio"
	"bytes"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandbed/sandbed/engine"
)

// The reference limits: what a case runs under unless it brings its own.
const (
	ReferenceWallClock = 50 * time.Millisecond
	ReferenceMemory    = 32 << 20
	ReferenceOutput    = 1 << 20
	ReferenceInput     = 32 << 20
)

// The labels a case may expect beside those that [engine.Outcome.Label] gives:
// failures of the caller's input that [engine.Sandbox] finds before the backend.
const (
	labelInputTooLarge        = string(engine.ClassInputTooLarge)
	labelInputNotSerializable = "inputNotSerializable"
)

// labels is every outcome class that a case may name.
var labels = []string{
	"ok", "error", "limit:wallClock", "limit:fuel", "limit:memory", "limit:stack", "limit:output",
	"resultNotSerializable", labelInputTooLarge, labelInputNotSerializable, "engineFault",
}

// groups is what a case's class may be: the kind of attack.
var groups = []string{
	"cpu-noloop", "cpu-slowpoll", "cpu-loop", "alloc", "stack", "escape", "isolation",
	"determinism", "result", "async", "shared", "syntax", "engine-bug", "input",
}

// Case is one hostile or awkward script and what may come of it.
type Case struct {
	ID    string
	Group string // the field class: the kind of attack, such as "alloc"
	Title string
	JS    string
	Kind  engine.Kind

	// Inputs are the inputs to try, one run each; empty means one run whose
	// input is undefined.
	Inputs []Input
	// Limits are the case's own, completed with the reference limits.
	Limits engine.Limits

	// Expected is the label of a careful sandbox, AnyOf those that may be
	// accepted: resource races are real. AnyOf holds Expected.
	Expected string
	AnyOf    []string
	// ExpectValue, if set, is the JSON text of a value of class ok. AnyValue
	// holds further texts that pass without being exact. Where AnyOf accepts an
	// engineFault, a wrong value is that known fault showing: it passes, inexactly.
	ExpectValue json.RawMessage
	AnyValue    []json.RawMessage

	// ThenJS, if set, is evaluated afterwards and must give ThenExpect.
	ThenJS     string
	ThenExpect json.RawMessage

	FuzzSeed bool   // short and quick enough to seed a fuzzer
	Note     string // why, for the reader
	Source   string // where the case comes from, often an address
}

// Input is one input of a case.
type Input struct {
	Name string // names the variant, such as a Go type or the bytes in hex; may be empty
	// Value is a json.RawMessage, valid or not, or a Go value, serialisable or not.
	Value any
}

// Request is the request of the case with its i-th input, its wall clock
// multiplied by scale (0 means 1). It reports false when that input is no JSON
// text: such a case is for [engine.Sandbox] alone.
func (c Case) Request(i int, scale float64) (engine.Request, bool) {
	r := engine.Request{Script: engine.Script{Source: c.JS, Kind: c.Kind}, Limits: scaled(c.Limits, scale)}
	if len(c.Inputs) == 0 {
		return r, true
	}
	raw, ok := c.Inputs[i].Value.(json.RawMessage)
	r.Input = raw
	return r, ok && c.Expected != labelInputNotSerializable
}

// scaled is l with its wall clock multiplied by scale, inside the bounds.
func scaled(l engine.Limits, scale float64) engine.Limits {
	if scale > 0 {
		l.WallClock = min(time.Duration(float64(l.WallClock)*scale), engine.MaxWallClock)
	}
	return l
}

//go:embed testdata/hostile.jsonl
var hostile []byte

// builtIn is parsed once: some of its inputs have many megabytes.
var builtIn = sync.OnceValue(func() []Case {
	cases, err := ParseCases(bytes.NewReader(hostile))
	if err != nil {
		panic("enginetest: built-in corpus: " + err.Error()) // a test parses it
	}
	return cases
})

// Cases is the built-in corpus. The slice is the caller's, what its cases refer
// to is shared and must not be changed.
func Cases() []Case { return slices.Clone(builtIn()) }

// CaseError is a line of a corpus that cannot be used.
type CaseError struct {
	Line   int
	Field  string // empty when the line as a whole is at fault
	Value  string // quoted and cut
	Remedy string
}

func (e *CaseError) Error() string {
	what := "the line"
	if e.Field != "" {
		what = e.Field
	}
	return fmt.Sprintf("corpus line %d: %s = %s: %s", e.Line, what, e.Value, e.Remedy)
}

// ErrNoCases says that a corpus holds no case.
var ErrNoCases = errors.New("corpus holds no case: give a file with one JSON object a line")

const (
	// maxLine bounds one line of a corpus, in bytes; maxSpec what an input_spec expands to.
	maxLine = 16 << 20
	maxSpec = 256 << 20
	// maxFlood bounds the colliding keys of a hash flood.
	maxFlood = 1 << 20
)

// line is a case as the file spells it. Other fields are remarks for people and
// are ignored; unknown limits and input specs are not, since they would change
// what is run.
type line struct {
	ID          *string          `json:"id"`
	Class       *string          `json:"class"`
	Title       string           `json:"title"`
	JS          *string          `json:"js"`
	Kind        string           `json:"kind"`
	Input       json.RawMessage  `json:"input"`
	InputSpec   json.RawMessage  `json:"input_spec"`
	Limits      map[string]int64 `json:"limits"`
	ThenJS      *string          `json:"then_js"`
	ThenExpect  *jsonText        `json:"then_expect"`
	Expected    *string          `json:"expected"`
	AnyOf       []string         `json:"any_of"`
	ExpectValue *jsonText        `json:"expect_value"`
	AnyValue    []string         `json:"any_value"`
	FuzzSeed    bool             `json:"fuzz_seed"`
	Note        string           `json:"note"`
	Source      string           `json:"source"`
}

// jsonText is a JSON text in a string, as the corpus writes it, or the value itself.
type jsonText string

func (t *jsonText) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, (*string)(t))
	}
	*t = jsonText(b)
	return nil
}

// ParseCases reads a corpus: one JSON object a line, empty lines ignored. A line
// that is no case gives a *CaseError that names line, field, value and remedy;
// all of them come joined. A corpus without a case is [ErrNoCases].
func ParseCases(r io.Reader) ([]Case, error) {
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, maxLine)
	var (
		cases []Case
		errs  []error
		seen  = map[string]int{}
		n     int
	)
	for sc.Scan() {
		n++
		text := bytes.TrimSpace(sc.Bytes())
		if len(text) == 0 {
			continue
		}
		c, err := parseCase(text)
		if err == nil {
			if first, dup := seen[c.ID]; dup {
				err = &CaseError{Field: "id", Value: quote(c.ID), Remedy: fmt.Sprintf("line %d has the same id; give every case its own", first)}
			}
			seen[c.ID] = n
		}
		if err != nil {
			err.Line = n
			errs = append(errs, err)
			continue
		}
		cases = append(cases, c)
	}
	if err := sc.Err(); errors.Is(err, bufio.ErrTooLong) {
		errs = append(errs, &CaseError{Line: n + 1, Value: fmt.Sprintf("more than %d bytes", maxLine), Remedy: "build long inputs with input_spec.concat"})
	} else if err != nil {
		errs = append(errs, fmt.Errorf("corpus line %d: %w", n+1, err))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if len(cases) == 0 {
		return nil, ErrNoCases
	}
	return cases, nil
}

func parseCase(text []byte) (Case, *CaseError) {
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		e := &CaseError{Value: quote(string(text)), Remedy: err.Error() + "; give one JSON object a line"}
		var te *json.UnmarshalTypeError
		if errors.As(err, &te) && te.Field != "" {
			e.Field, e.Value, e.Remedy = te.Field, te.Value, "give a value of type "+te.Type.String()
		}
		return Case{}, e
	}
	bad := func(field, value, remedy string) (Case, *CaseError) {
		return Case{}, &CaseError{Field: field, Value: value, Remedy: remedy}
	}
	for _, f := range []struct {
		name string
		v    *string
	}{{"id", l.ID}, {"class", l.Class}, {"js", l.JS}, {"expected", l.Expected}} {
		if f.v == nil {
			return bad(f.name, "absent", "every case needs id, class, js and expected")
		}
	}
	if *l.ID == "" {
		return bad("id", `""`, "give every case a name")
	}
	if !slices.Contains(groups, *l.Class) {
		return bad("class", quote(*l.Class), "give one of "+strings.Join(groups, ", "))
	}
	if !slices.Contains([]engine.Kind{engine.Detect, engine.Program, engine.Module}, engine.Kind(l.Kind)) {
		return bad("kind", quote(l.Kind), `give "program" or "module", or leave it out`)
	}
	if !slices.Contains(labels, *l.Expected) {
		return bad("expected", quote(*l.Expected), "give one of "+strings.Join(labels, ", "))
	}
	if len(l.AnyOf) == 0 {
		l.AnyOf = []string{*l.Expected}
	}
	for _, a := range l.AnyOf {
		if !slices.Contains(labels, a) {
			return bad("any_of", quote(a), "give only "+strings.Join(labels, ", "))
		}
	}
	if !slices.Contains(l.AnyOf, *l.Expected) {
		return bad("any_of", quote(strings.Join(l.AnyOf, ", ")), fmt.Sprintf("add %q, which is expected", *l.Expected))
	}
	c := Case{
		ID: *l.ID, Group: *l.Class, Title: l.Title, JS: *l.JS, Kind: engine.Kind(l.Kind),
		Expected: *l.Expected, AnyOf: l.AnyOf, FuzzSeed: l.FuzzSeed, Note: l.Note, Source: l.Source,
	}
	if (l.ThenJS == nil) != (l.ThenExpect == nil) {
		return bad("then_js", "without its partner", "give then_js and then_expect together")
	}
	if l.ThenJS != nil {
		v, _ := jsonPrefix(string(*l.ThenExpect))
		if v == nil {
			return bad("then_expect", quote(string(*l.ThenExpect)), "give a JSON text")
		}
		c.ThenJS, c.ThenExpect = *l.ThenJS, v
	}
	if l.ExpectValue != nil {
		c.ExpectValue, c.AnyValue = expectation(string(*l.ExpectValue))
	}
	for _, s := range l.AnyValue {
		v, rest := jsonPrefix(s)
		if v == nil || rest != "" {
			return bad("any_value", quote(s), "give JSON texts")
		}
		c.AnyValue = append(c.AnyValue, v)
	}
	var err *CaseError
	if c.Limits, err = parseLimits(l.Limits); err != nil {
		return Case{}, err
	}
	if l.Input != nil && l.InputSpec != nil {
		return bad("input_spec", quote(string(l.InputSpec)), "give input or input_spec, not both")
	}
	if l.Input != nil {
		c.Inputs = []Input{{Value: l.Input}}
	}
	if l.InputSpec != nil {
		if c.Inputs, err = parseSpec(l.InputSpec); err != nil {
			return Case{}, err
		}
	}
	return c, nil
}

// jsonPrefix splits s into the JSON text it begins with, compacted, and what
// follows. The text is nil when there is none.
func jsonPrefix(s string) (json.RawMessage, string) {
	d := json.NewDecoder(strings.NewReader(s))
	var raw json.RawMessage
	if d.Decode(&raw) != nil {
		return nil, s
	}
	return compact(raw), strings.TrimSpace(s[d.InputOffset():])
}

// expectation reads expect_value: a JSON text, which a remark may follow. A
// remark that says what else is answered, as in `"TypeError" (0.15.1 answers
// "accepted")` or `1 or 2`, adds values that pass without being exact. A field
// that begins with no JSON text is a remark and nothing is compared.
func expectation(s string) (value json.RawMessage, also []json.RawMessage) {
	value, rest := jsonPrefix(s)
	if value == nil {
		return nil, nil
	}
	if strings.HasPrefix(rest, "or ") {
		rest = "answers " + rest[len("or "):]
	}
	for {
		_, after, found := strings.Cut(rest, "answers ")
		if !found {
			return value, also
		}
		v, next := jsonPrefix(after)
		if v != nil {
			also = append(also, v)
		}
		rest = next
	}
}

func compact(raw json.RawMessage) json.RawMessage {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return raw
	}
	return b.Bytes()
}

// parseLimits completes the reference limits with those of the case.
func parseLimits(m map[string]int64) (engine.Limits, *CaseError) {
	l := engine.Limits{WallClock: ReferenceWallClock, MemoryBytes: ReferenceMemory, MaxOutputBytes: ReferenceOutput, MaxInputBytes: ReferenceInput}
	ms := ReferenceWallClock.Milliseconds()
	fields := map[string]*int64{
		"memoryBytes": &l.MemoryBytes, "stackBytes": &l.StackBytes, "wallClockMs": &ms, "fuel": &l.Fuel,
		"maxScriptBytes": &l.MaxScriptBytes, "maxInputBytes": &l.MaxInputBytes, "maxOutputBytes": &l.MaxOutputBytes,
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		p, known := fields[k]
		if !known {
			return l, &CaseError{Field: "limits." + k, Value: fmt.Sprint(m[k]), Remedy: "give one of " + strings.Join(slices.Sorted(maps.Keys(fields)), ", ")}
		}
		if m[k] <= 0 {
			return l, &CaseError{Field: "limits." + k, Value: fmt.Sprint(m[k]), Remedy: "give at least 1, or leave it out for the reference limit"}
		}
		*p = m[k]
	}
	if ms > engine.MaxWallClock.Milliseconds() {
		return l, &CaseError{Field: "limits.wallClockMs", Value: fmt.Sprint(ms), Remedy: "give at most 86400000, which is 24 h"}
	}
	l.WallClock = time.Duration(ms) * time.Millisecond
	if err := l.Validate(); err != nil {
		var le *engine.LimitError
		errors.As(err, &le)
		field := strings.ToLower(le.Field[:1]) + le.Field[1:]
		return l, &CaseError{Field: "limits." + field, Value: fmt.Sprint(le.Value), Remedy: le.Allowed}
	}
	return l, nil
}

// parseSpec expands an input_spec: one key that says how the input is built.
func parseSpec(raw json.RawMessage) ([]Input, *CaseError) {
	bad := func(field, value, remedy string) ([]Input, *CaseError) {
		return nil, &CaseError{Field: field, Value: value, Remedy: remedy}
	}
	const kinds = "give one of text, hex, hex_any, concat, go_values, hashflood"
	var m map[string]json.RawMessage
	if err := json.Unmarshal(raw, &m); err != nil || len(m) != 1 {
		return bad("input_spec", quote(string(raw)), kinds)
	}
	for kind, v := range m {
		field := "input_spec." + kind
		switch kind {
		case "text":
			var s string
			if json.Unmarshal(v, &s) != nil {
				return bad(field, quote(string(v)), "give a string: the bytes of the input")
			}
			return []Input{{Value: json.RawMessage(s)}}, nil
		case "hex", "hex_any":
			list := make([]string, 1)
			target := any(&list[0])
			if kind == "hex_any" {
				target = &list
			}
			if json.Unmarshal(v, target) != nil || len(list) == 0 {
				return bad(field, quote(string(v)), `give bytes in hex, as in "22ff22" (hex_any: a list of them)`)
			}
			var in []Input
			for _, h := range list {
				b, err := hex.DecodeString(h)
				if err != nil {
					return bad(field, quote(h), "give bytes in hex: "+err.Error())
				}
				in = append(in, Input{Name: h, Value: json.RawMessage(b)})
			}
			return in, nil
		case "concat":
			text, err := concat(v)
			if err != nil {
				return bad(field, quote(string(v)), err.Error())
			}
			return []Input{{Value: text}}, nil
		case "hashflood":
			n := 0
			if json.Unmarshal(v, &n) != nil || n < 1 || n > maxFlood {
				return bad(field, quote(string(v)), fmt.Sprintf("give the number of colliding keys, 1 to %d", maxFlood))
			}
			return []Input{{Value: hashFlood(n)}}, nil
		case "go_values":
			var names []string
			if json.Unmarshal(v, &names) != nil || len(names) == 0 {
				return bad(field, quote(string(v)), "give a list of names")
			}
			var in []Input
			for _, name := range names {
				value, known := goValues()[name]
				if !known {
					return bad(field, quote(name), "give one of "+strings.Join(slices.Sorted(maps.Keys(goValues())), ", "))
				}
				in = append(in, Input{Name: name, Value: value})
			}
			return in, nil
		default:
			return bad(field, quote(string(v)), kinds)
		}
	}
	panic("unreachable: the map has one key")
}

// concat joins [[unit, count], …] to one text.
func concat(raw json.RawMessage) (json.RawMessage, error) {
	usage := errors.New(`give a list of [unit, count], as in [["\"",1],["a",1000],["\"",1]]`)
	var parts [][]json.RawMessage
	if json.Unmarshal(raw, &parts) != nil || len(parts) == 0 {
		return nil, usage
	}
	var b bytes.Buffer
	for _, p := range parts {
		var unit string
		var count int
		if len(p) != 2 || json.Unmarshal(p[0], &unit) != nil || json.Unmarshal(p[1], &count) != nil || count < 0 {
			return nil, usage
		}
		if len(unit) > 0 && count > (maxSpec-b.Len())/len(unit) {
			return nil, fmt.Errorf("keep the input within %d bytes", maxSpec)
		}
		b.WriteString(strings.Repeat(unit, count))
	}
	return b.Bytes(), nil
}

// hashFlood is an object of n keys that share one bucket in QuickJS: its hash is
// h*263+c without a seed, so the blocks "Aȇ" and "BĀ" collide.
func hashFlood(n int) json.RawMessage {
	bits := 1
	for 1<<bits < n {
		bits++
	}
	var b bytes.Buffer
	b.WriteByte('{')
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('"')
		for k := range bits {
			if i>>k&1 == 0 {
				b.WriteString("A\u0207")
			} else {
				b.WriteString("B\u0100")
			}
		}
		b.WriteString(`":0`)
	}
	b.WriteByte('}')
	return b.Bytes()
}

type cyclic struct{ Next *cyclic }

type failingMarshaler struct{}

func (failingMarshaler) MarshalJSON() ([]byte, error) { return nil, errors.New("refused") }

type invalidMarshaler struct{}

func (invalidMarshaler) MarshalJSON() ([]byte, error) { return []byte("{]"), nil }

// goValues are the values that a corpus may name and that cannot become JSON.
func goValues() map[string]any {
	loop := &cyclic{}
	loop.Next = loop
	return map[string]any{
		"chan int":            make(chan int),
		"func()":              func() {},
		"cyclic *T":           loop,
		"math.NaN()":          math.NaN(),
		"math.Inf(1)":         math.Inf(1),
		"math.Inf(-1)":        math.Inf(-1),
		"complex128":          complex(1, 2),
		"map[bool]int":        map[bool]int{true: 1},
		"failing MarshalJSON": failingMarshaler{},
		"invalid MarshalJSON": invalidMarshaler{},
	}
}

// quote is foreign text as a Go string, cut.
func quote(s string) string {
	const most = 80
	if len(s) > most {
		return fmt.Sprintf("%q… (%d bytes)", strings.ToValidUTF8(s[:most], ""), len(s))
	}
	return fmt.Sprintf("%q", s)
}
