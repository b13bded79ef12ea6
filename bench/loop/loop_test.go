package loop

import (
	"math"
	"runtime"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Start()
		time.Sleep(100*Beat + Beat/2)
		r := l.Stop()
		if r.Beats != 100 || r.Longest != Beat || r.Unavailable != 0 || r.Gaps != nil || r.Wall != 100*Beat+Beat/2 {
			t.Errorf("got %+v, want 100 beats, longest gap %v, nothing unavailable", r, Beat)
		}
	})
}

func TestTasksMakeGaps(t *testing.T) {
	// A task starts half a beat after the last one: the gap is half a beat
	// longer than the task, and 2 ms of it are tolerated.
	for _, c := range []struct{ task, longest, unavailable time.Duration }{
		{0, Beat, 0},
		{Beat, 2*Beat - Beat/2, 0},
		{Beat + Beat/2, 2 * Beat, 0},
		{2 * Beat, 2*Beat + Beat/2, Beat / 2},
		{300 * Beat, 300*Beat + Beat/2, 298*Beat + Beat/2},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := Start()
			time.Sleep(10*Beat + Beat/2)
			l.Post(func() { time.Sleep(c.task) })
			time.Sleep(c.task + 10*Beat)
			r := l.Stop()
			if r.Longest != c.longest || r.Unavailable != c.unavailable {
				t.Errorf("task of %v: got longest %v, unavailable %v, want %v, %v", c.task, r.Longest, r.Unavailable, c.longest, c.unavailable)
			}
			if c.unavailable > 0 && (len(r.Gaps) != 1 || r.Gaps[0] != Gap{10 * Beat, c.longest}) {
				t.Errorf("task of %v: got gaps %v, want one at %v of %v", c.task, r.Gaps, 10*Beat, c.longest)
			}
		})
	}
}

func TestGapAtTheEndCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Start()
		l.Post(func() { time.Sleep(50 * Beat) })
		r := l.Stop() // waits for the task
		if r.Longest != 50*Beat {
			t.Errorf("got longest %v, want %v", r.Longest, 50*Beat)
		}
		if again := l.Stop(); again.Longest != r.Longest {
			t.Errorf("a second Stop gave another report: %+v", again)
		}
		l.Post(func() { t.Error("a task ran after Stop") })
	})
}

// TestPost_hammer posts from many goroutines while the loop is stopped.
func TestPost_hammer(t *testing.T) {
	l := Start()
	stop := Pressure()
	var ran atomic.Int64
	var posters sync.WaitGroup
	for range 8 {
		posters.Go(func() {
			for range 200 {
				l.Post(func() { ran.Add(1) })
			}
		})
	}
	posters.Wait()
	l.Stop()
	stop()
	if got := ran.Load(); got != 1600 {
		t.Errorf("%d tasks ran, want 1600", got)
	}
}

func TestStopsBetween(t *testing.T) {
	buckets := []float64{math.Inf(-1), 0.001, 0.002, 0.004, math.Inf(1)}
	before := metrics.Float64Histogram{Buckets: buckets, Counts: []uint64{5, 1, 0, 0}}
	for _, c := range []struct {
		after []uint64
		want  Stops
	}{
		{[]uint64{5, 1, 0, 0}, Stops{}},
		{[]uint64{7, 1, 0, 0}, Stops{2, time.Millisecond, 2 * time.Millisecond}},
		{[]uint64{5, 2, 3, 0}, Stops{4, 4 * time.Millisecond, 14 * time.Millisecond}},
		{[]uint64{5, 1, 0, 1}, Stops{1, 4 * time.Millisecond, 4 * time.Millisecond}},
	} {
		if got := stopsBetween(before, metrics.Float64Histogram{Buckets: buckets, Counts: c.after}); got != c.want {
			t.Errorf("%v: got %+v, want %+v", c.after, got, c.want)
		}
	}
}

// TestWatchStops: the runtime has the metric, and a collection stops the world twice.
func TestWatchStops(t *testing.T) {
	since := WatchStops()
	for range 3 {
		runtime.GC()
	}
	if s := since(); s.Count < 6 || s.Longest <= 0 || s.Total < s.Longest {
		t.Errorf("after three collections: got %+v, want at least 6 stops that took time", s)
	}
}
