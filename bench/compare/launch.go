package compare

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/sandbed/sandbed/bench"
)

const (
	// launchTimeout ends a launch that hangs. One takes about a quarter of a second.
	launchTimeout = 2 * time.Minute
	// killGrace is how long a killed process may keep its pipes open.
	killGrace = 5 * time.Second
	// maxOutput bounds what a launch may print. A reading takes about 1 KiB, a list 10.
	maxOutput = 1 << 20
	// inputSeed makes the inputs of the workloads: the same in every comparison, so
	// that the exact values can be compared over time.
	inputSeed = 1
)

// launch is one process to start.
type launch struct {
	arm    string
	layout int
	row    string
	batch  int     // 0 sizes it
	inject float64 // share
	exact  bool
}

// start starts a launch and returns what it measured.
func (w *workspace) start(ctx context.Context, l launch) (r bench.Reading, err error) {
	binary, err := w.binary(ctx, l.arm, l.layout)
	if err != nil {
		return r, err
	}
	args := []string{"sample", "--row", l.row, "--seed", strconv.Itoa(inputSeed), "--cache-dir", filepath.Join(w.dir, "cache")}
	if l.batch > 0 {
		args = append(args, "--batch", strconv.Itoa(l.batch))
	}
	if l.inject > 0 {
		args = append(args, "--inject", strconv.FormatFloat(100*l.inject, 'g', 10, 64))
	}
	if l.exact {
		args = append(args, "--exact")
	}
	if err := w.call(ctx, binary, &r, args...); err != nil {
		return r, err
	}
	switch {
	case r.Schema != bench.LaunchSchema:
		return r, fmt.Errorf("its reading has schema %d, this benchrun reads %d", r.Schema, bench.LaunchSchema)
	case r.Row != l.row, !(r.Value > 0), l.batch > 0 && r.Batch != l.batch:
		return r, fmt.Errorf("it answered for row %.100q with %v in batches of %d, asked for %s in batches of %d", r.Row, r.Value, r.Batch, l.row, l.batch)
	}
	return r, nil
}

// list asks a build what it can measure.
func (w *workspace) list(ctx context.Context, binary string) (l bench.Listing, err error) {
	if err := w.call(ctx, binary, &l, "sample", "--list"); err != nil {
		return l, fmt.Errorf("it cannot list its rows; is it older than the command sample? %w", err)
	}
	if l.Schema != bench.LaunchSchema {
		return l, fmt.Errorf("its list has schema %d, this benchrun reads %d: compare with the benchrun of that time", l.Schema, bench.LaunchSchema)
	}
	return l, nil
}

// call runs a build and decodes the one line of JSON that it prints.
func (w *workspace) call(ctx context.Context, binary string, into any, args ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, launchTimeout, fmt.Errorf("it did not end within %v", launchTimeout))
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = w.dir
	cmd.Env = launchEnv()
	out, errs := &capped{left: maxOutput}, &capped{left: maxOutput}
	cmd.Stdout, cmd.Stderr = out, errs
	group(cmd)
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("%w: %s", err, tail(errs.Bytes()))
	}
	if err := json.Unmarshal(out.Bytes(), into); err != nil {
		return fmt.Errorf("it printed %.200q, which is not the line of JSON that was asked for: %w", out.Bytes(), err)
	}
	return nil
}

// maxProcs is GOMAXPROCS of a launch: enough for the collector to run beside the work.
const maxProcs = 2

// launchEnv is the environment of every launch: its size moves the stack, and what is in it may
// change what is measured, so that only what is needed passes.
func launchEnv() []string {
	env := []string{fmt.Sprintf("GOMAXPROCS=%d", min(maxProcs, runtime.NumCPU()))}
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "XDG_CACHE_HOME", "SYSTEMROOT", "GODEBUG"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// capped keeps the first bytes of what is written and drops the rest.
type capped struct {
	bytes.Buffer
	left int
}

func (c *capped) Write(p []byte) (int, error) {
	n := min(len(p), c.left)
	c.left -= n
	c.Buffer.Write(p[:n])
	return len(p), nil
}
