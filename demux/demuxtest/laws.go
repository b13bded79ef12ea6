package demuxtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing/iotest"
	"time"

	"github.com/sandbed/sandbed/demux"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

// round gives the sizes n−1, n and n+1 for each n.
func round(ns ...int) []int {
	var sizes []int
	for _, n := range ns {
		sizes = append(sizes, n-1, n, n+1)
	}
	return sizes
}

var laws = []law{
	{name: "whole", says: "both readers get every byte in order and then EOF, for one event of any size round a bound", check: func(t *trial) error {
		sizes := []int{0}
		for k := 10; k <= 20; k++ { // 2^k, the window and the block of a spill file among them
			sizes = append(sizes, round(1<<k)...)
		}
		for _, n := range slices.Concat(sizes, round(t.options().MemPerSink+64*kib)) {
			for _, stream := range streams {
				s, err := t.make(newScript(io.EOF, steps(data(stream, n), data(other(stream), 7))), t.options())
				if err != nil {
					return err
				}
				total := map[demux.Stream]int64{stream: int64(n), other(stream): 7}
				if err := errors.Join(s.drainBoth(total[demux.Stdout], total[demux.Stderr], io.EOF), s.end()); err != nil {
					return fmt.Errorf("one event of %d bytes of %v: %w", n, stream, err)
				}
			}
		}
		return nil
	}},

	{name: "chunking", says: "what the readers get does not depend on how the source cuts events or the readers their reads, empty ones among them", check: func(t *trial) error {
		cuts := []int{1, 2, 7, 4*kib - 1, 4 * kib, 4*kib + 1, 64*kib + 1, 300 * kib}
		for _, cut := range cuts {
			for _, size := range []int{1, 13, 4 * kib, 64*kib - 1, 64 * kib, 64*kib + 1, mib} {
				total := min(3*cut*size, 200*cut, 200*size, mib)
				o := t.options()
				o.MemPerSink, o.Quantum, o.Patience = 4*kib, kib, 0
				s, err := t.make(newScript(io.EOF, steps(pieces(total, cut)...)), o)
				if err != nil {
					return err
				}
				read := func(stream demux.Stream) error {
					r, buf := s.reader(stream), make([]byte, size)
					for {
						if n, err := r.sink.Read(nil); n != 0 || err != nil && r.ended == nil && err != io.EOF {
							return fmt.Errorf("%v: Read of no bytes: got %d, %v", stream, n, err)
						}
						if _, err := r.Read(buf); err != nil {
							return s.drain(stream, int64(total), io.EOF)
						}
					}
				}
				done := s.background(func() error { return read(demux.Stderr) })
				if err := errors.Join(read(demux.Stdout), <-done, s.end()); err != nil {
					return fmt.Errorf("events of %d bytes, reads of %d: %w", cut, size, err)
				}
			}
		}
		return nil
	}},

	{name: "oneReader", says: "a reader of one sink gets to its end though nobody touches the other, which is whole afterwards", check: func(t *trial) error {
		for _, variant := range lossless(t.options()) {
			for _, stream := range streams {
				// Case 1: much of one, then little of the other; case 2: much of each.
				for _, big := range [][]step{
					slices.Collect(repeat(64, data(other(stream), 32*kib))),
					slices.Collect(repeat(64, data(other(stream), 32*kib), data(stream, 32*kib))),
				} {
					list := append(slices.Clone(big), data(stream, 4))
					s, err := t.make(newScript(io.EOF, steps(list...)), variant)
					if err != nil {
						return err
					}
					mine, theirs := totals(list, stream), totals(list, other(stream))
					if err := first(
						func() error { return s.drain(stream, mine, io.EOF) },
						func() error { return s.drain(other(stream), theirs, io.EOF) },
						s.audit, s.end,
					); err != nil {
						return fmt.Errorf("%v, patience %v, eager %v, reading %v first: %w", variant.Policy, variant.Patience, variant.Eager, stream, err)
					}
				}
			}
		}
		return nil
	}},

	{name: "stopsReading", says: "a reader that stops without closing is as good as absent, and may come back", check: func(t *trial) error {
		s, err := t.make(newScript(io.EOF, repeat(32, data(demux.Stdout, 64*kib), data(demux.Stderr, 64*kib))), t.options())
		if err != nil {
			return err
		}
		return first(
			func() error { return s.take(demux.Stdout, 64*kib) },
			func() error { return s.drain(demux.Stderr, 2*mib, io.EOF) },
			func() error { time.Sleep(time.Second); return s.drain(demux.Stdout, 2*mib, io.EOF) },
		)
	}},

	{name: "window", says: "with nobody reading, the source goes on for MemPerSink bytes of a sink, then waits until one is read", check: func(t *trial) error {
		for _, mem := range []int{4 * kib, 64 * kib, 256 * kib} {
			for _, n := range slices.Concat(round(mem), round(64*kib)) {
				if n <= 0 {
					continue
				}
				o := t.options()
				o.MemPerSink = mem
				s, err := t.make(newScript(io.EOF, steps(data(demux.Stdout, n))), o)
				if err != nil {
					return err
				}
				if err := s.finished(n <= mem); err != nil {
					return fmt.Errorf("%d bytes, window of %d: %w", n, mem, err)
				}
				if n > mem {
					st, err := s.stats()
					if err != nil {
						return err
					}
					if st.Paused == 0 {
						return fmt.Errorf("%d bytes, window of %d: the source waits and Paused is 0", n, mem)
					}
					if err := s.take(demux.Stdout, int64(n-mem)); err != nil {
						return err
					}
					if err := s.finished(true); err != nil {
						return fmt.Errorf("%d bytes, window of %d, after %d were read: %w", n, mem, n-mem, err)
					}
				}
				if err := errors.Join(s.drainBoth(int64(n), 0, io.EOF), s.end()); err != nil {
					return fmt.Errorf("%d bytes, window of %d: %w", n, mem, err)
				}
			}
		}
		return nil
	}},

	{name: "eager", says: "an eager demultiplexer takes in everything though nobody reads, and gives it all back", check: func(t *trial) error {
		o := t.options()
		o.Eager = true
		for _, n := range slices.Concat(round(64*kib, o.MemPerSink), []int{8 * mib}) {
			list := pieces(n, 32*kib)
			s, err := t.make(newScript(io.EOF, steps(list...)), o)
			if err != nil {
				return err
			}
			if err := errors.Join(s.wait(context.Background()), s.audit(), s.drainBoth(int64(n), int64(n), io.EOF), s.end()); err != nil {
				return fmt.Errorf("%d bytes: %w", n, err)
			}
		}
		return nil
	}},

	{name: "heapBound", says: "memory is bounded by a constant, whatever the volume and the size of events", check: func(t *trial) error {
		for _, eager := range []bool{false, true} {
			for _, c := range []struct{ n, size int }{{100_000, 1}, {4000, 1000}, {64, 64*kib + 1}, {3, 4 * mib}, {1, 8 * mib}} {
				for _, mem := range []int{4 * kib, 64 * kib, 256 * kib} {
					o := t.options()
					o.MemPerSink, o.Eager = mem, eager
					left := c.n
					s, err := t.make(newScriptFunc(io.EOF, func() (step, bool) { left--; return data(demux.Stderr, c.size), left >= 0 }), o)
					if err != nil {
						return err
					}
					total := int64(c.n) * int64(c.size)
					err = first(
						func() error { return s.drain(demux.Stdout, 0, io.EOF) },
						s.audit,
						func() error {
							st, err := s.stats()
							if k := st.Stderr; err == nil && k.PeakMem > uint64(mem+2*64*kib) {
								err = fmt.Errorf("PeakMem is %d, more than MemPerSink and two blocks", k.PeakMem)
							} else if blocks := uint64(total)/uint64(min(mem, 32*kib)) + 100; err == nil && k.SpillWrites > blocks {
								err = fmt.Errorf("%d bytes took %d writes: small events must be put together", total, k.SpillWrites)
							}
							return err
						},
						func() error { return s.drain(demux.Stderr, total, io.EOF) },
						s.audit, s.end,
					)
					if err != nil {
						return fmt.Errorf("%d events of %d bytes, window of %d, eager %v: %w", c.n, c.size, mem, eager, err)
					}
				}
			}
		}
		return nil
	}},

	{name: "accounting", says: "what is live is what was taken in and neither read nor discarded, after every step, and no counter goes back", check: func(t *trial) error {
		rng := rand.New(rand.NewPCG(1, 2))
		for _, o := range lossless(t.options()) {
			o.MemPerSink, o.Quantum = 16*kib, 4*kib
			left := 300
			s, err := t.make(newScriptFunc(io.EOF, func() (step, bool) {
				left--
				return data(streams[rng.IntN(2)], rng.IntN(8*kib)), left >= 0
			}), o)
			if err != nil {
				return err
			}
			before, err := s.stats()
			if err != nil {
				return err
			}
			buf := make([]byte, 8*kib)
			for i := 0; ; i++ {
				_, err := s.out.Read(buf)
				now, _ := s.stats()
				if e := errors.Join(s.audit(), monotone(before, now)); e != nil {
					return fmt.Errorf("%v, after read %d: %w", o.Policy, i, e)
				}
				if uint64(s.out.off) != now.Stdout.Read {
					return fmt.Errorf("%v: Read is %d after %d bytes were read", o.Policy, now.Stdout.Read, s.out.off)
				}
				if before = now; err != nil {
					break
				}
			}
			st := before.Stderr
			if b, ok := s.err.sink.(bufferer); ok && uint64(b.Buffered()) != st.LiveMem+st.LiveDisk {
				return fmt.Errorf("%v: Buffered is %d, LiveMem + LiveDisk %d", o.Policy, b.Buffered(), st.LiveMem+st.LiveDisk)
			}
			if before.SourceBytes != uint64(s.src.bytes.Load()) || st.Enqueued+before.Stdout.Enqueued != before.SourceBytes {
				return fmt.Errorf("%v: SourceBytes %d, Enqueued %d + %d, of %d delivered", o.Policy, before.SourceBytes, before.Stdout.Enqueued, st.Enqueued, s.src.bytes.Load())
			}
			s.err.sink.Close()
			after, _ := s.stats()
			if after.Stderr.Discarded != st.LiveMem+st.LiveDisk {
				return fmt.Errorf("%v: closing with %d live discarded %d", o.Policy, st.LiveMem+st.LiveDisk, after.Stderr.Discarded)
			}
			if err := errors.Join(balanced(after), monotone(before, after), s.end()); err != nil {
				return err
			}
		}
		return nil
	}},

	{name: "freesDisk", says: "what was read leaves the disk: spilled bytes are given back while the sink is open", check: func(t *trial) error {
		o := t.options()
		o.Patience = 0
		left := 512
		s, err := t.make(newScriptFunc(io.EOF, func() (step, bool) { left--; return data(demux.Stderr, 64*kib), left >= 0 }), o)
		if err != nil {
			return err
		}
		if err := s.drain(demux.Stdout, 0, io.EOF); err != nil {
			return err
		}
		st, err := s.stats()
		if err != nil {
			return err
		}
		if st.Stderr.LiveDisk < 31*mib || st.SpillFiles == 0 {
			return fmt.Errorf("of 32 MiB unread %d bytes are on disk in %d files", st.Stderr.LiveDisk, st.SpillFiles)
		}
		if err := s.take(demux.Stderr, 16*mib); err != nil {
			return err
		}
		if used, ok := diskUse(t.dir); ok && used > 16*mib*4097/4096+mib+128*kib {
			return fmt.Errorf("with 16 MiB unread the spill file occupies %d bytes", used)
		}
		if err := s.drain(demux.Stderr, 32*mib, io.EOF); err != nil {
			return err
		}
		if used, ok := diskUse(t.dir); ok && used > 0 {
			return fmt.Errorf("with nothing unread the spill file occupies %d bytes", used)
		}
		return nil
	}},

	{name: "secret", says: "a spill file has no name, mode 0600, and is not inherited by a child", check: func(t *trial) error {
		o := t.options()
		o.Patience = 0
		s, err := t.make(newScript(io.EOF, repeat(64, data(demux.Stderr, 64*kib))), o)
		if err != nil {
			return err
		}
		if err := s.drain(demux.Stdout, 0, io.EOF); err != nil {
			return err
		}
		files := spillFiles(t.dir)
		if st, err := s.stats(); err == nil && runtime.GOOS == "linux" && st.SpillFiles != len(files) {
			return fmt.Errorf("SpillFiles is %d and %d are open", st.SpillFiles, len(files))
		}
		for _, f := range files {
			if err := f.secret(); err != nil {
				return err
			}
		}
		if names, _ := filepath.Glob(filepath.Join(t.dir, "*")); runtime.GOOS == "linux" && len(names) > 0 {
			return fmt.Errorf("the spill directory shows %q", names)
		}
		s.err.sink.Close()
		if files := spillFiles(t.dir); len(files) != 0 {
			return fmt.Errorf("after Close of the sink %d spill files are open", len(files))
		}
		return nil
	}},

	{name: "backpressure", says: "under Backpressure the source waits, nothing goes to disk, the stall is reported by name and ends when the full sink is read or closed", check: func(t *trial) error {
		for _, closes := range []bool{false, true} {
			o := t.options()
			o.Policy = demux.Backpressure
			o.StallAfter, o.StallError = 50*time.Millisecond, true
			n := 4 * o.MemPerSink
			s, err := t.make(newScript(io.EOF, steps(data(demux.Stderr, n), data(demux.Stdout, 4))), o)
			if err != nil {
				return err
			}
			var stall *demux.StallError
			for i := range 3 { // not sticky: each tries again
				if _, err := s.out.Read(make([]byte, 1)); !errors.As(err, &stall) {
					return fmt.Errorf("read %d of the starving reader: got %v, want a StallError", i, err)
				}
				if stall.Starving != demux.Stdout || stall.Full != demux.Stderr || stall.Backlog < int64(o.MemPerSink) || stall.Waited < o.StallAfter {
					return fmt.Errorf("the stall says %+v", stall)
				}
			}
			st, err := s.stats()
			if err != nil {
				return err
			}
			if st.Stderr.Spilled != 0 || st.Stderr.LiveMem > uint64(o.MemPerSink) {
				return fmt.Errorf("backpressure spilled %d bytes and holds %d in memory", st.Stderr.Spilled, st.Stderr.LiveMem)
			}
			stalls := s.noticed(demux.NoticeStall, 1)
			if len(stalls) == 0 || stalls[0].Stream != demux.Stderr || stalls[0].Starving != demux.Stdout {
				return fmt.Errorf("the notices of the stall are %+v", stalls)
			}
			rest := s.background(func() error {
				if closes {
					return s.err.sink.Close()
				}
				return s.drain(demux.Stderr, int64(n), io.EOF)
			})
			err = s.retry(demux.Stdout)
			if err := errors.Join(err, <-rest, s.drain(demux.Stdout, 4, io.EOF), s.end()); err != nil {
				return err
			}
		}
		return nil
	}},

	{name: "pauseRelease", says: "a source that waits for a full sink goes on when that sink is read or closed, and ends when all is closed", check: func(t *trial) error {
		for _, policy := range []demux.Policy{demux.Spill, demux.Backpressure} {
			for _, release := range []string{"read", "close", "close both", "close other, then read", "Close"} {
				o := t.options()
				o.Policy, o.Patience = policy, -1
				s, err := t.make(newScript(io.EOF, steps(data(demux.Stderr, 3*o.MemPerSink), data(demux.Stdout, 10))), o)
				if err != nil {
					return err
				}
				if err := s.until("paused", func(st demux.Stats) bool { return st.Paused > 0 }); err != nil {
					return err
				}
				total := int64(3 * o.MemPerSink)
				switch release {
				case "read":
					err = s.drainBoth(10, total, io.EOF)
				case "close":
					err = errors.Join(s.err.sink.Close(), s.drain(demux.Stdout, 10, io.EOF))
				case "close both":
					err = errors.Join(s.out.sink.Close(), s.err.sink.Close(), s.sourceCloses())
				case "close other, then read":
					err = errors.Join(s.out.sink.Close(), s.drain(demux.Stderr, total, io.EOF))
				case "Close":
					blocked := s.background(func() error { return s.drain(demux.Stdout, 0, demux.ErrClosed) })
					err = errors.Join(s.Demux.Close(), <-blocked, s.sourceCloses())
				}
				if err := errors.Join(err, s.end()); err != nil {
					return fmt.Errorf("%v, %s: %w", policy, release, err)
				}
			}
		}
		return nil
	}},

	{name: "fillDrain", says: "a sink that was filled to its bound and drained to nothing is as good as new, many times over", check: func(t *trial) error {
		for _, policy := range []demux.Policy{demux.Spill, demux.Backpressure} {
			o := t.options()
			o.Policy, o.MemPerSink, o.Quantum = policy, 4*kib, 1
			const rounds = 2000
			s, err := t.make(newScript(io.EOF, repeat(rounds, data(demux.Stdout, 4*kib))), o)
			if err != nil {
				return err
			}
			for i := range rounds {
				if err := errors.Join(s.take(demux.Stdout, 4*kib), s.audit()); err != nil {
					return fmt.Errorf("%v, round %d: %w", policy, i, err)
				}
			}
			if err := errors.Join(s.drain(demux.Stdout, rounds*4*kib, io.EOF), s.end()); err != nil {
				return fmt.Errorf("%v: %w", policy, err)
			}
		}
		return nil
	}},

	{name: "closeOne", says: "closing a sink frees it at once, ends its blocked Read with ErrClosed, and leaves the other alone", check: func(t *trial) error {
		for _, policy := range []demux.Policy{demux.Spill, demux.Backpressure} {
			for _, stream := range streams {
				o := t.options()
				o.Policy = policy
				gate := make(chan struct{})
				list := slices.Concat(
					slices.Collect(repeat(4, data(stream, 64*kib))),
					slices.Collect(repeat(64, data(other(stream), 8*kib), data(stream, 64*kib))))
				src := newScript(io.EOF, steps(list...))
				src.gate = func(ctx context.Context) error {
					select {
					case <-gate:
						return nil
					case <-src.closed:
						return errSourceClosed
					}
				}
				s, err := t.make(src, o)
				if err != nil {
					return err
				}
				blocked := s.background(func() error { return s.drain(stream, 0, demux.ErrClosed) })
				time.Sleep(time.Millisecond) // so that it mostly blocks before Close
				if err := errors.Join(s.reader(stream).sink.Close(), s.reader(stream).sink.Close(), <-blocked); err != nil {
					return fmt.Errorf("%v, closing %v: %w", policy, stream, err)
				}
				close(gate)
				if err := s.drain(other(stream), 64*8*kib, io.EOF); err != nil {
					return fmt.Errorf("%v, after closing %v: %w", policy, stream, err)
				}
				if st, err := s.stats(); err == nil && (st.Sink(stream).LiveMem+st.Sink(stream).LiveDisk != 0 || st.Sink(stream).Read != 0) {
					return fmt.Errorf("%v: a closed sink holds %+v", policy, st.Sink(stream))
				}
				if err := s.end(); err != nil {
					return err
				}
			}
		}
		return nil
	}},

	{name: "closeFull", says: "closing a sink that holds a backlog in memory and on disk frees both and lets the source go on", check: func(t *trial) error {
		for _, patience := range []time.Duration{0, -1} {
			o := t.options()
			o.Patience = patience
			s, err := t.make(newScript(io.EOF, steps(slices.Concat(
				slices.Collect(repeat(64, data(demux.Stderr, 32*kib), data(demux.Stdout, 1))),
				slices.Collect(repeat(64, data(demux.Stderr, 32*kib))), []step{data(demux.Stdout, 9)})...)), o)
			if err != nil {
				return err
			}
			if patience == 0 {
				err = s.take(demux.Stdout, 64)
			} else {
				err = s.until("paused", func(st demux.Stats) bool { return st.Paused > 0 })
			}
			if err != nil {
				return err
			}
			err = s.err.sink.Close()
			if st, e := s.stats(); e == nil && (st.Stderr.LiveMem+st.Stderr.LiveDisk != 0 || st.SpillFiles != 0 || st.Stderr.Discarded == 0) {
				err = errors.Join(err, fmt.Errorf("just after Close: %+v in %d files", st.Stderr, st.SpillFiles))
			}
			if err := errors.Join(err, s.drain(demux.Stdout, 73, io.EOF), s.end()); err != nil {
				return fmt.Errorf("patience %v: %w", patience, err)
			}
		}
		return nil
	}},

	{name: "closeBoth", says: "closing both sinks closes the source, unless it is to be drained", check: func(t *trial) error {
		for _, keep := range []bool{false, true} {
			o := t.options()
			o.KeepDraining = keep
			left := 200
			s, err := t.make(newScriptFunc(map[bool]error{true: io.EOF}[keep], func() (step, bool) {
				left--
				return data(streams[left&1], 32*kib), left >= 0
			}), o)
			if err != nil {
				return err
			}
			if err := errors.Join(s.take(demux.Stdout, 10), s.out.sink.Close(), s.err.sink.Close()); err != nil {
				return err
			}
			if keep {
				err = errors.Join(s.wait(context.Background()))
				if n := s.src.bytes.Load(); n != 200*32*kib {
					err = errors.Join(err, fmt.Errorf("KeepDraining took %d of %d bytes", n, 200*32*kib))
				}
			} else {
				err = s.sourceCloses()
			}
			for _, r := range []*checked{s.out, s.err} {
				if _, e := r.Read(make([]byte, 1)); !errors.Is(e, demux.ErrClosed) || !errors.Is(e, os.ErrClosed) {
					err = errors.Join(err, fmt.Errorf("%v: Read after Close: got %v, want ErrClosed", r.stream, e))
				}
			}
			if err := errors.Join(err, s.end()); err != nil {
				return fmt.Errorf("KeepDraining %v: %w", keep, err)
			}
		}
		return nil
	}},

	{name: "control", says: "events that carry no data fill no queue and hold up nobody", check: func(t *trial) error {
		left := 100_000
		s, err := t.make(newScriptFunc(io.EOF, func() (step, bool) {
			left--
			switch {
			case left%1000 == 0:
				return data(demux.Stderr, 100), left >= 0
			case left%3 == 0:
				return data(demux.Stdout, 0), left >= 0
			}
			return step{kind: demux.KindUnknown, stream: demux.Stream(left % 7), n: 0}, left >= 0
		}), t.options())
		if err != nil {
			return err
		}
		if err := errors.Join(s.drain(demux.Stdout, 0, io.EOF), s.drain(demux.Stderr, 100*100, io.EOF), s.audit()); err != nil {
			return err
		}
		st, err := s.stats()
		if err != nil {
			return err
		}
		if st.SourceEvents != 100_000 || st.UnknownEvents < 66_000 || st.UnknownEvents > 67_000 {
			return fmt.Errorf("of 100000 events %d were counted, %d as unknown", st.SourceEvents, st.UnknownEvents)
		}
		return nil
	}},

	{name: "exit", says: "after an exit event data may follow, then both sinks end with EOF though the source stays open, and Wait tells how the process ended", check: func(t *trial) error {
		failed := errors.New("exit status 3")
		for _, exit := range []error{nil, failed} {
			o := t.options()
			o.ExitDrain = 50 * time.Millisecond
			s, err := t.make(newScript(nil, steps(data(demux.Stdout, 5), step{kind: demux.KindExit, err: exit}, data(demux.Stderr, 6))), o)
			if err != nil {
				return err
			}
			if err := errors.Join(s.drain(demux.Stdout, 5, io.EOF), s.drain(demux.Stderr, 6, io.EOF), s.sourceCloses()); err != nil {
				return err
			}
			switch err := s.wait(context.Background()); {
			case errors.Is(err, errNotOffered):
				return err
			case !errors.Is(err, exit):
				return fmt.Errorf("wait: got %v, want %v", err, exit)
			}
			if err := s.end(); err != nil {
				return err
			}
		}
		return nil
	}},

	{name: "ends", says: "a source that fails or breaks off gives both readers all its data, then a typed error that stays, never EOF", check: func(t *trial) error {
		broken := errors.New("connection reset")
		long := make([]byte, 10*mib)
		Fill(demux.Stdout, 0, long)
		for _, c := range []struct {
			name string
			end  error
			last []step
			want func(error) bool
		}{
			{"breaks off", io.ErrUnexpectedEOF, nil, func(err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) }},
			{"fails", broken, nil, func(err error) bool { var s *demux.SourceError; return errors.As(err, &s) && errors.Is(err, broken) }},
			{"remote", io.EOF, []step{{kind: demux.KindRemoteError, err: errors.New("no such container")}},
				func(err error) bool {
					var r *demux.RemoteError
					return errors.As(err, &r) && r.Text == "no such container"
				}},
			{"remote, long", io.EOF, []step{{kind: demux.KindRemoteError, err: errors.New(string(long))}},
				func(err error) bool {
					var r *demux.RemoteError
					return errors.As(err, &r) && len(r.Text) <= 64*kib && len(r.Text) > 60*kib
				}},
		} {
			for _, mode := range []string{"prompt", "late", "one"} {
				list := append(pieces(300*kib, 10*kib), c.last...)
				o := t.options()
				o.Eager = mode == "late"
				s, err := t.make(newScript(c.end, steps(list...)), o)
				if err != nil {
					return err
				}
				read := func(stream demux.Stream) error {
					_, err := io.Copy(io.Discard, struct{ io.Reader }{s.reader(stream)})
					for i := range 3 {
						if r := s.reader(stream); r.off != 300*kib || err == nil || err == io.EOF || !c.want(err) {
							return fmt.Errorf("%v: end %d after %d of %d bytes: got %.200v", stream, i, r.off, 300*kib, err)
						}
						_, err = s.reader(stream).Read(make([]byte, 9))
					}
					return nil
				}
				switch mode {
				case "late":
					time.Sleep(time.Second)
					err = errors.Join(read(demux.Stdout), read(demux.Stderr))
				case "one":
					err = errors.Join(read(demux.Stderr), read(demux.Stdout))
				default:
					done := s.background(func() error { return read(demux.Stderr) })
					err = errors.Join(read(demux.Stdout), <-done)
				}
				if err := errors.Join(err, s.end()); err != nil {
					return fmt.Errorf("%s, %s: %w", c.name, mode, err)
				}
			}
		}
		return nil
	}},

	{name: "streamEOF", says: "one stream may end while the other goes on", check: func(t *trial) error {
		for _, stream := range streams {
			list := slices.Concat([]step{data(stream, 10), eof(stream)}, slices.Collect(repeat(100, data(other(stream), 10*kib))))
			hold := make(chan struct{})
			src := newScript(io.EOF, steps(list...))
			src.gate = func(context.Context) error {
				if src.off[other(stream)] > 0 {
					select {
					case <-hold:
					case <-src.closed:
					}
				}
				return nil
			}
			s, err := t.make(src, t.options())
			if err != nil {
				return err
			}
			if err := s.drain(stream, 10, io.EOF); err != nil {
				return fmt.Errorf("while the source goes on: %w", err)
			}
			close(hold)
			if err := errors.Join(s.drain(other(stream), 1000*kib, io.EOF), s.end()); err != nil {
				return err
			}
		}
		return nil
	}},

	{name: "cutEverywhere", says: "of a source that breaks off after any byte each reader gets its exact prefix, then ErrUnexpectedEOF", check: func(t *trial) error {
		list := []step{data(demux.Stdout, 100), data(demux.Stderr, 1), data(demux.Stderr, 250), data(demux.Stdout, 3), data(demux.Stdout, 400), data(demux.Stderr, 20)}
		total := int(totals(list, demux.Stdout) + totals(list, demux.Stderr))
		for cut := range total + 1 {
			var part []step
			left := cut
			for _, st := range list {
				if st.n = min(st.n, left); st.n > 0 {
					part = append(part, st)
				}
				left -= st.n
			}
			s, err := t.make(newScript(io.ErrUnexpectedEOF, steps(part...)), t.options())
			if err != nil {
				return err
			}
			if err := errors.Join(s.drainBoth(totals(part, demux.Stdout), totals(part, demux.Stderr), io.ErrUnexpectedEOF), s.end()); err != nil {
				return fmt.Errorf("cut at byte %d of %d: %w", cut, total, err)
			}
		}
		return nil
	}},

	{name: "gaps", says: "bytes lost upstream are recorded beside the stream, bounded in number, and change none of its bytes", check: func(t *trial) error {
		s, err := t.make(newScript(io.EOF, steps(gap(demux.Stdout, 5), data(demux.Stdout, 100), gap(demux.Stdout, -1), gap(demux.Stderr, 7), data(demux.Stdout, 50), gap(demux.Stdout, 1))), t.options())
		if err != nil {
			return err
		}
		if err := s.drainBoth(150, 0, io.EOF); err != nil {
			return err
		}
		g, ok := s.out.sink.(gapper)
		if !ok {
			return fmt.Errorf("%w: Gaps", errNotOffered)
		}
		if got, want := g.Gaps(), []demux.Gap{{Offset: 0, Lost: 5}, {Offset: 100, Lost: -1}, {Offset: 150, Lost: 1}}; !slices.Equal(got, want) {
			return fmt.Errorf("the gaps are %v, want %v", got, want)
		}
		if err := s.end(); err != nil {
			return err
		}

		const many = 100_000
		left := 2 * many
		s, err = t.make(newScriptFunc(io.EOF, func() (step, bool) {
			if left--; left&1 == 1 {
				return gap(demux.Stderr, 1), left >= 0
			}
			return data(demux.Stderr, 1), left >= 0
		}), t.options())
		if err != nil {
			return err
		}
		if err := errors.Join(s.drain(demux.Stdout, 0, io.EOF), s.drain(demux.Stderr, many, io.EOF), s.audit()); err != nil {
			return err
		}
		if g := s.err.sink.(gapper).Gaps(); len(g) != 64 {
			return fmt.Errorf("of %d gaps %d are kept, want 64", many, len(g))
		}
		if st, err := s.stats(); err == nil && (st.Stderr.Gaps != many || st.Stderr.GapsMerged != many-64) {
			return fmt.Errorf("of %d gaps %d were counted and %d merged", many, st.Stderr.Gaps, st.Stderr.GapsMerged)
		}
		return nil
	}},

	{name: "strictGaps", says: "under StrictGaps a Read stops where bytes were lost, says so once, and the next goes on", check: func(t *trial) error {
		for _, late := range []bool{false, true} {
			o := t.options()
			o.StrictGaps, o.Eager = true, late
			s, err := t.make(newScript(io.EOF, steps(data(demux.Stdout, 70*kib), gap(demux.Stdout, 3), data(demux.Stdout, 300*kib), gap(demux.Stdout, -1))), o)
			if err != nil {
				return err
			}
			if late {
				if err := s.wait(context.Background()); err != nil {
					return err
				}
			}
			for _, want := range []demux.Gap{{Offset: 70 * kib, Lost: 3}, {Offset: 370 * kib, Lost: -1}} {
				_, err := io.Copy(io.Discard, struct{ io.Reader }{s.out})
				var g *demux.GapError
				if !errors.As(err, &g) || g.Gap != want || s.out.off != want.Offset {
					return fmt.Errorf("late %v: at offset %d: got %v, want a GapError of %v", late, s.out.off, err, want)
				}
			}
			if err := errors.Join(s.drain(demux.Stdout, 370*kib, io.EOF), s.end()); err != nil {
				return err
			}
		}
		return nil
	}},

	{name: "deadline", says: "a Read that its deadline or context ends loses nothing, and the sink goes on", check: func(t *trial) error {
		src := newScript(io.EOF, repeat(50, data(demux.Stdout, 1000)))
		feed := make(chan struct{})
		src.gate = func(ctx context.Context) error {
			select {
			case <-feed:
				return nil
			case <-src.closed:
				return errSourceClosed
			}
		}
		s, err := t.make(src, t.options())
		if err != nil {
			return err
		}
		d, hasDeadline := s.out.sink.(deadliner)
		c, hasContext := s.out.sink.(contextReader)
		if !hasDeadline && !hasContext {
			return fmt.Errorf("%w: deadlines", errNotOffered)
		}
		buf := make([]byte, 700)
		for i := range 50 {
			if hasDeadline {
				for _, at := range []time.Time{time.Now().Add(-time.Second), time.Now().Add(time.Millisecond)} {
					if err := d.SetReadDeadline(at); err != nil {
						return err
					}
					for range 2 {
						if n, err := s.out.Read(buf); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
							return fmt.Errorf("read with a passed deadline: got %d, %v", n, err)
						}
					}
				}
				d.SetReadDeadline(time.Time{})
			}
			if hasContext {
				ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
				if n, err := s.out.judge(buf)(c.ReadContext(ctx, buf)); n != 0 || !errors.Is(err, context.DeadlineExceeded) {
					cancel()
					return fmt.Errorf("read with an ended context: got %d, %v", n, err)
				}
				cancel()
			}
			feed <- struct{}{}
			if err := s.take(demux.Stdout, 1000); err != nil {
				return fmt.Errorf("after interrupted reads, event %d: %w", i, err)
			}
		}
		close(feed)
		return s.drain(demux.Stdout, 50*1000, io.EOF)
	}},

	{name: "zero", says: "an event or a Read of no bytes means nothing", check: func(t *trial) error {
		policies := append(lossless(t.options()), t.options(), t.options())
		policies[4].Policy, policies[5].Policy = demux.Backpressure, demux.CapError
		for _, o := range policies {
			src := newScript(nil, steps(data(demux.Stdout, 0), data(demux.Stderr, 0), data(demux.Stdout, 3), data(demux.Stdout, 0)))
			held := make(chan struct{})
			src.gate = func(context.Context) error {
				select {
				case <-held:
				case <-src.closed:
				}
				return nil
			}
			release := sync.OnceFunc(func() { close(held) })
			s, err := t.make(src, o)
			if err != nil {
				release()
				return err
			}
			waiting := s.background(func() error { return s.take(demux.Stdout, 3) })
			time.Sleep(time.Millisecond)
			n, err := s.err.sink.Read([]byte{})
			if n != 0 || err != nil { // it is empty, and must not wait
				err = fmt.Errorf("a Read of no bytes: got %d, %v", n, err)
			}
			release()
			if err := errors.Join(err, <-waiting, s.end()); err != nil {
				return fmt.Errorf("%v: %w", o.Policy, err)
			}
		}
		return nil
	}},

	{name: "writeTo", says: "WriteTo gives all to its writer, and what a failing writer did not take can still be read", check: func(t *trial) error {
		full := errors.New("writer is full")
		for _, eager := range []bool{false, true} {
			for _, fail := range []error{full, nil} {
				for _, limit := range append(round(64*kib, 256*kib), -1, 0, 700*kib) {
					o := t.options()
					o.Eager = eager
					const total = 800 * kib
					s, err := t.make(newScript(io.EOF, steps(pieces(total, 17*kib)...)), o)
					if err != nil {
						return err
					}
					wt, ok := s.out.sink.(io.WriterTo)
					if !ok {
						return fmt.Errorf("%w: WriteTo", errNotOffered)
					}
					other := s.background(func() error { return s.drain(demux.Stderr, total, io.EOF) })
					if eager {
						if err := s.wait(context.Background()); err != nil {
							return err
						}
					}
					w := &writer{checked: checked{stream: demux.Stdout}, limit: int64(limit), err: fail}
					n, err := wt.WriteTo(w)
					want := fail
					if fail == nil {
						want = io.ErrShortWrite
					}
					if limit < 0 {
						want = nil
					}
					if !errors.Is(err, want) || want == nil && err != nil || n != w.off {
						return fmt.Errorf("eager %v: a writer of %d bytes: got %d, %v; %d were accepted", eager, limit, n, err, w.off)
					}
					s.out.off = w.off
					if err := errors.Join(s.drain(demux.Stdout, total, io.EOF), <-other, s.end()); err != nil {
						return fmt.Errorf("eager %v: after a writer of %d bytes: %w", eager, limit, err)
					}
				}
			}
		}
		return nil
	}},

	{name: "iotest", says: "both sinks are proper io.Readers by testing/iotest", check: func(t *trial) error {
		for _, eager := range []bool{false, true} {
			for _, n := range []int{0, 1, 1000, 300 * kib} {
				o := t.options()
				o.Eager = eager
				s, err := t.make(newScript(io.EOF, steps(pieces(n, 977)...)), o)
				if err != nil {
					return err
				}
				test := func(stream demux.Stream) error {
					content := make([]byte, n)
					Fill(stream, 0, content)
					return iotest.TestReader(struct{ io.Reader }{s.reader(stream).sink}, content)
				}
				done := s.background(func() error { return test(demux.Stderr) })
				if err := errors.Join(test(demux.Stdout), <-done, s.end()); err != nil {
					return fmt.Errorf("%d bytes: %w", n, err)
				}
			}
		}
		return nil
	}},

	{name: "patience", says: "a starving reader waits Patience and no longer, then never again while the other is absent; a reader that consumes a Quantum in each Patience is never spilled past", check: func(t *trial) error {
		o := t.options()
		o.MemPerSink, o.Quantum = 64*kib, 64*kib
		s, err := t.make(newScript(io.EOF, repeat(100, data(demux.Stderr, 64*kib), data(demux.Stdout, 10))), o)
		if err != nil {
			return err
		}
		begun := time.Now()
		if err := s.drain(demux.Stdout, 1000, io.EOF); err != nil {
			return err
		}
		took := time.Since(begun)
		st, err := s.stats()
		if err != nil {
			return err
		}
		if took < o.Patience || st.Stderr.PatienceExpired != 1 || st.Stdout.StarvedMax < o.Patience {
			return fmt.Errorf("an absent reader was spilled past after %v, %d times; the longest wait was %v", took, st.Stderr.PatienceExpired, st.Stdout.StarvedMax)
		}
		if len(s.noticed(demux.NoticeSpilling, 1)) != 1 {
			return fmt.Errorf("the notices of the spill are %+v", s.notices)
		}
		if err := errors.Join(s.drain(demux.Stderr, 100*64*kib, io.EOF), s.end()); err != nil {
			return err
		}

		// The live reader takes its Quantum by the clock of a generous Patience, so
		// that a slow host does not make it a dead one.
		o.Patience = 10 * time.Second
		s, err = t.make(newScript(io.EOF, repeat(50, data(demux.Stderr, 64*kib), data(demux.Stdout, 10))), o)
		if err != nil {
			return err
		}
		starving := s.background(func() error { return s.drain(demux.Stdout, 500, io.EOF) })
		for range 50 {
			if err := s.take(demux.Stderr, 64*kib); err != nil {
				return err
			}
			time.Sleep(5 * time.Millisecond)
		}
		if err := errors.Join(<-starving, s.drain(demux.Stderr, 50*64*kib, io.EOF)); err != nil {
			return err
		}
		if st, _ := s.stats(); st.Stderr.Spilled != 0 {
			return fmt.Errorf("a live reader was spilled past: %d bytes", st.Stderr.Spilled)
		}
		if err := s.end(); err != nil {
			return err
		}

		// Nor does it have to be fast for the sake of a stream that says nothing.
		o.Patience = time.Second
		s, err = t.make(newScript(io.EOF, repeat(300, data(demux.Stderr, 64*kib))), o)
		if err != nil {
			return err
		}
		silent := s.background(func() error { return s.drain(demux.Stdout, 0, io.EOF) })
		for range 300 {
			if err := s.take(demux.Stderr, 64*kib); err != nil {
				return err
			}
			time.Sleep(5 * time.Millisecond)
		}
		if err := errors.Join(<-silent, s.drain(demux.Stderr, 300*64*kib, io.EOF)); err != nil {
			return err
		}
		if st, _ := s.stats(); st.Stderr.Spilled != 0 {
			return fmt.Errorf("a live reader was spilled past for a silent stream: %d bytes", st.Stderr.Spilled)
		}
		return nil
	}},

	{name: "slowReader", says: "a reader that is slower than the source for a long time gets every byte, in constant memory", check: func(t *trial) error {
		for _, o := range lossless(t.options()) {
			s, err := t.make(newScript(io.EOF, repeat(100, data(demux.Stderr, 40*kib), data(demux.Stdout, 40*kib))), o)
			if err != nil {
				return err
			}
			prompt := s.background(func() error { return s.drain(demux.Stdout, 4000*kib, io.EOF) })
			for range 100 {
				if err := errors.Join(s.take(demux.Stderr, 40*kib), s.audit()); err != nil {
					return err
				}
				time.Sleep(time.Millisecond)
			}
			if err := errors.Join(<-prompt, s.drain(demux.Stderr, 4000*kib, io.EOF), s.end()); err != nil {
				return fmt.Errorf("%v: %w", o.Policy, err)
			}
		}
		return nil
	}},

	{name: "spillFull", says: "when the disk takes no more nothing is lost, it is noticed once an episode, the owner reads on, and the starving reader gets a typed error that is not sticky", check: func(t *trial) error {
		for _, quota := range []int64{1, 64 * kib, 300 * kib, mib} {
			o := t.options()
			o.Patience, o.MaxSpill, o.SpillFullGrace, o.StallAfter = 0, quota, 50*time.Millisecond, 0
			const total = 3 * mib
			s, err := t.make(newScript(io.EOF, steps(append(slices.Collect(repeat(total/(32*kib), data(demux.Stderr, 32*kib))), data(demux.Stdout, 5))...)), o)
			if err != nil {
				return err
			}
			var full *demux.SpillFullError
			for i := range 3 {
				if _, err := s.out.Read(make([]byte, 9)); !errors.As(err, &full) || full.Full != demux.Stderr || full.Backlog == 0 {
					return fmt.Errorf("quota %d, read %d of the starving reader: got %v, want a SpillFullError", quota, i, err)
				}
			}
			st, err := s.stats()
			if err != nil {
				return err
			}
			if live := st.Stderr.LiveDisk; live > uint64(quota) || st.Degraded != 1 || st.DegradedErr == nil {
				return fmt.Errorf("quota %d: %d bytes on disk, %d episodes, last error %v", quota, live, st.Degraded, st.DegradedErr)
			}
			if n := len(s.noticed(demux.NoticeSpillFull, 1)); n != 1 {
				return fmt.Errorf("quota %d: %d notices of one episode", quota, n)
			}
			owner := s.background(func() error { return s.drain(demux.Stderr, total, io.EOF) })
			err = s.retry(demux.Stdout)
			if err := errors.Join(err, <-owner, s.drain(demux.Stdout, 5, io.EOF)); err != nil {
				return fmt.Errorf("quota %d: %w", quota, err)
			}
			st, _ = s.stats()
			if n := len(s.noticed(demux.NoticeSpillFull, int(st.Degraded))); uint64(n) != st.Degraded {
				return fmt.Errorf("quota %d: %d notices of %d episodes", quota, n, st.Degraded)
			}
			if err := s.end(); err != nil {
				return err
			}
		}
		return nil
	}},

	{name: "capError", says: "CapError fails a sink beyond its cap and not at it, after what it holds, and leaves the other alone", check: func(t *trial) error {
		o := t.options()
		o.Policy, o.Cap = demux.CapError, 512*kib
		o.MemPerSink = 4 * kib // so that one event is more than the window
		s, err := t.make(newScript(io.EOF, repeat(200, data(demux.Stderr, 10*kib), data(demux.Stdout, 1))), o)
		if err != nil {
			return err
		}
		for i := range 200 {
			if err := errors.Join(s.take(demux.Stdout, 1), s.take(demux.Stderr, 10*kib)); err != nil {
				return fmt.Errorf("a sink that is never far behind, event %d: %w", i, err)
			}
		}
		if err := errors.Join(s.drainBoth(200, 2000*kib, io.EOF), s.end()); err != nil {
			return err
		}
		for _, n := range round(512 * kib) {
			s, err := t.make(newScript(io.EOF, steps(append(pieces1(demux.Stderr, n, 10*kib), data(demux.Stdout, 5))...)), o)
			if err != nil {
				return err
			}
			if err := s.drain(demux.Stdout, 5, io.EOF); err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, struct{ io.Reader }{s.err})
			var over *demux.OverCapError
			if errors.As(err, &over) != (n > o.Cap) || n <= o.Cap && (err != nil || s.err.off != int64(n)) {
				return fmt.Errorf("%d bytes under a cap of %d: got %v after %d bytes", n, o.Cap, err, s.err.off)
			}
			if _, again := s.err.Read(make([]byte, 1)); over != nil && !errors.As(again, &over) {
				return fmt.Errorf("the error is not sticky: then %v", again)
			}
			if err := s.end(); err != nil {
				return err
			}
		}
		return nil
	}},

	{name: "usage", says: "options that cannot be meant are refused by name, before the source is touched", check: func(t *trial) error {
		for field, set := range map[string]func(*demux.Options){
			"Options.MemPerSink":  func(o *demux.Options) { o.MemPerSink = 4*kib - 1 },
			"Options.MemPerSink ": func(o *demux.Options) { o.MemPerSink = 1<<30 + 1 },
			"Options.Quantum":     func(o *demux.Options) { o.Quantum = 0 },
			"Options.Cap":         func(o *demux.Options) { o.Policy, o.Cap = demux.CapError, 0 },
			"Options.Policy":      func(o *demux.Options) { o.Policy = 9 },
			"Options.MaxSpill":    func(o *demux.Options) { o.MaxSpill = -1 },
			"Options.SpillDir":    func(o *demux.Options) { o.SpillDir = filepath.Join(t.dir, "missing") },
			"Options.SpillDir ": func(o *demux.Options) {
				o.SpillDir = filepath.Join(t.dir, "file")
				os.WriteFile(o.SpillDir, nil, 0o600)
			},
		} {
			o := t.options()
			set(&o)
			src := newScript(io.EOF, steps())
			s, err := t.make(src, o)
			if errors.Is(err, errNotOffered) {
				continue
			}
			var usage *demux.UsageError
			if !errors.As(err, &usage) || usage.Field != string(slices.DeleteFunc([]byte(field), func(b byte) bool { return b == ' ' })) || usage.Allowed == "" {
				if s != nil {
					s.end()
				}
				return fmt.Errorf("%s: got %v, want a UsageError that names it and the remedy", field, err)
			}
			if src.asked.Load() != 0 {
				return fmt.Errorf("%s: the source was asked", field)
			}
		}
		return nil
	}},

	{name: "memoryBacked", says: "a spill directory that is memory is refused, unless allowed", check: func(t *trial) error {
		dir := "/dev/shm"
		if !isMemory(dir) {
			return fmt.Errorf("%w: %s is no tmpfs on this system", errNotOffered, dir)
		}
		o := t.options()
		o.SpillDir, o.AllowMemoryBacked = dir, false
		s, err := t.make(newScript(io.EOF, steps()), o)
		if err == nil {
			s.end()
		}
		if errors.Is(err, errNotOffered) {
			return err
		}
		var usage *demux.UsageError
		if !errors.Is(err, demux.ErrMemoryBacked) || !errors.As(err, &usage) || usage.Allowed == "" {
			return fmt.Errorf("a SpillDir on tmpfs: got %v, want ErrMemoryBacked in a UsageError that says what to do", err)
		}
		o.AllowMemoryBacked = true
		s, err = t.make(newScript(io.EOF, steps()), o)
		if err != nil {
			return fmt.Errorf("a SpillDir on tmpfs that is allowed: %w", err)
		}
		return s.end()
	}},

	{name: "corrupt", says: "of a spill file that does not give back what was written the reader gets a right prefix, then SpillReadError; the other sink is untouched", check: func(t *trial) error {
		if runtime.GOOS != "linux" {
			return fmt.Errorf("%w: the spill file is found by /proc", errNotOffered)
		}
		for _, at := range []int64{0, 3, 15, 16, 17, 40_000, 64*kib - 1, 64 * kib, 64*kib + 1, 700_001} {
			o := t.options()
			o.Patience = 0
			const total = 2 * mib
			s, err := t.make(newScript(io.EOF, steps(append(slices.Collect(repeat(total/(32*kib), data(demux.Stderr, 32*kib))), data(demux.Stdout, 5))...)), o)
			if err != nil {
				return err
			}
			if err := s.drain(demux.Stdout, 5, io.EOF); err != nil {
				return err
			}
			files := spillFiles(t.dir)
			if len(files) != 1 {
				return fmt.Errorf("%w: %d spill files found", errNotOffered, len(files))
			}
			if err := files[0].flip(at); err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, struct{ io.Reader }{s.err})
			var bad *demux.SpillReadError
			if !errors.As(err, &bad) || s.err.off >= total || bad.Offset != s.err.off {
				return fmt.Errorf("byte %d of the spill file flipped: got %v after %d bytes", at, err, s.err.off)
			}
			if _, again := s.err.Read(make([]byte, 1)); !errors.As(again, &bad) {
				return fmt.Errorf("the error is not sticky: then %v", again)
			}
			if st, err := s.stats(); err == nil && st.SpillFiles != 0 {
				return fmt.Errorf("the spill file stays open after it was found bad")
			}
			if err := s.end(); err != nil {
				return err
			}
		}
		return nil
	}},

	{name: "kept", says: "the bytes of an event are not kept beyond it", check: func(t *trial) error {
		// The script spoils them; here they lie in a buffer of the source's own and in
		// the Demux's, with a reader that comes late.
		o := t.options()
		for _, n := range []int{100, 64 * kib, 200 * kib} {
			s, err := t.make(newScript(io.EOF, repeat(2, data(demux.Stdout, n/2), data(demux.Stderr, n/2))), o)
			if err != nil {
				return err
			}
			if err := errors.Join(s.finished(true), s.drain(demux.Stdout, int64(n/2*2), io.EOF), s.drain(demux.Stderr, int64(n/2*2), io.EOF), s.end()); err != nil {
				return err
			}
		}
		return nil
	}},

	{name: "storm", says: "Read, Close, SetReadDeadline, Stats, Buffered and WriteTo may be called from any goroutines at once", real: true, check: storm},

	{name: "leaks", says: "no goroutine and no descriptor is left, however it ended", real: true, check: func(t *trial) error {
		cycle := func() error {
			for _, how := range []string{"read", "unread", "half", "closed", "broken", "silent"} {
				o := t.options()
				o.Patience = 0
				var end error = io.EOF
				switch how {
				case "broken":
					end = io.ErrUnexpectedEOF
				case "silent":
					end = nil
				}
				s, err := t.make(newScript(end, repeat(30, data(demux.Stderr, 32*kib), data(demux.Stdout, 10))), o)
				if err != nil {
					return err
				}
				switch how {
				case "read":
					err = s.drainBoth(300, 960*kib, io.EOF)
				case "half":
					err = s.take(demux.Stdout, 300)
				case "closed":
					err = errors.Join(s.take(demux.Stdout, 150), s.out.sink.Close(), s.err.sink.Close())
				case "broken":
					err = s.drain(demux.Stdout, 300, io.ErrUnexpectedEOF)
				case "silent":
					err = errors.Join(s.take(demux.Stdout, 300), s.take(demux.Stderr, 960*kib))
					blocked := s.background(func() error { return s.drain(demux.Stdout, 300, demux.ErrClosed) })
					time.Sleep(time.Millisecond)
					err = errors.Join(err, s.Demux.Close(), <-blocked)
				}
				if err := errors.Join(err, s.end()); err != nil {
					return fmt.Errorf("%s: %w", how, err)
				}
			}
			t.made = nil
			return nil
		}
		if err := cycle(); err != nil { // what the first one sets up for good is no leak
			return err
		}
		goroutines, files := runtime.NumGoroutine(), descriptors()
		for range 5 {
			if err := cycle(); err != nil {
				return err
			}
		}
		for pause := time.Millisecond; runtime.NumGoroutine() > goroutines; pause *= 2 {
			if pause > 2*time.Second {
				return fmt.Errorf("%d goroutines before, %d after", goroutines, runtime.NumGoroutine())
			}
			time.Sleep(pause)
		}
		if now := descriptors(); now > files {
			return fmt.Errorf("%d descriptors before, %d after", files, now)
		}
		return nil
	}},
}

// storm lets many goroutines at one demultiplexer; it is for the race detector
// and for what they find.
func storm(t *trial) error {
	for round := range 12 {
		o := lossless(t.options())[round%4]
		o.MemPerSink, o.Quantum, o.Patience = 8*kib, kib, min(o.Patience, 100*time.Microsecond)
		rng := rand.New(rand.NewPCG(uint64(round), 3))
		left := 2000
		s, err := t.make(newScriptFunc(io.EOF, func() (step, bool) {
			left--
			return data(streams[rng.IntN(2)], rng.IntN(3*kib)), left >= 0
		}), o)
		if err != nil {
			return err
		}
		var read [3]atomic.Int64
		var stop atomic.Bool
		var readers, others sync.WaitGroup
		fail := make(chan error, 1)
		report := func(err error) {
			select {
			case fail <- err:
			default:
			}
		}
		for _, stream := range streams {
			sink := s.reader(stream).sink
			for i := range 3 {
				readers.Go(func() {
					buf := make([]byte, 100<<i)
					for {
						n, err := sink.Read(buf)
						read[stream].Add(int64(n))
						switch {
						case n == 0 && err == nil:
							report(breach("%v: Read returned 0, nil", stream))
							return
						case err != nil && !transient(err):
							if err != io.EOF && !errors.Is(err, demux.ErrClosed) {
								report(err)
							}
							return
						}
					}
				})
			}
			others.Go(func() {
				for !stop.Load() {
					if d, ok := sink.(deadliner); ok {
						d.SetReadDeadline(time.Now().Add(50 * time.Microsecond))
						time.Sleep(20 * time.Microsecond)
						d.SetReadDeadline(time.Time{})
					}
					if b, ok := sink.(bufferer); ok && b.Buffered() < 0 {
						report(breach("%v: Buffered is negative", stream))
					}
					time.Sleep(100 * time.Microsecond)
				}
				if d, ok := sink.(deadliner); ok {
					d.SetReadDeadline(time.Time{})
				}
			})
		}
		others.Go(func() {
			for !stop.Load() {
				if err := s.audit(); err != nil {
					report(err)
				}
				time.Sleep(50 * time.Microsecond)
			}
		})
		closes := round%3 == 2
		if closes { // in the middle, from two goroutines
			for range 2 {
				others.Go(func() {
					for read[1].Load() < 100*kib && !stop.Load() {
						time.Sleep(50 * time.Microsecond)
					}
					s.err.sink.Close()
					if round%2 == 0 {
						s.Demux.Close()
					}
				})
			}
		}
		readers.Wait()
		stop.Store(true)
		others.Wait()
		select {
		case err := <-fail:
			return fmt.Errorf("round %d: %w", round, err)
		default:
		}
		if !closes && read[1].Load()+read[2].Load() != s.src.bytes.Load() {
			return fmt.Errorf("round %d: %d + %d bytes were read of %d delivered", round, read[1].Load(), read[2].Load(), s.src.bytes.Load())
		}
		if err := s.end(); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
	return nil
}

// lossless are the options under which a reader of one sink needs no other.
func lossless(o demux.Options) []demux.Options {
	p0, eager, unbounded := o, o, o
	p0.Patience = 0
	eager.Eager = true
	unbounded.Policy = demux.Unbounded
	return []demux.Options{o, p0, eager, unbounded}
}

// retry reads until an error is not one that says to try again.
func (s *subject) retry(stream demux.Stream) error {
	var err error
	for range 1000 {
		if _, err = s.reader(stream).Read(make([]byte, 8)); err == nil || !transient(err) {
			return err
		}
	}
	return fmt.Errorf("still after 1000 tries: %w", err)
}

// pieces is total bytes of each stream in turns, in events of size bytes.
func pieces(total, size int) []step {
	var list []step
	for left := total; left > 0; left -= size {
		list = append(list, data(demux.Stdout, min(left, size)), data(demux.Stderr, min(left, size)))
	}
	return list
}

// pieces1 is total bytes of one stream in events of size bytes.
func pieces1(s demux.Stream, total, size int) []step {
	var list []step
	for left := total; left > 0; left -= size {
		list = append(list, data(s, min(left, size)))
	}
	return list
}

func totals(list []step, s demux.Stream) int64 {
	var n int64
	for _, st := range list {
		if st.kind == demux.KindData && st.stream == s {
			n += int64(st.n)
		}
	}
	return n
}

// finished checks whether the source has ended though nobody reads.
func (s *subject) finished(want bool) error {
	limit := time.Minute
	if !want {
		limit = 50 * time.Millisecond // nothing can show that it never ends
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	err := s.wait(ctx)
	if errors.Is(err, errNotOffered) {
		return err
	}
	if got := err == nil; got != want {
		return fmt.Errorf("the source has ended: %v (%v), want %v", got, err, want)
	}
	return nil
}

// sourceCloses waits for the source to be closed.
func (s *subject) sourceCloses() error {
	t := time.NewTimer(time.Minute)
	defer t.Stop()
	select {
	case <-s.src.closed:
		return nil
	case <-t.C:
		return errors.New("the source was not closed")
	}
}
