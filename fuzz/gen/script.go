package gen

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/engine/enginetest"
)

// Bounds of a generated script: text in bytes, productions, and how deep they nest.
const (
	maxText  = 24 << 10
	maxNodes = 250
	maxDepth = 10
)

// stack is small where a case does not want it large: one overflow of the default
// megabyte takes tens of milliseconds, since the native stack grows by copying.
const stack = 160 << 10

// limits by name. Every one but clock is bounded by fuel, which is
// the same on any machine; the wall clocks only end what fuel did not.
var limits = []struct {
	name   string
	limits engine.Limits
}{
	{"limits/quick", engine.Limits{WallClock: time.Second, Fuel: 200_000, MemoryBytes: 4 << 20, StackBytes: stack}},
	{"limits/little-fuel", engine.Limits{WallClock: time.Second, Fuel: 3_000, MemoryBytes: 4 << 20, StackBytes: stack}},
	{"limits/much-fuel", engine.Limits{WallClock: time.Second, Fuel: 2_000_000, MemoryBytes: 4 << 20, StackBytes: stack}},
	{"limits/much-memory", engine.Limits{WallClock: time.Second, Fuel: 500_000, MemoryBytes: 32 << 20}},
	{"limits/little-memory", engine.Limits{WallClock: time.Second, Fuel: 200_000, MemoryBytes: engine.MinMemoryBytes}},
	{"limits/little-stack", engine.Limits{WallClock: time.Second, Fuel: 200_000, MemoryBytes: 4 << 20, StackBytes: engine.MinStackBytes}},
	{"limits/little-output", engine.Limits{WallClock: time.Second, Fuel: 200_000, MemoryBytes: 4 << 20, MaxOutputBytes: 64, StackBytes: stack}},
	{"limits/one-byte", engine.Limits{WallClock: time.Second, Fuel: 200_000, MemoryBytes: 4 << 20, MaxOutputBytes: 1, StackBytes: stack}},
	{"limits/clock", engine.Limits{WallClock: 2 * time.Millisecond, MemoryBytes: 4 << 20}},
}

// LimitNames are the names that a document can give for its limits; the first
// is the default.
func LimitNames() []string {
	var names []string
	for _, l := range limits {
		names = append(names, l.name)
	}
	return names
}

// Program is a generated script with its limits and its input.
type Program struct {
	Request engine.Request
	// Words is the document with every word replaced by what it stands for: it
	// decodes to the same program.
	Words []string
	// Used are the productions, each once.
	Used []string
}

// Document is the document of p, in names.
func (p *Program) Document() []byte { return Join(p.Words...) }

// scriptGrammar is every production of scripts; the corpus of enginetest is part of it.
type scriptGrammar struct {
	statements, expressions []production
	snippets                []production // the cases of the corpus, as string literals
	stmt, expr, snippet     *vocabulary
	text, number, directive *vocabulary
	small                   map[byte]*vocabulary
	cases                   map[string]enginetest.Case
}

var scripts = sync.OnceValue(func() *scriptGrammar {
	g := &scriptGrammar{statements: slices.Clone(statements), expressions: slices.Clone(expressions), cases: map[string]enginetest.Case{}}
	for _, c := range enginetest.Cases() {
		g.cases[c.ID] = c
		if len(c.JS) <= maxText/4 {
			g.snippets = append(g.snippets, production{c.ID, quoteJS(c.JS)})
		}
	}
	g.stmt, g.expr = newVocabulary(names(g.statements)), newVocabulary(names(g.expressions))
	g.snippet = newVocabulary(names(g.snippets))
	g.text, g.number = newVocabulary(names(texts)), newVocabulary(numberNames)
	g.directive = newVocabulary(append(LimitNames(), "input", "kind/program", "kind/module"))
	g.small = map[byte]*vocabulary{}
	for letter, list := range map[byte][]string{'v': variableNames, 'B': builtinNames, 'E': errorNames, 'T': typedNames, 'm': methodNames,
		'r': reflectNames, 'M': mathNames, 'b': boolNames} {
		g.small[letter] = newVocabulary(list)
	}
	return g
})

func names(list []production) []string {
	n := make([]string, len(list))
	for i, p := range list {
		n[i] = p.name
	}
	return n
}

// quoteJS is s as a JavaScript string literal.
func quoteJS(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic("gen: " + err.Error()) // no string fails
	}
	return string(b)
}

// ScriptNames are the names of all productions of scripts: statements,
// expressions and limits. The names of [CaseNames] are not among them.
func ScriptNames() []string {
	g := scripts()
	return slices.Concat(names(g.statements), names(g.expressions), g.directive.names)
}

// CaseNames are the cases of the corpus that scripts are made of.
func CaseNames() []string { return scripts().snippet.names }

// prologue gives every variable something to be.
const prologue = `var a=1,b="b",c=[1,2,3],d={x:1,y:[2]},e=function(x){return x},f=null,$r,$q;`

// Script decodes a document to a script: statements until the words run out.
// A document of one word that names a case of the corpus, besides limits, is
// that case itself, with its first input and kind.
func Script(data []byte) (*Program, error) {
	words, err := Split(data)
	if err != nil {
		return nil, err
	}
	g := scripts()
	b := &scriptBuilder{g: g, reader: reader{words: words}, used: map[string]bool{}}
	b.limits = limits[0].limits
	for {
		for b.directives() {
		}
		if !b.more() || b.full() {
			break
		}
		if c, ok := g.cases[b.words[0]]; ok && len(b.words) == 1 && b.out.Len() == 0 {
			b.whole(c)
			break
		}
		b.statement(0)
		b.out.WriteByte('\n')
	}
	p := &Program{Words: b.canon}
	for name := range b.used {
		p.Used = append(p.Used, name)
	}
	slices.Sort(p.Used)
	source := b.out.String()
	if !b.bare {
		source = prologue + "\n" + source
	}
	p.Request = engine.Request{Script: engine.Script{Source: source, Kind: b.kind}, Input: b.input, Limits: b.limits}
	return p, nil
}

type scriptBuilder struct {
	reader
	g      *scriptGrammar
	out    strings.Builder
	nodes  int
	used   map[string]bool
	limits engine.Limits
	input  json.RawMessage
	kind   engine.Kind
	bare   bool
}

// directives takes one directive, if the next word is one.
func (b *scriptBuilder) directives() bool {
	i, ok := b.directive(b.g.directive)
	if !ok {
		return false
	}
	name := b.g.directive.names[i]
	b.used[name] = true
	switch name {
	case "input":
		b.input = json.RawMessage(inputText(&b.reader))
	case "kind/program":
		b.kind = engine.Program
	case "kind/module":
		b.kind = engine.Module
	default:
		b.limits = limits[i].limits
	}
	return true
}

// whole makes the script a case of the corpus itself.
func (b *scriptBuilder) whole(c enginetest.Case) {
	b.used[c.ID], b.bare = true, true
	b.canon = append(b.canon, c.ID)
	b.kind = c.Kind
	b.out.WriteString(c.JS)
	if len(c.Inputs) == 0 || b.input != nil {
		return
	}
	if raw, ok := c.Inputs[0].Value.(json.RawMessage); ok && json.Valid(raw) && len(raw) <= 1<<20 {
		b.input = raw
	}
}

// full says that the script has grown to its bounds.
func (b *scriptBuilder) full() bool { return b.nodes > maxNodes || b.out.Len() > maxText }

func (b *scriptBuilder) statement(depth int) {
	if !b.more() || depth > maxDepth || b.full() {
		b.out.WriteString(leafStatement)
		return
	}
	b.expand(b.g.statements[b.name(b.g.stmt, 0)], depth)
}

func (b *scriptBuilder) expression(depth int) {
	if !b.more() || depth > maxDepth || b.full() {
		b.out.WriteString(leafExpression)
		return
	}
	b.expand(b.g.expressions[b.name(b.g.expr, 0)], depth)
}

// expand writes a production, its holes filled by the words that follow.
func (b *scriptBuilder) expand(p production, depth int) {
	b.nodes++
	b.used[p.name] = true
	text := p.text
	for {
		at := strings.IndexByte(text, '%')
		if at < 0 {
			b.out.WriteString(text)
			return
		}
		b.out.WriteString(text[:at])
		hole := text[at+1]
		text = text[at+2:]
		switch hole {
		case '%':
			b.out.WriteByte('%')
		case 'e':
			b.expression(depth + 1)
		case 's':
			b.statement(depth + 1)
		case 'n':
			b.out.WriteString(b.number(b.g.number))
		case 't':
			b.out.WriteString(texts[b.name(b.g.text, 0)].text)
		case 'c':
			i := b.name(b.g.snippet, 0)
			b.used[b.g.snippet.names[i]] = true
			b.out.WriteString(b.g.snippets[i].text)
		case 'j':
			b.out.WriteString(jsonValue(&b.reader, 2, true))
		case 'm', 'r', 'M':
			v := b.g.small[hole]
			b.out.WriteString(strconv.Quote(v.names[b.name(v, 0)]))
		default:
			v := b.g.small[hole]
			b.out.WriteString(v.names[b.name(v, 0)])
		}
	}
}
