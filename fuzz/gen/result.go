package gen

import (
	"encoding/json"
	"strings"
)

// Fate says what becomes of a result.
type Fate string

// The fates of a result.
const (
	Value           Fate = "value"           // it is JSON: Shape.JSON
	Absent          Fate = "absent"          // it is undefined at top level: no value
	NotSerializable Fate = "notSerializable" // there is no JSON for it
	Throws          Fate = "throws"          // making it JSON throws an error of the script
)

// Shape is an expression whose JSON is known without an engine.
type Shape struct {
	JS    string
	JSON  string // with fate Value, byte for byte
	Fate  Fate
	Words []string
	Used  []string
}

// Document is the document of s, in names.
func (s *Shape) Document() []byte { return Join(s.Words...) }

// leaf is a value with the JSON that it gives. An empty JSON is one that is left
// out of objects and null in arrays.
type leaf struct {
	name, js, json string
	fate           Fate // empty: Value, or left out
}

var leaves = []leaf{
	{"null", "null", "null", ""},
	{"true", "true", "true", ""},
	{"false", "false", "false", ""},
	{"zero", "0", "0", ""},
	{"negzero", "-0", "0", ""},
	{"int", "-42", "-42", ""},
	{"float", "1.5", "1.5", ""},
	{"tenth", "0.1+0.2", "0.30000000000000004", ""},
	{"big", "1e21", "1e+21", ""},
	{"max", "Number.MAX_VALUE", "1.7976931348623157e+308", ""},
	{"min", "5e-324", "5e-324", ""},
	{"small", "0.000001", "0.000001", ""},
	{"smaller", "1e-7", "1e-7", ""},
	{"unsafe", "2**53", "9007199254740992", ""},
	{"nan", "NaN", "null", ""},
	{"inf", "-Infinity", "null", ""},
	{"undefined", "undefined", "", ""},
	{"function", "(function(){})", "", ""},
	{"symbol", "Symbol('s')", "", ""},
	{"empty", `""`, `""`, ""},
	{"latin", `"é"`, `"é"`, ""},
	{"cjk", `"漢字"`, `"漢字"`, ""},
	{"emoji", `"\u{1f600}"`, `"😀"`, ""},
	{"high", `"\ud800"`, `"\ud800"`, ""},
	{"low", `"x\udfff"`, `"x\udfff"`, ""},
	{"swapped", `"\ude00\ud83d"`, `"\ude00\ud83d"`, ""},
	{"control", `"\u0001\u001f"`, `"\u0001\u001f"`, ""},
	{"escapes", `"\"\\\b\f\n\r\t/"`, `"\"\\\b\f\n\r\t/"`, ""},
	{"nul", `"a\0b"`, `"a\u0000b"`, ""},
	{"del", `"\u007f\u2028\ufeff"`, "\"\x7f\u2028\ufeff\"", ""},
	{"longascii", `"x".repeat(300)`, `"` + strings.Repeat("x", 300) + `"`, ""},
	{"longlatin", `"é".repeat(300)`, `"` + strings.Repeat("é", 300) + `"`, ""},
	{"longemoji", `"😀".repeat(300)`, `"` + strings.Repeat("😀", 300) + `"`, ""},
	{"longescape", `"\u0001".repeat(300)`, `"` + strings.Repeat(`\u0001`, 300) + `"`, ""},
	{"rope", `("x".repeat(9000)+"é".repeat(9000))`, `"` + strings.Repeat("x", 9000) + strings.Repeat("é", 9000) + `"`, ""},
	{"boxednum", "new Number(3)", "3", ""},
	{"boxedstr", `new String("s")`, `"s"`, ""},
	{"boxedbool", "Object(false)", "false", ""},
	{"date", "new Date(0)", `"1970-01-01T00:00:00.000Z"`, ""},
	{"baddate", "new Date(NaN)", "null", ""},
	{"regexp", "/x/g", "{}", ""},
	{"map", "new Map([[1,2]])", "{}", ""},
	{"set", "new Set([1])", "{}", ""},
	{"error", "new Error('x')", "{}", ""},
	{"holes", "[,1,,]", "[null,1,null]", ""},
	{"typed", "new Uint8Array([1,2])", `{"0":1,"1":2}`, ""},
	{"arguments", "(function(){return arguments})(1,'a')", `{"0":1,"1":"a"}`, ""},
	{"order", `({b:1,2:2,a:3,1:4,[Symbol()]:5})`, `{"1":4,"2":2,"b":1,"a":3}`, ""},
	{"hidden", `Object.defineProperty({a:1},"b",{value:2})`, `{"a":1}`, ""},
	{"inherited", `Object.create({a:1},{b:{value:2,enumerable:true}})`, `{"b":2}`, ""},
	{"nullproto", `Object.assign(Object.create(null),{a:1})`, `{"a":1}`, ""},
	{"ownproto", `JSON.parse('{"__proto__":1}')`, `{"__proto__":1}`, ""},
	{"getterok", `({get g(){return 7}})`, `{"g":7}`, ""},
	{"proxyarr", `new Proxy([1,[2]],{})`, `[1,[2]]`, ""},
	{"proxyobj", `new Proxy({a:1},{get(t,k){return k==="toJSON"?undefined:k}})`, `{"a":"a"}`, ""},
	{"extra", `Object.assign([1],{x:2})`, `[1]`, ""},
	{"bigint", "1n", "", NotSerializable},
	{"cycle", "(o=>(o.o=o))({})", "", NotSerializable},
	{"cyclicarr", "(a=>(a.push(a),a))([])", "", NotSerializable},
	{"throwget", `({get x(){throw new Error("mine")}})`, "", Throws},
	{"throwjson", `({toJSON(){throw null}})`, "", Throws},
	{"throwproxy", `new Proxy({},{ownKeys(){throw 1}})`, "", Throws},
	{"throwoom", `({get x(){throw new InternalError("out of memory")}})`, "", Throws},
	{"throwinterrupted", `({toJSON(){throw new InternalError("interrupted")}})`, "", Throws},
	{"throwrange", `({get x(){throw new RangeError("Maximum call stack size exceeded")}})`, "", Throws},
}

// composites take values; their text marks each with %r.
var composites = []string{"arr", "obj", "tojson", "getter", "wrap", "boxed", "keys", "deep", "promise", "sparse"}

var resultVocabulary = func() *vocabulary {
	var n []string
	for _, l := range leaves {
		n = append(n, l.name)
	}
	return newVocabulary(append(n, composites...))
}()

// ResultNames are the names of all productions of results.
func ResultNames() []string { return resultVocabulary.names }

// node is a value under construction.
type node struct {
	js, json string // json empty: left out
	fate     Fate
}

// Result decodes a document to a result.
func Result(data []byte) (*Shape, error) {
	words, err := Split(data)
	if err != nil {
		return nil, err
	}
	s := &Shape{Fate: Value}
	r := &reader{words: words}
	b := &resultBuilder{reader: r}
	n := b.value(0)
	s.JS, s.JSON = n.js, n.json
	switch {
	case n.fate != "":
		s.Fate, s.JSON = n.fate, ""
	case n.js == "undefined", n.js == "Promise.resolve(undefined)":
		s.Fate = Absent
	case n.json == "":
		s.Fate = NotSerializable
	}
	s.Words, s.Used = r.canon, b.used
	return s, nil
}

type resultBuilder struct {
	*reader
	used  []string
	nodes int
}

func (b *resultBuilder) value(depth int) node {
	b.nodes++
	if !b.more() || depth > maxDepth || b.nodes > maxNodes {
		return node{js: "null", json: "null"}
	}
	i := b.name(resultVocabulary, 0)
	b.used = append(b.used, resultVocabulary.names[i])
	if i < len(leaves) {
		return node{leaves[i].js, leaves[i].json, leaves[i].fate}
	}
	n := node{}
	// take reads one value inside; the first that fails is what the whole ends with,
	// since JSON.stringify goes from left to right.
	take := func() node {
		in := b.value(depth + 1)
		if n.fate == "" {
			n.fate = in.fate
		}
		return in
	}
	orNull := func(s string) string {
		if s == "" {
			return "null"
		}
		return s
	}
	switch composites[i-len(leaves)] {
	case "arr":
		x, y := take(), take()
		n.js, n.json = "["+x.js+","+y.js+"]", "["+orNull(x.json)+","+orNull(y.json)+"]"
	case "sparse":
		x := take()
		n.js, n.json = "[,"+x.js+",]", "[null,"+orNull(x.json)+"]"
	case "obj":
		x, y := take(), take()
		n.js = "({b:" + x.js + ",a:" + y.js + "})"
		n.json = object("b", x.json, "a", y.json)
	case "keys": // awkward names, integers first
		x, y := take(), take()
		n.js = `({"é\n":` + x.js + `,"7":` + y.js + "})"
		n.json = object("7", y.json, "é\n", x.json)
		// Here y is visited first, x second.
		if x.fate != "" && y.fate != "" {
			n.fate = y.fate
		}
	case "tojson":
		x := take()
		n.js, n.json = "({toJSON(){return "+x.js+"}})", x.json
		if strings.HasPrefix(x.js, "({toJSON") || strings.HasPrefix(x.js, "new Date") {
			n.json, n.fate = "{}", "" // what toJSON gives is not asked for its own
		}
	case "getter":
		x := take()
		n.js, n.json = "({get k(){return "+x.js+"}})", object("k", x.json)
	case "wrap":
		x := take()
		n.js, n.json = "(x=>({v:x}))("+x.js+")", object("v", x.json)
	case "boxed": // Object() keeps objects and boxes what is none
		x := take()
		n.js, n.json = "[Object("+x.js+")].concat([1])", "["+orNull(x.json)+",1]"
		switch x.js {
		case "null", "undefined", "Symbol('s')":
			n.json = "[{},1]"
		}
	case "deep":
		x := take()
		n.js, n.json = "[[[["+x.js+"]]]]", "[[[["+orNull(x.json)+"]]]]"
	case "promise": // only the whole result is awaited; inside it is an object
		x := take()
		if depth > 0 {
			n.js, n.json, n.fate = "Promise.resolve(1)", "{}", ""
			break
		}
		n.js, n.json = "Promise.resolve("+x.js+")", x.json
		if x.js == "Promise.resolve(1)" {
			n.json = "1"
		}
	}
	return n
}

// object is the JSON of an object of two fields at most; empty values are left out.
func object(pairs ...string) string {
	var fields []string
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			continue
		}
		key, err := json.Marshal(pairs[i])
		if err != nil {
			panic("gen: " + err.Error()) // no string fails
		}
		fields = append(fields, string(key)+":"+pairs[i+1])
	}
	return "{" + strings.Join(fields, ",") + "}"
}
