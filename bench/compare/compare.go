// Package compare runs comparisons of two builds of a suite: it checks out and
// builds both, starts their processes in turn, and stops each row as soon as
// package gate has a verdict on it. It is for bench/command; it measures nothing
// itself and shows nothing.
//
// It needs git and the go command, and no network beyond what go build needs.
// The repository is left as it was, also after an interrupt.
package compare

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sandbed/sandbed/bench"
	"github.com/sandbed/sandbed/bench/gate"
)

// ErrInterrupted is what Run returns when its context ends: what was measured is
// on disk, and Config.Resume continues with it.
var ErrInterrupted = errors.New("compare: interrupted; --resume continues")

// Refused is a setting that cannot be meant.
type Refused struct{ Field, Value, Remedy string }

func (e *Refused) Error() string {
	return fmt.Sprintf("compare: %s %q: %s", e.Field, e.Value, e.Remedy)
}

// Unmeasurable is a build that cannot take part: no verdict can come of it.
type Unmeasurable struct {
	Arm string // gate.Base or gate.Head
	Ref string
	Why error
}

func (e *Unmeasurable) Error() string {
	return fmt.Sprintf("compare: %s %s cannot be measured: %v", e.Arm, e.Ref, e.Why)
}

func (e *Unmeasurable) Unwrap() error { return e.Why }

// Config says what to compare and for how long.
type Config struct {
	Dir     string // in the repository and the module; "" is the working directory
	Package string // import path of the command to build
	// Base and Head are what git calls revisions.
	Base, Head string
	// Dirty takes the working tree, with what is not committed, for head. Without it
	// a head of "HEAD" is refused while there is something not committed.
	Dirty bool
	// Out is where raw/, design.json and calib.json go.
	Out string
	// Resume continues what an interrupt left in Out.
	Resume bool
	// Budget is how long all may take, builds too. Rows that are undecided then stay so.
	Budget time.Duration
	// Quick takes the first six gated rows and two looks.
	Quick bool
	// Rows, if set, decide in place of those of the reviewed list.
	Rows []string
	// Shard is the part of the rows to measure, 1 to Shards; Shards of 0 measures all.
	Shard, Shards int
	Waivers       []gate.Waiver
	Strict        bool
	// Seed chooses the orders; 0 means one of the clock's, or, with shards, of the commits.
	Seed uint64
	// Progress is told what comes next, never while a process measures. May be nil.
	Progress func(string)
}

// Result is what a comparison came to.
type Result struct {
	Report   gate.Report
	Launches []gate.Launch
	// Judged is false for a shard: Merge judges.
	Judged bool
}

const (
	// quickRows is how many rows Quick takes: the first of the reviewed list.
	quickRows = 6
	// screenShare of the budget is for the screen when rows wait for their confirmation.
	screenShare = 0.75
	// newRounds is how many launches show a row that base lacks.
	newRounds = 3
)

func (c Config) validate() error {
	switch {
	case c.Package == "":
		return &Refused{"package", "", "give the import path of the command to build"}
	case c.Budget < time.Second:
		return &Refused{"--budget", c.Budget.String(), "give at least 1s, such as 8m"}
	case c.Shards < 0 || c.Shards > gate.MaxGated || c.Shards > 0 && (c.Shard < 1 || c.Shard > c.Shards):
		return &Refused{"--shard", fmt.Sprintf("%d/%d", c.Shard, c.Shards), fmt.Sprintf("give i/n with 1 ≤ i ≤ n ≤ %d", gate.MaxGated)}
	case len(c.Rows) > gate.MaxGated:
		return &Refused{"--row", fmt.Sprintf("%d rows", len(c.Rows)), fmt.Sprintf("give at most %d", gate.MaxGated)}
	}
	for i, name := range c.Rows {
		if slices.Contains(c.Rows[:i], name) {
			return &Refused{"--row", name, "is given twice: leave one"}
		}
	}
	return nil
}

func (c Config) progress(format string, args ...any) {
	if c.Progress != nil {
		c.Progress(fmt.Sprintf(format, args...))
	}
}

// Run compares two commits. The error is a *Refused, an *Unmeasurable,
// ErrInterrupted or what else kept it from measuring; a row that fails is in the
// result.
func Run(ctx context.Context, c Config) (_ Result, err error) {
	if err := c.validate(); err != nil {
		return Result{}, err
	}
	if c.Out == "" {
		return Result{}, &Refused{"--out", "", "give a directory"}
	}
	began := time.Now()
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = ErrInterrupted
		}
	}()
	c.progress("checking out")
	w, err := open(ctx, c.Dir, c.Package)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := w.checkOut(ctx, c); err != nil {
		return Result{}, err
	}
	s, err := c.plan(ctx, w)
	if err != nil {
		return Result{}, err
	}
	if s.store, err = c.store(s); err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, s.store.close()) }()
	c.progress("building")
	for _, layout := range s.screenLayouts() {
		for _, arm := range []string{gate.Base, gate.Head} {
			if _, err := w.binary(ctx, arm, layout); err != nil {
				return Result{}, err
			}
		}
	}
	if err := s.ready(ctx); err != nil {
		return Result{}, err
	}
	c.progress("calibrating")
	before, err := bench.Calibrate(ctx)
	if err != nil {
		return Result{}, err
	}
	s.deadline = began.Add(c.Budget)
	s.budget = c.Budget
	if err := s.measure(ctx); err != nil {
		return Result{}, err
	}
	c.progress("calibrating")
	after, err := bench.Calibrate(ctx)
	if err != nil {
		return Result{}, err
	}
	fitness := before.Fitness(after)
	if err := writeJSON(filepath.Join(c.Out, "calib.json"), fitness); err != nil {
		return Result{}, err
	}
	s.run.Warnings = append(s.run.Warnings, s.warnings...)
	if err := s.store.keep(s.run); err != nil {
		return Result{}, err
	}
	r := Result{Launches: s.launches(), Judged: c.Shards == 0}
	if !r.Judged {
		return r, nil
	}
	r.Report, err = s.run.report(s.design, r.Launches, gate.Options{Waivers: c.Waivers, Strict: c.Strict, Fitness: &fitness, Today: time.Now()})
	r.Report.Took = time.Since(began).Seconds()
	return r, err
}

// plan asks both builds what they can measure, and designs the comparison.
func (c Config) plan(ctx context.Context, w *workspace) (*session, error) {
	var lists [2]bench.Listing
	for i, arm := range []string{gate.Base, gate.Head} {
		c.progress("building %s", arm)
		binary, err := w.binary(ctx, arm, 1)
		if err != nil {
			return nil, err
		}
		if lists[i], err = w.list(ctx, binary); err != nil {
			return nil, &Unmeasurable{arm, w.trees[arm].ref.Name, err}
		}
	}
	base, head := lists[0], lists[1]
	rows, err := c.rows(base, head)
	if err != nil {
		return nil, err
	}
	seed := c.Seed
	switch {
	case seed == 0 && c.Shards > 0: // all shards need the same
		h := fnv.New64a()
		h.Write([]byte(w.trees[gate.Base].ref.Commit + w.trees[gate.Head].ref.Commit))
		seed = h.Sum64()
	case seed == 0:
		seed = uint64(time.Now().UnixNano())
	}
	design := gate.DefaultDesign(rows, seed)
	if c.Quick {
		design = design.Quick()
	}
	if err := design.Validate(); err != nil {
		return nil, err
	}
	design.LayoutSeeds = layoutSeeds(design.LayoutSeeds)
	base.Environment.Commit, head.Environment.Commit = w.trees[gate.Base].ref.Commit, w.trees[gate.Head].ref.Commit
	base.Environment.Modified, head.Environment.Modified = false, w.trees[gate.Head].ref.Dirty
	s := newSession(design, w.start)
	s.progress, s.build = c.progress, w.binary
	s.run = run{
		Schema: runSchema, Base: w.trees[gate.Base].ref, Head: w.trees[gate.Head].ref, Quick: c.Quick,
		BaseEnv: base.Environment, HeadEnv: head.Environment, Started: time.Now(), Batches: map[string]int{},
		BaseRows: base.Rows, HeadRows: head.Rows,
		Shard: c.Shard, Shards: c.Shards,
	}
	if c.Quick {
		s.run.Warnings = append(s.run.Warnings, fmt.Sprintf("quick: %d rounds at most, over %d of the %d rows that decide; what it leaves out it cannot see", slices.Max(design.Looks), len(rows), len(head.Gated)))
	}
	if base.Environment.Go != head.Environment.Go {
		s.run.Warnings = append(s.run.Warnings, fmt.Sprintf("base is built by %s, head by %s: what differs may be the compiler's", base.Environment.Go, head.Environment.Go))
	}
	return s, nil
}

// rows are the rows that decide: those of head's reviewed list and those that
// base's list has and head can no longer measure.
func (c Config) rows(base, head bench.Listing) ([]gate.RowPlan, error) {
	if len(c.Rows) > 0 {
		var rows []gate.RowPlan
		for _, name := range c.Rows {
			if !slices.Contains(head.Rows, name) && !slices.Contains(base.Rows, name) {
				return nil, &Refused{"--row", name, "is no row of either build: benchrun sample --list names them"}
			}
			plan := gate.RowPlan{Row: name}
			for _, p := range head.Gated {
				if p.Row == name {
					plan = p
				}
			}
			rows = append(rows, plan)
		}
		return rows, nil
	}
	rows := slices.Clone(head.Gated)
	if c.Quick {
		rows = rows[:min(quickRows, len(rows))]
	} else {
		for _, p := range base.Gated {
			if !slices.Contains(head.Rows, p.Row) && len(rows) < gate.MaxGated {
				rows = append(rows, p)
			}
		}
	}
	if len(rows) == 0 {
		return nil, &Unmeasurable{gate.Head, c.Head, errors.New("it names no row that decides")}
	}
	return rows, nil
}

// layoutSeeds are those of the screen and as many again for the confirmation.
func layoutSeeds(screen []int) []int {
	all := slices.Clone(screen)
	for range screen {
		all = append(all, slices.Max(all)+1)
	}
	return all
}

// report judges launches.
func (r run) report(d gate.Design, launches []gate.Launch, o gate.Options) (gate.Report, error) {
	report, err := gate.Decide(d, launches, o)
	report.Base, report.Head, report.BaseEnv, report.HeadEnv = r.Base, r.Head, r.BaseEnv, r.HeadEnv
	report.Started, report.Quick = r.Started, r.Quick
	report.Warnings = append(report.Warnings, r.Warnings...)
	return report, err
}

// Merge joins what the shards of one comparison left in dirs, and judges it.
func Merge(dirs []string, o gate.Options) (Result, error) {
	if len(dirs) == 0 {
		return Result{}, &Refused{"DIR", "", "give the directories of the shards"}
	}
	var first stored
	var launches []gate.Launch
	fitness := gate.Fitness{Fit: true, PSI: -1}
	seen := map[int]string{}
	var took float64
	for i, dir := range dirs {
		st, err := load(dir)
		if err != nil {
			return Result{}, &Refused{"DIR", dir, err.Error()}
		}
		if i == 0 {
			first = st
		}
		if err := first.sameAs(st); err != nil {
			return Result{}, &Refused{"DIR", dir, fmt.Sprintf("is of another comparison than %s: %v", dirs[0], err)}
		}
		if other, ok := seen[st.run.Shard]; ok {
			return Result{}, &Refused{"DIR", dir, fmt.Sprintf("is shard %d, as is %s: leave one", st.run.Shard, other)}
		}
		seen[st.run.Shard] = dir
		for _, text := range st.run.Warnings {
			if !slices.Contains(first.run.Warnings, text) {
				first.run.Warnings = append(first.run.Warnings, text)
			}
		}
		launches = append(launches, st.launches...)
		if len(st.launches) > 0 {
			took = max(took, st.launches[len(st.launches)-1].Started.Sub(st.run.Started).Seconds())
		}
		if st.run.Shards == 0 && st.fitness != nil {
			fitness = *st.fitness // one machine: as it was written
			continue
		}
		who := fmt.Sprintf("shard %d", st.run.Shard)
		if st.run.Shards == 0 {
			who = "the comparison"
		}
		fitness = worse(fitness, st.fitness, who)
	}
	var missing []string
	for i := 1; i <= first.run.Shards; i++ {
		if seen[i] == "" {
			missing = append(missing, fmt.Sprintf("%d/%d", i, first.run.Shards))
		}
	}
	if len(missing) > 0 {
		first.run.Warnings = append(first.run.Warnings, "shards are missing, and with them their rows: "+strings.Join(missing, ", "))
	}
	o.Fitness = &fitness
	report, err := first.run.report(first.design, launches, o)
	report.Took = took
	return Result{Report: report, Launches: launches, Judged: true}, err
}

// worse joins the fitness of two machines: one unfit machine is enough.
func worse(a gate.Fitness, b *gate.Fitness, who string) gate.Fitness {
	if b == nil {
		a.Fit = false
		a.Reasons = append(a.Reasons, who+" did not end: its machine was not calibrated afterwards")
		return a
	}
	for _, reason := range b.Reasons {
		a.Reasons = append(a.Reasons, who+": "+reason)
	}
	a.Fit = a.Fit && b.Fit
	a.Steal, a.PSI = max(a.Steal, b.Steal), max(a.PSI, b.PSI)
	for _, k := range b.Kernels {
		k.Name = strings.ReplaceAll(who, " ", "-") + "/" + k.Name
		a.Kernels = append(a.Kernels, k)
	}
	return a
}
