package gate

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/bench/stat"
)

const (
	// least stands in for a time of 0, which has no logarithm: a picosecond.
	least = 1e-12
	// maxTies is the share of rounds with equal values above which a row is UNMEASURABLE.
	maxTies = 0.2
	// dependence is the |lag-1| above which blocks of two rounds are judged. Independent
	// rounds pass it by chance (at 10 rounds half of the time), so that it must be twice its
	// standard error as well, 1/√n. By simulation (σ 3 %, 2026-11-30): without that a null
	// row takes 16.9 rounds for 14.0, and skewed rounds cross too often, 0.0097 for 0.0034.
	dependence = 0.2
	// orderDoubt is the p of a sign test below which the order of the launches has an effect. Blocks
	// of random order hide it from lag-1: 8 % went unnoticed in 2 of 100 rows.
	orderDoubt = 0.05
)

// round is a pair of launches, one an arm.
type round struct {
	number     int
	base, head float64
	order      string
	batch      float64 // the shorter of the two; 0 if unknown
}

// change is ln head − ln base.
func (r round) change() float64 {
	return math.Log(max(r.head, least)) - math.Log(max(r.base, least))
}

// group is the launches of one row and control.
type group struct {
	row, control       string
	unit, better, lane string
	screen, confirm    []round
	incomplete         int       // rounds of which only one arm is there
	base, head         []float64 // all values, for exact rows
	absent             string    // the arm that lacks the row
	failed             string
	relaid             bool // confirmation used a layout of the screen
}

// gather sorts the launches of one row and control into rounds.
func gather(launches []Launch) group {
	f := launches[0]
	g := group{row: f.Row, control: f.Control, unit: f.Unit, better: f.Better, lane: f.Lane}
	type halves struct{ base, head *Launch }
	rounds := map[string]map[int]*halves{Screen: {}, Confirm: {}}
	layouts := map[int]bool{}
	for i := range launches {
		l := &launches[i]
		switch {
		case l.Failed != "":
			if g.failed == "" {
				g.failed = fmt.Sprintf("%s, round %d: %.300q", l.Arm, l.Round, l.Failed)
			}
			continue
		case l.Absent:
			g.absent = l.Arm
			continue
		}
		h := rounds[l.Stage][l.Round]
		if h == nil {
			h = &halves{}
			rounds[l.Stage][l.Round] = h
		}
		if l.Arm == Base {
			h.base, g.base = l, append(g.base, l.Value)
		} else {
			h.head, g.head = l, append(g.head, l.Value)
		}
		if l.Stage == Screen {
			layouts[l.Layout] = true
		}
	}
	for stage, all := range rounds {
		var pairs []round
		for number, h := range all {
			if h.base == nil || h.head == nil {
				g.incomplete++
				continue
			}
			pairs = append(pairs, round{number, h.base.Value, h.head.Value, h.base.Order, min(h.base.Batch, h.head.Batch)})
			g.relaid = g.relaid || stage == Confirm && layouts[h.base.Layout]
		}
		slices.SortFunc(pairs, func(a, b round) int { return cmp.Compare(a.number, b.number) })
		if stage == Screen {
			g.screen = pairs
		} else {
			g.confirm = pairs
		}
	}
	// An interrupt leaves one round with one arm; two say that the other arm has no such row.
	if g.absent == "" && g.failed == "" && g.incomplete >= 2 {
		switch {
		case len(g.head) == 0:
			g.absent = Head
		case len(g.base) == 0:
			g.absent = Base
		}
	}
	return g
}

// slowness is the change of each round in the direction that is worse.
func (g group) slowness(rounds []round) []float64 {
	d := make([]float64, len(rounds))
	for i, r := range rounds {
		d[i] = r.change()
		if g.better == "higher" {
			d[i] = -d[i]
		}
	}
	return d
}

// answer is what the rounds say to one question.
type answer int

const (
	open answer = iota
	proved
	refuted
)

// outcome is what the rounds of one stage say. "Slower?" and "faster?" are the same
// question to mirrored rounds; each is answered once, at a look.
type outcome struct {
	slower, faster answer
	look           int  // the last one judged, from 1; 0 is before the first
	rounds         int  // what was judged: none before the first look
	tied           bool // too many ties
	ties           int
	lag1           float64
	order          float64 // how much longer the second launch of a round takes, as a logarithm, if the rounds prove it

	// The rest is of the unit that was judged at the last look: rounds, or blocks of two.
	blocks       bool
	limits       stat.Limits
	unit         []float64
	above, below int
	interval     stat.Interval // of the median of the slowness
}

// judge judges rounds at the looks and nowhere else: what comes between two looks, or
// after the one that answers both questions, changes nothing. theta is the margin.
// Slow is the slowness of each round.
func (l limits) judge(slow []float64, rounds []round, theta float64) outcome {
	m := math.Log1p(theta)
	o := outcome{limits: l.pairs, interval: stat.Interval{Low: math.Inf(-1), High: math.Inf(1), Confidence: 1 - 2*l.pairs.SpentFail}}
	for i, n := range l.pairs.Looks {
		if n > len(slow) {
			break
		}
		d := slow[:n]
		o.look, o.rounds, o.ties = i+1, n, count(d, func(v float64) bool { return v == 0 })
		if o.tied = float64(o.ties) > maxTies*float64(n); o.tied {
			return o
		}
		o.lag1 = stat.Lag1(d)
		o.blocks, o.limits, o.unit = false, l.pairs, d
		at := i
		means, order := blocks(d, rounds[:n])
		o.order = order
		if o.order != 0 || math.Abs(o.lag1) > max(dependence, 2/math.Sqrt(float64(n))) {
			o.blocks, o.limits = true, l.blocks
			at = -1
			for k, b := range l.blocks.Looks {
				if b <= len(means) {
					at = k
				}
			}
			if at < 0 {
				o.unit, o.above, o.below = means, 0, 0
				o.interval = stat.Interval{Low: math.Inf(-1), High: math.Inf(1), Confidence: 1 - 2*l.blocks.SpentFail}
				continue
			}
			o.unit = means[:l.blocks.Looks[at]]
		}
		o.above = count(o.unit, func(v float64) bool { return v > m })
		o.below = count(o.unit, func(v float64) bool { return v < -m })
		o.interval = o.limits.Interval(at, o.unit)
		o.slower = settle(o.slower, o.limits, at, o.above)
		o.faster = settle(o.faster, o.limits, at, o.below)
		if o.slower == proved {
			o.faster = refuted
		} else if o.faster == proved {
			o.slower = refuted
		}
		if o.slower != open && o.faster != open {
			break
		}
	}
	return o
}

// settle answers a question that is open with the rounds beyond the margin at a look.
func settle(a answer, l stat.Limits, look, beyond int) answer {
	switch {
	case a != open:
		return a
	case l.Fail[look] >= 0 && beyond >= l.Fail[look]:
		return proved
	case beyond <= l.Clear[look]:
		return refuted
	}
	return open
}

// blocks are rounds 2k and 2k+1 where both are there: one AB and one BA, so that what the
// order or a drift adds cancels in their means. Order is what the second launch takes
// longer, 0 unless a sign test over the blocks says that it does.
func blocks(d []float64, rounds []round) (means []float64, order float64) {
	var effects []float64
	for i := 1; i < len(d); i++ {
		a, b := rounds[i-1], rounds[i]
		if b.number%2 == 0 || a.number != b.number-1 {
			continue
		}
		means = append(means, (d[i-1]+d[i])/2)
		switch effect := (d[i-1] - d[i]) / 2; {
		case effect == 0 || a.order == b.order:
		case a.order == "AB": // head ran second
			effects = append(effects, effect)
		default:
			effects = append(effects, -effect)
		}
	}
	later := count(effects, func(v float64) bool { return v > 0 })
	if 2*stat.SignTest(max(later, len(effects)-later), len(effects)) < orderDoubt {
		order = sample.Quantile(effects, 0.5)
	}
	return means, order
}

func count(d []float64, is func(float64) bool) (n int) {
	for _, v := range d {
		if is(v) {
			n++
		}
	}
	return n
}

// judged is a row that the statistics decide.
type judged struct {
	theta, floor    float64
	screen, confirm outcome
	word            Word
	reason          string
	stage           string // of the rounds to come; "" when the word is final
}

// judge comes to the word on one row of the time lane.
func (g group) judge(d Design, l limits) judged {
	p, _ := d.plan(g.row)
	batch := 0.0
	if len(g.screen) > 0 {
		batch = g.screen[0].batch // the first: a margin must not move with the rounds
	}
	j := judged{word: Inconclusive, stage: Screen}
	j.theta, j.floor = d.margin(p, batch)
	of := func(rounds []round) outcome { return l.judge(g.slowness(rounds), rounds, j.theta) }
	j.screen = of(g.screen)
	last := len(l.pairs.Looks)
	s := &j.screen
	crossed := s.slower == proved || s.faster == proved
	switch {
	case j.theta > maxMargin:
		j.word, j.stage = Unmeasurable, ""
		j.reason = fmt.Sprintf("the margin it needs, %s, is above %s", percent(j.theta), percent(maxMargin))
	case s.tied:
		j.word, j.stage = Unmeasurable, ""
		j.reason = fmt.Sprintf("%d of %d rounds are ties: measure a longer batch", s.ties, s.rounds)
	case crossed:
		j.confirmed(g, of(g.confirm), last)
	case s.slower == refuted:
		j.word = OK
		j.reason = fmt.Sprintf("%s slower at look %d", s.tally(s.above), s.look)
	case s.look == 0:
		j.reason = fmt.Sprintf("%d rounds, the first look is at %d", len(g.screen), l.pairs.Looks[0])
	case s.blocks && s.look > 0 && len(s.unit) < firstLook(l.blocks):
		j.reason = fmt.Sprintf("rounds depend on each other (lag-1 %.2f, order %+.1f %%), and %d blocks of two are too few", s.lag1, 100*math.Expm1(s.order), len(s.unit))
	default:
		j.reason = fmt.Sprintf("%s slower at look %d of %d", s.tally(s.above), s.look, last)
	}
	if !crossed && (s.look == last || s.slower != open && s.faster != open) {
		j.stage = ""
	}
	return j
}

// firstLook is the number of blocks that the first look needs; none are enough without looks.
func firstLook(l stat.Limits) int {
	if len(l.Looks) == 0 {
		return math.MaxInt
	}
	return l.Looks[0]
}

// confirmed comes to the word on a row that crossed in the screen. The confirmation
// must cross as well; its rounds are new, so that both crossing by chance is the square of one.
func (j *judged) confirmed(g group, c outcome, last int) {
	j.confirm = c
	slow := j.screen.slower == proved
	mine, beyond := c.faster, c.below
	verdict, direction, crossing := Improvement, "faster", j.screen.below
	if slow {
		mine, beyond = c.slower, c.above
		verdict, direction, crossing = Regression, "slower", j.screen.above
	}
	j.reason = fmt.Sprintf("crossed %s %s at look %d", j.screen.tally(crossing), direction, j.screen.look)
	j.stage = Confirm
	if c.tied || c.look == last || mine != open {
		j.stage = ""
	}
	// What was faster in the screen is at least not slower; what was slower is not cleared by that.
	j.word = Inconclusive
	if !slow && c.slower != proved {
		j.word = OK
	}
	switch {
	case mine == proved:
		j.word = verdict
		j.reason += fmt.Sprintf(", confirmed %s", c.tally(beyond))
	case c.look == 0:
		j.reason += fmt.Sprintf(", not confirmed: %d rounds of the confirmation", len(g.confirm))
	default:
		j.reason += fmt.Sprintf(", not confirmed: %s", c.tally(beyond))
	}
}

// tally writes a count out of what was judged: "14 of 15", "14 of 15 blocks".
func (o outcome) tally(n int) string {
	if o.blocks {
		return fmt.Sprintf("%d of %d blocks", n, len(o.unit))
	}
	return fmt.Sprintf("%d of %d", n, len(o.unit))
}

// Step is where a row stands while it is measured.
type Step struct {
	// Word is the verdict if no more rounds came: Inconclusive before the first look.
	Word Word
	// Done says that more rounds cannot change Word. A row that is not slower but may be
	// proved faster has Word OK and is not done: a runner short of time may leave it.
	Done bool
	// Stage is where the next rounds belong, and Rounds how many complete rounds that stage must
	// have before the row is asked again: the next look. Both are zero when Done.
	Stage  string
	Rounds int
}

// Next says how a row stands and what to measure next, from all its launches so far
// with the same Control; a row without launches has not to be asked. It decides as
// [Decide] does, by the same code, from launches that are valid; a control needs no confirmation.
func (d Design) Next(launches []Launch) (Step, error) {
	l, err := d.limits()
	if err != nil {
		return Step{}, err
	}
	if len(launches) == 0 {
		return Step{Word: Inconclusive, Stage: Screen, Rounds: d.Looks[0]}, nil
	}
	g := gather(launches)
	switch {
	case g.failed != "":
		return Step{Word: Failed, Done: true}, nil
	case g.absent == Base:
		return Step{Word: New, Done: true}, nil
	case g.absent != "":
		return Step{Word: Removed, Done: true}, nil
	case g.lane == Exact:
		if len(g.base) == 0 || len(g.head) == 0 {
			return Step{Word: Inconclusive, Stage: Screen, Rounds: 1}, nil
		}
		row := g.exact(d)
		return Step{Word: row.Verdict, Done: true}, nil
	}
	j := g.judge(d, l)
	s := Step{Word: j.word, Stage: j.stage}
	measured := len(g.screen)
	if s.Stage == Confirm {
		measured = len(g.confirm)
		if g.control != "" {
			s.Word, s.Stage = g.controlWord(j), ""
		}
	}
	if g.control == Injected && j.screen.slower != open {
		s.Stage = ""
	}
	if s.Stage == "" {
		s.Done = true
		return s, nil
	}
	for _, n := range d.Looks {
		if s.Rounds = n; n > measured {
			break
		}
	}
	return s, nil
}

// controlWord is the word on a control, whose screen decides.
func (g group) controlWord(j judged) Word {
	switch {
	case j.screen.slower == proved:
		return Regression
	case j.screen.faster == proved:
		return Improvement
	}
	return j.word
}
