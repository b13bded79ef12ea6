package gate

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/bench/stat"
)

// The exit codes of benchrun that a verdict may give.
const (
	ExitHeld         = 0
	ExitRegression   = 1
	ExitInconclusive = 3 // the machine or the controls allow no verdict, or too many rows have none
	ExitFailed       = 4
)

// maxUnproved is the share of gated rows without a verdict that a comparison may have.
const maxUnproved = 0.05

// Options are what a verdict depends on beside the launches.
type Options struct {
	Waivers []Waiver
	Today   time.Time // a waiver is void after its day of expiry
	Strict  bool      // one gated row without a verdict is too many
	Fitness *Fitness  // of the machine; nil if unknown
}

// Decide comes to the verdict on a comparison. It is a pure function: the order of the
// launches does not matter, and neither does what was measured after a row was decided.
//
// A gated row decides; a row of the exact lane always does. The exit code is 4 if a launch failed,
// else 1 if a regression is proved and not waived, else 3 if the machine was unfit, a
// control was not as it must or more than 5 % of the gated rows have no verdict, else 0.
//
// Decide leaves Base, Head, the environments, Started, Took and Quick to the caller. An error is a design
// or a launch that cannot be used.
func Decide(d Design, launches []Launch, o Options) (Report, error) {
	if err := d.Validate(); err != nil {
		return Report{}, err
	}
	l, err := d.limits()
	if err != nil {
		return Report{}, err
	}
	var all set
	type id struct{ row, control string }
	byRow := map[id][]Launch{}
	var order []id
	for _, one := range launches {
		if err := all.add(one); err != nil {
			return Report{}, err
		}
		k := id{one.Row, one.Control}
		if byRow[k] == nil {
			order = append(order, k)
		}
		byRow[k] = append(byRow[k], one)
	}
	r := Report{Schema: Schema, Design: d, FailAt: l.pairs.Fail, ClearAt: l.pairs.Clear, Fitness: o.Fitness}
	for _, k := range order {
		g := gather(byRow[k])
		if k.control != "" {
			r.Controls = append(r.Controls, g.asControl(d, l))
			continue
		}
		row, warnings := g.asRow(d, l)
		r.Rows = append(r.Rows, row)
		r.Warnings = append(r.Warnings, warnings...)
	}
	for _, p := range d.Gated {
		if byRow[id{p.Row, ""}] == nil {
			r.Rows = append(r.Rows, Row{Name: p.Row, Lane: Time, Gated: true, Ratio: 1, Theta: p.Theta, P: 1, PAdj: 1,
				Interval: unbounded(), Base: Arm{CI: unbounded()}, Head: Arm{CI: unbounded()},
				Verdict: Inconclusive, Reason: "not measured: no launches"})
		}
	}
	slices.SortFunc(r.Controls, func(a, b Control) int {
		return cmp.Or(cmp.Compare(b.Kind, a.Kind), cmp.Compare(a.Row, b.Row)) // the null pair first
	})
	r.conclude(o)
	return r, nil
}

// asRow makes the row of a group.
func (g group) asRow(d Design, l limits) (Row, []string) {
	if g.lane == Exact {
		return g.exact(d), nil
	}
	_, gated := d.plan(g.row)
	j := g.judge(d, l)
	s := j.screen
	row := Row{
		Name: g.row, Unit: g.unit, Better: g.better, Lane: g.lane, Gated: gated,
		Theta: j.theta, Floor: j.floor, Verdict: j.word, Reason: j.reason,
		Blocks: s.blocks, Slower: s.above, Rounds: len(s.unit), Ties: s.ties, Lag1: orZero(s.lag1),
	}
	shown := g.screen
	if s.look > 0 {
		shown = shown[:s.rounds]
	}
	for _, one := range shown {
		row.LogRatios = append(row.LogRatios, one.change())
		row.Orders = append(row.Orders, one.order)
		row.BaseVals = append(row.BaseVals, one.base)
		row.HeadVals = append(row.HeadVals, one.head)
	}
	if len(shown) == 0 { // one arm alone is still shown
		row.BaseVals, row.HeadVals = g.base, g.head
	}
	row.Base, row.Head = arm(row.BaseVals), arm(row.HeadVals)
	row.Ratio, row.Interval = g.ratio(row.LogRatios, s)
	row.P, row.PAdj = 1, 1
	if row.Rounds > 0 {
		row.P = stat.SignTest(row.Slower, row.Rounds)
		row.PAdj = min(1, row.P*float64(len(d.Gated)))
		row.Sigma = orZero(stat.RobustSigma(s.unit))
		row.MDE = orZero(math.Expm1(math.Log1p(row.Theta) + row.Sigma*l.reach(s.blocks)))
	}
	var warnings []string
	warn := func(format string, a ...any) {
		warnings = append(warnings, g.row+": "+fmt.Sprintf(format, a...))
	}
	switch {
	case g.failed != "":
		row.Verdict, row.Reason = Failed, g.failed
	case g.absent == Base:
		row.Verdict, row.Reason = New, "base lacks the row"
	case g.absent != "":
		row.Verdict, row.Reason = Removed, "head lacks the row"
		if gated {
			warn("a gated row that head lacks: name its successor in the list of gated rows")
		}
	default:
		if g.incomplete > 0 {
			warn("%d rounds lack one arm and are not judged", g.incomplete)
		}
		if math.Abs(s.order) > math.Log1p(j.theta)/2 {
			warn("what ran second took %+.1f %%: blocks of two rounds are judged, in which that cancels", 100*math.Expm1(s.order))
		}
		if g.relaid {
			warn("the confirmation used a layout seed of the screen: the layout may have decided")
		}
		if len(row.Orders) >= d.Looks[0] && len(slices.Compact(slices.Clone(row.Orders))) == 1 {
			warn("every round ran the arms in the same order: an order bias would look like a change")
		}
	}
	return row, warnings
}

// orZero is v, or 0 where v is no figure that JSON can hold.
func orZero(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	return v
}

func unbounded() stat.Interval { return stat.Interval{Low: math.Inf(-1), High: math.Inf(1)} }

func arm(values []float64) Arm {
	if len(values) == 0 {
		return Arm{CI: unbounded()}
	}
	return Arm{Median: orZero(sample.Quantile(values, 0.5)), CI: stat.MedianInterval(values, 0.95), N: len(values)}
}

// ratio is head ÷ base with the interval that s has.
func (g group) ratio(changes []float64, s outcome) (float64, stat.Interval) {
	i := s.interval
	if g.better == "higher" {
		i.Low, i.High = -i.High, -i.Low
	}
	i.Low, i.High = math.Exp(i.Low), math.Exp(i.High)
	if math.IsInf(s.interval.Low, -1) && math.IsInf(s.interval.High, 1) {
		i.Low = math.Inf(-1) // open ends, whatever the scale
	}
	if s.blocks && len(s.unit) > 0 {
		m := sample.Quantile(s.unit, 0.5)
		if g.better == "higher" {
			m = -m
		}
		return orZero(math.Exp(m)), i
	}
	if len(changes) == 0 {
		return 1, i
	}
	return orZero(math.Exp(sample.Quantile(changes, 0.5))), i
}

// exact makes the row of a group that the same build repeats to the last unit.
func (g group) exact(d Design) Row {
	row := Row{Name: g.row, Unit: g.unit, Better: g.better, Lane: Exact, Gated: true, Ratio: 1, P: 1, PAdj: 1,
		Interval: unbounded(), Base: arm(g.base), Head: arm(g.head), Verdict: Inconclusive}
	switch {
	case g.failed != "":
		row.Verdict, row.Reason = Failed, g.failed
		return row
	case g.absent == Base:
		row.Verdict, row.Reason = New, "base lacks the row"
		return row
	case g.absent != "":
		row.Verdict, row.Reason = Removed, "head lacks the row"
		return row
	case len(g.base) == 0 || len(g.head) == 0:
		row.Reason = "not measured: one arm has no launch"
		return row
	}
	for _, a := range []struct {
		name   string
		values []float64
	}{{Base, g.base}, {Head, g.head}} {
		if lo, hi := slices.Min(a.values), slices.Max(a.values); lo != hi {
			row.Verdict, row.Reason = Unmeasurable, fmt.Sprintf("not exact: %s gave %g and %g: put the row in the time lane", a.name, lo, hi)
			return row
		}
	}
	row.settleExact(g.base[0], g.head[0], d.ExactLimit)
	return row
}

// settleExact compares two exact values. The limit is in Theta, as a share of base.
func (r *Row) settleExact(base, head, limit float64) {
	if base != 0 {
		r.Ratio = orZero(head / base)
	} else if head != 0 {
		r.Ratio = 0 // there is none
	}
	allowed := limit * math.Abs(base)
	if r.Unit != sample.Ratio && r.Unit != sample.Share {
		allowed = max(allowed, 1) // a unit of what is counted
	}
	worse := head - base
	if r.Better == "higher" {
		worse = -worse
	}
	r.Theta = limit
	r.Interval = stat.Interval{Low: r.Ratio, High: r.Ratio, Confidence: 1}
	switch {
	case worse == 0:
		r.Verdict, r.Reason = Unchanged, "equal"
	case worse > allowed*(1+1e-9): // 0.505 − 0.5 is a little more than 1 % of 0.5
		r.Verdict, r.Reason = Regression, fmt.Sprintf("%g → %g: more than %g for the worse", base, head, allowed)
	case worse > 0:
		r.Verdict, r.Reason = Changed, fmt.Sprintf("%g → %g: at most %g for the worse", base, head, allowed)
	default:
		r.Verdict, r.Reason = Changed, fmt.Sprintf("%g → %g: for the better", base, head)
	}
}

// asControl makes the control of a group.
func (g group) asControl(d Design, l limits) Control {
	j := g.judge(d, l)
	s := j.screen
	c := Control{Kind: g.control, Row: g.row, Rounds: len(s.unit)}
	changes := make([]float64, 0, len(g.screen))
	for i, one := range g.screen {
		if s.look == 0 || i < s.rounds {
			changes = append(changes, one.change())
		}
	}
	c.Ratio, c.Interval = g.ratio(changes, s)
	if g.failed != "" || g.absent != "" {
		return c
	}
	unmeasurable := j.word == Unmeasurable
	if g.control == Injected {
		c.Injected = d.Injection
		c.Fired = s.slower == proved && !unmeasurable
		c.Good = c.Fired
		return c
	}
	c.Fired = (s.slower == proved || s.faster == proved) && !unmeasurable
	// A null pair that could not have fired shows nothing, unless it proved both.
	could := s.look > 0 && !unmeasurable && slices.ContainsFunc(s.limits.Fail[:min(s.look, len(s.limits.Fail))], func(u int) bool { return u >= 0 })
	c.Good = !c.Fired && (could || s.slower == refuted && s.faster == refuted)
	return c
}

// slowdown is how much worse head is, as a ratio.
func (r Row) slowdown() float64 {
	switch {
	case r.Ratio == 0 && r.Better != "higher":
		return math.Inf(1) // exact, from 0
	case r.Better == "higher":
		return 1 / r.Ratio
	}
	return r.Ratio
}

// evidence is how far the interval is beyond the margin, in margins: the bound nearest
// to it, in either direction.
func (r Row) evidence() float64 {
	switch {
	case r.Verdict == Failed:
		return math.Inf(1)
	case r.Lane == Exact && r.Verdict != Regression && r.Verdict != Waived && r.Verdict != Changed:
		return math.Inf(-1)
	case r.Lane == Exact:
		return math.Abs(math.Log(r.slowdown())) / math.Log1p(max(r.Theta, 1e-9))
	}
	m := math.Log1p(r.Theta)
	if m == 0 {
		return math.Inf(-1)
	}
	e := math.Inf(-1)
	if r.Interval.Low > 0 {
		e = max(e, math.Log(r.Interval.Low)/m)
	}
	if r.Interval.High > 0 && !math.IsInf(r.Interval.High, 1) {
		e = max(e, -math.Log(r.Interval.High)/m)
	}
	return e
}

// conclude settles controls and waivers, and comes to the verdict on all rows.
func (r *Report) conclude(o Options) {
	unfit := r.void(o)
	r.Waivers = waive(r.Rows, o.Waivers, o.Today)
	slices.SortStableFunc(r.Rows, func(a, b Row) int {
		gated := func(x Row) int {
			if x.Gated {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(gated(a), gated(b)), cmp.Compare(b.evidence(), a.evidence()), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Unit, b.Unit))
	})
	var c tally
	for _, row := range r.Rows {
		c.add(row)
	}
	compared := c.proved + c.slow + c.waived + c.unproved
	switch {
	case c.failed > 0:
		r.Verdict, r.Exit = "failed", ExitFailed
	case c.slow+c.exactWorse > 0:
		r.Verdict, r.Exit = "regression", ExitRegression
	case unfit != "":
		r.Verdict, r.Exit = "unfit", ExitInconclusive
	case float64(c.unproved) > maxUnproved*float64(compared),
		o.Strict && c.unproved+c.removed > 0,
		compared == 0 && c.removed > 0:
		r.Verdict, r.Exit = "inconclusive", ExitInconclusive
	default:
		r.Verdict, r.Exit = "ok", ExitHeld
	}
	r.Proved = c.sentence(r.Verdict, unfit)
}

// void takes back the verdicts that the controls or the machine do not bear, and
// says why; "" if they bear them.
func (r *Report) void(o Options) string {
	reds, all := "", "" // why reds, or all, mean nothing
	if o.Fitness != nil && !o.Fitness.Fit {
		reds = "the machine was unfit: " + strings.Join(o.Fitness.Reasons, "; ")
	}
	judged := slices.ContainsFunc(r.Rows, func(row Row) bool {
		return row.Lane == Time && (row.Verdict == Regression || row.Verdict == Improvement || row.Verdict == OK)
	})
	seen := map[string]bool{}
	for _, c := range r.Controls {
		seen[c.Kind] = true
		switch {
		case c.Good:
		case c.Kind == Injected:
			all = fmt.Sprintf("the injected slowdown of %s on %s was not found", percent(c.Injected), c.Row)
		case c.Fired:
			reds = fmt.Sprintf("the null control fired on %s (%.3f ×): base differs from base", c.Row, c.Ratio)
		case reds == "":
			reds = fmt.Sprintf("the null control on %s was not measured to a look that could fire", c.Row)
		}
	}
	if r.Design.Injection > 0 && judged && !r.Unpaired {
		if !seen[Null] && reds == "" {
			reds = "the null control is missing"
		}
		if !seen[Injected] && all == "" {
			all = "the injected control is missing"
		}
	} else if r.Design.Injection == 0 && judged && !r.Unpaired && len(r.Controls) == 0 {
		r.Warnings = append(r.Warnings, "no controls: nothing shows that this run could find a slowdown, or that it finds none where there is none")
	}
	for i := range r.Rows {
		row := &r.Rows[i]
		why := reds
		if all != "" {
			why = all
		}
		red := row.Verdict == Regression || row.Verdict == Improvement
		if row.Lane != Time || why == "" || !red && !(all != "" && row.Verdict == OK) {
			continue
		}
		row.Reason = fmt.Sprintf("%s, but %s", row.Reason, why)
		row.Verdict = Inconclusive
	}
	return cmp.Or(all, reds)
}

// tally counts the rows that decide.
type tally struct {
	proved, slow, waived, unproved int // gated rows of the time lane
	added, removed, failed         int
	exact, exactWorse, exactWaived int
	names, broken                  []string // what is worse, what failed
	lo, hi                         float64  // margins of what was proved
}

func (c *tally) add(row Row) {
	switch {
	case row.Verdict == Failed:
		c.failed++ // of any row
		c.broken = append(c.broken, row.Name)
	case !row.Gated:
	case row.Verdict == New:
		c.added++
	case row.Verdict == Removed:
		c.removed++
	case row.Verdict == Regression:
		c.names = append(c.names, fmt.Sprintf("%s (%+.3g %%)", row.Name, 100*(row.Ratio-1)))
		if row.Lane == Exact {
			c.exact++
			c.exactWorse++
		} else {
			c.slow++
		}
	case row.Lane == Exact && row.Verdict != Inconclusive && row.Verdict != Unmeasurable:
		c.exact++
		if row.Verdict == Waived {
			c.exactWaived++
		}
	case row.Verdict == Waived:
		c.waived++
	case row.Verdict == OK || row.Verdict == Improvement:
		if c.proved == 0 {
			c.lo, c.hi = row.Theta, row.Theta
		}
		c.lo, c.hi = min(c.lo, row.Theta), max(c.hi, row.Theta)
		c.proved++
	default:
		c.unproved++
	}
}

// sentence says what was proved.
func (c tally) sentence(verdict, unfit string) string {
	total := c.proved + c.slow + c.waived + c.unproved
	margin := "a slowdown of " + percent(c.lo) + " or more"
	if percent(c.lo) != percent(c.hi) {
		margin = fmt.Sprintf("a slowdown beyond their margins (%s to %s)", percent(c.lo), percent(c.hi))
	}
	var parts []string
	part := func(n int, format string, a ...any) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf(format, a...))
		}
	}
	part(c.unproved, "%d inconclusive", c.unproved)
	part(c.waived+c.exactWaived, "%d waived", c.waived+c.exactWaived)
	part(c.added, "%d new", c.added)
	part(c.removed, "%d removed", c.removed)
	part(c.exact, "%d of %d exact rows within their limit", c.exact-c.exactWorse-c.exactWaived, c.exact)
	rest := ""
	if len(parts) > 0 {
		rest = ", " + strings.Join(parts, ", ")
	}
	if verdict == "failed" {
		c.names = c.broken
	}
	const shown = 3
	names := strings.Join(c.names[:min(shown, len(c.names))], ", ")
	if len(c.names) > shown {
		names += fmt.Sprintf(" and %d more", len(c.names)-shown)
	}
	free := fmt.Sprintf("%d of %d rows proved free of %s%s", c.proved, total, margin, rest)
	if c.proved == 0 {
		free = fmt.Sprintf("0 of %d rows proved free of a slowdown%s", total, rest)
	}
	switch verdict {
	case "failed":
		return fmt.Sprintf("Nothing proved: %d %s failed: %s.", c.failed, plural(c.failed, "row"), names)
	case "regression":
		n := c.slow + c.exactWorse
		return fmt.Sprintf("%d %s proved: %s; %s.", n, plural(n, "regression"), names, free)
	case "unfit":
		return "Nothing proved: " + unfit + "."
	case "inconclusive":
		return "Not enough proved: " + free + "."
	}
	switch {
	case total == 0 && c.exact == 0:
		return fmt.Sprintf("Nothing to prove: %d gated rows are new.", c.added)
	case total == 0:
		return fmt.Sprintf("No exact row got worse%s.", rest)
	case c.proved == 0:
		return "Nothing proved: " + free + "."
	}
	return fmt.Sprintf("No %s: %d of %d rows proved%s.", strings.TrimPrefix(margin, "a "), c.proved, total, rest)
}

func plural(n int, noun string) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}
