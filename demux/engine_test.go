package demux

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// script yields data events: 'O' and 'E' are chunks of a size, numbered per stream.
func script(order string, size int) func(yield func(Event, error) bool) {
	return func(yield func(Event, error) bool) {
		var n [2]int
		buf := make([]byte, size)
		for _, c := range order {
			s := Stdout
			if c == 'E' {
				s = Stderr
			}
			fill(buf, s, n[s-1])
			n[s-1]++
			if !yield(Event{Kind: KindData, Stream: s, Data: buf}, nil) {
				return
			}
		}
	}
}

// fill writes what event n of a stream holds.
func fill(buf []byte, s Stream, n int) {
	x := uint64(n+1)*0x9e3779b97f4a7c15 + uint64(s)
	for i := 0; i < len(buf); i += 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		if i+8 <= len(buf) {
			binary.LittleEndian.PutUint64(buf[i:], x)
			continue
		}
		for k := i; k < len(buf); k++ {
			buf[k] = byte(x >> (8 * (k - i)))
		}
	}
}

// want is what a stream of script is.
func want(order string, size int, s Stream) []byte {
	var out []byte
	n := 0
	buf := make([]byte, size)
	for _, c := range order {
		if (c == 'E') != (s == Stderr) {
			continue
		}
		fill(buf, s, n)
		n++
		out = append(out, buf...)
	}
	return out
}

func options(p Policy, t testing.TB) Options {
	o := DefaultOptions()
	o.Policy = p
	o.SpillDir = spillTestDir(t)
	return o
}

// spillTestDir is a directory on a disk.
func spillTestDir(t testing.TB) string {
	for _, dir := range []string{t.TempDir(), "/var/tmp", "."} {
		if usableDir(dir, false) == nil {
			return dir
		}
	}
	t.Fatal("no directory on a disk")
	return os.TempDir()
}

func TestBothPrompt(t *testing.T) {
	for _, policy := range []Policy{Spill, Backpressure, Unbounded, CapError} {
		for _, size := range []int{1, 65520, 150_000} {
			t.Run(policy.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					const order = "OEOOEEOOOEEEOEOEOEEE"
					d, err := New(FromEvents(script(order, size)), options(policy, t))
					if err != nil {
						t.Fatal(err)
					}
					var wg sync.WaitGroup
					for _, s := range []Stream{Stdout, Stderr} {
						wg.Go(func() {
							got, err := io.ReadAll(d.Sink(s))
							if err != nil || !bytes.Equal(got, want(order, size, s)) {
								t.Errorf("%v: %d bytes, %v", s, len(got), err)
							}
						})
					}
					wg.Wait()
					if err := d.Wait(context.Background()); err != nil {
						t.Error(err)
					}
					d.Close()
				})
			})
		}
	}
}

func TestAbsent(t *testing.T) {
	for _, size := range []int{100, 65536, 150_000} {
		for _, patience := range []time.Duration{0, 20 * time.Millisecond} {
			synctest.Test(t, func(t *testing.T) {
				order := string(bytes.Repeat([]byte("OEE"), 16))
				o := options(Spill, t)
				o.MemPerSink = 64 << 10
				o.Patience = patience
				d, err := New(FromEvents(script(order, size)), o)
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range []Stream{Stdout, Stderr} {
					got, err := io.ReadAll(d.Sink(s))
					if err != nil || !bytes.Equal(got, want(order, size, s)) {
						t.Errorf("%v: %d bytes, %v", s, len(got), err)
					}
				}
				d.Close()
			})
		}
	}
}

// Found by TestDemuxModel of package properties: a sink that was read empty, and whose end
// its reader had not asked for, kept its blocks after Close.
func TestCloseFreesWhatWasReadToTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFeed()
		d := launch(src, DefaultOptions(), func() (file, error) { return newMemFile(), nil })
		src.events <- data(Stdout, bytesOf(4096, Stdout))
		synctest.Wait() // in a block: no reader waits
		mustRead(t, d.Stdout(), 4096)
		src.events <- Event{Kind: KindStreamEOF, Stream: Stdout}
		synctest.Wait()
		d.Close()
		synctest.Wait()
		if st := d.Stats(); st.HeapReserved != 0 {
			t.Errorf("after Close %d bytes are reserved", st.HeapReserved)
		}
	})
}

// Found by TestDemuxModel of package properties: the only block was not full, and the room
// beside it was less than the pump wanted, so that it waited for a reader who may never come.
func TestSpillWithoutAFullBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(Spill, t)
		o.MemPerSink = 4096
		src := newFeed()
		d := launch(src, o, func() (file, error) { return newMemFile(), nil })
		defer d.Close()
		go func() {
			src.events <- data(Stdout, bytesOf(35_000, Stdout))
			src.events <- data(Stderr, bytesOf(100, Stderr))
		}()
		synctest.Wait()
		mustRead(t, d.Stdout(), 4095) // one byte is left, and a block that takes all but one
		synctest.Wait()
		mustRead(t, d.Stdout(), 1000) // room for 1000 bytes, when 1024 are worth while
		d.Stderr().SetReadDeadline(time.Now().Add(time.Hour))
		mustRead(t, d.Stderr(), 100)
	})
}
