// Package typescript turns TypeScript into JavaScript by removing its types,
// for engine.Spec.Transpile. It checks no types and lowers no syntax to older
// JavaScript.
//
// Supported besides types: enums, namespaces, parameter properties, and
// decorators (lowered, since QuickJS has none). Not supported: JSX, and enums
// whose members are computed from strings. The completion value of a program
// survives, with two exceptions: a namespace with values is an expression
// statement and so becomes the completion value, and a statement that is a
// constant built from a function or an object literal, such as
// "typeof function() {}", leaves none.
//
// Scripts are untrusted, and the parser that does the work (esbuild's)
// recurses on the Go stack and cannot be stopped, so a scan comes first. It
// bounds how deeply the parser can recurse and how much it can repeat or
// produce, by counting rather too much than too little. What it refuses, it
// refuses as a fault of the script, by line and column.
package typescript

import (
	"context"
	"fmt"
	"runtime"

	"github.com/evanw/esbuild/pkg/api"

	"github.com/sandbed/sandbed/engine"
)

// MaxSourceBytes bounds a source, in bytes. Time grows with its length times
// the square of MaxDepth at worst.
const MaxSourceBytes = 256 << 10

// Transpiler is an engine.Transpiler. Its zero value is ready and safe for
// concurrent use.
type Transpiler struct{}

var _ engine.Transpiler = Transpiler{}

// running bounds the parsers that run at once in this process, those whose
// callers have gone included.
var running = make(chan struct{}, runtime.GOMAXPROCS(0))

// Transpile removes the types of s. Name and kind stay as they are. The error
// is an *engine.ScriptError with reason NotTranspilable, line and column, or
// the cause of ctx. When ctx ends Transpile returns; the parser, which cannot
// be stopped, ends later.
//
// Lines and columns in the JavaScript are not those of the source: stacks of a
// running script refer to the JavaScript, which is one line.
func (Transpiler) Transpile(ctx context.Context, s engine.Script) (engine.Script, error) {
	if n := len(s.Source); n > MaxSourceBytes {
		return s, &engine.ScriptError{Reason: engine.NotTranspilable,
			Message: fmt.Sprintf("the TypeScript source of %d bytes is too long: shorten it to %d, or give JavaScript", n, MaxSourceBytes)}
	}
	found := scan(s.Source)
	if found.problem != "" {
		return s, found.failure(s.Source)
	}
	select {
	case running <- struct{}{}:
	case <-ctx.Done():
		return s, context.Cause(ctx)
	}
	done := make(chan api.TransformResult, 1)
	go func() {
		defer func() { <-running }()
		r := api.Transform(found.edited(s.Source), options(s.Name))
		if len(r.Errors) > 0 && len(found.inserts) > 0 {
			// Places must be those of the source, and an insert must not be at fault.
			r = api.Transform(s.Source, options(s.Name))
		}
		done <- r
	}()
	var r api.TransformResult
	select {
	case r = <-done:
	case <-ctx.Done():
		return s, context.Cause(ctx)
	}
	if len(r.Errors) > 0 {
		return s, syntax(r.Errors[0])
	}
	s.Source = string(r.Code)
	return s, nil
}

func options(name string) api.TransformOptions {
	return api.TransformOptions{
		Loader:     api.LoaderTS,
		Target:     api.ESNext,
		Sourcefile: name,
		Supported:  map[string]bool{"decorators": false},
		// Nothing is dropped, renamed or moved.
		TreeShaking: api.TreeShakingFalse,
		TsconfigRaw: `{"compilerOptions":{"verbatimModuleSyntax":true}}`,
		// Indentation would make the output grow with the square of the depth.
		MinifyWhitespace: true,
		LegalComments:    api.LegalCommentsNone,
		Charset:          api.CharsetUTF8,
		LogLevel:         api.LogLevelSilent,
		LogLimit:         1,
	}
}
