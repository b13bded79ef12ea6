package demuxtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/sandbed/sandbed/demux"
)

// OpKind is what one step of a Schedule does.
type OpKind uint8

// The operations.
const (
	OpEvent    OpKind = iota // the source has N bytes of Stream
	OpGap                    // it lost N bytes of Stream
	OpUnknown                // it has an event of no known kind
	OpEOF                    // it ends Stream
	OpRead                   // the reader of Stream begins to read up to N bytes, unless it still does
	OpClose                  // the sink of Stream is closed
	OpDeadline               // N = 0 clears the deadline of Stream, 1 sets one that is over, 2 one in a millisecond
	OpSleep                  // Wait passes
	OpEnd                    // the source ends, as Schedule.End says
	OpCloseAll               // the demultiplexer is closed
	opKinds
)

var opNames = [opKinds]string{"event", "gap", "unknown", "eof", "read", "close", "deadline", "sleep", "end", "close-all"}

// Op is one step.
type Op struct {
	Kind   OpKind
	Stream demux.Stream
	N      int
	Wait   time.Duration
}

func (o Op) String() string {
	switch o.Kind {
	case OpSleep:
		return fmt.Sprintf("sleep %v", o.Wait)
	case OpUnknown, OpEnd, OpCloseAll:
		return opNames[o.Kind]
	case OpEOF, OpClose:
		return fmt.Sprintf("%s %v", opNames[o.Kind], o.Stream)
	}
	return fmt.Sprintf("%s %v %d", opNames[o.Kind], o.Stream, o.N)
}

// Schedule is a history of one demultiplexer, judged against two byte slices: what
// the source has delivered of each stream.
type Schedule struct {
	Options demux.Options
	// End is what the source ends with.
	End error
	// Racy schedules do not let things settle between two operations.
	Racy bool
	Ops  []Op
}

func (s Schedule) String() string {
	var b strings.Builder
	o := s.Options
	fmt.Fprintf(&b, "policy=%v mem=%d patience=%v eager=%v max-spill=%d strict=%v cap=%d end=%q racy=%v\n",
		o.Policy, o.MemPerSink, o.Patience, o.Eager, o.MaxSpill, o.StrictGaps, o.Cap, s.End, s.Racy)
	for i, op := range s.Ops {
		fmt.Fprintf(&b, "%3d %v\n", i, op)
	}
	return b.String()
}

var (
	eventSizes = []int{1, 0, 2, 100, 1000, 4095, 4096, 4097, 5000, 8191, 8192, 8193, 12 * kib, 30 * kib, 65535, 65536, 65537}
	readSizes  = []int{1, 7, 100, 512, 4095, 4096, 4097, 10_000, maxRead}
	sleeps     = []time.Duration{time.Nanosecond, time.Millisecond, 10 * time.Millisecond, 19 * time.Millisecond, 20 * time.Millisecond, 21 * time.Millisecond, 60 * time.Millisecond, time.Second, 6 * time.Second, 40 * time.Second}
	ends       = []error{io.EOF, io.ErrUnexpectedEOF, errBroken}
	errBroken  = errors.New("demuxtest: the transport broke")
)

const (
	maxOps  = 200 // of a schedule
	maxRead = 70_000
)

var scheduleBuffers = sync.Pool{New: func() any { return new([maxRead]byte) }}

// DecodeSchedule turns bytes into a schedule: two of options, then two an
// operation, any value of which means something. Spill files go to dir.
func DecodeSchedule(b []byte, dir string) Schedule {
	at := func(i int) int {
		if i < len(b) {
			return int(b[i])
		}
		return 0
	}
	o := demux.DefaultOptions()
	o.SpillDir, o.AllowMemoryBacked = dir, true
	o.MemPerSink = []int{4 * kib, 8 * kib, 10_000, 64 * kib}[at(0)&3]
	o.Quantum, o.Cap = kib, 3*o.MemPerSink
	o.StrictGaps = at(0)&4 != 0
	switch at(0) >> 3 & 7 {
	case 0, 1:
	case 2, 3:
		o.Patience = 0
	case 4:
		o.Eager = true
	case 5:
		o.Policy = demux.Backpressure
	case 6:
		o.Policy = demux.Unbounded
	case 7:
		o.Policy = demux.CapError
	}
	if at(0)&0x40 != 0 && o.Policy == demux.Spill {
		o.MaxSpill = int64(3*o.MemPerSink + 100)
	}
	s := Schedule{Options: o, End: ends[at(1)%len(ends)], Racy: at(1)&0x80 != 0}
	over := [3]bool{}
	for i := 2; i < len(b) && len(s.Ops) < maxOps; i += 2 {
		op := Op{Stream: streams[at(i)>>7]}
		n := at(i + 1)
		switch k := at(i) & 0x1f; {
		case k < 11:
			op.Kind, op.N = OpEvent, eventSizes[n%len(eventSizes)]
		case k < 21:
			op.Kind, op.N = OpRead, readSizes[n%len(readSizes)]
		case k < 24:
			op.Kind, op.Wait = OpSleep, sleeps[n%len(sleeps)]
		case k < 25:
			op.Kind, op.N = OpGap, n%100-1
		case k < 26:
			op.Kind = OpUnknown
		case k < 28:
			op.Kind, op.N = OpDeadline, n%3
		case k < 29:
			op.Kind = OpClose
		case k < 30:
			op.Kind = OpEOF
		case k < 31:
			op.Kind = OpEnd
		default:
			op.Kind = OpCloseAll
			if n&3 != 0 { // seldom: it ends all that is to be seen
				op.Kind, op.N = OpRead, readSizes[n%len(readSizes)]
			}
		}
		switch op.Kind { // a source says nothing after an end
		case OpEvent, OpGap, OpEOF:
			if over[op.Stream] {
				continue
			}
			over[op.Stream] = op.Kind == OpEOF
		case OpEnd:
			over = [3]bool{true, true, true}
		}
		s.Ops = append(s.Ops, op)
	}
	return s
}

// scheduleReader reads when it is told to.
type scheduleReader struct {
	c       *checked
	ask     chan int
	n       int
	err     error
	busy    bool // a Read was asked for, and its result not yet taken
	done    chan struct{}
	closed  bool
	sent    int64 // bytes that the source has
	ended   bool  // by an event of its own
	expired bool  // has a deadline that is over, or will be
	overdue bool  // had one since the Read began
	gaps    []int64
}

// scheduleRun is a schedule under way.
type scheduleRun struct {
	s       Schedule
	d       Demux
	src     *script
	readers [3]*scheduleReader

	mu     sync.Mutex
	events []step // that the source has not handed out
	ended  bool   // it has its end
	more   chan struct{}

	closed bool
	before demux.Stats
}

// Run runs the schedule in virtual time; it must be called in a bubble of
// testing/synctest, as in a fuzz target:
//
//	f.Fuzz(func(t *testing.T, b []byte) {
//		synctest.Test(t, func(t *testing.T) {
//			if err := demuxtest.DecodeSchedule(b, dir).Run(demuxtest.New); err != nil {
//				t.Fatal(err)
//			}
//		})
//	})
//
// The error says what was wrong with which operation.
func (s Schedule) Run(f Factory) (err error) {
	r := &scheduleRun{s: s, more: make(chan struct{}, 1)}
	r.src = newScriptFunc(s.End, func() (step, bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.events) == 0 {
			return step{}, false
		}
		st := r.events[0]
		r.events = r.events[1:]
		return st, true
	})
	r.src.gate = func(ctx context.Context) error { // until there is an event, or all is over
		for r.waits() {
			select {
			case <-r.more:
			case <-r.src.closed:
				return errSourceClosed
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}
	if r.d, err = f(r.src, s.Options); err != nil {
		return err
	}
	for _, stream := range streams {
		q := &scheduleReader{c: &checked{sink: r.d.Sink(stream), stream: stream}, ask: make(chan int), done: make(chan struct{}, 1)}
		r.readers[stream] = q
		go func() {
			buf := scheduleBuffers.Get().(*[maxRead]byte)
			for n := range q.ask {
				q.n, q.err = q.c.Read(buf[:n])
				q.done <- struct{}{}
			}
			scheduleBuffers.Put(buf)
		}()
	}
	defer func() {
		r.d.Close()
		synctest.Wait()
		for _, stream := range streams {
			close(r.readers[stream].ask)
		}
		if p := r.src.breach.Load(); p != nil && err == nil {
			err = *p
		}
	}()
	for i, op := range s.Ops {
		if err := r.do(op); err != nil {
			return fmt.Errorf("operation %d, %v: %w", i, op, err)
		}
		if !s.Racy || op.Kind == OpSleep {
			synctest.Wait()
			if err := r.judge(); err != nil {
				return fmt.Errorf("after operation %d, %v: %w", i, op, err)
			}
		}
	}
	synctest.Wait()
	if err := r.judge(); err != nil {
		return fmt.Errorf("after the last operation: %w", err)
	}
	if err := r.finish(); err != nil {
		return fmt.Errorf("reading to the end: %w", err)
	}
	return nil
}

// waits reports whether the source has nothing to say yet.
func (r *scheduleRun) waits() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.events) == 0 && !r.ended
}

// push gives the source an event, or its end.
func (r *scheduleRun) push(list ...step) {
	r.mu.Lock()
	r.events = append(r.events, list...)
	if len(list) == 0 {
		r.ended = true
	}
	r.mu.Unlock()
	select {
	case r.more <- struct{}{}:
	default:
	}
}

func (r *scheduleRun) do(op Op) error {
	q := r.readers[op.Stream]
	switch op.Kind {
	case OpEvent:
		q.sent += int64(op.N)
		r.push(data(op.Stream, op.N))
	case OpGap:
		q.gaps = append(q.gaps, q.sent)
		r.push(gap(op.Stream, int64(op.N)))
	case OpUnknown:
		if !r.ended {
			r.push(step{kind: demux.KindUnknown})
		}
	case OpEOF:
		q.ended = true
		r.push(eof(op.Stream))
	case OpEnd:
		r.push()
	case OpRead:
		if !q.busy {
			q.busy, q.overdue = true, q.expired
			q.ask <- op.N
		}
	case OpClose:
		q.closed = true
		return q.c.sink.Close()
	case OpDeadline:
		d, ok := q.c.sink.(deadliner)
		if !ok {
			return nil
		}
		var at time.Time
		switch op.N {
		case 1:
			at = time.Now().Add(-time.Second)
		case 2:
			at = time.Now().Add(time.Millisecond)
		}
		q.expired = op.N != 0
		q.overdue = q.overdue || q.expired
		if err := d.SetReadDeadline(at); err != nil && !q.closed && !r.closed {
			return err
		}
	case OpSleep:
		time.Sleep(op.Wait)
	case OpCloseAll:
		r.closed = true
		return r.d.Close()
	}
	return nil
}

// judge takes the results of reads and checks what must hold when nothing moves.
func (r *scheduleRun) judge() error {
	for _, stream := range streams {
		q := r.readers[stream]
		if q.busy {
			select {
			case <-q.done:
				q.busy = false
				if err := r.result(stream, q); err != nil {
					return err
				}
			default:
				if r.readable(q) {
					return fmt.Errorf("%v: Read waits at offset %d though %d bytes were delivered (ended %v, closed %v, deadline over %v)",
						stream, q.c.off, q.sent, r.ended || q.ended, q.closed || r.closed, q.expired)
				}
			}
		}
	}
	st, ok := r.d.(statser)
	if !ok {
		return nil
	}
	now := st.Stats()
	if err := errors.Join(balanced(now), monotone(r.before, now)); err != nil {
		return err
	}
	r.before = now
	o := r.s.Options
	for _, stream := range streams {
		k, q := now.Sink(stream), r.readers[stream]
		if !q.busy && k.Read != uint64(q.c.off) {
			return fmt.Errorf("%v: Read is %d and %d bytes were read", stream, k.Read, q.c.off)
		}
		if k.Enqueued > uint64(q.sent) {
			return fmt.Errorf("%v: Enqueued is %d and %d bytes were delivered", stream, k.Enqueued, q.sent)
		}
		if (o.Policy == demux.Spill || o.Policy == demux.Backpressure) && k.LiveMem > uint64(o.MemPerSink+2*64*kib) {
			return fmt.Errorf("%v: %d bytes are in memory", stream, k.LiveMem)
		}
	}
	if bound := heapBound(o); (o.Policy == demux.Spill || o.Policy == demux.Backpressure) && now.HeapReserved > bound {
		return fmt.Errorf("HeapReserved is %d, more than %d", now.HeapReserved, bound)
	}
	if o.MaxSpill > 0 && int64(now.Stdout.LiveDisk+now.Stderr.LiveDisk) > o.MaxSpill {
		return fmt.Errorf("%d and %d bytes on disk are more than MaxSpill, %d", now.Stdout.LiveDisk, now.Stderr.LiveDisk, o.MaxSpill)
	}
	return nil
}

// readable says whether a Read has something to return. An event may wait behind
// one that the other sink does not take.
func (r *scheduleRun) readable(q *scheduleReader) bool {
	if q.closed || r.closed {
		return true
	}
	st, ok := r.d.(statser)
	if !ok {
		return false
	}
	k := st.Stats().Sink(q.c.stream)
	if k.LiveMem+k.LiveDisk > 0 || k.Done {
		return true
	}
	if r.src.running.Load() { // in Next: all that was handed out was taken in
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.events) == 0 && (q.c.off < q.sent || q.ended || r.ended)
	}
	// Else the source is held up, and only by a sink that is full, or nearly: it may
	// wait for room that is worth while.
	return st.Stats().Sink(other(q.c.stream)).LiveMem < uint64(r.s.Options.MemPerSink)*3/4
}

// result judges what one Read returned.
func (r *scheduleRun) result(stream demux.Stream, q *scheduleReader) error {
	if q.c.off > q.sent {
		return fmt.Errorf("%v: %d bytes were read of %d", stream, q.c.off, q.sent)
	}
	if q.n > 0 {
		if len(q.gaps) > 0 && r.s.Options.StrictGaps && q.c.off > q.gaps[0] {
			return fmt.Errorf("%v: at offset %d, beyond the gap at %d", stream, q.c.off, q.gaps[0])
		}
		return nil
	}
	var (
		over *demux.OverCapError
		full *demux.SpillFullError
		gapE *demux.GapError
		b    breachError
	)
	err := q.err
	switch {
	case err == nil:
		return nil // of a Read of nothing
	case errors.As(err, &b):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded):
		if !q.overdue {
			return fmt.Errorf("%v: got %v without a deadline that is over", stream, err)
		}
		return nil
	case errors.As(err, &full):
		if r.s.Options.MaxSpill == 0 {
			return fmt.Errorf("%v: got %v without a quota", stream, err)
		}
		return nil
	case errors.As(err, &gapE):
		if !r.s.Options.StrictGaps || len(q.gaps) == 0 || gapE.Gap.Offset != q.gaps[0] || q.c.off != q.gaps[0] {
			return fmt.Errorf("%v: at offset %d: got %v, gaps to come are at %v", stream, q.c.off, err, q.gaps)
		}
		q.gaps = q.gaps[1:]
		return nil
	case errors.Is(err, demux.ErrClosed):
		if !q.closed && !r.closed && !(r.readers[1].closed && r.readers[2].closed) {
			return fmt.Errorf("%v: got %v, and nobody closed it", stream, err)
		}
		return nil
	case errors.As(err, &over):
		if r.s.Options.Policy != demux.CapError || over.Backlog <= int64(over.Cap) || q.sent-q.c.off <= int64(over.Cap) {
			return fmt.Errorf("%v: at offset %d of %d: got %v", stream, q.c.off, q.sent, err)
		}
		return nil
	}
	return r.rightEnd(stream, q, err)
}

// rightEnd checks an end from the source.
func (r *scheduleRun) rightEnd(stream demux.Stream, q *scheduleReader, err error) error {
	want := r.s.End
	if q.ended {
		want = io.EOF
	}
	var failed *demux.SourceError
	right := err == want || errors.As(err, &failed) && errors.Is(err, want)
	if !right || q.c.off != q.sent || !q.ended && !r.ended {
		return fmt.Errorf("%v: ended with %v at offset %d of %d, want %v (source ended %v)", stream, err, q.c.off, q.sent, want, r.ended)
	}
	return nil
}

// finish lets both readers read to the end, at once, so that no policy may hold
// them up for ever.
func (r *scheduleRun) finish() error {
	r.do(Op{Kind: OpEnd, Stream: demux.Stdout})
	for _, stream := range streams {
		r.do(Op{Kind: OpDeadline, Stream: stream})
	}
	over := [3]bool{}
	for range 100_000 {
		synctest.Wait()
		if err := r.judge(); err != nil {
			return err
		}
		idle := true
		for _, stream := range streams {
			q := r.readers[stream]
			if !q.busy && q.err != nil && !transient(q.err) {
				over[stream] = true
			}
			if !over[stream] && !q.busy {
				q.busy, q.overdue, idle = true, false, false
				q.ask <- maxRead
			}
		}
		if over[1] && over[2] {
			return nil
		}
		if idle {
			time.Sleep(10 * time.Millisecond) // for Patience, or a grace
		}
	}
	return fmt.Errorf("no end: stdout at %d of %d, stderr at %d of %d", r.readers[1].c.off, r.readers[1].sent, r.readers[2].c.off, r.readers[2].sent)
}
