package atomicfile

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "f")
	for _, text := range []string{"one", "", "three"} {
		if err := Write(name, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(name); err != nil || string(got) != text {
			t.Errorf("got %q, %v, want %q", got, err, text)
		}
	}
	// A directory of that name cannot be replaced: it stays, and nothing is left beside it.
	other := filepath.Join(dir, "d")
	if err := os.MkdirAll(filepath.Join(other, "full"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Write(other, []byte("x")); err == nil {
		t.Error("a directory was replaced")
	}
	if err := Write(filepath.Join(dir, "none", "f"), nil); err == nil {
		t.Error("a file in a directory that is not there was written")
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 2 {
		t.Errorf("%v, %v: want f and d alone", list, err)
	}
}
