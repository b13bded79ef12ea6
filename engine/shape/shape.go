// Package shape states what the result of a script must look like, as a JSON
// Schema, for engine.Call.Shape.
//
// The draft is 2020-12 unless $schema names another. Formats and content are
// annotations, unless the schema's own draft asserts them (draft-07 and older
// assert format). Regular expressions are Go's, which run in linear time.
// Numbers are compared exactly. A schema is its owner's code: it is bounded so
// that no result, whatever a script makes of it, can take more than a
// proportionate time to judge or overflow the stack.
package shape

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/sandbed/sandbed/engine"
)

// Bounds of a schema and of a judgement.
const (
	MaxSchemaBytes = 256 << 10 // length of the schema's text
	MaxViolations  = 20        // violations listed; the others are counted
	MaxDepth       = 256       // nesting of the schema's text, and of a result

	maxChain   = 64  // schemas applied to one value one inside the other
	maxNumber  = 400 // digits and exponent: what a double can be, and more
	maxSteps   = 100_000
	stepsEach  = 100 // further schemas applied, for each value in the result
	maxPath    = 256
	maxDetail  = 160
	schemaName = "sandbed:///shape.json"
)

// Shape is a compiled schema. It is safe for concurrent use.
type Shape struct {
	text []byte
	pool sync.Pool // of *instance
}

var _ engine.Shape = (*Shape)(nil)

// Compile compiles a JSON Schema. References point into the schema itself;
// nothing is loaded from files or the network. $dynamicRef and $recursiveRef
// are refused.
func Compile(schema []byte) (*Shape, error) {
	if len(schema) > MaxSchemaBytes {
		return nil, fmt.Errorf("shape: the schema of %d bytes is too large: shorten it to %d", len(schema), MaxSchemaBytes)
	}
	s := &Shape{text: bytes.Clone(schema)}
	in, err := s.compile()
	if err != nil {
		return nil, err
	}
	s.pool.Put(in)
	return s, nil
}

// Check reports how value fails to be of the shape, as an *engine.ShapeMismatch;
// nil if it does not. A nil value, which is what a script's undefined gives, is
// of no shape. Any other error means that value is not JSON.
func (s *Shape) Check(value json.RawMessage) error {
	if value == nil {
		return mismatch(engine.Violation{Rule: "absent", Detail: "the result is undefined: return a value"})
	}
	v, err := decode(value)
	if err != nil {
		return fmt.Errorf("shape: the result is not JSON: %w", err)
	}
	n, bad := measure(v, 0)
	if bad != nil {
		return mismatch(*bad)
	}
	in, _ := s.pool.Get().(*instance)
	if in == nil {
		if in, err = s.compile(); err != nil {
			return err // it compiled before, so this does not happen
		}
	}
	defer s.pool.Put(in)
	return in.check(v, maxSteps+stepsEach*n)
}

func mismatch(vs ...engine.Violation) error { return &engine.ShapeMismatch{Violations: vs} }

// instance is a compiled schema that counts its steps, for one Check at a time.
type instance struct {
	schema *jsonschema.Schema
	steps  int // left
}

// errSteps is the panic that ends a judgement; the validator has no other way out.
var errSteps = errors.New("too many steps")

func (in *instance) check(v any, steps int) (err error) {
	in.steps = steps
	defer func() {
		if p := recover(); p == errSteps {
			err = mismatch(engine.Violation{Rule: "complexity", Detail: fmt.Sprintf("judging the result takes more than %d steps: return less deeply nested data", steps)})
		} else if p != nil {
			panic(p)
		}
	}()
	err = in.schema.Validate(v)
	var ve *jsonschema.ValidationError
	if !errors.As(err, &ve) {
		return err
	}
	var all []engine.Violation
	collect(ve, &all)
	// The validator walks maps in random order.
	slices.SortFunc(all, func(a, b engine.Violation) int {
		return strings.Compare(a.Path+"\x00"+a.Rule+"\x00"+a.Detail, b.Path+"\x00"+b.Rule+"\x00"+b.Detail)
	})
	all = slices.Compact(all)
	kept := all[:min(len(all), MaxViolations)]
	return &engine.ShapeMismatch{Violations: slices.Clone(kept), Dropped: len(all) - len(kept)}
}

// refuse is the loader of everything that is not in the schema.
type refuse struct{}

func (refuse) Load(url string) (any, error) {
	return nil, fmt.Errorf("%.200q is not in the schema, and nothing is loaded from elsewhere: move it into $defs", url)
}

func (s *Shape) compile() (in *instance, err error) {
	doc, err := decode(s.text)
	if err != nil {
		return nil, fmt.Errorf("shape: the schema is not JSON: %w", err)
	}
	if _, bad := measure(doc, 0); bad != nil {
		return nil, fmt.Errorf("shape: the schema at %q: %s", bad.Path, bad.Detail)
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(refuse{})
	if err := c.AddResource(schemaName, doc); err != nil {
		return nil, fail(err)
	}
	schema, err := c.Compile(schemaName)
	if err != nil {
		return nil, fail(err)
	}
	in = &instance{schema: schema}
	w := walker{chain: map[*jsonschema.Schema]int{}, in: in}
	if err := w.walk(schema); err != nil {
		return nil, err
	}
	return in, nil
}

// fail bounds what the compiler says: it may repeat the whole schema.
func fail(err error) error {
	text := strings.ReplaceAll(err.Error(), schemaName, "")
	return fmt.Errorf("shape: the schema does not compile: %s", cut(text, 500))
}

// walker visits every schema that can be reached, makes each count its steps,
// and bounds how many can be applied to one value one inside the other.
type walker struct {
	chain map[*jsonschema.Schema]int // -1 while it is being walked
	todo  []*jsonschema.Schema
	in    *instance
}

func (w *walker) walk(root *jsonschema.Schema) error {
	w.todo = append(w.todo, root)
	for len(w.todo) > 0 {
		s := w.todo[len(w.todo)-1]
		w.todo = w.todo[:len(w.todo)-1]
		if _, err := w.inPlace(s, 0); err != nil {
			return err
		}
	}
	return nil
}

// inPlace is the longest chain of schemas that s applies to its own value.
func (w *walker) inPlace(s *jsonschema.Schema, depth int) (int, error) {
	if n, ok := w.chain[s]; ok {
		if n < 0 {
			return 0, fmt.Errorf("shape: the schema %s refers to itself for the same value: break the cycle", where(s))
		}
		return n, nil
	}
	if depth > maxChain {
		return 0, fmt.Errorf("shape: the schema %s: more than %d schemas apply to one value one inside the other: flatten them", where(s), maxChain)
	}
	if s.DynamicRef != nil || s.RecursiveRef != nil {
		return 0, fmt.Errorf("shape: the schema %s: $dynamicRef and $recursiveRef are not supported: use $ref", where(s))
	}
	if strings.Contains(s.Location, "//json-schema.org/") {
		return 0, errors.New("shape: the schema refers to a meta-schema of JSON Schema: copy what you need of it")
	}
	w.chain[s] = -1
	w.count(s)
	same := slices.Concat([]*jsonschema.Schema{s.Ref, s.Not, s.If, s.Then, s.Else, s.PropertyNames, s.ContentSchema}, s.AllOf, s.AnyOf, s.OneOf)
	for _, d := range s.DependentSchemas {
		same = append(same, d)
	}
	for _, d := range s.Dependencies {
		same = appendAny(same, d)
	}
	longest := 0
	for _, d := range same {
		if d == nil {
			continue
		}
		n, err := w.inPlace(d, depth+1)
		if err != nil {
			return 0, err
		}
		longest = max(longest, n)
	}
	w.chain[s] = longest + 1
	if longest+1 > maxChain {
		return 0, fmt.Errorf("shape: the schema %s: more than %d schemas apply to one value one inside the other: flatten them", where(s), maxChain)
	}

	inner := slices.Concat([]*jsonschema.Schema{s.UnevaluatedProperties, s.Contains, s.Items2020, s.UnevaluatedItems}, s.PrefixItems)
	for _, d := range s.Properties {
		inner = append(inner, d)
	}
	for _, d := range s.PatternProperties {
		inner = append(inner, d)
	}
	inner = appendAny(inner, s.AdditionalProperties, s.Items, s.AdditionalItems)
	for _, d := range inner {
		if d == nil {
			continue
		}
		if _, ok := w.chain[d]; !ok {
			w.todo = append(w.todo, d)
		}
	}
	return longest + 1, nil
}

func appendAny(list []*jsonschema.Schema, of ...any) []*jsonschema.Schema {
	for _, v := range of {
		switch v := v.(type) {
		case *jsonschema.Schema:
			list = append(list, v)
		case []*jsonschema.Schema:
			list = append(list, v...)
		}
	}
	return list
}

// count makes s take a step whenever it is applied. The format is the one
// check that the validator leaves to a function of ours and makes before it
// goes down into the value.
func (w *walker) count(s *jsonschema.Schema) {
	in, format := w.in, s.Format
	name := ""
	if format != nil {
		name = format.Name
	}
	s.Format = &jsonschema.Format{Name: name, Validate: func(v any) error {
		if in.steps--; in.steps < 0 {
			panic(errSteps)
		}
		if format != nil {
			return format.Validate(v)
		}
		return nil
	}}
}

func where(s *jsonschema.Schema) string {
	return fmt.Sprintf("at %.200q", strings.TrimPrefix(s.Location, schemaName))
}

// decode keeps numbers exact.
func decode(text []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("more than one value")
	}
	return v, nil
}

// measure counts the values in v. bad says where v is too deep or holds a
// number whose exact form would fill the memory ("1e999999999").
func measure(v any, depth int) (n int, bad *engine.Violation) {
	if depth > MaxDepth {
		return 0, &engine.Violation{Rule: "depth", Detail: fmt.Sprintf("it is nested more than %d deep: flatten it", MaxDepth)}
	}
	down := func(token string, v any) {
		m, b := measure(v, depth+1)
		n += m
		if b == nil {
			return
		}
		b.Path = cut("/"+escape(cut(token, maxPath))+b.Path, maxPath)
		if bad == nil || b.Path < bad.Path { // maps are walked in random order
			bad = b
		}
	}
	n = 1
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			down(k, e)
		}
	case []any:
		for i, e := range v {
			down(strconv.Itoa(i), e)
		}
	case json.Number:
		mantissa, exponent, _ := strings.Cut(strings.ToLower(string(v)), "e")
		if e, err := strconv.Atoi(cmp.Or(exponent, "0")); len(mantissa) > maxNumber || err != nil || e > maxNumber || e < -maxNumber {
			return n, &engine.Violation{Rule: "number", Detail: fmt.Sprintf("it has a number of more than %d digits: use one that a double can hold", maxNumber)}
		}
	}
	return n, bad
}

// collect lists what in e is a violation of its own.
func collect(e *jsonschema.ValidationError, all *[]engine.Violation) {
	own := len(e.Causes) == 0
	switch e.ErrorKind.(type) {
	case *kind.AnyOf, *kind.OneOf, *kind.Not, *kind.Contains, *kind.PropertyNames:
		own = true
	}
	if own {
		rule := "false"
		if p := e.ErrorKind.KeywordPath(); len(p) > 0 {
			rule = p[0]
		} else if _, not := e.ErrorKind.(*kind.Not); not {
			rule = "not"
		}
		*all = append(*all, engine.Violation{Path: pointer(e.InstanceLocation), Rule: rule, Detail: detail(e.ErrorKind)})
	}
	if _, name := e.ErrorKind.(*kind.PropertyNames); name {
		return // the causes speak of the name, as if it were a value
	}
	for _, c := range e.Causes {
		collect(c, all)
	}
}

// detail says what was wanted. Of what the script wrote it shows only names,
// quoted and cut.
func detail(k jsonschema.ErrorKind) string {
	switch k := k.(type) {
	case *kind.Type:
		return fmt.Sprintf("got %s, want %s", k.Got, strings.Join(k.Want, " or "))
	case *kind.Required:
		return "missing " + names(k.Missing)
	case *kind.DependentRequired:
		return fmt.Sprintf("missing %s, since %s is there", names(k.Missing), names([]string{k.Prop}))
	case *kind.Dependency:
		return fmt.Sprintf("missing %s, since %s is there", names(k.Missing), names([]string{k.Prop}))
	case *kind.AdditionalProperties:
		slices.Sort(k.Properties)
		return "not allowed: " + names(k.Properties)
	case *kind.AdditionalItems:
		return fmt.Sprintf("%d items too many", k.Count)
	case *kind.PropertyNames:
		return "the name is not allowed: " + names([]string{k.Property})
	case *kind.Enum:
		return "want one of " + literal(k.Want)
	case *kind.Const:
		return "want " + literal(k.Want)
	case *kind.Pattern:
		return "want a match of " + quote(k.Want)
	case *kind.Format:
		return "want the format " + quote(k.Want)
	case *kind.MinLength:
		return fmt.Sprintf("got %d characters, want at least %d", k.Got, k.Want)
	case *kind.MaxLength:
		return fmt.Sprintf("got %d characters, want at most %d", k.Got, k.Want)
	case *kind.MinItems:
		return fmt.Sprintf("got %d items, want at least %d", k.Got, k.Want)
	case *kind.MaxItems:
		return fmt.Sprintf("got %d items, want at most %d", k.Got, k.Want)
	case *kind.MinContains:
		return fmt.Sprintf("%d items match, want at least %d", len(k.Got), k.Want)
	case *kind.MaxContains:
		return fmt.Sprintf("%d items match, want at most %d", len(k.Got), k.Want)
	case *kind.MinProperties:
		return fmt.Sprintf("got %d properties, want at least %d", k.Got, k.Want)
	case *kind.MaxProperties:
		return fmt.Sprintf("got %d properties, want at most %d", k.Got, k.Want)
	case *kind.UniqueItems:
		return fmt.Sprintf("items %d and %d are equal", k.Duplicates[0], k.Duplicates[1])
	case *kind.Minimum:
		return "want at least " + cut(k.Want.RatString(), maxDetail)
	case *kind.Maximum:
		return "want at most " + cut(k.Want.RatString(), maxDetail)
	case *kind.ExclusiveMinimum:
		return "want more than " + cut(k.Want.RatString(), maxDetail)
	case *kind.ExclusiveMaximum:
		return "want less than " + cut(k.Want.RatString(), maxDetail)
	case *kind.MultipleOf:
		return "want a multiple of " + cut(k.Want.RatString(), maxDetail)
	case *kind.AnyOf:
		return "no alternative matches"
	case *kind.OneOf:
		if len(k.Subschemas) == 0 {
			return "no alternative matches"
		}
		return "more than one alternative matches"
	case *kind.Not:
		return "matches what it must not"
	case *kind.Contains:
		return "no item matches"
	case *kind.FalseSchema:
		return "no value is allowed here"
	}
	return "the rule is not met"
}

func names(list []string) string {
	var b strings.Builder
	for i, n := range list {
		if i == 3 {
			fmt.Fprintf(&b, " and %d more", len(list)-i)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(quote(n))
	}
	return b.String()
}

func quote(s string) string {
	if c := cut(s, maxDetail/4); len(c) < len(s) {
		return fmt.Sprintf("%q…", c)
	}
	return fmt.Sprintf("%q", s)
}

// literal shows a value of the schema.
func literal(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "what the schema says"
	}
	if c := cut(string(b), maxDetail); len(c) < len(b) {
		return c + "…"
	}
	return string(b)
}

func escape(token string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(token)
}

// pointer is the JSON pointer of a place, cut to its beginning.
func pointer(tokens []string) string {
	var b strings.Builder
	for _, t := range tokens {
		b.WriteString("/" + escape(cut(t, maxPath)))
		if b.Len() > maxPath {
			return cut(b.String(), maxPath) + "…"
		}
	}
	return b.String()
}

func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
