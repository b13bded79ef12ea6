package workload

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/sandbed/sandbed/engine"
)

func TestCases(t *testing.T) {
	names := map[string]bool{}
	for _, w := range All() {
		if names[w.Name] || w.Name != strings.ToLower(w.Name) || w.About == "" || w.Script.Source == "" {
			t.Errorf("workload %q: name taken, not lower case, or without a description or a script", w.Name)
		}
		names[w.Name] = true
		before := 0
		for _, size := range Sizes {
			c, err := w.Case(size, 1)
			if err != nil {
				t.Fatal(err)
			}
			if !json.Valid(c.Input) || !json.Valid(c.Want) {
				t.Errorf("%s, %s: input or answer is not JSON", w.Name, size)
			}
			if len(c.Input) > engine.DefaultMaxInputBytes || len(c.Want) > engine.DefaultMaxOutputBytes || len(w.Script.Source) > engine.DefaultMaxScriptBytes {
				t.Errorf("%s, %s: does not fit the default limits: input %d, answer %d bytes", w.Name, size, len(c.Input), len(c.Want))
			}
			if w.n[size] <= before {
				t.Errorf("%s, %s: n %d is not above the size before it (%d)", w.Name, size, w.n[size], before)
			}
			before = w.n[size]
			again, _ := w.Case(size, 1)
			if !bytes.Equal(c.Input, again.Input) || !bytes.Equal(c.Want, again.Want) {
				t.Errorf("%s, %s: the same seed made another case", w.Name, size)
			}
			other, _ := w.Case(size, 2)
			if bytes.Equal(c.Input, other.Input) {
				t.Errorf("%s, %s: seeds 1 and 2 made the same input", w.Name, size)
			}
		}
	}
	if len(names) != 9 {
		t.Errorf("got %d workloads, want 9", len(names))
	}
	if _, err := All()[0].Case("huge", 1); err == nil || !strings.Contains(err.Error(), `"huge"`) {
		t.Errorf("an unknown size gave %v", err)
	}
}

func TestCheckFindsAWrongAnswer(t *testing.T) {
	for _, w := range All() {
		c, err := w.Case(Small, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Check(bytes.Clone(c.Want)); err != nil {
			t.Errorf("%s: the right answer: %v", w.Name, err)
		}
		for _, at := range []int{0, len(c.Want) / 2, len(c.Want) - 1} {
			wrong := bytes.Clone(c.Want)
			wrong[at] ^= 1
			if c.Check(wrong) == nil {
				t.Errorf("%s: an answer wrong in byte %d passed", w.Name, at)
			}
		}
		for _, wrong := range []json.RawMessage{nil, c.Want[:len(c.Want)-1], append(bytes.Clone(c.Want), ' ')} {
			if c.Check(wrong) == nil {
				t.Errorf("%s: an answer of %d bytes passed, want %d", w.Name, len(wrong), len(c.Want))
			}
		}
	}
}

// TestReshapes: the same input and answer as reshape, in a script of its own.
// That it gives the answer is tested with an engine.
func TestReshapes(t *testing.T) {
	once, w := All()[0], Reshapes(60)
	a, err := once.Case(Medium, 3)
	if err != nil {
		t.Fatal(err)
	}
	b, err := w.Case(Medium, 3)
	if err != nil || !bytes.Equal(a.Input, b.Input) || !bytes.Equal(a.Want, b.Want) {
		t.Errorf("another case than that of reshape (%v)", err)
	}
	if strings.Count(w.Script.Source, "export") != 1 || !strings.Contains(w.Script.Source, "n < 60") {
		t.Errorf("want one export and 60 rounds in\n%s", w.Script.Source)
	}
}
