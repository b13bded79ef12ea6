package bench_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/sandbed/sandbed/bench"
	"github.com/sandbed/sandbed/bench/command"
	"github.com/sandbed/sandbed/engine"
)

// two is a sandbox that knows one answer.
type two struct{}

func (two) Run(context.Context, engine.Request) (engine.Outcome, error) {
	return engine.Outcome{Class: engine.ClassOK, Value: json.RawMessage("2")}, nil
}
func (two) Warm(context.Context) error { return nil }
func (two) Close() error               { return nil }

// A sandbox of your own gets the whole command: main calls command.Main with a
// suite that opens it, and os.Args[1:] in place of the arguments here.
func Example() {
	suite := bench.Suite{Engine: "mine 1.0", Open: func(context.Context, bench.Options) (*bench.Instance, error) {
		return &bench.Instance{Backend: two{}, Close: two{}.Close}, nil
	}}
	var out bytes.Buffer
	code := command.Main(suite, []string{"eval", "--script", "-"}, strings.NewReader("1+1"), &out, os.Stderr)

	var outcome struct {
		Class string
		Value json.RawMessage
	}
	if err := json.Unmarshal(out.Bytes(), &outcome); err != nil {
		fmt.Println(err)
	}
	fmt.Println(code, outcome.Class, string(outcome.Value))
	// Output: 0 ok 2
}
