// Command goja serves github.com/dop251/goja to bench/peers.
package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/dop251/goja"

	"github.com/sandbed/sandbed/bench/peers"
	"github.com/sandbed/sandbed/engine"
)

// callStack bounds the depth of calls. The default is none: recursion would go
// on until memory ends.
const callStack = 2000

func main() {
	peers.Serve(peers.Peer{
		Info: peers.Info{
			Name: "goja", Version: "v0.0.0-20260917113740-793a2a65c13b",
			Settings: "a Runtime an evaluation; Interrupt at the deadline; SetMaxCallStackSize(2000); time and random sources fixed; a memory limit does not exist",
			Docs:     "https://pkg.go.dev/github.com/dop251/goja",
		},
		Open: func(context.Context) (engine.Backend, error) { return peers.Fresh(eval), nil },
	})
}

// Compiled once, as a program that uses goja would.
var prelude = goja.MustCompile("prelude.js", peers.Prelude, true)

// deadline and cancelled are what a runtime is interrupted with.
type stop string

const (
	deadline  stop = "deadline"
	cancelled stop = "cancelled"
)

func eval(ctx context.Context, r engine.Request) engine.Outcome {
	vm := goja.New()
	vm.SetMaxCallStackSize(callStack)
	vm.SetTimeSource(func() time.Time { return time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) })
	vm.SetRandSource(rand.New(rand.NewPCG(1, 1)).Float64)
	defer context.AfterFunc(ctx, func() { vm.Interrupt(cancelled) })()

	if _, err := vm.RunProgram(prelude); err != nil {
		return failed(err)
	}
	peer := vm.Get("$peer").ToObject(vm)
	call := func(name string, args ...goja.Value) (goja.Value, error) {
		f, _ := goja.AssertFunction(peer.Get(name))
		return f(goja.Undefined(), args...)
	}
	if r.Input != nil {
		if _, err := call("seed", vm.ToValue(string(r.Input))); err != nil {
			o := failed(err)
			o.DuringSeed = true
			return o
		}
	}
	armed := time.Now()
	timer := time.AfterFunc(r.Limits.WallClock, func() { vm.Interrupt(deadline) })
	defer timer.Stop()
	if r.OnScriptStart != nil {
		r.OnScriptStart(armed)
	}
	name := r.Script.Name
	if name == "" {
		name = "script.js"
	}
	v, err := vm.RunScript(name, peers.Plain(r.Script))
	if err != nil {
		return failed(err)
	}
	if _, err := call("settle", v); err != nil { // runs the jobs too
		return failed(err)
	}
	v, err = call("dump")
	if err != nil {
		return failed(err)
	}
	o := engine.Outcome{Class: engine.ClassOK}
	switch {
	case goja.IsNull(v):
		return engine.Outcome{Class: engine.ClassResultNotSerializable, Message: "the result is no JSON"}
	case !goja.IsUndefined(v):
		o.Value = []byte(v.String())
	}
	if r.OnFinished != nil {
		r.OnFinished(time.Now())
	}
	return o
}

func failed(err error) engine.Outcome {
	var (
		interrupted *goja.InterruptedError
		overflow    *goja.StackOverflowError
		thrown      *goja.Exception
	)
	switch {
	case errors.As(err, &interrupted):
		if interrupted.Value() == cancelled {
			return engine.Outcome{Class: engine.ClassCanceled, Message: err.Error()}
		}
		return engine.Outcome{Class: engine.ClassLimit, Guard: engine.WallClock, Message: err.Error()}
	case errors.As(err, &overflow):
		return engine.Outcome{Class: engine.ClassLimit, Guard: engine.Stack, Message: err.Error()}
	case errors.As(err, &thrown):
		return engine.Outcome{Class: engine.ClassScriptError, Message: err.Error(), JSStack: thrown.String()}
	}
	return engine.Outcome{Class: engine.ClassScriptError, Message: err.Error()} // of the compiler
}
