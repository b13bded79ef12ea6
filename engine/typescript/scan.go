package typescript

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/evanw/esbuild/pkg/api"

	"github.com/sandbed/sandbed/engine"
)

// MaxDepth bounds the depth of a source: an arrow counts 24, an open bracket 9,
// a function 8, a "<" 4, every other token of the open statements 1, since
// chains without brackets make the parser recurse too ("!!!!a", "a = b = c",
// "else if"). So brackets nest up to 113 deep, callbacks with a body 24 deep,
// and a statement may have about a thousand tokens between two commas.
//
// The parser took at most 8 KiB of stack a token, measured with esbuild 0.28.2,
// so that a source at the limit takes 8 MiB of the 1 GiB that Go allows.
// TestStackAtTheLimit holds a margin of 16.
const MaxDepth = 1024

const (
	nestCost  = 8
	scopeCost = 24 // the time of nested arrows and namespaces grows fastest
	angleCost = 4  // each may begin type arguments, and is read again if not
	// maxRepeat bounds arrow functions open in the middle of a conditional: the
	// parser reads the body of each twice, so the work doubles with each level.
	maxRepeat = 4
	// maxCommas bounds a sequence that may be a comma expression, whose cost is
	// quadratic. Arrays and object literals are not bounded.
	maxCommas = 1000
	// maxInlined bounds what string members of enums may add to the output, in bytes.
	maxInlined = 4 << 20
	// maxReadings bounds how many readings of a source are followed at once,
	// where a slash may be a division or begin a regular expression.
	maxReadings = 8
)

// found is what the scan says of a source.
type found struct {
	problem string // why it is refused; empty if it is not
	at      int    // where, in bytes
	inserts []int  // where "0," goes, ascending
}

func (f found) failure(src string) *engine.ScriptError {
	before := src[:f.at]
	line := 1 + strings.Count(before, "\n")
	column := 1 + utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:])
	return &engine.ScriptError{Reason: engine.NotTranspilable, Message: f.problem, Line: line, Column: column}
}

// guard goes before a statement that is a constant expression. esbuild would
// compute it and then drop the statement, though its value may be the result.
const guard = "0,"

func (f found) edited(src string) string {
	if len(f.inserts) == 0 {
		return src
	}
	var b strings.Builder
	last := 0
	for _, at := range f.inserts {
		b.WriteString(src[last:at])
		b.WriteString(guard)
		last = at
	}
	b.WriteString(src[last:])
	return b.String()
}

// syntax is esbuild's error as a failure of the script.
func syntax(m api.Message) *engine.ScriptError {
	e := &engine.ScriptError{Reason: engine.NotTranspilable, Message: m.Text}
	if len(e.Message) > 1000 {
		e.Message = strings.ToValidUTF8(e.Message[:1000], "") + "…"
	}
	if l := m.Location; l != nil {
		e.Line, e.Column = l.Line, 1+utf8.RuneCountInString(l.LineText[:min(max(l.Column, 0), len(l.LineText))])
	}
	return e
}

// token is what a token means to the scan.
type token struct {
	kind byte   // 'w' word, 'n' number, 's' string, 't' end of a template, 'r' regexp, else the punctuator's first byte; 0 at the start
	text string // of words and punctuators
	// control is set on the ")" of an if, for, while or with, block on the "}" of a block.
	control, block bool
}

// ends reports whether an expression may end with t.
func (t token) ends() bool {
	switch t.kind {
	case 'n', 's', 't', 'r', ']', '}':
		return true
	case ')':
		return !t.control
	case 'w':
		return !keywords[t.text]
	}
	return false
}

// level is an open bracket.
type level struct {
	open  byte // '(' '[' '{', '$' for a template's ${, 0 for the file
	base  int  // depth outside, this bracket included
	chain int  // tokens since the last comma or statement
	hard  int  // those of them, and of the statement, that a comma does not end
	angle bool // hard has a "<"
	// comma counts commas since the last statement.
	comma   int
	control bool // "(" of an if, for, while or with
	block   bool // "{" that begins a block, as far as can be told
	enum    bool // "{" of an enum
	// questions and arrow count "? (" and "=>" since the last comma or
	// statement; the others those that are open outside this bracket.
	questions, arrow           int
	outerQuestions, outerArrow int
}

// reading is one way to read the source up to pos.
type reading struct {
	pos       int
	levels    []level
	prev, pre token // the last token, and the one before it
	newline   bool  // between prev and pos
	// ended says that a statement ended with prev unless the next token goes on with it.
	ended   bool
	run     run
	inserts []int
	dotted  bool // inside the name of a namespace
}

// run is a statement that so far is made of constants and operators alone.
type run struct {
	start, ops, depth int
	on                bool
}

func set(words string) map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields(words) {
		m[w] = true
	}
	return m
}

var (
	// keywords are words that need not end an expression.
	keywords = set(`abstract accessor as asserts assert async await break case catch class const continue debugger declare
		default delete do else enum export extends finally for from function get global if implements import in infer
		instanceof interface is keyof let module namespace new of out override package private protected public readonly
		require return satisfies set static switch throw try type typeof unique using var void while with yield`)
	// joins are words that go on with what is before them.
	joins = set(`as assert catch else extends finally from implements in instanceof is of satisfies while with`)
	hard  = set(`if for while do with else`)
	// values are words before an expression.
	values  = set(`await case default delete in instanceof new of return throw typeof void yield`)
	unary   = set(`typeof void`)
	literal = set(`true false null undefined NaN Infinity`)
	folded  = set(`undefined NaN Infinity`) // names to the engine, constants to esbuild
	casts   = set(`as satisfies const number string boolean any unknown`)
)

var punctuators = []string{">>>=", "...", "===", "!==", "**=", "<<=", ">>=", ">>>", "&&=", "||=", "??=", "=>", "==", "!=", "<=", ">=",
	"&&", "||", "??", "?.", "++", "--", "+=", "-=", "*=", "%=", "&=", "|=", "^=", "<<", ">>", "**"}

// scanner is the state that all readings share. It only ever grows, so that
// what any reading meets counts.
type scanner struct {
	src        string
	out        found
	tokens     int
	enumString int // longest string in an enum, in bytes
	enumAt     int // its place
	enumGrows  int // place of an expression in an enum that may join strings; -1 for none
}

// scan bounds what the parser can make of src.
func scan(src string) found {
	s := &scanner{src: src, enumGrows: -1}
	readings := []*reading{{levels: []level{{block: true}}, newline: true}}
	var whole []*reading
	for len(readings) > 0 && s.out.problem == "" {
		// The reading that is furthest behind goes on, so that readings meet.
		at := 0
		for i, r := range readings {
			if r.pos < readings[at].pos {
				at = i
			}
		}
		r := readings[at]
		for i, other := range readings {
			if i != at && other.merge(r) {
				readings = slices.Delete(readings, at, at+1)
				r = nil
				break
			}
		}
		if r == nil {
			continue
		}
		fork, alive := s.step(r)
		if alive && r.pos >= len(src) {
			r.finish()
			whole = append(whole, r)
			alive = false
		}
		if !alive {
			readings = slices.Delete(readings, at, at+1)
		}
		if fork != nil {
			if readings = append(readings, fork); len(readings) > maxReadings {
				s.fail(fork.pos, "too many slashes may each be a division or begin a regular expression: put each on a line of its own")
			}
		}
	}
	if s.out.problem == "" && s.enumGrows >= 0 && s.enumString > 0 {
		s.fail(s.enumGrows, "an enum is computed from strings, which is not supported: write the strings out")
	}
	if s.out.problem == "" && s.enumString*s.tokens > maxInlined {
		s.fail(s.enumAt, "a string in an enum is too long for how often it may be used: use a const for it")
	}
	// Where readings differ the parser will tell them apart; only what both
	// would guard is guarded.
	if s.out.problem == "" && len(whole) > 0 {
		s.out.inserts = whole[0].inserts
		for _, r := range whole[1:] {
			if !slices.Equal(r.inserts, s.out.inserts) {
				s.out.inserts = nil
			}
		}
	}
	return s.out
}

func (s *scanner) fail(at int, problem string) {
	if s.out.problem == "" {
		s.out.problem, s.out.at = problem, min(at, len(s.src))
	}
}

// merge lets r stand for other too if both are at the same place in the same
// brackets. It keeps the greater counts.
func (r *reading) merge(other *reading) bool {
	if r.pos != other.pos || r.prev != other.prev || r.newline != other.newline || r.ended != other.ended ||
		r.dotted != other.dotted || r.run != other.run || len(r.levels) != len(other.levels) ||
		!slices.Equal(r.inserts, other.inserts) {
		return false
	}
	for i := range r.levels {
		a, b := r.levels[i], other.levels[i]
		if a.open != b.open || a.control != b.control || a.block != b.block || a.enum != b.enum {
			return false
		}
	}
	for i := range r.levels {
		a, b := &r.levels[i], other.levels[i]
		a.base, a.chain, a.hard = max(a.base, b.base), max(a.chain, b.chain), max(a.hard, b.hard)
		a.comma, a.angle = max(a.comma, b.comma), a.angle || b.angle
		a.questions, a.arrow = max(a.questions, b.questions), max(a.arrow, b.arrow)
		a.outerQuestions, a.outerArrow = max(a.outerQuestions, b.outerQuestions), max(a.outerArrow, b.outerArrow)
	}
	return true
}

func (r *reading) top() *level { return &r.levels[len(r.levels)-1] }

// step reads one token, or one stretch of space or comment. It returns another
// reading where there is one, and whether r still stands: the parser ends at
// the first error, so a reading that meets one needs no further bound.
func (s *scanner) step(r *reading) (fork *reading, alive bool) {
	src, at := s.src, r.pos
	rest := src[at:]
	if rest == "" {
		return nil, true
	}
	c := rest[0]
	switch {
	case c == '\n' || c == '\r':
		r.pos, r.newline = at+1, true
		return nil, true
	case c == ' ' || c == '\t' || c == '\v' || c == '\f':
		r.pos = at + 1
		return nil, true
	case at == 0 && strings.HasPrefix(rest, "#!"),
		strings.HasPrefix(rest, "//"), strings.HasPrefix(rest, "<!--"), r.newline && strings.HasPrefix(rest, "-->"):
		r.pos = at + lineEnd(rest)
		return nil, true
	case strings.HasPrefix(rest, "/*"):
		n := strings.Index(rest[2:], "*/")
		if n < 0 {
			return nil, false
		}
		if strings.ContainsAny(rest[:n], "\n\r\u2028\u2029") {
			r.newline = true
		}
		r.pos = at + 2 + n + 2
		return nil, true
	case c == '"' || c == '\'':
		n := stringEnd(rest)
		if n < 0 {
			return nil, false
		}
		s.inEnum(r, at, n)
		s.take(r, token{kind: 's'}, at, n)
		return nil, true
	case c == '`':
		return nil, s.template(r, at, at+1)
	case c >= '0' && c <= '9', c == '.' && len(rest) > 1 && rest[1] >= '0' && rest[1] <= '9':
		s.take(r, token{kind: 'n'}, at, numberEnd(rest))
		return nil, true
	}
	if n, space, newline := wordEnd(rest); n > 0 {
		if space {
			r.pos, r.newline = at+n, r.newline || newline
			return nil, true
		}
		s.take(r, token{kind: 'w', text: rest[:n]}, at, n)
		return nil, true
	}
	if c == '/' {
		regexp := regexpEnd(rest)
		division := true
		switch {
		case r.prev.kind == 0, !r.prev.ends() && !r.mayBoth():
			division = false
		case r.prev.ends() && !r.newline && r.prev.kind != '}':
			regexp = -1 // nothing but a division can be here
		}
		if regexp > 0 {
			as := r
			if division {
				as = r.clone()
				fork = as
			}
			s.take(as, token{kind: 'r'}, at, regexp)
		} else if !division {
			return nil, false
		}
		if division {
			n := 1
			if strings.HasPrefix(rest, "/=") {
				n = 2
			}
			s.take(r, token{kind: '/', text: "/"}, at, n)
		}
		return fork, true
	}
	text := rest[:1]
	for _, p := range punctuators {
		if strings.HasPrefix(rest, p) {
			text = p
			break
		}
	}
	if text == "?." && len(rest) > 2 && rest[2] >= '0' && rest[2] <= '9' {
		text = "?"
	}
	return nil, s.take(r, token{kind: text[0], text: text}, at, len(text))
}

// mayBoth reports whether a slash after prev, which ends no expression as far
// as can be told, may be a division all the same.
func (r *reading) mayBoth() bool {
	switch r.prev.kind {
	case ')', 'w': // a word may be a name, and a keyword after a dot is one
		return true
	case '!', '>':
		return true // a! / b, a as B<c> / d
	case '+', '-':
		return r.prev.text == "++" || r.prev.text == "--"
	}
	return false
}

func (r *reading) clone() *reading {
	c := *r
	c.levels, c.inserts = slices.Clone(r.levels), slices.Clone(r.inserts)
	return &c
}

// template reads the text of a template from pos to its end or to its next "${".
func (s *scanner) template(r *reading, start, pos int) bool {
	for i := pos; i < len(s.src); i++ {
		switch s.src[i] {
		case '\\':
			i++
		case '`':
			s.inEnum(r, start, i+1-start)
			return s.take(r, token{kind: 't'}, start, i+1-start)
		case '$':
			if i+1 < len(s.src) && s.src[i+1] == '{' {
				s.inEnum(r, start, i+2-start)
				s.grows(r, i)
				return s.take(r, token{kind: '$', text: "${"}, start, i+2-start)
			}
		}
	}
	return false
}

// inEnum notes a string of n bytes.
func (s *scanner) inEnum(r *reading, at, n int) {
	if r.inside() && n > s.enumString {
		s.enumString, s.enumAt = n, at
	}
}

// grows notes an expression that may join strings.
func (s *scanner) grows(r *reading, at int) {
	if r.inside() && s.enumGrows < 0 {
		s.enumGrows = at
	}
}

// inside reports whether the reading is in the body of an enum.
func (r *reading) inside() bool {
	return slices.ContainsFunc(r.levels, func(l level) bool { return l.enum })
}

// take counts the token t of n bytes at at. It reports whether r still stands.
func (s *scanner) take(r *reading, t token, at, n int) bool {
	s.tokens++
	l := r.top()

	// A statement is over where the next token cannot go on with it.
	word := t.kind == 'w' || t.kind == 'n' || t.kind == 's'
	over := r.ended && !joins[t.text] ||
		word && !joins[t.text] && (r.prev.kind == '}' || r.newline && r.prev.ends())
	starts := over || r.prev.kind == 0 || r.prev.kind == '{' && l.block && t.text != "}" ||
		r.prev.control || r.prev.kind == '}' && r.prev.block ||
		r.prev.kind == 'w' && (r.prev.text == "else" || r.prev.text == "do") ||
		r.newline && r.prev.ends() && (t.text == "!" || t.text == "~")
	if over {
		r.closeRun()
		l.chain, l.hard, l.angle, l.comma, l.questions, l.arrow = 0, 0, false, 0, 0, 0
	}
	r.ended = false
	r.track(t, at, starts && (l.open == 0 || l.open == '{'))

	cost, isHard := 1, false
	switch {
	case t.kind == 'w' && hard[t.text]:
		isHard = true
	case t.text == "function":
		cost = nestCost
	case t.text == "=>":
		cost = scopeCost
		l.arrow++
	case t.kind == '<':
		cost, isHard, l.angle = angleCost*len(t.text), true, true
	case t.text == "." && r.dotted:
		cost = scopeCost
	case t.text == ":" && r.prev.kind == 'w' && r.beforeLabel():
		isHard = true
	case t.text == "+":
		s.grows(r, at)
	}
	if r.prev.text == "?" && (t.kind == '(' || t.kind == '<' || t.text == "async") {
		l.questions++
	}
	switch t.text {
	case "namespace", "module":
		r.dotted = r.prev.text != "."
	case "{", ";":
		r.dotted = false
	}
	if isHard {
		l.hard += cost
	} else {
		l.chain += cost
	}

	switch t.kind {
	case '(', '[', '{', '$':
		inner := level{open: t.kind, base: l.base + l.chain + l.hard + nestCost,
			outerQuestions: l.outerQuestions + l.questions, outerArrow: l.outerArrow + l.arrow}
		switch t.kind {
		case '(':
			inner.control = r.prev.kind == 'w' && hard[r.prev.text] || r.prev.text == "await" && r.pre.text == "for"
		case '{':
			inner.block = r.opensBlock()
			inner.enum = r.prev.kind == 'w' && r.pre.text == "enum"
		}
		r.levels = append(r.levels, inner)
		l = r.top()
	case ')', ']', '}':
		if len(r.levels) == 1 || !pairs(l.open, t.kind) {
			return false
		}
		t.control, t.block = l.control, l.block
		from := l.open
		r.levels = r.levels[:len(r.levels)-1]
		l = r.top()
		l.chain++
		if from == '$' {
			// The text of the template goes on.
			r.prev, r.newline = token{kind: '$', text: "}"}, false
			return s.template(r, at, at+1)
		}
	case ',':
		if l.comma++; l.comma > maxCommas && (l.open == '(' || l.open == 0 || l.open == '{' && l.block) {
			s.fail(at, fmt.Sprintf("more than %d commas in one statement or call: use an array", maxCommas))
		}
		if !l.angle {
			l.chain, l.questions, l.arrow = 0, 0, 0
		}
	case ';':
		r.ended = true
	}
	if depth := l.base + l.chain + l.hard; depth > MaxDepth {
		s.fail(at, fmt.Sprintf("nested too deeply, or too long a statement (depth %d, at most %d): split it up", depth, MaxDepth))
	}
	if min(l.outerQuestions+l.questions, l.outerArrow+l.arrow) > maxRepeat {
		s.fail(at, "too many arrow functions inside conditional expressions: use functions or if")
	}
	r.pos, r.pre, r.prev, r.newline = at+n, r.prev, t, false
	return true
}

// opensBlock reports whether a "{" after prev begins a block or a body, as far
// as can be told; otherwise an object literal or an object type.
func (r *reading) opensBlock() bool {
	switch r.prev.kind {
	case 0, ';', '{', '}', ')':
		return true
	case 'w':
		return !values[r.prev.text]
	}
	return r.prev.text == "=>"
}

// beforeLabel reports whether the word before a ":" stands where a label may.
func (r *reading) beforeLabel() bool {
	switch r.pre.kind {
	case 0, ';', '{', '}', ')', ':':
		return true
	}
	return r.pre.text == "else" || r.pre.text == "do"
}

func pairs(open, end byte) bool {
	switch open {
	case '(':
		return end == ')'
	case '[':
		return end == ']'
	}
	return end == '}' && open != 0
}

// track follows statements made of constants and operators alone.
func (r *reading) track(t token, at int, starts bool) {
	depth := len(r.levels)
	if r.run.on && depth == r.run.depth && (t.kind == ';' || t.kind == '}') {
		r.closeRun()
		return
	}
	operator := !strings.ContainsRune("wnstr{}[]($):;,?.=@#", rune(t.kind)) || unary[t.text] || folded[t.text] || t.text == "==" || t.text == "==="
	constant := t.kind == 'n' || t.kind == 's' || t.kind == '(' || t.kind == ')' || literal[t.text]
	if !r.run.on {
		// "+" and "-" after a "}" that closed no block go on with it; "*" cannot start.
		prefix := t.kind == '-' && len(t.text) == 1 || t.kind == '+' && len(t.text) == 1 || t.kind == '!' || t.kind == '~' || unary[t.text]
		if starts && (prefix || constant && t.kind != ')') {
			r.run = run{start: at, depth: depth, on: true}
		}
	}
	switch {
	case !r.run.on:
	case operator:
		r.run.ops++
	case !constant && !casts[t.text]:
		r.run.on = false
	}
}

// closeRun guards the statement that ends here if it was a constant.
func (r *reading) closeRun() {
	if r.run.on && r.run.ops > 0 {
		r.inserts = append(r.inserts, r.run.start)
	}
	r.run = run{}
}

func (r *reading) finish() {
	if len(r.levels) == 1 {
		r.closeRun()
	}
}

// lineEnd is the length of the line that text begins with.
func lineEnd(text string) int {
	for i, c := range text {
		if c == '\n' || c == '\r' || c == '\u2028' || c == '\u2029' {
			return i
		}
	}
	return len(text)
}

// stringEnd is the length of the string that text begins with; -1 if it is not
// closed on its line.
func stringEnd(text string) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			if i++; i < len(text)-1 && text[i] == '\r' && text[i+1] == '\n' {
				i++
			}
		case '\n', '\r':
			return -1
		case text[0]:
			return i + 1
		}
	}
	return -1
}

// regexpEnd is the length of the regular expression that text begins with; -1
// if there is none.
func regexpEnd(text string) int {
	class := false
	for i, c := range text {
		if i == 0 {
			continue
		}
		if c == '\n' || c == '\r' || c == '\u2028' || c == '\u2029' {
			return -1
		}
		if text[i-1] == '\\' && odd(text[:i]) {
			continue
		}
		switch {
		case c == '[':
			class = true
		case c == ']':
			class = false
		case c == '/' && !class:
			n, space, _ := wordEnd(text[i+1:])
			if space {
				n = 0
			}
			return i + 1 + n
		}
	}
	return -1
}

// odd reports whether an odd number of backslashes ends text.
func odd(text string) bool {
	return (len(text)-len(strings.TrimRight(text, `\`)))%2 == 1
}

// numberEnd is the length of the number that text begins with, letters and all.
func numberEnd(text string) int {
	hex := len(text) > 1 && (text[1] == 'x' || text[1] == 'X')
	i := 1
	for ; i < len(text); i++ {
		c := text[i]
		digit := c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
		dot := c == '.' && i+1 < len(text) && text[i+1] >= '0' && text[i+1] <= '9' && !strings.Contains(text[:i], ".")
		sign := (c == '+' || c == '-') && !hex && (text[i-1] == 'e' || text[i-1] == 'E')
		if !digit && !dot && !sign {
			break
		}
	}
	return i
}

// wordEnd is the length of the word, or of the space beyond ASCII, that text
// begins with; 0 if there is none.
func wordEnd(text string) (n int, space, newline bool) {
	for n < len(text) {
		c := text[n]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c >= '0' && c <= '9' || c == '$' {
			n++
			continue
		}
		if c == '\\' && n+1 < len(text) && text[n+1] == 'u' {
			n += 2
			if n < len(text) && text[n] == '{' {
				end := strings.IndexByte(text[n:], '}')
				if end < 0 || end > 12 {
					return n, false, false
				}
				n += end + 1
			}
			continue
		}
		if c < utf8.RuneSelf {
			break
		}
		r, size := utf8.DecodeRuneInString(text[n:])
		if unicode.IsSpace(r) || r == '\ufeff' {
			if n == 0 {
				return size, true, r == '\u2028' || r == '\u2029'
			}
			break
		}
		n += size
	}
	return n, false, false
}
