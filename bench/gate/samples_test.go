package gate

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/bench/stat"
)

// launch is one that is valid.
func launch(row, arm string, round int, value float64) Launch {
	return Launch{Schema: Schema, Row: row, Unit: sample.Seconds, Better: "lower", Lane: Time, Stage: Screen, Arm: arm, Round: round, Order: "AB",
		First: arm == Base, Layout: 1, Value: value, Inner: 5, Batch: 0.02, Started: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)}
}

func TestWriteAndRead(t *testing.T) {
	failed := launch("wall/row=a", Head, 1, 0)
	failed.Failed = "exit status 2: <\u2028> & \"quoted\""
	absent := launch("wall/row=b", Base, 0, 0)
	absent.Absent = true
	want := []Launch{launch("wall/row=a", Base, 0, 1e-9), launch("wall/row=a", Head, 0, math.MaxFloat64), failed, absent}
	var b bytes.Buffer
	if err := Write(&b, want[:2]...); err != nil {
		t.Fatal(err)
	}
	if err := Write(&b, want[2:]...); err != nil { // as a runner appends
		t.Fatal(err)
	}
	if lines := bytes.Count(b.Bytes(), []byte("\n")); lines != len(want) {
		t.Errorf("%d lines, want %d", lines, len(want))
	}
	got, cut, err := Read(bytes.NewReader(b.Bytes()))
	if err != nil || cut != 0 || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %d, %v, want %+v", got, cut, err, want)
	}
	if got, cut, err := Read(strings.NewReader("")); got != nil || cut != 0 || err != nil {
		t.Errorf("an empty file: %v, %d, %v", got, cut, err)
	}
}

func TestReadRefuses(t *testing.T) {
	good, err := json.Marshal(launch("wall/row=a", Base, 0, 1))
	if err != nil {
		t.Fatal(err)
	}
	line := string(good)
	change := func(from, to string) string {
		if !strings.Contains(line, from) {
			t.Fatalf("%s is not in %s", from, line)
		}
		return strings.Replace(line, from, to, 1)
	}
	for _, c := range []struct{ name, line, want string }{
		{"no JSON", "{", "line 2"},
		{"an empty line", "", "line 2"},
		{"twice", line, "twice"},
		{"another schema", change(`"schema":1`, `"schema":2`), "schema = 2: this build reads schema 1"},
		{"no schema", change(`"schema":1,`, ``), "schema = 0"},
		{"row", change(`wall/row=a`, `no row`), "name"},
		{"unit", change(`"unit":"sec"`, `"unit":"ns"`), "unit"},
		{"better", change(`"lower"`, `"less"`), "give lower or higher"},
		{"lane", change(`"lane":"time"`, `"lane":"slow"`), "give time or exact"},
		{"stage", change(`"screen"`, `"first"`), "give screen or confirm"},
		{"control", change(`"arm"`, `"control":"other","arm"`), "give null, injected or nothing"},
		{"arm", change(`"arm":"base"`, `"arm":"injected"`), "give base or head"},
		{"arm of a control", change(`"arm":"base"`, `"control":"null","arm":"head"`), "give base or null"},
		{"control confirmed", change(`"screen"`, `"confirm","control":"null"`), "a control has stage screen"},
		{"round", change(`"round":0`, `"round":-1`), "round = -1"},
		{"a round too many", change(`"round":0`, `"round":10000`), "round = 10000"},
		{"order", change(`"AB"`, `"BB"`), "give AB or BA"},
		{"batch", change(`"batch_sec":0.02`, `"batch_sec":-1`), "batch_sec"},
		{"inner", change(`"inner":5`, `"inner":-1`), "inner"},
		{"a negative time", change(`"value":1`, `"value":-1`), "value = -1"},
		{"NaN", change(`"value":1`, `"value":NaN`), "line 2"},
		{"beyond a double", change(`"value":1`, `"value":1e400`), "line 2"},
		{"another unit than before", change(`"unit":"sec"`, `"unit":"count"`) + "", "sec, lower, time before"},
		{"a long line", `{"failed":"` + strings.Repeat("x", maxLine) + `"}`, "longer than 65536 bytes"},
	} {
		second := c.line
		if c.name == "another unit than before" {
			second = strings.Replace(second, `"round":0`, `"round":1`, 1)
		}
		_, _, err := Read(strings.NewReader(line + "\n" + second + "\n"))
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%s: got %v, want %q of line 2", c.name, err, c.want)
		}
	}
	// The longest line is read, one more byte is not.
	long := func(n int) string {
		l := launch("wall/row=a", Base, 0, 0)
		l.Failed = "x"
		b, _ := json.Marshal(l)
		l.Failed = strings.Repeat("x", n-len(b))
		b, _ = json.Marshal(l)
		return string(b) + "\n"
	}
	for n, ok := range map[int]bool{maxLine - 1: true, maxLine: true, maxLine + 1: false} {
		if _, _, err := Read(strings.NewReader(long(n))); (err == nil) != ok {
			t.Errorf("a line of %d bytes: %v", n, err)
		}
	}
}

func TestWriteRefuses(t *testing.T) {
	bad := launch("wall/row=a", Base, 0, math.NaN())
	long := launch("wall/row=a", Base, 0, 0)
	long.Failed = strings.Repeat("x", maxLine)
	for _, l := range []Launch{bad, long} {
		var b bytes.Buffer
		if err := Write(&b, launch("wall/row=b", Base, 0, 1), l); err == nil || b.Len() > 0 {
			t.Errorf("got %v and %d bytes", err, b.Len())
		}
	}
}

func TestDesignValidate(t *testing.T) {
	d := DefaultDesign([]RowPlan{{Row: "wall/row=a"}, {Row: "wall/row=b", Theta: 0.02}}, 1)
	if d.Gated[0].Theta != 0.05 || d.Gated[1].Theta != 0.02 {
		t.Errorf("margins %v", d.Gated)
	}
	for _, c := range []struct {
		name string
		edit func(*Design)
		want string // "" for valid
	}{
		{"default", func(*Design) {}, ""},
		{"quick", func(d *Design) { *d = d.Quick() }, ""},
		{"no controls", func(d *Design) { d.Injection = 0 }, ""},
		{"schema", func(d *Design) { d.Schema = 2 }, "schema = 2"},
		{"kind", func(d *Design) { d.Kind = "t-test" }, `kind = "t-test"`},
		{"theta", func(d *Design) { d.Theta = 0.16 }, "theta = 0.16"},
		{"theta NaN", func(d *Design) { d.Theta = math.NaN() }, "theta = NaN"},
		{"tight", func(d *Design) { d.Tight = 0 }, "tight = 0"},
		{"family", func(d *Design) { d.FamilyAlpha = 0.3 }, "alpha_family = 0.3"},
		{"clear", func(d *Design) { d.ClearAlpha = 0 }, "alpha_clear = 0"},
		{"floor", func(d *Design) { d.AbsoluteFloor = -1 }, "absolute_floor_sec = -1"},
		{"exact", func(d *Design) { d.ExactLimit = 1 }, "exact_limit = 1"},
		{"injection", func(d *Design) { d.Injection = 0.05 }, "could never be found"},
		{"no rows", func(d *Design) { d.Gated = nil }, "name 1 to 20 rows"},
		{"21 rows", func(d *Design) { d.Gated = make([]RowPlan, 21) }, "21 rows"},
		{"row twice", func(d *Design) { d.Gated[1].Row = d.Gated[0].Row }, "name a row once"},
		{"row name", func(d *Design) { d.Gated[0].Row = "a b" }, "name"},
		{"row theta", func(d *Design) { d.Gated[0].Theta = 0.2 }, "theta = 0.2"},
		{"row spread", func(d *Design) { d.Gated[0].Spread = -1 }, "aa_p95 = -1"},
		{"one noisy row", func(d *Design) { d.Gated[0].Spread = 0.11 }, ""},
		{"all rows noisy", func(d *Design) { d.Gated[0].Spread, d.Gated[1].Spread = 0.11, 0.11 }, "gate steadier rows"},
		{"no looks", func(d *Design) { d.Looks = nil }, "looks"},
		{"looks fall", func(d *Design) { d.Looks = []int{20, 10} }, "ascend"},
		{"too early to fail", func(d *Design) { d.Looks = []int{5} }, "6 rounds or more"},
		{"just late enough", func(d *Design) { d.Looks = []int{6} }, ""},
	} {
		one := d
		one.Gated = append([]RowPlan(nil), d.Gated...)
		c.edit(&one)
		err := one.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
		var b bytes.Buffer
		if err := WriteDesign(&b, one); (err == nil) != (c.want == "") {
			t.Errorf("%s: written: %v", c.name, err)
		}
		if c.want == "" {
			got, err := ReadDesign(&b)
			if err != nil || !reflect.DeepEqual(got, one) {
				t.Errorf("%s: read %+v, %v", c.name, got, err)
			}
		}
	}
	for _, text := range []string{"", "{", "[]", "{}", strings.Repeat(" ", maxDesign+1)} {
		if _, err := ReadDesign(strings.NewReader(text)); err == nil {
			t.Errorf("%.10q was read", text)
		}
	}
}

func TestMargin(t *testing.T) {
	d := DefaultDesign([]RowPlan{{Row: "wall/row=a"}}, 1)
	for _, c := range []struct {
		plan         RowPlan
		batch        float64
		theta, floor float64
	}{
		{RowPlan{Theta: 0.05}, 0, 0.05, 0},
		{RowPlan{Theta: 0.05}, 0.02, 0.05, 0.0025},
		{RowPlan{Theta: 0.05}, 500e-6, 0.10, 0.10},
		{RowPlan{Theta: 0.02, Spread: 0.02}, 0.02, 0.03, 0.03},
		{RowPlan{Theta: 0.05, Spread: 0.02}, 0.02, 0.05, 0.03},
	} {
		theta, floor := d.margin(c.plan, c.batch)
		if math.Abs(theta-c.theta) > 1e-12 || math.Abs(floor-c.floor) > 1e-12 {
			t.Errorf("%+v on %g s: got %g, %g, want %g, %g", c.plan, c.batch, theta, floor, c.theta, c.floor)
		}
	}
}

func TestReadWaivers(t *testing.T) {
	got, err := ReadWaivers(strings.NewReader("# known\n\n wall/row=a | sec | 1.12 | 2027-01-31 | #12 | slower parser \n\twall/row=a|B|2|2027-01-31|#12|x"))
	day := time.Date(2027, 1, 31, 0, 0, 0, 0, time.UTC)
	want := []Waiver{
		{Row: "wall/row=a", Unit: "sec", Ceiling: 1.12, Expires: day, Issue: "#12", Reason: "slower parser"},
		{Row: "wall/row=a", Unit: "B", Ceiling: 2, Expires: day, Issue: "#12", Reason: "x"},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	const ok = "wall/row=a | sec | 1.12 | 2027-01-31 | #12 | reason"
	for _, c := range []struct{ name, text, want string }{
		{"five fields", "a | sec | 1.12 | 2027-01-31 | #12", "give benchmark | metric"},
		{"seven fields", ok + " | more", "give benchmark | metric"},
		{"no issue", strings.Replace(ok, "#12", " ", 1), "issue"},
		{"no reason", strings.Replace(ok, "reason", "", 1), "reason"},
		{"ceiling 1", strings.Replace(ok, "1.12", "1", 1), "ceiling"},
		{"ceiling NaN", strings.Replace(ok, "1.12", "NaN", 1), "ceiling"},
		{"ceiling in percent", strings.Replace(ok, "1.12", "12 %", 1), "ceiling"},
		{"no such day", strings.Replace(ok, "01-31", "02-30", 1), "expires"},
		{"twice", ok + "\n" + ok, "waived above"},
		{"a long line", "# " + strings.Repeat("x", maxLine), "too long"},
	} {
		if _, err := ReadWaivers(strings.NewReader("#\n" + c.text)); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "line ") {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

func TestWaiverStates(t *testing.T) {
	day := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	row := func(verdict Word, ratio float64) Row {
		return Row{Name: "wall/row=a", Unit: "sec", Better: "lower", Verdict: verdict, Ratio: ratio}
	}
	higher := row(Regression, 1/1.3)
	higher.Better = "higher"
	for _, c := range []struct {
		name    string
		row     Row
		today   time.Time
		state   string
		verdict Word
		shown   bool // beside the row
	}{
		{"used", row(Regression, 1.2), day, "used", Waived, true},
		{"on its last second", row(Regression, 1.2), day.Add(24*time.Hour - 1), "used", Waived, true},
		{"the day after", row(Regression, 1.2), day.Add(24 * time.Hour), "expired", Regression, true},
		{"exceeded", row(Regression, 1.31), day, "exceeded", Regression, true},
		{"at the ceiling", row(Regression, 1.3), day, "used", Waived, true},
		{"higher is better", higher, day, "used", Waived, true},
		{"from zero", row(Regression, 0), day, "exceeded", Regression, true},
		{"covers nothing", row(OK, 1), day, "stale", OK, false},
		{"covers nothing and is expired", row(OK, 1), day.AddDate(0, 1, 0), "expired", OK, false},
		{"no verdict", row(Inconclusive, 1.2), day, "unjudged", Inconclusive, false},
		{"another unit", Row{Name: "wall/row=a", Unit: "B", Verdict: Regression, Ratio: 1.2}, day, "stale", Regression, false},
	} {
		rows := []Row{c.row}
		w := Waiver{Row: "wall/row=a", Unit: "sec", Ceiling: 1.3, Expires: day, Issue: "#1", Reason: "x"}
		if c.name == "higher is better" {
			w.Ceiling += 1e-9
		}
		got := waive(rows, []Waiver{w}, c.today)
		if len(got) != 1 || got[0].State != c.state || rows[0].Verdict != c.verdict || (rows[0].Waiver != nil) != c.shown {
			t.Errorf("%s: got %+v, %+v, want %s, %s", c.name, got, rows[0], c.state, c.verdict)
		}
		if rows[0].Waiver != nil && rows[0].Waiver.State != c.state {
			t.Errorf("%s: the row has the waiver %+v", c.name, rows[0].Waiver)
		}
	}
}

func TestExactLane(t *testing.T) {
	for _, c := range []struct {
		unit, better string
		base, head   float64
		want         Word
	}{
		{"B", "lower", 100, 100, Unchanged},
		{"B", "lower", 100, 101, Changed}, // 1 unit and 1 %
		{"B", "lower", 100, 101.1, Regression},
		{"B", "lower", 10, 11, Changed},
		{"B", "lower", 10, 12, Regression},
		{"B", "lower", 0, 1, Changed},
		{"B", "lower", 0, 2, Regression},
		{"B", "lower", 2, 0, Changed},
		{"B", "lower", 10_000, 10_100, Changed},
		{"B", "lower", 10_000, 10_101, Regression},
		{"B", "lower", 10_000, 1, Changed},
		{"B", "higher", 10_000, 9_900, Changed},
		{"B", "higher", 10_000, 9_899, Regression},
		{"B", "higher", 10_000, 20_000, Changed},
		{"share", "lower", 0.5, 0.505, Changed}, // a unit of a share is all of it
		{"share", "lower", 0.5, 0.51, Regression},
		{"ratio", "lower", 1, 1.02, Regression},
	} {
		r := Row{Unit: c.unit, Better: c.better, Ratio: 1}
		if r.settleExact(c.base, c.head, 0.01); r.Verdict != c.want {
			t.Errorf("%s, %s is better: %g → %g: got %s (%s), want %s", c.unit, c.better, c.base, c.head, r.Verdict, r.Reason, c.want)
		}
	}
	d := DefaultDesign([]RowPlan{{Row: "wall/row=a"}}, 1)
	exact := func(values ...float64) Row {
		var g group
		g.lane, g.unit, g.better = Exact, "B", "lower"
		g.base, g.head = values[:len(values)/2], values[len(values)/2:]
		return g.exact(d)
	}
	if r := exact(3, 3, 3, 4); r.Verdict != Unmeasurable {
		t.Errorf("values that vary: %s", r.Verdict)
	}
	if r := exact(3, 3, 5, 5); r.Verdict != Regression {
		t.Errorf("two launches an arm: %s", r.Verdict)
	}
	if r := exact(3); r.Verdict != Inconclusive {
		t.Errorf("one arm: %s", r.Verdict)
	}
}

func TestRowsByEvidence(t *testing.T) {
	row := func(name string, gated bool, low, high, theta float64, v Word) Row {
		return Row{Name: name, Lane: Time, Gated: gated, Verdict: v, Theta: theta, Interval: stat.Interval{Low: low, High: high}, Better: "lower", Ratio: 1}
	}
	r := Report{Rows: []Row{
		row("wide", true, math.Inf(-1), math.Inf(1), 0.05, Inconclusive),
		row("not gated", false, 2, 3, 0.05, Regression),
		row("null", true, 0.99, 1.01, 0.05, OK),
		row("large, wide margin", true, 1.16, 1.3, 0.15, Regression), // 1.06 margins
		row("small, tight margin", true, 1.06, 1.07, 0.02, Regression),
		row("faster", true, 0.7, 0.8, 0.05, Improvement),
		row("broken", true, 1, 1, 0.05, Failed),
	}}
	r.conclude(Options{})
	var got []string
	for _, row := range r.Rows {
		got = append(got, row.Name)
	}
	want := []string{"broken", "faster", "small, tight margin", "large, wide margin", "null", "wide", "not gated"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestSentence(t *testing.T) {
	rows := func(n int, theta float64, v Word) (out []Row) {
		for range n {
			out = append(out, Row{Name: "wall/row=a", Lane: Time, Gated: true, Verdict: v, Theta: theta, Ratio: 1.112})
		}
		return out
	}
	exact := func(n int, v Word) (out []Row) {
		for range n {
			out = append(out, Row{Name: "count/of=a", Lane: Exact, Gated: true, Verdict: v, Ratio: 2})
		}
		return out
	}
	for _, c := range []struct {
		rows []Row
		exit int
		want string
	}{
		{append(rows(19, 0.05, OK), rows(1, 0.05, Inconclusive)...), 0, "No slowdown of 5 % or more: 19 of 20 rows proved, 1 inconclusive."},
		{append(rows(18, 0.05, OK), rows(2, 0.05, Inconclusive)...), 3, "Not enough proved: 18 of 20 rows proved free of a slowdown of 5 % or more, 2 inconclusive."},
		{append(rows(2, 0.05, OK), rows(1, 0.02, Improvement)...), 0, "No slowdown beyond their margins (2 % to 5 %): 3 of 3 rows proved."},
		{append(rows(1, 0.05, OK), rows(1, 0.05, Regression)...), 1, "1 regression proved: wall/row=a (+11.2 %); 1 of 2 rows proved free of a slowdown of 5 % or more."},
		{rows(5, 0.05, Regression), 1, "5 regressions proved: wall/row=a (+11.2 %), wall/row=a (+11.2 %), wall/row=a (+11.2 %) and 2 more; 0 of 5 rows proved free of a slowdown."},
		{append(rows(1, 0.05, OK), exact(2, Unchanged)...), 0, "No slowdown of 5 % or more: 1 of 1 rows proved, 2 of 2 exact rows within their limit."},
		{append(exact(1, Regression), exact(2, Unchanged)...), 1, "1 regression proved: count/of=a (+100 %); 0 of 0 rows proved free of a slowdown, 2 of 3 exact rows within their limit."},
		{exact(2, Changed), 0, "No exact row got worse, 2 of 2 exact rows within their limit."},
		{rows(2, 0.05, New), 0, "Nothing to prove: 2 gated rows are new."},
		{append(rows(2, 0.05, New), rows(1, 0.05, Removed)...), 3, "Not enough proved: 0 of 0 rows proved free of a slowdown, 2 new, 1 removed."},
		{append(rows(1, 0.05, OK), rows(1, 0.05, Waived)...), 0, "No slowdown of 5 % or more: 1 of 2 rows proved, 1 waived."},
		{append(rows(1, 0.05, Regression), rows(1, 0.05, Failed)...), 4, "Nothing proved: 1 row failed: wall/row=a."},
		{rows(3, 0.05, Unmeasurable), 3, "Not enough proved: 0 of 3 rows proved free of a slowdown, 3 inconclusive."},
	} {
		r := Report{Rows: c.rows}
		if r.conclude(Options{}); r.Proved != c.want || r.Exit != c.exit {
			t.Errorf("got %d, %q, want %d, %q", r.Exit, r.Proved, c.exit, c.want)
		}
	}
}
