// Package pooltest is a suite for any worker pool, and VMs that misbehave on
// command.
//
// A [VM] is told what to do by the script itself, so the same misbehaviour
// reaches a goroutine worker and a worker in another process. [Run] puts a pool
// of such VMs through the laws in real time, [RunVirtual] in the virtual time of
// testing/synctest, [Check] returns what it found.
//
// The suite shows that a pool keeps queue, clocks, kills and settlement; it says
// nothing of the isolation of a real VM, which engine/enginetest judges.
package pooltest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandbed/sandbed/engine"
)

// Ledger counts what the VMs of a pool went through and notes each breach of
// the VM contract. The zero value is ready; it is safe for concurrent use.
type Ledger struct {
	mu       sync.Mutex
	counts   Counts
	breaches []string
}

// Counts is a snapshot of a Ledger.
type Counts struct {
	Starts    int // calls of newVM
	Made      int // that gave a VM
	Closed    int // VMs closed
	Evals     int // calls of Eval
	Running   int // Evals that have not returned
	MostAtOne int // the most Evals that ran at once
}

// Counts returns a snapshot.
func (l *Ledger) Counts() Counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts
}

// Breaches returns the breaches of the VM contract so far: an Eval during
// another or after Close, a second Close, a Close during an Eval.
func (l *Ledger) Breaches() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.breaches)
}

func (l *Ledger) note(f func(*Counts)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.counts)
}

func (l *Ledger) breach(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.breaches = append(l.breaches, text)
}

// VM is an engine.VM that does what the source of the script says: operations
// separated by ";". D is a duration in Go's syntax.
//
//	seed D       parse the input for D; a kill ends it
//	start [D]    report the armed clock, as D away from now
//	stale        report the armed clock of the run before, not of this one
//	run D        run the script for D; a kill ends it
//	ignore D     the same, but a kill does not
//	late D       from here on, take D to come back from a kill
//	finish       report the finished mark
//	flood N      report both marks N times
//	ok [JSON]    end with this value; "ok null" is how a script without an end ends
//	input        end with the input as value, the very bytes
//	big N        end with a string of N bytes as value
//	fault        end as an engine fault
//	class C [G]  end with class C and guard G, true or not
//	panic        panic
//	exit         end the goroutine
//	die          end the process at once; only for a worker of its own
type VM struct {
	ledger *Ledger
	busy   atomic.Bool
	closed atomic.Bool
	stale  func(time.Time)
}

// NewVM returns a function that makes VMs. The n-th start does what the n-th of
// starts says, and those after the last what the last says: the operations run,
// ignore, panic, exit and die, "error" to fail and "nil" to return neither VM nor error.
// Without starts every start succeeds at once. l may be nil.
func NewVM(l *Ledger, starts ...string) func(context.Context) (engine.VM, error) {
	if l == nil {
		l = new(Ledger)
	}
	return func(ctx context.Context) (engine.VM, error) {
		var n int
		l.note(func(c *Counts) { n = c.Starts; c.Starts++ })
		if len(starts) > 0 {
			for op, arg := range operations(starts[min(n, len(starts)-1)]) {
				switch op {
				case "run":
					if !sleep(ctx, duration(arg)) {
						return nil, context.Cause(ctx)
					}
				case "ignore":
					time.Sleep(duration(arg))
				case "error":
					return nil, errors.New("pooltest: told to fail")
				case "nil":
					return nil, nil
				default:
					disrupt(op)
				}
			}
		}
		l.note(func(c *Counts) { c.Made++ })
		return &VM{ledger: l}, nil
	}
}

// Eval runs the operations of r's script.
func (v *VM) Eval(ctx context.Context, r engine.Request) (out engine.Outcome) {
	if v.closed.Load() {
		v.ledger.breach("Eval after Close")
	}
	if !v.busy.CompareAndSwap(false, true) {
		v.ledger.breach("Eval during another Eval")
	}
	v.ledger.note(func(c *Counts) { c.Evals++; c.Running++; c.MostAtOne = max(c.MostAtOne, c.Running) })
	defer func() {
		v.ledger.note(func(c *Counts) { c.Running-- })
		v.busy.Store(false)
		v.stale = r.OnScriptStart
	}()

	var late time.Duration
	began := false
	killed := func() engine.Outcome {
		time.Sleep(late)
		return engine.Outcome{Class: engine.ClassCanceled, Killed: true, DuringSeed: !began, Message: fmt.Sprint(context.Cause(ctx))}
	}
	for op, arg := range operations(r.Script.Source) {
		switch op {
		case "seed", "run":
			if !sleep(ctx, duration(arg)) {
				return killed()
			}
		case "ignore":
			time.Sleep(duration(arg))
		case "late":
			late = duration(arg)
		case "start":
			began = true
			mark(r.OnScriptStart, time.Now().Add(duration(arg)))
		case "stale":
			mark(v.stale, time.Now())
		case "finish":
			mark(r.OnFinished, time.Now())
		case "flood":
			for range number(arg) {
				mark(r.OnScriptStart, time.Now())
				mark(r.OnFinished, time.Now())
			}
		case "ok":
			return engine.Outcome{Class: engine.ClassOK, Value: []byte(arg)}
		case "input":
			return engine.Outcome{Class: engine.ClassOK, Value: r.Input}
		case "big":
			return engine.Outcome{Class: engine.ClassOK, Value: []byte(`"` + strings.Repeat("x", number(arg)-2) + `"`)}
		case "fault":
			return engine.Outcome{Class: engine.ClassEngineFault, Message: "pooltest: told to fail"}
		case "class":
			class, guard, _ := strings.Cut(arg, " ")
			return engine.Outcome{Class: engine.Class(class), Guard: engine.Guard(guard)}
		default:
			disrupt(op)
		}
	}
	return engine.Outcome{Class: engine.ClassOK, Value: []byte("null")}
}

// Close notes that the VM was closed.
func (v *VM) Close() error {
	if v.busy.Load() {
		v.ledger.breach("Close during an Eval")
	}
	if v.closed.Swap(true) {
		v.ledger.breach("second Close")
	}
	v.ledger.note(func(c *Counts) { c.Closed++ })
	return nil
}

// disrupt does what no VM should.
func disrupt(op string) {
	switch op {
	case "panic":
		panic("pooltest: told to panic")
	case "exit":
		runtime.Goexit()
	case "die":
		os.Exit(3)
	default:
		panic("pooltest: unknown operation " + strconv.Quote(op))
	}
}

// operations yields each operation with its argument.
func operations(program string) func(yield func(op, arg string) bool) {
	return func(yield func(op, arg string) bool) {
		for part := range strings.SplitSeq(program, ";") {
			op, arg, _ := strings.Cut(strings.TrimSpace(part), " ")
			if op != "" && !yield(op, arg) {
				return
			}
		}
	}
}

func mark(f func(time.Time), at time.Time) {
	if f != nil {
		f(at)
	}
}

// sleep reports whether it slept to the end.
func sleep(ctx context.Context, d time.Duration) bool {
	if ctx.Err() != nil {
		return false
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// duration and number panic on a fault in the script, so that a test with a
// wrong script fails.
func duration(arg string) time.Duration {
	if arg == "" {
		return 0
	}
	d, err := time.ParseDuration(arg)
	if err != nil {
		panic("pooltest: " + err.Error())
	}
	return d
}

func number(arg string) int {
	n, err := strconv.Atoi(arg)
	if err != nil {
		panic("pooltest: " + err.Error())
	}
	return n
}
