package fuzz

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sandbed/sandbed/fuzz/cover"
	"github.com/sandbed/sandbed/fuzz/oracle"
)

// Targets are the targets of a package, by name.
type Targets map[string]Target

// TestSelves holds that every target starts only if each of its oracles is
// heard, and says which is not.
func (targets Targets) TestSelves(t *testing.T) {
	for name, target := range targets {
		t.Run(name, func(t *testing.T) {
			if err := target.SelfTest(t); err != nil {
				t.Error(err)
			}
			target.Oracles = append(target.Oracles, "nobody asks this")
			if err := target.SelfTest(t); err == nil || !strings.Contains(err.Error(), "nobody asks this") {
				t.Errorf("got %v, want an error that names the oracle that is never asked", err)
			}
			target.Check = func(*testing.T, []byte, *oracle.Log) error { return nil }
			if err := target.SelfTest(t); err == nil {
				t.Error("a target that asks nothing passed its self-test")
			}
		})
	}
}

const corpusHeader = "go test fuzz v1\n[]byte("

// readEntry reads a file of a corpus.
func readEntry(name string) ([]byte, error) {
	raw, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	text, ok := strings.CutPrefix(string(raw), corpusHeader)
	if !ok {
		return nil, fmt.Errorf("%s is no corpus file of one []byte", name)
	}
	s, err := strconv.Unquote(strings.TrimSuffix(strings.TrimSpace(text), ")"))
	return []byte(s), err
}

// TestCorpora holds that seeds and committed corpora mean what they say: each
// entry is a document in names, which decodes to itself.
func (targets Targets) TestCorpora(t *testing.T) {
	for name, target := range targets {
		for _, seed := range target.Seeds {
			if doc := inNames(target, seed); !bytes.Equal(doc, seed) {
				t.Errorf("%s: the seed %q means %q: write it in names", name, seed, doc)
			}
		}
		files, err := filepath.Glob(filepath.Join("testdata", "fuzz", name, "*"))
		if err != nil {
			t.Fatal(err)
		}
		if len(files) == 0 {
			t.Errorf("%s has no committed corpus", name)
		}
		for _, file := range files {
			data, err := readEntry(file)
			if err != nil {
				t.Error(err)
				continue
			}
			if doc := inNames(target, data); !bytes.Equal(doc, data) {
				t.Errorf("%s holds %q, which means %q: write it in names", file, data, doc)
			}
		}
	}
}

// inNames is data in names, without what a target adds for the reader.
func inNames(target Target, data []byte) []byte {
	doc, _, _ := bytes.Cut(target.Document(data), []byte("\n"))
	return doc
}

// Promote writes what the fuzzer's cache holds for the target that PROMOTE names
// to its committed corpus, in names; without PROMOTE it skips. It keeps, of the cache and the corpus so far, at most so many entries
// that together mark the most features, and leaves files alone that it did not write.
func (targets Targets) Promote(t *testing.T, keep int) {
	name := os.Getenv("PROMOTE")
	if name == "" {
		t.Skip("set PROMOTE=TARGET to promote the cache of a target")
	}
	target, ok := targets[name]
	if !ok {
		t.Fatalf("PROMOTE=%s: this package has no such target", name)
	}
	out, err := exec.Command("go", "list", "-f", "{{.ImportPath}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	pkg := strings.TrimSpace(string(out))
	if out, err = exec.Command("go", "env", "GOCACHE").Output(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join("testdata", "fuzz", name)
	var files []string
	for _, d := range []string{dir, filepath.Join(strings.TrimSpace(string(out)), "fuzz", pkg, name)} {
		found, err := filepath.Glob(filepath.Join(d, "*"))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	type entry struct {
		data     []byte
		features map[uint32]bool
	}
	var entries []entry
	seen := map[string]bool{}
	for _, file := range files {
		data, err := readEntry(file)
		if err != nil {
			t.Fatal(err)
		}
		doc := inNames(target, data)
		if seen[string(doc)] || len(doc) > 2000 {
			continue
		}
		seen[string(doc)] = true
		e := entry{doc, map[uint32]bool{}}
		cover.Watch = func(bucket uint32) { e.features[bucket] = true }
		var log oracle.Log
		err = target.Check(t, doc, &log)
		cover.Watch = nil
		if err != nil {
			continue
		}
		for _, v := range log.Violations() {
			t.Errorf("%q: %s", doc, v)
		}
		entries = append(entries, e)
	}
	known := map[uint32]bool{}
	gain := func(e entry) (n int) {
		for b := range e.features {
			if !known[b] {
				n++
			}
		}
		return n
	}
	var kept [][]byte
	for len(kept) < keep && len(entries) > 0 {
		best := slices.MaxFunc(entries, func(a, b entry) int {
			if d := gain(a) - gain(b); d != 0 {
				return d
			}
			return len(b.data) - len(a.data)
		})
		if gain(best) == 0 {
			break
		}
		kept = append(kept, best.data)
		for b := range best.features {
			known[b] = true
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	old, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range old {
		if strings.HasPrefix(filepath.Base(file), "kept-") { // findings and what people wrote stay
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, data := range kept {
		h := fnv.New64a()
		_, _ = h.Write(data) // never fails
		file := filepath.Join(dir, fmt.Sprintf("kept-%016x", h.Sum64()))
		if err := os.WriteFile(file+".tmp", []byte(corpusHeader+strconv.Quote(string(data))+")\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".tmp", file); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d entries read, %d kept, %d features of %d", len(entries), len(kept), len(known), cover.Buckets)
}
