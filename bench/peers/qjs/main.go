// Command qjs serves github.com/fastschema/qjs to bench/peers.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fastschema/qjs"

	"github.com/sandbed/sandbed/bench/peers"
	"github.com/sandbed/sandbed/engine"
)

const (
	version = "v0.0.6 (QuickJS-NG 0.10.1 on wazero v1.9.0)"
	docs    = "https://pkg.go.dev/github.com/fastschema/qjs"
	guards  = "memory and stack guards are known by the text of the error, since it offers nothing else"
)

func main() {
	peers.Serve(
		peers.Peer{
			Info: peers.Info{Name: "qjs", Version: version, Docs: docs,
				Settings: "a Runtime an evaluation; CloseOnContextDone and a Context that ends at the deadline; MemoryLimit; CacheDir; an empty CWD; " + guards},
			Open: open(true),
		},
		peers.Peer{
			Info: peers.Info{Name: "qjs-options", Version: version, Docs: docs,
				Settings: "its own options alone: a Runtime an evaluation; MaxExecutionTime and MemoryLimit; CacheDir; an empty CWD; " + guards},
			Open: open(false),
		},
	)
}

// sandbox holds what all evaluations share.
type sandbox struct {
	closeOnDone   bool
	cwd, cacheDir string
}

func open(closeOnDone bool) func(context.Context) (engine.Backend, error) {
	return func(context.Context) (engine.Backend, error) {
		s := &sandbox{closeOnDone: closeOnDone}
		dir, err := os.UserCacheDir()
		if err != nil {
			return nil, err
		}
		// The working directory is mounted into the guest, so it had better be empty.
		s.cacheDir, s.cwd = filepath.Join(dir, "sandbed-peer-qjs"), filepath.Join(dir, "sandbed-peer-qjs", "empty")
		if err := os.MkdirAll(s.cwd, 0o700); err != nil {
			return nil, err
		}
		// The compiled module keeps the context of the first Runtime, which must
		// therefore be one that never ends.
		rt, err := qjs.New(s.option(context.Background(), engine.Limits{}.WithDefaults()))
		if err != nil {
			return nil, err
		}
		rt.Close()
		return peers.Fresh(s.eval), nil
	}
}

func (s *sandbox) option(ctx context.Context, l engine.Limits) qjs.Option {
	o := qjs.Option{CWD: s.cwd, CacheDir: s.cacheDir, Context: ctx, CloseOnContextDone: s.closeOnDone,
		MemoryLimit: int(l.MemoryBytes), Stdout: io.Discard, Stderr: io.Discard}
	if !s.closeOnDone {
		o.MaxExecutionTime = int(l.WallClock.Milliseconds())
	}
	return o
}

var errDeadline = errors.New("deadline")

func (s *sandbox) eval(ctx context.Context, r engine.Request) (o engine.Outcome) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	// The library panics when a call into the guest fails. What ended the context
	// is our own act; any other panic is left to the server.
	var pages [2]uint32
	defer func() {
		p := recover()
		if p == nil && (o.Class == engine.ClassOK || context.Cause(ctx) == nil) {
			o.Usage.ImageBytes, o.Usage.PeakMemoryBytes = int64(pages[0]), int64(pages[1])
			return
		}
		text := o.Message
		if p != nil {
			text = fmt.Sprint("panic: ", p)
		}
		switch context.Cause(ctx) {
		case nil:
			panic(p)
		case errDeadline:
			o = engine.Outcome{Class: engine.ClassLimit, Guard: engine.WallClock, Message: text, Killed: true}
		default:
			o = engine.Outcome{Class: engine.ClassCanceled, Message: text, Killed: true}
		}
	}()
	rt, err := qjs.New(s.option(ctx, r.Limits))
	if err != nil {
		return engine.Outcome{Class: engine.ClassEngineFault, Message: err.Error()}
	}
	defer func() {
		// Close panics too once the module is closed, and for its own reasons.
		defer func() {
			if p := recover(); p != nil && context.Cause(ctx) == nil {
				o = engine.Outcome{Class: engine.ClassEngineFault, Message: fmt.Sprint("panic in Close: ", p), Killed: true}
			}
		}()
		rt.Close()
	}()
	pages[0] = rt.Mem().Size()
	defer func() { pages[1] = max(pages[0], rt.Mem().Size()) }()

	vm := rt.Context()
	if _, err := vm.Eval("prelude.js", qjs.Code(peers.Prelude), qjs.TypeGlobal()); err != nil {
		return failed(err)
	}
	peer := vm.Global().GetPropertyStr("$peer")
	if r.Input != nil {
		if _, err := peer.InvokeJS("seed", vm.NewString(string(r.Input))); err != nil {
			o := failed(err)
			if o.DuringSeed = true; o.Guard == engine.Memory {
				o.Class, o.Guard = engine.ClassInputTooLarge, ""
			}
			return o
		}
	}
	armed := time.Now()
	if s.closeOnDone {
		defer time.AfterFunc(r.Limits.WallClock, func() { end(errDeadline) }).Stop()
	}
	if r.OnScriptStart != nil {
		r.OnScriptStart(armed)
	}
	name := r.Script.Name
	if name == "" {
		name = "script.js"
	}
	v, err := vm.Eval(name, qjs.Code(peers.Plain(r.Script)), qjs.TypeGlobal())
	if err != nil {
		return failed(err)
	}
	if _, err := peer.InvokeJS("settle", v); err != nil {
		return failed(err)
	}
	// The one way to run jobs is to await a promise.
	turn := v
	if !v.IsPromise() {
		if turn, err = vm.Eval("turn.js", qjs.Code("Promise.resolve()"), qjs.TypeGlobal()); err != nil {
			return failed(err)
		}
	}
	if turn.IsPromise() {
		if _, err := turn.Await(); err != nil {
			return failed(err)
		}
	}
	text, err := peer.InvokeJS("dump")
	if err != nil {
		return failed(err)
	}
	o = engine.Outcome{Class: engine.ClassOK}
	switch {
	case text.IsNull():
		return engine.Outcome{Class: engine.ClassResultNotSerializable, Message: "the result is no JSON"}
	case !text.IsUndefined():
		o.Value = []byte(text.String())
	}
	if r.OnFinished != nil {
		r.OnFinished(time.Now())
	}
	return o
}

func failed(err error) engine.Outcome {
	message, stack, _ := strings.Cut(err.Error(), "\n")
	o := engine.Outcome{Class: engine.ClassScriptError, Message: message, JSStack: stack}
	guard := func(g engine.Guard) { o.Class, o.Guard = engine.ClassLimit, g }
	switch {
	case strings.Contains(message, "out of memory"):
		guard(engine.Memory)
	case strings.Contains(message, "stack overflow"), strings.Contains(message, "Maximum call stack size exceeded"):
		guard(engine.Stack)
	}
	return o
}
