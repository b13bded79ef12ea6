package demux

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// bed is a Demux over a feed, in a bubble.
type bed struct {
	t *testing.T
	*Demux
	from  *feed
	files []*memFile

	told  sync.Mutex
	heard []Notice
}

func bubble(t *testing.T, change func(*Options), f func(b *bed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o := DefaultOptions()
		o.MemPerSink = 64 << 10
		if change != nil {
			change(&o)
		}
		b := &bed{t: t, from: newFeed()}
		if o.Notify == nil {
			o.Notify = func(n Notice) {
				b.told.Lock()
				defer b.told.Unlock()
				b.heard = append(b.heard, n)
			}
		}
		b.Demux = launch(b.from, o, func() (file, error) {
			f := newMemFile()
			b.files = append(b.files, f)
			return f, nil
		})
		f(b)
		b.Demux.Close()
		synctest.Wait()
		invariant(t, b.Demux)
	})
}

func (b *bed) count(k NoticeKind) (n int) {
	synctest.Wait()
	b.told.Lock()
	defer b.told.Unlock()
	for _, x := range b.heard {
		if x.Kind == k {
			n++
		}
	}
	return n
}

// send hands the events over in the background and returns when all was taken or
// the source is held up.
func (b *bed) send(events ...Event) {
	go func() {
		for _, ev := range events {
			select {
			case b.from.events <- ev:
			case <-b.from.closed:
				return
			}
		}
	}()
	synctest.Wait()
}

// reading starts a Read that waits.
func reading(s *Sink, n int) chan error {
	c := make(chan error, 1)
	go func() {
		_, err := s.Read(make([]byte, n))
		c <- err
	}()
	synctest.Wait()
	return c
}

func chunks(n, size int, s Stream) (list []Event) {
	for range n {
		list = append(list, data(s, make([]byte, size)))
	}
	return list
}

func TestPatience(t *testing.T) {
	for _, patience := range []time.Duration{0, time.Nanosecond, 20 * time.Millisecond, time.Minute} {
		bubble(t, func(o *Options) { o.Patience = patience }, func(b *bed) {
			events := append(chunks(100, 64<<10, Stderr), data(Stdout, []byte("x")))
			b.send(events...)
			if st := invariant(t, b.Demux); st.Paused != 1 || st.Stderr.LiveDisk != 0 {
				t.Errorf("without a reader: paused %d times, %d bytes on disk", st.Paused, st.Stderr.LiveDisk)
			}
			start := time.Now()
			mustRead(t, b.Stdout(), 1)
			if took := time.Since(start); took != patience {
				t.Errorf("starved for %v, want %v once", took, patience)
			}
			st := invariant(t, b.Demux)
			if st.Stderr.Enqueued != 100*64<<10 || st.Stderr.LiveDisk == 0 {
				t.Errorf("%+v", st.Stderr)
			}
			if patience > 0 && (st.Stderr.PatienceExpired != 1 || st.Stdout.StarvedMax != patience || st.Stdout.Starved != 1) {
				t.Errorf("expired %d, starved %d, at most %v", st.Stderr.PatienceExpired, st.Stdout.Starved, st.Stdout.StarvedMax)
			}
			if n := b.count(NoticeSpilling); n != 1 {
				t.Errorf("%d notices", n)
			}
		})
	}
}

// A reader that takes a Quantum per Patience is never spilled past; one that takes
// a byte less is.
func TestQuantum(t *testing.T) {
	for _, c := range []struct {
		take  int
		spill bool
	}{{16 << 10, false}, {16<<10 - 1, true}, {1, true}} {
		bubble(t, func(o *Options) { o.Quantum = 16 << 10 }, func(b *bed) {
			b.send(append(chunks(40, 16<<10, Stderr), data(Stdout, []byte("x")))...)
			first := reading(b.Stdout(), 1)
			for range 40 {
				time.Sleep(b.Demux.o.Patience - time.Millisecond)
				mustRead(t, b.Stderr(), c.take)
				time.Sleep(time.Millisecond)
			}
			if err := <-first; err != nil {
				t.Error(err)
			}
			if st := b.Stats(); (st.Stderr.Spilled > 0) != c.spill {
				t.Errorf("took %d a Patience: %d bytes spilled", c.take, st.Stderr.Spilled)
			}
		})
	}
}

// A reader that takes next to nothing at a time does not restart the clock.
func TestTrickle(t *testing.T) {
	bubble(t, nil, func(b *bed) {
		b.send(append(chunks(3, 64<<10, Stderr), data(Stdout, []byte("x")))...)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
					mustRead(t, b.Stderr(), 1)
				}
			}
		})
		start := time.Now()
		mustRead(t, b.Stdout(), 1)
		close(stop)
		if took := time.Since(start); took != b.Demux.o.Patience {
			t.Errorf("starved for %v", took)
		}
	})
}

// Time in which the source has nothing does not condemn the reader of a full sink.
func TestSilentSourceCondemnsNobody(t *testing.T) {
	bubble(t, nil, func(b *bed) {
		first := reading(b.Stdout(), 1)
		time.Sleep(time.Hour)
		b.send(append(chunks(2, 64<<10, Stderr), data(Stdout, []byte("x")))...)
		time.Sleep(b.Demux.o.Patience - time.Nanosecond)
		if st := b.Stats(); st.Stderr.Spilled > 0 {
			t.Error("spilled before a Patience was over")
		}
		mustRead(t, b.Stderr(), 64<<10)
		if err := <-first; err != nil {
			t.Error(err)
		}
		if st := b.Stats(); st.Stderr.Spilled > 0 || st.Stderr.PatienceExpired > 0 {
			t.Error("spilled")
		}
	})
}

// Reads with short deadlines are starving as one long one is.
func TestPollingReaderStarves(t *testing.T) {
	bubble(t, nil, func(b *bed) {
		b.send(append(chunks(3, 64<<10, Stderr), data(Stdout, []byte("x")))...)
		for i := 0; ; i++ {
			b.Stdout().SetReadDeadline(time.Now().Add(time.Millisecond))
			if _, err := b.Stdout().Read(make([]byte, 1)); err == nil {
				if i != 19 && i != 20 { // the last deadline and Patience end together
					t.Errorf("byte after %d polls", i)
				}
				return
			} else if i > 30 {
				t.Fatal("never spilled")
			}
		}
	})
}

// The source is held up by a full sink. Each of four things alone resumes it.
func TestPauseEnds(t *testing.T) {
	for name, act := range map[string]func(b *bed){
		"that sink is read":     func(b *bed) { mustRead(b.t, b.Stderr(), 16<<10) },
		"one byte is read":      func(b *bed) { mustRead(b.t, b.Stderr(), 1) },
		"that sink is closed":   func(b *bed) { b.Stderr().Close() },
		"the other one starves": func(b *bed) { reading(b.Stdout(), 1) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(o *Options) { o.Patience = 0 }, func(b *bed) {
				b.send(data(Stderr, make([]byte, 64<<10)), data(Stderr, make([]byte, 1)), data(Stdout, []byte("x")))
				if n := b.Stdout().Buffered(); n != 0 {
					t.Fatal("not held up")
				}
				act(b)
				synctest.Wait()
				if st := invariant(t, b.Demux); st.Stdout.Enqueued != 1 {
					t.Error("still held up")
				}
			})
		})
	}
}

func TestBackpressureStall(t *testing.T) {
	for _, withError := range []bool{false, true} {
		bubble(t, func(o *Options) { o.Policy, o.StallError = Backpressure, withError }, func(b *bed) {
			b.send(append(chunks(2, 64<<10, Stderr), data(Stdout, []byte("x")))...)
			start := time.Now()
			first := reading(b.Stdout(), 1)
			time.Sleep(30*time.Second - 1)
			if b.count(NoticeStall) != 0 {
				t.Error("a stall before its time")
			}
			time.Sleep(time.Minute)
			if n := b.count(NoticeStall); n != 1 {
				t.Fatalf("%d notices of one stall", n)
			}
			n := b.heard[0]
			if n.Stream != Stderr || n.Starving != Stdout || n.Backlog != 64<<10 || !n.Since.Equal(start) {
				t.Errorf("%+v", n)
			}
			if withError {
				var stall *StallError
				if err := <-first; !errors.As(err, &stall) || *stall != (StallError{Stdout, Stderr, 64 << 10, 30 * time.Second}) {
					t.Fatalf("%v", err)
				}
				first = reading(b.Stdout(), 1) // not sticky
				time.Sleep(time.Second)
			}
			if !withError { // a read that is given up and made again is the same stall
				b.Stdout().SetReadDeadline(time.Now())
				<-first
				b.Stdout().SetReadDeadline(time.Time{})
				first = reading(b.Stdout(), 1)
				time.Sleep(time.Minute)
				if n := b.count(NoticeStall); n != 1 {
					t.Errorf("%d notices of one stall", n)
				}
			}
			b.Stderr().Close()
			if err := <-first; err != nil {
				t.Error(err)
			}
			if st := b.Stats(); st.Stderr.Spilled != 0 {
				t.Error("spilled")
			}
		})
	}
}

func TestEager(t *testing.T) {
	bubble(t, func(o *Options) { o.Eager = true }, func(b *bed) {
		b.send(append(chunks(50, 100_000, Stderr), chunks(50, 100_000, Stdout)...)...)
		close(b.from.events)
		if err := b.Wait(context.Background()); err != nil {
			t.Fatal(err)
		}
		if st := invariant(t, b.Demux); st.Paused != 0 || st.Stdout.LiveDisk < 4_900_000 {
			t.Errorf("%+v", st)
		}
		for _, s := range b.sinks {
			if got, err := io.ReadAll(s); len(got) != 5_000_000 || err != nil {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		}
	})
}

// The withdrawn design fails a reader that is merely slower.
func TestCapError(t *testing.T) {
	bubble(t, func(o *Options) { o.Policy = CapError; o.Cap = 8 << 20 }, func(b *bed) {
		events := append(chunks(9, 1<<20, Stderr), data(Stdout, []byte("x")))
		b.send(events...)
		mustRead(t, b.Stdout(), 1) // the source is read for it, past the stderr of the other
		var over *OverCapError
		if _, err := b.Stderr().Read(make([]byte, 1)); !errors.As(err, &over) || over.Backlog != 9<<20 || over.Cap != 8<<20 {
			t.Fatalf("%v", err)
		}
		st := invariant(t, b.Demux)
		if st.Stderr.PeakMem != 9<<20 || st.Stderr.Discarded != 9<<20 {
			t.Errorf("%+v", st.Stderr)
		}
		if b.from.isClosed() {
			t.Error("the source was closed for one sink")
		}
	})
}

// What the parts of a source have in common is the process that writes them.
func TestPartsShareTheRule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, err := newFeed(), newFeed()
		o := DefaultOptions()
		o.MemPerSink = 64 << 10
		d := launch(parts{out, err}, o, func() (file, error) { return newMemFile(), nil })
		defer d.Close()
		go func() { // the process: stderr first, and stdout when that was taken
			for range 20 {
				err.events <- data(Stderr, make([]byte, 64<<10))
			}
			out.events <- data(Stdout, []byte("x"))
			out.events <- Event{Kind: KindStreamEOF, Stream: Stdout}
			close(out.events)
			close(err.events)
		}()
		start := time.Now()
		mustRead(t, d.Stdout(), 1)
		if took := time.Since(start); took != o.Patience {
			t.Errorf("starved for %v", took)
		}
		if got, err := io.ReadAll(d.Stderr()); len(got) != 20*64<<10 || err != nil {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		invariant(t, d)
	})
}

// A part that fails ends the stream it was, though the other goes on.
func TestPartFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, err := newFeed(), newFeed()
		o := options(Backpressure, t)
		d := launch(parts{out, err}, o, nil)
		defer d.Close()
		out.end = errors.New("broken")
		go func() {
			out.events <- data(Stdout, []byte("x"))
			close(out.events)
		}()
		mustRead(t, d.Stdout(), 1)
		var failed *SourceError
		if _, err := d.Stdout().Read(make([]byte, 1)); !errors.As(err, &failed) {
			t.Error(err)
		}
		err.events <- data(Stderr, []byte("y"))
		mustRead(t, d.Stderr(), 1)
		close(err.events)
		if err := d.Wait(context.Background()); !errors.As(err, &failed) {
			t.Error(err)
		}
	})
}

// A condemned sink whose reader comes back and takes a Quantum is given its
// Patience again.
func TestPatienceIsRenewed(t *testing.T) {
	bubble(t, nil, func(b *bed) {
		o := b.Demux.o
		b.send(append(append(chunks(8, 64<<10, Stderr), data(Stdout, []byte("x"))), append(chunks(8, 64<<10, Stderr), data(Stdout, []byte("y")))...)...)
		start := time.Now()
		mustRead(t, b.Stdout(), 1)
		mustRead(t, b.Stderr(), o.Quantum-1)
		if took := time.Since(start); took != o.Patience {
			t.Errorf("the first byte took %v", took)
		}
		mustRead(t, b.Stderr(), 1)
		mustRead(t, b.Stdout(), 1)
		if took := time.Since(start); took != 2*o.Patience || b.Stats().Stderr.PatienceExpired != 2 {
			t.Errorf("the second came after %v in all, Patience expired %d times", took, b.Stats().Stderr.PatienceExpired)
		}
	})
	bubble(t, nil, func(b *bed) {
		o := b.Demux.o
		b.send(append(append(chunks(8, 64<<10, Stderr), data(Stdout, []byte("x"))), append(chunks(8, 64<<10, Stderr), data(Stdout, []byte("y")))...)...)
		start := time.Now()
		mustRead(t, b.Stdout(), 1)
		mustRead(t, b.Stderr(), o.Quantum-1) // a byte too few
		mustRead(t, b.Stdout(), 1)
		if took := time.Since(start); took != o.Patience {
			t.Errorf("the second byte came after %v in all", took)
		}
	})
}

// Peaks are taken before the reader that waits gets any of it.
func TestPeakOfHandOver(t *testing.T) {
	for _, policy := range []Policy{Spill, Backpressure, Unbounded, CapError} {
		bubble(t, func(o *Options) { o.Policy = policy }, func(b *bed) {
			first := reading(b.Stdout(), 10_000)
			b.send(data(Stdout, make([]byte, 3000)))
			if err := <-first; err != nil {
				t.Error(err)
			}
			if st := invariant(t, b.Demux); st.Stdout.PeakMem != 3000 || st.Stdout.Read != 3000 || st.Stdout.LiveMem != 0 {
				t.Errorf("%v: %+v", policy, st.Stdout)
			}
		})
	}
}
