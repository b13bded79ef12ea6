package gatetest

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/sandbed/sandbed/bench/gate"
	"github.com/sandbed/sandbed/bench/sample"
)

// kase is one comparison with a verdict that does not depend on chance.
type kase struct {
	name, what, expected string
	run                  func(Gate) error
}

func (k kase) test(g Gate) Result {
	r := Result{Name: k.name, What: k.what, Expected: k.expected}
	if err := k.run(g); err != nil {
		r.Faults = []string{err.Error()}
	}
	return r
}

// small is a comparison of three gated rows without noise, with good controls.
type small struct {
	design   gate.Design
	launches []gate.Launch
	options  gate.Options
	gate     Gate
	err      error
}

var smallRows = []string{"wall/row=a", "wall/row=b", "wall/row=c"}

// newSmall makes the three rows with these slowdowns of head.
func newSmall(g Gate, slowdowns ...float64) *small {
	var plans []gate.RowPlan
	for _, name := range smallRows {
		plans = append(plans, gate.RowPlan{Row: name})
	}
	s := &small{design: gate.DefaultDesign(plans, 1), gate: g}
	for i, share := range slowdowns {
		s.add(smallRows[i], "", slower(share))
	}
	s.add("kernel/null=1", gate.Null, slower(0))
	s.add("kernel/injected=1", gate.Injected, slower(s.design.Injection))
	return s
}

func (s *small) add(name, control string, of source) {
	// A little noise, so that there are no ties.
	quiet := func(a at) float64 { return of(a) * (1 + 1e-3*a.NormFloat64()) }
	launches, err := script{s.gate, s.design, rand.New(rand.NewPCG(1, uint64(len(s.launches))))}.row(name, control, false, quiet)
	if err != nil && s.err == nil {
		s.err = err
	}
	s.launches = append(s.launches, launches...)
}

// each edits the launches of a row, or of a control by its kind.
func (s *small) each(name string, edit func(*gate.Launch)) *small {
	for i := range s.launches {
		if l := &s.launches[i]; l.Control == "" && l.Row == name || l.Control != "" && l.Control == name {
			edit(l)
		}
	}
	return s
}

func (s *small) drop(is func(gate.Launch) bool) *small {
	s.launches = slices.DeleteFunc(s.launches, is)
	return s
}

// exact adds a row of the exact lane.
func (s *small) exact(name string, base, head float64) *small {
	for _, arm := range []string{gate.Base, gate.Head} {
		l := gate.Launch{Schema: gate.Schema, Row: name, Unit: sample.Fuel, Better: "lower", Lane: gate.Exact, Stage: gate.Screen, Arm: arm, Value: base, Inner: 1, Started: epoch}
		if arm == gate.Head {
			l.Value = head
		}
		s.launches = append(s.launches, l)
	}
	return s
}

// gives checks the exit code and the verdicts of rows.
func (s *small) gives(exit int, verdicts map[string]gate.Word) error {
	if s.err != nil {
		return s.err
	}
	r, err := s.gate.decide(s.design, s.launches, s.options)
	if err != nil {
		return err
	}
	if r.Exit != exit {
		return fmt.Errorf("exit %d, want %d: %s", r.Exit, exit, r.Proved)
	}
	for name, want := range verdicts {
		i := slices.IndexFunc(r.Rows, func(row gate.Row) bool { return row.Name == name })
		if i < 0 {
			return fmt.Errorf("%s is missing, want %s", name, want)
		}
		if r.Rows[i].Verdict != want {
			return fmt.Errorf("%s is %s (%s), want %s", name, r.Rows[i].Verdict, r.Rows[i].Reason, want)
		}
	}
	return nil
}

func all(w gate.Word) map[string]gate.Word {
	return map[string]gate.Word{smallRows[0]: w, smallRows[1]: w, smallRows[2]: w}
}

// Shipped are the designs that the project ships, by name.
func Shipped() map[string]gate.Design {
	plans := func(n int, theta float64) []gate.RowPlan {
		out := make([]gate.RowPlan, n)
		for i := range out {
			out[i] = gate.RowPlan{Row: fmt.Sprintf("wall/row=%02d", i), Theta: theta}
		}
		return out
	}
	out := map[string]gate.Design{}
	for _, n := range []int{1, 5, rows} {
		for _, theta := range []float64{0.02, 0.05} {
			d := gate.DefaultDesign(plans(n, theta), 1)
			out[fmt.Sprintf("default, %d rows, margin %g", n, theta)] = d
			out[fmt.Sprintf("quick, %d rows, margin %g", n, theta)] = d.Quick()
		}
	}
	return out
}

// reaches checks that a design can say REGRESSION: it must, of a head twice as slow.
func reaches(g Gate, d gate.Design) error {
	s := &small{design: d, gate: g}
	for _, p := range d.Gated {
		s.add(p.Row, "", slower(1))
	}
	s.add("kernel/null=1", gate.Null, slower(0))
	s.add("kernel/injected=1", gate.Injected, slower(d.Injection))
	return s.gives(gate.ExitRegression, map[string]gate.Word{d.Gated[0].Row: gate.Regression})
}

// eachLimit takes a row to every limit of the design of 20 rows, by rounds 20 % slower
// or not at all.
func eachLimit(g Gate) error {
	d := Shipped()["default, 20 rows, margin 0.05"]
	limits, err := g.Decide(d, nil, gate.Options{})
	if err != nil {
		return err
	}
	if len(limits.FailAt) != len(d.Looks) || len(limits.ClearAt) != len(d.Looks) {
		return fmt.Errorf("%d and %d limits for %d looks", len(limits.FailAt), len(limits.ClearAt), len(d.Looks))
	}
	row := d.Gated[0].Row
	at := func(n, count int, want gate.Word) error {
		for seed := range uint64(2000) {
			mixed := rand.New(rand.NewPCG(seed, 0)).Perm(n)
			s := &small{design: d, gate: g}
			s.add("kernel/null=1", gate.Null, slower(0))
			s.add("kernel/injected=1", gate.Injected, slower(d.Injection))
			r := rand.New(rand.NewPCG(seed, 1))
			for _, stage := range []string{gate.Screen, gate.Confirm} {
				for i := range 2 * n {
					l := gate.Launch{Schema: gate.Schema, Row: row, Unit: sample.Seconds, Better: "lower", Lane: gate.Time, Stage: stage, Arm: gate.Base,
						Round: i / 2, Order: []string{"AB", "BA", "BA", "AB"}[i/2%4], Layout: len(stage), Value: 0.02 + 1e-5*r.Float64()}
					if i%2 == 1 {
						l.Arm = gate.Head
						if stage == gate.Confirm || mixed[i/2] < count {
							l.Value *= 1.2
						}
					}
					s.launches = append(s.launches, l)
				}
			}
			report, err := g.decide(d, s.launches, gate.Options{})
			if err != nil {
				return err
			}
			i := slices.IndexFunc(report.Rows, func(r gate.Row) bool { return r.Name == row })
			if i < 0 {
				return fmt.Errorf("no verdict on %s", row)
			}
			// Another mix if this one was decided before, or shows a dependence by chance.
			if got := report.Rows[i]; got.Rounds == n && !got.Blocks {
				if got.Slower != count || got.Verdict != want {
					return fmt.Errorf("%d of %d slower: %s (%s), want %s", count, n, got.Verdict, got.Reason, want)
				}
				return nil
			}
		}
		return fmt.Errorf("%d of %d slower: decided before the last round in every order", count, n)
	}
	var errs []error
	for i, n := range d.Looks {
		if u := limits.FailAt[i]; u >= 0 {
			errs = append(errs, at(n, u, gate.Regression), at(n, u-1, gate.Inconclusive))
		}
		errs = append(errs, at(n, limits.ClearAt[i], gate.OK), at(n, limits.ClearAt[i]+1, gate.Inconclusive))
	}
	return errors.Join(errs...)
}

func cases() []kase {
	first := smallRows[0]
	waiver := gate.Waiver{Row: first, Unit: sample.Seconds, Ceiling: 1.5, Expires: time.Date(2026, 6, 30, 0, 0, 0, 0, time.UTC), Issue: "#1", Reason: "known"}
	june := func(day int) time.Time { return time.Date(2026, 6, day, 12, 0, 0, 0, time.UTC) }
	red := map[string]gate.Word{first: gate.Regression, smallRows[1]: gate.OK}
	return []kase{
		{"limits", "the published limits for 20 rows", "fail at –, 14, 18, 24, 31, 42; clear at 0, 2, 4, 9, 13, 22", func(g Gate) error {
			r, err := g.Decide(Shipped()["default, 20 rows, margin 0.05"], nil, gate.Options{})
			if err != nil {
				return err
			}
			if !slices.Equal(r.FailAt, []int{-1, 14, 18, 24, 31, 42}) || !slices.Equal(r.ClearAt, []int{0, 2, 4, 9, 13, 22}) {
				return fmt.Errorf("fail at %v, clear at %v", r.FailAt, r.ClearAt)
			}
			return nil
		}},
		{"each limit", "rounds that come exactly to a limit, and one short of it", "REGRESSION or OK; INCONCLUSIVE", eachLimit},
		{"can fire", "every shipped design, on a head twice as slow", "exit 1", func(g Gate) error {
			shipped := Shipped()
			for _, name := range slices.Sorted(maps.Keys(shipped)) {
				if err := reaches(g, shipped[name]); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
			return nil
		}},
		{"cannot fire", "a design whose last look is too early", "refused, with the remedy", func(g Gate) error {
			d := Shipped()["default, 20 rows, margin 0.05"]
			d.Looks = []int{3, 8}
			if _, err := g.Decide(d, nil, gate.Options{}); err == nil || !strings.Contains(err.Error(), "9 rounds or more") {
				return fmt.Errorf("got error %v", err)
			}
			return nil
		}},
		{"nothing slower", "three rows, no difference", "OK, exit 0", func(g Gate) error { return newSmall(g, 0, 0, 0).gives(gate.ExitHeld, all(gate.OK)) }},
		{"one slower", "three rows, one slower", "REGRESSION, exit 1", func(g Gate) error { return newSmall(g, 0.2, 0, 0).gives(gate.ExitRegression, red) }},
		{"not confirmed", "slower in the screen, not in the confirmation", "INCONCLUSIVE, exit 3", func(g Gate) error {
			s := newSmall(g, 0, 0, 0).drop(func(l gate.Launch) bool { return l.Row == first })
			s.add(first, "", func(a at) float64 {
				if a.head && a.stage == gate.Screen {
					return 1.2
				}
				return 1
			})
			return s.gives(gate.ExitInconclusive, map[string]gate.Word{first: gate.Inconclusive})
		}},
		{"confirmation missing", "slower, and the time ran out before the confirmation", "INCONCLUSIVE, exit 3", func(g Gate) error {
			return newSmall(g, 0.2, 0, 0).drop(func(l gate.Launch) bool { return l.Stage == gate.Confirm }).
				gives(gate.ExitInconclusive, map[string]gate.Word{first: gate.Inconclusive})
		}},
		{"between looks", "nine rounds of ten", "INCONCLUSIVE, exit 3", func(g Gate) error {
			return newSmall(g, 0, 0, 0).drop(func(l gate.Launch) bool { return l.Row == first && l.Round == 9 }).
				gives(gate.ExitInconclusive, map[string]gate.Word{first: gate.Inconclusive})
		}},
		{"missing rows", "head lacks one, base lacks one, one was not measured", "REMOVED, NEW, INCONCLUSIVE, exit 3", func(g Gate) error {
			return newSmall(g, 0, 0, 0).drop(func(l gate.Launch) bool {
				return l.Row == smallRows[0] && l.Arm == gate.Head || l.Row == smallRows[1] && l.Arm == gate.Base || l.Row == smallRows[2]
			}).gives(gate.ExitInconclusive, map[string]gate.Word{smallRows[0]: gate.Removed, smallRows[1]: gate.New, smallRows[2]: gate.Inconclusive})
		}},
		{"absent rows", "the arm says that it lacks the row", "NEW, exit 0", func(g Gate) error {
			s := newSmall(g, 0, 0, 0).drop(func(l gate.Launch) bool { return l.Row == first && l.Round > 0 })
			return s.each(first, func(l *gate.Launch) { l.Absent = l.Arm == gate.Base }).
				gives(gate.ExitHeld, map[string]gate.Word{first: gate.New})
		}},
		{"NaN", "a value that is not a number, written or read", "refused", func(g Gate) error {
			s := newSmall(g, 0, 0, 0)
			var b bytes.Buffer
			for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1} {
				l := s.launches[0]
				l.Value = v
				if err := gate.Write(&b, l); err == nil || b.Len() > 0 {
					return fmt.Errorf("%v was written", v)
				}
				if _, err := g.Decide(s.design, []gate.Launch{l}, s.options); err == nil {
					return fmt.Errorf("%v was judged", v)
				}
			}
			if err := gate.Write(&b, s.launches[0]); err != nil {
				return err
			}
			for _, v := range []string{"NaN", `"NaN"`, "1e999", "null,\"value\":-1"} {
				line := strings.Replace(b.String(), `"value":`, `"value":`+v+`,"was":`, 1)
				if _, _, err := gate.Read(strings.NewReader(line)); err == nil {
					return fmt.Errorf("%s was read", v)
				}
			}
			return nil
		}},
		{"failed launch", "one launch gave a wrong answer", "FAILED, exit 4", func(g Gate) error {
			return newSmall(g, 0.2, 0, 0).each(smallRows[1], func(l *gate.Launch) {
				if l.Round == 4 && l.Arm == gate.Head {
					l.Failed, l.Value = "wrong answer", 0
				}
			}).gives(gate.ExitFailed, map[string]gate.Word{smallRows[1]: gate.Failed, first: gate.Regression})
		}},
		{"unsteady row", "a row whose own A/A p95 is 11 %: it would need a margin above 15 %", "UNMEASURABLE, exit 3", func(g Gate) error {
			s := newSmall(g, 0, 0, 0)
			s.design.Gated[0].Spread = 0.11
			return s.gives(gate.ExitInconclusive, map[string]gate.Word{first: gate.Unmeasurable, smallRows[1]: gate.OK})
		}},
		{"absolute floor", "7 % slower, which is 35 µs of a batch of 0.5 ms, or 70 µs of one of 1 ms", "exit 0; REGRESSION, exit 1", func(g Gate) error {
			s := newSmall(g, 0.07, 0, 0).each(first, func(l *gate.Launch) { l.Batch = 0.5e-3 })
			if err := s.gives(gate.ExitHeld, map[string]gate.Word{first: gate.OK}); err != nil {
				return fmt.Errorf("0.5 ms: %w", err)
			}
			return s.each(first, func(l *gate.Launch) { l.Batch = 1e-3 }).gives(gate.ExitRegression, red)
		}},
		{"controls missing", "no null pair, or no injection", "exit 3", func(g Gate) error {
			for _, kind := range []string{gate.Null, gate.Injected} {
				s := newSmall(g, 0.2, 0, 0).drop(func(l gate.Launch) bool { return l.Control == kind })
				if err := s.gives(gate.ExitInconclusive, map[string]gate.Word{first: gate.Inconclusive}); err != nil {
					return fmt.Errorf("%s: %w", kind, err)
				}
			}
			return nil
		}},
		{"unfit machine", "a regression on a machine that was not fit", "INCONCLUSIVE, exit 3", func(g Gate) error {
			s := newSmall(g, 0.2, 0, 0)
			s.options.Fitness = &gate.Fitness{Reasons: []string{"steal 9 %"}}
			return s.gives(gate.ExitInconclusive, map[string]gate.Word{first: gate.Inconclusive})
		}},
		{"exact lane", "equal, 1 unit, 1 %, more than 1 %, less", "UNCHANGED, CHANGED, CHANGED, REGRESSION, CHANGED, exit 1", func(g Gate) error {
			s := newSmall(g, 0, 0, 0).exact("count/of=a", 1000, 1000).exact("count/of=b", 3, 4).exact("count/of=c", 1000, 1010).exact("count/of=e", 1000, 500)
			want := map[string]gate.Word{"count/of=a": gate.Unchanged, "count/of=b": gate.Changed, "count/of=c": gate.Changed, "count/of=e": gate.Changed}
			if err := s.gives(gate.ExitHeld, want); err != nil {
				return err
			}
			want["count/of=d"] = gate.Regression
			return s.exact("count/of=d", 1000, 1011).gives(gate.ExitRegression, want)
		}},
		{"exact beside a bad control", "an exact row needs no controls", "REGRESSION, exit 1", func(g Gate) error {
			return newSmall(g, 0, 0, 0).drop(func(l gate.Launch) bool { return l.Control != "" }).exact("count/of=a", 3, 5).
				gives(gate.ExitRegression, map[string]gate.Word{"count/of=a": gate.Regression})
		}},
		{"waiver", "a waived slowdown on the last day, the day after, and above its ceiling", "WAIVED, exit 0; REGRESSION, exit 1", func(g Gate) error {
			s := newSmall(g, 0.2, 0, 0)
			s.options = gate.Options{Waivers: []gate.Waiver{waiver}, Today: june(30)}
			if err := s.gives(gate.ExitHeld, map[string]gate.Word{first: gate.Waived}); err != nil {
				return err
			}
			s.options.Today = june(30).AddDate(0, 0, 1)
			if err := s.gives(gate.ExitRegression, red); err != nil {
				return fmt.Errorf("expired: %w", err)
			}
			low := waiver
			low.Ceiling = 1.1
			s.options = gate.Options{Waivers: []gate.Waiver{low}, Today: june(1)}
			if err := s.gives(gate.ExitRegression, red); err != nil {
				return fmt.Errorf("exceeded: %w", err)
			}
			return nil
		}},
		{"strict", "one row of twenty without a verdict", "exit 0; strictly, exit 3", func(g Gate) error {
			s := &small{design: Shipped()["default, 20 rows, margin 0.05"], gate: g}
			for _, p := range s.design.Gated[1:] {
				s.add(p.Row, "", slower(0))
			}
			s.add("kernel/null=1", gate.Null, slower(0))
			s.add("kernel/injected=1", gate.Injected, slower(s.design.Injection))
			if err := s.gives(gate.ExitHeld, nil); err != nil {
				return err
			}
			s.options.Strict = true
			return s.gives(gate.ExitInconclusive, nil)
		}},
		{"interrupted", "the last line is cut anywhere", "read without it", func(g Gate) error {
			s := newSmall(g, 0, 0, 0)
			var b bytes.Buffer
			if err := gate.Write(&b, s.launches...); err != nil {
				return err
			}
			last := b.Len() - 1 - bytes.LastIndexByte(b.Bytes()[:b.Len()-1], '\n')
			for cut := 1; cut < last; cut++ {
				got, left, err := gate.Read(bytes.NewReader(b.Bytes()[:b.Len()-cut]))
				if err != nil || left != last-cut || len(got) != len(s.launches)-1 {
					return fmt.Errorf("%d of %d bytes cut: %d launches, %d left, %v", cut, last, len(got), left, err)
				}
			}
			return nil
		}},
		{"refused", "a launch twice; another schema", "refused", func(g Gate) error {
			s := newSmall(g, 0, 0, 0)
			if _, err := g.Decide(s.design, append(s.launches, s.launches[3]), s.options); err == nil {
				return fmt.Errorf("a launch that is there twice was judged")
			}
			s.launches[0].Schema = gate.Schema + 1
			if _, err := g.Decide(s.design, s.launches, s.options); err == nil {
				return fmt.Errorf("a launch of another schema was judged")
			}
			return nil
		}},
	}
}
