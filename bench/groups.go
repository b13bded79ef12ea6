package bench

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/sandbed/sandbed/bench/loop"
	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/engine/enginetest"
)

// The groups of rows that do not depend on a workload.

var onePlusOne = engine.Request{Script: engine.Script{Source: "1+1"}}

func isTwo(o engine.Outcome, err error) error {
	if err != nil {
		return err
	}
	if o.Class != engine.ClassOK || string(o.Value) != "2" {
		return fmt.Errorf("1+1 gave %s %.60q", o.Label(), o.Value)
	}
	return nil
}

// fresh prices an evaluation in a fresh VM that does next to nothing, against
// making and freeing a runtime. Both take turns, in batches of 20 ms or more.
func (m *meter) fresh() error {
	in, err := m.instance(m.suite.Metering())
	if err != nil {
		return err
	}
	eval := func(n int) (time.Duration, error) { return m.freshEvals(in, n) }
	runtime := func(n int) (time.Duration, error) { return in.FreshRuntime(m.ctx, n) }
	if in.FreshRuntime == nil {
		runtime = nil
	}
	m.progress("fresh")
	evals, err := batchSize(eval)
	if err != nil {
		return err
	}
	runtimes := 0
	if runtime != nil {
		if runtimes, err = batchSize(runtime); err != nil {
			return fmt.Errorf("bench: fresh runtime: %w", err)
		}
	}
	var perEval, perRuntime, gain []float64
	for range m.times(10, 40) {
		took, err := eval(evals)
		if err != nil {
			return err
		}
		perEval = append(perEval, took.Seconds()/float64(evals))
		if runtime == nil {
			continue
		}
		if took, err = runtime(runtimes); err != nil {
			return fmt.Errorf("bench: fresh runtime: %w", err)
		}
		perRuntime = append(perRuntime, took.Seconds()/float64(runtimes))
		gain = append(gain, perRuntime[len(perRuntime)-1]/perEval[len(perEval)-1])
	}
	add := func(name, unit string, values []float64, batch int) {
		s := sample.New(name, unit, values)
		s.Config = map[string]string{"batch": fmt.Sprint(batch)}
		s.Warnings = spreadWarning(values)
		m.add(s)
	}
	add("fresh/op=eval", sample.Seconds, perEval, evals)
	if runtime != nil {
		add("fresh/op=runtime", sample.Seconds, perRuntime, runtimes)
		s := sample.New("fresh/op=gain", sample.Ratio, gain)
		s.Config = map[string]string{"of": "runtime to eval"}
		m.add(s)
	}
	return nil
}

// freshEvals evaluates next to nothing n times.
func (m *meter) freshEvals(in *Instance, n int) (time.Duration, error) {
	start := time.Now()
	for range n {
		if err := isTwo(in.Backend.Run(m.ctx, onePlusOne)); err != nil {
			return 0, &WrongAnswer{"fresh/op=eval", err}
		}
	}
	return time.Since(start), nil
}

// batchSize doubles n until f(n) takes 20 ms.
func batchSize(f func(n int) (time.Duration, error)) (int, error) {
	for n := 1; ; n *= 2 {
		took, err := f(n)
		if err != nil || took >= 20*time.Millisecond {
			return n, err
		}
	}
}

// cold measures starts: of this program up to its first result with and without
// compiled code in the cache, and of one more VM.
func (m *meter) cold() error {
	if len(m.plan.Self) > 0 {
		var cold, warm []float64
		for range m.times(1, 5) {
			m.progress("cold start, empty compile cache")
			dir, err := os.MkdirTemp("", "sandbed-cache-")
			if err != nil {
				return err
			}
			defer os.RemoveAll(dir)
			took, err := m.launch(dir)
			if err != nil {
				return err
			}
			cold = append(cold, took.Seconds())
			m.progress("cold start, compile cache filled")
			for range m.times(5, 4) {
				if took, err = m.launch(dir); err != nil {
					return err
				}
				warm = append(warm, took.Seconds())
			}
		}
		m.add(sample.New("cold/of=process/cache=empty", sample.Seconds, cold))
		m.add(sample.New("cold/of=process/cache=filled", sample.Seconds, warm))
	}
	in, err := m.instance(m.suite.Metering())
	if err != nil || in.NewVM == nil {
		return err
	}
	m.progress("one more VM")
	var made []float64
	for range m.times(20, 200) {
		took, err := m.oneMoreVM(in)
		if err != nil {
			return err
		}
		made = append(made, took.Seconds())
	}
	m.add(sample.New("cold/of=vm", sample.Seconds, made))
	return nil
}

// oneMoreVM returns how long a VM took to be made.
func (m *meter) oneMoreVM(in *Instance) (time.Duration, error) {
	start := time.Now()
	vm, err := in.NewVM(m.ctx)
	if err != nil {
		return 0, fmt.Errorf("bench: one more VM: %w", err)
	}
	took := time.Since(start)
	if err := isTwo(vm.Eval(m.ctx, onePlusOne), nil); err != nil {
		return 0, &WrongAnswer{"cold/of=vm", err}
	}
	if err := vm.Close(); err != nil {
		return 0, fmt.Errorf("bench: closing a VM: %w", err)
	}
	return took, nil
}

// launch starts this program and returns how long it took until its first
// result could be read.
func (m *meter) launch(cacheDir string) (time.Duration, error) {
	args := append(append([]string{}, m.plan.Self[1:]...), "cold", "--cache-dir", cacheDir)
	if m.plan.Workers > 0 {
		args = append(args, "--backend", m.plan.Backend, "--workers", fmt.Sprint(m.plan.Workers))
	}
	cmd := exec.CommandContext(m.ctx, m.plan.Self[0], args...)
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("bench: cold start: %w", err)
	}
	line, err := bufio.NewReaderSize(out, 256).ReadSlice('\n')
	took := time.Since(begun)
	answer := string(line)
	io.Copy(io.Discard, out)
	if werr := cmd.Wait(); werr != nil {
		return 0, fmt.Errorf("bench: cold start: %w", werr)
	}
	if err != nil || answer != "2\n" {
		return 0, &WrongAnswer{"cold/of=process", fmt.Errorf("the process printed %q (%v), want 2", answer, err)}
	}
	return took, nil
}

// Cold opens the sandbox, evaluates 1+1 and prints the result on a line of its
// own: what a process started by [Measure] does.
func Cold(ctx context.Context, s Suite, o Options, stdout io.Writer) error {
	in, err := s.Open(ctx, o)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := in.Backend.Run(ctx, onePlusOne)
	if err := isTwo(out, err); err != nil {
		return &WrongAnswer{"cold/of=process", err}
	}
	_, err = fmt.Fprintf(stdout, "%s\n", out.Value)
	return err
}

// memory runs every case that allocates and compares the largest linear memory
// with what the limits allow.
func (m *meter) memory(corpus []enginetest.Case) error {
	in, err := m.instance(m.suite.Metering())
	if err != nil {
		return err
	}
	var shares []float64
	for _, c := range corpus {
		if c.Group != "alloc" && c.Expected != "limit:memory" {
			continue
		}
		req, ok := c.Request(0, 1)
		if !ok {
			continue
		}
		m.progress("memory %s", c.ID)
		var peaks []float64
		var ceiling int64
		for range m.times(1, 3) {
			o, err := in.Backend.Run(m.ctx, req)
			if err != nil {
				return fmt.Errorf("bench: memory case %s: %w", c.ID, err)
			}
			ceiling = o.Usage.ImageBytes + int64(len(req.Input)) + req.Limits.MemoryBytes
			peaks = append(peaks, float64(o.Usage.PeakMemoryBytes))
			shares = append(shares, float64(o.Usage.PeakMemoryBytes)/float64(ceiling))
			if o.Usage.PeakMemoryBytes > ceiling {
				m.broken("fits: case %s reached %d bytes, allowed are %d", c.ID, o.Usage.PeakMemoryBytes, ceiling)
			}
		}
		s := sample.New("memory/case="+c.ID, sample.Bytes, peaks)
		s.Config = map[string]string{"ceiling": fmt.Sprint(ceiling), "expected": c.Expected}
		m.add(s)
	}
	if len(shares) > 0 {
		m.add(sample.New("memory/figure=share", sample.Share, shares))
	}
	return nil
}

// kill measures, over the cases that end by clock, how long after its deadline
// the VM was free again.
func (m *meter) kill(corpus []enginetest.Case, pressure bool) error {
	in, err := m.instance(m.suite.Metering())
	if err != nil {
		return err
	}
	name := "kill/gc=off"
	if pressure {
		name = "kill/gc=on"
		defer loop.Pressure()()
	}
	rounds := m.times(2, 20)
	var all []float64
	each, other := map[string][]float64{}, map[string]int{}
	for round := range rounds {
		for _, c := range corpus {
			req, ok := c.Request(0, 1)
			if !ok || c.Expected != "limit:wallClock" {
				continue
			}
			m.progress("%s round %d of %d, case %s", name, round+1, rounds, c.ID)
			o, err := in.Backend.Run(m.ctx, req)
			if err != nil {
				return fmt.Errorf("bench: kill case %s: %w", c.ID, err)
			}
			if o.Label() != c.Expected {
				other[c.ID]++
				continue
			}
			each[c.ID] = append(each[c.ID], o.Usage.Overrun.Seconds())
			all = append(all, o.Usage.Overrun.Seconds())
		}
	}
	if len(all) == 0 {
		m.broken("stops: none of the cases that should end by clock did")
		return nil
	}
	for _, c := range corpus {
		if len(each[c.ID]) > 0 {
			s := sample.New(name+"/case="+c.ID, sample.Seconds, each[c.ID])
			if n := other[c.ID]; n > 0 {
				s.Warnings = []string{fmt.Sprintf("%d of %d runs ended before the clock", n, rounds)}
			}
			m.add(s)
		} else if other[c.ID] > 0 {
			m.run.Warnings = append(m.run.Warnings, fmt.Sprintf("%s: case %s never ended by clock", name, c.ID))
		}
	}
	s := sample.New(name, sample.Seconds, all)
	s.Config = map[string]string{"cases": fmt.Sprint(len(each)), "wall_clock": enginetest.ReferenceWallClock.String()}
	m.add(s)
	return nil
}

// burner keeps one builtin busy for about a tenth of a second at a time: a
// product of two numbers of 300,000 bits never asks whether it should stop.
const burner = `const b = (1n << 300000n) - 1n; let r = 0n; for (let i = 0; i < 4; i++) r = b * b; r > b`

// disturbance measures the heartbeat of a loop that has nothing to do while a
// burner runs beside it and the collector is called every 20 ms.
func (m *meter) disturbance() error {
	modes := []string{"none"} // the control: collector and loop without a script
	if len(m.suite.Meterings) == 0 {
		modes = append(modes, "")
	}
	modes = append(modes, m.suite.Meterings...)
	req := engine.Request{Script: engine.Script{Source: burner}, Limits: roomy}
	longest, gone := map[string][]float64{}, map[string][]float64{}
	for range m.times(2, 10) {
		for _, mode := range modes {
			if mode == MeteringCloseOnDone {
				continue
			}
			m.progress("loop beside a burner, metering %s", mode)
			burn := func() error {
				time.Sleep(400 * time.Millisecond)
				return nil
			}
			if mode != "none" {
				in, err := m.instance(mode)
				if err != nil {
					return err
				}
				burn = func() error {
					o, err := in.Backend.Run(m.ctx, req)
					if err == nil && (o.Class != engine.ClassOK || string(o.Value) != "true") {
						err = &WrongAnswer{"loop/metering=" + mode, fmt.Errorf("the burner ended as %s: %.100q", o.Label(), o.Message)}
					}
					return err
				}
			}
			stop := loop.Pressure()
			l := loop.Start()
			err := burn()
			r := l.Stop()
			stop()
			if err != nil {
				return err
			}
			longest[mode] = append(longest[mode], r.Longest.Seconds())
			gone[mode] = append(gone[mode], r.Unavailable.Seconds()/r.Wall.Seconds())
		}
	}
	for _, mode := range modes {
		if len(longest[mode]) == 0 {
			continue
		}
		name := "loop"
		if mode != "" {
			name += "/metering=" + mode
		}
		s := sample.New(name+"/figure=longest", sample.Seconds, longest[mode])
		s.Config = map[string]string{"heartbeat": loop.Beat.String(), "collector": "every " + loop.PressureEvery.String()}
		m.add(s)
		m.add(sample.New(name+"/figure=unavailable", sample.Share, gone[mode]))
	}
	return nil
}
