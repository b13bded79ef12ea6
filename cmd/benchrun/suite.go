package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/sandbed/sandbed/bench"
	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/engine/quickjs"
	"github.com/sandbed/sandbed/pool"
)

// suite is sandbed's own engine, in-process and in pools.
var suite = bench.Suite{
	Engine:    "sandbed engine/quickjs, QuickJS-NG v0.15.1",
	Meterings: []string{bench.MeteringOn, bench.MeteringOff, bench.MeteringCloseOnDone},
	Backends:  backends(),
	Open:      open,
}

func backends() []string {
	b := []string{bench.BackendInProcess, bench.BackendPool}
	if runtime.GOOS == "linux" {
		b = append(b, bench.BackendProcess)
	}
	return b
}

var meterings = map[string]quickjs.Metering{
	bench.MeteringOn:          quickjs.On,
	bench.MeteringOff:         quickjs.Off,
	bench.MeteringCloseOnDone: quickjs.CloseOnDone,
}

// coldStart is the default of a pool six times over: as many processes may
// compile at once as --workers says, on one processor.
const coldStart = time.Minute

func open(ctx context.Context, o bench.Options) (*bench.Instance, error) {
	config := quickjs.Config{CacheDir: o.CacheDir, Metering: meterings[o.Metering], StackBytes: o.StackBytes}
	options := pool.DefaultOptions()
	options.Count, options.Spare = o.Workers, o.Spare
	options.ColdStart = coldStart
	options.CheckLimits = config.CheckLimits
	if o.Backend == bench.BackendProcess {
		return openProcesses(o, options)
	}
	e, err := quickjs.New(ctx, config)
	if err != nil {
		return nil, err
	}
	in := &bench.Instance{NewVM: e.NewVM, FreshRuntime: e.FreshRuntime}
	if o.Backend != bench.BackendPool {
		in.Backend, in.Close = e.InProcess(), e.Close
		return in, nil
	}
	p, err := pool.New(e.NewVM, options)
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	in.Backend = p
	in.Close = func() error { return errors.Join(p.Close(), e.Close()) }
	return in, nil
}

// openProcesses has no engine in this process, only in its workers.
func openProcesses(o bench.Options, options pool.Options) (*bench.Instance, error) {
	dir := cmp.Or(o.CacheDir, quickjs.DefaultCacheDir())
	if dir != "" {
		var err error
		if dir, err = filepath.Abs(dir); err != nil {
			return nil, err
		}
	}
	p, err := pool.NewProcesses(pool.Command{CacheDir: dir, Args: workerArgs(o)}, options)
	if err != nil {
		return nil, err
	}
	return &bench.Instance{Backend: p, Close: p.Close}, nil
}

// workerArgs is what a worker process must know; workerVM reads it.
func workerArgs(o bench.Options) []string {
	return []string{o.Metering, strconv.FormatInt(o.StackBytes, 10)}
}

// workerVM makes the VM of a worker process.
func workerVM(ctx context.Context, b pool.Boot) (engine.VM, error) {
	if len(b.Args) != 2 {
		return nil, fmt.Errorf("benchrun: a worker got the arguments %q, want a metering and a stack size", b.Args)
	}
	stack, err := strconv.ParseInt(b.Args[1], 10, 64)
	if err != nil {
		return nil, fmt.Errorf("benchrun: the stack size of a worker: %w", err)
	}
	e, err := quickjs.New(ctx, quickjs.Config{CacheDir: b.CacheDir, Metering: meterings[b.Args[0]], StackBytes: stack})
	if err != nil {
		return nil, err
	}
	return e.NewVM(ctx)
}
