package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/sandbed/sandbed/bench"
	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/engine/shape"
	"github.com/sandbed/sandbed/engine/typescript"
)

type evalCmd struct {
	Script    string  `required:"" placeholder:"FILE" help:"The script; - reads it from standard input."`
	Input     *string `placeholder:"FILE" help:"What the script sees as input: one JSON text. Without it input is undefined."`
	Lang      string  `default:"js" placeholder:"LANG" help:"js (default) or ts, whose types are removed first."`
	Memory    *string `placeholder:"SIZE" help:"Memory the script may use: 1MiB to 2GiB (default 32MiB)."`
	Wall      *string `placeholder:"TIME" help:"Time the script may take: 1ms to 24h (default 1s)."`
	Fuel      *string `placeholder:"N" help:"Metered operations the script may use (default: no bound). Needs metering."`
	Stack     *string `placeholder:"SIZE" help:"Stack of the VM: 64KiB to 64MiB (default 1MiB)."`
	MaxInput  *string `placeholder:"SIZE" help:"Longest input, as JSON text: 1B to 2GiB (default 32MiB)."`
	MaxOutput *string `placeholder:"SIZE" help:"Longest result, as JSON text: 1B to 2GiB (default 1MiB)."`
	Metering  *string `placeholder:"MODE" help:"on (default), off or close-on-done; the latter two exist to be compared with."`
	Shape     *string `placeholder:"FILE" help:"JSON Schema that the result must fit."`
	backendFlags
}

// Help is shown below the description.
func (evalCmd) Help() string {
	return `Prints one JSON object on one line: class, value, guard, killed, message, js_stack, failure (those that apply) and usage. Exit code 0 for class ok, 1 for any other.

Examples:

    benchrun eval --script reshape.js --input data.json --memory 32MiB --wall 50ms
    benchrun eval --script reshape.js --backend process
    echo '1+1' | benchrun eval --script -`
}

// evaluation is the line that eval prints.
type evaluation struct {
	Class   string          `json:"class"`
	Value   json.RawMessage `json:"value,omitempty"`
	Guard   engine.Guard    `json:"guard,omitempty"`
	Killed  bool            `json:"killed,omitempty"`
	Message string          `json:"message,omitempty"`
	JSStack string          `json:"js_stack,omitempty"`
	Failure string          `json:"failure,omitempty"`
	Usage   evalUsage       `json:"usage"`
}

type evalUsage struct {
	Fuel            int64 `json:"fuel"`
	MemoryPeakBytes int64 `json:"memory_peak_bytes"`
	ImageBytes      int64 `json:"image_bytes"`
	SeedNs          int64 `json:"seed_ns"`
	ScriptNs        int64 `json:"script_ns"`
	DumpNs          int64 `json:"dump_ns"`
	OverrunNs       int64 `json:"overrun_ns"`
}

func (c *evalCmd) Run(e *env, r *result) error {
	call, spec, opts, err := c.parse(e)
	if err != nil {
		return err
	}
	res, err := evaluate(e, call, spec, opts)
	out := describe(res, err)
	if out.Class != string(engine.ClassOK) {
		r.code = exitBroken
	}
	enc := json.NewEncoder(e.stdout)
	enc.SetEscapeHTML(false)
	return enc.Encode(out)
}

// parse turns the flags into a call; every flag is checked before anything runs.
func (c *evalCmd) parse(e *env) (call engine.Call, spec engine.Spec, opts bench.Options, err error) {
	fail := func(err error) (engine.Call, engine.Spec, bench.Options, error) {
		return engine.Call{}, engine.Spec{}, bench.Options{}, err
	}
	l := &spec.Limits
	for _, f := range []struct {
		flag   string
		given  *string
		into   *int64
		lo, hi int64
	}{
		{"--memory", c.Memory, &l.MemoryBytes, engine.MinMemoryBytes, engine.MaxMemoryBytes},
		{"--stack", c.Stack, &l.StackBytes, engine.MinStackBytes, engine.MaxStackBytes},
		{"--max-input", c.MaxInput, &l.MaxInputBytes, 1, engine.MaxMemoryBytes},
		{"--max-output", c.MaxOutput, &l.MaxOutputBytes, 1, engine.MaxMemoryBytes},
	} {
		if *f.into, err = parseSize(f.flag, f.given, f.lo, f.hi); err != nil {
			return fail(err)
		}
	}
	if l.WallClock, err = parseDuration("--wall", c.Wall, engine.MinWallClock, engine.MaxWallClock); err != nil {
		return fail(err)
	}
	if l.Fuel, err = parseCount("--fuel", c.Fuel, 1, 1<<62); err != nil {
		return fail(err)
	}
	if opts.Metering, err = metering(e.suite, c.Metering); err != nil {
		return fail(err)
	}
	if err = c.backendFlags.options(e.suite, &opts); err != nil {
		return fail(err)
	}
	if c.Fuel != nil && opts.Metering != e.suite.Metering() {
		return fail(&usage{"--fuel", *c.Fuel, fmt.Sprintf("needs --metering %s: with %s no fuel is counted", e.suite.Metering(), opts.Metering)})
	}
	// A request may only ask for less stack than the sandbox has.
	opts.StackBytes = l.StackBytes
	if err = oneOf("--lang", c.Lang, "js", "ts"); err != nil {
		return fail(err)
	}
	if c.Lang == "ts" {
		spec.Transpile = typescript.Transpiler{}
	}
	if c.Shape != nil {
		text, err := readFile("--shape", *c.Shape, nil)
		if err != nil {
			return fail(err)
		}
		if call.Shape, err = shape.Compile(text); err != nil {
			return fail(&usage{"--shape", *c.Shape, err.Error()})
		}
	}
	// A nil RawMessage in the interface is no input: see engine.Call.
	input, err := readInput(c.Input)
	if err != nil {
		return fail(err)
	}
	call.Input = input
	source, err := readFile("--script", c.Script, e.stdin)
	if err != nil {
		return fail(err)
	}
	call.Script.Source = string(source)
	if c.Script != "-" {
		call.Script.Name = filepath.Base(c.Script)
	}
	return call, spec, opts, nil
}

func evaluate(e *env, call engine.Call, spec engine.Spec, opts bench.Options) (engine.Result, error) {
	in, err := e.suite.Open(e.ctx, opts)
	if err != nil {
		return engine.Result{}, &engine.WorkerStartupError{Phase: engine.PhaseCompile, Err: err}
	}
	defer in.Close()
	sandbox, err := engine.NewSandbox(in.Backend, spec)
	if err != nil {
		return engine.Result{}, err
	}
	return sandbox.Eval(e.ctx, call)
}

// describe makes the line of what came out.
func describe(res engine.Result, err error) evaluation {
	u := res.Usage
	out := evaluation{Usage: evalUsage{u.Fuel, u.PeakMemoryBytes, u.ImageBytes, u.Seed.Nanoseconds(), u.Script.Nanoseconds(), u.Dump.Nanoseconds(), u.Overrun.Nanoseconds()}}
	out.Class, out.Failure = engine.Describe(err)
	if err == nil {
		out.Value = res.Value
		return out
	}
	out.Killed = res.Killed
	out.Message = err.Error()
	var script *engine.ScriptError
	var fault *engine.EngineFault
	var limit *engine.LimitExceeded
	switch {
	case errors.As(err, &script):
		out.Message, out.JSStack = script.Message, script.JSStack
	case errors.As(err, &fault):
		out.Message, out.JSStack = fault.Message, fault.JSStack
	case errors.As(err, &limit):
		out.Guard, out.JSStack = limit.Kind, res.JSStack
	}
	return out
}
