// Package loop measures how responsive a single goroutine stays: the event loop
// of a host that evaluates scripts. It says how long the loop could not run; it
// does not say why.
package loop

import (
	"context"
	"math"
	"runtime"
	"runtime/metrics"
	"sync"
	"time"
)

const (
	// Beat is how often a loop shows that it runs.
	Beat = time.Millisecond
	// tolerance is how long a gap between two beats may be before it counts as
	// unavailability: one beat, and one that the timer was late for.
	tolerance = 2 * Beat
	// PressureEvery is how often Pressure calls the collector.
	PressureEvery = 20 * time.Millisecond
)

// Gap is a time in which the loop did not beat.
type Gap struct {
	At     time.Duration // since the loop started
	Length time.Duration
}

// Report is what a loop saw of itself.
type Report struct {
	Wall        time.Duration // how long it ran
	Beats       int
	Longest     time.Duration // longest gap between two beats
	Unavailable time.Duration // Σ max(0, gap − 2 ms)
	Gaps        []Gap         // those above 2 ms, in order
}

// Loop is one goroutine that runs posted tasks one after another and beats in
// between, once a millisecond.
type Loop struct {
	tasks chan func()
	quit  chan struct{}
	done  chan Report
	once  sync.Once
	final Report
}

// Start starts a loop. Stop ends it.
func Start() *Loop {
	l := &Loop{tasks: make(chan func()), quit: make(chan struct{}), done: make(chan Report, 1)}
	go l.run()
	return l
}

// Post gives the loop a task and returns once the loop has taken it. The loop
// does not beat while it runs the task. After Stop, Post does nothing.
func (l *Loop) Post(task func()) {
	select {
	case l.tasks <- task:
	case <-l.quit:
	}
}

// Stop ends the loop after the task it is in and returns its report. Later calls return
// the same report. It may be called from any goroutine but the loop's own.
func (l *Loop) Stop() Report {
	l.once.Do(func() {
		close(l.quit)
		l.final = <-l.done
	})
	return l.final
}

func (l *Loop) run() {
	ticker := time.NewTicker(Beat)
	defer ticker.Stop()
	start := time.Now()
	last := start
	r := Report{}
	beat := func() {
		now := time.Now()
		gap := now.Sub(last)
		r.Longest = max(r.Longest, gap)
		if gap > tolerance {
			r.Unavailable += gap - tolerance
			r.Gaps = append(r.Gaps, Gap{At: last.Sub(start), Length: gap})
		}
		last = now
	}
	for {
		select {
		case <-l.quit:
			beat() // the time since the last beat counts too
			r.Wall = last.Sub(start)
			l.done <- r
			return
		case task := <-l.tasks:
			task()
		case <-ticker.C:
			r.Beats++
			beat()
		}
	}
}

// Pressure calls the collector every PressureEvery, on a goroutine of its own,
// until stop is called. Every collection stops the world twice, which is when a
// goroutine that cannot be preempted stops the whole process.
func Pressure() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(PressureEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				runtime.GC()
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// Stops is how long the collector waited for the world to stop, which it does
// twice a collection: until the last goroutine had noticed.
type Stops struct {
	Count uint64
	// Longest and Total are upper bounds: the runtime counts in buckets, each up
	// to a quarter wider than the one before.
	Longest, Total time.Duration
}

const stopping = "/sched/pauses/stopping/gc:seconds"

// WatchStops begins to watch; the function it returns tells what came since.
func WatchStops() func() Stops {
	before := readStops()
	return func() Stops { return stopsBetween(before, readStops()) }
}

func readStops() metrics.Float64Histogram {
	s := []metrics.Sample{{Name: stopping}}
	metrics.Read(s)
	if s[0].Value.Kind() != metrics.KindFloat64Histogram {
		return metrics.Float64Histogram{} // a runtime without it
	}
	return *s[0].Value.Float64Histogram()
}

func stopsBetween(before, after metrics.Float64Histogram) Stops {
	var s Stops
	for i, n := range after.Counts {
		if i < len(before.Counts) {
			n -= before.Counts[i]
		}
		if n == 0 {
			continue
		}
		bound := after.Buckets[i+1]
		if math.IsInf(bound, 1) {
			bound = after.Buckets[i]
		}
		s.Count += n
		s.Longest = time.Duration(bound * float64(time.Second))
		s.Total += time.Duration(float64(n) * bound * float64(time.Second))
	}
	return s
}
