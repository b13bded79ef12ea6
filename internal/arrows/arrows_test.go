package arrows

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/sandbed/sandbed"

// A rule says what packages may not import. A pattern is an import path, or one
// that begins with "./" and is meant within the module; "/..." at its end means
// the whole tree; "std" means the standard library.
type rule struct {
	pkg    string   // whom it binds
	except []string // packages that pkg matches and the rule does not bind
	only   []string // if set: all that may be imported
	not    []string // what may not be imported
	reason string
}

var rules = []rule{
	{pkg: "./engine", only: []string{"std"},
		reason: "any sandbox can implement the contract without a dependency"},
	{pkg: "./...", except: []string{"./engine/quickjs"}, not: []string{"github.com/tetratelabs/wazero/..."},
		reason: "engine/quickjs is the only importer of wazero: everything else must run any engine"},
	{pkg: "./...", except: []string{"./engine/quickjs", "./engine/quickjs/..."}, not: []string{"github.com/aperturerobotics/..."},
		reason: "the pinned QuickJS build belongs to engine/quickjs: its slots and offsets are known nowhere else"},
	{pkg: "./engine/quickjs/meter", not: []string{"./..."},
		reason: "the rewriter is a pure function from bytes to bytes"},
	{pkg: "./...", except: []string{"./cmd/benchrun", "./engine/quickjs"}, not: []string{"./engine/quickjs"},
		reason: "suites, benchmarks and commands take a factory, so that other people's sandboxes can be put through them"},
	{pkg: "./...", except: []string{"./engine/shape"}, not: []string{"github.com/santhosh-tekuri/jsonschema/..."},
		reason: "JSON Schema stays behind engine/shape"},
	{pkg: "./...", except: []string{"./engine/typescript"}, not: []string{"github.com/evanw/esbuild/..."},
		reason: "esbuild stays behind engine/typescript"},
	{pkg: "./pool", not: []string{"github.com/tetratelabs/wazero/...", "./engine/quickjs/...", "./engine/enginetest", "./bench/...", "./reports"},
		reason: "pool must run any engine"},
	{pkg: "./pool/...", not: []string{"./engine/quickjs/...", "./reports", "./bench", "./bench/command"},
		reason: "workers and their suites take a factory, so that other people's VMs can be put in them"},
	{pkg: "./...", except: []string{"./pool/...", "./cmd/benchrun"}, not: []string{"./pool"},
		reason: "a backend is a backend: only who opens one knows that it is a pool"},
	{pkg: "./...", except: []string{"./pool/internal/..."}, not: []string{"github.com/landlock-lsm/...", "github.com/elastic/go-seccomp-bpf/...", "kernel.org/pub/linux/libs/security/libcap/..."},
		reason: "hardening stays behind pool"},
	{pkg: "./engine/enginetest", not: []string{"./engine/quickjs/...", "./bench/command", "./reports"},
		reason: "the suite judges any Backend and knows none"},
	{pkg: "./demux", only: []string{"std", "golang.org/x/sys/..."},
		reason: "a demultiplexer is wanted where nothing else of this project is"},
	{pkg: "./demux/demuxtest", not: []string{"./engine/...", "./pool/...", "./bench", "./bench/command", "./reports"},
		reason: "the suite judges any demultiplexer"},
	{pkg: "./bench/stat", not: []string{"./..."},
		reason: "statistics know nothing of what they are about"},
	{pkg: "./bench/gate", only: []string{"std", "./bench/sample", "./bench/stat", "golang.org/x/perf/benchfmt"},
		reason: "a verdict is a pure function of what was recorded"},
	{pkg: "./bench/gate/gatetest", only: []string{"std", "./bench/gate", "./bench/sample", "./bench/stat"},
		reason: "the streams judge any gate"},
	{pkg: "./bench/compare", not: []string{"./reports", "./bench/command", "gonum.org/v1/plot/..."},
		reason: "measuring does not know how its samples are shown"},
	{pkg: "./bench/sample", only: []string{"std"},
		reason: "the leaf that bench writes and reports reads"},
	{pkg: "./bench/loop", only: []string{"std"},
		reason: "the meter must not bring work of its own into the window it measures"},
	{pkg: "./bench/timing", not: []string{"./engine/quickjs/...", "./reports", "./bench", "./bench/command"},
		reason: "tests of every package use it, so it may depend on none of them"},
	{pkg: "./bench", not: []string{"./reports", "./bench/command", "gonum.org/v1/plot/..."},
		reason: "measuring does not know how its samples are shown"},
	{pkg: "./reports", not: []string{"./bench", "./bench/command", "./bench/compare", "./engine/...", "os/exec"},
		reason: "reports reads samples; it starts no process and evaluates nothing"},
	{pkg: "./...", except: []string{"./reports"}, not: []string{"gonum.org/v1/plot/..."},
		reason: "plots are drawn in one place"},
	{pkg: "./...", except: []string{"./bench/command"}, not: []string{"github.com/alecthomas/kong"},
		reason: "the command line is bench/command's"},
	{pkg: "./...", except: []string{"./cmd/benchrun"}, not: []string{"./bench/command"},
		reason: "data flows cmd/benchrun → bench/command → bench → engine"},
}

// pkg is what the go command says of a package.
type pkg struct {
	Dir, ImportPath string
	GoFiles         []string
	Imports         []string
}

func list(t *testing.T) []pkg {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=Dir,ImportPath,GoFiles,Imports", module+"/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var pkgs []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
	if len(pkgs) == 0 {
		t.Fatal("go list found no packages")
	}
	return pkgs
}

// matches says whether the import path is one that the pattern means.
func matches(pattern, importPath string) bool {
	if pattern == "std" {
		first, _, _ := strings.Cut(importPath, "/")
		return !strings.Contains(first, ".")
	}
	if inside, ok := strings.CutPrefix(pattern, "./"); ok {
		pattern = module + "/" + inside
	}
	if tree, ok := strings.CutSuffix(pattern, "/..."); ok {
		return importPath == tree || strings.HasPrefix(importPath, tree+"/")
	}
	return importPath == pattern
}

// check returns one line for every import that breaks a rule, and for every
// rule that binds no package: a rule about nothing guards nothing.
func check(pkgs []pkg, rules []rule) []string {
	any := func(patterns []string, importPath string) bool {
		return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, importPath) })
	}
	var broken []string
	for _, r := range rules {
		bound := 0
		for _, p := range pkgs {
			if !matches(r.pkg, p.ImportPath) || any(r.except, p.ImportPath) {
				continue
			}
			bound++
			for _, imp := range p.Imports {
				if r.only != nil && !any(r.only, imp) || any(r.not, imp) {
					broken = append(broken, fmt.Sprintf("%s imports %s: %s", p.ImportPath, imp, r.reason))
				}
			}
		}
		if bound == 0 {
			broken = append(broken, fmt.Sprintf("the rule for %q binds no package (%s)", r.pkg, r.reason))
		}
	}
	return broken
}

func TestImports(t *testing.T) {
	for _, line := range check(list(t), rules) {
		t.Error(line)
	}
}

// TestCheckCanFail plants imports and rules that must be found.
func TestCheckCanFail(t *testing.T) {
	planted := func(from string, imports ...string) []pkg {
		return []pkg{{ImportPath: module + "/" + from, Imports: imports}}
	}
	for _, c := range []struct {
		name string
		pkgs []pkg
		rule rule
		want int
	}{
		{"a module where only std may be", planted("engine", "fmt", "github.com/x/y"), rule{pkg: "./engine", only: []string{"std"}}, 1},
		{"our own where only std may be", planted("engine", module+"/bench"), rule{pkg: "./engine", only: []string{"std"}}, 1},
		{"std where only std may be", planted("engine", "fmt", "encoding/json"), rule{pkg: "./engine", only: []string{"std"}}, 0},
		{"a package inside a forbidden tree", planted("bench", "github.com/tetratelabs/wazero/api"), rule{pkg: "./...", not: []string{"github.com/tetratelabs/wazero/..."}}, 1},
		{"a forbidden package of our own", planted("bench", module+"/engine/quickjs"), rule{pkg: "./bench", not: []string{"./engine/quickjs"}}, 1},
		{"a neighbour with the same beginning", planted("bench", module+"/engine/quickjsx"), rule{pkg: "./bench", not: []string{"./engine/quickjs"}}, 0},
		{"a forbidden package of std", planted("reports", "os/exec"), rule{pkg: "./reports", not: []string{"os/exec"}}, 1},
		{"an excepted package", planted("reports", "os/exec"), rule{pkg: "./...", except: []string{"./reports"}, not: []string{"os/exec"}}, 1},
		{"a rule about nothing", planted("reports"), rule{pkg: "./nowhere"}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := check(c.pkgs, []rule{c.rule}); len(got) != c.want {
				t.Errorf("got %d broken arrows %q, want %d", len(got), got, c.want)
			}
		})
	}
}

// clocks are the functions of package time that read or start a clock.
var clocks = []string{"Now", "Since", "Until", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick", "Sleep"}

// clockReads returns where the Go source reads a clock.
func clockReads(t *testing.T, name string, src any) []string {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, src, 0)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if id, ok := s.X.(*ast.Ident); ok && id.Name == "time" && slices.Contains(clocks, s.Sel.Name) {
				found = append(found, fmt.Sprintf("%s: time.%s", fset.Position(n.Pos()), s.Sel.Name))
			}
		}
		return true
	})
	return found
}

// TestReportsReadsNoClock: a report of the same samples is the same report.
func TestReportsReadsNoClock(t *testing.T) {
	if got := clockReads(t, "planted.go", "package p\nimport \"time\"\nvar t = time.Now()\n"); len(got) != 1 {
		t.Fatalf("the check found %q in a file that reads the clock once", got)
	}
	read := 0
	for _, p := range list(t) {
		if p.ImportPath != module+"/reports" {
			continue
		}
		for _, f := range p.GoFiles {
			read++
			for _, line := range clockReads(t, filepath.Join(p.Dir, f), nil) {
				t.Error(line)
			}
		}
	}
	if read == 0 {
		t.Fatal("no source file of reports found")
	}
}
