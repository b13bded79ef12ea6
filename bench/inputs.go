package bench

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/engine"
)

// shapes are kinds of input, from the one that grows least when it is parsed to
// those that grow most: how much input fits a memory limit depends on its shape alone.
var shapes = []struct{ name, open, item, end string }{
	{"text", `["`, "lorem ipsum dolor sit amet, ", `"]`},
	{"texts", `["x"`, `,"lorem ipsum dolor sit amet consectetur"`, "]"},
	{"rows", `[0`, `,{"id":123456,"name":"Ada Lovelace","city":"London","total":1234.56,"paid":true}`, "]"},
	{"numbers", `[0`, ",1234567", "]"},
	{"pairs", `[0`, `,[1,2]`, "]"},
}

// inputs finds the largest input of each shape that the default limits take, to
// about 1 %, by halving. The rows are exact: the VM's memory is deterministic.
func (m *meter) inputs() error {
	in, err := m.instance(m.suite.Metering())
	if err != nil {
		return err
	}
	for _, s := range shapes {
		m.progress("input shape=%s", s.name)
		build := func(n int) json.RawMessage {
			return json.RawMessage(s.open + strings.Repeat(s.item, n) + s.end)
		}
		fits := func(n int) (bool, error) {
			o, err := in.Backend.Run(m.ctx, engine.Request{Script: engine.Script{Source: "input.length > 0"}, Input: build(n)})
			switch {
			case err != nil:
				return false, fmt.Errorf("bench: input of shape %s: %w", s.name, err)
			case o.Class == engine.ClassOK && string(o.Value) == "true":
				return true, nil
			case o.Class == engine.ClassInputTooLarge, o.Class == engine.ClassLimit && o.Guard == engine.Memory:
				return false, nil
			}
			return false, &WrongAnswer{"input/shape=" + s.name, fmt.Errorf("ended as %s: %.200q", o.Label(), o.Message)}
		}
		low, high := 1, (engine.DefaultMaxInputBytes-len(s.open)-len(s.end))/len(s.item)
		if ok, err := fits(high); err != nil {
			return err
		} else if ok {
			low = high
		}
		for high-low > high/100 {
			middle := (low + high) / 2
			ok, err := fits(middle)
			if err != nil {
				return err
			}
			if ok {
				low = middle
			} else {
				high = middle
			}
		}
		m.add(sample.NewExact("input/shape="+s.name, sample.Bytes, float64(len(build(low))), 1))
	}
	return nil
}
