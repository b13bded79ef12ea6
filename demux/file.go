package demux

import (
	"errors"
	"os"
	"path/filepath"
)

// file is what the engine needs of a spill file; faults are injected here.
type file interface {
	WriteAt(p []byte, off int64) (int, error)
	ReadAt(p []byte, off int64) (int, error)
	// Punch gives [off, off+n) back to the file system and keeps the size.
	Punch(off, n int64) error
	Truncate(size int64) error
	Close() error
}

// errQuota is a write beyond Options.MaxSpill.
var errQuota = errors.New("beyond Options.MaxSpill")

// spillPrefix names a spill file where it cannot go without a name.
const spillPrefix = "demux-spill-"

// spillDirEnv is where Options.SpillDir comes from when it is empty.
const spillDirEnv = "DEMUX_SPILL_DIR"

// spillDir returns the directory that o means, which was found to be usable.
func spillDir(o Options) (string, error) {
	field, dir := "Options.SpillDir", o.SpillDir
	if dir == "" {
		field, dir = "$"+spillDirEnv, os.Getenv(spillDirEnv)
	}
	if dir != "" {
		if err := usableDir(dir, o.AllowMemoryBacked); err != nil {
			return "", &UsageError{field, dir, "give a writable directory on a disk, or set Policy to Backpressure", err}
		}
		return filepath.Abs(dir)
	}
	var errs []error
	for _, dir := range []string{"/var/tmp", os.TempDir()} {
		err := usableDir(dir, o.AllowMemoryBacked)
		if err == nil {
			return filepath.Abs(dir)
		}
		errs = append(errs, err)
	}
	return "", &UsageError{"Options.SpillDir", `""`, "give a writable directory on a disk, or set Policy to Backpressure", errors.Join(errs...)}
}
