package compare

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/sandbed/sandbed/bench"
	"github.com/sandbed/sandbed/bench/gate"
	"github.com/sandbed/sandbed/bench/sample"
)

// session measures one comparison: it starts launches in the order of the design
// until every row is decided or the time is up.
type session struct {
	design   gate.Design
	run      run
	start    func(context.Context, launch) (bench.Reading, error)
	build    func(ctx context.Context, arm string, layout int) (string, error) // nil if all is built
	progress func(format string, args ...any)
	store    *store // nil keeps nothing on disk

	// shift is how many places of the layout seeds an arm is ahead of base, and inject
	// what is added to its time.
	shift  map[string]int
	inject map[string]float64

	deadline time.Time
	budget   time.Duration
	series   []*series
	exact    []gate.Launch
	warnings []string
}

// series is the pairs of one row: base against head, or against a control.
type series struct {
	row, control string
	launches     []gate.Launch
	step         gate.Step
}

func newSession(d gate.Design, start func(context.Context, launch) (bench.Reading, error)) *session {
	return &session{
		design: d, start: start, progress: func(string, ...any) {},
		// The null pair is two builds of base that differ in their layout.
		shift: map[string]int{gate.Null: 1}, inject: map[string]float64{gate.Injected: d.Injection},
		run: run{Batches: map[string]int{}},
	}
}

// other is the arm that a control compares with base.
func other(control string) string {
	if control == "" {
		return gate.Head
	}
	return control
}

// mine says whether a gated row belongs to this shard.
func (s *session) mine(i int) bool { return s.run.Shards == 0 || i%s.run.Shards == s.run.Shard-1 }

// setUp makes the series of the rows and of the controls, with what was measured before.
func (s *session) setUp(before []gate.Launch) error {
	control := ""
	for i, p := range s.design.Gated {
		if !s.mine(i) {
			continue
		}
		s.series = append(s.series, &series{row: p.Row})
		if control == "" && s.run.lacks(p.Row) == "" {
			control = p.Row // the first that both can measure
		}
	}
	if control != "" && s.design.Injection > 0 {
		s.series = append(s.series, &series{row: control, control: gate.Null}, &series{row: control, control: gate.Injected})
	}
	for _, l := range before {
		if l.Lane == gate.Exact {
			s.exact = append(s.exact, l)
			continue
		}
		i := slices.IndexFunc(s.series, func(x *series) bool { return x.row == l.Row && x.control == l.Control })
		if i < 0 {
			return fmt.Errorf("compare: a sample of row %s, control %q is of no row of this comparison", l.Row, l.Control)
		}
		s.series[i].launches = append(s.series[i].launches, l)
	}
	for _, x := range s.series {
		if err := x.judge(s.design); err != nil {
			return err
		}
	}
	return nil
}

func (x *series) judge(d gate.Design) (err error) {
	x.step, err = d.Next(x.launches)
	return err
}

// rounds counts the complete rounds of the stage that the series is in.
func (x *series) rounds() int {
	n := 0
	for _, l := range x.launches {
		if l.Stage == x.step.Stage {
			n++
		}
	}
	return n / 2
}

// launches are all that was measured, in the order of the rows.
func (s *session) launches() []gate.Launch {
	var out []gate.Launch
	for _, x := range s.series {
		out = append(out, x.launches...)
	}
	return append(out, s.exact...)
}

func (s *session) screenLayouts() []int { return s.design.LayoutSeeds[:len(s.design.LayoutSeeds)/2] }

// layout is the layout seed of an arm in a block. Both arms of a round have the
// same, except for what shift says.
func (s *session) layout(stage, arm string, block int) int {
	seeds := s.screenLayouts()
	if stage == gate.Confirm {
		seeds = s.design.LayoutSeeds[len(seeds):]
	}
	return seeds[(block+s.shift[arm])%len(seeds)]
}

// order is the order of a round: "AB" runs base first. A block is AB BA or BA AB, as
// the seed has it; the confirmation reverses the blocks of the screen.
func (s *session) order(x *series, stage string, round int) string {
	swapped := s.draw(fmt.Sprintf("order %s %s %d", x.row, x.control, round/2))&1 == 1
	if swapped != (stage == gate.Confirm) != (round%2 == 1) {
		return "BA"
	}
	return "AB"
}

// draw is a random number that depends on the seed and on what it is for, and on
// nothing that was drawn before: a resumed comparison draws the same.
func (s *session) draw(what string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(what))
	return rand.NewPCG(s.design.Seed, h.Sum64()).Uint64()
}

// ready fills the compile cache of each build and agrees on the batches.
func (s *session) ready(ctx context.Context) error {
	for i, p := range s.design.Gated {
		if !s.mine(i) || s.run.lacks(p.Row) != "" || s.run.Batches[p.Row] > 0 {
			continue
		}
		s.progress("sizing the batch of %s", p.Row)
		n, err := s.size(ctx, p.Row)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			n = 1 // its first launch will say so again, as a sample
		}
		s.run.Batches[p.Row] = n
	}
	if s.store != nil {
		return s.store.keep(s.run)
	}
	return nil
}

const (
	sizings  = 5   // readings of a batch size until two agree
	agreeing = 1.2 // ratio up to which they do
)

// size agrees on the iterations of a batch, which both arms share. A single
// reading that was interrupted would be far too small, so two must agree.
func (s *session) size(ctx context.Context, row string) (int, error) {
	last := 0
	for range sizings {
		r, err := s.start(ctx, launch{arm: gate.Base, layout: s.design.LayoutSeeds[0], row: row})
		if err != nil {
			return 0, err
		}
		lo, hi := min(last, r.Batch), max(last, r.Batch)
		if lo > 0 && (float64(hi) <= agreeing*float64(lo) || hi-lo <= 1) {
			return hi, nil
		}
		last = r.Batch
	}
	s.warnings = append(s.warnings, fmt.Sprintf("%s: no two of %d readings of its batch size agreed within %.0f %%", row, sizings, 100*(agreeing-1)))
	return last, nil
}

// measure runs all series to their end, or until the time is up.
func (s *session) measure(ctx context.Context) error {
	if s.series == nil {
		if err := s.setUp(nil); err != nil {
			return err
		}
	}
	// The compile cache is filled before anything is timed, for builds whose wasm differs.
	for _, arm := range []string{gate.Base, gate.Head} {
		for _, x := range s.series {
			if s.run.lacks(x.row) == "" && !x.step.Done {
				if _, err := s.start(ctx, launch{arm: arm, layout: s.layout(gate.Screen, arm, 0), row: x.row, batch: 1}); ctx.Err() != nil {
					return context.Cause(ctx)
				} else if err != nil {
					continue // its first launch will say so again, as a sample
				}
				break
			}
		}
	}
	for pass := 0; ; pass++ {
		screening, waiting := s.at(gate.Screen), s.at(gate.Confirm)
		open := screening
		if len(screening) == 0 {
			open = waiting
		}
		if len(waiting) > 0 && time.Until(s.deadline) < time.Duration((1-screenShare)*float64(s.budget)) {
			open = waiting // or nobody would know whether they hold
		}
		if len(open) == 0 {
			return nil
		}
		rng := rand.New(rand.NewPCG(s.design.Seed, s.draw(fmt.Sprint("pass", pass))))
		rng.Shuffle(len(open), func(i, j int) { open[i], open[j] = open[j], open[i] })
		s.progress("pass %d: %d of %d rows are undecided, %d wait for their confirmation", pass+1, len(screening)+len(waiting), len(s.series), len(waiting))
		for _, x := range open {
			if time.Now().After(s.deadline) {
				s.late()
				return nil
			}
			if err := s.block(ctx, x); err != nil {
				return err
			}
		}
	}
}

// at are the series whose next rounds belong to a stage.
func (s *session) at(stage string) []*series {
	var out []*series
	for _, x := range s.series {
		if !x.step.Done && x.step.Stage == stage {
			out = append(out, x)
		}
	}
	return out
}

// late says what the budget left undecided.
func (s *session) late() {
	var names []string
	for _, x := range s.series {
		if !x.step.Done && x.step.Word != gate.OK {
			name := x.row
			if x.control != "" {
				name += " (" + x.control + ")"
			}
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		s.warnings = append(s.warnings, fmt.Sprintf("the budget of %v ended before these were decided: %s", s.budget, strings.Join(names, ", ")))
	}
}

// block measures the rest of a series' block of two rounds, or up to the look in it.
func (s *session) block(ctx context.Context, x *series) error {
	if lacks := s.run.lacks(x.row); lacks != "" {
		return s.oneArm(ctx, x, lacks)
	}
	stage := x.step.Stage
	for {
		round := x.rounds()
		if err := s.pair(ctx, x, stage, round); err != nil {
			return err
		}
		if round++; round >= x.step.Rounds || x.failed() {
			return x.judge(s.design)
		} else if round%2 == 0 {
			return nil
		}
	}
}

func (x *series) failed() bool {
	return len(x.launches) > 0 && x.launches[len(x.launches)-1].Failed != ""
}

// pair measures one round.
func (s *session) pair(ctx context.Context, x *series, stage string, round int) error {
	order := s.order(x, stage, round)
	arms := []string{gate.Base, other(x.control)}
	if order == "BA" {
		slices.Reverse(arms)
	}
	// Exact values are asked for twice, to show that they repeat.
	exact := x.control == "" && stage == gate.Screen && round < 2
	var fresh, exacts []gate.Launch
	if s.build != nil { // not between two launches of a round
		for _, arm := range arms {
			if _, err := s.build(ctx, arm, s.layout(stage, arm, round/2)); err != nil {
				return err
			}
		}
	}
	for i, arm := range arms {
		l, more, err := s.launch(ctx, x, stage, arm, round, exact)
		if err != nil {
			return err
		}
		l.Order, l.First = order, i == 0
		fresh, exacts = append(fresh, l), append(exacts, more...)
		if l.Failed != "" {
			exacts = nil // what one arm alone measured says nothing
			break
		}
	}
	return s.record(x, fresh, exacts)
}

// record keeps the launches of a round, all at once. Exact ones come first: where an
// interrupt cuts the write, the round is measured again, and they are not kept twice.
func (s *session) record(x *series, fresh, exact []gate.Launch) error {
	exact = slices.DeleteFunc(exact, func(l gate.Launch) bool {
		return slices.ContainsFunc(s.exact, func(o gate.Launch) bool {
			return o.Row == l.Row && o.Stage == l.Stage && o.Arm == l.Arm && o.Round == l.Round
		})
	})
	s.exact = append(s.exact, exact...)
	x.launches = append(x.launches, fresh...)
	if s.store == nil {
		return nil
	}
	return s.store.add(slices.Concat(exact, fresh))
}

// launch starts one launch. The error is that of the context; a launch that fails is a sample.
func (s *session) launch(ctx context.Context, x *series, stage, arm string, round int, exact bool) (l gate.Launch, exacts []gate.Launch, err error) {
	layout := s.layout(stage, arm, round/2)
	l = gate.Launch{
		Schema: gate.Schema, Row: x.row, Unit: sample.Seconds, Better: "lower", Lane: gate.Time,
		Stage: stage, Control: x.control, Arm: arm, Round: round, Order: "AB", Layout: layout, Started: time.Now().UTC(),
	}
	r, err := s.start(ctx, launch{arm: arm, layout: layout, row: x.row, batch: s.run.Batches[x.row], inject: s.inject[arm], exact: exact})
	if ctx.Err() != nil {
		return l, nil, context.Cause(ctx)
	}
	if err != nil {
		l.Failed = short(err.Error())
		return l, nil, nil
	}
	l.Unit, l.Better, l.Value, l.Inner, l.Batch = r.Unit, r.Better, r.Value, r.Inner, r.BatchSec
	for _, e := range r.Exact {
		exacts = append(exacts, gate.Launch{
			Schema: gate.Schema, Row: e.Name, Unit: e.Unit, Better: "lower", Lane: gate.Exact,
			Stage: stage, Arm: arm, Round: round, Order: "AB", Layout: layout, Value: e.Value, Inner: e.Count, Started: l.Started,
		})
	}
	return l, exacts, nil
}

// short keeps the reason of a failure within a line of samples.
func short(reason string) string {
	const most = 2000
	if len(reason) > most {
		reason = strings.ToValidUTF8(reason[:most], "") + "…"
	}
	return reason
}

// oneArm records that one arm lacks a row, and shows what the other measures.
func (s *session) oneArm(ctx context.Context, x *series, lacks string) error {
	has := gate.Head
	if lacks == gate.Head {
		has = gate.Base
	}
	gone := gate.Launch{
		Schema: gate.Schema, Row: x.row, Unit: sample.Seconds, Better: "lower", Lane: gate.Time,
		Stage: gate.Screen, Arm: lacks, Order: "AB", Started: time.Now().UTC(), Absent: true,
	}
	fresh := []gate.Launch{gone}
	for round := range newRounds {
		l, _, err := s.launch(ctx, x, gate.Screen, has, round, false)
		if err != nil {
			return err
		}
		if fresh = append(fresh, l); l.Failed != "" {
			break
		}
	}
	if err := s.record(x, fresh, nil); err != nil {
		return err
	}
	return x.judge(s.design)
}
