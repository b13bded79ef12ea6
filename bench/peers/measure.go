package peers

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/sandbed/sandbed/engine"
)

// WrongAnswer is an evaluation that was to be timed and did not give its value:
// it has no figure.
type WrongAnswer struct {
	What    string
	Outcome engine.Outcome
}

func (e *WrongAnswer) Error() string {
	return fmt.Sprintf("peers: %s gave %s %.100q: %.200q", e.What, e.Outcome.Label(), e.Outcome.Value, e.Outcome.Message)
}

// timed is one operation whose value is checked; a nil want takes any value.
func (b *Backend) timed(ctx context.Context, op string, r engine.Request, n int, want json.RawMessage) (reply, error) {
	a, err := b.do(ctx, request{Op: op, Count: n, evaluation: wire(r)}, r)
	if err != nil {
		return a, err
	}
	if a.Class != engine.ClassOK || want != nil && !bytes.Equal(a.Value, want) {
		return a, &WrongAnswer{op, a.outcome()}
	}
	return a, nil
}

// Batch evaluates r n times, one after another, each in a fresh VM, and returns
// how long all took, set-up and tear-down included. Each must give want.
func (b *Backend) Batch(ctx context.Context, r engine.Request, n int, want json.RawMessage) (time.Duration, error) {
	a, err := b.timed(ctx, "batch", r, n, want)
	return time.Duration(a.NS), err
}

// Disturbance is what a loop in the peer's process saw while it evaluated.
type Disturbance struct {
	Wall        time.Duration // of the evaluations
	Longest     time.Duration // gap between two beats
	Unavailable time.Duration // Σ max(0, gap − 2 ms)
}

// Loop evaluates r n times at once beside a loop that beats every millisecond,
// while the collector is called every 20 ms.
func (b *Backend) Loop(ctx context.Context, r engine.Request, n int, want json.RawMessage) (Disturbance, error) {
	a, err := b.timed(ctx, "loop", r, n, want)
	return Disturbance{time.Duration(a.NS), time.Duration(a.LongNS), time.Duration(a.GoneNS)}, err
}

// Ended is how one evaluation ended.
type Ended struct {
	Outcome engine.Outcome
	// Late is how long after its wall clock the evaluation was over and its VM
	// freed; negative if it ended before. Meaningless if the process was lost.
	Late time.Duration
	Took time.Duration
	Lost bool // the process hung, crashed or was killed: the message says how
}

// End evaluates r and says how and when it ended.
func (b *Backend) End(ctx context.Context, r engine.Request) (Ended, error) {
	a, err := b.do(ctx, request{Op: "eval", evaluation: wire(r)}, r)
	if err != nil {
		return Ended{}, err
	}
	e := Ended{Outcome: a.outcome(), Took: time.Duration(a.NS), Lost: a.Returned == 0}
	if a.Armed != 0 && a.Returned != 0 {
		e.Late = at(a.Returned).Sub(at(a.Armed)) - r.Limits.WithDefaults().WallClock
	}
	return e, nil
}

// Growth evaluates r in a process of its own that has evaluated 1+1 before, and
// says how much its resident set grew at most, in bytes; 0 where that is not known.
func Growth(ctx context.Context, c Command, o Options, r engine.Request) (int64, Ended, error) {
	b := New(c, o)
	defer b.Close()
	if _, err := b.Batch(ctx, onePlusOne, 1, json.RawMessage("2")); err != nil {
		return 0, Ended{}, err
	}
	pid := b.now.cmd.Process.Pid
	// Linux: the largest resident set counts from here.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
	before := memoryOf(pid, "VmRSS")
	stop, peak := make(chan struct{}), make(chan int64)
	go func() { // the process may not live to be asked
		var most int64
		t := time.NewTicker(watchEvery / 5)
		defer t.Stop()
		for over := false; !over; {
			select {
			case <-stop:
				over = true
			case <-t.C:
			}
			most = max(most, memoryOf(pid, "VmHWM"))
		}
		peak <- most
	}()
	e, err := b.End(ctx, r)
	close(stop)
	return max(0, <-peak-before), e, err
}

var onePlusOne = engine.Request{Script: engine.Script{Source: "1+1"}}

// ColdStart is the time from starting the process to its first result, with an
// empty or a filled directory for caches of compiled code, which the process finds in
// XDG_CACHE_HOME.
func ColdStart(ctx context.Context, c Command, o Options, cacheDir string) (time.Duration, error) {
	c.Env = append(append([]string{}, c.Env...), "XDG_CACHE_HOME="+cacheDir)
	b := New(c, o)
	defer b.Close()
	began := time.Now()
	if _, err := b.Batch(ctx, onePlusOne, 1, json.RawMessage("2")); err != nil {
		return 0, err
	}
	return time.Since(began), nil
}
