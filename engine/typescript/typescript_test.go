package typescript

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/sandbed/sandbed/bench/timing"
	"github.com/sandbed/sandbed/engine"
)

// shape is a way to make the parser recurse: pre, rep n times, mid, rep2 n times, post.
type shape struct{ name, pre, rep, mid, rep2, post string }

func (s shape) source(n int) string {
	return s.pre + strings.Repeat(s.rep, n) + s.mid + strings.Repeat(s.rep2, n) + s.post
}

var shapes = []shape{
	{"paren", "", "(", "1", ")", ""},
	{"paren open", "", "(", "", "", ""},
	{"bracket", "", "[", "", "]", ""},
	{"brace", "", "{", "", "}", ""},
	{"obj", "x=", "{a:", "1", "}", ""},
	{"tmpl", "", "`${", "1", "}`", ""},
	{"not", "", "!", "1", "", ""},
	{"minus", "", "- ", "1", "", ""},
	{"typeof", "", "typeof ", "1", "", ""},
	{"cond", "", "a?b:", "1", "", ""},
	{"cond2", "", "a?", "1", ":b", ""},
	{"elseif", "", "if(a)b;else ", "c", "", ""},
	{"if", "", "if(a)", "c", "", ""},
	{"arrow", "", "a=>", "1", "", ""},
	{"arrowp", "", "(a)=>", "1", "", ""},
	{"asyncarrow", "", "async a=>", "1", "", ""},
	{"assign", "", "a=", "1", "", ""},
	{"pow", "", "a**", "1", "", ""},
	{"new", "", "new ", "a", "", ""},
	{"await", "async()=>{", "await ", "1", "", "}"},
	{"yield", "function*f(){", "yield ", "1", "", "}"},
	{"dot", "a", ".b", "", "", ""},
	{"idx", "a", "[0]", "", "", ""},
	{"call", "a", "()", "", "", ""},
	{"tag", "a", "``", "", "", ""},
	{"optchain", "a", "?.b", "", "", ""},
	{"nonnull", "a", "!", "", "", ""},
	{"nonnulldot", "a", "!.b", "", "", ""},
	{"plus", "1", "+1", "", "", ""},
	{"plusstr", "'a'", "+'b'", "", "", ""},
	{"comma", "1", ",1", "", "", ""},
	{"nullish", "a", "??b", "", "", ""},
	{"or", "a", "||b", "", "", ""},
	{"lt", "a", "<b", "", "", ""},
	{"as", "a", " as b", "", "", ""},
	{"assertion", "", "<a>", "b", "", ""},
	{"label", "", "a:", "b", "", ""},
	{"for", "", "for(;;)", "b", "", ""},
	{"while", "", "while(a)", "b", "", ""},
	{"do", "", "do ", "b", ";while(a)", ""},
	{"with", "", "with(a)", "b", "", ""},
	{"generic", "let a:", "A<", "b", ">", ""},
	{"genericexpr", "a", "<A", "", ">", "()"},
	{"ltexpr", "x=a", "<a<b", "", "", ""},
	{"keyof", "let a:", "keyof ", "b", "", ""},
	{"condtype", "type a=", "A extends B?C:", "b", "", ""},
	{"condtype2", "type a=", "A extends B?", "b", ":c", ""},
	{"infer", "type a=", "A extends infer ", "b", "", ""},
	{"inferext", "type a=", "A extends infer B extends ", "b", "", ""},
	{"fntype", "type a=", "()=>", "b", "", ""},
	{"newtype", "type a=", "new()=>", "b", "", ""},
	{"parentype", "type a=", "(", "b", ")", ""},
	{"union", "type a=", "a|", "b", "", ""},
	{"objtype", "type a=", "{a:", "b", "}", ""},
	{"tmpltype", "type a=", "`${", "b", "}`", ""},
	{"tuple", "type a=", "[", "b", "]", ""},
	{"arrtype", "type a=b", "[]", "", "", ""},
	{"import type", "type a=", "typeof import('a')<", "b", ">", ""},
	{"isx", "function f(a):", "a is ", "b", "", "{}"},
	{"asserts", "function f(a):", "asserts ", "b", "", "{}"},
	{"ns", "namespace a", ".a", "", "", "{export let x=1}"},
	{"nsnest", "", "namespace a{", "export let x=1", "}", ""},
	{"declare", "", "declare ", "let a", "", ""},
	{"abstract", "", "abstract ", "class a{}", "", ""},
	{"export", "", "export ", "let a", "", ""},
	{"classext", "x=", "class extends ", "a", "{}", ""},
	{"class", "x=", "class{a=", "1", "}", ""},
	{"fn", "x=", "function(){return ", "1", "}", ""},
	{"arrowbody", "x=", "()=>{return ", "1", "}", ""},
	{"importeq", "import x=a", ".b", "", "", ";x"},
	{"deco", "", "@a ", "class b{}", "", ""},
	{"decoparen", "", "@(", "a", ") class b{}", ""},
	{"pattern", "let ", "[", "a", "]", "=b"},
	{"patternobj", "let ", "{a:", "a", "}", "=b"},
	{"patdef", "let ", "{a=", "1", "}=b", ""},
	{"spread", "x=", "[...", "a", "]", ""},
	{"argdef", "x=", "(a=", "1", ")=>1", ""},
	{"argtype", "x=", "(a:", "b", ")=>c", ""},
	{"condparen", "x=", "a?(b):", "c", "", ""},
	{"condarrow", "x=", "a?(b)=>", "c", ":d", ""},
	{"condarrow2", "x=", "a?(b):c=>", "d", "", ""},
	{"condarrow3", "x=", "a?(b,", "c", "):d", ""},
	{"arrowret", "x=", "(a):b=>", "1", "", ""},
	{"asyncparen", "x=", "async(", "a", ")", ""},
	{"asyncgen", "x=", "async<T>(a)=>", "1", "", ""},
	{"genarrow", "x=", "<T>(a)=>", "1", "", ""},
	{"genarrowp", "x=", "<T>(a=", "1", ")=>1", ""},
	{"asyncgenp", "x=", "async<T>(a=", "1", ")=>1", ""},
	{"genargs", "x=f", "<T>(f", "1", ")", ""},
	{"ltparen", "x=a", "<(a", "", ")", ""},
	{"ltbrace", "x=a", "<{a:b", "", "}", ""},
	{"fntypeparen", "let x:", "(a:", "b", ")=>c", ""},
	{"fntypeparen2", "let x:", "(a?:", "b", ")=>c", ""},
	{"parenfnargs", "let x:", "((a", "", ")=>c)", ""},
	{"ctypeparen", "type a=", "(A extends infer B extends ", "b", "?c:d)", ""},
	{"inferparen", "type a=", "A extends (infer B extends ", "b", ")?c:d", ""},
	{"mapped", "type a=", "{[a in ", "b", "]:c}", ""},
	{"idxtype", "type a=b", "[c", "", "]", ""},
	{"typeofgen", "type a=", "typeof a<", "b", ">", ""},
	{"switch", "", "switch(a){case 1:", "b", "}", ""},
	{"try", "", "try{", "b", "}finally{}", ""},
	{"import()", "x=", "import(", "'a'", ")", ""},
	{"enum", "", "enum a{b=", "1", "}", ""},
	{"regexcls", "x=/", "[", "", "]", "/"},
	{"regexp", "x=/", "(", "", ")", "/"},
	{"regexv", "x=/", "[", "", "]", "/v"},
	{"ltpluschain", "x=", "a<b>c+", "1", "", ""},
	{"newgen", "x=", "new a<b,", "1", "", ""},
	{"delete", "", "delete ", "a.b", "", ""},
	{"in", "a", " in b", "", "", ""},
	{"instof", "a", " instanceof b", "", "", ""},
	{"privin", "", "#a in ", "b", "", ""},
	{"destrassign", "", "[a]=", "b", "", ""},
	{"destrassign2", "", "({a:", "b", "}=c)", ""},
	{"destr3", "", "[a=", "b", "]=c", ""},
	{"optcall", "a", "?.()", "", "", ""},
	{"stmtsemi", "", "a;", "", "", ""},
	{"letc", "let a", ",a1=1", "", "", ""},
	{"enumc", "enum A{a", ",a1", "", "", "}"},
	{"using", "", "using a=", "b", "", ""},
}

// more are the shapes that hide from a simple count.
var more = []shape{
	{"template in a template", "", "`a${`b${", "1", "}`}`", ""},
	{"brackets behind strings", "", "(')',", "1", ")", ""},
	{"brackets behind regexps", "", "(/[)]/,", "1", ")", ""},
	{"brackets behind comments", "", "(/*)*/", "1", ")", ""},
	{"brackets behind line comments", "", "(//)\n", "1", ")", ""},
	{"brackets behind html comments", "", "(a<!--)\n+", "1", ")", ""},
	{"brackets behind html ends", "", "(1,\n-->)\n", "1", ")", ""},
	{"brackets behind escapes", "", `('\')',`, "1", ")", ""},
	{"brackets behind a regexp after a block", "", "({b(){}/)/g}\n,", "1", ")", ""},
	{"brackets behind a division", "", "(a/b)/(", "1", ")", ""},
	{"regexp after if", "", "if(a)/[(]/.b;else ", "1", "", ""},
	{"blocks behind strings", "", "{'}';b;", "1", "}", ""},
	{"blocks behind continued strings", "", "{'\\\n}';b;", "1", "}", ""},
	{"blocks behind escapes", "", `{'\'}';b;`, "1", "}", ""},
	{"blocks behind templates", "", "{`}`;b;", "1", "}", ""},
	{"blocks behind template ends", "", "{`${a}}`;b;", "1", "}", ""},
	{"blocks behind regexps", "", "{/}/.a;b;", "1", "}", ""},
	{"blocks behind classes in regexps", "", "{/[/}]/.a;b;", "1", "}", ""},
	{"blocks behind regexps after a type", "", "{type a=b\n/}/.c;b;", "1", "}", ""},
	{"blocks behind regexps after if", "", "{if(a)/}/.c;b;", "1", "}", ""},
	{"blocks behind regexps after a block", "", "{{}/}/.c;b;", "1", "}", ""},
	{"blocks behind regexps after return", "", "()=>{return/}/.c;b;", "1", "}", ""},
	{"blocks behind divisions", "", "{a!/b;'/}';c;", "1", "}", ""},
	{"blocks behind comments", "", "{/*}*/b;", "1", "}", ""},
	{"blocks behind line comments", "", "{//}\nb;", "1", "}", ""},
	{"blocks behind separators in comments", "", "{//\u2028a;//}\nb;", "1", "}", ""},
	{"blocks behind html comments", "", "{a<!--}\nb;", "1", "}", ""},
	{"blocks behind html ends", "", "{a\n-->}\nb;", "1", "}", ""},
	{"generics with commas", "let a:", "A<b,", "c", ">", ""},
	{"operators in generics with commas", "let a:", "keyof A<b,", "c", ">", ""},
	{"labels with commas", "", "a:a1:", "b,function(){}", "", ""},
	{"statements under a comma", "", "if(a)if(b)c,function(){", "1", "}", ""},
	{"blocks in else", "", "if(a){}else ", "1", "", ""},
	{"if in else in loops", "", "if(a)b;else while(c)", "1", "", ""},
	{"unfinished else on new lines", "", "if(a)b\nelse ", "1", "", ""},
	{"assignments over braces", "", "a={}.b=", "1", "", ""},
	{"arrows over braces", "", "a=>b({},", "1", ")", ""},
	{"calls on new lines", "a", "\n()", "", "", ""},
	{"members on new lines", "a", "\n.b", "", "", ""},
	{"escaped names", "", `\u{61}=`, "1", "", ""},
	{"names beyond ASCII", "", "é=", "1", "", ""},
	{"no-break spaces", "", "!\u00a0", "1", "", ""},
	{"line separators", "", "!\u2028", "1", "", ""},
	{"class fields", "", "class A{a=", "class{}", "}", ""},
	{"computed members", "", "({[", "1", "]:1})", ""},
	{"optional types", "let a:", "[b?,", "c", "]", ""},
	{"conditional arrows in blocks", "x=", "a?(b):c=>{return ", "1", "}:d", ""},
	{"conditional async arrows", "x=", "a?async(b):c=>", "1", ":d", ""},
	{"conditional arrows in calls", "x=", "a?(b):c=>f(", "1", "):d", ""},
	{"conditional generic arrows", "x=", "a?<T>(b):c=>", "1", ":d", ""},
	{"do with if", "", "do if(a)", "b", ";while(c)", ""},
	{"decorated classes", "", "@a class A{b=", "1", "}", ""},
}

// largest is the greatest n for which the scan lets s pass; 0 if none, -1 if
// it is above most.
func largest(s shape, most int) int {
	if scan(s.source(most)).problem == "" {
		return -1
	}
	lo, hi := 0, most
	for lo+1 < hi {
		if mid := (lo + hi) / 2; scan(s.source(mid)).problem == "" {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}

// flat are the shapes on which the parser loops instead of recursing, so that
// nothing needs to refuse them; they are tried at full length.
var flat = map[string]bool{"letc": true, "enumc": true, "stmtsemi": true, "comma": true, "regexcls": true, "regexp": true, "regexv": true}

const stackEnv = "TYPESCRIPT_TEST_STACK"

// A child process with a sixteenth of Go's stack transpiles every shape at the
// greatest size that the scan lets pass. A stack overflow would kill it.
func TestStackAtTheLimit(t *testing.T) {
	if os.Getenv(stackEnv) != "" {
		debug.SetMaxStack(64 << 20)
		for _, s := range append(shapes, more...) {
			n := largest(s, 60000/len(s.rep+s.rep2))
			if n < 0 {
				if !flat[s.name] {
					t.Errorf("%s: never refused", s.name)
				}
				n = 60000 / len(s.rep+s.rep2)
			}
			// What is left unfinished at any depth must not overflow either.
			for _, src := range []string{s.source(n), s.pre + strings.Repeat(s.rep, n), s.source(n) + "\n" + s.source(n)} {
				fmt.Fprintf(os.Stderr, "%s %d\n", s.name, n)
				_, _ = Transpiler{}.Transpile(context.Background(), engine.Script{Source: src})
			}
		}
		fmt.Fprintln(os.Stderr, "all done")
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestStackAtTheLimit$")
	cmd.Env = append(os.Environ(), stackEnv+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "all done") {
		t.Errorf("the child died (%v) at:\n%s", err, out[max(0, bytesIndexFatal(out)-200):min(len(out), bytesIndexFatal(out)+500)])
	}
}

func bytesIndexFatal(out []byte) int {
	if i := strings.Index(string(out), "goroutine stack exceeds"); i >= 0 {
		return i
	}
	return len(out)
}

// A million of anything that makes the parser recurse is refused by the scan.
func TestAMillionIsRefused(t *testing.T) {
	for _, s := range append(shapes, more...) {
		if flat[s.name] {
			continue
		}
		if f := scan(s.source(1_000_000 / len(s.rep+s.rep2))); f.problem == "" {
			t.Errorf("%s: not refused", s.name)
		}
		if f := scan(s.pre + strings.Repeat(s.rep, 1_000_000/len(s.rep))); f.problem == "" {
			t.Errorf("%s, unfinished: not refused", s.name)
		}
	}
}

// A comma inside type arguments ends nothing: what is before the "<" stays open.
func TestCommaInTypeArguments(t *testing.T) {
	const level = 100
	s := shape{pre: "let a:", rep: strings.Repeat("keyof ", level) + "A<b,", mid: "c", rep2: ">"}
	if n := largest(s, 1000); n < 1 || n*level > MaxDepth {
		t.Errorf("%d times %d operators pass, want less than %d in all", n, level, MaxDepth)
	}
}

// The scan itself takes time in proportion.
func TestScanIsLinear(t *testing.T) {
	for name, unit := range map[string]string{
		"data":      `{"a":[1,"b",null],c:{d:-1.5e3}},`,
		"divisions": "a=(b)/2;if(c)/d/.e;\n",
		"forks":     "if(a)/b/c/d/e/f/g\n;",
		"templates": "a(`b${c}d`);",
	} {
		timing.Growth{Name: name, N: 400, Power: 1, Prepare: func(n int) func() {
			src := "x=[" + strings.Repeat(unit, n) + "]"
			if name != "data" {
				src = strings.Repeat(unit, n)
			}
			return func() { scan(src) }
		}}.Check(t)
	}
}

func transpile(t testing.TB, src string) (string, error) {
	t.Helper()
	s, err := Transpiler{}.Transpile(t.Context(), engine.Script{Source: src, Name: "a.ts", Kind: engine.Detect})
	if err == nil && (s.Name != "a.ts" || s.Kind != engine.Detect) {
		t.Errorf("name and kind became %q, %q", s.Name, s.Kind)
	}
	return strings.TrimSuffix(s.Source, "\n"), err
}

func TestTranspile(t *testing.T) {
	tests := []struct{ in, want string }{
		{"", ""},
		{"1+1", "0,1+1;"},
		{"const a: number = 1; a", "const a=1;a;"},
		{"input.a!", "input.a;"},
		{"input as {a: string}", "input;"},
		{"<any>input", "input;"},
		{"input satisfies unknown", "input;"},
		{"interface A { b: string }\ntype C = A | null\ndeclare let d: C\n42", "42;"},
		{"42\ntype A = 1", "42;"},
		{"1;2", "1;2;"},
		{"'use strict';1", `"use strict";1;`},
		{"'use strict'", `"use strict";`},
		{"if(false){1}else{2}", "if(false){1}else{2}"},
		{"let unused = 1; function f() {} 3", "let unused=1;function f(){}3;"},
		{"({a: 1})", "({a:1});"},
		{"(x: number): number => x", "x=>x;"},
		{"export default 1", "export default 1;"},
		{"export default (input: {a: number}) => input.a", "export default input=>input.a;"},
		{"export default function f<T>(a: T): T { return a }", "export default function f(a){return a}"},
		{"import {a} from 'b'; 1", `import{a}from"b";1;`},
		{"class A { constructor(private x: number) {} }", "class A{constructor(x){this.x=x}x}"},
		{"abstract class A<T> { abstract f(): T; readonly b?: number = 1 }", "class A{b=1}"},
		{"enum A { B, C = 'x' } A.B", `var A=(A2=>{A2[A2["B"]=0]="B";A2["C"]="x";return A2})(A||{});0;`},
		{"const a = 'é\u2028'", `const a="é\u2028";`},
		{"a ??= b?.c ** 2n", "a??=b?.c**2n;"},
		{"await 1", "await 1;"},
		{"x = a / b / c", "x=a/b/c;"},
		{"/a[/]b/g.test(x)", "/a[/]b/g.test(x);"},
		{"using a = b", "using a=b;"},

		// What esbuild would compute and drop, though it may be the result.
		{"-1", "0,-1;"},
		{"x; -1", "x;0,-1;"},
		{"!0", "0,true;"},
		{"typeof 1", `0,"number";`},
		{"void 0", "0,void 0;"},
		{"'a' + 'b'", `0,"ab";`},
		{"('a' + 'b')", `0,"ab";`},
		{"1;-1;", "1;0,-1;"},
		{"if (input) { -1 } else { +2 }", "if(input){0,-1}else{0,2}"},
		{"if (input) -1; else +2", "if(input)0,-1;else 0,2;"},
		{"x\n!1\n", "x;0,false;"},
		{"do -1; while (x)", "do 0,-1;while(x);"},
		{"{}\n-1", "{}0,-1;"},
		{"for (;;) { break }\n-1", "for(;;){break}0,-1;"},
		{"-1 as number", "0,-1;"},
		{"undefined", "0,void 0;"},
		{"1; undefined", "1;0,void 0;"},
		{"NaN", "0,NaN;"},
		{"Infinity", "0,Infinity;"},
		// What must not be touched.
		{"x = {}\n-1", "x={}-1;"},
		{"f(a)\n-1", "f(a)-1;"},
		{"(a)\n-1", "a-1;"},
		{"x = [-1, 'a' + 'b']", `x=[-1,"ab"];`},
		{"type A = 'a' | 'b'\ntype B = -1\n1", "1;"},
		{"type A =\n  | 'a'\n  | 'b'\n1", "1;"},
		{"type A = { -readonly [k in keyof B]: 1 }\n2", "2;"},
		{"for (-1; false; -1) ;", "for(-1;false;-1);"},
		{"a ? -1 : +1", "a?-1:1;"},
		{"`${-1}`", "`${-1}`;"},
		{"!function () { x() }()", "!(function(){x()})();"},
		{"x = y\n/ 2 / 3", "x=y/2/3;"},
		{"a\n++\nb", "a;++b;"},
	}
	for _, tt := range tests {
		got, err := transpile(t, tt.in)
		if err != nil || got != tt.want {
			t.Errorf("%q:\n got %q, %v\nwant %q", tt.in, got, err, tt.want)
		}
	}
}

func TestDecoratorsAreLowered(t *testing.T) {
	got, err := transpile(t, "function d(c: any, k: any) {}\n@d class A { @d f() {} }\nnew A")
	if err != nil || strings.Contains(got, "@") || !strings.HasSuffix(got, "new A;") {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestErrors(t *testing.T) {
	tests := []struct {
		in           string
		line, column int
		message      string
	}{
		{"let a: = 1", 1, 8, "Unexpected"},
		{"1;\n  let é = ]", 2, 11, "Unexpected"},
		{"-1\nlet x = ;", 2, 9, "Unexpected"},
		{"-1; let x = ;", 1, 13, "Unexpected"},
		{"'abc", 1, 5, "Unterminated"},
		{"(", 1, 2, "end of file"},
		{"let a = 1; let a = 2", 1, 16, "already been declared"},
		{"<div/>", 1, 5, "Expected"},
		{"1;\n" + strings.Repeat("(", 200), 2, 114, "nested too deeply"},
		{"x\n=" + strings.Repeat("!", 2000), 2, 1024, "nested too deeply"},
	}
	for _, tt := range tests {
		_, err := transpile(t, tt.in)
		var e *engine.ScriptError
		if !errors.As(err, &e) || e.Reason != engine.NotTranspilable || e.Line != tt.line || e.Column != tt.column || !strings.Contains(e.Message, tt.message) {
			t.Errorf("%.40q: got %+v, want line %d, column %d, %q", tt.in, err, tt.line, tt.column, tt.message)
		}
		if !engine.ScriptFault(err) {
			t.Errorf("%.40q: a rewrite of the script would mend it", tt.in)
		}
	}
	if _, err := transpile(t, strings.Repeat(" ", MaxSourceBytes+1)); err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("got %v", err)
	}
	if _, err := transpile(t, strings.Repeat(" ", MaxSourceBytes)); err != nil {
		t.Error(err)
	}
}

// Sizes round the bound on nesting.
func TestDepth(t *testing.T) {
	for _, tt := range []struct {
		open, end string
		most      int
	}{{"(", ")", 113}, {"[", "]", 113}, {"`${", "}`", 113}} {
		s := shape{rep: tt.open, mid: "1", rep2: tt.end}
		if got := largest(s, 1000); got != tt.most {
			t.Errorf("%s: %d pass, want %d", tt.open, got, tt.most)
		}
		if _, err := transpile(t, s.source(tt.most)); err != nil {
			t.Errorf("%s: %v", tt.open, err)
		}
	}
}

// Honest sources are let through, however long.
func TestHonestSourcesPass(t *testing.T) {
	row := `  { name: "a", tags: ["x", 'y'], size: -1.5e3, at: new Date(2020, 1, 2), f: (a: number) => a / 2 },` + "\n"
	tests := map[string]string{
		"a table": "const rows: Row[] = [\n" + strings.Repeat(row, 2000) + "]\nrows",
		"an object": "export default {\n" + func() string {
			var b strings.Builder
			for i := range 9000 {
				fmt.Fprintf(&b, "k%d: %d,\n", i, i)
			}
			return b.String()
		}() + "}",
		"no semicolons":  strings.Repeat("const a = input.b.map(x => x / 2)\nfoo(a)\nif (a) {\n  b = a\n} else {\n  c()\n}\n", 1500),
		"semicolons":     strings.Repeat("let a: Array<Map<string, number>> = b < c ? [d] : e as any;\n", 3000),
		"a long switch":  "switch (a) {\n" + strings.Repeat("case 'b': c(); break;\n", 5000) + "}",
		"members":        "class A {\n" + strings.Repeat("  m(a: string): number { return a.length / 2 / 3 }\n", 3000) + "}",
		"interfaces":     strings.Repeat("interface A<T extends B<C>> { a: string; b?: Array<T>; c(d: number): void }\n", 2500),
		"else if":        strings.Repeat("if (a == 1) { b() } else if (a == 2) { c() } else { d() }\n", 3000),
		"templates":      strings.Repeat("a.push(`b ${c.d / 2} / ${e ? `f${g}` : ''}`);\n", 3000),
		"regexps":        strings.Repeat("a = b.replace(/[/'\"`]/g, '').match(/(\\/|\\))/) / 2\n", 3000),
		"union types":    "type A =\n" + strings.Repeat("  | 'b'\n", 400),
		"concatenations": "a = 'b'" + strings.Repeat(" + c", 400),
		"enums":          "enum A {\n" + strings.Repeat("", 1) + "B = 'b', C = 'c' }\n" + strings.Repeat("f(A.B);\n", 3000),
		"numeric enums":  "enum A { B = 1 << 2, C = B + 1, D }",
		"enum as a name": "x = [{ type: 'string', enum: ['a' + b] }, { a: 'b' + c }]",
		"else nesting":   "f(() => { " + strings.Repeat("if (a) { g(() => { ", 12) + "x ? (1) : (y => z)" + strings.Repeat(" }) } ", 12) + "})",
	}
	for name, src := range tests {
		if f := scan(src); f.problem != "" || len(f.inserts) > 0 {
			t.Errorf("%s: %v, %d inserts", name, f.failure(src), len(f.inserts))
		}
	}
	for _, name := range []string{"a table", "no semicolons", "numeric enums", "enum as a name"} {
		if _, err := transpile(t, tests[name]); err != nil && !strings.Contains(err.Error(), "already been declared") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Members of enums are inlined and computed, which could fill the memory.
func TestEnumsCannotGrow(t *testing.T) {
	doubling := "enum A{a='" + strings.Repeat("x", 100) + "'"
	for i := range 60 {
		doubling += fmt.Sprintf(",a%d=a%s+a%s", i+1, num(i), num(i))
	}
	for name, src := range map[string]string{
		"doubling":              doubling + "}",
		"doubling by templates": "enum A{a='x',b=`${a}${a}`,c=`${b}${b}`}",
		"over several":          "enum A{a='x'}enum B{a=A.a+A.a}",
		"repeated":              "enum A{a='" + strings.Repeat("x", 100000) + "'}" + strings.Repeat("A.a;", 10000),
		"repeated by const":     "const enum A{a=`" + strings.Repeat("x", 100000) + "`}" + strings.Repeat("A.a;", 10000),
	} {
		if f := scan(src); f.problem == "" || !strings.Contains(f.problem, "enum") {
			t.Errorf("%s: got %q, want a problem with an enum", name, f.problem)
		}
	}
}

func num(i int) string {
	if i == 0 {
		return ""
	}
	return fmt.Sprint(i)
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the user went away")
	cancel(why)
	// Every place is taken, so the only way out is the context.
	for range cap(running) {
		running <- struct{}{}
	}
	_, err := Transpiler{}.Transpile(ctx, engine.Script{Source: "1"})
	for range cap(running) {
		<-running
	}
	if !errors.Is(err, why) {
		t.Errorf("got %v, want the cause", err)
	}
}
