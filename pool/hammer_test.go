package pool_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/pool"
	"github.com/sandbed/sandbed/pool/pooltest"
)

var hammerSeed = flag.Uint64("hammer.seed", 0, "repeat the one round of the hammer tests with this seed")

// hammered is how many runs a hammer test makes: 100,000 with STRESS=1.
func hammered(usual int) int {
	if os.Getenv("STRESS") == "1" {
		return 100_000
	}
	return usual
}

// Random runs, kills, cancels, closes and drains: each run is answered once and
// with what its script deserves, and nothing is left. In virtual time, where
// every round can be repeated and every outcome is known.
func TestStressHammerVirtual(t *testing.T) {
	hammer(t, hammered(10_000), func(t *testing.T, seed uint64) (runs int) {
		synctest.Test(t, func(t *testing.T) { runs = hammerRound(t, seed, time.Millisecond, true) })
		return runs
	})
}

// The same in real time and five times faster, for the sake of real
// interleavings and the race detector. A slow host may then kill any script, so
// outcomes are judged less strictly.
func TestStressHammerReal(t *testing.T) {
	hammer(t, hammered(5_000), func(t *testing.T, seed uint64) int {
		return hammerRound(t, seed, engine.MinWallClock/5, false)
	})
	goleak.VerifyNone(t)
}

func hammer(t *testing.T, runs int, round func(t *testing.T, seed uint64) int) {
	if *hammerSeed != 0 {
		round(t, *hammerSeed)
		return
	}
	for done := 0; done < runs && !t.Failed(); {
		seed := rand.Uint64() | 1
		done += round(t, seed)
		if t.Failed() {
			t.Logf("repeat: go test ./pool -run '^%s$' -hammer.seed=%d", t.Name(), seed)
		}
	}
}

// act is a script with the labels it deserves when nobody interferes.
type act struct {
	script string
	labels []string
}

// hammerRound takes one pool of random options through random calls. Durations
// are in units: every wall clock is 5 of them.
func hammerRound(t *testing.T, seed uint64, unit time.Duration, strict bool) int {
	rng := rand.New(rand.NewPCG(seed, 1))
	units := func(n int) time.Duration { return time.Duration(n) * unit }
	pick := func(s ...string) string { return s[rng.IntN(len(s))] }

	o := pool.Options{
		Count:           1 + rng.IntN(4),
		Spare:           rng.IntN(3),
		MaxQueue:        rng.IntN(2) * rng.IntN(8),
		ColdStart:       units(20),
		StartupLiveness: units(10),
		HardKillGrace:   units(3),
		KillWait:        units(rng.IntN(4)),
	}
	flaky := rng.IntN(2) == 0
	var starts []string
	for range 200 {
		s := ""
		if flaky {
			s = pick("", "", "run 3u", "run 25u", "error", "ignore 25u", "panic", "exit")
		}
		starts = append(starts, inUnits(s, unit))
	}
	ledger := new(pooltest.Ledger)
	p, err := pool.New(pooltest.NewVM(ledger, starts...), o)
	if err != nil {
		t.Fatal(err)
	}

	acts := []act{
		{"start; finish; ok 1", []string{"ok"}},
		{"seed 2u; start; run 1u; finish; run 2u; ok 1", []string{"ok"}},
		{"start; class error", []string{"error"}},
		{"start; run 1h", []string{"limit:wallClock"}},
		{"seed 1u; start; late 2u; run 1h", []string{"limit:wallClock"}},
		{"start; ignore 30u; finish; ok 1", []string{"limit:wallClock"}},
		{"seed 1h", []string{"startup:start"}},
		{"ignore 30u", []string{"startup:start"}},
		{"start; fault", []string{"engineFault"}},
		{"start; panic", []string{"engineFault"}},
		{"exit", []string{"startup:start"}},
		{"start; finish; exit", []string{"engineFault"}},
	}

	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		counted = map[string]int64{}
		total   int
	)
	call := func(a act, giveUp time.Duration) {
		ctx, cancel := context.Background(), func() {}
		if giveUp >= 0 {
			c, stop := context.WithCancel(ctx)
			timer := time.AfterFunc(giveUp, stop)
			ctx, cancel = c, func() { timer.Stop(); stop() }
		}
		defer cancel()
		out, err := p.Run(ctx, engine.Request{
			Script: engine.Script{Source: inUnits(a.script, unit)},
			Limits: engine.Limits{WallClock: units(5)},
		})
		label := name(out, err)
		allowed := slices.Concat(a.labels, []string{"closed"})
		if giveUp >= 0 {
			allowed = append(allowed, "gaveUp", "canceled")
		}
		if o.MaxQueue > 0 {
			allowed = append(allowed, "queueFull")
		}
		if flaky {
			allowed = append(allowed, "startup:compile")
		}
		if !strict { // a host that is slower than our clocks
			allowed = append(allowed, "startup:compile", "startup:start", "limit:wallClock", "ok")
		}
		mu.Lock()
		defer mu.Unlock()
		counted[label]++
		if !slices.Contains(allowed, label) {
			t.Errorf("%s with %+v: got %s, want one of %q: %+v, %v", a.script, o, label, allowed, out, err)
		}
	}

	callers := 1 + rng.IntN(8)
	for range callers {
		calls := 1 + rng.IntN(30)
		total += calls
		mine := rand.New(rand.NewPCG(seed, rng.Uint64()))
		wg.Go(func() {
			for range calls {
				giveUp := time.Duration(-1)
				if mine.IntN(3) == 0 {
					giveUp = units(mine.IntN(12))
				}
				call(acts[mine.IntN(len(acts))], giveUp)
			}
		})
	}
	extra := rand.New(rand.NewPCG(seed, rng.Uint64()))
	wg.Go(func() {
		for range extra.IntN(5) {
			time.Sleep(units(extra.IntN(20)))
			ctx, cancel := context.WithTimeout(context.Background(), units(extra.IntN(30)))
			_ = p.Warm(ctx) // any answer is right; that it comes is the point
			cancel()
			if s := p.Stats(); s.Running > o.Count || s.Starting+s.Idle+s.Running > o.Count+o.Spare {
				t.Errorf("more workers than asked for: %+v with %+v", s, o)
			} else if sum := total64(s.Settled); s.Submitted != sum+int64(s.Queued+s.Running) {
				t.Errorf("the books do not balance: %+v", s)
			}
		}
	})
	// Most rounds end in the middle of it, by Close or by Drain.
	switch rng.IntN(4) {
	case 0:
		time.Sleep(units(rng.IntN(150)))
		wg.Go(func() { _ = p.Close() })
	case 1:
		time.Sleep(units(rng.IntN(150)))
		ctx, cancel := context.WithTimeout(context.Background(), units(rng.IntN(60)))
		_ = p.Drain(ctx)
		cancel()
	case 2:
		time.Sleep(units(rng.IntN(50)))
		if err := p.Drain(context.Background()); err != nil {
			t.Errorf("Drain: %v", err)
		}
	}
	wg.Wait()
	if err := p.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}

	s := p.Stats()
	books(t, s)
	settled := map[string]int64{}
	for label, n := range s.Settled {
		settled[map[string]string{pool.SettledStart: "startup:start", pool.SettledStartCompile: "startup:compile"}[label]] += n
		if !strings.HasPrefix(label, "start") {
			delete(settled, "")
			settled[label] += n
		}
	}
	if !strict || counted["gaveUp"] > 0 { // a context that had ended before Run is not submitted
		delete(settled, "gaveUp")
		delete(counted, "gaveUp")
	}
	if !maps.Equal(settled, counted) {
		t.Errorf("the pool counted %v, the callers %v", settled, counted)
	}
	if c := ledger.Counts(); c.Made != c.Closed || c.Running != 0 {
		t.Errorf("%d VMs were made, %d closed, %d evaluations still run", c.Made, c.Closed, c.Running)
	}
	if b := ledger.Breaches(); len(b) > 0 {
		t.Errorf("the pool broke the VM contract: %q", b)
	}
	return total
}

func total64(m map[string]int64) (sum int64) {
	for _, n := range m {
		sum += n
	}
	return sum
}

// inUnits replaces durations in units, such as 3u.
func inUnits(script string, unit time.Duration) string {
	for _, n := range []int{30, 25, 3, 2, 1} {
		script = strings.ReplaceAll(script, fmt.Sprintf(" %du", n), " "+(time.Duration(n)*unit).String())
	}
	return script
}
