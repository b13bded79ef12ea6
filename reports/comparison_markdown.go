package reports

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sandbed/sandbed/bench/gate"
	"github.com/sandbed/sandbed/bench/sample"
)

// layout is what a comparison's markdown has room for.
type layout struct {
	pictures bool
	rows     int      // of each table outside the folds
	without  []string // parts that are left out, of droppable
}

// The folded parts, the first to go first.
const (
	partHistory     = "history"
	partRows        = "all rows"
	partEnvironment = "environment"
)

var droppable = []string{partHistory, partRows, partEnvironment}

// fit is the report within a limit: folded parts go first, in their order, then rows.
func (c *comparison) fit(limit int, size func([]byte) int) []byte {
	var text []byte
	for _, l := range []layout{
		{rows: 200}, {rows: 200, without: droppable[:1]}, {rows: 200, without: droppable[:2]}, {rows: 200, without: droppable},
		{rows: 40, without: droppable}, {rows: 10, without: droppable}, {rows: 0, without: droppable},
	} {
		if text = c.markdown(l); size(text) <= limit {
			break
		}
	}
	return text
}

// comparisonPage is a comparison's markdown in the making.
type comparisonPage struct {
	page
	*comparison
	layout
}

// markdown writes the report: what was proved, what changed, what to trust it by,
// then the rest, folded.
func (c *comparison) markdown(l layout) []byte {
	w := &comparisonPage{comparison: c, layout: l}
	w.line("%s", marker("report", c.HeadEnv.Engine))
	w.line("# Benchmarks: %s against %s", refText(c.Head), refText(c.Base))
	w.line("")
	symbol, words := banner(c.Verdict)
	w.line("**%s %s.** %s", symbol, inline(words), inline(c.Proved))
	w.line("")
	var counts []string
	for _, n := range c.counts() {
		counts = append(counts, n.Said())
	}
	gated := 0
	for _, r := range c.Rows {
		if r.Gated {
			gated++
		}
	}
	if len(c.Rows) == 0 {
		w.line("No rows.")
	} else {
		w.line("%d rows, %d of them gated: %s.", len(c.Rows), gated, strings.Join(counts, ", "))
	}
	w.line("")
	if c.Quick {
		w.line("> A quick comparison: few rounds. Each row says the smallest slowdown that it could have seen.")
		w.line("")
	}
	w.list("Warnings", c.Warnings)
	w.changedRows()
	w.exactRows()
	w.controls()
	w.waivers()
	if !slices.Contains(l.without, partRows) {
		w.fold("All rows", func() { w.table(c.Rows, len(c.Rows)) })
	}
	if !slices.Contains(l.without, partEnvironment) {
		w.fold("Environment", w.environment)
	}
	w.fold("Method", w.method)
	w.fold("How to reproduce", w.reproduce)
	if len(c.history) > 0 && !slices.Contains(l.without, partHistory) {
		w.fold("History", w.historyTable)
	}
	if len(l.without) > 0 {
		w.line("Left out for length: %s. The report.md beside this has it all.", strings.Join(l.without, ", "))
		w.line("")
	}
	w.line("%s → %s, %s.", refText(c.Base), refText(c.Head), c.footer())
	return w.Bytes()
}

// refText names a side: as it was given, its commit, and whether it was changed.
func refText(r gate.Ref) string {
	text := code(r.Name)
	if r.Commit != "" && r.Commit != r.Name {
		text += " (" + code(short(r.Commit)) + ")"
	}
	if r.Dirty {
		text += " with changes"
	}
	return text
}

// short is the beginning of a commit's hash.
func short(commit string) string {
	if len(commit) == 40 && strings.Trim(commit, "0123456789abcdef") == "" {
		return commit[:12]
	}
	return commit
}

func (w *comparisonPage) list(title string, items []string) {
	if len(items) == 0 {
		return
	}
	w.line("%s:", title)
	w.line("")
	for _, s := range items[:min(len(items), w.rows)] {
		w.line("- %s", inline(s))
	}
	w.more(len(items), "")
	w.line("")
}

// more says how many of n things a table has no room for.
func (w *comparisonPage) more(n int, what string) {
	if n > w.rows {
		w.line("")
		w.line("… and %d more%s, in report.md.", n-w.rows, what)
	}
}

func (w *comparisonPage) picture(name, alt string) {
	if !w.pictures || !slices.ContainsFunc(w.drawings(), func(d drawing) bool { return d.name == name && d.draw != nil }) {
		return
	}
	w.line("![%s](plots/%s.png)", alt, name)
	w.line("")
}

func (w *comparisonPage) changedRows() {
	w.line("## Changed rows")
	w.line("")
	rows := w.changed()
	if len(rows) == 0 {
		w.line("None.")
		w.line("")
	} else {
		w.table(rows, w.rows)
		w.more(len(rows), " rows")
		w.line("")
		w.line("%s", w.notes())
		w.line("")
		for _, r := range rows[:min(len(rows), w.rows)] {
			if r.Reason != "" {
				w.line("- %s: %s", code(r.Name), inline(r.Reason))
			}
		}
		w.line("")
	}
	w.picture(forestPlot, "ratio of head to base by row, with intervals and margins")
	w.picture(roundsPlot, "ratio by round, by the order of the two launches")
	w.picture(ecdfPlot, "distribution of base and head")
}

// notes explain the columns of a table of rows.
func (c *comparison) notes() string {
	if c.Unpaired {
		return "Interval: simultaneous over the gated rows. p: Mann-Whitney test against the margin, times the gated rows."
	}
	return "Interval: simultaneous over the gated rows and valid at every look. Slower: rounds that were beyond the margin (blocks of two rounds where rounds depended on each other). p: sign test against the margin, times the gated rows. Can see: the smallest slowdown that this row would have caught with 95 % power at the noise it had."
}

// footer says when and how the verdict came about.
func (c *comparison) footer() string {
	end := fmt.Sprintf("exit code %d", c.Exit)
	if c.Started.IsZero() {
		return end
	}
	return fmt.Sprintf("started %s, took %s, seed %d, %s", c.Started.UTC().Format("2006-01-02 15:04 MST"), time.Duration(c.Took*float64(time.Second)).Round(time.Second), c.Design.Seed, end)
}

// table is one line a row.
func (w *comparisonPage) table(rows []gate.Row, limit int) {
	w.line("| benchmark | base | head | ratio | interval | margin | slower / rounds | adjusted p | can see | verdict |")
	w.line("| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: | --- |")
	for _, r := range rows[:min(len(rows), limit)] {
		name := code(r.Name)
		if !r.Gated {
			name += " (not gated)"
		}
		if r.Better == "higher" {
			name += " (higher is better)"
		}
		if r.Lane == gate.Exact {
			w.line("| %s | %s | %s | %s | exact | %s | – | – | – | %s |", name, inline(whole(r.Base, r.Unit)), inline(whole(r.Head, r.Unit)), ratio(r.Ratio), share(w.Design.ExactLimit), verdict(r))
			continue
		}
		w.line("| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |", name, inline(arm(r.Base, r.Unit)), inline(arm(r.Head, r.Unit)), ratio(r.Ratio), span(r.Interval),
			share(r.Theta), slower(r), adjusted(r), least(r), verdict(r))
	}
}

func verdict(r gate.Row) string { return symbol(r.Verdict) + inline(string(r.Verdict)) }

func slower(r gate.Row) string {
	if r.Rounds == 0 {
		return none
	}
	text := fmt.Sprintf("%d / %d", r.Slower, r.Rounds)
	if r.Blocks {
		text += " blocks"
	}
	return text
}

func adjusted(r gate.Row) string {
	if r.Base.N == 0 || r.Head.N == 0 || r.Rounds == 0 && r.PAdj == 1 {
		return none
	}
	return chance(r.PAdj)
}

// least is the smallest slowdown that the row would have caught.
func least(r gate.Row) string {
	if number(r.MDE) == 0 {
		return none
	}
	return "≥ " + share(r.MDE)
}

func (w *comparisonPage) exactRows() {
	rows, equal := w.exact()
	if len(rows)+equal == 0 {
		return
	}
	w.line("## Exact rows")
	w.line("")
	if len(rows) == 0 {
		w.line("All %d are equal to the last unit.", equal)
		w.line("")
		return
	}
	w.line("| benchmark | base | head | change | verdict |")
	w.line("| --- | ---: | ---: | ---: | --- |")
	for _, r := range rows[:min(len(rows), w.rows)] {
		w.line("| %s | %s | %s | %s | %s |", code(r.Name), inline(whole(r.Base, r.Unit)), inline(whole(r.Head, r.Unit)), change(r), verdict(r))
	}
	w.more(len(rows), " rows")
	w.line("")
	w.line("No statistics: these repeat to the last unit. More than the larger of %s and 1 unit fails. Equal: %d others.", share(w.Design.ExactLimit), equal)
	w.line("")
}

func (w *comparisonPage) controls() {
	w.line("## Controls")
	w.line("")
	if len(w.Controls) == 0 {
		w.line("None were run: nothing shows that this machine could have seen a slowdown, or that it invents none.")
		w.line("")
	} else {
		w.line("| control | benchmark | ratio | interval | rounds | came out |")
		w.line("| --- | --- | ---: | --- | ---: | --- |")
		for _, k := range w.Controls[:min(len(w.Controls), w.rows)] {
			w.line("| %s | %s | %s | %s | %d | %s |", controlName(k), code(k.Row), ratio(k.Ratio), span(k.Interval), k.Rounds, controlResult(k))
		}
		w.more(len(w.Controls), " controls")
		w.line("")
	}
	if w.Fitness != nil {
		w.line("%s", fitnessText(w.Fitness))
		w.line("")
	}
}

func controlName(k gate.Control) string {
	switch k.Kind {
	case gate.Null:
		return "null: base against another build of it"
	case gate.Injected:
		return "injected: base made " + share(k.Injected) + " slower"
	}
	return inline(k.Kind)
}

func controlResult(k gate.Control) string {
	fired := "did not fire"
	if k.Fired {
		fired = "fired"
	}
	if k.Good {
		return fired + ", as it must"
	}
	return "🔴 " + fired + ": it must not"
}

func fitnessText(f *gate.Fitness) string {
	fit := "The machine was fit to compare on"
	if !f.Fit {
		fit = "The machine was **not fit** to compare on (" + inline(strings.Join(f.Reasons, "; ")) + ")"
	}
	spread, drift := 0.0, 0.0
	for _, k := range f.Kernels {
		spread, drift = max(spread, number(k.Spread)), max(drift, number(k.Drift), -number(k.Drift))
	}
	psi := "unknown"
	if f.PSI >= 0 {
		psi = Value(f.PSI/100, sample.Share)
	}
	return fmt.Sprintf("%s: kernels spread over %s at most and drifted by %s, steal %s, processor pressure %s.", fit, Value(spread, sample.Share), Value(drift, sample.Share), Value(number(f.Steal), sample.Share), psi)
}

func (w *comparisonPage) waivers() {
	if len(w.Waivers) == 0 {
		return
	}
	w.line("## Waivers")
	w.line("")
	w.line("| benchmark | unit | ceiling | expires | issue | reason | state |")
	w.line("| --- | --- | ---: | --- | --- | --- | --- |")
	for _, v := range w.Waivers[:min(len(w.Waivers), w.rows)] {
		w.line("| %s | %s | %s | %s | %s | %s | %s |", code(v.Row), inline(v.Unit), ratio(v.Ceiling), v.Expires.UTC().Format(time.DateOnly), inline(v.Issue), inline(v.Reason), inline(v.State))
	}
	w.more(len(w.Waivers), " waivers")
	w.line("")
}

// facts are the environment: what, base, head.
func (c *comparison) facts() [][3]string {
	both := func(what string, get func(sample.Environment) string) [3]string {
		return [3]string{what, get(c.BaseEnv), get(c.HeadEnv)}
	}
	one := func(what, value string) [3]string { return [3]string{what, value, value} }
	count := func(n int) string {
		if n == 0 {
			return "" // unknown
		}
		return fmt.Sprint(n)
	}
	design := c.Design.Kind
	if !c.Unpaired {
		design += fmt.Sprintf(", seed %d, layout seeds %s, looks %s", c.Design.Seed, listed(c.Design.LayoutSeeds), listed(c.Design.Looks))
	}
	facts := [][3]string{
		{"asked for", c.Base.Name, c.Head.Name},
		{"commit", commitText(c.Base), commitText(c.Head)},
		both("engine", func(e sample.Environment) string { return e.Engine }),
		both("Go", func(e sample.Environment) string { return e.Go }),
		both("system", func(e sample.Environment) string { return strings.Trim(e.OS+"/"+e.Arch, "/") }),
		both("processor", func(e sample.Environment) string { return e.CPU }),
		both("cores", func(e sample.Environment) string { return count(e.Cores) }),
		both("GOMAXPROCS", func(e sample.Environment) string { return count(e.GOMAXPROCS) }),
		one("design", design),
	}
	if c.Fitness != nil {
		for _, k := range c.Fitness.Kernels {
			facts = append(facts, one("kernel "+k.Name, fmt.Sprintf("%s before, %s after, spread %s, drift %s", Value(k.Before, sample.Seconds), Value(k.After, sample.Seconds), Value(k.Spread, sample.Share), Value(k.Drift, sample.Share))))
		}
	}
	return slices.DeleteFunc(facts, func(f [3]string) bool { return f[1] == "" && f[2] == "" })
}

func commitText(r gate.Ref) string {
	if r.Dirty {
		return r.Commit + " with changes"
	}
	return r.Commit
}

func listed(n []int) string {
	return strings.Trim(strings.Join(strings.Fields(fmt.Sprint(n)), ", "), "[]")
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func (w *comparisonPage) environment() {
	w.line("| what | base | head |")
	w.line("| --- | --- | --- |")
	for _, f := range w.facts() {
		head := inline(f[2])
		if f[1] == f[2] {
			head = "same"
		}
		w.line("| %s | %s | %s |", inline(f[0]), inline(f[1]), head)
	}
}

// methodText says how the verdict was reached, one paragraph each.
func (c *comparison) methodText() []string {
	d := c.Design
	perRow := 0.0
	if len(d.Gated) > 0 {
		perRow = d.FamilyAlpha / float64(len(d.Gated))
	}
	chances := fmt.Sprintf("All gated rows together raise a false REGRESSION with a chance of at most %s (%s a row); a row at its margin is called OK with a chance of at most %s. Where neither is proved the row is INCONCLUSIVE, never \"no change\".", share(d.FamilyAlpha), share(perRow), share(d.ClearAlpha))
	if c.Unpaired {
		return []string{
			fmt.Sprintf("All values of a row in one file are compared with all in the other by the Mann-Whitney test, against a margin of %s; the interval holds the shifts that it would not reject. %s", share(d.Theta), chances),
			"These chances hold if nothing but the code changed between the two files. Rounds that are interleaved, and controls, are what can show that: benchrun compare.",
		}
	}
	var limits []string
	for i, n := range d.Looks {
		fail, clear := "cannot", "cannot"
		if i < len(c.FailAt) && c.FailAt[i] >= 0 {
			fail = fmt.Sprintf("≥ %d", c.FailAt[i])
		}
		if i < len(c.ClearAt) && c.ClearAt[i] >= 0 {
			clear = fmt.Sprintf("≤ %d", c.ClearAt[i])
		}
		limits = append(limits, fmt.Sprintf("%d rounds: %s, %s", n, fail, clear))
	}
	text := []string{
		"One process launch is one sample: the median of its inner batches. A round is one launch of base and one of head, next to each other, in an order drawn by the seed (blocks of ABBA or BAAB); rows are shuffled between blocks. The ratio of a row is the exponential of the median over the rounds of ln head − ln base.",
		fmt.Sprintf("A row is judged against its margin: %s by default, %s for rows declared tight, and never less than its floor. At the margin each round is as likely to be beyond it as not, so the count of such rounds is compared with exact limits at looks fixed beforehand. %s", share(d.Theta), share(d.Tight), chances),
	}
	if len(limits) > 0 {
		text = append(text, "Rounds beyond the margin for REGRESSION and for OK, by look: "+strings.Join(limits, "; ")+".")
	}
	return append(text,
		"A row that crosses is measured again in reversed order with new layout seeds before it counts. An improvement is the mirrored rule and never fails. A row without a gate is measured and reported, and decides nothing.",
		"Two controls run beside the rows: another build of base must not fire, and base with a known slowdown must. If either does otherwise, this comparison has no verdict.")
}

func (w *comparisonPage) method() {
	for i, text := range w.methodText() {
		if i > 0 {
			w.line("")
		}
		w.line("%s", text)
	}
}

// commands are what repeats the comparison, and what judges it again.
func (c *comparison) commands() []string {
	if c.Unpaired {
		return []string{"benchrun report " + shell(c.Base.Name) + " " + shell(c.Head.Name)}
	}
	side := func(r gate.Ref) string {
		if r.Commit != "" {
			return shell(r.Commit)
		}
		return shell(r.Name)
	}
	compare := "benchrun compare --base " + side(c.Base)
	if c.Head.Dirty {
		compare += " --dirty" // from the same working tree
	} else {
		compare += " --head " + side(c.Head)
	}
	compare += fmt.Sprintf(" --seed %d", c.Design.Seed)
	if c.Quick {
		compare += " --quick"
	}
	return []string{compare, "benchrun report --in DIR   # DIR holds raw/samples.ndjson and design.json"}
}

// shell quotes an argument if it must be.
func shell(s string) string {
	s = plain(cut(s, longName))
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789./_-~^@:") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func (w *comparisonPage) reproduce() {
	w.line("```sh")
	for _, c := range w.commands() {
		w.line("%s", c)
	}
	w.line("```")
	w.line("")
	w.line("benchstat reads the values too: `benchstat bench/base.txt bench/head.txt`. All figures are in report.json (schema %d).", w.Schema)
}
