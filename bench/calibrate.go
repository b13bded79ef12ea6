package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandbed/sandbed/bench/gate"
	"github.com/sandbed/sandbed/bench/sample"
)

// What a machine may show and still be fit to compare on, as shares.
const (
	maxSpread = 0.10 // of a kernel that judges: the middle 80 % of its readings over their median
	maxDrift  = 0.10 // of such a kernel's median, before to after
	maxSteal  = 0.05 // of the processor time that the hypervisor gave to others
)

const (
	kernelReadings = 9
	kernelDropped  = 2 // the first: caches, page faults, clock
)

// kernels are five kinds of work that no sandbox takes part in, each about 5 ms
// on the machine they were written on. All describe the machine; two judge it. The
// others move by themselves where rounds that are paired do not: with memory
// between 5 and 48 ms and interpreter between 6 and 11 ms, the medians of 14 rows
// of a commit against itself stayed within 1 % (EPYC VM, 2026-11-30).
var kernels = []struct {
	name   string
	judges bool
	run    func()
}{
	{"arithmetic", true, arithmetic},
	{"memory", false, chase},
	{"collector", false, collect},
	{"interpreter", false, interpret},
	{"timer", true, wake},
}

// Calibration is what the kernels took at one time. It describes a machine and
// says whether it is fit; it never divides a paired comparison.
type Calibration struct {
	values [][]float64 // seconds, by kernel
	ticks  procStat
}

// Calibrate times every kernel, about a quarter of a second in all. Nothing else should
// run meanwhile.
func Calibrate(ctx context.Context) (Calibration, error) {
	c := Calibration{ticks: readProcStat()}
	for _, k := range kernels {
		var values []float64
		runtime.GC() // what came before is not this kernel's
		for i := range kernelReadings {
			if err := context.Cause(ctx); err != nil {
				return Calibration{}, err
			}
			start := time.Now()
			k.run()
			if took := time.Since(start).Seconds(); i >= kernelDropped {
				values = append(values, took)
			}
		}
		c.values = append(c.values, values)
	}
	return c, nil
}

// Samples are the readings as rows of a run; when is "before" or "after".
func (c Calibration) Samples(when string) []sample.Sample {
	var out []sample.Sample
	for i, k := range kernels {
		s := sample.New("calibration/kernel="+k.name+"/when="+when, sample.Seconds, c.values[i])
		s.Warnings = unsteady(c.values[i], maxSpread)
		out = append(out, s)
	}
	return out
}

// Fitness judges the machine by calibrations before and after a run.
func (c Calibration) Fitness(after Calibration) gate.Fitness {
	f := gate.Fitness{Steal: after.ticks.stealSince(c.ticks), PSI: pressure()}
	for i, k := range kernels {
		r := gate.Kernel{
			Name: k.name, Before: sample.Quantile(c.values[i], 0.5), After: sample.Quantile(after.values[i], 0.5),
			Spread: max(spread(c.values[i]), spread(after.values[i])),
		}
		r.Drift = r.After/r.Before - 1
		f.Kernels = append(f.Kernels, r)
		if !k.judges {
			continue
		}
		if r.Spread > maxSpread {
			f.Reasons = append(f.Reasons, fmt.Sprintf("kernel %s spreads over %.0f %%, more than %.0f %%", k.name, 100*r.Spread, 100*maxSpread))
		}
		if r.Drift > maxDrift || r.Drift < -maxDrift {
			f.Reasons = append(f.Reasons, fmt.Sprintf("kernel %s drifted by %+.0f %%, more than %.0f %%", k.name, 100*r.Drift, 100*maxDrift))
		}
	}
	if f.Steal > maxSteal {
		f.Reasons = append(f.Reasons, fmt.Sprintf("the hypervisor gave %.0f %% of the processor time to others, more than %.0f %%", 100*f.Steal, 100*maxSteal))
	}
	f.Fit = len(f.Reasons) == 0
	return f
}

// spread is how far the middle 80 % of values lie apart, as a share of their median.
func spread(values []float64) float64 {
	median := sample.Quantile(values, 0.5)
	if len(values) < 2 || median == 0 {
		return 0
	}
	return (sample.Quantile(values, 0.9) - sample.Quantile(values, 0.1)) / median
}

// arithmetic is dependent steps in registers.
func arithmetic() { runtime.KeepAlive(xorshift(88172645463325252)) }

func xorshift(x uint64) uint64 {
	for range 2_000_000 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		x++
	}
	return x
}

// ring is one cycle through 8 MiB in random order: beyond the L2 cache of
// processors that servers have (at most 2 MiB in 2026).
var ring = sync.OnceValue(func() []uint32 {
	order := rand.New(rand.NewPCG(1, 1)).Perm(2 << 20)
	next := make([]uint32, len(order))
	for i, at := range order {
		next[at] = uint32(order[(i+1)%len(order)])
	}
	return next
})

// chase is dependent loads that miss the L2 cache.
func chase() {
	next, at := ring(), uint32(0)
	for range 300_000 {
		at = next[at]
	}
	runtime.KeepAlive(at)
}

// collect allocates a live tree and garbage, and collects. It does so on one processor:
// shared between two, the same work takes a quarter more or less processor time from one
// reading to the next; on one, 1 to 4 % (EPYC, 2 cores, 2026-11-30).
func collect() {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	type node struct {
		left, right *node
		_           [4]uint64
	}
	var grow func(depth int) *node
	grow = func(depth int) *node {
		if depth == 0 {
			return &node{}
		}
		return &node{left: grow(depth - 1), right: grow(depth - 1)}
	}
	for range 9 {
		live := grow(12)
		grow(12)
		runtime.GC()
		runtime.KeepAlive(live)
	}
}

// interpret is a bytecode interpreter that adds up an array of linear memory:
// what compiled QuickJS spends its time on, dispatch and bounded loads.
func interpret() {
	const (
		load = iota // push memory[top]
		add         // add the two on top
		push        // push the counter
		mask        // keep the top within memory
		jump        // count down; start again unless zero
	)
	code := []byte{push, mask, load, add, push, mask, load, add, jump}
	memory := make([]uint64, 1024)
	var stack [16]uint64
	sp, pc, left := 0, 0, uint64(600_000)
	for {
		switch op := code[pc]; op {
		case load:
			stack[sp] = memory[stack[sp]]
		case add:
			stack[sp-1] += stack[sp]
			sp--
		case push:
			sp++
			stack[sp] = left
		case mask:
			stack[sp] &= uint64(len(memory) - 1)
		case jump:
			if left--; left == 0 {
				runtime.KeepAlive(stack[0])
				return
			}
			memory[left&1023] = left
			pc = -1
		}
		pc++
	}
}

// wake is how long five waits of a millisecond take: how late timers are.
func wake() {
	for range 5 {
		time.Sleep(time.Millisecond)
	}
}

// procStat is the processor time of the machine since it started, in ticks.
type procStat struct{ total, steal uint64 }

// stealSince is the share of the processor time since then that the hypervisor
// gave to others; 0 where the system does not say.
func (p procStat) stealSince(then procStat) float64 {
	if p.total <= then.total {
		return 0
	}
	return float64(p.steal-then.steal) / float64(p.total-then.total)
}

func readProcStat() procStat {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return procStat{}
	}
	return parseProcStat(string(text))
}

// parseProcStat reads the first line: user nice system idle iowait irq softirq
// steal; what follows is part of user and nice (proc_stat(5)).
func parseProcStat(text string) (p procStat) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return procStat{}
	}
	for i, f := range fields[1:9] {
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return procStat{}
		}
		p.total += n
		if i == 7 {
			p.steal = n
		}
	}
	return p
}

// pressure is the share of the last ten seconds in which something waited for a
// processor, in percent as the system says it; −1 where it does not.
func pressure() float64 {
	text, err := os.ReadFile("/proc/pressure/cpu")
	if err != nil {
		return -1
	}
	return parsePressure(string(text))
}

func parsePressure(text string) float64 {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "some" {
			continue
		}
		if v, ok := strings.CutPrefix(fields[1], "avg10="); ok {
			if n, err := strconv.ParseFloat(v, 64); err == nil {
				return n
			}
		}
	}
	return -1
}
