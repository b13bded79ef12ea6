package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/bench/workload"
	"github.com/sandbed/sandbed/engine"
)

// What the hosts below take, in virtual time.
const (
	mediumRound = 5 * time.Millisecond // one reshape of medium size
	shortRound  = 100 * time.Microsecond
	startTime   = 80 * time.Millisecond // of a worker
	killTime    = 3 * time.Millisecond
	perMiB      = 1 << 20 * time.Nanosecond // of marshalling: a nanosecond a byte
)

// host makes backends that take exact virtual times: in-process on the caller's
// goroutine, else on workers.
type host struct {
	t        *testing.T
	reshaped []byte // the answer to every reshape
	spoil    func(Options, engine.Request, *engine.Outcome)
	mu       sync.Mutex
	open     int
	opened   []Options
}

func newHost(t *testing.T, spoil func(Options, engine.Request, *engine.Outcome)) *host {
	c, err := workload.Reshapes(1).Case(workload.Medium, 7)
	if err != nil {
		t.Fatal(err)
	}
	return &host{t: t, reshaped: c.Want, spoil: spoil}
}

func (h *host) suite(backends ...string) Suite {
	return Suite{Engine: "host", Backends: backends, Open: func(_ context.Context, o Options) (*Instance, error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.open++
		h.opened = append(h.opened, o)
		b := &hosted{host: h, o: o, workers: make(chan bool, max(1, o.Workers)+o.Spare)}
		for range cap(b.workers) {
			b.workers <- o.Workers == 0 // a worker is cold, in-process needs no start
		}
		return &Instance{Backend: b, Close: func() error {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.open--
			return nil
		}}, nil
	}}
}

// hosted is a backend; workers holds the free ones: true for a warm one.
type hosted struct {
	host    *host
	o       Options
	workers chan bool
}

func (b *hosted) Warm(context.Context) error {
	for range cap(b.workers) {
		<-b.workers
		b.workers <- true
	}
	return nil
}

func (b *hosted) Close() error { return nil }

func (b *hosted) Run(ctx context.Context, r engine.Request) (engine.Outcome, error) {
	warm := true
	if b.o.Workers > 0 {
		warm = <-b.workers
		if !warm {
			time.Sleep(startTime)
		}
		warm = true
		defer func() { b.workers <- warm }()
	}
	o := engine.Outcome{Class: engine.ClassOK}
	n, bytes := 0, len(r.Input)
	_, loop, _ := strings.Cut(r.Script.Source, "let n = 1; n < ")
	steps := 0
	_, err := fmt.Sscanf(r.Script.Source, "let s = 0; for (let i = 0; i < %d;", &steps)
	short := err == nil
	switch _, err := fmt.Sscanf(loop, "%d;", &n); {
	case err == nil:
		o.Value = b.host.reshaped
		o.Usage.Script = time.Duration(n) * mediumRound
		time.Sleep(o.Usage.Script)
	case short:
		o.Value = fmt.Append(nil, steps*(steps-1)/2)
		o.Usage.Script = time.Duration(steps) / 1000 * shortRound
		time.Sleep(o.Usage.Script)
	case slices.Contains(hogs, r.Script.Source):
		r.OnScriptStart(time.Now())
		<-ctx.Done()
		time.Sleep(killTime)
		o.Class = engine.ClassCanceled
		warm = b.o.Backend != BackendProcess || b.o.Spare > 0
	case r.Script.Source == "1+1":
		o.Value = []byte("2")
	default:
		text, ok := marshalled(r)
		if !ok {
			b.host.t.Errorf("asked for %q", r.Script.Source)
		}
		o.Value = text
		bytes += len(text)
		o.Usage.Script, o.Usage.Dump = time.Millisecond, time.Millisecond
		// A worker costs twice the handover of the host itself, a process thrice.
		times := map[string]int{BackendInProcess: 1, BackendPool: 2, BackendProcess: 3}[b.o.Backend]
		time.Sleep(2*time.Millisecond + time.Duration(times)*perMiB*time.Duration(bytes)/(1<<20))
	}
	if b.host.spoil != nil {
		b.host.spoil(b.o, r, &o)
	}
	return o, nil
}

// compared runs one group over hosts, in virtual time, and gives what it added.
func compared(t *testing.T, quick bool, group func(*meter) error, backends ...string) sample.Run {
	t.Helper()
	var run sample.Run
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, nil)
		m := &meter{ctx: t.Context(), suite: h.suite(backends...), plan: Plan{Quick: quick, Seed: 7}, open: map[string]*Instance{}}
		if err := group(m); err != nil {
			t.Fatal(err)
		}
		if h.open != 0 {
			t.Errorf("%d backends were left open", h.open)
		}
		run = m.run
	})
	if err := run.Validate(); err != nil {
		t.Error(err)
	}
	return run
}

// want compares the values of a row with a number, to a tolerance.
func want(t *testing.T, r sample.Run, name string, value, tolerance float64) {
	t.Helper()
	s, ok := r.Find(name)
	if !ok {
		t.Errorf("no row %s in\n%s", name, strings.Join(names(r), "\n"))
		return
	}
	for _, v := range s.Values {
		if math.Abs(v-value) > tolerance {
			t.Errorf("%s: got %v, want %v ± %v", name, v, value, tolerance)
			return
		}
	}
}

var everyBackend = []string{BackendInProcess, BackendPool, BackendProcess}

// TestReshapeWindows: in-process the four reshapes follow one another on the
// loop, which is gone; on workers they run side by side, and the loop stays.
func TestReshapeWindows(t *testing.T) {
	r := compared(t, false, (*meter).reshapes, everyBackend...)
	const reshape, ms = 0.3, 0.001
	for _, gc := range []string{"off", "on"} {
		for place, wall := range map[string]float64{
			"backend=inproc": 4 * reshape, "backend=pool/workers=1": 4 * reshape, "backend=pool/workers=2": 2 * reshape,
			"backend=pool/workers=4": reshape, "backend=pool/workers=8": reshape, "backend=process/workers=4": reshape,
		} {
			name := "loop/of=reshapes/" + place + "/gc=" + gc
			want(t, r, name+"/figure=wall", wall, ms)
			want(t, r, name+"/figure=control", ms, ms/2)
			if place == "backend=inproc" {
				s, _ := r.Find(name + "/figure=longest")
				if s.Value < reshape || s.Value > 4*reshape+2*ms {
					t.Errorf("%s: longest gap %v, want one reshape to four", name, s.Value)
				}
				want(t, r, name+"/figure=unavailable", 1, 0.02)
				continue
			}
			want(t, r, name+"/figure=longest", ms, ms/2)
			want(t, r, name+"/figure=unavailable", 0, 0)
		}
		want(t, r, "loop/of=nothing/gc="+gc+"/figure=longest", ms, ms/2)
	}
	if s, ok := r.Find("loop/of=reshapes/backend=pool/workers=4/gc=off/figure=wall"); !ok || s.Count != 8 || s.Config["rounds_in_script"] != "60" {
		t.Errorf("got %+v, want 8 windows with scripts of 60 rounds", s)
	}
	if len(r.Traces) != 12 {
		t.Errorf("got %d traces, want one a place and pressure", len(r.Traces))
	}
	for _, tr := range r.Traces {
		if inproc := strings.Contains(tr.Name, "inproc"); inproc != (len(tr.Gaps) > 0) {
			t.Errorf("%s: %d gaps", tr.Name, len(tr.Gaps))
		}
	}
}

func TestReshapeWindowsQuick(t *testing.T) {
	r := compared(t, true, (*meter).reshapes, everyBackend...)
	for _, name := range names(r) {
		if strings.Contains(name, "process") || strings.Contains(name, "workers=8") {
			t.Errorf("a quick run measured %s", name)
		}
	}
	want(t, r, "loop/of=reshapes/backend=pool/workers=4/gc=on/figure=wall", 0.3, 0.001)
}

// TestMarshalHandover: the handover is the call without the VM's own work, and
// what a worker costs beyond in-process is a figure for a MiB.
func TestMarshalHandover(t *testing.T) {
	r := compared(t, false, (*meter).marshal, everyBackend...)
	mib := time.Duration(perMiB).Seconds()
	for backend, times := range map[string]float64{BackendInProcess: 1, BackendPool: 2, BackendProcess: 3} {
		want(t, r, "marshal/dir=out/size=3.68MiB/backend="+backend+"/figure=handover", 3.68*mib*times, 1e-6)
		want(t, r, "marshal/dir=out/size=16MiB/backend="+backend, 0.002+16*mib*times, 1e-6)
		want(t, r, "marshal/dir=in/size=1MiB/backend="+backend+"/figure=handover", mib*times, 1e-5)
		if backend == BackendInProcess {
			continue
		}
		want(t, r, "marshal/dir=out/size=16MiB/backend="+backend+"/figure=over", mib*(times-1), 1e-6)
		want(t, r, "marshal/dir=out/size=16MiB/backend="+backend+"/figure=ratio", (0.002+16*mib*times)/(0.002+16*mib), 1e-3)
	}
	if _, ok := r.Find("marshal/dir=in/size=1KiB/backend=pool/figure=over"); ok {
		t.Error("a price a MiB of 1 KiB")
	}
	if _, ok := r.Find("marshal/of=decoding/size=3.68MiB"); !ok {
		t.Error("no price of decoding")
	}
}

// TestKillToNext: a goroutine worker is free at once, a process has to start anew
// unless a spare one stands in.
func TestKillToNext(t *testing.T) {
	r := compared(t, false, (*meter).next, everyBackend...)
	want(t, r, "kill/to=next/backend=pool/spare=0", killTime.Seconds(), 0)
	want(t, r, "kill/to=next/backend=process/spare=0", (killTime + startTime).Seconds(), 0)
	s, _ := r.Find("kill/to=next/backend=process/spare=1")
	if s.Value >= startTime.Seconds() || s.Count != 20 {
		t.Errorf("with a spare worker: got %+v, want less than a start, 20 times", s)
	}
	if s, _ := r.Find("kill/to=next/backend=pool/spare=0"); s.Count != 200 {
		t.Errorf("got %d kills, want 200", s.Count)
	}
}

func TestColdWorkers(t *testing.T) {
	r := compared(t, false, (*meter).coldWorkers, everyBackend...)
	for _, name := range []string{"backend=pool/cache=filled", "backend=process/cache=filled", "backend=process/cache=empty"} {
		want(t, r, "cold/of=worker/"+name, startTime.Seconds(), 0)
	}
}

// TestFairness: a short script waits for hogs on the loop, and not in a pool that
// has a worker free.
func TestFairness(t *testing.T) {
	r := compared(t, false, (*meter).fairness, everyBackend...)
	for _, place := range []string{"backend=pool/workers=2", "backend=pool/workers=4", "backend=pool/workers=8", "backend=process/workers=4"} {
		want(t, r, "fair/"+place+"/figure=alone", 0.001, 1e-6)
		want(t, r, "fair/"+place+"/figure=beside", 0.001, 1e-6)
	}
	want(t, r, "fair/backend=inproc/figure=alone", 0.001, 1e-6)
	if s, ok := r.Find("fair/backend=inproc/figure=beside"); !ok || s.Value < 0.3 || s.Config["hogs"] != "3" {
		t.Errorf("in-process: got %+v, want waits of a hog or more", s)
	}
}

// TestComparesWhatIsOffered: nothing is opened that the suite does not name.
func TestComparesWhatIsOffered(t *testing.T) {
	groups := []func(*meter) error{(*meter).reshapes, (*meter).marshal, (*meter).next, (*meter).coldWorkers, (*meter).fairness}
	for _, c := range []struct {
		backends []string
		rows     string // a part of a row that must be there
		never    []string
	}{
		{nil, "backend=inproc", []string{"backend=pool", "backend=process", "/to=next", "of=worker"}},
		{[]string{BackendPool}, "backend=pool", []string{"backend=inproc", "backend=process", "figure=over", "figure=ratio"}},
	} {
		for _, group := range groups {
			synctest.Test(t, func(t *testing.T) {
				h := newHost(t, nil)
				s := h.suite(c.backends...)
				m := &meter{ctx: t.Context(), suite: s, plan: Plan{Quick: true, Seed: 7}}
				if err := group(m); err != nil {
					t.Fatal(err)
				}
				for _, o := range h.opened {
					if !slices.Contains(append(c.backends, ""), o.Backend) {
						t.Errorf("%v: opened %+v", c.backends, o)
					}
				}
				all := strings.Join(names(m.run), "\n")
				for _, never := range c.never {
					if strings.Contains(all, never) {
						t.Errorf("%v: rows with %s in\n%s", c.backends, never, all)
					}
				}
				if len(m.run.Samples) > 0 && !strings.Contains(all, c.rows) {
					t.Errorf("%v: no row with %s in\n%s", c.backends, c.rows, all)
				}
			})
		}
	}
}

// TestComparisonsFindFaults: a wrong answer is no result, and nothing stays open.
func TestComparisonsFindFaults(t *testing.T) {
	for _, c := range []struct {
		name  string
		group func(*meter) error
		spoil func(Options, engine.Request, *engine.Outcome)
		row   string
	}{
		{"a wrong reshape in a pool", (*meter).reshapes, func(o Options, r engine.Request, out *engine.Outcome) {
			if o.Backend == BackendPool {
				out.Value = []byte("1")
			}
		}, "workload=reshapes"},
		{"a text cut", (*meter).marshal, func(o Options, r engine.Request, out *engine.Outcome) {
			if o.Backend == BackendProcess && len(out.Value) > 1<<20 {
				out.Value = out.Value[:1<<20]
			}
		}, "marshal/dir=out/size=3.68MiB"},
		{"a kill that does not kill", (*meter).next, func(_ Options, r engine.Request, out *engine.Outcome) {
			if out.Class == engine.ClassCanceled {
				out.Class = engine.ClassOK
			}
		}, "kill/to=next/backend=pool/spare=0"},
		{"a cold worker that errs", (*meter).coldWorkers, func(_ Options, r engine.Request, out *engine.Outcome) {
			out.Value = []byte("3")
		}, "cold/of=worker/backend=pool/cache=filled"},
		{"a hog that fails", (*meter).fairness, func(o Options, r engine.Request, out *engine.Outcome) {
			if o.Workers == 8 && out.Usage.Script > 100*time.Millisecond {
				out.Class = engine.ClassEngineFault
			}
		}, "workload=reshapes"},
		{"a short script that is wrong", (*meter).fairness, func(o Options, r engine.Request, out *engine.Outcome) {
			if o.Workers == 4 && out.Usage.Script < 2*time.Millisecond {
				out.Value = []byte("0")
			}
		}, "script=short"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHost(t, c.spoil)
				m := &meter{ctx: t.Context(), suite: h.suite(everyBackend...), plan: Plan{Seed: 7}}
				err := c.group(m)
				var wrong *WrongAnswer
				if !errors.As(err, &wrong) || wrong.Row != c.row {
					t.Errorf("got %v, want a wrong answer of %s", err, c.row)
				}
				if h.open != 0 {
					t.Errorf("%d backends were left open", h.open)
				}
			})
		})
	}
}
