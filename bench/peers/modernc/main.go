// Command modernc serves modernc.org/quickjs to bench/peers.
package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"modernc.org/quickjs"

	"github.com/sandbed/sandbed/bench/peers"
	"github.com/sandbed/sandbed/engine"
)

func main() {
	peers.Serve(peers.Peer{
		Info: peers.Info{
			Name: "modernc", Version: "v0.27.0 (libquickjs v0.14.0: Bellard's QuickJS " + quickjs.Version() + " as Go)",
			Settings: "a VM an evaluation; SetEvalTimeout, SetMemoryLimit; stack as it comes; Interrupt when cancelled; memory and stack guards are known by the text of the error, since it offers nothing else",
			Docs:     "https://pkg.go.dev/modernc.org/quickjs",
		},
		Open: func(context.Context) (engine.Backend, error) { return peers.Fresh(eval), nil },
	})
}

// evaluation is one VM with the clock of its script.
type evaluation struct {
	vm    *quickjs.VM
	ctx   context.Context
	wall  time.Duration
	armed time.Time // zero before the script
	peer  quickjs.Value
}

func eval(ctx context.Context, r engine.Request) engine.Outcome {
	vm, err := quickjs.NewVM()
	if err != nil {
		return engine.Outcome{Class: engine.ClassEngineFault, Message: err.Error()}
	}
	defer vm.Close()
	defer context.AfterFunc(ctx, vm.Interrupt)()
	vm.SetMemoryLimit(uintptr(r.Limits.MemoryBytes))
	e := &evaluation{vm: vm, ctx: ctx, wall: r.Limits.WallClock}
	if _, err := vm.Eval(peers.Prelude, quickjs.EvalGlobal); err != nil {
		return e.failed(err)
	}
	if e.peer, err = vm.EvalValue("$peer", quickjs.EvalGlobal); err != nil {
		return e.failed(err)
	}
	defer e.peer.Free()
	if r.Input != nil {
		if _, err := e.call("seed", string(r.Input)); err != nil {
			o := e.failed(err)
			if o.DuringSeed = true; o.Guard == engine.Memory {
				o.Class, o.Guard = engine.ClassInputTooLarge, ""
			}
			return o
		}
	}
	e.armed = time.Now()
	if r.OnScriptStart != nil {
		r.OnScriptStart(e.armed)
	}
	o := e.script(peers.Plain(r.Script))
	if o.Class == engine.ClassOK && r.OnFinished != nil {
		r.OnFinished(time.Now())
	}
	return o
}

// script evaluates in four calls, each with what is left of the time.
func (e *evaluation) script(source string) engine.Outcome {
	if !e.left() {
		return e.late()
	}
	v, err := e.vm.EvalValue(source, quickjs.EvalGlobal)
	if err != nil {
		return e.failed(err)
	}
	defer v.Free()
	if !e.left() {
		return e.late()
	}
	if _, err := e.call("settle", v); err != nil {
		return e.failed(err)
	}
	for {
		if !e.left() {
			return e.late()
		}
		n, err := e.vm.ExecutePendingJobs()
		if err != nil {
			return e.failed(err)
		}
		if n == 0 {
			break
		}
	}
	if !e.left() {
		return e.late()
	}
	text, err := e.call("dump")
	switch text := text.(type) {
	case string:
		return engine.Outcome{Class: engine.ClassOK, Value: []byte(text)}
	case quickjs.Undefined:
		return engine.Outcome{Class: engine.ClassOK}
	}
	if err != nil {
		return e.failed(err)
	}
	return engine.Outcome{Class: engine.ClassResultNotSerializable, Message: "the result is no JSON"}
}

// left gives the next call what is left of the time; false if nothing is.
func (e *evaluation) left() bool {
	d := e.wall - time.Since(e.armed)
	if d <= 0 {
		return false
	}
	return e.vm.SetEvalTimeout(d) == nil
}

func (e *evaluation) late() engine.Outcome {
	return engine.Outcome{Class: engine.ClassLimit, Guard: engine.WallClock, Message: "the time was over between two calls"}
}

func (e *evaluation) call(name string, args ...any) (any, error) {
	atom, err := e.vm.NewAtom(name)
	if err != nil {
		return nil, err
	}
	f, err := e.peer.GetPropertyValue(atom)
	if err != nil {
		return nil, err
	}
	defer f.Free()
	return f.Call(quickjs.UndefinedValue, args...)
}

func (e *evaluation) failed(err error) engine.Outcome {
	o := engine.Outcome{Class: engine.ClassScriptError, Message: err.Error()}
	var thrown *quickjs.Error
	if errors.As(err, &thrown) {
		o.JSStack = thrown.Stack
	}
	guard := func(g engine.Guard) { o.Class, o.Guard = engine.ClassLimit, g }
	switch {
	case strings.Contains(o.Message, "interrupted") && e.ctx.Err() != nil:
		o.Class = engine.ClassCanceled
	case strings.Contains(o.Message, "interrupted") && !e.armed.IsZero() && time.Since(e.armed) >= e.wall:
		guard(engine.WallClock)
	case strings.Contains(o.Message, "out of memory"):
		guard(engine.Memory)
	case strings.Contains(o.Message, "stack overflow"):
		guard(engine.Stack)
	}
	return o
}
