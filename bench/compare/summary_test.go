package compare

import (
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/sandbed/sandbed/bench/gate"
	"github.com/sandbed/sandbed/bench/stat"
)

func TestSummarizeAA(t *testing.T) {
	var records []Record
	for i := range 40 {
		r := Record{Schema: RecordSchema, Kind: KindAA, Rows: []RecordRow{
			{Row: "a", Word: gate.OK, Ratio: math.Exp(0.001 * float64(i-20)), Sigma: 0.02},
			{Row: "b", Word: gate.Inconclusive, Ratio: 1, Sigma: 0.1},
		}}
		switch i {
		case 3:
			r.Exit = gate.ExitInconclusive
		case 4:
			r.Rows[0].Word = gate.Improvement // of the launches; taken back by the controls
		}
		records = append(records, r)
	}
	f := SummarizeAA(records)
	if f.Runs != 40 || f.Alarms != 0 || f.Refused != 1 || f.Words != 1 || len(f.Rows) != 2 {
		t.Errorf("got %+v", f)
	}
	if f.Bound < 0.071 || f.Bound > 0.073 { // what none in 40 proves
		t.Errorf("bound %v, want 7.2 %%", f.Bound)
	}
	if a, b := f.Rows[0], f.Rows[1]; a.Row != "a" || a.N != 40 || math.Abs(a.P95-0.019) > 0.0011 || a.Sigma != 0.02 || a.Undecided != 0 || b.Undecided != 40 {
		t.Errorf("rows %+v", f.Rows)
	}
	records[7].Exit = gate.ExitRegression
	if f := SummarizeAA(records); f.Alarms != 1 || f.Bound <= 0.1 {
		t.Errorf("with one alarm: got %+v", f)
	}
	if f := SummarizeAA(nil); f.Runs != 0 || f.Bound != 0 {
		t.Errorf("of nothing: got %+v", f)
	}
}

func TestSummarizePower(t *testing.T) {
	var records []Record
	for i := range 20 {
		word := gate.Regression
		if i == 0 {
			word = gate.OK
		}
		records = append(records,
			Record{Injected: 0.10, Rows: []RecordRow{
				{Row: "steady", Word: word, Sigma: 0.03, Theta: 0.05},
				{Row: "tight", Word: gate.Regression, Sigma: 0.01, Theta: 0.02},
				{Row: "loud", Word: gate.Inconclusive, Sigma: 0.031, Theta: 0.02},
			}},
			Record{Injected: 0.02, Exit: gate.ExitInconclusive, Rows: []RecordRow{{Row: "steady", Word: gate.Improvement, Sigma: 0.01, Theta: 0.05}}})
	}
	got := SummarizePower(records)
	want := []PowerPoint{
		{Injected: 0.02, Runs: 20, Refused: 20, Wrong: 20, All: Found{0, 20, stat.ClopperPearson(0, 20, 0.95)}, Steady: Found{0, 20, stat.ClopperPearson(0, 20, 0.95)}},
		{Injected: 0.10, Runs: 20, All: Found{39, 60, stat.ClopperPearson(39, 60, 0.95)}, Steady: Found{39, 40, stat.ClopperPearson(39, 40, 0.95)}, Tight: Found{20, 20, stat.ClopperPearson(20, 20, 0.95)}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v, want\n%+v", got, want)
	}
}

func TestRecords(t *testing.T) {
	name := filepath.Join(t.TempDir(), "validation", "aa.ndjson")
	if got, err := ReadRecords(name); len(got) != 0 || err != nil {
		t.Errorf("no file: got %v, %v", got, err)
	}
	r := Record{Schema: RecordSchema, Kind: KindAA, Commit: "abc", Rows: []RecordRow{{Row: "a", Ratio: 1.01, LogRatios: []float64{0.01}}}}
	for range 2 {
		if err := AppendRecord(name, r); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text string
		n    int
		want string
	}{
		{string(data), 2, ""},
		{string(data) + `{"schema":1,"ki`, 2, ""},
		{string(data) + "what?\n", 0, "line 3"},
		{`{"schema":2}` + "\n", 0, "schema 2"},
	} {
		if err := os.WriteFile(name, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := ReadRecords(name)
		if len(got) != c.n || (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.40q: got %d records, %v, want %d, %q", c.text, len(got), err, c.n, c.want)
		}
		if c.n > 0 && !reflect.DeepEqual(got[1], r) {
			t.Errorf("got %+v, want %+v", got[1], r)
		}
	}
}
