package enginetest

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sandbed/sandbed/engine"
)

func TestBuiltInCorpus(t *testing.T) {
	cases := Cases()
	if len(cases) < 200 {
		t.Fatalf("%d cases, want more than 200", len(cases))
	}
	groupsSeen, labelsSeen := map[string]int{}, map[string]int{}
	then, inputs, seeds := 0, 0, 0
	for _, c := range cases {
		groupsSeen[c.Group]++
		labelsSeen[c.Expected]++
		if c.ThenJS != "" {
			then++
		}
		if len(c.Inputs) > 0 {
			inputs++
		}
		if c.FuzzSeed {
			seeds++
		}
		if c.Title == "" || c.Source == "" {
			t.Errorf("%s has no title or no source", c.ID)
		}
		if err := c.Limits.Validate(); err != nil {
			t.Errorf("%s: %v", c.ID, err)
		}
		for _, v := range append(c.AnyValue, c.ExpectValue, c.ThenExpect) {
			if v != nil && !json.Valid(v) {
				t.Errorf("%s: %s is not JSON", c.ID, v)
			}
		}
	}
	for _, g := range groups {
		if groupsSeen[g] == 0 {
			t.Errorf("no case of class %q", g)
		}
	}
	for _, l := range labels {
		if labelsSeen[l] == 0 && l != "engineFault" { // accepted of some, expected of none
			t.Errorf("no case expects %q", l)
		}
	}
	if then == 0 || inputs == 0 || seeds == 0 {
		t.Errorf("%d cases with a second script, %d with an input, %d seeds: want some of each", then, inputs, seeds)
	}
}

func parseOne(t *testing.T, line string) Case {
	t.Helper()
	cases, err := ParseCases(strings.NewReader(line))
	if err != nil {
		t.Fatal(err)
	}
	return cases[0]
}

func TestParseCases(t *testing.T) {
	c := parseOne(t, `{"id":"X1","class":"input","js":"input","input":{"a": 1},"expected":"ok","any_of":["ok","error"],`+
		`"expect_value":"{\"a\": 1}","limits":{"wallClockMs":20,"memoryBytes":2097152,"stackBytes":65536,"fuel":9,"maxInputBytes":10,"maxOutputBytes":11,"maxScriptBytes":12},`+
		`"then_js":"1","then_expect":"1","fuzz_seed":true,"polls":"n/a","measured":{"x":1}}`)
	want := engine.Limits{WallClock: 20 * time.Millisecond, MemoryBytes: 2 << 20, StackBytes: 65536, Fuel: 9, MaxInputBytes: 10, MaxOutputBytes: 11, MaxScriptBytes: 12}
	if c.Limits != want {
		t.Errorf("limits %+v, want %+v", c.Limits, want)
	}
	r, plain := c.Request(0, 2)
	if !plain || string(r.Input) != `{"a": 1}` || r.Limits.WallClock != 40*time.Millisecond || r.Script.Source != "input" {
		t.Errorf("request %+v, %v", r, plain)
	}
	if string(c.ExpectValue) != `{"a":1}` || !c.FuzzSeed || string(c.ThenExpect) != "1" {
		t.Errorf("case %+v", c)
	}

	d := parseOne(t, `{"id":"X2","class":"alloc","js":"","expected":"ok"}`)
	ref := engine.Limits{WallClock: ReferenceWallClock, MemoryBytes: ReferenceMemory, MaxOutputBytes: ReferenceOutput, MaxInputBytes: ReferenceInput}
	if d.Limits != ref || len(d.AnyOf) != 1 || len(d.Inputs) != 0 {
		t.Errorf("case %+v, want the reference limits, one class and no input", d)
	}
}

func TestParseExpectation(t *testing.T) {
	for in, want := range map[string]string{
		`1`: `1`, `"a b"`: `"a b"`, `"X" in both engines; and more`: `"X"`, `2 in both`: `2`,
		`"TypeError" (0.15.1 answers "accepted")`: `"TypeError" "accepted"`, `1 or 2`: `1 2`, `[ 1, null ]`: `[1,null]`,
		`identical in two runs`: ``, `contains the name only`: ``, ``: ``,
	} {
		v, also := expectation(in)
		got := strings.TrimSpace(string(v) + " " + string(bytes.Join(rawBytes(also), []byte(" "))))
		if got != want {
			t.Errorf("%q: got %s, want %s", in, got, want)
		}
	}
}

func rawBytes(list []json.RawMessage) (out [][]byte) {
	for _, v := range list {
		out = append(out, v)
	}
	return out
}

func TestParseInputSpecs(t *testing.T) {
	spec := func(s string) []Input {
		return parseOne(t, `{"id":"X","class":"input","js":"1","expected":"ok","input_spec":`+s+`}`).Inputs
	}
	for in, want := range map[string][]string{
		`{"text":"{\"a\":1}"}`:                           {`{"a":1}`},
		`{"hex":"22ff22"}`:                               {"\"\xff\""},
		`{"hex_any":["7b7d","7b7d2078"]}`:                {`{}`, `{} x`},
		`{"concat":[["\"",1],["é",3],["x",0],["\"",1]]}`: {`"ééé"`},
		`{"hashflood":2}`:                                {"{\"A\u0207\":0,\"B\u0100\":0}"},
	} {
		got := spec(in)
		if len(got) != len(want) {
			t.Errorf("%s: %d inputs, want %d", in, len(got), len(want))
			continue
		}
		for i, w := range want {
			if string(got[i].Value.(json.RawMessage)) != w {
				t.Errorf("%s: got %s, want %s", in, got[i].Value, w)
			}
		}
	}
	flood := spec(`{"hashflood":5000}`)[0].Value.(json.RawMessage)
	var keys map[string]int
	if err := json.Unmarshal(flood, &keys); err != nil || len(keys) != 5000 {
		t.Fatalf("%d keys (%v), want 5000", len(keys), err)
	}
	hashes := map[uint32]bool{}
	for k := range keys {
		h := uint32(1)
		for _, c := range k {
			h = h*263 + uint32(c)
		}
		hashes[h] = true
	}
	if len(hashes) != 1 {
		t.Errorf("the keys have %d hashes, want them to collide", len(hashes))
	}
	for name := range goValues() {
		in := spec(`{"go_values":[` + string(must(json.Marshal(name))) + `]}`)
		if _, err := json.Marshal(in[0].Value); err == nil || in[0].Name != name {
			t.Errorf("%s as %q can become JSON", name, in[0].Name)
		}
	}
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

func TestParseCasesRefuses(t *testing.T) {
	const good = `{"id":"A","class":"alloc","js":"1","expected":"ok"}`
	for name, c := range map[string]struct{ text, field, value string }{
		"no json":           {good + "\n{", "", `"{"`},
		"array":             {good + "\n[]", "", `"[]"`},
		"wrong type":        {good + "\n" + `{"id":7}`, "id", "number"},
		"wrong limit type":  {good + "\n" + `{"id":"B","class":"alloc","js":"1","expected":"ok","limits":{"fuel":"x"}}`, "limits", "string"},
		"no id":             {good + "\n" + `{"class":"alloc","js":"1","expected":"ok"}`, "id", "absent"},
		"empty id":          {good + "\n" + `{"id":"","class":"alloc","js":"1","expected":"ok"}`, "id", `""`},
		"no js":             {good + "\n" + `{"id":"B","class":"alloc","expected":"ok"}`, "js", "absent"},
		"duplicate id":      {good + "\n" + good, "id", `"A"`},
		"unknown class":     {good + "\n" + `{"id":"B","class":"fire","js":"1","expected":"ok"}`, "class", `"fire"`},
		"unknown outcome":   {good + "\n" + `{"id":"B","class":"alloc","js":"1","expected":"limit:time"}`, "expected", `"limit:time"`},
		"unknown any_of":    {good + "\n" + `{"id":"B","class":"alloc","js":"1","expected":"ok","any_of":["ok","fine"]}`, "any_of", `"fine"`},
		"not in any_of":     {good + "\n" + `{"id":"B","class":"alloc","js":"1","expected":"ok","any_of":["error"]}`, "any_of", `"error"`},
		"unknown kind":      {good + "\n" + `{"id":"B","class":"alloc","js":"1","expected":"ok","kind":"script"}`, "kind", `"script"`},
		"then alone":        {good + "\n" + `{"id":"B","class":"alloc","js":"1","expected":"ok","then_js":"1"}`, "then_js", "without"},
		"then not json":     {good + "\n" + `{"id":"B","class":"alloc","js":"1","expected":"ok","then_js":"1","then_expect":"x"}`, "then_expect", `"x"`},
		"any_value":         {good + "\n" + `{"id":"B","class":"alloc","js":"1","expected":"ok","any_value":["1 2"]}`, "any_value", `"1 2"`},
		"unknown limit":     {good + "\n" + `{"id":"B","class":"alloc","js":"1","expected":"ok","limits":{"pages":1}}`, "limits.pages", "1"},
		"zero limit":        {good + "\n" + `{"id":"B","class":"alloc","js":"1","expected":"ok","limits":{"fuel":0}}`, "limits.fuel", "0"},
		"limit too small":   {good + "\n" + `{"id":"B","class":"alloc","js":"1","expected":"ok","limits":{"memoryBytes":5}}`, "limits.memoryBytes", "5"},
		"clock too long":    {good + "\n" + `{"id":"B","class":"alloc","js":"1","expected":"ok","limits":{"wallClockMs":86400001}}`, "limits.wallClockMs", "86400001"},
		"two inputs":        {good + "\n" + `{"id":"B","class":"alloc","js":"1","expected":"ok","input":1,"input_spec":{"text":"1"}}`, "input_spec", "text"},
		"unknown spec":      {good + "\n" + `{"id":"B","class":"alloc","js":"1","expected":"ok","input_spec":{"file":"x"}}`, "input_spec.file", "x"},
		"two specs":         {good + "\n" + `{"id":"B","class":"alloc","js":"1","expected":"ok","input_spec":{"text":"1","hex":"22"}}`, "input_spec", "text"},
		"bad hex":           {good + "\n" + `{"id":"B","class":"alloc","js":"1","expected":"ok","input_spec":{"hex":"2"}}`, "input_spec.hex", `"2"`},
		"empty hex list":    {good + "\n" + `{"id":"B","class":"alloc","js":"1","expected":"ok","input_spec":{"hex_any":[]}}`, "input_spec.hex_any", "[]"},
		"bad concat":        {good + "\n" + `{"id":"B","class":"alloc","js":"1","expected":"ok","input_spec":{"concat":[["a"]]}}`, "input_spec.concat", "a"},
		"huge concat":       {good + "\n" + `{"id":"B","class":"alloc","js":"1","expected":"ok","input_spec":{"concat":[["ab",4611686018427387904]]}}`, "input_spec.concat", "ab"},
		"unknown go value":  {good + "\n" + `{"id":"B","class":"alloc","js":"1","expected":"ok","input_spec":{"go_values":["chan"]}}`, "input_spec.go_values", `"chan"`},
		"too big hashflood": {good + "\n" + `{"id":"B","class":"alloc","js":"1","expected":"ok","input_spec":{"hashflood":99999999}}`, "input_spec.hashflood", "99999999"},
	} {
		cases, err := ParseCases(strings.NewReader(c.text))
		var ce *CaseError
		if !errors.As(err, &ce) || cases != nil {
			t.Errorf("%s: %d cases and %v, want a *CaseError", name, len(cases), err)
			continue
		}
		if ce.Line != 2 || ce.Field != c.field || !strings.Contains(ce.Value, c.value) || ce.Remedy == "" {
			t.Errorf("%s: got line %d, field %q, value %s, remedy %q; want line 2, field %q, value %s", name, ce.Line, ce.Field, ce.Value, ce.Remedy, c.field, c.value)
		}
	}
	for _, text := range []string{"", "\n  \n"} {
		if _, err := ParseCases(strings.NewReader(text)); !errors.Is(err, ErrNoCases) {
			t.Errorf("%q: %v, want ErrNoCases", text, err)
		}
	}
	// Every bad line is named, and one longer than the bound is not read.
	_, err := ParseCases(strings.NewReader("{\n" + good + "\n{\n"))
	if err == nil || !strings.Contains(err.Error(), "line 1:") || !strings.Contains(err.Error(), "line 3:") {
		t.Errorf("got %v, want lines 1 and 3 named", err)
	}
	var ce *CaseError
	if _, err := ParseCases(strings.NewReader(good + "\n" + strings.Repeat("x", maxLine+1))); !errors.As(err, &ce) || ce.Line != 2 {
		t.Errorf("a line over the bound: %v, want a *CaseError for line 2", err)
	}
}
