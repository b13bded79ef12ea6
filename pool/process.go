package pool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/sandbed/sandbed/engine"
)

// Command says how the workers of [NewProcesses] are started. The zero value is
// this very binary with nothing to tell it.
type Command struct {
	// Path is the binary, whose main must call [ServeWorker]. Default: the file
	// this process was started from, even if another stands in its place by now.
	Path string
	// Args reach the worker's [Factory] as Boot.Args. Every user of the machine
	// can read them.
	Args []string
	// CacheDir reaches the Factory as Boot.CacheDir: a worker has no environment
	// that would tell it where its user keeps caches. An absolute path or empty.
	CacheDir string
	// MemoryBytes is what a worker may add to the memory that it starts with; its
	// Go heap is asked to stay within half of that. A request's
	// Limits.MemoryBytes and its input must fit in. Default 4 GiB, 64 MiB to 64 GiB.
	MemoryBytes int64
}

// The bounds and the default of Command.MemoryBytes.
const (
	DefaultWorkerMemoryBytes = 4 << 30
	MinWorkerMemoryBytes     = 64 << 20
	MaxWorkerMemoryBytes     = 64 << 30
)

// CommandError is one field of Command that is out of range.
type CommandError struct {
	Field   string // as in the struct
	Value   any
	Allowed string
}

func (e *CommandError) Error() string {
	return fmt.Sprintf("pool: Command.%s = %#v is out of range: %s", e.Field, e.Value, e.Allowed)
}

// Validate reports every field that is out of range, joined; each is a *CommandError.
func (c Command) Validate() error {
	var errs []error
	if c.CacheDir != "" && !filepath.IsAbs(c.CacheDir) {
		errs = append(errs, &CommandError{"CacheDir", c.CacheDir, "give an absolute path, since a worker has a working directory of its own, or none"})
	}
	if c.MemoryBytes != 0 && (c.MemoryBytes < MinWorkerMemoryBytes || c.MemoryBytes > MaxWorkerMemoryBytes) {
		errs = append(errs, &CommandError{"MemoryBytes", c.MemoryBytes, "give 64 MiB to 64 GiB, or 0 for the default of 4 GiB"})
	}
	for _, s := range append([]string{c.Path, c.CacheDir}, c.Args...) {
		if strings.ContainsRune(s, 0) {
			errs = append(errs, &CommandError{"Args", s, "Path, CacheDir and Args cannot hold a zero byte"})
		}
	}
	return errors.Join(errs...)
}

// Boot is what a worker process knows when it makes its VM.
type Boot struct {
	CacheDir string   // Command.CacheDir
	Args     []string // Command.Args
}

// Factory makes the VM of a worker process. When it returns, the process gives
// up files, sockets, processes and new executable memory: all that the VM will
// ever need of those must be in place. Nothing bounds ctx but the life of the process.
type Factory func(ctx context.Context, b Boot) (engine.VM, error)

// Measure is one measure of hardening of a worker process.
type Measure struct {
	Name    string
	Applied bool
	Reason  string // why it was not applied
}

// HardeningError says which measures could not be applied to a worker process
// although Options.RequireHardening asked for them.
type HardeningError struct {
	Missing []Measure
}

func (e *HardeningError) Error() string {
	var b strings.Builder
	for i, m := range e.Missing {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%s (%s)", m.Name, m.Reason)
	}
	return "pool: Options.RequireHardening is set and the worker process could not apply: " + b.String()
}

// workerMarker is the first argument of a worker process.
const workerMarker = "sandbed-worker-process"

// isWorker reports whether this process was started as a worker.
func isWorker() bool { return len(os.Args) > 1 && os.Args[1] == workerMarker }

// errIsWorker keeps a host that forgot ServeWorker from starting itself for ever.
var errIsWorker = errors.New("pool: this process is itself a worker process, and a worker starts no workers: call pool.ServeWorker first thing in main, before anything that makes a pool")
