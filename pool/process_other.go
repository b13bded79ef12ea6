//go:build !linux

package pool

import (
	"errors"
	"fmt"
	"os"
	"runtime"
)

// NewProcesses makes a pool of process workers. It needs Linux: elsewhere it
// returns an error that wraps errors.ErrUnsupported.
func NewProcesses(command Command, options Options) (*Pool, error) {
	return nil, fmt.Errorf("pool: process workers need Linux, this is %s: use pool.New: %w", runtime.GOOS, errors.ErrUnsupported)
}

// ServeWorker does nothing on this platform, which has no process workers.
func ServeWorker(newVM Factory) {
	if isWorker() {
		fmt.Fprintln(os.Stderr, errIsWorker)
		os.Exit(2)
	}
}
