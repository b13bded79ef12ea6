package quickjs

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"testing"
	"time"

	"github.com/sandbed/sandbed/engine"
)

// An input that is a double has a negative word where other values have their
// tag. It was taken for a reference: the word at the address in its lower half was
// counted up, and beyond the memory the host panicked. FuzzInput found it.
func TestInputThatIsADouble(t *testing.T) {
	v := newTestVM(t, newTestEngine(t, Config{}))
	for _, input := range []string{"0.1", "1.5", "-2.5", "1.7976931348623157e+308", "5e-324", "123456.789", "-1e-7", "9007199254740993e5"} {
		for kind, source := range map[engine.Kind]string{engine.Program: "input", engine.Module: "export default x => x"} {
			o := v.Eval(context.Background(), engine.Request{Script: engine.Script{Source: source, Kind: kind}, Input: json.RawMessage(input)})
			var got, want float64
			if err := json.Unmarshal([]byte(input), &want); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(o.Value, &got); o.Class != engine.ClassOK || err != nil || got != want {
				t.Errorf("%s as a %s: got %s %s (%s), %v", input, kind, o.Label(), o.Value, o.Message, err)
			}
		}
		// The lower half of 1.5 is 0: seeding may not touch the word there.
		seeded := ^uint32(0)
		o := v.Eval(context.Background(), engine.Request{Script: engine.Script{Source: "1"}, Input: json.RawMessage(input),
			OnScriptStart: func(time.Time) { seeded = v.load32(0) }})
		if image := binary.LittleEndian.Uint32(v.engine.image.memory); o.Class != engine.ClassOK || seeded != image {
			t.Errorf("%s: seeding left %#x at address 0, want %#x", input, seeded, image)
		}
	}
}
