package quickjs_test

import (
	"testing"
	"time"

	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/engine/enginetest"
	"github.com/sandbed/sandbed/engine/quickjs"
)

// Metered code does what the plain code does: every case of the corpus that
// needs no guard of time gives the same outcome from both, memory included.
func TestCorpusPlainAgainstMetered(t *testing.T) {
	metered, err := quickjs.NewTestEngine(t, quickjs.Config{}).NewVM(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer metered.Close()
	plain, err := quickjs.NewTestEngine(t, quickjs.Config{Metering: quickjs.Off}).NewVM(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	compared, left := 0, 0
	for _, c := range enginetest.Cases() {
		for i := range max(len(c.Inputs), 1) {
			r, ok := c.Request(i, 1)
			if !ok {
				continue
			}
			// Fuel is the one bound that the plain build does not have; it keeps
			// what burns away from it.
			r.Limits.WallClock, r.Limits.Fuel = time.Hour, 10_000_000
			want := metered.Eval(t.Context(), r)
			if want.Guard == engine.Fuel {
				left++
				continue
			}
			r.Limits.Fuel = 0
			got := plain.Eval(t.Context(), r)
			compared++
			if got.Class == engine.ClassEngineFault && want.Class == engine.ClassEngineFault {
				continue // the text has the addresses of two builds
			}
			if got.Label() != want.Label() || string(got.Value) != string(want.Value) || got.Message != want.Message || got.JSStack != want.JSStack ||
				got.Usage.PeakMemoryBytes != want.Usage.PeakMemoryBytes {
				t.Errorf("%s: plain gave %s %.80q %q with a peak of %d, metered %s %.80q %q with %d", c.ID,
					got.Label(), got.Value, got.Message, got.Usage.PeakMemoryBytes, want.Label(), want.Value, want.Message, want.Usage.PeakMemoryBytes)
			}
		}
	}
	t.Logf("%d outcomes compared, %d left out for their work", compared, left)
	if compared < 120 {
		t.Errorf("only %d outcomes were compared", compared)
	}
}
