package metertest_test

import (
	"testing"

	quickjs "github.com/aperturerobotics/go-quickjs-wasi-reactor"

	"github.com/sandbed/sandbed/engine/quickjs/meter"
	"github.com/sandbed/sandbed/engine/quickjs/meter/metertest"
)

var spec = metertest.Spec{Fuel: meter.FuelExport, HookModule: "sandbed", HookName: "hook"}

func options() meter.Options {
	var o meter.Options
	o.Hook.Module, o.Hook.Name = spec.HookModule, spec.HookName
	return o
}

// The pinned QuickJS has no cycle without a check.
func TestQuickJSHasNoUnmeteredCycle(t *testing.T) {
	o := options()
	o.StackPointer = "__stack_pointer"
	ins, err := meter.Instrument(quickjs.QuickJSWASM, o)
	if err != nil {
		t.Fatal(err)
	}
	v, err := metertest.CheckCycles(ins.Wasm, spec)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range v {
		t.Error(x)
	}
}

func TestLongestRunTmp(t *testing.T) {
	o := options()
	o.StackPointer = "__stack_pointer"
	ins, err := meter.Instrument(quickjs.QuickJSWASM, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(metertest.LongestRun(ins.Wasm, spec))
}
