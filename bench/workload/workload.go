// Package workload is what scripts in a sandbox are made to do when they are
// timed: nine pieces of everyday work in plain ES2023, each with a seeded input
// at three sizes and the answer that a Go implementation gives for it. A run
// whose answer differs is not a result.
//
// The scripts use nothing but the language: no console, timers or modules.
package workload

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"

	"github.com/sandbed/sandbed/engine"
)

// Size is how much input a workload gets.
type Size string

// The sizes. Medium is meant to take 2 to 30 ms in an interpreter.
const (
	Small  Size = "small"
	Medium Size = "medium"
	Large  Size = "large"
)

// Sizes are all sizes, smallest first.
var Sizes = []Size{Small, Medium, Large}

// Workload is one script and the maker of its inputs.
type Workload struct {
	Name   string // as benchmark names carry it: lower case, one word
	About  string // one line
	Script engine.Script
	n      map[Size]int
	make   func(rng *rand.Rand, n int) (input, want any)
}

// Case is one input with the answer to it.
type Case struct {
	Workload Workload
	Size     Size
	Input    json.RawMessage
	Want     json.RawMessage
}

//go:embed *.js
var sources embed.FS

var all = []Workload{
	{Name: "reshape", About: "metrics of a store into the panels of a dashboard", make: reshape, n: map[Size]int{Small: 2, Medium: 12, Large: 120}},
	{Name: "join", About: "orders joined with customers and products, grouped and ranked", make: join, n: map[Size]int{Small: 200, Medium: 2000, Large: 20000}},
	{Name: "template", About: "a template language compiled to closures and rendered", make: template, n: map[Size]int{Small: 10, Medium: 120, Large: 1200}},
	{Name: "format", About: "dates, durations, amounts and names written for people", make: format, n: map[Size]int{Small: 50, Medium: 500, Large: 5000}},
	{Name: "extract", About: "access-log lines read with regular expressions", make: extract, n: map[Size]int{Small: 40, Medium: 400, Large: 4000}},
	{Name: "json", About: "one JSON text into another", make: jsonToJSON, n: map[Size]int{Small: 30, Medium: 400, Large: 4000}},
	{Name: "sort", About: "rows, numbers and words sorted", make: sorting, n: map[Size]int{Small: 100, Medium: 1000, Large: 10000}},
	{Name: "classes", About: "a simulation with classes, generators and closures", make: classes, n: map[Size]int{Small: 200, Medium: 2000, Large: 20000}},
	{Name: "kernel", About: "arithmetic over typed arrays", make: kernel, n: map[Size]int{Small: 8, Medium: 24, Large: 56}},
}

// All returns every workload, always in the same order.
func All() []Workload {
	out := make([]Workload, len(all))
	copy(out, all)
	for i := range out {
		source, err := sources.ReadFile(out[i].Name + ".js")
		if err != nil {
			panic(err) // embedded: cannot be missing in a build that compiles
		}
		out[i].Script = engine.Script{Source: string(source), Name: out[i].Name + ".js"}
	}
	return out
}

// Reshapes is the workload reshape done n times over in one evaluation, at least
// once, with the answer of the last: work of any length on an input that takes
// no time to parse.
func Reshapes(n int) Workload {
	w := All()[0]
	const export = "export default function reshape("
	w.Script.Source = strings.Replace(w.Script.Source, export, "function reshape(", 1) + fmt.Sprintf(`
export default (input) => {
  let out = reshape(input);
  for (let n = 1; n < %d; n++) out = reshape(input);
  return out;
};
`, n)
	return w
}

// Case makes the input of one size. The same seed makes the same input on
// every machine.
func (w Workload) Case(size Size, seed uint64) (Case, error) {
	n, ok := w.n[size]
	if !ok {
		return Case{}, fmt.Errorf("workload: size %q is not known: give small, medium or large", size)
	}
	h := fnv.New64a()
	h.Write([]byte(w.Name + "/" + string(size)))
	input, want := w.make(rand.New(rand.NewPCG(seed, h.Sum64())), n)
	c := Case{Workload: w, Size: size}
	var err error
	if c.Input, err = encode(input); err != nil {
		return Case{}, fmt.Errorf("workload %s: input: %w", w.Name, err)
	}
	if c.Want, err = encode(want); err != nil {
		return Case{}, fmt.Errorf("workload %s: answer: %w", w.Name, err)
	}
	return c, nil
}

// Check says whether value is the answer, byte for byte.
func (c Case) Check(value json.RawMessage) error {
	if bytes.Equal(value, c.Want) {
		return nil
	}
	at := 0
	for at < len(value) && at < len(c.Want) && value[at] == c.Want[at] {
		at++
	}
	cut := func(b []byte) []byte { return b[max(0, at-20):min(len(b), at+40)] }
	return fmt.Errorf("workload %s, %s: wrong answer: from byte %d got %q, want %q", c.Workload.Name, c.Size, at, cut(value), cut(c.Want))
}

// encode writes JSON as JSON.stringify does: no escapes for HTML.
func encode(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}
