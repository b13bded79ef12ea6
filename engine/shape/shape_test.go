package shape

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/sandbed/sandbed/engine"
)

func compile(t testing.TB, schema string) *Shape {
	t.Helper()
	s, err := Compile([]byte(schema))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// violations is what the shape says of value, as "path rule: detail"; nil if it fits.
func violations(t testing.TB, s *Shape, value string) []string {
	t.Helper()
	var raw json.RawMessage
	if value != "undefined" {
		raw = json.RawMessage(value)
	}
	err := s.Check(raw)
	if err == nil {
		return nil
	}
	var m *engine.ShapeMismatch
	if !errors.As(err, &m) {
		t.Fatalf("%s: got %v, want a ShapeMismatch", value, err)
	}
	var list []string
	for _, v := range m.Violations {
		list = append(list, v.Path+" "+v.Rule+": "+v.Detail)
	}
	if m.Dropped > 0 {
		list = append(list, fmt.Sprint("dropped ", m.Dropped))
	}
	return list
}

func TestCheck(t *testing.T) {
	const big = "9007199254740993" // 2^53 + 1, which a float64 would round
	tests := []struct {
		schema, value string
		want          string // the violations, joined by "; "
	}{
		{`true`, `1`, ""},
		{`true`, `null`, ""},
		{`true`, `undefined`, " absent: the result is undefined: return a value"},
		{`{}`, `undefined`, " absent: the result is undefined: return a value"},
		{`false`, `1`, " false: no value is allowed here"},
		{`{"type":"string"}`, `"a"`, ""},
		{`{"type":"string"}`, `1`, " type: got number, want string"},
		{`{"type":["string","null"]}`, `1`, " type: got number, want null or string"},
		{`{"type":"integer"}`, `1.0`, ""},
		{`{"type":"integer"}`, `1.5`, " type: got number, want integer"},
		{`{"type":"object","properties":{"a":{"type":"array","items":{"type":"number"}}}}`, `{"a":[1,"x",2,null]}`,
			"/a/1 type: got string, want number; /a/3 type: got null, want number"},
		{`{"required":["a","b"]}`, `{"a":1}`, ` required: missing "b"`},
		{`{"properties":{"a":true},"additionalProperties":false}`, `{"a":1,"c":1,"b":1}`, ` additionalProperties: not allowed: "b", "c"`},
		{`{"unevaluatedProperties":false}`, `{"b":1}`, "/b false: no value is allowed here"},
		{`{"const":` + big + `}`, big, ""},
		{`{"const":` + big + `}`, "9007199254740992", " const: want " + big},
		{`{"enum":[1,"a"]}`, `2`, ` enum: want one of [1,"a"]`},
		{`{"maximum":` + big + `}`, "9007199254740994", " maximum: want at most " + big},
		{`{"multipleOf":0.1}`, `0.3`, ""},
		{`{"multipleOf":0.1}`, `0.35`, " multipleOf: want a multiple of 1/10"},
		{`{"minimum":1.5}`, `1`, " minimum: want at least 3/2"},
		{`{"exclusiveMinimum":1}`, `1`, " exclusiveMinimum: want more than 1"},
		{`{"exclusiveMaximum":1}`, `1`, " exclusiveMaximum: want less than 1"},
		{`{"pattern":"^a+$"}`, `"b"`, ` pattern: want a match of "^a+$"`},
		{`{"minLength":2,"maxLength":3}`, `"é"`, " minLength: got 1 characters, want at least 2"},
		{`{"maxLength":1}`, `"ab"`, " maxLength: got 2 characters, want at most 1"},
		{`{"minItems":1}`, `[]`, " minItems: got 0 items, want at least 1"},
		{`{"maxItems":1}`, `[1,2]`, " maxItems: got 2 items, want at most 1"},
		{`{"uniqueItems":true}`, `[1,2,1.0]`, " uniqueItems: items 0 and 2 are equal"},
		{`{"minProperties":1}`, `{}`, " minProperties: got 0 properties, want at least 1"},
		{`{"maxProperties":0}`, `{"a":1}`, " maxProperties: got 1 properties, want at most 0"},
		{`{"contains":{"const":1}}`, `[2]`, " contains: no item matches; /0 const: want 1"},
		{`{"contains":true,"minContains":2}`, `[2]`, " minContains: 1 items match, want at least 2"},
		{`{"contains":true,"maxContains":1}`, `[2,3]`, " maxContains: 2 items match, want at most 1"},
		{`{"anyOf":[{"type":"string"},{"type":"null"}]}`, `1`,
			" anyOf: no alternative matches; " + " type: got number, want null; " + " type: got number, want string"},
		{`{"oneOf":[{"type":"number"},{"minimum":0}]}`, `1`, " oneOf: more than one alternative matches"},
		{`{"not":{"type":"number"}}`, `1`, " not: matches what it must not"},
		{`{"propertyNames":{"maxLength":1}}`, `{"ab":1}`, ` propertyNames: the name is not allowed: "ab"`},
		{`{"dependentRequired":{"a":["b"]}}`, `{"a":1}`, ` dependentRequired: missing "b", since "a" is there`},
		{`{"if":{"const":1},"then":{"const":2}}`, `1`, " const: want 2"},
		{`{"properties":{"a/b~c":{"type":"null"}}}`, `{"a/b~c":1}`, "/a~1b~0c type: got number, want null"},
		{`{"$defs":{"n":{"type":"number"}},"items":{"$ref":"#/$defs/n"}}`, `[1,"a"]`, "/1 type: got string, want number"},
		{`{"$id":"https://example.com/a","$defs":{"n":{"$id":"n","type":"number"}},"items":{"$ref":"n"}}`, `["a"]`, "/0 type: got string, want number"},
		{`{"properties":{"next":{"$ref":"#"}},"required":["v"]}`, `{"v":1,"next":{"v":2,"next":{}}}`, `/next/next required: missing "v"`},
		{`{"$schema":"http://json-schema.org/draft-07/schema#","format":"date"}`, `"x"`, ` format: want the format "date"`},
		{`{"format":"date"}`, `"x"`, ""},
		{`{"type":"number"}`, `1e308`, ""},
		{`{"type":"number"}`, `5e-324`, ""},
		{`true`, `[1,{"a":1e999999999}]`, "/1/a number: it has a number of more than 400 digits: use one that a double can hold"},
		{`true`, `1e-999999999`, " number: it has a number of more than 400 digits: use one that a double can hold"},
		{`true`, `1e99999999999999999999`, " number: it has a number of more than 400 digits: use one that a double can hold"},
		{`true`, strings.Repeat("9", 401), " number: it has a number of more than 400 digits: use one that a double can hold"},
	}
	for _, tt := range tests {
		s := compile(t, tt.schema)
		for range 2 { // the second from the pool
			if got := strings.Join(violations(t, s, tt.value), "; "); got != tt.want {
				t.Errorf("%s of %s:\n got %q\nwant %q", tt.schema, tt.value, got, tt.want)
			}
		}
	}
}

func TestSchemaErrors(t *testing.T) {
	chain := func(n int) string { // n schemas, each in place of the next
		return strings.Repeat(`{"allOf":[`, n) + "true" + strings.Repeat("]}", n)
	}
	tests := []struct{ schema, want string }{
		{``, "not JSON"},
		{`{`, "not JSON"},
		{`{} {}`, "more than one value"},
		{`1`, "does not compile"},
		{`{"type":"strin"}`, "does not compile"},
		{`{"minimum":"1"}`, "does not compile"},
		{`{"pattern":"("}`, "does not compile"},
		{`{"$ref":"#/nowhere"}`, "nowhere"},
		{`{"$ref":"file:///etc/passwd"}`, "nothing is loaded from elsewhere: move it into $defs"},
		{`{"$ref":"https://example.com/schema.json"}`, "nothing is loaded from elsewhere"},
		{`{"$ref":"other.json"}`, "nothing is loaded from elsewhere"},
		{`{"$schema":"https://example.com/draft"}`, "nothing is loaded from elsewhere"},
		{`{"$ref":"https://json-schema.org/draft/2020-12/schema"}`, "meta-schema"},
		{`{"$ref":"http://json-schema.org/draft-07/schema#"}`, "meta-schema"},
		{`{"$dynamicRef":"#a","$defs":{"a":{"$dynamicAnchor":"a"}}}`, "use $ref"},
		{`{"$ref":"#"}`, "break the cycle"},
		{`{"anyOf":[{"$ref":"#/$defs/a"}],"$defs":{"a":{"not":{"$ref":"#"}}}}`, "break the cycle"},
		{`{"items":{"$ref":"#/$defs/a"},"$defs":{"a":{"$ref":"#/$defs/a"}}}`, "break the cycle"},
		{chain(64), "more than 64"},
		{chain(100), "more than 64"},
		{chain(130), "nested more than 256"},
		{`{"const":1e999999999}`, "digits"},
		{strings.Repeat(" ", MaxSchemaBytes) + "1", "too large"},
	}
	for _, tt := range tests {
		_, err := Compile([]byte(tt.schema))
		if err == nil || !strings.Contains(err.Error(), tt.want) || len(err.Error()) > 700 {
			t.Errorf("%.80s: got %.900v, want it to contain %q", tt.schema, err, tt.want)
		}
	}
	compile(t, chain(63))
	compile(t, strings.Repeat(" ", MaxSchemaBytes-4)+"true")
}

// A chain of references that is long though no schema is nested in another.
func TestLongChainOfReferences(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"$ref":"#/$defs/d0","$defs":{`)
	for i := range 1000 {
		fmt.Fprintf(&b, `"d%d":{"$ref":"#/$defs/d%d"},`, i, i+1)
	}
	b.WriteString(`"d1000":true}}`)
	if _, err := Compile([]byte(b.String())); err == nil || !strings.Contains(err.Error(), "flatten") {
		t.Errorf("got %.300v", err)
	}
}

func TestDepth(t *testing.T) {
	s := compile(t, `{"items":{"$ref":"#"}}`)
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for _, n := range []int{1, MaxDepth, MaxDepth + 1} {
		if got := violations(t, s, nested(n)); got != nil {
			t.Errorf("%d deep: got %q", n, got)
		}
	}
	got := violations(t, s, nested(MaxDepth+2))
	if len(got) != 1 || !strings.Contains(got[0], " depth: ") {
		t.Errorf("got %q, want a violation of depth", got)
	}
	if err := s.Check(json.RawMessage(nested(20000))); err == nil {
		t.Error("a result 20,000 deep was accepted")
	}
}

// Recursive alternatives cost twice as much with each level that the script
// adds: the count of steps ends it, and the shape serves on.
func TestHostileResultOfARecursiveShape(t *testing.T) {
	for _, schema := range []string{
		`{"anyOf":[{"properties":{"a":{"$ref":"#"}},"required":["x"]},{"properties":{"a":{"$ref":"#"}},"required":["y"]}]}`,
		`{"allOf":[{"properties":{"a":{"$ref":"#"}}},{"properties":{"a":{"$ref":"#"}}}]}`,
		`{"not":{"oneOf":[{"properties":{"a":{"$ref":"#"}},"patternProperties":{"a":{"$ref":"#"}}},{"const":1}]}}`,
	} {
		s := compile(t, schema)
		got := violations(t, s, strings.Repeat(`{"a":`, 100)+"1"+strings.Repeat("}", 100))
		if len(got) != 1 || !strings.Contains(got[0], " complexity: ") {
			t.Errorf("%s: got %.300q, want a violation of complexity", schema, got)
		}
		violations(t, s, `{}`)
	}
}

// A big flat result is judged whole.
func TestBigResult(t *testing.T) {
	s := compile(t, `{"items":{"type":"object","properties":{"a":{"type":"number"}},"required":["a"]}}`)
	row := `{"a":1,"b":[1,2,3]},`
	if got := violations(t, s, "["+strings.Repeat(row, 50000)+`{"a":"x"}]`); len(got) != 1 || !strings.HasPrefix(got[0], "/50000/a type") {
		t.Errorf("got %.300q", got)
	}
}

func TestViolationsAreCountedAndBounded(t *testing.T) {
	s := compile(t, `{"items":{"type":"string"}}`)
	for _, n := range []int{MaxViolations - 1, MaxViolations, MaxViolations + 1, 1000} {
		got := violations(t, s, "["+strings.Repeat("1,", n-1)+"1]")
		want := min(n, MaxViolations)
		if n > MaxViolations {
			want++
			if last := got[len(got)-1]; last != fmt.Sprint("dropped ", n-MaxViolations) {
				t.Errorf("%d wrong items: %s", n, last)
			}
		}
		if len(got) != want {
			t.Errorf("%d wrong items: got %d lines, want %d", n, len(got), want)
		}
	}
}

// Whatever names and strings a script returns, what is said of them is short,
// and the text of the failure is quoted.
func TestGuestTextIsBounded(t *testing.T) {
	long := strings.Repeat("é\x1b\n", 5000)
	key, err := json.Marshal(long)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ schema, value string }{
		{`{"additionalProperties":false}`, fmt.Sprintf(`{%s:1}`, key)},
		{`{"additionalProperties":{"type":"string"}}`, fmt.Sprintf(`{%s:1}`, key)},
		{`{"additionalProperties":{"additionalProperties":{"type":"string"}}}`, fmt.Sprintf(`{%s:{%s:1}}`, key, key)},
		{`{"propertyNames":{"pattern":"^a"}}`, fmt.Sprintf(`{%s:1}`, key)},
		{`{"pattern":"^a"}`, string(key)},
		{`{"const":1}`, string(key)},
		{`{"enum":["b"]}`, string(key)},
		{`{"$schema":"http://json-schema.org/draft-07/schema#","format":"email"}`, string(key)},
		{`{"$schema":"http://json-schema.org/draft-07/schema#","format":"uri"}`, string(key)},
		{`{"$schema":"http://json-schema.org/draft-07/schema#","contentMediaType":"application/json"}`, string(key)},
		{`true`, fmt.Sprintf(`{%s:{%s:1e999}}`, key, key)},
	} {
		err := compile(t, tt.schema).Check(json.RawMessage(tt.value))
		if err == nil {
			if !strings.Contains(tt.schema, "content") { // an annotation, unless asserted
				t.Errorf("%s: no violation", tt.schema)
			}
			continue
		}
		var m *engine.ShapeMismatch
		if !errors.As(err, &m) {
			t.Fatalf("%s: %v", tt.schema, err)
		}
		for _, v := range m.Violations {
			if len(v.Path) > 300 || len(v.Detail) > 400 || !utf8.ValidString(v.Path+v.Detail) || strings.ContainsAny(v.Detail, "\x1b\n") {
				t.Errorf("%s: %d bytes of path, detail %.500q", tt.schema, len(v.Path), v.Detail)
			}
		}
		if text := err.Error(); len(text) > 3000 || strings.ContainsAny(text, "\x1b\n") {
			t.Errorf("%s: text of %d bytes: %.200q", tt.schema, len(text), text)
		}
	}
}

func TestNotJSON(t *testing.T) {
	s := compile(t, "true")
	for _, v := range []string{"", "{", "1 2", "nope"} {
		err := s.Check(json.RawMessage(v))
		var m *engine.ShapeMismatch
		if err == nil || errors.As(err, &m) {
			t.Errorf("%q: got %v, want an error that blames nobody's shape", v, err)
		}
	}
}

func TestHammer(t *testing.T) {
	s := compile(t, `{"anyOf":[{"properties":{"a":{"$ref":"#"}},"required":["x"]},{"properties":{"a":{"$ref":"#"}},"type":"object"}]}`)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 9 {
				value, fits := `{"a":{"a":{}}}`, true
				switch (w + i) % 3 {
				case 1:
					value, fits = `{"a":1}`, true // no type: the first alternative lets numbers pass
				case 2:
					value, fits = strings.Repeat(`{"a":`, 60)+`{"x":1}`+strings.Repeat("}", 60), false
				}
				err := s.Check(json.RawMessage(value))
				if fits != (err == nil) {
					t.Errorf("%.60s: got %v, fits %t", value, err, fits)
				}
				var m *engine.ShapeMismatch
				if err != nil && !errors.As(err, &m) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
