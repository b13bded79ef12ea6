package main

import (
	"testing"

	"github.com/sandbed/sandbed/bench"
	"github.com/sandbed/sandbed/bench/workload"
	"github.com/sandbed/sandbed/engine"
)

// TestWorkloads: our engine gives every workload's answer at every size, also
// within the default limits of memory and output.
func TestWorkloads(t *testing.T) {
	in, err := open(t.Context(), bench.Options{Metering: bench.MeteringOn, CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	for _, w := range append(workload.All(), named("reshapes", workload.Reshapes(3))) {
		for _, size := range workload.Sizes {
			t.Run(w.Name+"/"+string(size), func(t *testing.T) {
				c, err := w.Case(size, 1)
				if err != nil {
					t.Fatal(err)
				}
				o, err := in.Backend.Run(t.Context(), engine.Request{Script: w.Script, Input: c.Input, Limits: engine.Limits{WallClock: engine.MaxWallClock}})
				if err != nil {
					t.Fatal(err)
				}
				if o.Class != engine.ClassOK {
					t.Fatalf("got %s: %q", o.Label(), o.Message)
				}
				if err := c.Check(o.Value); err != nil {
					t.Error(err)
				}
				t.Logf("fuel %d, script %v, peak %d", o.Usage.Fuel, o.Usage.Script, o.Usage.PeakMemoryBytes)
			})
		}
	}
}

func named(name string, w workload.Workload) workload.Workload {
	w.Name = name
	return w
}
