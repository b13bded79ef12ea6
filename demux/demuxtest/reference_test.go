package demuxtest

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sandbed/sandbed/demux"
)

// reference is a demultiplexer made to be read, not to be fast: one lock, one
// condition, the rules of package demux written down one after the other. With a
// fault it is what the suite must reject.
type reference struct {
	o     demux.Options
	fault string

	mu      sync.Mutex
	change  *sync.Cond
	src     demux.Source
	cancel  context.CancelFunc
	sinks   [3]*refSink
	st      demux.Stats
	ended   bool // the pump is done
	endErr  error
	exited  bool
	exitErr error
	closed  bool
	held    bool
	full    bool // the disk takes no more
	fullErr error
	notices chan demux.Notice
	leak    chan struct{}
	kept    []byte
}

// refSink is head in memory, then blocks on disk, then a tail in memory.
type refSink struct {
	d       *reference
	stream  demux.Stream
	head    []byte
	blocks  []refBlock
	tail    []byte
	file    *os.File
	size    int64 // of the file
	st      demux.SinkStats
	gaps    []demux.Gap
	strict  []demux.Gap
	done    bool
	err     error // at the end
	closed  bool
	reading sync.Mutex // one Read at a time
	waiting bool
	since   time.Time // waiting from
	passed  bool      // spilled past, until a Quantum was consumed
	window  int       // consumed in this Patience
	stalled bool
	filled  int       // times to the bound
	starved bool      // waited while the source was held up
	until   time.Time // deadline
	timer   *time.Timer
	again   []byte // a fault's
	broken  error  // a fault's
}

type refBlock struct {
	off int64
	n   int
	crc uint32
}

func newReference(fault string) (Factory, func()) {
	leak := make(chan struct{})
	return func(src demux.Source, o demux.Options) (Demux, error) {
		r := &reference{o: o, fault: fault, src: src, notices: make(chan demux.Notice, 64), leak: leak}
		if fault != "accepts anything" {
			if err := r.validate(); err != nil {
				return nil, err
			}
		}
		r.change = sync.NewCond(&r.mu)
		for _, s := range streams {
			r.sinks[s] = &refSink{d: r, stream: s}
		}
		if r.is("leaks a goroutine") {
			go func() { <-leak }()
		}
		if o.Notify != nil {
			notices := r.notices
			go func() {
				for n := range notices {
					o.Notify(n)
				}
			}()
		}
		ctx, cancel := context.WithCancel(context.Background())
		r.cancel = cancel
		go r.pump(ctx)
		return r, nil
	}, sync.OnceFunc(func() { close(leak) })
}

// block is how many bytes go to disk at a time.
func (r *reference) block() int { return min(64*kib, r.o.MemPerSink) }

func (r *reference) is(fault string) bool { return r.fault == fault }

func (r *reference) validate() error {
	o := r.o
	bad := func(field string, value any, reason error) error {
		return &demux.UsageError{Field: "Options." + field, Value: value, Allowed: "give another", Reason: reason}
	}
	info, err := os.Stat(o.SpillDir)
	switch {
	case o.MemPerSink < 4*kib || o.MemPerSink > 1<<30:
		return bad("MemPerSink", o.MemPerSink, nil)
	case o.Quantum < 1:
		return bad("Quantum", o.Quantum, nil)
	case o.Policy > demux.CapError:
		return bad("Policy", o.Policy, nil)
	case o.Policy == demux.CapError && o.Cap < 1:
		return bad("Cap", o.Cap, nil)
	case o.MaxSpill < 0:
		return bad("MaxSpill", o.MaxSpill, nil)
	case err != nil || !info.IsDir():
		return bad("SpillDir", o.SpillDir, err)
	case isMemory(o.SpillDir) && !o.AllowMemoryBacked:
		return bad("SpillDir", o.SpillDir, demux.ErrMemoryBacked)
	}
	return nil
}

func (r *reference) notify(n demux.Notice) {
	if r.closed || r.o.Notify == nil || r.is("keeps a stall to itself") && n.Kind == demux.NoticeStall {
		return
	}
	select {
	case r.notices <- n:
	default:
		r.st.NoticesDropped++
	}
}

func (r *reference) pump(ctx context.Context) {
	buf := make([]byte, 64<<10)
	if r.is("lends a small buffer") {
		buf = buf[:4096]
	}
	for {
		ev, err := r.src.Next(ctx, buf)
		r.mu.Lock()
		if err == nil {
			r.take(ev)
		} else if r.is("takes a break for the end") && errors.Is(err, io.ErrUnexpectedEOF) {
			err = io.EOF
		}
		var end error
		switch {
		case r.closed:
			end = demux.ErrClosed
		case err == nil:
		case err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF):
			end = err
		default:
			end = &demux.SourceError{Err: err}
		}
		if err != nil || r.closed {
			r.finish(end)
		}
		over := r.ended
		r.mu.Unlock()
		if over {
			if !r.is("leaves the source open") {
				r.src.Close()
			}
			return
		}
	}
}

// finish ends both sinks; the first call counts.
func (r *reference) finish(end error) {
	if r.ended {
		return
	}
	r.ended, r.endErr = true, end
	if r.is("ends in the middle") {
		r.sinks[2].tail = nil
	}
	for _, s := range r.sinks[1:] {
		s.end(end)
	}
	r.change.Broadcast()
}

func (s *refSink) end(err error) {
	if !s.done {
		s.done, s.err = true, err
		s.st.Done, s.st.Err = true, err
	}
}

func (r *reference) take(ev demux.Event) {
	r.st.SourceEvents++
	switch ev.Kind {
	case demux.KindData:
		r.st.SourceBytes += uint64(len(ev.Data))
		s := r.sinks[ev.Stream]
		data := ev.Data
		switch {
		case r.is("cuts at 32768") && len(data) > 32768:
			data = data[:32768]
		case r.is("cuts events of 65537") && len(data) == 65537:
			data = data[:65536]
		case r.is("drops a byte") && s.st.Enqueued > 100_000 && len(data) > 1:
			data = data[1:]
		case r.is("ends on an empty event") && len(data) == 0:
			s.end(io.EOF)
		}
		s.accept(data)
	case demux.KindStreamEOF:
		if !r.is("ignores the end of one stream") {
			r.sinks[ev.Stream].end(io.EOF)
		}
	case demux.KindTruncated:
		s := r.sinks[ev.Stream]
		g := demux.Gap{Offset: int64(s.st.Enqueued), Lost: ev.Lost}
		s.st.Gaps++
		if len(s.gaps) < 64 || r.is("keeps every gap") {
			s.gaps = append(s.gaps, g)
		} else {
			s.st.GapsMerged++
		}
		if r.o.StrictGaps {
			s.strict = append(s.strict, g)
		}
		if r.is("marks gaps in the stream") {
			s.accept([]byte("[lost]"))
		}
	case demux.KindRemoteError:
		text := ev.Err.Error()
		if !r.is("keeps a long report") {
			text = text[:min(len(text), 64*kib)]
		}
		r.finish(&demux.RemoteError{Text: text})
	case demux.KindExit:
		r.exited, r.exitErr = true, ev.Err
		if r.o.ExitDrain >= 0 && !r.is("waits for ever after the exit") {
			time.AfterFunc(r.o.ExitDrain, func() {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.finish(io.EOF)
				r.src.Close()
				r.cancel()
			})
		}
	default:
		r.st.UnknownEvents++
		if r.is("keeps unknown events") {
			r.kept = append(r.kept, make([]byte, 100)...)
		}
	}
	r.change.Broadcast()
}

func (s *refSink) live() (mem, disk int) {
	for _, b := range s.blocks {
		disk += b.n
	}
	return len(s.head) + len(s.tail), disk
}

func (s *refSink) count(n int) {
	s.st.Enqueued += uint64(n)
	s.st.LiveMem += uint64(n)
	s.peak()
}

func (s *refSink) peak() {
	s.st.PeakMem = max(s.st.PeakMem, s.st.LiveMem)
	s.st.PeakDisk = max(s.st.PeakDisk, s.st.LiveDisk)
	s.st.PeakTotal = max(s.st.PeakTotal, s.st.LiveMem+s.st.LiveDisk)
}

// accept takes data into the sink, or waits where the policy says so.
func (s *refSink) accept(data []byte) {
	r := s.d
	b := r.sinks[other(s.stream)]
	paused, begun := false, time.Now()
	release := func() { r.held = false }
	defer release()
	for len(data) > 0 {
		if s.closed || r.closed || s.done {
			s.st.Enqueued += uint64(len(data))
			s.st.Discarded += uint64(len(data))
			return
		}
		full := r.o.MemPerSink
		if r.is("wedges at the bound") { // a credit that is not given back
			full -= 8 * s.filled
		}
		if room := full - len(s.head); len(s.blocks) == 0 && len(s.tail) == 0 && room > 0 {
			n := min(room, len(data))
			if r.is("keeps event data") && len(s.head) == 0 {
				s.head = data[:n:n]
			} else {
				s.head = append(s.head, data[:n]...)
			}
			data = data[n:]
			s.count(n)
			if len(s.head) == full {
				s.filled++
			}
			r.change.Broadcast()
			continue
		}
		starving := b.waiting && !b.closed && b.st.LiveMem == 0 // what came may not have been seen yet
		wait := time.Duration(-1)
		switch {
		case r.is("takes in all"):
			starving = true
			fallthrough
		case r.o.Policy == demux.Unbounded || r.o.Policy == demux.CapError:
			if starving {
				live := s.st.LiveMem
				if r.is("charges what was read") {
					live = s.st.Enqueued
				}
				if r.o.Policy == demux.CapError && int(live)+len(data) > r.o.Cap {
					s.st.Enqueued += uint64(len(data))
					s.st.Discarded += uint64(len(data))
					s.end(&demux.OverCapError{Stream: s.stream, Backlog: int64(live) + int64(len(data)), Cap: r.o.Cap})
					return
				}
				s.head = append(s.head, data...)
				s.count(len(data))
				return
			}
		case r.is("fails the backlog") && starving && s.st.LiveMem >= uint64(r.o.MemPerSink):
			s.end(&demux.OverCapError{Stream: s.stream})
			return
		case r.is("drops what is over") && starving:
			s.st.Enqueued += uint64(len(data))
			s.st.Discarded += uint64(len(data))
			return
		case r.o.Policy == demux.Spill && r.o.Eager, r.is("spills at once") && starving:
			wait = 0
		case r.o.Policy == demux.Spill && starving && r.o.Patience >= 0 && !r.is("lets one reader hang"):
			from := begun // time in which the source had nothing is not held against s
			if b.since.After(from) || r.is("condemns for a silent stream") || r.is("waits in each episode") {
				from = b.since
			}
			wait = time.Until(from.Add(r.o.Patience))
			if s.passed && !r.is("waits for every block") {
				wait = 0
			}
			if r.is("waits in each episode") {
				wait = max(0, wait)
			} else if wait <= 0 && !s.passed {
				if s.window >= r.o.Quantum && r.o.Patience > 0 {
					s.window, begun = 0, time.Now()
					continue
				}
				s.passed, s.window = true, 0
				s.st.PatienceExpired++
				r.notify(demux.Notice{Kind: demux.NoticeSpilling, Stream: s.stream, Starving: b.stream, Backlog: int64(s.st.LiveMem + s.st.LiveDisk)})
			}
		}
		if wait == 0 || wait < 0 && s.passed && starving && r.o.Policy == demux.Spill && r.o.Patience >= 0 {
			if n := s.spill(data); n > 0 {
				data = data[n:]
				if r.is("waits for every block") {
					s.passed = false
					b.since = time.Now()
				}
				continue
			}
			wait = 10 * time.Millisecond // the disk is full
		}
		if !paused {
			paused, r.held, b.starved = true, true, b.waiting
			r.st.Paused++
			s.stalled = false
			s.window = 0
		}
		if b.waiting && r.o.StallAfter > 0 {
			if left := time.Until(b.since.Add(r.o.StallAfter)); left <= 0 && !s.stalled {
				s.stalled = true
				r.notify(demux.Notice{Kind: demux.NoticeStall, Stream: s.stream, Starving: b.stream, Backlog: int64(s.st.LiveMem)})
			}
		}
		if wait > 0 {
			t := time.AfterFunc(wait, r.wake)
			r.change.Wait()
			t.Stop()
		} else {
			r.change.Wait()
		}
	}
}

func (r *reference) wake() {
	r.mu.Lock()
	r.change.Broadcast()
	r.mu.Unlock()
}

// spill puts data behind the sink's backlog, and says how much of it.
func (s *refSink) spill(data []byte) int {
	r := s.d
	if s.file == nil {
		var err error
		if r.is("names its file") {
			s.file, err = os.Create(filepath.Join(r.o.SpillDir, fmt.Sprintf("spill-%p", s)))
		} else {
			s.file, err = openSpill(r.o.SpillDir)
		}
		if err != nil {
			panic(err)
		}
		r.st.SpillFiles++
	}
	n := min(r.block()-len(s.tail), len(data))
	s.tail = append(s.tail, data[:n]...)
	s.count(n)
	if r.is("counts twice") {
		s.st.LiveMem++
	}
	if len(s.tail) == r.block() || r.is("writes each event") {
		s.flush()
	}
	r.change.Broadcast()
	return n
}

func (s *refSink) flush() {
	r := s.d
	quota := int64(math.MaxInt64)
	if r.o.MaxSpill > 0 {
		quota = r.o.MaxSpill - int64(r.sinks[1].st.LiveDisk) - int64(r.sinks[2].st.LiveDisk)
	}
	n := int(min(int64(len(s.tail)), quota))
	if n > 0 {
		b := s.tail[:n]
		if _, err := s.file.WriteAt(b, s.size); err != nil {
			panic(err)
		}
		s.blocks = append(s.blocks, refBlock{s.size, n, crc32.ChecksumIEEE(b)})
		s.size += int64(n)
		s.tail = append([]byte(nil), s.tail[n:]...)
		s.st.LiveMem -= uint64(n)
		s.st.LiveDisk += uint64(n)
		s.st.Spilled += uint64(n)
		s.st.SpillWrites++
		s.peak()
	}
	if len(s.tail) == r.block() || len(s.tail) > 0 && n < len(s.tail) && quota <= 0 {
		if !r.full || r.is("cries at every try") {
			r.full = true
			r.fullErr = errors.New("quota")
			r.st.Degraded++
			r.st.DegradedErr = r.fullErr
			if r.is("cries at every try") {
				r.st.Degraded = 1
			}
			r.notify(demux.Notice{Kind: demux.NoticeSpillFull, Stream: s.stream, Err: r.fullErr})
		}
	} else if r.full {
		r.full = false
		r.notify(demux.Notice{Kind: demux.NoticeSpillResumed, Stream: s.stream})
	}
}

func (s *refSink) Read(p []byte) (int, error) { return s.ReadContext(context.Background(), p) }

func (s *refSink) ReadContext(ctx context.Context, p []byte) (int, error) {
	if len(p) == 0 && !s.d.is("waits in a Read of nothing") {
		return 0, nil
	}
	s.reading.Lock()
	defer s.reading.Unlock()
	r := s.d
	r.mu.Lock()
	defer r.mu.Unlock()
	defer context.AfterFunc(ctx, r.wake)()
	if ctx.Done() != nil && r.is("does not hear its context") {
		ctx = context.Background()
	}
	defer func() { s.waiting = false }()
	begun := time.Now()
	s.starved = false
	for first := true; ; first = false {
		if n, err, ok := s.give(p); ok {
			if s.starved {
				s.st.Starved++
				s.st.StarvedTotal += time.Since(begun)
				s.st.StarvedMax = max(s.st.StarvedMax, time.Since(begun))
			}
			return n, err
		}
		if !s.until.IsZero() && !time.Now().Before(s.until) {
			if r.is("loses bytes at a deadline") {
				s.again = []byte{1}
			}
			return 0, os.ErrDeadlineExceeded
		}
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if !first && r.is("returns 0, nil") {
			return 0, nil
		}
		if !s.waiting {
			s.waiting, s.since = true, time.Now()
			r.change.Broadcast()
		}
		s.starved = s.starved || r.held
		b := r.sinks[other(s.stream)]
		var wake time.Duration = -1
		fail := func(after time.Duration, err error) error {
			left := time.Until(begun.Add(after))
			if left <= 0 {
				if r.is("ends what starves") {
					s.end(err)
				}
				return err
			}
			wake = left
			return nil
		}
		if r.held && r.full && r.o.SpillFullGrace >= 0 {
			if err := fail(r.o.SpillFullGrace, &demux.SpillFullError{Full: b.stream, Backlog: int64(b.st.LiveMem + b.st.LiveDisk), Err: r.fullErr}); err != nil {
				return 0, err
			}
		} else if r.held && r.o.StallError && r.o.StallAfter > 0 && (r.o.Policy == demux.Backpressure || r.o.Patience < 0) {
			if err := fail(r.o.StallAfter, &demux.StallError{Starving: s.stream, Full: b.stream, Backlog: int64(b.st.LiveMem), Waited: time.Since(begun)}); err != nil {
				return 0, err
			}
		} else if r.held && r.o.StallAfter > 0 {
			wake = time.Until(begun.Add(r.o.StallAfter))
		}
		if wake > 0 {
			t := time.AfterFunc(wake, r.wake)
			r.change.Wait()
			t.Stop()
		} else {
			r.change.Wait()
		}
	}
}

// give hands over what there is, or the end.
func (s *refSink) give(p []byte) (int, error, bool) {
	r := s.d
	if s.closed || r.closed && !(s.done && s.st.LiveMem+s.st.LiveDisk == 0) {
		return 0, demux.ErrClosed, true
	}
	if s.broken != nil && !r.is("goes on after a bad block") {
		return 0, s.broken, true
	}
	if len(s.head) == 0 {
		switch {
		case len(s.tail) > 0 && len(s.blocks) > 0 && r.is("reads the tail first"):
			s.head, s.tail = s.tail, nil
		case len(s.blocks) > 0:
			b := s.blocks[0]
			block := make([]byte, b.n)
			_, err := s.file.ReadAt(block, b.off)
			if err == nil && crc32.ChecksumIEEE(block) != b.crc {
				err = errors.New("checksum")
			}
			if err != nil && !r.is("trusts its file") {
				s.broken = &demux.SpillReadError{Offset: int64(s.st.Read), Err: err}
				s.discard()
				return 0, s.broken, true
			}
			if !r.is("gives a block twice") || b.n == 0 || len(s.blocks) < 3 || b.off%(256*kib) != 0 || s.again != nil {
				s.blocks = s.blocks[1:]
			} else {
				s.again = block
			}
			s.st.LiveDisk -= uint64(b.n)
			s.st.LiveMem += uint64(b.n)
			s.st.SpillReads++
			s.head = block
			if !r.is("keeps what was read on disk") {
				if len(s.blocks) == 0 {
					s.file.Truncate(0)
					s.size = 0
				} else {
					punch(s.file, b.off, int64(b.n))
				}
			}
			if r.full {
				r.change.Broadcast()
			}
		case len(s.tail) > 0:
			s.head, s.tail = s.tail, nil
		}
	}
	limit := len(s.head)
	if len(s.strict) > 0 {
		at := s.strict[0].Offset - int64(s.st.Read)
		if at == 0 {
			g := s.strict[0]
			if !r.is("tells a gap for ever") {
				s.strict = s.strict[1:]
			}
			return 0, &demux.GapError{Gap: g}, true
		}
		limit = int(min(int64(limit), at))
	}
	if len(s.head) > 0 {
		n := copy(p, s.head[:limit])
		if len(p) > 0 && len(s.again) == 1 {
			p[0] ^= s.again[0]
			s.again = nil
		}
		s.head = s.head[n:]
		s.st.Read += uint64(n)
		s.st.LastRead = time.Now()
		if !r.is("counts what was read as live") {
			s.st.LiveMem -= uint64(n)
		}
		s.window += n
		if s.passed && s.window >= r.o.Quantum {
			s.passed = false
		}
		r.change.Broadcast()
		if r.is("gives the end with data") && s.done && s.st.LiveMem == 0 {
			return n, s.err, true
		}
		return n, nil, true
	}
	if s.done {
		err := s.err
		switch {
		case r.is("ends once") && err == io.EOF:
			s.err = errors.New("already ended")
		case r.is("goes on after its end") && len(p) > 0:
			s.head = append(s.head, 'x')
			s.st.LiveMem++
			s.st.Enqueued++
		}
		return 0, err, true
	}
	return 0, nil, false
}

func (s *refSink) discard() {
	s.st.Discarded += s.st.LiveMem + s.st.LiveDisk
	if !s.d.is("keeps the backlog of a closed sink") {
		s.st.LiveMem, s.st.LiveDisk = 0, 0
	}
	s.head, s.tail, s.blocks = nil, nil, nil
	if s.file != nil && !s.d.is("leaks a descriptor") {
		s.file.Close()
		s.d.st.SpillFiles--
		s.file = nil
	}
}

func (s *refSink) SetReadDeadline(t time.Time) error {
	r := s.d
	r.mu.Lock()
	defer r.mu.Unlock()
	s.until = t
	if s.timer != nil {
		s.timer.Stop()
	}
	if !t.IsZero() {
		s.timer = time.AfterFunc(max(0, time.Until(t)), r.wake)
	}
	r.change.Broadcast()
	return nil
}

func (s *refSink) WriteTo(w io.Writer) (int64, error) {
	buf := make([]byte, 32*kib)
	var total int64
	for {
		n, err := s.Read(buf)
		if n > 0 {
			k, werr := w.Write(buf[:n])
			total += int64(k)
			if werr == nil && k < n {
				werr = io.ErrShortWrite
			}
			if werr != nil {
				s.d.mu.Lock()
				if !s.d.is("loses what a writer refused") {
					s.head = append(append([]byte(nil), buf[k:n]...), s.head...)
					s.st.Read -= uint64(n - k)
					s.st.LiveMem += uint64(n - k)
				}
				s.d.mu.Unlock()
				return total, werr
			}
		}
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

func (s *refSink) Buffered() int64 {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return int64(s.st.LiveMem + s.st.LiveDisk)
}

func (s *refSink) Gaps() []demux.Gap {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return append([]demux.Gap(nil), s.gaps...)
}

func (s *refSink) Close() error {
	r := s.d
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.discard()
	if r.is("does not hear a Close") {
		return nil
	}
	r.change.Broadcast()
	both := r.sinks[1].closed && r.sinks[2].closed
	if both && !r.o.KeepDraining || r.is("ends the other with one") {
		r.cancel()
		r.src.Close()
		if both {
			r.closed = true
		}
	}
	return nil
}

func (r *reference) Sink(s demux.Stream) Sink { return r.sinks[s] }

func (r *reference) Wait(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer context.AfterFunc(ctx, r.wake)()
	for !r.ended {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.change.Wait()
	}
	switch {
	case r.exited:
		return r.exitErr
	case r.endErr == io.EOF:
		return nil
	}
	return r.endErr
}

func (r *reference) Stats() demux.Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := r.st
	st.Stdout, st.Stderr = r.sinks[1].st, r.sinks[2].st
	for _, s := range r.sinks[1:] {
		mem, _ := s.live()
		st.HeapReserved += uint64(mem)
	}
	st.HeapReserved += uint64(len(r.kept)) + 64<<10
	return st
}

func (r *reference) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed && r.notices == nil {
		return nil
	}
	r.closed = true
	r.cancel()
	if !r.is("leaves the source open") {
		r.src.Close()
	}
	for _, s := range r.sinks[1:] {
		s.discard()
		if s.timer != nil {
			s.timer.Stop()
		}
	}
	r.change.Broadcast()
	if r.notices != nil {
		close(r.notices)
		r.notices = nil
	}
	return nil
}
