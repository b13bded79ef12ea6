// Package faults plants faults in this module's own source, one at a time, and runs
// the tests that are meant to find them: a test that has never failed proves
// nothing. The product has no hooks for it; a fault is an edit that the go command
// lays over the source while it builds (go test -overlay).
package faults

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

//go:embed manifest.json
var manifest []byte

// Fault is one edit and what must find it.
type Fault struct {
	ID   string `json:"id"`
	What string `json:"what"` // what the edited code does wrong
	File string `json:"file"` // below the module's root
	// Old must occur exactly once in File; a fault that does not is stale.
	Old string `json:"old"`
	New string `json:"new"`
	// Killers are the tests that are meant to find it: go test PACKAGE -run 'PATTERN'.
	// One of them is enough.
	Killers []string `json:"killers"`
	Budget  string   `json:"budget"` // how long one killer may take, as a duration
}

var killerForm = regexp.MustCompile(`^go test (\./\S+) -run '([^']+)'$`)

// Killer is a test that is meant to find a fault.
type Killer struct {
	Package string // "./properties"
	Pattern string // of -run
}

// Manifest is every fault that is known, checked: ids are unique, and every field says
// something. The error names what does not.
func Manifest() ([]Fault, error) {
	d := json.NewDecoder(bytes.NewReader(manifest))
	d.DisallowUnknownFields()
	var list []Fault
	if err := d.Decode(&list); err != nil {
		return nil, fmt.Errorf("faults: manifest.json: %w", err)
	}
	seen := map[string]bool{}
	for _, f := range list {
		bad := func(field, value, remedy string) error {
			return fmt.Errorf("faults: %q: %s = %q: %s", f.ID, field, value, remedy)
		}
		switch {
		case f.ID == "" || seen[f.ID]:
			return nil, bad("id", f.ID, "give one of its own")
		case f.What == "":
			return nil, bad("what", f.What, "say what the code does wrong")
		case f.Old == "" || f.Old == f.New:
			return nil, bad("old", f.Old, "give text that new replaces")
		case !filepath.IsLocal(f.File):
			return nil, bad("file", f.File, "give a path below the module's root")
		case len(f.Killers) == 0:
			return nil, bad("killers", "", "name a test that finds it")
		}
		if d, err := time.ParseDuration(f.Budget); err != nil || d <= 0 {
			return nil, bad("budget", f.Budget, "give a duration, such as 60s")
		}
		for _, k := range f.Killers {
			if !killerForm.MatchString(k) {
				return nil, bad("killers", k, "give go test ./PACKAGE -run 'PATTERN'")
			}
		}
		seen[f.ID] = true
	}
	return list, nil
}

func (f Fault) killers() []Killer {
	var list []Killer
	for _, k := range f.Killers {
		m := killerForm.FindStringSubmatch(k)
		list = append(list, Killer{m[1], m[2]})
	}
	return list
}

// Edited is the content of File with the fault in it. The error says that the
// fault is stale.
func (f Fault) Edited(root string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(root, f.File))
	if err != nil {
		return nil, fmt.Errorf("faults: %s is stale: %w", f.ID, err)
	}
	if n := strings.Count(string(text), f.Old); n != 1 {
		return nil, fmt.Errorf("faults: %s is stale: its text occurs %d times in %s, want once", f.ID, n, f.File)
	}
	return []byte(strings.Replace(string(text), f.Old, f.New, 1)), nil
}

// The ways in which a run of a killer ends.
const (
	Detected = "detected" // the test failed, or panicked
	Hung     = "hung"     // it passed its budget: found, though not by an assertion
	Survived = "survived"
)

// Run is one run of one killer.
type Run struct {
	Killer Killer
	Seed   int64 // given to the properties; other tests draw their own
	How    string
	Took   time.Duration // of the test, without its build
}

// Found says whether the run found the fault.
func (r Run) Found() bool { return r.How != Survived }

// Bench builds and runs killers in a directory of its own. Not for concurrent use.
type Bench struct {
	root, dir string
	built     map[string]string // test binaries by fault and package
}

// NewBench makes a Bench for the module at root; Close removes what it built.
func NewBench(root string) (*Bench, error) {
	dir, err := os.MkdirTemp("", "sandbed-faults-")
	if err != nil {
		return nil, err
	}
	return &Bench{root: root, dir: dir, built: map[string]string{}}, nil
}

// Close removes what was built.
func (b *Bench) Close() error { return os.RemoveAll(b.dir) }

// Plant runs the killers of a fault until one finds it, each with a seed of its own
// drawn from seed. The error is a fault that is stale or does not build.
func (b *Bench) Plant(ctx context.Context, f Fault, seed int64) ([]Run, error) {
	edited, err := f.Edited(b.root)
	if err != nil {
		return nil, err
	}
	replaced := filepath.Join(b.dir, "edited.go")
	overlay := filepath.Join(b.dir, "overlay.json")
	plan, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(b.root, f.File): replaced}})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.WriteFile(replaced, edited, 0o600), os.WriteFile(overlay, plan, 0o600)); err != nil {
		return nil, err
	}
	return b.run(ctx, f, seed, f.ID, "-overlay", overlay)
}

// Clean runs the same killers on the source as it is: none may find anything.
func (b *Bench) Clean(ctx context.Context, f Fault, seed int64) ([]Run, error) {
	return b.run(ctx, f, seed, "")
}

func (b *Bench) run(ctx context.Context, f Fault, seed int64, id string, flags ...string) ([]Run, error) {
	budget, err := time.ParseDuration(f.Budget)
	if err != nil {
		return nil, err
	}
	draw := rand.New(rand.NewPCG(uint64(seed), 1))
	var runs []Run
	for _, k := range f.killers() {
		binary, err := b.build(ctx, id, k.Package, flags)
		if err != nil {
			return runs, fmt.Errorf("faults: %s: %w", f.ID, err)
		}
		r, err := b.one(ctx, binary, k, budget, int64(draw.Uint64()>>1))
		if err != nil {
			return runs, err
		}
		if runs = append(runs, r); id != "" && r.Found() {
			break
		}
	}
	return runs, nil
}

// build makes the test binary of a package, once for each fault.
func (b *Bench) build(ctx context.Context, id, pkg string, flags []string) (string, error) {
	key := id + " " + pkg
	if path, ok := b.built[key]; ok {
		return path, nil
	}
	path := filepath.Join(b.dir, fmt.Sprintf("%d.test", len(b.built)))
	args := slices.Concat([]string{"test", "-c", "-o", path}, flags, []string{pkg})
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = b.root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s does not build: %w\n%s", pkg, err, out)
	}
	b.built[key] = path
	return path, nil
}

func (b *Bench) one(ctx context.Context, binary string, k Killer, budget time.Duration, seed int64) (Run, error) {
	r := Run{Killer: k, Seed: seed}
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	args := []string{"-test.run", k.Pattern, "-test.v"}
	if k.Package == "./properties" {
		args = append(args, fmt.Sprintf("-seed=%d", seed))
	}
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = filepath.Join(b.root, k.Package)
	cmd.WaitDelay = time.Second
	start := time.Now()
	out, err := cmd.CombinedOutput()
	r.Took = time.Since(start)
	var exit *exec.ExitError
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		r.How = Hung
	case ctx.Err() != nil:
		return r, context.Cause(ctx)
	case err == nil && !bytes.Contains(out, []byte("--- PASS")):
		return r, fmt.Errorf("faults: %s -run '%s' runs no test: the killer is stale\n%.1000s", k.Package, k.Pattern, out)
	case err == nil:
		r.How = Survived
	case errors.As(err, &exit):
		r.How = Detected
	default:
		return r, err
	}
	return r, nil
}
