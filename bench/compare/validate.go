package compare

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/sandbed/sandbed/bench"
	"github.com/sandbed/sandbed/bench/gate"
)

// The kinds of noise that a validation can make beside the launches.
const (
	NoiseBursts = "bursts" // every processor busy for 20 to 400 ms, then idle as long: hits one launch of a pair
	NoiseMemory = "memory" // one processor copies memory, all the time
)

// Noises are the values of Validation.Noise.
var Noises = []string{NoiseBursts, NoiseMemory}

// The kinds of a Record.
const (
	KindAA    = "aa"
	KindPower = "power"
)

// Validation measures the gate itself: one commit is compared with itself, many
// times, by the machinery that compares two. The arms are two builds of it that differ
// in their layout.
type Validation struct {
	Dir, Package string // as in Config
	Ref          string
	Runs         int
	// Inject are slowdowns of head, as shares: each run is made once with each. One of 0 makes
	// an A/A run, and so does an empty list.
	Inject []float64
	Rows   []string // as in Config
	Noise  string   // "" or one of Noises
	Budget time.Duration
	Seed   uint64
	// Command is how it was asked for, for the record.
	Command  string
	Observe  func(Record) error // after each run
	Progress func(string)
}

// RecordSchema is the version of the JSON form of Record.
const RecordSchema = 1

// Record is one run of a validation: a line of reports/validation/*.ndjson.
type Record struct {
	Schema   int            `json:"schema"`
	Kind     string         `json:"kind"` // aa or power
	Date     time.Time      `json:"date"`
	Commit   string         `json:"commit"`
	Command  string         `json:"command"`
	Machine  Machine        `json:"machine"`
	Noise    string         `json:"noise,omitempty"`
	Injected float64        `json:"injected,omitempty"`
	Seed     uint64         `json:"seed"`
	Verdict  string         `json:"verdict"` // as gate.Report's
	Exit     int            `json:"exit"`
	Took     float64        `json:"took_sec"`
	Unfit    []string       `json:"unfit,omitempty"` // why the machine was, if it was
	Rows     []RecordRow    `json:"rows"`
	Controls []gate.Control `json:"controls,omitempty"`
}

// Machine is where a validation ran.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	OS     string `json:"os"`
	Arch   string `json:"arch"`
	Go     string `json:"go"`
	Kernel string `json:"kernel,omitempty"`
}

// RecordRow is what a run made of one row.
type RecordRow struct {
	Row string `json:"row"`
	// Word is what the launches alone say; Verdict, what a pull request would be told: the
	// controls and the fitness of the machine may take a word back.
	Word    gate.Word `json:"word"`
	Verdict gate.Word `json:"verdict"`
	Theta   float64   `json:"theta"`
	Ratio   float64   `json:"ratio"`
	Sigma   float64   `json:"sigma"`
	Rounds  int       `json:"rounds"`
	// LogRatios are the rounds of the screen, so that another rule can be tried on them.
	LogRatios []float64 `json:"log_ratios"`
}

// Validate runs v. Errors are as those of Run.
func Validate(ctx context.Context, v Validation) (err error) {
	switch {
	case v.Runs < 1:
		return &Refused{"--runs", fmt.Sprint(v.Runs), "give at least 1"}
	case v.Noise != "" && !slices.Contains(Noises, v.Noise):
		return &Refused{"--noise", v.Noise, fmt.Sprintf("give one of %v", Noises)}
	}
	c := Config{Dir: v.Dir, Package: v.Package, Base: v.Ref, Head: v.Ref, Rows: v.Rows, Budget: v.Budget, Progress: v.Progress}
	if err := c.validate(); err != nil {
		return err
	}
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = ErrInterrupted
		}
	}()
	c.progress("checking out")
	w, err := open(ctx, c.Dir, c.Package)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	ref, err := w.resolve(ctx, "--ref", v.Ref)
	if err != nil {
		return err
	}
	if err := w.addTree(ctx, gate.Base, ref); err != nil {
		return err
	}
	c.progress("building")
	binary, err := w.binary(ctx, gate.Base, 1)
	if err != nil {
		return err
	}
	list, err := w.list(ctx, binary)
	if err != nil {
		return &Unmeasurable{gate.Base, v.Ref, err}
	}
	rows, err := c.rows(list, list)
	if err != nil {
		return err
	}
	sizes := v.Inject
	if len(sizes) == 0 {
		sizes = []float64{0}
	}
	batches := map[string]int{}
	before, err := bench.Calibrate(ctx)
	if err != nil {
		return err
	}
	for i := range v.Runs * len(sizes) {
		inject := sizes[i%len(sizes)]
		began := time.Now()
		seed := v.Seed + uint64(i)
		if v.Seed == 0 {
			seed = uint64(began.UnixNano())
		}
		design := gate.DefaultDesign(rows, seed)
		design.LayoutSeeds = layoutSeeds(design.LayoutSeeds)
		if inject > 0 {
			design.Injection = 0 // the run is the control
		}
		if err := design.Validate(); err != nil {
			return err
		}
		s := newSession(design, w.start)
		s.progress = func(format string, args ...any) {
			c.progress("run %d of %d: %s", i+1, v.Runs*len(sizes), fmt.Sprintf(format, args...))
		}
		s.run.Batches, s.run.BaseRows, s.run.HeadRows = batches, list.Rows, list.Rows
		s.shift[gate.Head], s.inject[gate.Head] = 1, inject
		for _, layout := range design.LayoutSeeds {
			if _, err := w.binary(ctx, gate.Base, layout); err != nil {
				return err
			}
		}
		if err := s.ready(ctx); err != nil {
			return err
		}
		s.deadline, s.budget = began.Add(v.Budget), v.Budget
		stop := noise(v.Noise, seed)
		err := s.measure(ctx)
		after, cerr := bench.Calibrate(ctx) // beside the noise: that is what fitness is there to see
		stop()
		if err := errors.Join(err, cerr); err != nil {
			return err
		}
		fitness := before.Fitness(after)
		if before = after; v.Noise != "" {
			if before, err = bench.Calibrate(ctx); err != nil {
				return err
			}
		}
		report, err := gate.Decide(design, s.launches(), gate.Options{Fitness: &fitness})
		if err != nil {
			return err
		}
		r := Record{
			Schema: RecordSchema, Kind: KindAA, Date: began.UTC().Truncate(time.Second), Commit: ref.Commit, Command: v.Command,
			Machine: Machine{list.Environment.CPU, list.Environment.Cores, list.Environment.OS, list.Environment.Arch, list.Environment.Go, list.Environment.Kernel},
			Noise:   v.Noise, Injected: inject, Seed: seed, Verdict: report.Verdict, Exit: report.Exit, Took: time.Since(began).Seconds(),
			Unfit: fitness.Reasons, Controls: report.Controls,
		}
		if inject > 0 {
			r.Kind = KindPower
		}
		for _, row := range report.Rows {
			k := slices.IndexFunc(s.series, func(x *series) bool { return x.row == row.Name && x.control == "" })
			if row.Lane != gate.Time || k < 0 {
				continue
			}
			for i, d := range row.LogRatios {
				row.LogRatios[i] = math.Round(d*1e5) / 1e5
			}
			r.Rows = append(r.Rows, RecordRow{row.Name, s.series[k].step.Word, row.Verdict, row.Theta, row.Ratio, row.Sigma, row.Rounds, row.LogRatios})
		}
		if err := v.Observe(r); err != nil {
			return err
		}
	}
	return nil
}

// noise disturbs the machine until stop is called.
func noise(kind string, seed uint64) (stop func()) {
	quit := make(chan struct{})
	var wg sync.WaitGroup
	switch kind {
	case NoiseBursts:
		for range runtime.NumCPU() {
			wg.Go(func() { bursts(quit, rand.New(rand.NewPCG(seed, 1))) }) // the same seed: all at once
		}
	case NoiseMemory:
		wg.Go(func() { copies(quit) })
	}
	return func() {
		close(quit)
		wg.Wait()
	}
}

func bursts(quit <-chan struct{}, rng *rand.Rand) {
	length := func() time.Duration {
		return 20*time.Millisecond + time.Duration(rng.Int64N(int64(380*time.Millisecond)))
	}
	for {
		for end := time.Now().Add(length()); time.Now().Before(end); {
		}
		select {
		case <-quit:
			return
		case <-time.After(length()):
		}
	}
}

func copies(quit <-chan struct{}) {
	from, to := make([]byte, 64<<20), make([]byte, 64<<20)
	for {
		select {
		case <-quit:
			return
		default:
			copy(to, from)
		}
	}
}
