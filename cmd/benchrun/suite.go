package main

import (
	"context"

	"github.com/sandbed/sandbed/bench"
	"github.com/sandbed/sandbed/engine/quickjs"
)

// suite is sandbed's own engine, in-process.
var suite = bench.Suite{
	Engine:    "sandbed engine/quickjs, QuickJS-NG v0.15.1",
	Meterings: []string{bench.MeteringOn, bench.MeteringOff, bench.MeteringCloseOnDone},
	Open:      open,
}

var meterings = map[string]quickjs.Metering{
	bench.MeteringOn:          quickjs.On,
	bench.MeteringOff:         quickjs.Off,
	bench.MeteringCloseOnDone: quickjs.CloseOnDone,
}

func open(ctx context.Context, o bench.Options) (*bench.Instance, error) {
	e, err := quickjs.New(ctx, quickjs.Config{CacheDir: o.CacheDir, Metering: meterings[o.Metering], StackBytes: o.StackBytes})
	if err != nil {
		return nil, err
	}
	return &bench.Instance{Backend: e.InProcess(), NewVM: e.NewVM, FreshRuntime: e.FreshRuntime, Close: e.Close}, nil
}
