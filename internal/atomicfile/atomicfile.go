// Package atomicfile writes files that are there whole or as they were.
package atomicfile

import (
	"os"
	"path/filepath"
)

// Write writes beside the file, with mode 0644, and renames: a reader sees the old file
// or the new one. What was written of a file that failed is removed.
func Write(name string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), ".tmp-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	if _, err = f.Write(data); err == nil {
		err = f.Chmod(0o644)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
