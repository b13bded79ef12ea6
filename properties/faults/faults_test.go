package faults

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

// Every fault can still be planted.
func TestManifestIsFresh(t *testing.T) {
	list, err := Manifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(list) < 38 {
		t.Errorf("%d faults, there were 38", len(list))
	}
	for _, f := range list {
		if _, err := f.Edited(root); err != nil {
			t.Error(err)
		}
		for _, k := range f.killers() {
			if _, err := os.Stat(filepath.Join(root, k.Package)); err != nil {
				t.Errorf("%s: %v", f.ID, err)
			}
		}
	}
}

// A module of its own: one function and one test.
func module(t *testing.T) string {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":         "module example.com/m\n\ngo 1.26\n",
		"m/sum.go":       "package m\n\nfunc Sum(a, b int) int { return a + b }\n",
		"m/sum_test.go":  "package m\n\nimport \"testing\"\n\nfunc TestSum(t *testing.T) {\n\tif Sum(2, 3) != 5 {\n\t\tt.Fatal(\"wrong\")\n\t}\n}\n\nfunc TestZero(t *testing.T) { Sum(0, 0) }\n",
		"properties/x":   "",
		"m/testdata/big": "",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestPlant(t *testing.T) {
	dir := module(t)
	b, err := NewBench(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	fault := func(old, new, pattern string) Fault {
		return Fault{ID: old + new + pattern, What: "w", File: "m/sum.go", Old: old, New: new, Killers: []string{"go test ./m -run '" + pattern + "'"}, Budget: "30s"}
	}
	for _, tt := range []struct {
		name string
		f    Fault
		how  string
		err  string
	}{
		{"found", fault("a + b", "a - b", "^TestSum$"), Detected, ""},
		{"by a test that does not look", fault("a + b", "a - b", "^TestZero$"), Survived, ""},
		{"equivalent", fault("a + b", "b + a", "^TestSum$"), Survived, ""},
		{"a panic", fault("return a + b", "panic(a)", "^TestZero$"), Detected, ""},
		{"stale", fault("a * b", "a", "^TestSum$"), "", "occurs 0 times"},
		{"does not build", fault("a + b", "a +", "^TestSum$"), "", "does not build"},
		{"no such test", fault("a + b", "a - b", "^TestNone$"), "", "runs no test"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			runs, err := b.Plant(t.Context(), tt.f, 1)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("got %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil || len(runs) != 1 || runs[0].How != tt.how {
				t.Fatalf("got %+v, %v, want %s", runs, err, tt.how)
			}
			if runs, err := b.Clean(t.Context(), tt.f, 1); err != nil || runs[0].Found() {
				t.Errorf("clean: %+v, %v", runs, err)
			}
		})
	}
	hang := fault("return a + b", "for { }", "^TestSum$")
	hang.Budget = "1s"
	if runs, err := b.Plant(t.Context(), hang, 1); err != nil || runs[0].How != Hung {
		t.Errorf("a hang: %+v, %v", runs, err)
	}
}
