//go:build unix

package engine

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestDirStoreRefusesWhatIsNoFile(t *testing.T) {
	d, dir := openDir(t)
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Fetch(t.Context(), "pipe", 10); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("got %v", err)
	}
}
