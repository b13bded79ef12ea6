package demux

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestUsageErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for field, change := range map[string]func(*Options){
		"Options.Policy":       func(o *Options) { o.Policy = 4 },
		"Options.MemPerSink":   func(o *Options) { o.MemPerSink = 4<<10 - 1 },
		"Options.MemPerSink ":  func(o *Options) { o.MemPerSink = 1<<30 + 1 },
		"Options.MemPerSink  ": func(o *Options) { *o = Options{} },
		"Options.Quantum":      func(o *Options) { o.Quantum = 0 },
		"Options.Eager":        func(o *Options) { o.Eager, o.Policy = true, Backpressure },
		"Options.MaxSpill":     func(o *Options) { o.MaxSpill = -1 },
		"Options.StallAfter":   func(o *Options) { o.StallAfter = -1 },
		"Options.StallError":   func(o *Options) { o.StallError, o.StallAfter = true, 0 },
		"Options.Cap":          func(o *Options) { o.Cap, o.Policy = 0, CapError },
		"Options.SpillDir":     func(o *Options) { o.SpillDir = filepath.Join(t.TempDir(), "missing") },
		"Options.SpillDir ":    func(o *Options) { o.SpillDir = file },
	} {
		o := DefaultOptions()
		change(&o)
		_, err := New(&fixed{}, o)
		var bad *UsageError
		if !errors.As(err, &bad) || bad.Field != strings.TrimSpace(field) || bad.Allowed == "" {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := New(nil, DefaultOptions()); !errors.As(err, new(*UsageError)) {
		t.Errorf("no source: %v", err)
	}
	// What a policy does not use is not asked of it.
	for _, p := range []Policy{Backpressure, Unbounded, CapError} {
		d, err := New(&fixed{}, Options{Policy: p, MemPerSink: 4096, Cap: 1, SpillDir: "/missing", Patience: -1, SpillFullGrace: -1, ExitDrain: -1})
		if err != nil {
			t.Errorf("%v: %v", p, err)
			continue
		}
		d.Close()
	}
	d, err := New(&fixed{}, DefaultOptions())
	if err != nil {
		t.Fatalf("the defaults: %v", err)
	}
	d.Close()
}

func TestSpillDirFromEnvironment(t *testing.T) {
	t.Setenv("DEMUX_SPILL_DIR", filepath.Join(t.TempDir(), "missing"))
	_, err := New(&fixed{}, DefaultOptions())
	var bad *UsageError
	if !errors.As(err, &bad) || bad.Field != "$DEMUX_SPILL_DIR" {
		t.Errorf("%v", err)
	}
	o := options(Spill, t) // which names one
	d, err := New(&fixed{}, o)
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
}

func TestPolicyNames(t *testing.T) {
	for _, p := range []Policy{Spill, Backpressure, Unbounded, CapError} {
		if got, err := ParsePolicy(p.String()); got != p || err != nil {
			t.Errorf("%v: %v, %v", p, got, err)
		}
	}
	if _, err := ParsePolicy("policy(4)"); !errors.As(err, new(*UsageError)) {
		t.Errorf("%v", err)
	}
}

func TestDefaults(t *testing.T) {
	o := DefaultOptions()
	if o.MemPerSink != 262144 || o.Patience != 20*time.Millisecond || o.Quantum != 65536 || o.Policy != Spill ||
		o.SpillFullGrace != 5*time.Second || o.StallAfter != 30*time.Second || o.ExitDrain != time.Second || o.Cap != 8388608 {
		t.Errorf("%+v", o)
	}
}
