package sample

import (
	"bytes"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	for _, c := range []struct {
		values []float64
		p      float64
		want   float64
	}{
		{[]float64{3}, 0.99, 3},
		{[]float64{4, 1, 3, 2}, 0, 1},
		{[]float64{4, 1, 3, 2}, 0.5, 2.5},
		{[]float64{4, 1, 3, 2}, 1, 4},
		{[]float64{5, 1, 3}, 0.5, 3},
		{[]float64{0, 10}, 0.25, 2.5},
	} {
		if got := Quantile(c.values, c.p); got != c.want {
			t.Errorf("Quantile(%v, %v): got %v, want %v", c.values, c.p, got, c.want)
		}
	}
	if got := Quantile(nil, 0.5); !math.IsNaN(got) {
		t.Errorf("Quantile of nothing: got %v, want NaN", got)
	}
	if got := GeometricMean([]float64{1, 4}); math.Abs(got-2) > 1e-12 {
		t.Errorf("GeometricMean(1, 4): got %v, want 2", got)
	}
}

func TestName(t *testing.T) {
	s := New("wall/workload=join/size=medium", Seconds, []float64{1})
	if s.Group() != "wall" || s.Key("workload") != "join" || s.Key("size") != "medium" || s.Key("work") != "" {
		t.Errorf("got group %q, workload %q, size %q, work %q", s.Group(), s.Key("workload"), s.Key("size"), s.Key("work"))
	}
}

func TestValidate(t *testing.T) {
	ok := New("wall/workload=join", Seconds, []float64{2, 1, 3})
	for _, c := range []struct {
		change func(*Sample)
		want   string // "" for valid
	}{
		{func(*Sample) {}, ""},
		{func(s *Sample) { s.Name = "fresh" }, ""},
		{func(s *Sample) { s.Name = "" }, "name"},
		{func(s *Sample) { s.Name = "wall/join" }, "name"},
		{func(s *Sample) { s.Name = "wall/a=b c" }, "name"},
		{func(s *Sample) { s.Unit = "ms" }, "unit"},
		{func(s *Sample) { s.Count = 0 }, "count"},
		{func(s *Sample) { s.Count = 2 }, "count"},
		{func(s *Sample) { s.Value = math.NaN() }, "value"},
		{func(s *Sample) { s.Values = []float64{1, math.Inf(1), 2} }, "values"},
	} {
		s := ok
		c.change(&s)
		err := s.Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want+" = ") {
			t.Errorf("%+v: got %v, want a complaint about %q", s, err, c.want)
		}
	}
	if err := (Run{Samples: []Sample{ok, ok}}).Validate(); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("a name that occurs twice: got %v", err)
	}
}

func TestEncodeDecode(t *testing.T) {
	for _, samples := range [][]Sample{{}, {
		New("wall/workload=join", Seconds, []float64{2, 1, 3}),
		{Name: "fuel", Unit: Fuel, Value: 12, Count: 3, Exact: true, Config: map[string]string{"metering": "on"}, Warnings: []string{"odd"}},
	}} {
		r := Run{Schema: Schema, Started: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC), Took: 1.5, Environment: Environment{Go: "go1.26", Cores: 2}, Samples: samples}
		b, err := Encode(r)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(bytes.NewReader(b))
		if err != nil {
			t.Fatalf("%v in\n%s", err, b)
		}
		if !reflect.DeepEqual(got, r) {
			t.Errorf("got %+v, want %+v", got, r)
		}
	}
	if _, err := Decode(strings.NewReader(`{"schema": 2}`)); err == nil || !strings.Contains(err.Error(), "schema 2") {
		t.Errorf("another schema: got %v", err)
	}
}

func TestTraces(t *testing.T) {
	ok := Trace{Name: "gaps/of=reshapes/backend=pool", Seconds: 1.5, Gaps: [][2]float64{{0.5, 0.25}, {1, 0.003}}}
	r := Run{Schema: Schema, Started: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC), Samples: []Sample{}, Traces: []Trace{ok, {Name: "gaps", Gaps: [][2]float64{}}}}
	b, err := Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Decode(bytes.NewReader(b)); err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("got %+v, %v, want %+v from\n%s", got, err, r, b)
	}
	if n := bytes.Count(b, []byte("0.25")); n != 1 || !bytes.Contains(b, []byte(`[[0.5,0.25],[1,0.003]]`)) {
		t.Errorf("a trace is not one line in\n%s", b)
	}
	for _, c := range []struct {
		traces []Trace
		want   string
	}{
		{[]Trace{{Name: "a b"}}, "name"},
		{[]Trace{{Name: "gaps", Seconds: -1}}, "finite"},
		{[]Trace{{Name: "gaps", Seconds: math.NaN()}}, "finite"},
		{[]Trace{{Name: "gaps", Gaps: [][2]float64{{0, math.Inf(1)}}}}, "finite"},
		{[]Trace{{Name: "gaps", Gaps: [][2]float64{{-1, 1}}}}, "finite"},
		{[]Trace{ok, ok}, "twice"},
	} {
		if err := (Run{Traces: c.traces}).Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %v, want a complaint about %q", c.traces, err, c.want)
		}
	}
}
