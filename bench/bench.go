// Package bench measures a sandbox: how long everyday work takes, what a fresh
// evaluation and a start cost, how late a kill comes, what the guards cost, how
// much memory is used, and whether the host's loop keeps its pace.
//
// It measures any sandbox through a [Suite] and writes samples; how they are
// shown is reports' affair, and bench/command makes a command of both. The
// figures are of one process on one machine: they compare what was measured in
// the same run, and nothing else.
package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/bench/workload"
	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/engine/enginetest"
)

// The ways in which the guards of a sandbox may be switched. A sandbox that has
// one way only leaves Suite.Meterings empty.
const (
	MeteringOn          = "on"
	MeteringOff         = "off"
	MeteringCloseOnDone = "close-on-done"
)

// The backends of a sandbox.
const (
	BackendInProcess = "inproc"  // on the caller's goroutine
	BackendPool      = "pool"    // on goroutine workers
	BackendProcess   = "process" // on process workers
)

// MaxWorkers is the largest Options.Workers.
const MaxWorkers = 1024

// Suite is a sandbox to be measured, and how to open it.
type Suite struct {
	// Engine names the sandbox and its version in reports.
	Engine string
	// Meterings are the values of Options.Metering that Open takes, the default
	// first. Empty means there is no such switch: Options.Metering is "".
	Meterings []string
	// Backends are the values of Options.Backend that Open takes, the default
	// first; each is one of the Backend constants. Empty means the sandbox runs
	// in-process and no other way: Options.Backend is "".
	//
	// Package pool makes a backend of any engine.VM: pool.New for BackendPool,
	// pool.NewProcesses for BackendProcess, for which main calls pool.ServeWorker
	// before command.Main.
	Backends []string
	// Open makes a ready sandbox. It is called several times in one process.
	Open func(context.Context, Options) (*Instance, error)
}

// Options are the settings of a sandbox.
type Options struct {
	Metering string
	CacheDir string // of compiled code; "" means the sandbox's default
	// StackBytes is the C stack of a VM; 0 means the sandbox's default.
	StackBytes int64
	// Backend is one of Suite.Backends; "" if the suite names none.
	Backend string
	// Workers is how many workers the backend has, Spare how many more it keeps
	// warm to stand in for one that was lost. Both are 0 in-process; elsewhere
	// Workers is 1 to MaxWorkers.
	Workers, Spare int
}

// Instance is an open sandbox. What is nil is not measured.
type Instance struct {
	Backend engine.Backend
	// NewVM makes one more VM.
	NewVM func(context.Context) (engine.VM, error)
	// FreshRuntime makes and frees a JavaScript runtime and its context n times
	// and returns how long all of it took: what freshness costs without an image.
	FreshRuntime func(ctx context.Context, n int) (time.Duration, error)
	// Close closes the backend and the sandbox.
	Close func() error
}

// Metering is the default setting.
func (s Suite) Metering() string {
	if len(s.Meterings) == 0 {
		return ""
	}
	return s.Meterings[0]
}

// Backend is the default backend, "" if there is nothing to choose.
func (s Suite) Backend() string {
	if len(s.Backends) == 0 {
		return ""
	}
	return s.Backends[0]
}

// Plan says what to measure and how long.
type Plan struct {
	// Quick makes few repetitions and medium sizes only: under a minute in all.
	Quick bool
	// Seed makes the inputs of the workloads.
	Seed uint64
	// Backend and Workers are those of Options for all that is measured on one
	// backend; the groups that compare backends open those they compare. The
	// zero values mean the suite's default backend.
	Backend string
	Workers int
	// Own, if set, is measured in place of the workloads, and the groups that do
	// not depend on a script are left out.
	Own *Own
	// Self is the command that starts this program; it is given the argument
	// "cold" (see [Cold]). Empty leaves out the cold starts.
	Self []string
	// Observe is called with every row as soon as it is measured, Progress with
	// what is measured next; never while the clock runs. Both may be nil.
	Observe  func(sample.Sample)
	Progress func(string)
}

// Own is a user's script with its input and limits.
type Own struct {
	Script engine.Script
	Input  json.RawMessage
	Limits engine.Limits
}

// WrongAnswer is an evaluation that did not give the right answer. What was
// measured up to then is not a result.
type WrongAnswer struct {
	Row string
	Err error
}

func (e *WrongAnswer) Error() string { return fmt.Sprintf("bench: %s: %v", e.Row, e.Err) }

func (e *WrongAnswer) Unwrap() error { return e.Err }

// Measure runs the plan. The run it returns is whole when the error is nil; its field
// Broken names guarantees that did not hold.
func Measure(ctx context.Context, s Suite, p Plan) (sample.Run, error) {
	if p.Backend == "" {
		p.Backend = s.Backend()
	}
	m := &meter{ctx: ctx, suite: s, plan: p, open: map[string]*Instance{}}
	defer m.close()
	m.run.Started = time.Now()
	m.run.Schema, m.run.Quick = sample.Schema, p.Quick
	m.run.Environment = Environment(s.Engine)
	cases, err := m.cases()
	if err != nil {
		return sample.Run{}, err
	}
	steps := []func() error{
		func() error { return m.calibrate("before") },
		func() error { return m.counts(cases) },
		func() error { return m.wall(cases) },
		func() error { return m.guard(cases) },
	}
	if p.Own == nil {
		corpus := enginetest.Cases()
		steps = append(steps, m.fresh, m.cold,
			func() error { return m.memory(corpus) },
			func() error { return m.kill(corpus, false) },
			func() error { return m.kill(corpus, true) },
			m.disturbance, m.reshapes, m.marshal, m.demux)
		if !p.Quick {
			steps = append(steps, m.next, m.coldWorkers, m.fairness)
		}
		if !p.Quick {
			steps = append(steps, m.inputs)
		}
	}
	steps = append(steps, func() error { return m.calibrate("after") })
	for _, step := range steps {
		if err := step(); err != nil {
			return sample.Run{}, err
		}
		if err := context.Cause(ctx); err != nil {
			return sample.Run{}, err
		}
	}
	m.run.Took = time.Since(m.run.Started).Seconds()
	return m.run, m.run.Validate()
}

// meter is one run of Measure.
type meter struct {
	ctx   context.Context
	suite Suite
	plan  Plan
	run   sample.Run
	open  map[string]*Instance // by metering

	calibration Calibration // before the run
	cacheDir    string      // Options.CacheDir of what is opened
}

func (m *meter) close() {
	for _, i := range m.open {
		i.Close()
	}
}

// options are those of the plan's backend.
func (m *meter) options(metering string) Options {
	return Options{Metering: metering, CacheDir: m.cacheDir, Backend: m.plan.Backend, Workers: m.plan.Workers}
}

// settings adds to the configuration of a row what the plan's backend is.
func (m *meter) settings(config map[string]string) map[string]string {
	config["metering"] = m.suite.Metering()
	if m.plan.Backend != "" {
		config["backend"] = m.plan.Backend
	}
	if m.plan.Workers > 0 {
		config["workers"] = fmt.Sprint(m.plan.Workers)
	}
	return config
}

// instance opens the plan's backend under a metering, once.
func (m *meter) instance(metering string) (*Instance, error) {
	if i := m.open[metering]; i != nil {
		return i, nil
	}
	i, err := m.start(m.options(metering))
	if err == nil {
		m.open[metering] = i
	}
	return i, err
}

// start opens the sandbox and warms it.
func (m *meter) start(o Options) (*Instance, error) {
	i, err := m.suite.Open(m.ctx, o)
	if err == nil {
		if err = i.Backend.Warm(m.ctx); err == nil {
			return i, nil
		}
		i.Close() // the first error is the one to report
	}
	what := fmt.Sprintf("metering %q", o.Metering)
	if o.Backend != "" {
		what += fmt.Sprintf(", backend %s, %d workers", o.Backend, o.Workers)
	}
	return nil, fmt.Errorf("bench: the sandbox does not start (%s): %w", what, err)
}

func (m *meter) add(s sample.Sample) {
	m.run.Samples = append(m.run.Samples, s)
	if m.plan.Observe != nil {
		m.plan.Observe(s)
	}
}

func (m *meter) progress(format string, args ...any) {
	if m.plan.Progress != nil {
		m.plan.Progress(fmt.Sprintf(format, args...))
	}
}

func (m *meter) broken(format string, args ...any) {
	m.run.Broken = append(m.run.Broken, fmt.Sprintf(format, args...))
}

// times picks a repetition count.
func (m *meter) times(quick, full int) int {
	if m.plan.Quick {
		return quick
	}
	return full
}

// task is one script with its input, and the check of its answer.
type task struct {
	row   string // what distinguishes it in a row's name: "workload=join/size=small"
	size  workload.Size
	req   engine.Request
	check func(json.RawMessage) error
}

// roomy are the limits of the workloads: they are here to be timed, not stopped.
var roomy = engine.Limits{WallClock: time.Minute, MemoryBytes: 256 << 20, MaxOutputBytes: 16 << 20}

func (m *meter) cases() ([]task, error) {
	if own := m.plan.Own; own != nil {
		var first json.RawMessage
		return []task{{
			row: "script=own", size: workload.Medium,
			req: engine.Request{Script: own.Script, Input: own.Input, Limits: own.Limits},
			check: func(value json.RawMessage) error {
				if first == nil {
					first = slices.Clone(value)
				}
				if string(first) != string(value) {
					return fmt.Errorf("the script gave two answers: first %.60q, then %.60q", first, value)
				}
				return nil
			},
		}}, nil
	}
	sizes := workload.Sizes
	if m.plan.Quick {
		sizes = []workload.Size{workload.Medium}
	}
	var tasks []task
	for _, size := range sizes {
		for _, w := range workload.All() {
			c, err := w.Case(size, m.plan.Seed)
			if err != nil {
				return nil, err
			}
			tasks = append(tasks, wallTask(w, c))
		}
	}
	return tasks, nil
}

func wallTask(w workload.Workload, c workload.Case) task {
	return task{
		row: strings.TrimPrefix(wallName(w, c.Size), "wall/"), size: c.Size,
		req:   engine.Request{Script: w.Script, Input: c.Input, Limits: roomy},
		check: c.Check,
	}
}

func wallName(w workload.Workload, size workload.Size) string {
	return fmt.Sprintf("wall/workload=%s/size=%s", w.Name, size)
}

// eval runs a task once. The duration is that of the whole call: seeding,
// script, dump, copying and making the VM fresh again.
func (m *meter) eval(i *Instance, t task) (engine.Outcome, time.Duration, error) {
	start := time.Now()
	o, err := i.Backend.Run(m.ctx, t.req)
	took := time.Since(start)
	switch {
	case err != nil:
		return o, took, fmt.Errorf("bench: %s: %w", t.row, err)
	case o.Class != engine.ClassOK:
		return o, took, &WrongAnswer{t.row, fmt.Errorf("ended as %s: %.200q", o.Label(), o.Message)}
	}
	if err := t.check(o.Value); err != nil {
		return o, took, &WrongAnswer{t.row, err}
	}
	return o, took, nil
}

// wall times every task, each evaluation in a fresh VM.
func (m *meter) wall(tasks []task) error {
	in, err := m.instance(m.suite.Metering())
	if err != nil {
		return err
	}
	for _, t := range tasks {
		n := m.times(7, 40)
		if t.size == workload.Large {
			n = 10
		}
		m.progress("wall %s", t.row)
		if _, _, err := m.eval(in, t); err != nil { // the first run faults pages in
			return err
		}
		values := make([]float64, n)
		for i := range values {
			_, took, err := m.eval(in, t)
			if err != nil {
				return err
			}
			values[i] = took.Seconds()
		}
		s := sample.New("wall/"+t.row, sample.Seconds, values)
		s.Config = m.settings(map[string]string{"input_bytes": fmt.Sprint(len(t.req.Input))})
		s.Warnings = spreadWarning(values)
		m.add(s)
	}
	return nil
}

// counts measures what must be the same every time.
func (m *meter) counts(tasks []task) error {
	in, err := m.instance(m.suite.Metering())
	if err != nil {
		return err
	}
	for _, t := range tasks {
		m.progress("count %s", t.row)
		n := m.times(2, 5)
		var first engine.Outcome
		for i := range n {
			o, _, err := m.eval(in, t)
			if err != nil {
				return err
			}
			if i == 0 {
				first = o
				continue
			}
			if o.Usage.Fuel != first.Usage.Fuel || o.Usage.PeakMemoryBytes != first.Usage.PeakMemoryBytes {
				m.broken("same: %s used %d fuel and %d bytes, then %d and %d", t.row,
					first.Usage.Fuel, first.Usage.PeakMemoryBytes, o.Usage.Fuel, o.Usage.PeakMemoryBytes)
			}
		}
		for _, s := range exactRows(t, first, n) {
			m.add(s)
		}
	}
	return nil
}

// guard prices the guards: the same evaluation under every metering, forwards
// and backwards in each round, as ratios to off.
func (m *meter) guard(tasks []task) error {
	if !slices.Contains(m.suite.Meterings, MeteringOff) || len(m.suite.Meterings) < 2 {
		return nil
	}
	medians := map[string][]float64{}
	for _, t := range tasks {
		if t.size != workload.Medium {
			continue
		}
		m.progress("guard %s", t.row)
		rounds := m.times(3, 20)
		ratios := map[string][]float64{}
		for round := range rounds {
			total := map[string]time.Duration{}
			order := append(slices.Clone(m.suite.Meterings), reversed(m.suite.Meterings)...)
			for _, metering := range order {
				in, err := m.instance(metering)
				if err != nil {
					return err
				}
				if round == 0 && total[metering] == 0 {
					if _, _, err := m.eval(in, t); err != nil { // faults pages in
						return err
					}
				}
				_, took, err := m.eval(in, t)
				if err != nil {
					return err
				}
				total[metering] += took
			}
			for metering, took := range total {
				ratios[metering] = append(ratios[metering], float64(took)/float64(total[MeteringOff]))
			}
		}
		for _, metering := range m.suite.Meterings {
			if metering == MeteringOff {
				continue
			}
			s := sample.New("guard/metering="+metering+"/"+t.row, sample.Ratio, ratios[metering])
			s.Warnings = spreadWarning(ratios[metering])
			medians[metering] = append(medians[metering], s.Value)
			m.add(s)
		}
	}
	for _, metering := range m.suite.Meterings {
		if len(medians[metering]) > 1 {
			s := sample.NewExact("guard/metering="+metering, sample.Ratio, sample.GeometricMean(medians[metering]), len(medians[metering]))
			s.Exact = false
			s.Config = map[string]string{"mean": "geometric, of the workloads' medians"}
			m.add(s)
		}
	}
	return nil
}

func reversed[T any](s []T) []T {
	s = slices.Clone(s)
	slices.Reverse(s)
	return s
}

func unsteady(values []float64, limit float64) []string {
	if w := spread(values); w > limit {
		return []string{fmt.Sprintf("unsteady: the middle 80 %% spread over %.0f %% of the median", 100*w)}
	}
	return nil
}

// spreadWarning speaks up when the middle 80 % of the values lie further apart
// than a fifth of their median.
func spreadWarning(values []float64) []string {
	return unsteady(values, 0.2)
}

// calibrate times the kernels. A machine that does not repeat them does not
// repeat anything else either.
func (m *meter) calibrate(when string) error {
	m.progress("calibration")
	c, err := Calibrate(m.ctx)
	if err != nil {
		return err
	}
	for _, s := range c.Samples(when) {
		m.add(s)
	}
	if when == "before" {
		m.calibration = c
		return nil
	}
	for _, reason := range m.calibration.Fitness(c).Reasons {
		m.run.Warnings = append(m.run.Warnings, "the machine is not steady: "+reason)
	}
	return nil
}
