// Package gate turns the launches of a comparison into a verdict: per row
// REGRESSION (proved above the margin), OK (proved below it) or INCONCLUSIVE,
// with the exit code that a pull request gets. It is a pure function of what was
// recorded: it starts nothing and reads no clock, so that a verdict can be made
// again from the samples on disk.
package gate

import (
	"time"

	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/bench/stat"
)

// The arms of a comparison. Null is a second build of base; Injected is base with
// a known slowdown. Both are compared with Base, as controls.
const (
	Base     = "base"
	Head     = "head"
	Null     = "null"
	Injected = "injected"
)

// The lanes of a row.
const (
	Time  = "time"  // paired and judged by the statistics of this package
	Exact = "exact" // compared as it is; no statistics
)

// The stages in which a launch was made.
const (
	Screen  = "screen"
	Confirm = "confirm" // a row that crossed, again, in reversed order with new layout seeds
)

// Launch is one process launch of one row in one arm: a line of
// raw/samples.ndjson. A pair is the two launches of one row with the same Stage,
// Control and Round.
type Launch struct {
	Schema int    `json:"schema"` // 1
	Row    string `json:"row"`    // a sample's name: "wall/workload=join/size=medium"
	Unit   string `json:"unit"`   // of package sample
	Better string `json:"better"` // "lower" or "higher"
	Lane   string `json:"lane"`
	Stage  string `json:"stage"`
	// Control is "" for base against head, else Null or Injected.
	Control string `json:"control,omitempty"`
	Arm     string `json:"arm"`
	Round   int    `json:"round"`  // from 0; per row, stage and control
	Order   string `json:"order"`  // of the two launches of this round: "AB" (base first) or "BA"
	First   bool   `json:"first"`  // this launch was the first of its round
	Layout  int    `json:"layout"` // the -randlayout seed of the build
	// Value is the median of the inner batches; Inner is how many there were, Batch how long
	// one took in seconds.
	Value   float64   `json:"value"`
	Inner   int       `json:"inner"`
	Batch   float64   `json:"batch_sec,omitempty"`
	Started time.Time `json:"started"`
	// Absent says that the build of this arm lacks the row: there is no value.
	Absent bool `json:"absent,omitempty"`
	// Failed says why there is no value: the launch failed, or gave a wrong answer.
	Failed string `json:"failed,omitempty"`
}

// Design is how a comparison was planned, fixed before the first launch: design.json.
type Design struct {
	Schema int     `json:"schema"` // 1
	Kind   string  `json:"kind"`   // "abba-sign-gs"
	Theta  float64 `json:"theta"`  // default margin, 0.05 = 5 %
	Tight  float64 `json:"tight"`  // margin of rows declared tight, 0.02
	// FamilyAlpha is the bound on a false REGRESSION over all gated rows; each row
	// gets FamilyAlpha ÷ number of gated rows. ClearAlpha is the bound, per row, on
	// a false OK at the margin.
	FamilyAlpha float64 `json:"alpha_family"`
	ClearAlpha  float64 `json:"alpha_clear"`
	Looks       []int   `json:"looks"` // numbers of rounds at which a row is judged
	Seed        uint64  `json:"seed"`
	LayoutSeeds []int   `json:"layout_seeds"`
	// Gated are the rows that decide; all others are reported. At most 20.
	Gated []RowPlan `json:"gated"`
	// Injection is the slowdown of the Injected control: 0.10.
	Injection float64 `json:"injection"`
	// AbsoluteFloor is the smallest difference of a batch that can count, in seconds: 50 µs.
	AbsoluteFloor float64 `json:"absolute_floor_sec"`
	ExactLimit    float64 `json:"exact_limit"` // 0.01: more than the larger of this and 1 unit fails
}

// RowPlan is what a reviewed file may say of a row.
type RowPlan struct {
	Row   string  `json:"row"`
	Theta float64 `json:"theta"` // its margin
	// Spread is the 95th percentile of the row's own |A/A median| over past runs; 0 if
	// unknown. The margin is at least 1.5 × Spread.
	Spread float64 `json:"aa_p95,omitempty"`
}

// Word is a verdict.
type Word string

const (
	Regression   Word = "REGRESSION"
	Improvement  Word = "IMPROVEMENT" // the mirrored rule; never fails
	OK           Word = "OK"
	Inconclusive Word = "INCONCLUSIVE"
	Unmeasurable Word = "UNMEASURABLE" // the margin it would need is above 15 %, or too many ties
	Waived       Word = "WAIVED"       // a regression under a valid waiver
	New          Word = "NEW"          // base lacks the row
	Removed      Word = "REMOVED"      // head lacks it
	Failed       Word = "FAILED"       // a launch failed or gave a wrong answer
	Unchanged    Word = "UNCHANGED"    // exact lane
	Changed      Word = "CHANGED"      // exact lane, within the limit or for the better
)

// Row is the verdict on one row.
type Row struct {
	Name   string `json:"name"`
	Unit   string `json:"unit"`
	Better string `json:"better"`
	Lane   string `json:"lane"`
	Gated  bool   `json:"gated"`
	// Base and Head are medians with a 95 % order-statistic interval.
	Base Arm `json:"base"`
	Head Arm `json:"head"`
	// Ratio is exp(median of ln head − ln base): above 1 is more, 0 is none. Interval is its
	// simultaneous interval, valid at every look; infinite where the rounds prove nothing yet.
	Ratio    float64       `json:"ratio"`
	Interval stat.Interval `json:"interval"`
	Theta    float64       `json:"theta"` // the margin that applied
	Floor    float64       `json:"floor"` // what raised it: 1.5 × the row's own A/A p95, or the absolute floor as a ratio
	// Blocks says that rounds depended on each other (|lag-1| above 0.2 and above chance) or on
	// their order, so that Slower, Rounds, P, Sigma, MDE and Interval count blocks of two rounds.
	Blocks  bool    `json:"blocks,omitempty"`
	Slower  int     `json:"slower"` // rounds beyond the margin
	Rounds  int     `json:"rounds"`
	Ties    int     `json:"ties"`
	P       float64 `json:"p"`          // sign test against the margin
	PAdj    float64 `json:"p_adjusted"` // times the gated rows, at most 1
	MDE     float64 `json:"mde95"`      // smallest slowdown this row would have caught with 95 % power
	Sigma   float64 `json:"sigma"`      // robust spread of one round's log ratio
	Lag1    float64 `json:"lag1"`
	Verdict Word    `json:"verdict"`
	Reason  string  `json:"reason"` // "crossed 14 of 15 at look 2, confirmed 15 of 15"
	Waiver  *Waiver `json:"waiver,omitempty"`
	// LogRatios are d by round, and Orders their orders: what plots draw.
	LogRatios []float64 `json:"log_ratios,omitempty"`
	Orders    []string  `json:"orders,omitempty"`
	BaseVals  []float64 `json:"base_values,omitempty"`
	HeadVals  []float64 `json:"head_values,omitempty"`
}

// Arm is what one arm of a row measured.
type Arm struct {
	Median float64       `json:"median"`
	CI     stat.Interval `json:"ci"`
	N      int           `json:"n"`
}

// Waiver lets a known regression pass: `benchmark | metric | ceiling | expires | issue | reason`.
type Waiver struct {
	Row     string    `json:"row"`
	Unit    string    `json:"unit"`
	Ceiling float64   `json:"ceiling"` // largest ratio it covers
	Expires time.Time `json:"expires"`
	Issue   string    `json:"issue"`
	Reason  string    `json:"reason"`
	// State is "used", "stale" (covers no regression of this run), "expired", "exceeded", or
	// "unjudged" (its row got no verdict).
	State string `json:"state"`
}

// Control is one of the two controls of a run.
type Control struct {
	Kind     string        `json:"kind"` // Null or Injected
	Row      string        `json:"row"`
	Injected float64       `json:"injected,omitempty"`
	Ratio    float64       `json:"ratio"`
	Interval stat.Interval `json:"interval"`
	Rounds   int           `json:"rounds"`
	// Fired says that it was judged slower than base by more than the margin; for Null, slower or
	// faster.
	Fired bool `json:"fired"`
	Good  bool `json:"good"` // as it must: Null not fired though it could, Injected fired
}

// Report is what a comparison came to.
type Report struct {
	Schema   int                `json:"schema"`  // 1
	Verdict  string             `json:"verdict"` // "ok", "regression", "inconclusive", "unfit", "failed"
	Exit     int                `json:"exit"`    // 0, 1, 2, 3, 4 as benchrun's
	Proved   string             `json:"proved"`  // one sentence that says what was proved
	Base     Ref                `json:"base"`
	Head     Ref                `json:"head"`
	Design   Design             `json:"design"`
	FailAt   []int              `json:"fail_at"` // slower-counts by look; −1: cannot at this look
	ClearAt  []int              `json:"clear_at"`
	Rows     []Row              `json:"rows"` // gated rows first, by evidence
	Controls []Control          `json:"controls"`
	Waivers  []Waiver           `json:"waivers,omitempty"`
	Warnings []string           `json:"warnings,omitempty"`
	Fitness  *Fitness           `json:"fitness,omitempty"`
	BaseEnv  sample.Environment `json:"base_environment"`
	HeadEnv  sample.Environment `json:"head_environment"`
	Started  time.Time          `json:"started"`
	Took     float64            `json:"took_sec"`
	Quick    bool               `json:"quick,omitempty"`
	// Unpaired says that the input was two files of go test -bench: what that cannot prove.
	Unpaired bool `json:"unpaired,omitempty"`
}

// Ref is one side of a comparison.
type Ref struct {
	Name   string `json:"name"` // as the user gave it
	Commit string `json:"commit"`
	Dirty  bool   `json:"dirty,omitempty"`
}

// Fitness is what the machine was like: calib.json.
type Fitness struct {
	Fit     bool     `json:"fit"`
	Reasons []string `json:"reasons,omitempty"` // why not
	Kernels []Kernel `json:"kernels"`
	Steal   float64  `json:"steal"`     // share of processor time during the run
	PSI     float64  `json:"psi_avg10"` // some, cpu, in percent as the system says it; −1 if the system does not say
}

// Kernel is one calibration kernel, before and after.
type Kernel struct {
	Name   string  `json:"name"`
	Before float64 `json:"before_sec"`
	After  float64 `json:"after_sec"`
	Spread float64 `json:"spread"`
	Drift  float64 `json:"drift"`
}
