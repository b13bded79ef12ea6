package demux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestModel runs random schedules against two byte slices. SCHEDULES is how many.
func TestModel(t *testing.T) {
	n := 300
	if raceEnabled {
		n = 60
	}
	if v := os.Getenv("SCHEDULES"); v != "" {
		var err error
		if n, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	for seed := range n {
		synctest.Test(t, func(t *testing.T) { schedule(t, uint64(seed)) })
		if t.Failed() {
			t.Fatalf("repeat: SCHEDULES=%d, seed %d", seed+1, seed)
		}
	}
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func schedule(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 4))
	o := DefaultOptions()
	o.Policy = pick(r, Spill, Spill, Spill, Spill, Backpressure, Unbounded)
	o.MemPerSink = pick(r, 4<<10, 5000, 64<<10, 65519, 65521, 100<<10, 256<<10)
	o.Patience = pick(r, 0, time.Millisecond, 20*time.Millisecond)
	o.Quantum = pick(r, 1, 4096, 64<<10)
	o.Eager = o.Policy == Spill && r.IntN(4) == 0
	o.StrictGaps = r.IntN(2) == 0
	o.StallAfter = pick(r, 0, 50*time.Millisecond)
	o.StallError = o.StallAfter > 0 && r.IntN(2) == 0
	o.SpillFullGrace = pick(r, 0, 30*time.Millisecond, -1)
	faults := o.Policy == Spill && r.IntN(3) == 0
	if r.IntN(4) == 0 {
		o.MaxSpill = int64(pick(r, 4096, 70000, 300000))
	}
	scale := pick(r, 10, 3000, 100_000, 300_000)

	var model [2][]byte
	var gaps [2][]Gap
	var gmu sync.Mutex // of gaps
	frand := rand.New(rand.NewPCG(seed, 5))
	src := FromEvents(func(yield func(Event, error) bool) {
		r := rand.New(rand.NewPCG(seed, 6))
		buf := make([]byte, scale)
		for range 2 + r.IntN(60) {
			i := r.IntN(2)
			switch x := r.IntN(40); {
			case x < 36:
				p := buf[:1+r.IntN(scale)]
				fill(p, Stream(i+1), len(model[i]))
				model[i] = append(model[i], p...)
				if !yield(data(Stream(i+1), p), nil) {
					return
				}
				clear(p)
			case x < 37:
				gmu.Lock()
				gaps[i] = append(gaps[i], Gap{int64(len(model[i])), 7})
				gmu.Unlock()
				if !yield(Event{Kind: KindTruncated, Stream: Stream(i + 1), Lost: 7}, nil) {
					return
				}
			case x < 38:
				if !yield(Event{Kind: KindUnknown}, nil) {
					return
				}
			default:
				time.Sleep(time.Duration(r.IntN(40)) * time.Millisecond)
			}
		}
	})
	var fmu sync.Mutex
	open := func() (file, error) {
		fmu.Lock()
		defer fmu.Unlock()
		f := newMemFile()
		if faults {
			if frand.IntN(4) == 0 {
				return nil, syscall.EMFILE
			}
			f.fault = func(int) (int, error) {
				fmu.Lock()
				defer fmu.Unlock()
				if frand.IntN(3) == 0 {
					return frand.IntN(70000), pick(frand, syscall.ENOSPC, syscall.EIO, syscall.EDQUOT)
				}
				return 0, nil
			}
		}
		return f, nil
	}
	d := launch(src, o, open)
	var got [2][]byte
	var closed [2]bool
	var wg sync.WaitGroup
	absent := r.IntN(5) - 1 // which reader comes when the other is done, if any
	over := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
	for i, s := range d.sinks {
		r := rand.New(rand.NewPCG(seed, uint64(10+i)))
		wg.Go(func() {
			defer close(over[i])
			if i == absent && o.Policy != Backpressure {
				// Unless the disk is full: then nobody but this reader can help.
				select {
				case <-over[1-i]:
				case <-time.After(time.Hour):
				}
			}
			closed[i] = readRandomly(t, r, d, s, &got[i], scale, func() []Gap {
				gmu.Lock()
				defer gmu.Unlock()
				return gaps[i]
			})
		})
	}
	wg.Wait()
	st := invariant(t, d)
	if !closed[0] && !closed[1] {
		if err := d.Wait(context.Background()); err != nil {
			t.Error(err)
		}
		if st.Stdout.Enqueued != uint64(len(model[0])) || st.Stderr.Enqueued != uint64(len(model[1])) {
			t.Errorf("accepted %d and %d of %d and %d", st.Stdout.Enqueued, st.Stderr.Enqueued, len(model[0]), len(model[1]))
		}
		for i, s := range d.sinks {
			if fmt.Sprint(s.Gaps()) != fmt.Sprint(gaps[i]) {
				t.Errorf("%v: gaps %v, want %v", s.stream, s.Gaps(), gaps[i])
			}
		}
	}
	d.Close()
	d.Wait(context.Background()) // the source may sleep
	for i, s := range d.sinks {
		if len(got[i]) > len(model[i]) {
			t.Fatalf("%v: read %d bytes, there were %d", s.stream, len(got[i]), len(model[i]))
		}
		want := model[i]
		if closed[i] {
			want = want[:len(got[i])]
		}
		sameBytes(t, s.stream.String(), got[i], want)
	}
	if st := invariant(t, d); st.SpillFiles != 0 || st.Stdout.LiveMem+st.Stderr.LiveMem != 0 {
		t.Errorf("after Close: %+v", st)
	}
}

// limitedWriter takes n bytes.
type limitedWriter struct {
	to *[]byte
	n  int
}

var errLimit = errors.New("full")

func (w *limitedWriter) Write(p []byte) (int, error) {
	time.Sleep(time.Millisecond)
	n := min(w.n, len(p))
	*w.to = append(*w.to, p[:n]...)
	w.n -= n
	if n < len(p) {
		return n, errLimit
	}
	return n, nil
}

func readRandomly(t *testing.T, r *rand.Rand, d *Demux, s *Sink, got *[]byte, scale int, gaps func() []Gap) (closed bool) {
	pace := pick(r, 0, 0, 1, 30)
	big := pick(r, 1, scale, 2*scale, 70_000)
	told := 0
	for step := 0; ; step++ {
		if pace > 0 && r.IntN(3) == 0 {
			time.Sleep(time.Duration(r.IntN(pace+1)) * time.Millisecond)
		}
		invariant(t, d)
		var err error
		p := make([]byte, 1+r.IntN(big))
		if big == 1 && step > 500 {
			p = make([]byte, 10_000)
		}
		n := 0
		switch x := r.IntN(100); {
		case x == 0 && r.IntN(4) == 0:
			s.Close()
			if _, err := s.Read(p); err != ErrClosed {
				t.Errorf("after Close: %v", err)
			}
			return true
		case x < 5:
			s.SetReadDeadline(time.Now().Add(time.Duration(r.IntN(3)) * time.Millisecond))
			n, err = s.Read(p)
			s.SetReadDeadline(time.Time{})
		case x < 10:
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.IntN(3))*time.Millisecond)
			n, err = s.ReadContext(ctx, p)
			cancel()
		case x < 15:
			_, err = s.WriteTo(&limitedWriter{got, len(p)})
			if err == nil {
				err = io.EOF
			}
		default:
			n, err = s.Read(p)
		}
		if n > 0 && err != nil || n == 0 && err == nil {
			t.Errorf("Read returned %d, %v", n, err)
		}
		*got = append(*got, p[:n]...)
		var gap *GapError
		var full *SpillFullError
		var stall *StallError
		switch {
		case err == nil, err == errLimit, errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		case errors.As(err, &gap):
			if mine := gaps(); told >= len(mine) || mine[told] != gap.Gap || int64(len(*got)) != gap.Gap.Offset {
				t.Errorf("%v at %d: %v", s.stream, len(*got), err)
			}
			told++
		case errors.As(err, &full), errors.As(err, &stall):
			time.Sleep(5 * time.Millisecond)
		case err == io.EOF:
			if _, err := s.Read(p); err != io.EOF {
				t.Errorf("after the end: %v", err)
			}
			return false
		default:
			t.Errorf("%v: %v", s.stream, err)
			return false
		}
	}
}
