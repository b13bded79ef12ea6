package engine

import (
	"errors"
	"fmt"
	"time"
)

// The defaults of Limits.
const (
	DefaultMemoryBytes    = 32 << 20
	DefaultStackBytes     = 1 << 20
	DefaultWallClock      = time.Second
	DefaultMaxScriptBytes = 1 << 20
	// DefaultMaxInputBytes is the memory default itself: how far a JSON text
	// expands when parsed depends on its shape, so no smaller number would be right.
	DefaultMaxInputBytes  = DefaultMemoryBytes
	DefaultMaxOutputBytes = 1 << 20
)

// The bounds of Limits.
const (
	MinMemoryBytes = 1 << 20
	MaxMemoryBytes = 2 << 30 // wasm32 addresses 4 GiB; the image and the input text need their share
	MinStackBytes  = 64 << 10
	MaxStackBytes  = 64 << 20
	MinWallClock   = time.Millisecond
	MaxWallClock   = 24 * time.Hour
)

// Limits bounds one evaluation. The zero value means the defaults; every field
// that is zero means its own default.
type Limits struct {
	// MemoryBytes bounds what the evaluation may add to linear memory beyond
	// the boot image and the input text. Default 32 MiB, 1 MiB to 2 GiB.
	MemoryBytes int64
	// StackBytes bounds the C stack of the VM. Default: the engine's own stack,
	// 1 MiB unless configured; a request may ask for less. 64 KiB to 64 MiB.
	StackBytes int64
	// WallClock bounds script and dump, from the instant the clock is armed.
	// Default 1 s, 1 ms to 24 h.
	WallClock time.Duration
	// Fuel bounds the metered work of script and dump. Default none; at least 1.
	// It needs metering.
	Fuel int64
	// MaxScriptBytes bounds the source before it is transpiled or run. Default 1 MiB.
	MaxScriptBytes int64
	// MaxInputBytes bounds the JSON text of the input, in UTF-8 bytes. Default 32 MiB.
	MaxInputBytes int64
	// MaxOutputBytes bounds the JSON text of the result, in UTF-8 bytes. Default 1 MiB.
	MaxOutputBytes int64
}

// WithDefaults returns l with every zero field replaced by its default, but
// for StackBytes and Fuel, whose zero means the engine's stack and no bound.
func (l Limits) WithDefaults() Limits {
	def := func(p *int64, v int64) {
		if *p == 0 {
			*p = v
		}
	}
	def(&l.MemoryBytes, DefaultMemoryBytes)
	def(&l.MaxScriptBytes, DefaultMaxScriptBytes)
	def(&l.MaxInputBytes, DefaultMaxInputBytes)
	def(&l.MaxOutputBytes, DefaultMaxOutputBytes)
	if l.WallClock == 0 {
		l.WallClock = DefaultWallClock
	}
	return l
}

// LimitError is one field of Limits that is out of range.
type LimitError struct {
	Field   string // as in the struct
	Value   any
	Allowed string
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("engine: Limits.%s = %v is out of range: %s", e.Field, e.Value, e.Allowed)
}

// Validate reports every field that is out of range, joined; each is a *LimitError.
func (l Limits) Validate() error {
	var errs []error
	check := func(field string, v, lo, hi int64, allowed string) {
		if v != 0 && (v < lo || v > hi) {
			errs = append(errs, &LimitError{field, v, allowed})
		}
	}
	check("MemoryBytes", l.MemoryBytes, MinMemoryBytes, MaxMemoryBytes, "give 1 MiB to 2 GiB, or 0 for the default of 32 MiB")
	check("StackBytes", l.StackBytes, MinStackBytes, MaxStackBytes, "give 64 KiB to 64 MiB, or 0 for the engine's own stack")
	if l.WallClock != 0 && (l.WallClock < MinWallClock || l.WallClock > MaxWallClock) {
		errs = append(errs, &LimitError{"WallClock", l.WallClock, "give 1ms to 24h, or 0 for the default of 1s"})
	}
	const most = int64(1) << 62
	check("Fuel", l.Fuel, 1, most, "give at least 1, or 0 for no bound")
	check("MaxScriptBytes", l.MaxScriptBytes, 1, MaxMemoryBytes, "give 1 byte to 2 GiB, or 0 for the default of 1 MiB")
	check("MaxInputBytes", l.MaxInputBytes, 1, MaxMemoryBytes, "give 1 byte to 2 GiB, or 0 for the default of 32 MiB")
	check("MaxOutputBytes", l.MaxOutputBytes, 1, MaxMemoryBytes, "give 1 byte to 2 GiB, or 0 for the default of 1 MiB")
	return errors.Join(errs...)
}
