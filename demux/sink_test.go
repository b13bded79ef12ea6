package demux

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The end comes after the data, says what happened, and stays.
func TestEnds(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		events []Event
		end    error
		check  func(err error) bool
		wait   func(err error) bool
	}{
		"EOF":        {end: io.EOF, check: func(err error) bool { return err == io.EOF }, wait: func(err error) bool { return err == nil }},
		"cut":        {end: io.ErrUnexpectedEOF, check: func(err error) bool { return err == io.ErrUnexpectedEOF }},
		"broken":     {end: broken, check: func(err error) bool { return errors.As(err, new(*SourceError)) && errors.Is(err, broken) }},
		"no frame":   {end: &FrameError{Offset: 3}, check: func(err error) bool { return errors.As(err, new(*SourceError)) && errors.As(err, new(*FrameError)) }},
		"almost EOF": {end: fmt.Errorf("transport: %w", io.EOF), check: func(err error) bool { return errors.As(err, new(*SourceError)) && !errors.Is(err, io.EOF) }},
		"remote": {events: []Event{{Kind: KindRemoteError, Err: errors.New(strings.Repeat("x", 100_000))}}, end: broken,
			check: func(err error) bool { var e *RemoteError; return errors.As(err, &e) && len(e.Text) == 64<<10 }},
		"exit": {events: []Event{{Kind: KindExit, Err: broken}}, end: io.EOF,
			check: func(err error) bool { return err == io.EOF }, wait: func(err error) bool { return err == broken }},
		"streams": {events: []Event{{Kind: KindStreamEOF, Stream: Stdout}, {Kind: KindStreamEOF, Stream: Stderr}}, end: broken,
			check: func(err error) bool { return err == io.EOF }, wait: func(err error) bool { return errors.Is(err, broken) }},
	} {
		t.Run(name, func(t *testing.T) {
			src := &fixed{append(append(chunks(3, 100_000, Stdout), chunks(3, 100_000, Stderr)...), c.events...), c.end}
			o := options(Spill, t)
			o.Patience = 0
			d, err := New(src, o)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			for _, s := range d.sinks {
				n, err := io.Copy(onlyWriter{io.Discard}, onlyReader{s})
				if err == nil {
					err = io.EOF
				}
				if n != 300_000 || !c.check(err) {
					t.Errorf("%v: %d bytes, then %v", s.stream, n, err)
				}
				if _, again := s.Read(make([]byte, 1)); again != err {
					t.Errorf("%v, then %v", err, again)
				}
				if k := d.Stats().Sink(s.stream); !k.Done || k.Err != err {
					t.Errorf("Stats: %v, %v", k.Done, k.Err)
				}
			}
			if c.wait == nil {
				c.wait = c.check
			}
			if err := d.Wait(context.Background()); !c.wait(err) {
				t.Errorf("Wait: %v", err)
			}
			d.Close()
			for _, s := range d.sinks {
				if _, err := s.Read(make([]byte, 1)); !c.check(err) {
					t.Errorf("after Close of the Demux: %v", err)
				}
				s.Close()
				if _, err := s.Read(make([]byte, 1)); err != ErrClosed || !errors.Is(err, os.ErrClosed) {
					t.Errorf("after Close of the sink: %v", err)
				}
			}
		})
	}
}

type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)

// Nothing of a stream comes after its end.
func TestDataAfterEnd(t *testing.T) {
	bubble(t, nil, func(b *bed) {
		b.send(data(Stdout, []byte("x")), Event{Kind: KindStreamEOF, Stream: Stdout}, data(Stdout, []byte("y")), Event{Kind: KindTruncated, Stream: Stdout, Lost: 1})
		if got, err := io.ReadAll(b.Stdout()); string(got) != "x" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		if st := invariant(t, b.Demux); st.Stdout.Discarded != 1 || st.Stdout.Gaps != 0 {
			t.Errorf("%+v", st.Stdout)
		}
	})
}

func TestClose(t *testing.T) {
	bubble(t, nil, func(b *bed) {
		first := reading(b.Stdout(), 1)
		b.Stdout().Close()
		if err := <-first; err != ErrClosed {
			t.Error(err)
		}
		if b.from.isClosed() {
			t.Error("one sink closed the source")
		}
		b.send(data(Stdout, []byte("x")), data(Stderr, []byte("y")))
		mustRead(t, b.Stderr(), 1)
		b.Stderr().Close()
		b.Stderr().Close()
		if !b.from.isClosed() {
			t.Error("the source is open, and nobody is left")
		}
		if err := b.Wait(context.Background()); err != ErrClosed {
			t.Errorf("Wait: %v", err)
		}
	})
	bubble(t, func(o *Options) { o.KeepDraining = true }, func(b *bed) {
		b.Stdout().Close()
		b.Stderr().Close()
		b.send(append(chunks(100, 100_000, Stdout), Event{Kind: KindExit})...)
		close(b.from.events)
		if err := b.Wait(context.Background()); err != nil {
			t.Errorf("KeepDraining: %v", err)
		}
		if st := invariant(t, b.Demux); st.Stdout.Discarded != 10_000_000 {
			t.Errorf("%+v", st.Stdout)
		}
	})
	// What was read to its end and then closed leaves the process its time to exit.
	bubble(t, nil, func(b *bed) {
		b.send(Event{Kind: KindStreamEOF, Stream: Stdout}, Event{Kind: KindStreamEOF, Stream: Stderr})
		b.Stdout().Close()
		b.Stderr().Close()
		exit := errors.New("exit 3")
		b.send(Event{Kind: KindExit, Err: exit})
		close(b.from.events)
		if err := b.Wait(context.Background()); err != exit {
			t.Errorf("Wait: %v", err)
		}
	})
	bubble(t, nil, func(b *bed) {
		b.send(append(chunks(2, 64<<10, Stdout), data(Stderr, []byte("x")))...)
		first := reading(b.Stderr(), 1)
		b.Demux.Close()
		if err := <-first; err != ErrClosed {
			t.Error(err)
		}
		if _, err := b.Stdout().Read(make([]byte, 1)); err != ErrClosed {
			t.Error(err)
		}
		if err := b.Wait(context.Background()); err != ErrClosed {
			t.Errorf("Wait: %v", err)
		}
	})
}

// A source that cannot be ended holds up no Close, and ends when it returns.
func TestSourceThatIgnoresClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		d := launch(FromEvents(func(yield func(Event, error) bool) { <-release }), options(Backpressure, t), nil)
		first := reading(d.Stdout(), 1)
		d.Close()
		if err := <-first; err != ErrClosed {
			t.Error(err)
		}
		close(release)
		if err := d.Wait(context.Background()); err != ErrClosed {
			t.Error(err)
		}
	})
}

func TestInterruptedReadsLoseNothing(t *testing.T) {
	bubble(t, nil, func(b *bed) {
		s := b.Stdout()
		p := make([]byte, 10)
		if n, err := s.Read(nil); n != 0 || err != nil {
			t.Errorf("empty Read: %d, %v", n, err)
		}
		s.SetReadDeadline(time.Now().Add(time.Second))
		start := time.Now()
		if _, err := s.Read(p); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if _, err := s.Read(p); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		b.send(data(Stdout, []byte("abc")))
		if _, err := s.Read(p); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		s.SetReadDeadline(time.Time{})
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := s.ReadContext(ctx, p); err != context.Canceled {
			t.Error(err)
		}
		ctx, cancel = context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if n, err := s.ReadContext(ctx, p); string(p[:n]) != "abc" || err != nil {
			t.Errorf("%q, %v", p[:n], err)
		}
		second := reading(s, 1) // has the turn
		if _, err := s.ReadContext(ctx, p); err != context.DeadlineExceeded {
			t.Error(err)
		}
		s.SetReadDeadline(time.Now().Add(-1))
		if err := <-second; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		// A deadline that was moved does not strike.
		s.SetReadDeadline(time.Now().Add(time.Second))
		s.SetReadDeadline(time.Now().Add(time.Minute))
		third := reading(s, 1)
		time.Sleep(2 * time.Second)
		b.send(data(Stdout, []byte("d")))
		if err := <-third; err != nil {
			t.Error(err)
		}
	})
}

func TestGaps(t *testing.T) {
	for _, strict := range []bool{false, true} {
		bubble(t, func(o *Options) { o.StrictGaps = strict }, func(b *bed) {
			gap := Event{Kind: KindTruncated, Stream: Stdout, Lost: 5}
			b.send(gap, data(Stdout, []byte("abc")), gap, data(Stdout, []byte("de")), Event{Kind: KindTruncated, Stream: Stdout, Lost: -1}, Event{Kind: KindStreamEOF, Stream: Stdout})
			var got, where []string
			p := make([]byte, 10)
			for {
				n, err := b.Stdout().Read(p)
				if n > 0 {
					got = append(got, string(p[:n]))
				}
				var g *GapError
				if errors.As(err, &g) {
					where = append(where, fmt.Sprint(len(strings.Join(got, "")), g.Gap))
				} else if err == io.EOF {
					break
				}
			}
			if s := strings.Join(got, ""); s != "abcde" {
				t.Errorf("%q", s)
			}
			if s, want := fmt.Sprint(where), "[0 {0 5} 3 {3 5} 5 {5 -1}]"; strict && s != want || !strict && len(where) > 0 {
				t.Errorf("strict %v: told %s, want %s", strict, s, want)
			}
			if s := fmt.Sprint(b.Stdout().Gaps()); s != "[{0 5} {3 5} {5 -1}]" {
				t.Error(s)
			}
			if n := b.count(NoticeGap); n != 3 {
				t.Errorf("%d notices", n)
			}
		})
	}
	bubble(t, func(o *Options) { o.StrictGaps = true }, func(b *bed) {
		const n = 60_000 // fits in memory
		for i := range n {
			b.from.events <- data(Stdout, []byte{byte(i)})
			b.from.events <- Event{Kind: KindTruncated, Stream: Stdout, Lost: 1}
		}
		b.send(Event{Kind: KindStreamEOF, Stream: Stdout})
		st := b.Stats().Stdout
		gaps := b.Stdout().Gaps()
		if st.Gaps != n || st.GapsMerged != n-64 || len(gaps) != 64 || gaps[63] != (Gap{64, n - 63}) {
			t.Errorf("%d gaps, %d merged, %d listed, the last of %v", st.Gaps, st.GapsMerged, len(gaps), gaps[len(gaps)-1])
		}
		told, bytes := 0, 0
		for {
			n, err := b.Stdout().Read(make([]byte, 1000))
			bytes += n
			if errors.As(err, new(*GapError)) {
				told++
			} else if err == io.EOF {
				break
			}
		}
		if told != 64 || bytes != n {
			t.Errorf("told of %d gaps in %d bytes", told, bytes)
		}
	})
}

// After KindExit the source may be silent for ExitDrain in all, but what it has is
// read, however slowly.
func TestExitDrain(t *testing.T) {
	bubble(t, nil, func(b *bed) {
		b.send(data(Stdout, []byte("abc")), Event{Kind: KindExit})
		start := time.Now()
		got, err := io.ReadAll(b.Stdout())
		if string(got) != "abc" || err != nil || time.Since(start) != time.Second {
			t.Errorf("%q, %v after %v", got, err, time.Since(start))
		}
		if err := b.Wait(context.Background()); err != nil || !b.from.isClosed() {
			t.Errorf("Wait: %v", err)
		}
	})
	bubble(t, func(o *Options) { o.Policy = Backpressure }, func(b *bed) {
		b.send(append([]Event{{Kind: KindExit}}, chunks(10, 64<<10, Stdout)...)...)
		for range 10 {
			time.Sleep(time.Minute)
			mustRead(t, b.Stdout(), 64<<10)
		}
		if got, err := io.ReadAll(b.Stdout()); len(got) != 0 || err != nil {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	})
	bubble(t, func(o *Options) { o.ExitDrain = -1 }, func(b *bed) {
		b.send(Event{Kind: KindExit})
		time.Sleep(time.Hour)
		b.send(data(Stdout, []byte("x")))
		mustRead(t, b.Stdout(), 1)
	})
	bubble(t, func(o *Options) { o.ExitDrain = 0 }, func(b *bed) {
		b.send(Event{Kind: KindExit, Err: io.ErrNoProgress})
		if err := b.Wait(context.Background()); err != io.ErrNoProgress {
			t.Error(err)
		}
	})
}

// A slow Notify delays nothing, and at most 64 notices wait for it.
func TestNotify(t *testing.T) {
	release := make(chan struct{})
	var told int
	synctest.Test(t, func(t *testing.T) {
		release = make(chan struct{})
		var d *Demux
		o := options(Backpressure, t)
		o.Notify = func(n Notice) {
			d.Stats() // no lock is held
			<-release
			told++
		}
		f := newFeed()
		d = launch(f, o, nil)
		for range 200 {
			f.events <- Event{Kind: KindTruncated, Stream: Stdout, Lost: 1}
		}
		synctest.Wait()
		if n := d.Stats().NoticesDropped; n != 200-65 {
			t.Errorf("%d dropped", n)
		}
		close(release)
		synctest.Wait()
		if told != 65 {
			t.Errorf("told %d", told)
		}
		d.Close()
	})
}

func TestUnknownEvents(t *testing.T) {
	bubble(t, nil, func(b *bed) {
		for range 1000 {
			b.from.events <- Event{Kind: KindUnknown}
			b.from.events <- data(7, []byte("x"))
			b.from.events <- Event{}
		}
		b.send(data(Stdout, []byte("x")), data(Stdout, nil))
		mustRead(t, b.Stdout(), 1)
		if st := b.Stats(); st.UnknownEvents != 3000 || st.SourceEvents != 3002 {
			t.Errorf("%+v", st)
		}
	})
}

// Overlapping reads each get a run without a hole.
func TestConcurrentReads(t *testing.T) {
	const n = 1 << 20
	want := bytesOf(n, Stdout)
	for i := range n / 4 { // so that a run says where it belongs
		want[4*i], want[4*i+1], want[4*i+2], want[4*i+3] = byte(i>>16), byte(i>>8), byte(i), 0
	}
	o := options(Spill, t)
	d, err := New(&fixed{events: []Event{data(Stdout, want)}}, o)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	seen := make([]bool, n/4)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			p := make([]byte, 4000)
			for {
				k, err := d.Stdout().Read(p)
				if err != nil {
					return
				}
				mu.Lock()
				for i := 0; i+3 < k; i += 4 {
					at := int(p[i])<<16 | int(p[i+1])<<8 | int(p[i+2])
					if i > 0 && p[i+3] != 0 || at >= len(seen) || seen[at] {
						t.Errorf("a run has %x at %d", p[i:i+4], i)
						mu.Unlock()
						return
					}
					seen[at] = true
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

func TestReader(t *testing.T) {
	want := bytesOf(300_000, Stderr)
	d, err := New(&fixed{events: []Event{data(Stderr, want)}}, options(Spill, t))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := iotest.TestReader(d.Stderr(), want); err != nil {
		t.Error(err)
	}
}

// Everything at once, to be run with the race detector.
func TestStorm_hammer(t *testing.T) {
	for round := range 30 {
		o := options(Spill, t)
		o.MemPerSink, o.Patience, o.StrictGaps = 8<<10, time.Duration(round%3)*time.Millisecond, round%2 == 0
		d, err := New(FromEvents(script(strings.Repeat("OEEOOE", 30), 5000)), o)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := range 12 {
			s := d.sinks[i%2]
			wg.Go(func() {
				p := make([]byte, 3000)
				for {
					var err error
					switch i / 2 {
					case 0, 1:
						_, err = s.Read(p)
					case 2:
						ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
						_, err = s.ReadContext(ctx, p)
						cancel()
					case 3:
						s.SetReadDeadline(time.Now().Add(time.Millisecond))
						runtime.Gosched()
						s.SetReadDeadline(time.Time{})
						d.Stats()
						s.Buffered()
						s.Gaps()
					case 4:
						_, err = s.WriteTo(&limitedWriter{new([]byte), 1000})
					case 5:
						time.Sleep(time.Duration(round) * time.Millisecond)
						s.Close()
					}
					if err == ErrClosed || d.Stats().Sink(s.stream).Err == ErrClosed {
						return
					}
				}
			})
		}
		wg.Wait()
		d.Close()
		d.Wait(context.Background())
		invariant(t, d)
	}
}

// tiny is a source that cycles through events without an end.
type tiny struct {
	events []Event
	i      int
	left   int
}

func (s *tiny) Next(ctx context.Context, _ []byte) (Event, error) {
	if s.left == 0 {
		<-ctx.Done()
		return Event{}, ctx.Err()
	}
	s.left--
	s.i++
	return s.events[s.i%len(s.events)], nil
}

func (s *tiny) Close() error { return nil }

// No allocation an event, in memory, by hand-over and through the file.
func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for name, change := range map[string]func(*Options){
		"memory": func(o *Options) {},
		"disk":   func(o *Options) { o.Eager, o.MemPerSink = true, 64<<10 },
	} {
		o := options(Spill, t)
		change(&o)
		const events = 400_000
		src := &tiny{events: []Event{data(Stdout, make([]byte, 64)), data(Stderr, make([]byte, 3000))}, left: events}
		var before, after runtime.MemStats
		d, err := New(src, o)
		if err != nil {
			t.Fatal(err)
		}
		p := make([]byte, 64<<10)
		var wg sync.WaitGroup
		read := func(s *Sink, n int, p []byte) {
			for n > 0 {
				k, err := s.Read(p[:min(n, len(p))])
				if err != nil {
					t.Error(err)
					return
				}
				n -= k
			}
		}
		half := func(p, q []byte) {
			wg.Go(func() { read(d.Stdout(), events/4*64, p) })
			wg.Go(func() { read(d.Stderr(), events/4*3000, q) })
			wg.Wait()
		}
		q := make([]byte, 64<<10)
		half(p, q)
		runtime.ReadMemStats(&before)
		half(p, q)
		runtime.ReadMemStats(&after)
		if n := after.Mallocs - before.Mallocs; n > 200 {
			t.Errorf("%s: %d allocations for %d events", name, n, events/2)
		}
		d.Close()
	}
}

// The heap that a Demux takes is bounded whatever the volume.
func TestMemoryCeiling(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for _, size := range []int{1, 1000, 64 << 10, 1 << 20} {
		var peaks []uint64
		volumes := []int{4 << 20, 64 << 20}
		if size == 1 || raceEnabled {
			volumes = []int{2 << 20, 8 << 20}
		}
		for _, volume := range volumes {
			o := options(Spill, t)
			o.Eager = true
			src := &tiny{events: []Event{data(Stdout, make([]byte, size)), data(Stderr, make([]byte, size))}, left: volume / size}
			before := heap()
			d, err := New(src, o)
			if err != nil {
				t.Fatal(err)
			}
			for d.Stats().SourceBytes < uint64(volume/size*size) {
				time.Sleep(time.Millisecond)
			}
			// Read-back, the worst moment, and what is held at it.
			mustRead(t, d.Stdout(), o.MemPerSink+1)
			mustRead(t, d.Stderr(), o.MemPerSink+1)
			limit := int64(2*(o.MemPerSink+2*blockSize) + blockSize + 16<<10)
			if grown := int64(heap()) - int64(before); grown > limit {
				t.Errorf("size %d, volume %d: %d bytes of heap, allowed are %d", size, volume, grown, limit)
			}
			st := invariant(t, d)
			peaks = append(peaks, st.Stdout.PeakMem, st.Stderr.PeakMem)
			d.Close()
			d.Wait(context.Background())
			runtime.KeepAlive(src)
		}
		for _, p := range peaks {
			if p != peaks[0] {
				t.Errorf("size %d: peaks %v depend on the volume", size, peaks)
			}
		}
	}
}

func TestWriteTo(t *testing.T) {
	bubble(t, func(o *Options) { o.Eager = true }, func(b *bed) {
		want := bytesOf(1<<20, Stdout)
		b.send(data(Stdout, want), Event{Kind: KindStreamEOF, Stream: Stdout})
		var got []byte
		for _, n := range []int{0, 1, 1000, 65_536, 200_000} {
			k, err := b.Stdout().WriteTo(&limitedWriter{&got, n})
			if k != int64(n) || err != errLimit {
				t.Errorf("%d, %v", k, err)
			}
		}
		if k, err := b.Stdout().WriteTo(badWriter{}); k != 0 || err != errInvalidWrite {
			t.Errorf("%d, %v", k, err)
		}
		if k, err := b.Stdout().WriteTo(shortWriter{}); k != 1 || err != io.ErrShortWrite {
			t.Errorf("%d, %v", k, err)
		}
		got = append(got, want[len(got)])
		var rest bytes.Buffer
		if k, err := b.Stdout().WriteTo(&rest); k != int64(len(want)-len(got)) || err != nil {
			t.Errorf("%d, %v", k, err)
		}
		sameBytes(t, "stdout", append(got, rest.Bytes()...), want)
		if k, err := b.Stdout().WriteTo(&rest); k != 0 || err != nil {
			t.Errorf("again: %d, %v", k, err)
		}
	})
}

type (
	badWriter   struct{}
	shortWriter struct{}
)

func (badWriter) Write(p []byte) (int, error)   { return -1, nil }
func (shortWriter) Write(p []byte) (int, error) { return 1, nil }

// The end of a sink may be read, since another part set it, while a pump still writes
// a block that the reader has emptied.
func TestEndIsReadDuringAWrite(t *testing.T) {
	d, err := New(FromReaders(nil, nil), DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	s := d.Stdout()
	d.mu.Lock()
	defer d.mu.Unlock()
	b := s.newBlock()
	s.writing = b
	s.retire()
	s.writing = nil
	s.recycle(b)
	if s.blocks != 0 {
		t.Errorf("%d blocks are counted, want 0", s.blocks)
	}
	if s.retire(); s.nfree != 0 {
		t.Errorf("%d blocks are kept after the end", s.nfree)
	}
}
