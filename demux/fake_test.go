package demux

import (
	"bytes"
	"context"
	"io"
	"os"
	"sync"
	"testing"
)

// memFile is a spill file in memory, with faults.
type memFile struct {
	mu      sync.Mutex
	data    []byte
	writes  int
	fault   func(n int) (short int, err error) // of write n, from 1; nil error is no fault
	flip    int64                              // this byte comes back wrong; -1 none
	readErr error
	cut     int64 // reads see nothing from here on; -1 all
	closed  bool
	punched int64
}

func newMemFile() *memFile { return &memFile{flip: -1, cut: -1} }

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return 0, os.ErrClosed
	}
	f.writes++
	var err error
	if f.fault != nil {
		var short int
		if short, err = f.fault(f.writes); err != nil {
			p = p[:min(short, len(p))]
		}
	}
	if n := off + int64(len(p)); int64(len(f.data)) < n {
		f.data = append(f.data, make([]byte, n-int64(len(f.data)))...)
	}
	return copy(f.data[off:], p), err
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return 0, os.ErrClosed
	}
	if f.readErr != nil {
		return 0, f.readErr
	}
	data := f.data
	if f.cut >= 0 {
		data = data[:min(f.cut, int64(len(data)))]
	}
	if off >= int64(len(data)) {
		return 0, io.EOF
	}
	n := copy(p, data[off:])
	if i := f.flip - off; f.flip >= 0 && i >= 0 && i < int64(n) {
		p[i] ^= 0x10
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) Punch(off, n int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if off+n > int64(len(f.data)) {
		panic("punched beyond the end")
	}
	clear(f.data[off : off+n])
	f.punched += n
	return nil
}

func (f *memFile) Truncate(n int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n == 0 {
		f.data = f.data[:0]
		return nil
	}
	panic("only emptied")
}

func (f *memFile) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return nil
}

// feed is a source that says what a test sends, and then what end says.
type feed struct {
	events chan Event
	end    error
	closed chan struct{}
	once   sync.Once
}

func newFeed() *feed {
	return &feed{events: make(chan Event), end: io.EOF, closed: make(chan struct{})}
}

func (f *feed) Next(ctx context.Context, _ []byte) (Event, error) {
	select {
	case ev, ok := <-f.events:
		if !ok {
			return Event{}, f.end
		}
		return ev, nil
	case <-f.closed:
		return Event{}, os.ErrClosed
	case <-ctx.Done():
		return Event{}, ctx.Err()
	}
}

func (f *feed) Close() error {
	f.once.Do(func() { close(f.closed) })
	return nil
}

func (f *feed) isClosed() bool {
	select {
	case <-f.closed:
		return true
	default:
		return false
	}
}

// fixed is a source of given events without waiting.
type fixed struct {
	events []Event
	end    error
}

func (f *fixed) Next(context.Context, []byte) (Event, error) {
	if len(f.events) == 0 {
		if f.end == nil {
			return Event{}, io.EOF
		}
		return Event{}, f.end
	}
	ev := f.events[0]
	f.events = f.events[1:]
	return ev, nil
}

func (f *fixed) Close() error { return nil }

func data(s Stream, p []byte) Event { return Event{Kind: KindData, Stream: s, Data: p} }

// invariant is what holds at every moment.
func invariant(t testing.TB, d *Demux) Stats {
	t.Helper()
	st := d.Stats()
	for _, s := range []Stream{Stdout, Stderr} {
		k := st.Sink(s)
		if k.LiveMem+k.LiveDisk != k.Enqueued-k.Read-k.Discarded {
			t.Errorf("%v: live %d + %d, accepted %d − read %d − discarded %d", s, k.LiveMem, k.LiveDisk, k.Enqueued, k.Read, k.Discarded)
		}
		if k.PeakMem < k.LiveMem || k.PeakDisk < k.LiveDisk || k.PeakTotal < k.LiveMem+k.LiveDisk {
			t.Errorf("%v: peaks below what is live: %+v", s, k)
		}
		bounded := d.o.Policy == Spill || d.o.Policy == Backpressure
		if bounded && k.PeakMem > uint64(d.o.MemPerSink) {
			t.Errorf("%v: %d bytes in memory, allowed are %d", s, k.PeakMem, d.o.MemPerSink)
		}
		if d.o.Policy == Spill && d.o.MaxSpill > 0 && st.Stdout.LiveDisk+st.Stderr.LiveDisk > uint64(d.o.MaxSpill) {
			t.Errorf("%d + %d bytes on disk, allowed are %d", st.Stdout.LiveDisk, st.Stderr.LiveDisk, d.o.MaxSpill)
		}
		if bounded && st.HeapReserved > uint64(2*(d.o.MemPerSink+2*blockSize)+blockSize) {
			t.Errorf("%d bytes reserved with %d a sink", st.HeapReserved, d.o.MemPerSink)
		}
	}
	return st
}

func bytesOf(n int, s Stream) []byte {
	p := make([]byte, n)
	fill(p, s, n)
	return p
}

func mustRead(t testing.TB, s *Sink, n int) []byte {
	t.Helper()
	p := make([]byte, n)
	if _, err := io.ReadFull(s, p); err != nil {
		t.Fatalf("%v: %v", s.stream, err)
	}
	return p
}

func sameBytes(t testing.TB, what string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		i := 0
		for i < min(len(got), len(want)) && got[i] == want[i] {
			i++
		}
		t.Errorf("%s: %d bytes, want %d, first difference at %d", what, len(got), len(want), i)
	}
}
