package bench

import (
	"context"
	_ "embed"
	"encoding/csv"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandbed/sandbed/bench/gate"
	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/bench/workload"
	"github.com/sandbed/sandbed/engine"
)

// One process launch is one sample of a comparison: everything measured inside
// a process is reduced to one number, because what a process repeats (its heap,
// its addresses) it repeats in every batch.

// LaunchSchema is the version of the JSON forms of [Reading] and [Listing].
const LaunchSchema = 1

const (
	minBatch  = 20 * time.Millisecond // shortest batch that counts
	aimBatch  = 25 * time.Millisecond // what a batch is sized for: faster code still fills minBatch
	innerRuns = 3                     // batches of a launch, of which the median is taken
	maxBatch  = 1 << 24               // iterations of a batch
	allocRuns = 5                     // evaluations over which allocations are counted
)

// LaunchPlan says what one process measures.
type LaunchPlan struct {
	Row string
	// Batch is how many iterations a batch has, 1 to 16,777,216; 0 sizes it for 25 ms.
	// Both arms of a comparison need the same.
	Batch int
	// Inject is a slowdown to add, as a share of the measured time: 0.10 spins a
	// tenth of it inside the timed region. 0 to 10.
	Inject float64
	// Exact also measures what the same build repeats to the last unit.
	Exact    bool
	Seed     uint64 // of the workloads' inputs
	CacheDir string // of compiled code; "" means the sandbox's default
}

// Reading is what one process measured.
type Reading struct {
	Schema int     `json:"schema"`
	Row    string  `json:"row"`
	Unit   string  `json:"unit"`
	Better string  `json:"better"`
	Value  float64 `json:"value"` // of one iteration: median of the batches
	Inner  int     `json:"inner"` // batches
	Batch  int     `json:"batch"` // iterations of a batch
	// BatchSec is how long the median batch took, in seconds.
	BatchSec float64         `json:"batch_sec"`
	Exact    []sample.Sample `json:"exact,omitempty"`
}

// Listing is what a build can measure by launches.
type Listing struct {
	Schema      int                `json:"schema"`
	Environment sample.Environment `json:"environment"`
	Rows        []string           `json:"rows"`
	Gated       []gate.RowPlan     `json:"gated"`
}

// List returns what a suite can measure by launches.
func List(s Suite) (Listing, error) {
	l := Listing{Schema: LaunchSchema, Environment: Environment(s.Engine)}
	for _, r := range launchRows(s) {
		l.Rows = append(l.Rows, r.name)
	}
	plans, err := parseGated(gatedFile)
	for _, p := range plans {
		if slices.Contains(l.Rows, p.Row) { // a sandbox without a pool has no row of one
			l.Gated = append(l.Gated, p)
		}
	}
	return l, err
}

// gatedFile is the reviewed list of the rows that decide.
//
//go:embed gated.csv
var gatedFile string

// parseGated reads lines of row, margin, 95th percentile of its own A/A, reason.
func parseGated(text string) ([]gate.RowPlan, error) {
	r := csv.NewReader(strings.NewReader(text))
	r.FieldsPerRecord = 4
	lines, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("bench: gated.csv: %w", err)
	}
	var plans []gate.RowPlan
	for i, line := range lines {
		if i == 0 {
			continue
		}
		bad := func(field, value, allowed string) error {
			return fmt.Errorf("bench: gated.csv: line %d, %s %q: %s", i+1, field, value, allowed)
		}
		p := gate.RowPlan{Row: line[0]}
		if p.Theta, err = strconv.ParseFloat(line[1], 64); err != nil || !(p.Theta > 0 && p.Theta <= 0.15) {
			return nil, bad("margin", line[1], "give a share above 0, at most 0.15")
		}
		if p.Spread, err = strconv.ParseFloat(line[2], 64); err != nil || !(p.Spread >= 0 && p.Spread < 1) {
			return nil, bad("aa_p95", line[2], "give a share from 0, below 1; 0 if it was not measured")
		}
		if strings.TrimSpace(line[3]) == "" {
			return nil, bad("reason", line[3], "say why the row decides")
		}
		if slices.ContainsFunc(plans, func(q gate.RowPlan) bool { return q.Row == p.Row }) {
			return nil, bad("row", p.Row, "occurs twice: leave one")
		}
		plans = append(plans, p)
	}
	if len(plans) == 0 || len(plans) > gate.MaxGated {
		return nil, fmt.Errorf("bench: gated.csv: %d rows: give 1 to %d", len(plans), gate.MaxGated)
	}
	return plans, nil
}

// launchRow is a row that one launch can measure.
type launchRow struct {
	name string
	open func(*meter) (timed, error)
}

// timed is a row made ready.
type timed struct {
	// run repeats the work n times; the duration is without checking the answers.
	run func(n int) (time.Duration, error)
	// exact measures what repeats exactly; nil if nothing does.
	exact func() ([]sample.Sample, error)
}

// launchRows are the rows that one launch can measure. They have the names that
// Measure gives them, and cost nothing until they are opened.
func launchRows(s Suite) []launchRow {
	var rows []launchRow
	for _, size := range workload.Sizes {
		for _, w := range workload.All() {
			rows = append(rows, launchRow{wallName(w, size), func(m *meter) (timed, error) { return m.openWall(w, size) }})
		}
	}
	rows = append(rows,
		launchRow{"fresh/op=eval", (*meter).openFresh},
		launchRow{"fresh/op=runtime", (*meter).openRuntime},
		launchRow{"cold/of=vm", (*meter).openVM})
	for _, p := range marshalPlaces {
		if !s.offers(p.backend) {
			continue
		}
		for _, size := range marshalSizes {
			for i, name := range marshalNames(size) {
				rows = append(rows, launchRow{name + "/backend=" + p.backend, func(m *meter) (timed, error) {
					in, err := m.openPlace(p)
					t := marshalTasks(size)[i]
					return timed{run: func(n int) (time.Duration, error) { return m.evals(in, t, n) }}, err
				}})
			}
		}
	}
	return rows
}

// Launch measures one row, the way a process that was started for it does.
func Launch(ctx context.Context, s Suite, p LaunchPlan) (_ Reading, err error) {
	switch {
	case p.Batch < 0 || p.Batch > maxBatch:
		return Reading{}, fmt.Errorf("bench: Batch = %d: give 1 to %d, or 0 to size it", p.Batch, maxBatch)
	case !(p.Inject >= 0 && p.Inject <= 10):
		return Reading{}, fmt.Errorf("bench: Inject = %v: give 0 to 10, as a share of the measured time", p.Inject)
	}
	rows := launchRows(s)
	i := slices.IndexFunc(rows, func(r launchRow) bool { return r.name == p.Row })
	if i < 0 {
		return Reading{}, &UnknownRow{Row: p.Row}
	}
	m := &meter{ctx: ctx, suite: s, plan: Plan{Seed: p.Seed, Backend: s.Backend()}, cacheDir: p.CacheDir, open: map[string]*Instance{}}
	defer m.close()
	row, err := rows[i].open(m)
	if err != nil {
		return Reading{}, err
	}
	if _, err := row.run(1); err != nil { // faults pages in
		return Reading{}, err
	}
	if p.Batch == 0 {
		if p.Batch, err = sizeBatch(row.run); err != nil {
			return Reading{}, err
		}
	}
	batches := make([]float64, innerRuns)
	for i := range batches {
		runtime.GC() // every batch begins with the same heap
		took, err := row.run(p.Batch)
		if err != nil {
			return Reading{}, err
		}
		batches[i] = (took + spin(time.Duration(p.Inject*float64(took)))).Seconds()
	}
	batch := sample.Quantile(batches, 0.5)
	r := Reading{Schema: LaunchSchema, Row: p.Row, Unit: sample.Seconds, Better: "lower", Value: batch / float64(p.Batch), Inner: len(batches), Batch: p.Batch, BatchSec: batch}
	if p.Exact && row.exact != nil {
		r.Exact, err = row.exact()
	}
	return r, err
}

// UnknownRow is a row that a launch cannot measure.
type UnknownRow struct{ Row string }

func (e *UnknownRow) Error() string {
	return fmt.Sprintf("bench: row %q cannot be measured by a launch", e.Row)
}

// sizeBatch is how many iterations take aimBatch. Of three readings the fastest
// counts: one that was interrupted would make the batch too short.
func sizeBatch(run func(int) (time.Duration, error)) (int, error) {
	for n := 1; ; n *= 2 {
		fastest := time.Duration(math.MaxInt64)
		for i := 0; i < 3 && fastest >= minBatch/2; i++ {
			took, err := run(n)
			if err != nil {
				return 0, err
			}
			fastest = min(fastest, took)
		}
		if n >= maxBatch {
			return maxBatch, nil
		}
		if fastest >= minBatch/2 {
			return min(maxBatch, max(1, int(math.Ceil(float64(n)*float64(aimBatch)/float64(fastest))))), nil
		}
	}
}

// spin keeps a processor busy for d and returns how long it did.
func spin(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	start := time.Now()
	for {
		if took := time.Since(start); took >= d {
			return took
		}
	}
}

// evals runs a task n times.
func (m *meter) evals(in *Instance, t task, n int) (total time.Duration, err error) {
	for range n {
		_, took, err := m.eval(in, t)
		if err != nil {
			return 0, err
		}
		total += took
	}
	return total, nil
}

func (m *meter) openWall(w workload.Workload, size workload.Size) (timed, error) {
	c, err := w.Case(size, m.plan.Seed)
	if err != nil {
		return timed{}, err
	}
	in, err := m.instance(m.suite.Metering())
	if err != nil {
		return timed{}, err
	}
	t := wallTask(w, c)
	return timed{
		run: func(n int) (time.Duration, error) { return m.evals(in, t, n) },
		exact: func() ([]sample.Sample, error) {
			o, _, err := m.eval(in, t)
			if err != nil {
				return nil, err
			}
			out := exactRows(t, o, 1)
			if m.plan.Backend == "" || m.plan.Backend == BackendInProcess { // elsewhere other goroutines allocate too
				n, err := m.allocs(in, t)
				if err != nil {
					return nil, err
				}
				out = append(out, sample.NewExact("allocs/"+t.row, sample.Count, n, allocRuns))
			}
			return out, nil
		},
	}, nil
}

// allocs counts the allocations of an evaluation on the Go heap: the whole part
// of the mean, as testing.AllocsPerRun does, so that one of the runtime's own
// does not show.
func (m *meter) allocs(in *Instance, t task) (float64, error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	req := t.req
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range allocRuns {
		if _, err := in.Backend.Run(m.ctx, req); err != nil {
			return 0, fmt.Errorf("bench: %s: %w", t.row, err)
		}
	}
	runtime.ReadMemStats(&after)
	return float64((after.Mallocs - before.Mallocs) / allocRuns), nil
}

func (m *meter) openFresh() (timed, error) {
	in, err := m.instance(m.suite.Metering())
	return timed{run: func(n int) (time.Duration, error) { return m.freshEvals(in, n) }}, err
}

func (m *meter) openRuntime() (timed, error) {
	in, err := m.instance(m.suite.Metering())
	if err == nil && in.FreshRuntime == nil {
		err = &UnknownRow{Row: "fresh/op=runtime"}
	}
	return timed{run: func(n int) (time.Duration, error) { return in.FreshRuntime(m.ctx, n) }}, err
}

func (m *meter) openVM() (timed, error) {
	in, err := m.instance(m.suite.Metering())
	if err == nil && in.NewVM == nil {
		err = &UnknownRow{Row: "cold/of=vm"}
	}
	return timed{run: func(n int) (total time.Duration, err error) {
		for range n {
			took, err := m.oneMoreVM(in)
			if err != nil {
				return 0, err
			}
			total += took
		}
		return total, nil
	}}, err
}

// openPlace opens a backend that Launch closes.
func (m *meter) openPlace(p place) (*Instance, error) {
	o := m.comparedOptions(p)
	o.CacheDir = m.cacheDir
	in, err := m.start(o)
	if err == nil {
		m.open[p.key()] = in
	}
	return in, err
}

// exactRows are what an evaluation used, which must be the same every time.
func exactRows(t task, o engine.Outcome, n int) []sample.Sample {
	var out []sample.Sample
	if o.Usage.Fuel > 0 { // zero without metering
		out = append(out, sample.NewExact("fuel/"+t.row, sample.Fuel, float64(o.Usage.Fuel), n))
	}
	return append(out,
		sample.NewExact("output/"+t.row, sample.Bytes, float64(len(o.Value)), n),
		sample.NewExact("peak/"+t.row, sample.Bytes, float64(o.Usage.PeakMemoryBytes), n))
}
