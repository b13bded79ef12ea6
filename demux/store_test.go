package demux

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// spilled is a bed whose stderr holds n MiB, most of it on disk.
func spilled(t *testing.T, n int, change func(*Options), f func(b *bed, want []byte)) {
	t.Helper()
	bubble(t, func(o *Options) {
		o.Eager = true
		if change != nil {
			change(o)
		}
	}, func(b *bed) {
		want := bytesOf(n<<20, Stderr)
		b.send(data(Stderr, want))
		f(b, want)
	})
}

// The disk takes no more at write n: nothing is lost, one notice, the owner goes
// on, the starving reader is told after the grace and may try again.
func TestDiskFull(t *testing.T) {
	for i, errno := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EIO, syscall.EFBIG, syscall.EROFS} {
		for _, n := range []int{1, 2, 7} {
			for k, short := range []int{0, 1, 15, 16, 17, 65535} {
				if k > 1 && k%5 != i {
					continue // any error goes with any length
				}
				bubble(t, nil, func(b *bed) {
					full := true
					first := newMemFile()
					b.Demux.open = func() (file, error) { return first, nil }
					first.fault = func(i int) (int, error) {
						if full && i >= n {
							return short, errno
						}
						return 0, nil
					}
					want := bytesOf(2<<20, Stderr)
					b.send(data(Stderr, want), data(Stdout, []byte("x")))
					p := make([]byte, 1)
					for range 2 { // not sticky, and again after a grace of its own
						start := time.Now()
						_, err := b.Stdout().Read(p)
						var e *SpillFullError
						if !errors.As(err, &e) || !errors.Is(err, errno) || e.Full != Stderr || e.Backlog != b.Stderr().Buffered() {
							t.Fatalf("%v", err)
						}
						if took := time.Since(start); took < b.Demux.o.SpillFullGrace || took > b.Demux.o.SpillFullGrace+b.Demux.o.Patience {
							t.Errorf("after %v", took)
						}
					}
					// Two graces and backoff from 10 ms to 1 s: no storm.
					if first.writes > n+25 {
						t.Errorf("%d writes", first.writes)
					}
					// The owner reads, whatever the disk does.
					sameBytes(t, "stderr", mustRead(t, b.Stderr(), 70_000), want[:70_000])
					full = false
					mustRead(t, b.Stdout(), 1)
					sameBytes(t, "stderr", mustRead(t, b.Stderr(), len(want)-70_000), want[70_000:])
					if full, resumed := b.count(NoticeSpillFull), b.count(NoticeSpillResumed); full != 1 || resumed != 1 {
						t.Errorf("%d and %d notices of one episode", full, resumed)
					}
					if st := invariant(t, b.Demux); st.Degraded != 1 || st.DegradedErr != errno || st.DegradedTotal < 10*time.Second {
						t.Errorf("%d episodes, %v, %v", st.Degraded, st.DegradedTotal, st.DegradedErr)
					}
				})
			}
		}
	}
}

// No descriptor is free at the first spill.
func TestNoDescriptor(t *testing.T) {
	bubble(t, func(o *Options) { o.SpillFullGrace = -1 }, func(b *bed) {
		var opens int
		b.Demux.open = func() (file, error) {
			if opens++; opens < 5 {
				return nil, syscall.EMFILE
			}
			return newMemFile(), nil
		}
		b.send(append(chunks(20, 64<<10, Stderr), data(Stdout, []byte("x")))...)
		start := time.Now()
		mustRead(t, b.Stdout(), 1)
		// 20 ms, then 10, 20, 40, 80.
		if took := time.Since(start); took != 170*time.Millisecond || opens != 5 {
			t.Errorf("%d opens in %v", opens, took)
		}
	})
}

// What the owner reads is room: the next try does not wait for its time.
func TestReleaseRetriesAtOnce(t *testing.T) {
	bubble(t, func(o *Options) { o.MaxSpill, o.Patience, o.SpillFullGrace = 200_000, 0, -1 }, func(b *bed) {
		want := bytesOf(1<<20, Stderr)
		b.send(data(Stderr, want), data(Stdout, []byte("x")))
		first := reading(b.Stdout(), 1)
		time.Sleep(10*maxRetry + 1) // backoff is at its longest, and has just begun
		st := invariant(t, b.Demux)
		if st.Degraded != 1 || !errors.Is(st.DegradedErr, errQuota) {
			t.Fatalf("%+v", st)
		}
		now := time.Now()
		for i := range 16 {
			sameBytes(t, "stderr", mustRead(t, b.Stderr(), 64<<10), want[i<<16:(i+1)<<16])
			synctest.Wait()
			// The first block off the disk is room for one more on it.
			if st := invariant(t, b.Demux); i == 1 && st.Stderr.Spilled < 250_000 {
				t.Errorf("%d bytes spilled", st.Stderr.Spilled)
			}
		}
		if err := <-first; err != nil {
			t.Error(err)
		}
		if took := time.Since(now); took != 0 {
			t.Errorf("took %v", took)
		}
	})
}

// Close waits for the block that is under way, and the file is closed after it.
func TestCloseDuringWrite(t *testing.T) {
	bubble(t, func(o *Options) { o.Eager = true }, func(b *bed) {
		f := newMemFile()
		b.Demux.open = func() (file, error) { return f, nil }
		inWrite, goOn := make(chan struct{}), make(chan struct{})
		f.fault = func(int) (int, error) {
			close(inWrite)
			<-goOn
			return 0, nil
		}
		b.send(data(Stderr, make([]byte, 100_000)))
		<-inWrite
		closed := make(chan struct{})
		go func() {
			b.Stderr().Close()
			close(closed)
		}()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("closed while a block was being written")
		default:
		}
		if n := b.Stderr().Buffered(); n != 0 {
			t.Errorf("%d bytes are still unread", n)
		}
		close(goOn)
		<-closed
		if !f.closed || b.Stats().SpillFiles != 0 {
			t.Error("the file is open")
		}
	})
}

// A byte of the file that changed is found, wherever it is: all before its block
// is delivered, nothing after, and the other stream is whole.
func TestFlippedByte(t *testing.T) {
	const blocks = 3
	r := rand.New(rand.NewPCG(1, 2))
	where := []int64{0, 3, 4, 7, 8, 11, 12, 15, 16, 17, blockSize - 1, blockSize, blockSize + 15, blockSize + 16, 2*blockSize - 1}
	for range 50 {
		where = append(where, r.Int64N(blocks*blockSize))
	}
	for _, flip := range where {
		spilled(t, 1, nil, func(b *bed, want []byte) {
			b.files[0].flip = flip
			b.send(data(Stdout, []byte("whole")))
			got, err := io.ReadAll(b.Stderr())
			var bad *SpillReadError
			if !errors.As(err, &bad) || bad.Offset != int64(len(got)) || errors.Is(err, io.EOF) {
				t.Fatalf("byte %d: %v after %d bytes", flip, err, len(got))
			}
			if mem := blockSize - headerSize; int64(len(got)) != int64(flip/blockSize)*int64(mem) {
				t.Errorf("byte %d: %d bytes came", flip, len(got))
			}
			sameBytes(t, "prefix", got, want[:len(got)])
			if _, err := b.Stderr().Read(make([]byte, 1)); !errors.As(err, &bad) {
				t.Errorf("then %v", err)
			}
			if !b.files[0].closed {
				t.Error("the file is still there")
			}
			mustRead(t, b.Stdout(), 5)
			b.send(data(Stderr, []byte("more")), data(Stdout, []byte("more")))
			mustRead(t, b.Stdout(), 4)
			if b.from.isClosed() {
				t.Error("the source was closed for one sink")
			}
		})
	}
}

func TestUnreadableFile(t *testing.T) {
	for name, spoil := range map[string]func(f *memFile){
		"EIO":         func(f *memFile) { f.readErr = syscall.EIO },
		"cut":         func(f *memFile) { f.cut = blockSize + 100 },
		"cut to zero": func(f *memFile) { f.cut = 0 },
		"swapped": func(f *memFile) {
			a, b := bytes.Clone(f.data[:blockSize]), f.data[blockSize:2*blockSize]
			copy(f.data, b)
			copy(b, a)
		},
	} {
		spilled(t, 1, nil, func(b *bed, want []byte) {
			spoil(b.files[0])
			got, err := io.ReadAll(b.Stderr())
			var bad *SpillReadError
			if !errors.As(err, &bad) || errors.Is(err, io.EOF) {
				t.Fatalf("%s: %v", name, err)
			}
			sameBytes(t, name, got, want[:len(got)])
		})
	}
}

// What was read is given back, in steps of 1 MiB, and all of it when it was the last.
func TestRelease(t *testing.T) {
	spilled(t, 8, nil, func(b *bed, want []byte) {
		f := b.files[0]
		for i := range 8 {
			sameBytes(t, "stderr", mustRead(t, b.Stderr(), 1<<20), want[i<<20:(i+1)<<20])
			st := invariant(t, b.Demux)
			onDisk := int64(len(f.data)) - f.punched
			if st.Stderr.LiveDisk == 0 {
				onDisk = int64(len(f.data))
			}
			backlog := int64(st.Stderr.LiveDisk)
			if limit := backlog + backlog/4096 + 1<<20; onDisk > limit {
				t.Errorf("after %d MiB: %d bytes on disk for %d unread ones", i+1, onDisk, backlog)
			}
		}
		if len(f.data) != 0 {
			t.Errorf("%d bytes left of a file with nothing unread", len(f.data))
		}
		if st := b.Stats(); st.Stderr.Released < 8<<20-256<<10 {
			t.Errorf("released %d", st.Stderr.Released)
		}
		// And it begins anew.
		b.send(data(Stderr, want))
		sameBytes(t, "second time", mustRead(t, b.Stderr(), len(want)), want)
	})
}

// Events of a byte cost a write per block and no memory. STRESS=1 takes ten million.
func TestTinyEvents(t *testing.T) {
	n := 1_000_000
	if os.Getenv("STRESS") == "1" {
		n *= 10
	} else if raceEnabled {
		n /= 10
	}
	o := DefaultOptions()
	o.Eager = true
	src := &count{n: n}
	d := launch(src, o, func() (file, error) { return newMemFile(), nil })
	defer d.Close()
	if err := d.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	st := invariant(t, d)
	if got, most := st.Stderr.SpillWrites, uint64(n/(blockSize-headerSize)+1); got > most {
		t.Errorf("%d writes, want at most %d", got, most)
	}
	got, err := io.ReadAll(d.Stderr())
	if err != nil || len(got) != n {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	for i, c := range got {
		if c != byte(i^i>>8) {
			t.Fatalf("byte %d", i)
		}
	}
}

// count is n events of a byte.
type count struct {
	i, n int
	one  [1]byte
}

func (c *count) Next(context.Context, []byte) (Event, error) {
	if c.i == c.n {
		return Event{}, io.EOF
	}
	c.one[0] = byte(c.i ^ c.i>>8)
	c.i++
	return data(Stderr, c.one[:]), nil
}

func (c *count) Close() error { return nil }

// The reader is in the middle of the only block when that goes to disk.
func TestSpillWhatIsBeingWritten(t *testing.T) {
	bubble(t, func(o *Options) { o.MemPerSink = 4 << 10; o.Patience = 0 }, func(b *bed) {
		want := bytesOf(100_000, Stderr)
		b.send(data(Stderr, want), data(Stdout, []byte("x")))
		r, w := io.Pipe()
		go func() {
			b.Stderr().WriteTo(w) // waits in Write, which pins a block
			w.Close()
		}()
		synctest.Wait()
		mustRead(t, b.Stdout(), 1)
		if st := invariant(t, b.Demux); st.Stderr.LiveDisk == 0 {
			t.Error("nothing on disk")
		}
		close(b.from.events)
		got, err := io.ReadAll(r)
		if err != nil {
			t.Error(err)
		}
		sameBytes(t, "stderr", got, want)
	})
}

func TestCloseFreesAtOnce(t *testing.T) {
	spilled(t, 4, nil, func(b *bed, _ []byte) {
		first := reading(b.Stdout(), 1)
		b.Stderr().Close()
		st := invariant(t, b.Demux)
		if !b.files[0].closed || st.SpillFiles != 0 || st.Stderr.Discarded != 4<<20 || b.Stderr().Buffered() != 0 {
			t.Errorf("%+v", st)
		}
		if st.HeapReserved != sourceBuffer {
			t.Errorf("%d bytes of buffers are held", st.HeapReserved)
		}
		b.send(data(Stderr, make([]byte, 1<<20)), data(Stdout, []byte("x")))
		if err := <-first; err != nil {
			t.Error(err)
		}
		if st := invariant(t, b.Demux); st.Stderr.Discarded != 5<<20 {
			t.Errorf("%+v", st.Stderr)
		}
	})
}
