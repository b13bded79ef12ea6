// Package peers puts other JavaScript engines beside ours: the same guarantees,
// the same work, the same machine. A peer runs in a process of its own, since
// some of them hang and some take their process with them; each symptom becomes
// an outcome that says literally what was seen.
//
// A peer's program is a module of its own, so that nobody else depends on it. It
// calls [Serve]; the measuring process drives it through a [Backend], which is
// an engine.Backend and so can be put through engine/enginetest. What is timed
// is timed inside the peer's process: the pipe is never part of a figure.
//
// The protocol is one JSON object a line over stdin and stdout; texts of scripts
// are base64, since they need not be UTF-8. It is not a stable interface.
package peers

import (
	_ "embed"
	"encoding/json"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sandbed/sandbed/engine"
)

// Info is what a peer says of itself.
type Info struct {
	Name     string `json:"name"`     // as names of samples carry it: "goja"
	Version  string `json:"version"`  // of the library and, where it has one, of the engine in it
	Settings string `json:"settings"` // what was set so that it does its best
	Docs     string `json:"docs"`     // address of its documentation
}

// request is one line to a peer.
type request struct {
	ID int64  `json:"id"`
	Op string `json:"op"` // info, eval, cancel, batch, loop
	evaluation
	// Count is how many evaluations a batch makes one after another, and a loop
	// at once.
	Count int `json:"count,omitempty"`
	// Of is the id of the evaluation that is cancelled.
	Of int64 `json:"of,omitempty"`
}

// evaluation is an engine.Request on the wire.
type evaluation struct {
	Source []byte      `json:"source,omitempty"`
	Name   string      `json:"name,omitempty"`
	Kind   engine.Kind `json:"kind,omitempty"`
	// Plain is the script without a default export, where it has one; see [Plain].
	Plain []byte `json:"plain,omitempty"`
	// HasInput tells an input that is absent from one of no bytes.
	HasInput bool          `json:"has_input,omitempty"`
	Input    []byte        `json:"input,omitempty"`
	Limits   engine.Limits `json:"limits,omitzero"`
}

func wire(r engine.Request) evaluation {
	e := evaluation{Source: []byte(r.Script.Source), Name: r.Script.Name, Kind: r.Script.Kind,
		HasInput: r.Input != nil, Input: r.Input, Limits: r.Limits.WithDefaults()}
	if plain := Plain(r.Script); plain != r.Script.Source {
		e.Plain = []byte(plain)
	}
	return e
}

func (e evaluation) request() engine.Request {
	r := engine.Request{Script: engine.Script{Source: string(e.Source), Name: e.Name, Kind: e.Kind}, Limits: e.Limits}
	if e.HasInput {
		r.Input = append(json.RawMessage{}, e.Input...)
	}
	return r
}

// reply is one line from a peer. A line that has Armed and no class says only
// that the script has begun; the answer follows.
type reply struct {
	ID int64 `json:"id"`
	// Instants on the system's clock in nanoseconds since 1970; 0 if it did not happen.
	Armed    int64 `json:"armed,omitempty"`
	Finished int64 `json:"finished,omitempty"`
	Returned int64 `json:"returned,omitempty"` // the evaluation was over, its VM freed

	Class   engine.Class `json:"class,omitempty"`
	Guard   engine.Guard `json:"guard,omitempty"`
	Value   []byte       `json:"value,omitempty"`
	Message string       `json:"message,omitempty"`
	Stack   string       `json:"stack,omitempty"`
	Seed    bool         `json:"seed,omitempty"`
	Killed  bool         `json:"killed,omitempty"`
	Usage   engine.Usage `json:"usage,omitzero"`
	HostErr string       `json:"host_error,omitempty"` // the peer itself failed: nothing ran
	NS      int64        `json:"ns,omitempty"`         // of the whole operation
	Info    *Info        `json:"info,omitempty"`
	LongNS  int64        `json:"longest_ns,omitempty"`     // loop: the longest gap
	GoneNS  int64        `json:"unavailable_ns,omitempty"` // loop: Σ max(0, gap − 2 ms)
	Done    bool         `json:"done,omitempty"`           // the answer to an operation that has no class
}

func (r reply) outcome() engine.Outcome {
	return engine.Outcome{Class: r.Class, Guard: r.Guard, Value: r.Value, Message: r.Message, JSStack: r.Stack,
		DuringSeed: r.Seed, Killed: r.Killed, Usage: r.Usage}
}

func (r *reply) set(o engine.Outcome) {
	r.Class, r.Guard, r.Value, r.Message, r.Stack = o.Class, o.Guard, o.Value, text(o.Message), text(o.JSStack)
	r.Seed, r.Killed, r.Usage = o.DuringSeed, o.Killed, o.Usage
}

// at is the instant of a reply; zero if there was none.
func at(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

// maxText is the contract's bound for texts of the script, in bytes.
const maxText = 4 << 10

// text cuts s as the contract asks.
func text(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= maxText {
		return s
	}
	n := maxText
	for !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// Prelude is evaluated in a peer's VM before the script, the same in every
// peer. It leaves $peer: seed(text) sets the input, settle(value) takes the
// completion value before the jobs run, dump() gives the result as JSON text,
// undefined for none, and null for one that is no JSON.
//
//go:embed prelude.js
var Prelude string

var exportDefault = regexp.MustCompile(`(^|[;}\n])([ \t]*)export default\b`)

// Plain turns a script with a default export into one whose completion value is
// the promise of it, called with the input if it is a function: not every peer
// has modules, and those that have give the export in different ways. Other
// scripts stay as they are, and so do those that must be read as programs.
func Plain(s engine.Script) string {
	if s.Kind == engine.Program || s.Kind == engine.Detect && !exportDefault.MatchString(s.Source) {
		return s.Source
	}
	body := exportDefault.ReplaceAllString(s.Source, "${1}${2}$$export=")
	return "(async()=>{let $export;" + body + "\n;return typeof $export===\"function\"?$export(globalThis.input):$export})()"
}
