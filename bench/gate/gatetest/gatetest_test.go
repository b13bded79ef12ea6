package gatetest

import "testing"

func TestGate(t *testing.T) {
	for r := range All(Real()) {
		t.Logf("%-28s rows %4d rounds %5.1f %v exits %v", r.Name, r.Rows, r.Rounds, r.Verdicts, r.Exits)
		for _, f := range r.Faults {
			t.Errorf("%s (%s): %s", r.Name, r.What, f)
		}
	}
}
