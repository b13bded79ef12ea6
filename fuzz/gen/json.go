package gen

import (
	"fmt"
	"strings"
)

// values are the JSON texts that inputs are made of. Those of broken are no JSON.
var (
	values = []production{
		{"null", "null"},
		{"true", "true"},
		{"false", "false"},
		{"num", "%n"},
		{"str", "%k"},
		{"arr0", "[]"},
		{"arr1", "[%j]"},
		{"arr2", "[%j,%j]"},
		{"arr3", "[ %j ,\t%j\r,\n%j ]"},
		{"obj0", "{}"},
		{"obj1", "{%k:%j}"},
		{"obj2", "{%k:%j,%k:%j}"},
		{"twice", `{"a":%j,"a":%j}`},
		{"protokey", `{"__proto__":%j,"constructor":%j}`},
		{"indexkeys", `{"10":%j,"9":%j,"b":%j,"0":%j}`},
		{"rows", `{"rows":[{"id":1,"total":%n,"name":%k},{"id":2,"total":%n,"name":%k}]}`},
		{"space", " \t\r\n%j \n"},
	}
	// repeated values take a number: how deep, wide or long they are.
	repeated = []struct {
		name string
		make func(n int) string
	}{
		{"deeparr", func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }},
		{"deepobj", func(n int) string { return strings.Repeat(`{"a":`, n) + "0" + strings.Repeat("}", n) }},
		{"wide", func(n int) string { return "[" + strings.Repeat("1,", n) + "1]" }},
		{"widestr", func(n int) string { return "[" + strings.Repeat(`"é",`, n) + `""]` }},
		{"widearr", func(n int) string { return "[" + strings.Repeat("[],", n) + "[]]" }},
		{"manykeys", func(n int) string {
			var b strings.Builder
			for i := range n {
				fmt.Fprintf(&b, `"k%d":%d,`, i, i)
			}
			return "{" + b.String() + `"k":0}`
		}},
		{"longtext", func(n int) string { return `"` + strings.Repeat("x", n) + `"` }},
		{"longwide", func(n int) string { return `"` + strings.Repeat("漢", n) + `"` }},
	}
	broken = []production{
		{"bad/empty", ""},
		{"bad/two", "1 2"},
		{"bad/open", "[1,"},
		{"bad/close", "]"},
		{"bad/comma", "[%j,]"},
		{"bad/colon", `{"a" %j}`},
		{"bad/quote", "'a'"},
		{"bad/nan", "NaN"},
		{"bad/plus", "+1"},
		{"bad/zero", "01"},
		{"bad/dot", "1."},
		{"bad/hex", "0x10"},
		{"bad/comment", "/**/%j"},
		{"bad/undefined", "undefined"},
		{"bad/control", "\"\x01\""},
		{"bad/escape", `"\x41"`},
		{"bad/utf8", "\"\xff\xfe\""},
		{"bad/overlong", "\"\xc0\xaf\""},
		{"bad/surrogate", "\"\xed\xa0\x80\""},
		{"bad/bom", "\xef\xbb\xbf%j"},
		{"bad/nul", "1\x00"},
		{"bad/code", "(function(){for(;;);})()"},
	}

	// jsonNumbers are spellings that parsers get wrong.
	jsonNumbers = []string{"0", "-0", "1", "-1", "1.5", "0.1", "1e3", "1E+2", "1e-7", "123456789012345678901234567890", "1e400", "-1e400", "5e-324", "1e-400",
		"9007199254740993", "2147483648", "-2147483649", "0.30000000000000004", "1.7976931348623157e308"}
	// jsonStrings are strings by name.
	jsonStrings = []production{
		{"empty", `""`},
		{"a", `"a"`},
		{"b", `"b"`},
		{"id", `"id"`},
		{"index", `"0"`},
		{"proto", `"__proto__"`},
		{"tojson", `"toJSON"`},
		{"escapes", `"\"\\\/\b\f\n\r\t"`},
		{"unicode", `"\u00e9\u6f22"`},
		{"pair", `"\ud83d\ude00"`},
		{"high", `"\ud800"`},
		{"low", `"\udfff"`},
		{"swapped", `"\ude00\ud83d"`},
		{"nul", `"\u0000"`},
		{"raw", `"é漢😀"`},
		{"separators", "\"\u2028\u2029\""},
		{"slash", `"<\/script>"`},
		{"del", "\"\x7f\u0080\""},
		{"bomtext", "\"\ufeff\""},
	}

	valueVocabulary  = newVocabulary(append(names(values), repeatedNames()...))
	inputVocabulary  = newVocabulary(append(append(names(values), repeatedNames()...), names(broken)...))
	numberVocabulary = newVocabulary(jsonNumbers)
	stringVocabulary = newVocabulary(names(jsonStrings))
)

// maxRepeat bounds the number that a repeated value takes.
const maxRepeat = 3000

func repeatedNames() []string {
	var n []string
	for _, p := range repeated {
		n = append(n, p.name)
	}
	return n
}

// InputNames are the names of all productions of inputs.
func InputNames() []string { return inputVocabulary.names }

// maxJSONDepth is how deep productions nest; deeparr and deepobj go deeper by themselves.
const maxJSONDepth = 8

// Input is a generated input.
type Input struct {
	Text  []byte
	Words []string
	Used  []string
	// Plain says that nothing is deep, long or wide: every sandbox with the
	// default limits must take it.
	Plain bool
}

// Document is the document of in, in names.
func (in *Input) Document() []byte { return Join(in.Words...) }

// JSON decodes a document to the text of one input, which may be no JSON at all.
func JSON(data []byte) (*Input, error) {
	words, err := Split(data)
	if err != nil {
		return nil, err
	}
	r := &reader{words: words}
	in := &Input{Text: []byte(inputText(r)), Plain: true}
	in.Words = r.canon
	seen := map[string]bool{}
	for _, w := range in.Words {
		if _, ok := inputVocabulary.index[w]; ok && !seen[w] {
			seen[w] = true
			in.Used = append(in.Used, w)
		}
		for _, p := range repeated {
			in.Plain = in.Plain && p.name != w
		}
	}
	return in, nil
}

// inputText is one value, broken ones among them.
func inputText(r *reader) string { return jsonValue(r, 0, false) }

// jsonValue is one value at a depth; valid leaves out what is no JSON.
func jsonValue(r *reader, depth int, valid bool) string {
	if !r.more() || depth > maxJSONDepth {
		return "null"
	}
	v := inputVocabulary
	if valid || depth > 1 { // damage deep inside would leave little that is valid
		v = valueVocabulary
	}
	switch i := r.name(v, 0); {
	case i < len(values):
		return fill(r, values[i].text, depth, valid)
	case i < len(values)+len(repeated):
		return repeated[i-len(values)].make(r.count(maxRepeat))
	default:
		return fill(r, broken[i-len(values)-len(repeated)].text, depth, valid)
	}
}

func fill(r *reader, text string, depth int, valid bool) string {
	var b strings.Builder
	for {
		at := strings.IndexByte(text, '%')
		if at < 0 {
			b.WriteString(text)
			return b.String()
		}
		b.WriteString(text[:at])
		switch text[at+1] {
		case 'j':
			b.WriteString(jsonValue(r, depth+1, valid))
		case 'n':
			b.WriteString(r.number(numberVocabulary))
		case 'k':
			b.WriteString(jsonStrings[r.name(stringVocabulary, 0)].text)
		}
		text = text[at+2:]
	}
}
