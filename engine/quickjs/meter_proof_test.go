package quickjs

import (
	"testing"

	"github.com/sandbed/sandbed/engine/quickjs/meter"
	"github.com/sandbed/sandbed/engine/quickjs/meter/metertest"
)

// The very module that the engine runs, with its table, its evidence and its
// stack check, has no cycle without a check.
func TestEngineModuleHasNoUnmeteredCycle(t *testing.T) {
	ins, err := instrument(true)
	if err != nil {
		t.Fatal(err)
	}
	spec := metertest.Spec{Fuel: meter.FuelExport, HookModule: hostModule, HookName: "hook"}
	v, err := metertest.CheckCycles(ins.Wasm, spec)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range v {
		t.Error(x)
	}
	plain, err := instrument(false)
	if err != nil {
		t.Fatal(err)
	}
	if v, err = metertest.CheckCycles(plain.Wasm, spec); err != nil || len(v) < 100 {
		t.Errorf("the module without checks: %d violations, %v, want hundreds", len(v), err)
	}
}
