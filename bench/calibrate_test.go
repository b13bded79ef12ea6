package bench

import (
	"slices"
	"strings"
	"testing"
)

func TestCalibrate(t *testing.T) {
	c, err := Calibrate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rows := c.Samples("before")
	if len(rows) != len(kernels) || len(rows) < 5 {
		t.Fatalf("got %d rows, want one for each of %d kernels", len(rows), len(kernels))
	}
	for _, s := range rows {
		if err := s.Validate(); err != nil {
			t.Error(err)
		}
		// A kernel that takes no time was optimised away or does nothing.
		if s.Value < 100e-6 || s.Count != kernelReadings-kernelDropped {
			t.Errorf("%s: got %v s from %d readings, want at least 100 µs from %d", s.Name, s.Value, s.Count, kernelReadings-kernelDropped)
		}
	}
	f := c.Fitness(c)
	if len(f.Kernels) != len(kernels) || f.Kernels[0].Drift != 0 || f.Kernels[0].Before != rows[0].Value {
		t.Errorf("got %+v, want the kernels as they were, without drift", f)
	}
}

func TestFitness(t *testing.T) {
	steady := func() Calibration {
		c := Calibration{ticks: procStat{total: 1000, steal: 10}}
		for range kernels {
			c.values = append(c.values, []float64{1, 1, 1, 1, 1, 1, 1})
		}
		return c
	}
	for _, c := range []struct {
		name  string
		spoil func(before, after *Calibration)
		want  string // in the only reason; "" if fit
	}{
		{"steady", func(_, _ *Calibration) {}, ""},
		{"steal at its bound", func(_, a *Calibration) { a.ticks.steal += 50 }, ""},
		{"steal above it", func(_, a *Calibration) { a.ticks.steal += 51 }, "hypervisor"},
		{"one reading far off", func(b, _ *Calibration) { b.values[0][3] = 1.2 }, ""},
		{"spread before", func(b, _ *Calibration) { b.values[0] = []float64{1, 1, 1, 1, 1, 1.2, 1.2} }, "arithmetic spreads"},
		{"spread after", func(_, a *Calibration) { a.values[0] = []float64{1, 1, 1, 1, 1, 1.2, 1.2} }, "arithmetic spreads"},
		{"memory moves", func(b, a *Calibration) {
			b.values[1], a.values[1] = []float64{1, 1, 1, 1, 1, 2, 2}, slices.Repeat([]float64{9}, 7)
		}, ""},
		{"slower after", func(_, a *Calibration) { a.values[4] = slices.Repeat([]float64{1.11}, 7) }, "timer drifted by +11"},
		{"faster after", func(_, a *Calibration) { a.values[4] = slices.Repeat([]float64{0.89}, 7) }, "timer drifted by -11"},
		{"drift at its bound", func(_, a *Calibration) { a.values[0] = slices.Repeat([]float64{1.0999}, 7) }, ""},
	} {
		b, a := steady(), steady()
		a.ticks.total += 1000
		c.spoil(&b, &a)
		f := b.Fitness(a)
		if got := strings.Join(f.Reasons, "; "); f.Fit != (c.want == "") || !strings.Contains(got, c.want) || len(f.Reasons) > 1 {
			t.Errorf("%s: got fit %t, %q, want %q", c.name, f.Fit, got, c.want)
		}
	}
}

func TestProc(t *testing.T) {
	got := parseProcStat("cpu  10 20 30 40 50 60 70 80 90 100\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
	if want := (procStat{total: 360, steal: 80}); got != want {
		t.Errorf("stat: got %+v, want %+v: guest time is part of user", got, want)
	}
	for _, text := range []string{"", "cpu 1 2 3", "intr 1 2 3 4 5 6 7 8 9", "cpu 1 2 3 4 5 6 7 x"} {
		if got := parseProcStat(text); got != (procStat{}) {
			t.Errorf("stat %q: got %+v, want nothing", text, got)
		}
	}
	if got := parsePressure("some avg10=12.34 avg60=1.00 avg300=0.00 total=1\nfull avg10=9.00 avg60=0 avg300=0 total=0\n"); got != 12.34 {
		t.Errorf("pressure: got %v, want 12.34", got)
	}
	if got := parsePressure("full avg10=9.00"); got != -1 {
		t.Errorf("pressure without a line: got %v, want -1", got)
	}
}
