package quickjs_test

import (
	"testing"

	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/engine/enginetest"
	"github.com/sandbed/sandbed/engine/quickjs"
)

func TestConformance(t *testing.T) {
	report := enginetest.Run(t, func(tb testing.TB) engine.Backend {
		return quickjs.NewTestEngine(tb, quickjs.Config{}).InProcess()
	})
	list, err := enginetest.InexactCases()
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Records) < len(enginetest.Cases()) {
		return // a filtered run cannot tell stale lines
	}
	for _, f := range enginetest.CheckInexact(list, report.Records) {
		t.Error(f)
	}
	exact := 0
	for _, r := range report.Records {
		if r.Exact {
			exact++
		}
	}
	t.Logf("%d of %d cases exactly as expected", exact, len(report.Records))
}
