package quickjs

import (
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/sys"

	"github.com/sandbed/sandbed/engine"
)

// invoke calls an export within the evaluation; a trap settles the outcome.
func (e *evaluation) invoke(f api.Function, args ...uint64) (uint64, bool) {
	if e.trap != nil {
		return 0, false // nothing runs on after a trap
	}
	r, err := e.VM.invoke(f, args...)
	if err != nil {
		if e.trap = err; !e.formatting {
			e.trapped(err)
		}
		return 0, false
	}
	return r, true
}

// put copies a text with a final NUL into the VM. It answers 0 when the memory
// is full or the evaluation has failed.
func (e *evaluation) put(text string) uint32 {
	at, ok := e.invoke(e.fn.malloc, uint64(len(text))+1)
	if !ok || uint32(at) == 0 {
		return 0
	}
	mem := e.mem.bytes()[uint32(at):]
	copy(mem, text)
	mem[len(text)] = 0
	return uint32(at)
}

// seed parses the input in the VM and makes it the global input.
func (e *evaluation) seed(input []byte) uint64 {
	img := e.engine.image
	tooLarge := func(why string) uint64 {
		e.settle(engine.Outcome{Class: engine.ClassInputTooLarge, Message: why})
		return 0
	}
	at, ok := e.invoke(e.fn.malloc, uint64(len(input))+1)
	if !ok {
		return 0
	}
	if uint32(at) == 0 {
		return tooLarge("the input text does not fit into the memory of the VM")
	}
	mem := e.mem.bytes()[uint32(at):]
	copy(mem, input)
	mem[len(input)] = 0
	value, ok := e.invoke(e.fn.parseJSON, uint64(img.js), at, uint64(len(input)), uint64(img.inputName))
	if !ok {
		return 0
	}
	if tag(value) == tagException {
		switch guard, message, _ := e.exception(); {
		case e.failed:
		case guard == engine.Memory || guard == engine.Stack:
			return tooLarge("parsing the input overflowed the VM: " + message)
		default:
			e.settle(engine.Outcome{Class: engine.ClassScriptError, Message: "the input is not JSON: " + message})
		}
		return 0
	}
	if _, ok = e.invoke(e.fn.free, at); !ok {
		return 0
	}
	if counted(value) { // the property takes one reference, a module's function the other
		e.store32(uint32(value), e.load32(uint32(value))+1)
	}
	set, ok := e.invoke(e.fn.setProperty, uint64(img.js), img.global, uint64(img.inputName), value)
	if ok && int32(set) < 0 {
		return tooLarge("the input does not fit into the memory of the VM")
	}
	return value
}

// script evaluates the source and gives its settled result.
func (e *evaluation) script(input uint64) uint64 {
	img := e.engine.image
	name := e.req.Script.Name
	if name == "" {
		name = "script.js"
	}
	source := strings.TrimPrefix(e.req.Script.Source, "\ufeff") // a byte order mark is no part of a script
	src := e.put(source)
	file := uint32(0)
	if src != 0 {
		file = e.put(strings.ReplaceAll(name, "\x00", "?"))
	}
	if src == 0 || file == 0 {
		if !e.failed {
			e.settle(engine.Outcome{Class: engine.ClassLimit, Guard: engine.Memory, Message: "the script's source does not fit into the memory of the VM"})
		}
		return 0
	}
	size := uint64(len(source))
	eval := func(call func(api.Function, ...uint64) (uint64, bool), flags uint64) (uint64, bool) {
		return call(e.fn.eval, uint64(img.js), uint64(src), size, uint64(file), flags)
	}
	isModule := e.req.Script.Kind == engine.Module
	var value uint64
	ok := true
	if e.req.Script.Kind == engine.Detect && mayBeModule(source) {
		// What compiles as a program is one; the rest is a module, and its
		// errors are reported as such.
		if value, ok = eval(e.invoke, evalGlobal|compileOnly); ok && tag(value) == tagException {
			isModule = true
			_, ok = e.invoke(e.fn.getException, uint64(img.js)) // drop it
		} else if ok {
			value, ok = e.value(e.fn.evalFunction, uint64(img.js), value)
		}
	} else if !isModule {
		value, ok = eval(e.value, evalGlobal)
	}
	if ok && isModule {
		value, ok = eval(e.value, evalModule|compileOnly)
	}
	if !ok {
		return 0
	}
	if !isModule {
		return e.settled(value)
	}
	module := uint64(uint32(value))
	if value, ok = e.value(e.fn.evalFunction, uint64(img.js), value); !ok {
		return 0
	}
	if e.settled(value); e.failed {
		return 0
	}
	namespace, ok := e.value(e.fn.namespace, uint64(img.js), module)
	if !ok {
		return 0
	}
	if value, ok = e.value(e.fn.getProperty, uint64(img.js), namespace, uint64(img.defaultName)); !ok {
		return 0
	}
	is, ok := e.invoke(e.fn.isFunction, uint64(img.js), value)
	if !ok {
		return 0
	}
	if uint32(is) != 0 {
		e.store32(img.scratch, uint32(input))
		e.store32(img.scratch+4, uint32(input>>32))
		if value, ok = e.value(e.fn.call, uint64(img.js), value, valUndefined, 1, uint64(img.scratch)); !ok {
			return 0
		}
	}
	return e.settled(value)
}

// mayBeModule is the cheap half of detection: a module has one of these words.
// (JS_DetectModule takes everything for a module that compiles as one, and
// builds a runtime to find out.)
func mayBeModule(source string) bool {
	return strings.Contains(source, "export") || strings.Contains(source, "import")
}

// value calls a function that gives a JavaScript value; an exception settles
// the outcome.
func (e *evaluation) value(f api.Function, args ...uint64) (uint64, bool) {
	v, ok := e.invoke(f, args...)
	if ok && (tag(v) == tagException || e.run.tripped != "") {
		e.thrown()
	}
	return v, ok && !e.failed
}

// settled drains the job queue and gives what a promise was fulfilled with.
func (e *evaluation) settled(value uint64) uint64 {
	img := e.engine.image
	for {
		pending, ok := e.invoke(e.fn.jobPending, uint64(img.rt))
		if !ok {
			return 0
		}
		if uint32(pending) == 0 {
			break
		}
		done, ok := e.invoke(e.fn.job, uint64(img.rt), uint64(img.scratch))
		if ok && (int32(done) < 0 || e.run.tripped != "") {
			e.thrown()
		}
		if !ok || e.failed {
			return 0
		}
	}
	is, ok := e.invoke(e.fn.isPromise, value)
	if !ok || uint32(is) == 0 {
		return value
	}
	state, ok := e.invoke(e.fn.promiseState, uint64(img.js), value)
	if !ok {
		return 0
	}
	result, ok := e.invoke(e.fn.promiseResult, uint64(img.js), value)
	switch {
	case !ok:
		return 0
	case uint32(state) == 0:
		e.settle(engine.Outcome{Class: engine.ClassScriptError,
			Message: "the script's promise never settles: no job is left that could settle it"})
	case uint32(state) == 2:
		e.thrownValue(result)
	}
	return result
}

// dump turns the result into JSON in UTF-8 within the VM and gives its place;
// n is -1 for undefined.
func (e *evaluation) dump(value uint64) (at uint32, n int64) {
	img := e.engine.image
	if tag(value) == tagUndefined {
		return 0, -1
	}
	text, ok := e.value(e.fn.stringify, uint64(img.js), value, valUndefined, valUndefined)
	if !ok {
		return 0, 0
	}
	if tag(text) == tagUndefined {
		e.settle(engine.Outcome{Class: engine.ClassResultNotSerializable,
			Message: "the result has no JSON form: it is a function, a symbol, or its toJSON gives undefined"})
		return 0, 0
	}
	p, ok := e.invoke(e.fn.toCString, uint64(img.js), uint64(img.scratch), text, 0)
	if ok && (uint32(p) == 0 || e.run.tripped != "") {
		e.thrown()
	}
	if !ok || e.failed {
		return 0, 0
	}
	n = int64(e.load32(img.scratch))
	if limit := e.run.limits.MaxOutputBytes; n > limit {
		e.settle(engine.Outcome{Class: engine.ClassLimit, Guard: engine.Output, Message: "the result is larger than MaxOutputBytes"})
		return 0, 0
	}
	return uint32(p), n
}

// settle fixes the outcome, once: what came first explains the end.
func (e *evaluation) settle(o engine.Outcome) {
	if e.failed {
		return
	}
	e.failed = true
	o.DuringSeed = e.seeding
	o.Killed = o.Killed || e.killed
	o.Usage = e.out.Usage
	o.Message, o.JSStack = cut(o.Message), cut(o.JSStack)
	*e.out = o
}

// thrown settles the outcome by the pending exception.
func (e *evaluation) thrown() {
	if guard, message, stack := e.exception(); !e.failed {
		e.verdict(guard, message, stack)
	}
}

// thrownValue settles the outcome by a value that a promise was rejected with.
func (e *evaluation) thrownValue(v uint64) {
	if guard, message, stack := e.explain(v); !e.failed {
		e.verdict(guard, message, stack)
	}
}

func (e *evaluation) verdict(guard engine.Guard, message, stack string) {
	o := engine.Outcome{Class: engine.ClassScriptError, Message: message, JSStack: stack}
	switch {
	case e.run.canceled:
		o.Class = engine.ClassCanceled
	case guard != "":
		o.Class, o.Guard = engine.ClassLimit, guard
	case e.dumping && e.serializing:
		o.Class = engine.ClassResultNotSerializable
	}
	e.settle(o)
}

// exception takes the pending exception and explains it.
func (e *evaluation) exception() (guard engine.Guard, message, stack string) {
	v, ok := e.invoke(e.fn.getException, uint64(e.engine.image.js))
	if !ok {
		return "", "", ""
	}
	return e.explain(v)
}

// explain says which guard, if any, an uncaught value stands for, by the host's
// own acts and the meter's evidence, and gives its text. Formatting runs script
// code: it lies under the same clocks.
func (e *evaluation) explain(v uint64) (guard engine.Guard, message, stack string) {
	kind := e.evidence(v)
	switch {
	case e.run.tripped != "":
		guard = e.run.tripped
	case kind == markMemory:
		guard = engine.Memory
	case kind == markStack:
		guard = engine.Stack
	case tag(v) == tagUninitialized:
		// No script can throw it: the engine failed to build its error.
		guard = engine.Memory
	case tag(v) == tagNull && int32(e.pending.Get()) == markMemory:
		guard = engine.Memory
	}
	e.serializing = kind == markSerialize
	if e.run.canceled {
		return guard, "", ""
	}
	// The headroom is for this: the memory may be full.
	e.mark(markMemory)
	e.formatting = true
	message, ok := e.text(v)
	if ok {
		if is, fine := e.invoke(e.fn.isError, v); fine && uint32(is) != 0 {
			stack = e.stackOf(v)
		}
	}
	e.formatting = false
	switch {
	case e.trap != nil && guard != "" && !e.run.canceled:
		// What had tripped before explains the end; the text is lost.
		e.killed = true
		message, stack = "stopped while the exception was formatted", ""
	case e.trap != nil:
		e.trapped(e.trap)
	default:
		e.mark(0)
		if guard == "" {
			guard = e.run.tripped
		}
	}
	return guard, message, stack
}

// evidence is the kind of the mark that the engine built this value for, 0 if
// the engine did not.
func (e *evaluation) evidence(v uint64) int32 {
	for i := range e.captured {
		if kind := int32(e.capturedKind[i].Get()); kind != 0 && e.captured[i].Get() == v {
			return kind
		}
	}
	return 0
}

// stackOf reads the stack of an error, if it is a plain property: a getter is
// the script's, and is not asked.
func (e *evaluation) stackOf(v uint64) string {
	const getSet = 1 << 4 // JS_PROP_GETSET in JSPropertyDescriptor.flags
	img := e.engine.image
	found, ok := e.invoke(e.fn.ownProperty, uint64(img.js), uint64(img.scratch), v, img.stackAtom)
	if !ok || int32(found) != 1 || e.load32(img.scratch)&getSet != 0 {
		return ""
	}
	value := uint64(e.load32(img.scratch+8)) | uint64(e.load32(img.scratch+12))<<32
	if t := tag(value); t != tagString && t != tagRope {
		return ""
	}
	s, _ := e.text(value)
	return s
}

// text converts a value to a string, at most maxText of it.
func (e *evaluation) text(v uint64) (string, bool) {
	img := e.engine.image
	p, ok := e.invoke(e.fn.toCString, uint64(img.js), uint64(img.scratch), v, 0)
	if !ok {
		return "", false
	}
	if uint32(p) == 0 {
		_, ok := e.invoke(e.fn.getException, uint64(img.js)) // drop it
		return "(the exception cannot be converted to text)", ok
	}
	n := int64(e.load32(img.scratch))
	if end := int64(uint32(p)) + n; end > e.mem.size {
		return "", false
	}
	return cut(string(e.mem.bytes()[uint32(p) : int64(uint32(p))+min(n, maxText+utf8.UTFMax)])), true
}

// cut shortens a text to maxText bytes at a character, and makes it valid UTF-8.
func cut(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= maxText {
		return s
	}
	n := maxText
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// trapped settles the outcome of a call that did not return. What the host did
// decides; the text of the error is only shown.
func (e *evaluation) trapped(err error) {
	o := engine.Outcome{Class: engine.ClassEngineFault, Message: err.Error(), Killed: true}
	var exit *sys.ExitError
	switch {
	case e.run.canceled:
		o.Class, o.Message = engine.ClassCanceled, ""
	case e.run.trapped && e.run.tripped != "":
		o.Class, o.Guard, o.Message = engine.ClassLimit, e.run.tripped, "stopped in the middle of a built-in"
	case e.engine.config.Metering == CloseOnDone && errors.As(err, &exit) && e.ctx.Err() != nil:
		o.Class, o.Message = engine.ClassCanceled, ""
	case e.engine.config.Metering == CloseOnDone && errors.As(err, &exit) && e.VM.ctx.Err() != nil:
		o.Class, o.Guard, o.Message = engine.ClassLimit, engine.WallClock, "stopped in the middle of a built-in"
	case e.engine.config.Metering == On && uint32(e.stackLow.Get()) < uint32(e.stackLimit.Get()),
		strings.HasPrefix(err.Error(), "stack overflow"): // wazero's own bound on the native stack
		o.Class, o.Guard, o.Message = engine.ClassLimit, engine.Stack, "the stack of the VM overflowed"
	}
	e.settle(o)
}
