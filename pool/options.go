package pool

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/sandbed/sandbed/engine"
)

// The bounds of Options.
const (
	MaxCount    = 1024
	MaxDuration = 24 * time.Hour
)

// Options configures a pool. Start from [DefaultOptions]: here a zero is a
// zero, never a default.
type Options struct {
	// Count is how many evaluations run at a time. 1 to 1024; 0 means no
	// workers, which [For] understands and [New] refuses. Default GOMAXPROCS.
	Count int
	// Spare is how many more workers are kept warm to stand in for one that was
	// replaced. 0 to 1024; default 0.
	Spare int
	// MaxQueue is how many runs may wait for a worker; the next one gets
	// engine.ErrQueueFull. At least 0; 0, the default, means no bound.
	MaxQueue int
	// ColdStart bounds the start of one worker (spawn, compile), from the instant
	// it begins to warm. No run's limits ever judge it. More than 0, up to 24 h,
	// and above what a cold start really takes on this host: a shorter one makes
	// every cold start fail for ever. Default 10 s.
	ColdStart time.Duration
	// StartupLiveness is what a run may take beyond its wall clock and
	// HardKillGrace from a ready worker to the armed clock: scheduling and
	// parsing the input. 0 to 24 h; default 10 s.
	StartupLiveness time.Duration
	// HardKillGrace is what a run may take beyond its wall clock, from the armed
	// clock to the finished mark, before the pool kills it. The VM's own clock is
	// the first guard, this is the backstop. 0 to 24 h; default 2 s.
	HardKillGrace time.Duration
	// KillWait is how long a killed worker may take to come back before it is
	// abandoned and its slot filled anew. 0 to 24 h; default 100 ms.
	KillWait time.Duration
	// CheckLimits, if set, says which limits the VMs take; its error refuses a run
	// before a worker is touched. nil, the default, means engine.Limits.Validate.
	CheckLimits func(engine.Limits) error
	// RequireHardening makes a process worker that could not apply every measure
	// of hardening an error. Only NewProcesses knows it; New refuses it.
	RequireHardening bool
}

// DefaultOptions returns the documented defaults.
func DefaultOptions() Options {
	return Options{
		Count:           min(runtime.GOMAXPROCS(0), MaxCount),
		ColdStart:       10 * time.Second,
		StartupLiveness: 10 * time.Second,
		HardKillGrace:   2 * time.Second,
		KillWait:        100 * time.Millisecond,
	}
}

// OptionError is one field of Options that is out of range.
type OptionError struct {
	Field   string // as in the struct
	Value   any
	Allowed string
}

func (e *OptionError) Error() string {
	return fmt.Sprintf("pool: Options.%s = %v is out of range: %s", e.Field, e.Value, e.Allowed)
}

// Validate reports every field that is out of range, joined; each is an
// *OptionError. Count 0 is in range here: it means no workers.
func (o Options) Validate() error {
	var errs []error
	number := func(field string, v, hi int, allowed string) {
		if v < 0 || v > hi {
			errs = append(errs, &OptionError{field, v, allowed})
		}
	}
	number("Count", o.Count, MaxCount, "give 1 to 1024, or 0 with pool.For for no workers")
	number("Spare", o.Spare, MaxCount, "give 0 to 1024")
	number("MaxQueue", o.MaxQueue, int(^uint(0)>>1), "give at least 1, or 0 for no bound")
	duration := func(field string, v, lo time.Duration, allowed string) {
		if v < lo || v > MaxDuration {
			errs = append(errs, &OptionError{field, v, allowed})
		}
	}
	duration("ColdStart", o.ColdStart, 1, "give more than 0 and at most 24h; 0 would make every cold start fail for ever")
	duration("StartupLiveness", o.StartupLiveness, 0, "give 0 to 24h")
	duration("HardKillGrace", o.HardKillGrace, 0, "give 0 to 24h")
	duration("KillWait", o.KillWait, 0, "give 0 to 24h")
	return errors.Join(errs...)
}
