//go:build !linux

package demux

import (
	"errors"
	"os"
)

// usableDir reports why spill files cannot live in dir. What the file system is
// made of is not asked here.
func usableDir(dir string, _ bool) error {
	f, err := openSpill(dir)
	if err != nil {
		return err
	}
	return f.Close()
}

func openSpill(dir string) (file, error) {
	f, err := os.CreateTemp(dir, spillPrefix+"*") // 0600
	if err != nil {
		return nil, err
	}
	return spillFile{f}, nil
}

// spillFile has a name until it is closed.
type spillFile struct{ *os.File }

func (f spillFile) Close() error {
	return errors.Join(f.File.Close(), os.Remove(f.Name()))
}

func (spillFile) Punch(int64, int64) error { return errors.ErrUnsupported }
