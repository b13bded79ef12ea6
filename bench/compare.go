package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandbed/sandbed/bench/loop"
	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/bench/workload"
	"github.com/sandbed/sandbed/engine"
)

// The groups of rows that compare the backends of a sandbox. They open those
// they compare, under the default metering, whatever the plan's backend is.

// place is a backend with its number of workers.
type place struct {
	backend string
	workers int
}

// inProcess says that evaluations run on the goroutine that asks for them.
func (p place) inProcess() bool { return p.backend == BackendInProcess }

// key is the place in the name of a row.
func (p place) key() string {
	if p.workers == 0 {
		return "backend=" + p.backend
	}
	return fmt.Sprintf("backend=%s/workers=%d", p.backend, p.workers)
}

// offers says whether the suite has a backend; one that names none is in-process.
func (s Suite) offers(backend string) bool {
	return slices.Contains(s.Backends, backend) || len(s.Backends) == 0 && backend == BackendInProcess
}

// offered are those of places that the suite offers.
func (m *meter) offered(places ...place) []place {
	return slices.DeleteFunc(places, func(p place) bool { return !m.suite.offers(p.backend) })
}

// comparedOptions opens a place of a comparison.
func (m *meter) comparedOptions(p place) Options {
	o := Options{Metering: m.suite.Metering(), Backend: p.backend, Workers: p.workers}
	if len(m.suite.Backends) == 0 {
		o.Backend = ""
	}
	return o
}

// compare opens places for f and closes them afterwards.
func (m *meter) compare(places []place, f func(open map[place]*Instance) error) (err error) {
	open := map[place]*Instance{}
	defer func() {
		for _, in := range open {
			if cerr := in.Close(); cerr != nil && err == nil {
				err = fmt.Errorf("bench: closing a backend: %w", cerr)
			}
		}
	}()
	for _, p := range places {
		m.progress("opening %s", p.key())
		in, err := m.start(m.comparedOptions(p))
		if err != nil {
			return err
		}
		open[p] = in
	}
	return f(open)
}

// reshapeTime is how long one of the reshapes of the loop group is meant to take.
const reshapeTime = 300 * time.Millisecond

// reshapeTask is a CPU-bound reshape of n rounds.
func (m *meter) reshapeTask(n int) (task, error) {
	w := workload.Reshapes(n)
	c, err := w.Case(workload.Medium, m.plan.Seed)
	return task{row: "workload=reshapes", req: engine.Request{Script: w.Script, Input: c.Input, Limits: roomy}, check: c.Check}, err
}

// shortTask is a short script without input, of n rounds.
func (m *meter) shortTask(n int) (task, error) {
	steps := n * 1000
	return task{
		row:   "script=short",
		req:   engine.Request{Script: engine.Script{Source: fmt.Sprintf("let s = 0; for (let i = 0; i < %d; i++) s += i; s", steps)}, Limits: roomy},
		check: isText(fmt.Sprint(steps * (steps - 1) / 2)),
	}, nil
}

// sized picks the number of rounds with which a task takes about the wanted time
// on this machine.
func (m *meter) sized(in *Instance, want time.Duration, rounds func(n int) (task, error)) (t task, n int, err error) {
	run := func(n int) (took time.Duration, err error) {
		t, err := rounds(n)
		for range 5 {
			if err == nil {
				var o engine.Outcome
				o, _, err = m.eval(in, t)
				if took == 0 || o.Usage.Script < took {
					took = o.Usage.Script
				}
			}
		}
		return took, err
	}
	// The difference of two lengths is the price of a round without the start.
	const few, more = 2, 10
	a, err := run(few)
	if err != nil {
		return t, 0, err
	}
	b, err := run(more)
	if err != nil {
		return t, 0, err
	}
	n = 1
	if per := (b - a) / (more - few); per > 0 {
		n = max(1, min(int(want/per), 10_000))
	}
	t, err = rounds(n)
	return t, n, err
}

// concurrently is how many reshapes the loop group has going.
const concurrently = 4

// window is what a loop saw while reshapes ran.
type window struct {
	wall, cpu time.Duration
	loop      loop.Report
	control   time.Duration // longest gap of a loop with nothing to do, in the same window
	stops     loop.Stops
}

// watch runs work beside two loops, the first of which is work's to use.
func watch(pressure bool, work func(*loop.Loop) error) (w window, err error) {
	runtime.GC() // whatever was left behind is not this window's
	since := loop.WatchStops()
	if pressure {
		defer loop.Pressure()()
	}
	control, l := loop.Start(), loop.Start()
	cpu, _ := cpuTime()
	start := time.Now()
	err = work(l)
	w.wall = time.Since(start)
	if now, ok := cpuTime(); ok {
		w.cpu = now - cpu
	}
	w.loop, w.control, w.stops = l.Stop(), control.Stop().Longest, since()
	return w, err
}

// onLoop is how a host with one loop runs n evaluations at once: in-process each
// is a task of the loop itself; in a pool the loop posts it and is told when it
// is done.
func (m *meter) onLoop(l *loop.Loop, in *Instance, inProcess bool, t task, n int) error {
	errs := make([]error, n)
	var done sync.WaitGroup
	for i := range n {
		done.Go(func() { errs[i] = m.postAndWait(l, in, inProcess, t) })
	}
	done.Wait()
	return errors.Join(errs...)
}

func (m *meter) postAndWait(l *loop.Loop, in *Instance, inProcess bool, t task) error {
	done := make(chan error, 1)
	l.Post(func() {
		if inProcess {
			_, _, err := m.eval(in, t)
			done <- err
			return
		}
		go func() {
			_, _, err := m.eval(in, t)
			l.Post(func() { done <- err })
		}()
	})
	return <-done
}

// reshapes measures four concurrent CPU-bound reshapes: how long they take, and
// how long the host's loop is gone meanwhile.
func (m *meter) reshapes() error {
	places := m.offered(place{BackendInProcess, 0}, place{BackendPool, 1}, place{BackendPool, 2}, place{BackendPool, 4}, place{BackendPool, 8}, place{BackendProcess, 4})
	if m.plan.Quick {
		places = m.offered(place{BackendInProcess, 0}, place{BackendPool, 4})
	}
	if len(places) == 0 {
		return nil
	}
	const nothing = "nothing" // an idle loop: the control of the machine
	return m.compare(places, func(open map[place]*Instance) error {
		t, times, err := m.sized(open[places[0]], reshapeTime, m.reshapeTask)
		if err != nil {
			return err
		}
		for _, p := range places { // faults pages in, in every worker
			if err := errors.Join(m.atOnce(open[p], t, max(1, p.workers))...); err != nil {
				return err
			}
		}
		type row struct{ of, gc string }
		seen := map[row][]window{}
		var order []row
		note := func(r row, w window) {
			if seen[r] == nil {
				order = append(order, r)
			}
			seen[r] = append(seen[r], w)
		}
		rounds := m.times(1, 8)
		for round := range rounds {
			for _, gc := range []string{"off", "on"} {
				m.progress("loop beside nothing, collector pressure %s, round %d of %d", gc, round+1, rounds)
				w, _ := watch(gc == "on", func(*loop.Loop) error {
					time.Sleep(reshapeTime)
					return nil
				})
				note(row{nothing, gc}, w)
				for _, p := range places {
					m.progress("loop beside %d reshapes, %s, collector pressure %s, round %d of %d", concurrently, p.key(), gc, round+1, rounds)
					w, err := watch(gc == "on", func(l *loop.Loop) error {
						return m.onLoop(l, open[p], p.inProcess(), t, concurrently)
					})
					if err != nil {
						return err
					}
					note(row{"reshapes/" + p.key(), gc}, w)
				}
			}
		}
		for _, r := range order {
			name := "loop/of=" + r.of + "/gc=" + r.gc
			config := map[string]string{"heartbeat": loop.Beat.String()}
			if r.of != nothing {
				config["concurrent"], config["rounds_in_script"] = fmt.Sprint(concurrently), fmt.Sprint(times)
			}
			m.addWindows(name, seen[r], config)
			// One round's gaps, to be drawn: those of the last.
			if last := seen[r][len(seen[r])-1].loop; r.of != nothing {
				trace := sample.Trace{Name: strings.Replace(name, "loop/", "gaps/", 1), Seconds: last.Wall.Seconds(), Gaps: [][2]float64{}}
				for _, g := range last.Gaps {
					trace.Gaps = append(trace.Gaps, [2]float64{g.At.Seconds(), g.Length.Seconds()})
				}
				m.run.Traces = append(m.run.Traces, trace)
			}
		}
		// The bound on the wall: what the processors have to give.
		for _, p := range places {
			if p.backend == BackendProcess {
				continue // the time of other processes is not this one's
			}
			r := row{"reshapes/" + p.key(), "off"}
			processors := min(max(p.workers, 1), concurrently, runtime.GOMAXPROCS(0))
			var ideal, stretch []float64
			for _, w := range seen[r] {
				if w.cpu > 0 {
					ideal = append(ideal, w.cpu.Seconds()/float64(processors))
					stretch = append(stretch, w.wall.Seconds()*float64(processors)/w.cpu.Seconds())
				}
			}
			if len(ideal) == 0 {
				continue
			}
			name := "loop/of=" + r.of + "/gc=off"
			config := map[string]string{"processors": fmt.Sprint(processors)}
			s := sample.New(name+"/figure=ideal", sample.Seconds, ideal)
			s.Config = config
			m.add(s)
			s = sample.New(name+"/figure=stretch", sample.Ratio, stretch)
			s.Config = map[string]string{"of": "wall to ideal, which is the processor time ÷ processors", "processors": fmt.Sprint(processors)}
			m.add(s)
		}
		return nil
	})
}

// atOnce runs t n times at once.
func (m *meter) atOnce(in *Instance, t task, n int) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { _, _, errs[i] = m.eval(in, t) })
	}
	wg.Wait()
	return errs
}

func (m *meter) addWindows(name string, windows []window, config map[string]string) {
	for _, f := range []struct {
		figure, unit string
		of           func(window) float64
	}{
		{"wall", sample.Seconds, func(w window) float64 { return w.wall.Seconds() }},
		{"longest", sample.Seconds, func(w window) float64 { return w.loop.Longest.Seconds() }},
		{"unavailable", sample.Share, func(w window) float64 { return w.loop.Unavailable.Seconds() / w.loop.Wall.Seconds() }},
		{"control", sample.Seconds, func(w window) float64 { return w.control.Seconds() }},
		{"stopping", sample.Seconds, func(w window) float64 { return w.stops.Longest.Seconds() }},
	} {
		values := make([]float64, len(windows))
		for i, w := range windows {
			values[i] = f.of(w)
		}
		s := sample.New(name+"/figure="+f.figure, f.unit, values)
		s.Config = config
		m.add(s)
	}
}

// recordBytes is the size of the result that the decision record measures:
// 3.68 MiB.
const recordBytes = 368 << 20 / 100

func sizeName(n int) string {
	switch {
	case n == recordBytes:
		return "3.68MiB"
	case n >= 1<<20:
		return fmt.Sprintf("%dMiB", n>>20)
	}
	return fmt.Sprintf("%dKiB", n>>10)
}

var (
	marshalPlaces = []place{{BackendInProcess, 0}, {BackendPool, 1}, {BackendProcess, 1}}
	marshalSizes  = []int{1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, recordBytes, 16 << 20}
)

func marshalNames(size int) []string {
	return []string{"marshal/dir=in/size=" + sizeName(size), "marshal/dir=out/size=" + sizeName(size)}
}

// marshalTasks take a text of that size in, and give one out.
func marshalTasks(size int) []task {
	text := json.RawMessage(`"` + strings.Repeat("x", size-2) + `"`)
	limits := roomy
	limits.MaxInputBytes, limits.MaxOutputBytes = 64<<20, 64<<20
	names := marshalNames(size)
	return []task{{
		row: names[0], req: engine.Request{Script: engine.Script{Source: "input.length"}, Input: text, Limits: limits},
		check: isText(fmt.Sprint(size - 2)),
	}, {
		row: names[1], req: engine.Request{Script: engine.Script{Source: fmt.Sprintf("'x'.repeat(%d)", size-2)}, Limits: limits},
		check: isText(string(text)),
	}}
}

// marshal measures what it costs to get a text into a script and out of it. The
// handover is what is left of a call without the VM's own parsing, script and
// dump: the way to the worker and back, the copy, and making the VM fresh again.
func (m *meter) marshal() error {
	places := m.offered(slices.Clone(marshalPlaces)...)
	sizes := marshalSizes
	if m.plan.Quick {
		sizes = []int{1 << 10, 1 << 20, recordBytes}
	}
	if len(places) == 0 {
		return nil
	}
	return m.compare(places, func(open map[place]*Instance) error {
		for _, size := range sizes {
			for _, t := range marshalTasks(size) {
				if err := m.marshalOne(open, places, t, size); err != nil {
					return err
				}
			}
		}
		if m.plan.Quick {
			return nil
		}
		return m.decoding()
	})
}

func isText(want string) func(json.RawMessage) error {
	return func(value json.RawMessage) error {
		if string(value) != want {
			return fmt.Errorf("got %d bytes, %.20q…, want %d, %.20q…", len(value), value, len(want), want)
		}
		return nil
	}
}

// marshalOne times one text in every place in turn, and pairs each place with
// the one in-process.
func (m *meter) marshalOne(open map[place]*Instance, places []place, t task, size int) error {
	m.progress("%s", t.row)
	type cost struct{ call, handover float64 } // seconds
	batch := func(in *Instance, n int) (c cost, err error) {
		for range n {
			o, took, err := m.eval(in, t) // took is without the check of the answer
			if err != nil {
				return c, err
			}
			c.call += took.Seconds()
			c.handover += (took - o.Usage.Seed - o.Usage.Script - o.Usage.Dump).Seconds()
		}
		return cost{c.call / float64(n), c.handover / float64(n)}, nil
	}
	n := map[place]int{}
	for _, p := range places {
		var err error
		n[p], err = batchSize(func(n int) (time.Duration, error) {
			c, err := batch(open[p], n)
			return time.Duration(c.call * float64(n) * float64(time.Second)), err
		})
		if err != nil {
			return err
		}
	}
	calls, handovers := map[place][]float64{}, map[place][]float64{}
	rounds := m.times(3, 15)
	for round := range rounds {
		order := slices.Clone(places)
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, p := range order {
			c, err := batch(open[p], n[p])
			if err != nil {
				return err
			}
			calls[p], handovers[p] = append(calls[p], c.call), append(handovers[p], c.handover)
		}
	}
	base := place{BackendInProcess, 0}
	for _, p := range places {
		config := map[string]string{"batch": fmt.Sprint(n[p]), "bytes": fmt.Sprint(size)}
		add := func(figure, unit string, values []float64) {
			s := sample.New(t.row+"/backend="+p.backend+figure, unit, values)
			s.Config = config
			s.Warnings = spreadWarning(values)
			m.add(s)
		}
		add("", sample.Seconds, calls[p])
		add("/figure=handover", sample.Seconds, handovers[p])
		if p == base || calls[base] == nil {
			continue
		}
		over, ratio := make([]float64, rounds), make([]float64, rounds)
		for i := range rounds {
			over[i] = (handovers[p][i] - handovers[base][i]) * (1 << 20) / float64(size)
			ratio[i] = calls[p][i] / calls[base][i]
		}
		if size >= 1<<20 { // below, it is the price of a call by another name
			s := sample.New(t.row+"/backend="+p.backend+"/figure=over", sample.Seconds, over)
			s.Config = map[string]string{"per": "MiB of handover, beyond in-process"}
			m.add(s)
		}
		s := sample.New(t.row+"/backend="+p.backend+"/figure=ratio", sample.Ratio, ratio)
		s.Config = map[string]string{"of": "call to call in-process"}
		m.add(s)
	}
	return nil
}

// decoding prices what a backend would pay on top if values crossed and not
// their text: reading the record's result into Go values, and writing it.
func (m *meter) decoding() error {
	m.progress("decoding %s", sizeName(recordBytes))
	const row = `{"id":123456,"name":"Ada Lovelace","city":"London","total":1234.56,"paid":true}`
	text := []byte("[" + strings.Repeat(row+",", recordBytes/(len(row)+1)) + "null]")
	var decode, encode []float64
	for range 15 {
		var v any
		start := time.Now()
		if err := json.Unmarshal(text, &v); err != nil {
			return fmt.Errorf("bench: decoding: %w", err)
		}
		decode = append(decode, time.Since(start).Seconds())
		start = time.Now()
		if _, err := json.Marshal(v); err != nil {
			return fmt.Errorf("bench: encoding: %w", err)
		}
		encode = append(encode, time.Since(start).Seconds())
	}
	m.add(sample.New("marshal/of=decoding/size="+sizeName(recordBytes), sample.Seconds, decode))
	m.add(sample.New("marshal/of=encoding/size="+sizeName(recordBytes), sample.Seconds, encode))
	return nil
}

// hogs never end: one asks the interrupt handler, one is a builtin that does not.
var hogs = []string{"for(;;);", `for(;;)"a".repeat(1000000).indexOf("a".repeat(400000)+"b")`}

// next measures how long after a kill the only worker gives its next result.
func (m *meter) next() error {
	type config struct {
		backend string
		spare   int
		n       int
	}
	for _, c := range []config{{BackendPool, 0, 200}, {BackendProcess, 0, 20}, {BackendProcess, 1, 20}} {
		if !m.suite.offers(c.backend) {
			continue
		}
		name := fmt.Sprintf("kill/to=next/backend=%s/spare=%d", c.backend, c.spare)
		o := m.comparedOptions(place{c.backend, 1})
		o.Spare = c.spare
		in, err := m.start(o)
		if err != nil {
			return err
		}
		var values []float64
		for i := range c.n {
			m.progress("%s, %d of %d", name, i+1, c.n)
			took, err := m.killAndNext(in, hogs[i%len(hogs)])
			if err == nil {
				err = in.Backend.Warm(m.ctx) // the spare one, before the next kill
			}
			if err != nil {
				in.Close() // the first error is the one to report
				return &WrongAnswer{name, err}
			}
			values = append(values, took.Seconds())
		}
		if err := in.Close(); err != nil {
			return fmt.Errorf("bench: closing a backend: %w", err)
		}
		s := sample.New(name, sample.Seconds, values)
		s.Config = map[string]string{"workers": "1", "kill": "by the caller's context"}
		m.add(s)
	}
	return nil
}

// killAndNext kills a run of the only worker and returns how long after the kill
// the next result was there.
func (m *meter) killAndNext(in *Instance, hog string) (time.Duration, error) {
	ctx, kill := context.WithCancel(m.ctx)
	defer kill()
	started := make(chan struct{})
	var once sync.Once
	killed := make(chan error, 1)
	go func() {
		o, err := in.Backend.Run(ctx, engine.Request{
			Script: engine.Script{Source: hog}, Limits: roomy,
			OnScriptStart: func(time.Time) { once.Do(func() { close(started) }) },
		})
		if err == nil && o.Class != engine.ClassCanceled {
			err = fmt.Errorf("the run to be killed ended as %s: %.200q", o.Label(), o.Message)
		}
		killed <- err
	}()
	select {
	case <-started:
	case err := <-killed:
		return 0, errors.Join(errors.New("the run to be killed never began"), err)
	}
	time.Sleep(2 * time.Millisecond) // into the thick of it
	start := time.Now()
	kill()
	o, err := in.Backend.Run(m.ctx, onePlusOne)
	took := time.Since(start)
	return took, errors.Join(isTwo(o, err), <-killed)
}

// coldWorkers measures the first result of a pool whose only worker has not
// started, with compiled code in the cache, and of a process also without.
func (m *meter) coldWorkers() error {
	type config struct {
		backend string
		empty   bool
		n       int
	}
	for _, c := range []config{{BackendPool, false, 20}, {BackendProcess, false, 20}, {BackendProcess, true, 3}} {
		if !m.suite.offers(c.backend) {
			continue
		}
		name := "cold/of=worker/backend=" + c.backend + "/cache=filled"
		if c.empty {
			name = "cold/of=worker/backend=" + c.backend + "/cache=empty"
		}
		var values []float64
		for i := range c.n {
			m.progress("%s, %d of %d", name, i+1, c.n)
			took, err := m.coldWorker(c.backend, c.empty)
			if err != nil {
				return &WrongAnswer{name, err}
			}
			values = append(values, took.Seconds())
		}
		m.add(sample.New(name, sample.Seconds, values))
	}
	return nil
}

func (m *meter) coldWorker(backend string, empty bool) (took time.Duration, err error) {
	o := m.comparedOptions(place{backend, 1})
	if empty {
		dir, err := os.MkdirTemp("", "sandbed-cache-")
		if err != nil {
			return 0, err
		}
		defer os.RemoveAll(dir)
		o.CacheDir = dir
	}
	in, err := m.suite.Open(m.ctx, o)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	start := time.Now()
	out, err := in.Backend.Run(m.ctx, onePlusOne)
	return time.Since(start), isTwo(out, err)
}

// shortTime is how long the short script of the fairness group is meant to take.
const shortTime = time.Millisecond

// fairness measures how long a short script waits beside hogs that leave one
// worker free, and alone. In-process all of them are tasks of the host's loop.
func (m *meter) fairness() error {
	places := m.offered(place{BackendInProcess, 0}, place{BackendPool, 2}, place{BackendPool, 4}, place{BackendPool, 8}, place{BackendProcess, 4})
	if len(places) == 0 {
		return nil
	}
	return m.compare(places, func(open map[place]*Instance) error {
		hog, _, err := m.sized(open[places[0]], reshapeTime, m.reshapeTask)
		if err != nil {
			return err
		}
		short, times, err := m.sized(open[places[0]], shortTime, m.shortTask)
		if err != nil {
			return err
		}
		for _, p := range places {
			busy, n := p.workers-1, 200
			if p.inProcess() {
				busy, n = 3, 8 // each waits for a hog or more
			}
			for _, hogs := range []int{0, busy} {
				figure := "alone"
				if hogs > 0 {
					figure = "beside"
				}
				m.progress("fairness, %s, %s", p.key(), figure)
				values, err := m.waits(open[p], p.inProcess(), hog, hogs, short, n)
				if err != nil {
					return err
				}
				s := sample.New("fair/"+p.key()+"/figure="+figure, sample.Seconds, values)
				s.Config = map[string]string{"hogs": fmt.Sprint(hogs), "rounds_in_script": fmt.Sprint(times)}
				m.add(s)
			}
		}
		return nil
	})
}

// waits runs the short task n times, one after another, while hogs run without a
// pause, and returns how long each took to come back.
func (m *meter) waits(in *Instance, inProcess bool, hog task, hogs int, short task, n int) (values []float64, err error) {
	l := loop.Start()
	defer l.Stop()
	var stop atomic.Bool
	var done sync.WaitGroup
	errs := make([]error, hogs)
	for i := range hogs {
		done.Go(func() {
			for !stop.Load() && errs[i] == nil {
				errs[i] = m.postAndWait(l, in, inProcess, hog)
			}
		})
	}
	if hogs > 0 {
		time.Sleep(reshapeTime / 10) // until they are at it
	}
	for range n {
		start := time.Now()
		if err = m.postAndWait(l, in, inProcess, short); err != nil {
			break
		}
		values = append(values, time.Since(start).Seconds())
		time.Sleep(2 * loop.Beat)
	}
	stop.Store(true)
	done.Wait()
	return values, errors.Join(append(errs, err)...)
}
