package demuxtest

import (
	"context"
	"errors"
	"io"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/sandbed/sandbed/demux"
)

// heap is the most that a run with defaults took of the heap.
type heap struct {
	reserved uint64 // by Stats
	grown    int64  // of what is live after a collection, beyond what was before
}

// volume runs total bytes through a demultiplexer, of which every nth event of
// 32 KiB is stderr's, which nobody reads before stdout has ended.
func volume(t *testing.T, total int64, nth int) heap {
	t.Helper()
	o := demux.DefaultOptions()
	o.SpillDir, o.AllowMemoryBacked = t.TempDir(), true
	const size = 32 * kib
	events := total / size
	live := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	var (
		h    heap
		base int64
		i    int64
		sent [3]int64
		d    *demux.Demux
	)
	src := newScriptFunc(io.EOF, func() (step, bool) {
		if i == events {
			return step{}, false
		}
		i++
		s := demux.Stdout
		if i%int64(nth) == 0 {
			s = demux.Stderr
		}
		sent[s] += size
		return data(s, size), true
	})
	begun := make(chan struct{})
	src.gate = func(context.Context) error {
		<-begun
		if i%(events/48+1) == 0 {
			h.grown = max(h.grown, live()-base)
			h.reserved = max(h.reserved, d.Stats().HeapReserved)
		}
		return nil
	}
	buf := make([]byte, 64*kib)
	base = live()
	d, err := demux.New(src, o)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	close(begun)
	for _, stream := range streams {
		c := &checked{sink: d.Sink(stream), stream: stream}
		var err error
		for err == nil {
			_, err = c.Read(buf)
		}
		if err != io.EOF || c.off != sent[stream] {
			t.Fatalf("%v: ended with %v after %d of %d bytes", stream, err, c.off, sent[stream])
		}
		h.grown = max(h.grown, live()-base)
	}
	st := d.Stats()
	t.Logf("%d MiB, 1 event of %d unread: heap +%d KiB live, %d KiB reserved, peak %d KiB in memory and %d MiB on disk",
		total/mib, nth, h.grown/kib, h.reserved/kib, st.Stderr.PeakMem/kib, st.Stderr.PeakDisk/mib)
	if bound := int64(heapBound(o)); h.grown > bound+256*kib || h.reserved > uint64(bound) {
		t.Errorf("the heap grew by %d KiB, %d reserved, more than the bound of %d (+ 256)", h.grown/kib, h.reserved/kib, bound/kib)
	}
	return h
}

// same fails unless a large volume took what 48 MiB take.
func same(t *testing.T, large, small heap) {
	t.Helper()
	// Who is faster decides whether the last block that is allowed is ever made, and what the heap
	// holds beside is not exact: a collection can find a timer or a stack of the test itself.
	const block = 64*kib + 16
	if large.reserved > small.reserved+block || large.grown > small.grown+block+64*kib {
		t.Errorf("the heap grew by %d KiB and %d were reserved; with 48 MiB by %d and %d",
			large.grown/kib, large.reserved/kib, small.grown/kib, small.reserved/kib)
	}
}

func TestHeapIsConstant(t *testing.T) {
	same(t, volume(t, 144*mib, 8), volume(t, 48*mib, 8))
}

func stress(t *testing.T) {
	if os.Getenv("STRESS") != "1" {
		t.Skip("STRESS=1 runs it")
	}
}

// 64 GiB with one sink absent: 256 MiB are its own.
func TestStressVirtualVolume(t *testing.T) {
	stress(t)
	same(t, volume(t, 64<<30, 256), volume(t, 48*mib, 8)) // of 48 MiB, one in 256 would fit in memory
}

// 8 GiB through a spill file, in and out.
func TestStressSpillFile(t *testing.T) {
	stress(t)
	same(t, volume(t, 8<<30, 1), volume(t, 48*mib, 1))
}

// Case 29: ten million events of one byte to an absent sink.
func TestStressTinyEvents(t *testing.T) {
	stress(t)
	tr := &trial{factory: New, dir: t.TempDir()}
	const n = 10_000_000
	left := n
	s, err := tr.make(newScriptFunc(io.EOF, func() (step, bool) { left--; return data(demux.Stderr, 1), left >= 0 }), tr.options())
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if err := errors.Join(s.drain(demux.Stdout, 0, io.EOF), s.audit()); err != nil {
		t.Fatal(err)
	}
	st, _ := s.stats()
	t.Logf("%d events in %v, %d writes", n, time.Since(begun), st.Stderr.SpillWrites)
	if st.Stderr.SpillWrites > 200 || st.Stderr.PeakDisk > n*1001/1000+mib {
		t.Errorf("%d writes and %d bytes on disk", st.Stderr.SpillWrites, st.Stderr.PeakDisk)
	}
	if err := errors.Join(s.drain(demux.Stderr, n, io.EOF), s.end()); err != nil {
		t.Fatal(err)
	}
}
