package gate

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/bench/stat"
)

const (
	// maxLine bounds a line of samples.ndjson. A launch takes about 350 bytes.
	maxLine = 64 << 10
	// maxLaunches bounds the launches of one comparison: 20 rows × 60 rounds × 2 arms × 2 stages are 4,800.
	maxLaunches = 1 << 20
)

// key is what a launch is the only one of.
type key struct {
	row, stage, control, arm string
	round                    int
}

func (l Launch) key() key { return key{l.Row, l.Stage, l.Control, l.Arm, l.Round} }

// Validate reports the first thing that makes l unusable.
func (l Launch) Validate() error {
	bad := func(field string, value any, allowed string) error {
		return fmt.Errorf("launch of %.100q: %s = %v: %s", l.Row, field, value, allowed)
	}
	quote := func(s string) string { return fmt.Sprintf("%.100q", s) }
	second := Head
	if l.Control != "" {
		second = l.Control
	}
	switch {
	case l.Schema != Schema:
		return bad("schema", l.Schema, fmt.Sprintf("this build reads schema %d", Schema))
	case l.Better != "lower" && l.Better != "higher":
		return bad("better", quote(l.Better), "give lower or higher")
	case l.Lane != Time && l.Lane != Exact:
		return bad("lane", quote(l.Lane), "give time or exact")
	case l.Stage != Screen && l.Stage != Confirm:
		return bad("stage", quote(l.Stage), "give screen or confirm")
	case l.Control != "" && l.Control != Null && l.Control != Injected:
		return bad("control", quote(l.Control), "give null, injected or nothing")
	case l.Control != "" && (l.Stage != Screen || l.Lane != Time):
		return bad("control", quote(l.Control), "a control has stage screen and lane time")
	case l.Arm != Base && l.Arm != second:
		return bad("arm", quote(l.Arm), "give base or "+second)
	case l.Round < 0 || l.Round >= stat.MaxRounds:
		return bad("round", l.Round, fmt.Sprintf("give 0 to %d", stat.MaxRounds-1))
	case l.Lane == Time && l.Order != "AB" && l.Order != "BA":
		return bad("order", quote(l.Order), "give AB or BA")
	case !(l.Batch >= 0) || math.IsInf(l.Batch, 1):
		return bad("batch_sec", l.Batch, "give a time, or 0 if unknown")
	case l.Inner < 0:
		return bad("inner", l.Inner, "give the number of inner batches")
	case l.Lane == Time && l.Value < 0:
		return bad("value", l.Value, "give 0 or more")
	}
	return sample.Sample{Name: l.Row, Unit: l.Unit, Value: l.Value, Count: 1}.Validate()
}

// set is launches that belong together.
type set struct {
	seen  map[key]bool
	first map[string]Launch // by row
}

// add reports what makes l unusable beside the others: that it is there already,
// or that its row is measured in another way than before.
func (s *set) add(l Launch) error {
	if err := l.Validate(); err != nil {
		return err
	}
	if s.seen == nil {
		s.seen, s.first = map[key]bool{}, map[string]Launch{}
	}
	if s.seen[l.key()] {
		return fmt.Errorf("launch of %q: stage %s, control %q, round %d, arm %s is there twice: remove one", l.Row, l.Stage, l.Control, l.Round, l.Arm)
	}
	if f, ok := s.first[l.Row]; ok && (f.Unit != l.Unit || f.Better != l.Better || f.Lane != l.Lane) {
		return fmt.Errorf("launch of %q: unit %s, better %s, lane %s, and %s, %s, %s before: give launches of one suite", l.Row, l.Unit, l.Better, l.Lane, f.Unit, f.Better, f.Lane)
	}
	s.seen[l.key()] = true
	if _, ok := s.first[l.Row]; !ok {
		s.first[l.Row] = l
	}
	return nil
}

// Write writes launches as NDJSON, one line each: raw/samples.ndjson. It refuses
// what Launch.Validate does, before anything is written; what is there already it does not know.
func Write(w io.Writer, launches ...Launch) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	for _, l := range launches {
		if err := l.Validate(); err != nil {
			return err
		}
		before := b.Len()
		if err := e.Encode(l); err != nil {
			return fmt.Errorf("launch of %q: %w", l.Row, err)
		}
		if b.Len()-before > maxLine {
			return fmt.Errorf("launch of %.100q: its line is longer than %d bytes: shorten failed", l.Row, maxLine)
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

// Read reads what Write wrote. A last line without its end, which an interrupt
// leaves, is left out: cut is its length in bytes, so that a file of n bytes may be
// continued at n − cut. All else that is not a launch of this schema, or is there
// twice, is an error that names the line.
func Read(r io.Reader) (launches []Launch, cut int, err error) {
	in := bufio.NewReaderSize(r, maxLine)
	var all set
	for number := 1; ; number++ {
		line, err := in.ReadSlice('\n')
		if err == io.EOF {
			return launches, len(line), nil
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return nil, 0, fmt.Errorf("samples: line %d: longer than %d bytes: give the raw/samples.ndjson of a comparison", number, maxLine)
		case err != nil:
			return nil, 0, fmt.Errorf("samples: line %d: %w", number, err)
		case len(launches) == maxLaunches:
			return nil, 0, fmt.Errorf("samples: line %d: more than %d launches", number, maxLaunches)
		}
		var l Launch
		if err := json.Unmarshal(line, &l); err != nil {
			return nil, 0, fmt.Errorf("samples: line %d: %w", number, err)
		}
		if err := all.add(l); err != nil {
			return nil, 0, fmt.Errorf("samples: line %d: %w", number, err)
		}
		launches = append(launches, l)
	}
}
