package compare

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"github.com/sandbed/sandbed/bench/gate"
	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/internal/atomicfile"
)

// The files of a comparison that are written while it runs. From them it can be
// resumed, merged and judged again.
const (
	samplesFile = "raw/samples.ndjson"
	runFile     = "raw/run.json"
	designFile  = "design.json"
	calibFile   = "calib.json"
)

const runSchema = 1

// run is what the samples of a comparison do not say: raw/run.json.
type run struct {
	Schema   int                `json:"schema"`
	Base     gate.Ref           `json:"base"`
	Head     gate.Ref           `json:"head"`
	Quick    bool               `json:"quick,omitempty"`
	Shard    int                `json:"shard,omitempty"`
	Shards   int                `json:"shards,omitempty"`
	Started  time.Time          `json:"started"`
	BaseEnv  sample.Environment `json:"base_environment"`
	HeadEnv  sample.Environment `json:"head_environment"`
	BaseRows []string           `json:"base_rows"` // what each can measure
	HeadRows []string           `json:"head_rows"`
	Batches  map[string]int     `json:"batches"` // iterations of a batch by row, for both arms
	Warnings []string           `json:"warnings,omitempty"`
}

// lacks is the arm that cannot measure a row, "" if both can.
func (r run) lacks(row string) string {
	switch {
	case r.BaseRows != nil && !slices.Contains(r.BaseRows, row):
		return gate.Base
	case r.HeadRows != nil && !slices.Contains(r.HeadRows, row):
		return gate.Head
	}
	return ""
}

// stored is what a directory holds of a comparison.
type stored struct {
	run      run
	design   gate.Design
	launches []gate.Launch
	fitness  *gate.Fitness // nil if it did not end
	cut      int           // bytes of a last line that an interrupt left
}

// load reads a directory.
func load(dir string) (s stored, err error) {
	if err := readJSON(filepath.Join(dir, runFile), &s.run); err != nil {
		return s, err
	}
	if s.run.Schema != runSchema {
		return s, fmt.Errorf("%s has schema %d, this build reads %d", runFile, s.run.Schema, runSchema)
	}
	design, err := os.Open(filepath.Join(dir, designFile))
	if err != nil {
		return s, err
	}
	defer design.Close()
	if s.design, err = gate.ReadDesign(design); err != nil {
		return s, err
	}
	samples, err := os.Open(filepath.Join(dir, samplesFile))
	if err != nil {
		return s, err
	}
	defer samples.Close()
	if s.launches, s.cut, err = gate.Read(samples); err != nil {
		return s, err
	}
	var f gate.Fitness
	switch err := readJSON(filepath.Join(dir, calibFile), &f); {
	case err == nil:
		s.fitness = &f
	case !errors.Is(err, fs.ErrNotExist):
		return s, err
	}
	return s, nil
}

// sameAs says what makes two directories hold different comparisons.
func (s stored) sameAs(o stored) error {
	switch {
	case s.run.Base.Commit != o.run.Base.Commit:
		return fmt.Errorf("base is %.12s there, %.12s here", s.run.Base.Commit, o.run.Base.Commit)
	case s.run.Head.Commit != o.run.Head.Commit || s.run.Head.Dirty != o.run.Head.Dirty:
		return fmt.Errorf("head is %.12s there, %.12s here", s.run.Head.Commit, o.run.Head.Commit)
	case s.run.Shards != o.run.Shards:
		return fmt.Errorf("there are %d shards there, %d here", s.run.Shards, o.run.Shards)
	case s.run.Quick != o.run.Quick || !reflect.DeepEqual(s.design, o.design):
		return errors.New("the design differs: give every shard the same --seed, rows and --quick")
	}
	return nil
}

// store appends samples to a directory.
type store struct {
	dir  string
	file *os.File
}

// store begins the files of a comparison, or continues them.
func (c Config) store(s *session) (*store, error) {
	samples := filepath.Join(c.Out, samplesFile)
	if c.Resume {
		old, err := load(c.Out)
		if err != nil {
			return nil, &Refused{"--resume", c.Out, fmt.Sprintf("holds no comparison to continue (%v): leave out --resume", err)}
		}
		if c.Seed == 0 {
			s.design.Seed = old.design.Seed
		}
		if err := old.sameAs(stored{run: s.run, design: s.design}); err != nil {
			return nil, &Refused{"--resume", c.Out, err.Error() + ": leave out --resume, or compare the same"}
		}
		if old.run.Shard != s.run.Shard {
			return nil, &Refused{"--resume", c.Out, fmt.Sprintf("is shard %d: give the same --shard", old.run.Shard)}
		}
		if old.run.Head.Dirty {
			return nil, &Refused{"--resume", c.Out, "had a head with changes that were not committed, which may have changed since: leave out --resume"}
		}
		s.run.Started, s.run.Batches = old.run.Started, old.run.Batches
		info, err := os.Stat(samples)
		if err != nil {
			return nil, err
		}
		if err := os.Truncate(samples, info.Size()-int64(old.cut)); err != nil {
			return nil, err
		}
		whole, partial := wholeRounds(old.launches)
		if partial {
			if err := writeFile(samples, whole); err != nil {
				return nil, err
			}
		}
		if err := s.setUp(whole); err != nil {
			return nil, err
		}
	} else {
		if err := os.MkdirAll(filepath.Join(c.Out, "raw"), 0o755); err != nil {
			return nil, err
		}
		if err := writeFile(samples, nil); err != nil {
			return nil, err
		}
		if err := s.setUp(nil); err != nil {
			return nil, err
		}
	}
	// A calibration of an earlier run would be taken for this one's.
	if err := os.Remove(filepath.Join(c.Out, calibFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := writeJSON(filepath.Join(c.Out, designFile), s.design); err != nil {
		return nil, err
	}
	st := &store{dir: c.Out}
	if err := st.keep(s.run); err != nil {
		return nil, err
	}
	var err error
	st.file, err = os.OpenFile(samples, os.O_APPEND|os.O_WRONLY, 0o644)
	return st, err
}

// wholeRounds leaves out timed launches whose round is not whole: a launch of a
// pair without the other. partial says that there were some.
func wholeRounds(launches []gate.Launch) (whole []gate.Launch, partial bool) {
	type round struct {
		row, stage, control string
		round               int
	}
	of := func(l gate.Launch) round { return round{l.Row, l.Stage, l.Control, l.Round} }
	count, settled := map[round]int{}, map[string]bool{}
	for _, l := range launches {
		count[of(l)]++
		if l.Failed != "" || l.Absent {
			settled[l.Row] = true // one arm is all there will be
		}
	}
	for _, l := range launches {
		if count[of(l)] == 2 || settled[l.Row] || l.Lane == gate.Exact {
			whole = append(whole, l)
		}
	}
	return whole, len(whole) < len(launches)
}

// keep writes run.json.
func (s *store) keep(r run) error { return writeJSON(filepath.Join(s.dir, runFile), r) }

// add appends launches in one write.
func (s *store) add(launches []gate.Launch) error { return gate.Write(s.file, launches...) }

func (s *store) close() error { return s.file.Close() }

func readJSON(name string, into any) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// writeJSON writes indented JSON beside the file and renames.
func writeJSON(name string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(name, append(data, '\n'))
}

func writeFile(name string, launches []gate.Launch) error {
	var b bytes.Buffer
	if err := gate.Write(&b, launches...); err != nil {
		return err
	}
	return atomicfile.Write(name, b.Bytes())
}
