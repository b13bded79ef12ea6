package quickjs

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sandbed/sandbed/engine"
)

// Metering says how running code is watched. Only On keeps every guarantee; the
// others exist to price it.
type Metering string

// The kinds of metering.
const (
	// On instruments the module: any script is stopped, and fuel is counted.
	On Metering = ""
	// Off leaves the code as it is: only QuickJS's own interrupt handler stops a
	// script, which most builtins never ask.
	Off Metering = "off"
	// CloseOnDone is wazero's own way: it leaves machine code at every loop
	// header. A script that is stopped costs its VM.
	CloseOnDone Metering = "close-on-done"
)

// Config is how an Engine is built. The zero value is a good one.
type Config struct {
	// CacheDir keeps compiled code between processes. Default: sandbed in the
	// user's cache directory; where there is none, nothing is kept.
	CacheDir string
	Metering Metering
	// StackBytes is the size of the C stack of a VM, 64 KiB to 64 MiB. Default
	// 1 MiB, about 2,000 JavaScript frames.
	StackBytes int64
	// Now is what Date and performance.now see, always. Default 2000-01-01T00:00:00Z.
	Now time.Time
	// Seed seeds Math.random, the same for every evaluation.
	Seed uint64
}

func (c Config) withDefaults() (Config, error) {
	switch c.Metering {
	case On, Off, CloseOnDone:
	default:
		return c, fmt.Errorf("quickjs: Config.Metering = %q: give On, Off or CloseOnDone", string(c.Metering))
	}
	if c.StackBytes == 0 {
		c.StackBytes = engine.DefaultStackBytes
	}
	if c.StackBytes < engine.MinStackBytes || c.StackBytes > engine.MaxStackBytes {
		return c, fmt.Errorf("quickjs: Config.StackBytes = %d: give 64 KiB to 64 MiB, or 0 for 1 MiB", c.StackBytes)
	}
	c.StackBytes &^= 15
	if c.Now.IsZero() {
		c.Now = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	if c.Now.Unix() < 0 || c.Now.Year() > 2200 {
		return c, fmt.Errorf("quickjs: Config.Now = %s: give a time from 1970 to 2200", c.Now.Format(time.RFC3339))
	}
	if c.CacheDir == "" {
		c.CacheDir = DefaultCacheDir()
	}
	return c, nil
}

// DefaultCacheDir is the default of Config.CacheDir, empty where the user has no
// cache directory. A host passes it to worker processes, which do not know the user.
func DefaultCacheDir() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "sandbed")
}

// CheckLimits adds to engine.Limits.Validate what depends on the configuration:
// a stack larger than StackBytes, and fuel without metering. Each fault is a
// *engine.LimitError; all come joined.
func (c Config) CheckLimits(l engine.Limits) error {
	err := l.Validate()
	stack := cmp.Or(c.StackBytes, engine.DefaultStackBytes)
	if l.StackBytes > stack {
		err = errors.Join(err, &engine.LimitError{Field: "StackBytes", Value: l.StackBytes,
			Allowed: fmt.Sprintf("this engine has a stack of %d bytes; ask for less or raise Config.StackBytes", stack)})
	}
	if l.Fuel > 0 && c.Metering != On {
		err = errors.Join(err, &engine.LimitError{Field: "Fuel", Value: l.Fuel, Allowed: "this engine runs without metering; use Config.Metering On, or leave Fuel 0"})
	}
	return err
}
