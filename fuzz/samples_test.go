package fuzz_test

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbed/sandbed/bench/gate"
	"github.com/sandbed/sandbed/bench/sample"
)

// FuzzSamples gives the readers of the gate what somebody else may have written: samples,
// a design, waivers, the output of go test -bench. None may panic or let a figure
// through that is not finite; what was read and written is read as the same; and the
// gate makes a report of it that JSON can hold.
func FuzzSamples(f *testing.F) {
	launches := func(rounds int, edit func(*gate.Launch)) string {
		var b bytes.Buffer
		for i := range rounds {
			for _, arm := range []string{gate.Base, gate.Head} {
				l := gate.Launch{Schema: gate.Schema, Row: "wall/row=a", Unit: sample.Seconds, Better: "lower", Lane: gate.Time, Stage: gate.Screen, Arm: arm,
					Round: i, Order: []string{"AB", "BA"}[i%2], Layout: 1, Value: 0.02 + 1e-4*float64(i*7%5), Inner: 5, Batch: 0.02, Started: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
				if arm == gate.Head {
					l.Value *= 1.2
				}
				if edit != nil {
					edit(&l)
				}
				if err := gate.Write(&b, l); err != nil {
					f.Fatal(err)
				}
			}
		}
		return b.String()
	}
	var design bytes.Buffer
	if err := gate.WriteDesign(&design, gate.DefaultDesign([]gate.RowPlan{{Row: "wall/row=a"}, {Row: "wall/row=b", Theta: 0.02, Spread: 0.01}}, 1)); err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{
		launches(10, nil),
		launches(2, nil) + `{"schema":1,"row":"wall/ro`, // interrupted
		launches(10, func(l *gate.Launch) { l.Value = 0 }),
		launches(10, func(l *gate.Launch) { l.Better, l.Unit = "higher", sample.Count }),
		launches(1, func(l *gate.Launch) { l.Lane, l.Unit, l.Order = gate.Exact, sample.Bytes, "" }),
		launches(1, func(l *gate.Launch) { l.Failed, l.Value = "exit status 2\n\xff\u2028", 0 }),
		launches(2, func(l *gate.Launch) { l.Absent = l.Arm == gate.Head }),
		launches(15, func(l *gate.Launch) { l.Stage = gate.Confirm }),
		strings.ReplaceAll(launches(15, nil), `"arm":"head"`, `"control":"null","arm":"null"`),
		strings.Replace(launches(10, nil), `"value":0.02,`, `"value":NaN,`, 1),
		strings.Replace(launches(10, nil), `"value":0.02,`, `"value":1e308,`, 1),
		design.String(),
		"# known\nwall/row=a | sec | 1.12 | 2027-01-31 | #12 | slower parser\n",
		"goos: linux\npkg: example.com/x\nUnit ns/op better=lower\nBenchmarkA-2 100 1200 ns/op 16 B/op 1 allocs/op\nBenchmarkA-2 100 1201 ns/op 16 B/op 1 allocs/op\nPASS\n",
		strings.Repeat("BenchmarkA 1 NaN ns/op\n", 12), strings.Repeat("BenchmarkA 1 +Inf ns/op\n", 12), "BenchmarkA 1 -5 ns/op 0 MB/s\n", "BenchmarkA 1 1e-400 ns/op\n",
		strings.Repeat("BenchmarkA 1 0 ns/op\n", 12),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<20 {
			t.Skip("longer than 1 MiB: the bounds of the readers have tests of their own")
		}
		samples(t, data)
		bench(t, data)
		if d, err := gate.ReadDesign(bytes.NewReader(data)); err == nil {
			var b bytes.Buffer
			if err := gate.WriteDesign(&b, d); err != nil {
				t.Errorf("a design that was read is not written: %v", err)
			}
			if again, err := gate.ReadDesign(&b); err != nil || !reflect.DeepEqual(again, d) {
				t.Errorf("design %+v read again as %+v, %v", d, again, err)
			}
			judged(t, d, nil)
		}
		if waivers, err := gate.ReadWaivers(bytes.NewReader(data)); err == nil {
			for _, w := range waivers {
				if !(w.Ceiling > 1) || math.IsInf(w.Ceiling, 0) || w.Expires.IsZero() || w.Row == "" || w.Issue == "" || w.Reason == "" {
					t.Errorf("waiver %+v was read", w)
				}
			}
		}
	})
}

func samples(t *testing.T, data []byte) {
	launches, cut, err := gate.Read(bytes.NewReader(data))
	if err != nil {
		return
	}
	if last := len(data) - 1 - bytes.LastIndexByte(data, '\n'); cut != last {
		t.Errorf("%d bytes cut, want the %d after the last line", cut, last)
	}
	var b, again bytes.Buffer
	for _, l := range launches {
		if math.IsNaN(l.Value) || math.IsInf(l.Value, 0) {
			t.Errorf("a value of %v was read", l.Value)
		}
	}
	// Text that is not UTF-8 grows when it is written, at most sixfold.
	if err := gate.Write(&b, launches...); err != nil {
		if len(data) < 10_000 {
			t.Errorf("what was read is not written: %v", err)
		}
		return
	}
	written := b.String()
	read, cut, err := gate.Read(&b)
	if err != nil || cut != 0 || len(read) != len(launches) {
		t.Fatalf("%d launches written, %d read, %d bytes cut, %v", len(launches), len(read), cut, err)
	}
	if err := gate.Write(&again, read...); err != nil || again.String() != written {
		t.Errorf("written again as %q, %v, was %q", again.String(), err, written)
	}
	d := gate.DefaultDesign(nil, 1)
	for _, l := range launches {
		if l.Control == "" && len(d.Gated) < gate.MaxGated && !slices.ContainsFunc(d.Gated, func(p gate.RowPlan) bool { return p.Row == l.Row }) {
			d.Gated = append(d.Gated, gate.RowPlan{Row: l.Row, Theta: d.Theta})
		}
	}
	if len(d.Gated) == 0 {
		return
	}
	judged(t, d, launches)
	byRow := map[string][]gate.Launch{}
	for _, l := range launches {
		byRow[l.Row+" "+l.Control] = append(byRow[l.Row+" "+l.Control], l)
	}
	for row, of := range byRow {
		s, err := d.Next(of)
		if err != nil || s.Done != (s.Stage == "") || s.Done != (s.Rounds == 0) {
			t.Errorf("%s: next is %+v, %v", row, s, err)
		}
	}
}

func judged(t *testing.T, d gate.Design, launches []gate.Launch) {
	t.Helper()
	r, err := gate.Decide(d, launches, gate.Options{})
	if err != nil {
		t.Errorf("what was read is not judged: %v", err)
		return
	}
	sound(t, r)
}

func bench(t *testing.T, data []byte) {
	b, err := gate.ReadBench(bytes.NewReader(data), bytes.NewReader(data))
	if err != nil {
		return
	}
	r, err := gate.DecideBench(gate.DefaultDesign(nil, 0), b, gate.Options{})
	if err != nil {
		return // too few values to prove anything
	}
	sound(t, r)
	for _, row := range r.Rows {
		if row.Verdict == gate.Regression || row.Verdict == gate.Improvement || row.Verdict == gate.New || row.Verdict == gate.Removed {
			t.Errorf("a file against itself: %s is %s (%s)", row.Name, row.Verdict, row.Reason)
		}
	}
}

// sound checks what holds of every report.
func sound(t *testing.T, r gate.Report) {
	t.Helper()
	if !slices.Contains([]int{gate.ExitHeld, gate.ExitRegression, gate.ExitInconclusive, gate.ExitFailed}, r.Exit) || r.Verdict == "" || r.Proved == "" {
		t.Errorf("exit %d, verdict %q, proved %q", r.Exit, r.Verdict, r.Proved)
	}
	for _, row := range r.Rows {
		if row.Verdict == "" || row.Reason == "" {
			t.Errorf("%s: verdict %q, reason %q", row.Name, row.Verdict, row.Reason)
		}
		if math.IsNaN(row.Interval.Low) || math.IsNaN(row.Interval.High) || row.Interval.Low > row.Interval.High {
			t.Errorf("%s: interval %v", row.Name, row.Interval)
		}
	}
	if _, err := json.Marshal(r); err != nil {
		t.Errorf("report: %v", err)
	}
}
