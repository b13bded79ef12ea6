// Package gatetest puts a gate through synthetic streams: launches of known truth, from
// the bytes of samples.ndjson to the exit code. It is for benchrun selftest, for the tests of package
// gate, and for anyone who changes the rule. It measures nothing and reads no clock; every
// stream states its seed, so that two runs are equal.
//
// It shows that the gate decides as designed on rounds of these distributions. How a
// machine behaves it cannot show: that is for benchrun aa and power.
package gatetest

import (
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/sandbed/sandbed/bench/gate"
	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/bench/stat"
)

// Gate is what is put through: the functions of package gate, or a faulty gate that
// must be found.
type Gate struct {
	Next   func(gate.Design, []gate.Launch) (gate.Step, error)
	Decide func(gate.Design, []gate.Launch, gate.Options) (gate.Report, error)
}

// Real is the gate of package gate.
func Real() Gate { return Gate{gate.Design.Next, gate.Decide} }

// Result is what came of one stream or case.
type Result struct {
	Name string `json:"name"`
	What string `json:"what"` // one line
	Seed uint64 `json:"seed,omitempty"`
	// Runs are suite runs, Rows the rows judged in them; 0 for a case that is no stream.
	Runs     int               `json:"runs,omitempty"`
	Rows     int               `json:"rows,omitempty"`
	Rounds   float64           `json:"mean_rounds,omitempty"` // of a row, confirmation included
	Verdicts map[gate.Word]int `json:"verdicts,omitempty"`
	Exits    map[int]int       `json:"exits,omitempty"`
	Claims   []Claim           `json:"claims,omitempty"`
	Expected string            `json:"expected"`
	Faults   []string          `json:"faults,omitempty"` // why it did not pass
}

// Pass says whether all was as designed.
func (r Result) Pass() bool { return len(r.Faults) == 0 }

// Claim is a rate that was designed, and the rate that came out.
type Claim struct {
	What     string        `json:"what"` // "REGRESSION", "exit 1"
	Least    float64       `json:"at_least"`
	Most     float64       `json:"at_most"`
	Count    int           `json:"count"`
	Of       int           `json:"of"`
	Interval stat.Interval `json:"interval"` // exact binomial, 95 %
}

// doubt is how sure a claim must be refuted before it is a fault. Seeds are fixed, so
// this only says how far a change of the rule may move a rate.
const doubt = 0.999

// refuted says that the counts disprove the claim.
func (c Claim) refuted() bool {
	return stat.UpperBound(c.Count, c.Of, doubt) < c.Least || 1-stat.UpperBound(c.Of-c.Count, c.Of, doubt) > c.Most
}

// at is one launch that a source gives a time to.
type at struct {
	*rand.Rand
	head   bool
	stage  string
	round  int
	launch int  // since the start of the stage
	first  bool // of its round
}

// source gives a launch its time, relative to the true time of base.
type source func(at) float64

// sigma is the standard deviation of a round's log ratio in all streams that do not say otherwise.
const sigma = 0.03

// noisy is noise of each launch, and of each round in both its arms, times what of adds.
func noisy(of source) source {
	shared := map[int]float64{}
	return func(a at) float64 {
		if a.first {
			shared[a.round] = 0.1 * a.NormFloat64()
		}
		return math.Exp(shared[a.round]+sigma/math.Sqrt2*a.NormFloat64()) * of(a)
	}
}

// slower is head slower by a share.
func slower(share float64) source {
	return func(a at) float64 {
		if a.head {
			return 1 + share
		}
		return 1
	}
}

func times(sources ...source) source {
	return func(a at) float64 {
		v := 1.0
		for _, s := range sources {
			v *= s(a)
		}
		return v
	}
}

// stream is one kind of truth, and what the gate must make of it.
type stream struct {
	name, what string
	seed       uint64
	runs       int
	of         func() source // a new one for each row
	plan       gate.RowPlan  // of every row; Row is filled in
	higher     bool          // higher is better: the value is the inverse of the time
	null       func() source // of the null control; nil is noise alone
	injected   func() source // nil is 10 %
	claims     []Claim
}

func claim(what any, least, most float64) Claim {
	if code, ok := what.(int); ok {
		what = fmt.Sprintf("exit %d", code)
	}
	return Claim{What: fmt.Sprint(what), Least: least, Most: most}
}

const rows = gate.MaxGated

// streams are the streams in the order they are shown. The rates follow from the operating
// characteristics of the limits, which are exact: at σ 3 % and +10 % both stages cross in more than 99.9 %.
func streams() []stream {
	alpha := 0.05 / rows
	quiet := func(of source) func() source { return func() source { return noisy(of) } }
	never := []Claim{claim(gate.Regression, 0, alpha), claim(gate.Improvement, 0, alpha)}
	clean := append([]Claim{claim(gate.OK, 0.95, 1), claim(0, 0.9, 1)}, never...)
	red := []Claim{claim(gate.Regression, 0.95, 1), claim(gate.Improvement, 0, 0), claim(gate.OK, 0, 0.01), claim(1, 1, 1)}
	green := []Claim{claim(gate.Improvement, 0.95, 1), claim(gate.Regression, 0, 0), claim(0, 0.95, 1)}
	return []stream{
		{name: "null", what: "base against base, σ 3 %", seed: 1, runs: 40, of: quiet(slower(0)),
			claims: append([]Claim{claim(gate.OK, 0.99, 1), claim(0, 0.99, 1)}, never...)},
		{name: "at the margin", what: "truth exactly +5 %: neither may be proved beyond its bound", seed: 2, runs: 40, of: quiet(slower(0.05)),
			null:   func() source { return noisy(slower(0.05)) }, // one stage: its firings are the crossings
			claims: []Claim{claim(gate.Regression, 0, alpha), claim(gate.OK, 0, 0.05), claim("null fired", 0, 2*alpha), claim(3, 0.95, 1)}},
		{name: "+10 %", what: "head slower by twice the margin", seed: 3, runs: 20, of: quiet(slower(0.10)), claims: red},
		{name: "+20 %", what: "head slower by four margins", seed: 4, runs: 20, of: quiet(slower(0.20)),
			claims: []Claim{claim(gate.Regression, 0.999, 1), claim(1, 1, 1)}},
		{name: "-10 %", what: "head faster", seed: 5, runs: 20, of: quiet(slower(-0.10)), claims: green},
		{name: "tight +5 %", what: "rows declared tight: margin 2 %", seed: 6, runs: 20, of: quiet(slower(0.05)),
			plan: gate.RowPlan{Theta: 0.02}, claims: red},
		{name: "noisy row", what: "+10 % on rows whose own A/A p95 is 8 %: margin 12 %", seed: 7, runs: 10, of: quiet(slower(0.10)),
			plan: gate.RowPlan{Theta: 0.05, Spread: 0.08}, claims: []Claim{claim(gate.Regression, 0, alpha)}},
		{name: "heavy tails", what: "null with one-sided Pareto bursts (exponent 1.1: no variance, hardly a mean)", seed: 9, runs: 20,
			of: quiet(burst(0.015)), claims: clean},
		{name: "heavy tails +20 %", what: "the same with a slowdown", seed: 10, runs: 10, of: quiet(times(burst(0.015), slower(0.20))), claims: red},
		{name: "drift", what: "null while the machine slows down by half", seed: 11, runs: 20,
			of: quiet(func(a at) float64 { return 1 + 0.5*float64(a.launch)/120 }), claims: clean},
		{name: "order bias", what: "null, whatever runs second is 8 % slower", seed: 12, runs: 20, of: quiet(second(0.08)), claims: clean},
		{name: "order bias +10 %", what: "the same with a slowdown", seed: 13, runs: 20, of: quiet(times(second(0.08), slower(0.10))), claims: red},
		{name: "ties", what: "null on a clock of 10 ms", seed: 14, runs: 4,
			of: func() source {
				n := noisy(slower(0))
				return func(a at) float64 { return math.Max(1, math.Round(n(a)*2)/2) }
			},
			claims: []Claim{claim(gate.Unmeasurable, 0.99, 1), claim(gate.Regression, 0, 0), claim(3, 1, 1)}},
		{name: "bad window", what: "null, rounds 2 to 6 take up to three times as long", seed: 15, runs: 20,
			of: quiet(func(a at) float64 {
				if a.round >= 2 && a.round <= 6 {
					return 1 + 2*a.Float64()
				}
				return 1
			}), claims: clean},
		{name: "higher is better -11 %", what: "throughput falls as times grow by 12 %", seed: 16, runs: 10, higher: true, of: quiet(slower(0.12)), claims: red},
		{name: "higher is better +11 %", what: "throughput rises as times shrink by 10 %", seed: 17, runs: 10, higher: true, of: quiet(slower(-0.10)), claims: green},
		{name: "null control fired", what: "+10 % in head, and in base against base: red becomes inconclusive", seed: 18, runs: 4,
			of: quiet(slower(0.10)), null: quiet(slower(0.10)),
			claims: []Claim{claim(gate.Inconclusive, 0.99, 1), claim(gate.Regression, 0, 0), claim("null fired", 0.95, 1), claim(3, 1, 1)}},
		{name: "injection missed", what: "null, and the injected 10 % is not there: the run is void", seed: 19, runs: 4,
			of: quiet(slower(0)), injected: quiet(slower(0)),
			claims: []Claim{claim(gate.Inconclusive, 0.99, 1), claim(gate.OK, 0, 0), claim(3, 1, 1)}},
	}
}

func burst(size float64) source {
	return func(a at) float64 { return 1 + size*math.Pow(1-a.Float64(), -1/1.1) }
}

func second(share float64) source {
	return func(a at) float64 {
		if a.first {
			return 1
		}
		return 1 + share
	}
}

// script makes the launches of one row as a runner would: as many rounds as the gate asks for.
type script struct {
	gate   Gate
	design gate.Design
	rng    *rand.Rand
}

func (s script) row(name, control string, higher bool, of source) ([]gate.Launch, error) {
	other := gate.Head
	if control != "" {
		other = control
	}
	var out []gate.Launch
	have := map[string]int{}
	order, launch := "", 0
	for {
		step, err := s.gate.Next(s.design, out)
		if err != nil || step.Done {
			return out, err
		}
		if step.Rounds <= have[step.Stage] || step.Rounds > s.design.Looks[len(s.design.Looks)-1] {
			return out, fmt.Errorf("%s: asked for %d rounds of stage %s with %d made", name, step.Rounds, step.Stage, have[step.Stage])
		}
		for round := have[step.Stage]; round < step.Rounds; round++ {
			switch {
			case round == 0:
				launch = 0
				fallthrough
			case round%2 == 0: // a new block
				order = []string{"AB", "BA"}[s.rng.IntN(2)]
			default:
				order = order[1:] + order[:1]
			}
			for i := range 2 {
				base := (order == "AB") == (i == 0)
				l := gate.Launch{Schema: gate.Schema, Row: name, Unit: sample.Seconds, Better: "lower", Lane: gate.Time, Stage: step.Stage, Control: control,
					Arm: other, Round: round, Order: order, First: i == 0, Layout: 1 + round/2%3, Inner: 5, Batch: 0.02, Started: epoch}
				if base {
					l.Arm = gate.Base
				}
				if step.Stage == gate.Confirm {
					l.Layout += 100
				}
				l.Value = 0.02 * of(at{s.rng, !base, step.Stage, round, launch, i == 0})
				if higher {
					l.Better, l.Unit, l.Value = "higher", sample.Count, 1/l.Value
				}
				launch++
				out = append(out, l)
			}
		}
		have[step.Stage] = step.Rounds
	}
}

// epoch stands for the time of every launch: no verdict depends on it.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// suite makes the launches of one suite run of a stream.
func (s stream) suite(g Gate, run int) (gate.Design, []gate.Launch, error) {
	plans := make([]gate.RowPlan, rows)
	for i := range plans {
		plans[i] = s.plan
		plans[i].Row = fmt.Sprintf("wall/row=%02d", i)
	}
	d := gate.DefaultDesign(plans, s.seed)
	sc := script{g, d, rand.New(rand.NewPCG(s.seed, uint64(run)))}
	var all []gate.Launch
	add := func(name, control string, of func() source) error {
		one, err := sc.row(name, control, s.higher, of())
		all = append(all, one...)
		return err
	}
	for _, p := range plans {
		if err := add(p.Row, "", s.of); err != nil {
			return d, nil, err
		}
	}
	null, injected := s.null, s.injected
	if null == nil {
		null = func() source { return noisy(slower(0)) }
	}
	if injected == nil {
		injected = func() source { return noisy(slower(d.Injection)) }
	}
	if err := add("kernel/null=1", gate.Null, null); err != nil {
		return d, nil, err
	}
	return d, all, add("kernel/injected=1", gate.Injected, injected)
}

// decide judges launches as a gate does that finds them on disk.
func (g Gate) decide(d gate.Design, launches []gate.Launch, o gate.Options) (gate.Report, error) {
	var file strings.Builder
	if err := gate.Write(&file, launches...); err != nil {
		return gate.Report{}, err
	}
	read, cut, err := gate.Read(strings.NewReader(file.String()))
	if err != nil || cut != 0 {
		return gate.Report{}, fmt.Errorf("samples written and read: %d bytes cut, %w", cut, err)
	}
	return g.Decide(d, read, o)
}

func (s stream) test(g Gate) Result {
	r := Result{Name: s.name, What: s.what, Seed: s.seed, Runs: s.runs, Verdicts: map[gate.Word]int{}, Exits: map[int]int{}, Claims: slices.Clone(s.claims)}
	counts := map[string]int{}
	of := map[string]int{}
	rounds := 0
	for run := range s.runs {
		d, launches, err := s.suite(g, run)
		if err != nil {
			r.Faults = append(r.Faults, err.Error())
			return r
		}
		report, err := g.decide(d, launches, gate.Options{})
		if err != nil {
			r.Faults = append(r.Faults, err.Error())
			return r
		}
		r.Exits[report.Exit]++
		for _, row := range report.Rows {
			r.Rows++
			r.Verdicts[row.Verdict]++
		}
		for _, c := range report.Controls {
			of[c.Kind+" fired"]++
			if c.Fired {
				counts[c.Kind+" fired"]++
			}
		}
		for _, l := range launches {
			if l.Control == "" && l.Arm == gate.Base {
				rounds++
			}
		}
		if fault := s.swapped(g, d, launches, report); fault != "" && len(r.Faults) == 0 {
			r.Faults = append(r.Faults, fault)
		}
	}
	r.Rounds = float64(rounds) / float64(r.Rows)
	var expected []string
	for i := range r.Claims {
		c := &r.Claims[i]
		var code int
		if _, err := fmt.Sscanf(c.What, "exit %d", &code); err == nil {
			c.Count, c.Of = r.Exits[code], r.Runs
		} else if n := of[c.What]; n > 0 {
			c.Count, c.Of = counts[c.What], n
		} else {
			c.Count, c.Of = r.Verdicts[gate.Word(c.What)], r.Rows
		}
		c.Interval = stat.ClopperPearson(c.Count, c.Of, 0.95)
		text := fmt.Sprintf("%s ≥ %.4g", c.What, c.Least)
		if c.Most < 1 {
			text = fmt.Sprintf("%s ≤ %.4g", c.What, c.Most)
		}
		expected = append(expected, text)
		if c.refuted() {
			r.Faults = append(r.Faults, fmt.Sprintf("%s: %d of %d, designed %.4g to %.4g", c.What, c.Count, c.Of, c.Least, c.Most))
		}
	}
	r.Expected = strings.Join(expected, ", ")
	return r
}

// swapped says how the verdict with the arms exchanged is not the mirror of report; "" if it is.
func (s stream) swapped(g Gate, d gate.Design, launches []gate.Launch, report gate.Report) string {
	other := slices.Clone(launches)
	for i := range other {
		l := &other[i]
		if l.Control != "" {
			continue
		}
		l.Arm = map[string]string{gate.Base: gate.Head, gate.Head: gate.Base}[l.Arm]
		l.Order = l.Order[1:] + l.Order[:1]
	}
	mirror, err := g.Decide(d, other, gate.Options{})
	if err != nil {
		return err.Error()
	}
	was := map[string]gate.Row{}
	for _, row := range report.Rows {
		was[row.Name] = row
	}
	for _, row := range mirror.Rows {
		a, b := was[row.Name].Verdict, row.Verdict
		// What is not proved slower may be proved not slower, or not: its mirror says nothing of that.
		plain := func(w gate.Word) bool { return w == gate.OK || w == gate.Inconclusive }
		if a == gate.Regression && b == gate.Improvement || a == gate.Improvement && b == gate.Regression ||
			a == gate.Unmeasurable && b == a || plain(a) && plain(b) {
			continue
		}
		return fmt.Sprintf("arms exchanged: %s is %s and was %s (%s; %s)", row.Name, b, a, row.Reason, was[row.Name].Reason)
	}
	return ""
}

// All puts the gate through every case and stream, one at a time. It takes a few
// seconds of processor time; the consumer may stop between two.
func All(g Gate) iter.Seq[Result] {
	return func(yield func(Result) bool) {
		for _, c := range cases() {
			if !yield(c.test(g)) {
				return
			}
		}
		for _, s := range streams() {
			if !yield(s.test(g)) {
				return
			}
		}
	}
}
