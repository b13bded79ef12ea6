// Package fuzz attacks the guarantees with Go's native fuzzing. Its targets are
// tests, one a file; make fuzz runs them, README.md tells how.
//
// What a target tries is made by fuzz/gen, what came of it is judged by
// fuzz/oracle, and what Go's coverage cannot see is shown to the fuzzer by
// fuzz/cover. The package itself is the driver that they share. It promises
// nothing about how long a campaign takes to find a fault: properties/faults measures that.
package fuzz

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sandbed/sandbed/fuzz/oracle"
)

// Target is what a fuzz target does with one input.
type Target struct {
	// Seeds are documents of fuzz/gen, in names; a plain one first.
	Seeds [][]byte
	// Check tries one input and has the oracles judge it. The error says why data
	// is no input at all. Nothing may be left of it when Check returns.
	Check func(t *testing.T, data []byte, log *oracle.Log) error
	// Oracles are those that the seeds must ask: a start that leaves one of them
	// out fails, and so does one whose answer does not arrive.
	Oracles []oracle.ID
	// Document gives data in names, for the reader of a finding; nil leaves it as it is.
	Document func(data []byte) []byte
}

// Run seeds and runs a target. Before the first input of a process it makes
// every oracle false and demands that each is heard.
//
// With FUZZ_SEEDS=first only the first seed is given: what the fuzzer then finds
// it found by itself.
//
// With FUZZ_FLIGHT=dir every input is written to a file there before it is tried,
// and taken out after: what the file holds when the process was killed is the
// input that did it, which Go's fuzzer does not keep.
func Run(f *testing.F, target Target) {
	f.Helper()
	if len(target.Seeds) == 0 {
		f.Fatal("the target has no seeds")
	}
	seeds := target.Seeds
	if os.Getenv("FUZZ_SEEDS") == "first" {
		seeds = seeds[:1]
	}
	for _, s := range seeds {
		f.Add(s)
	}
	flight, err := openFlight(f.Name())
	if err != nil {
		f.Fatal(err)
	}
	var first sync.Once
	f.Fuzz(func(t *testing.T, data []byte) {
		first.Do(func() {
			if err := target.SelfTest(t); err != nil {
				t.Fatalf("the self-test of this target failed, it would find nothing: %v", err)
			}
		})
		flight.note(t, data)
		defer flight.clear(t)
		var log oracle.Log
		if err := target.Check(t, data, &log); err != nil {
			t.Skip(err)
		}
		found := log.Violations()
		for _, v := range found {
			t.Error(v)
		}
		if len(found) > 0 && target.Document != nil {
			t.Logf("in names: %q", target.Document(data))
		}
	})
}

// SelfTest makes every oracle false and runs seeds until each of Oracles was heard.
func (target Target) SelfTest(t *testing.T) error {
	heard := map[oracle.ID]bool{}
	missing := func() (ids []string) {
		for _, id := range target.Oracles {
			if !heard[id] {
				ids = append(ids, string(id))
			}
		}
		return ids
	}
	for _, s := range target.Seeds {
		log := oracle.Log{Tripwire: true}
		if err := target.Check(t, s, &log); err != nil {
			return fmt.Errorf("seed %q: %w", s, err)
		}
		for _, v := range log.Violations() {
			heard[v.ID] = true
		}
		if len(missing()) == 0 {
			return nil
		}
	}
	return fmt.Errorf("no seed asks %s", strings.Join(missing(), ", "))
}

// flight is the recorder: one file a process, kept open, since a file made and
// removed for every input would cost more than many inputs do.
type flight struct{ file *os.File }

func openFlight(target string) (*flight, error) {
	dir := os.Getenv("FUZZ_FLIGHT")
	if dir == "" {
		return &flight{}, nil
	}
	name := filepath.Join(dir, fmt.Sprintf("%s-%d", target, os.Getpid()))
	file, err := os.Create(name)
	if err != nil {
		return nil, fmt.Errorf("FUZZ_FLIGHT = %q: %w; give a directory that can be written", dir, err)
	}
	// The fuzzer throws away what a worker that crashes prints.
	crash, err := os.Create(name + ".crash")
	if err != nil {
		return nil, err
	}
	if err := debug.SetCrashOutput(crash, debug.CrashOptions{}); err != nil {
		return nil, err
	}
	return &flight{file}, crash.Close()
}

func (fl *flight) note(t *testing.T, data []byte) {
	if fl.file == nil {
		return
	}
	if _, err := fl.file.WriteAt(data, 0); err != nil {
		t.Fatal(err)
	}
}

func (fl *flight) clear(t *testing.T) {
	if fl.file == nil {
		return
	}
	if err := fl.file.Truncate(0); err != nil {
		t.Fatal(err)
	}
}

// Documents makes seeds of documents without their version, one a line.
func Documents(version byte, lines ...string) [][]byte {
	seeds := make([][]byte, 0, len(lines))
	for _, l := range lines {
		seeds = append(seeds, append([]byte{version, ' '}, l...))
	}
	return slices.Clip(seeds)
}
