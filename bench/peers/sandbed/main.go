// Command sandbed serves our own engine to bench/peers, in the same way as the
// others.
package main

import (
	"context"

	"github.com/sandbed/sandbed/bench/peers"
	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/engine/quickjs"
)

func main() {
	var list []peers.Peer
	for _, m := range []struct {
		name     string
		metering quickjs.Metering
		settings string
	}{
		{"sandbed", quickjs.On, "Config as it comes: Metering On; InProcess"},
		{"sandbed-off", quickjs.Off, "Metering Off: the interrupt handler of QuickJS alone; InProcess"},
		{"sandbed-close", quickjs.CloseOnDone, "Metering CloseOnDone: wazero's WithCloseOnContextDone; InProcess"},
	} {
		list = append(list, peers.Peer{
			Info: peers.Info{Name: m.name, Version: "this tree (QuickJS-NG 0.15.1 on wazero v1.12.0)", Settings: m.settings,
				Docs: "https://pkg.go.dev/github.com/sandbed/sandbed/engine/quickjs"},
			Open: func(ctx context.Context) (engine.Backend, error) {
				e, err := quickjs.New(ctx, quickjs.Config{Metering: m.metering})
				if err != nil {
					return nil, err
				}
				return backend{e.InProcess(), e}, nil
			},
		})
	}
	peers.Serve(list...)
}

// backend takes scripts as the others do and closes its engine.
type backend struct {
	engine.Backend
	e *quickjs.Engine
}

func (b backend) Close() error { return b.e.Close() }
