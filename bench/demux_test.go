package bench

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/demux/demuxtest"
)

func demuxRows(t *testing.T) *meter {
	t.Helper()
	m := &meter{ctx: t.Context(), plan: Plan{Quick: true}}
	if err := m.demux(); err != nil {
		t.Fatal(err)
	}
	if len(m.run.Broken) > 0 {
		t.Fatal(m.run.Broken)
	}
	if err := m.run.Validate(); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestDemuxRows: the exact rows are those of the experiment, the same each time,
// and every case has a row of time.
func TestDemuxRows(t *testing.T) {
	t.Setenv("DEMUX_SPILL_DIR", t.TempDir())
	m := demuxRows(t)
	value := func(name string) float64 {
		t.Helper()
		s, ok := m.run.Find("demux/" + name)
		if !ok {
			t.Fatalf("no row %s", name)
		}
		return s.Value / demuxtest.Chunk
	}
	for _, c := range []struct {
		name string
		want float64 // chunks
	}{
		{"policy=unbounded/order=I5/stderr=absent/figure=memory", 25},
		{"policy=unbounded/order=I5/stderr=absent/figure=disk", 0},
		{"policy=cap-8/order=I1/stderr=lag-10ms/figure=memory", 10},
		{"policy=backpressure/order=I3/stderr=lag-10ms/figure=memory", 2},
		{"policy=spill/order=I1/stderr=absent/figure=memory", 2},
		{"policy=spill/order=I1/stderr=absent/figure=disk", 23},
		{"policy=spill/order=I1/stderr=lag-10ms/figure=disk", 0},
		{"policy=spill/order=I8/stderr=absent/figure=memory", 1},
	} {
		if got := value(c.name); got != c.want {
			t.Errorf("%s: %v chunks, want %v", c.name, got, c.want)
		}
	}
	exact, timed := 0, 0
	for _, s := range m.run.Samples {
		if s.Exact {
			exact++
			continue
		}
		timed++
		if s.Unit != sample.Ratio || s.Value <= 0 || s.Count != 4 || !strings.HasSuffix(s.Name, "/figure=cost") {
			t.Errorf("%+v", s)
		}
	}
	if exact != 2*6*8*2 || timed != 5 {
		t.Errorf("%d exact rows and %d of time, want 192 and 5", exact, timed)
	}
	end, _ := m.run.Find("demux/policy=backpressure/order=I1/stderr=absent/figure=memory")
	if end.Config["end"] != "stalled" {
		t.Errorf("backpressure with nobody at stderr ended %q", end.Config["end"])
	}
	again := demuxRows(t)
	for i, s := range m.run.Samples {
		if s.Exact && fmt.Sprint(s) != fmt.Sprint(again.run.Samples[i]) {
			t.Errorf("not the same twice: %v, then %v", s, again.run.Samples[i])
		}
	}
}
