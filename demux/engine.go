package demux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Demux is one source read by two readers. Close it, or read or close both
// sinks to their end, or its goroutines stay. All methods may be called at any
// time from any goroutine.
//
// How it works. One goroutine, the pump, calls Next of the source (one for each
// of its [Parts]) and puts the bytes at the end of a sink; the goroutine that
// calls Read takes them from the front:
//
//	pump → tail (memory) → file → head (memory) → reader
//
// While there is nothing in the file, head and tail are one list. There is no
// second way, so the order cannot break.
//
// Locks. Demux.mu guards all counters, lists and positions, and is held for a
// few assignments at a time: bytes are copied and files read and written without
// it. What makes that safe is that each of these belongs to one goroutine:
//   - the room behind the last byte of a sink, to the pump that is Sink.owner;
//   - the front of a sink, to the reader that has Sink.turn;
//   - the buffer of a reader that waits, to the pump from Sink.claimed on until it
//     commits;
//   - the block that is being written, to the pump, though the reader may read it;
//   - the file, to whoever is counted in Sink.io, and Close waits for those.
//
// Nothing is called with mu held that is not of this package. A pump waits for
// room on pump.wake, a reader for bytes on Sink.wake, and a wake-up is sent under
// mu after what it is about was written, so that none is early or lost. Only
// Sink.Close waits for a file, and only for the block that is under way.
type Demux struct {
	o    Options
	src  Source
	open func() (file, error) // a spill file

	ctx    context.Context // of Next
	cancel context.CancelFunc
	stop   atomic.Bool // no more Next
	exited atomic.Bool // a KindExit event came
	done   chan struct{}
	once   sync.Once // Close of src
	srcErr error     // of it

	mu      sync.Mutex
	sinks   [2]*Sink
	pumps   []*pump
	running int   // pumps
	cut     bool  // the source was ended from here
	err     error // what ended the source, if not io.EOF
	exitErr error
	exitAt  time.Time
	notices notices

	events, bytes, unknown uint64
	paused, degraded       uint64
	pausedTotal            time.Duration
	degradedTotal          time.Duration
	degradedErr            error
}

// New starts to read src, which it owns from then on. An option that cannot be
// meant is a *[UsageError], and so is, under Spill, a spill directory that cannot
// be used. A context ends a Demux by context.AfterFunc(ctx, func() { d.Close() }).
func New(src Source, o Options) (*Demux, error) {
	if src == nil {
		return nil, &UsageError{Field: "src", Value: nil, Allowed: "give a source"}
	}
	if err := o.validate(); err != nil {
		return nil, err
	}
	open := func() (file, error) { return nil, errors.ErrUnsupported }
	if o.Policy == Spill {
		dir, err := spillDir(o)
		if err != nil {
			return nil, err
		}
		open = func() (file, error) { return openSpill(dir) }
	}
	return launch(src, o, open), nil
}

func launch(src Source, o Options, open func() (file, error)) *Demux {
	d := &Demux{o: o, src: src, open: open, done: make(chan struct{})}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.notices.notify = o.Notify
	out, err := newSink(d, Stdout), newSink(d, Stderr)
	out.other, err.other = err, out
	d.sinks = [2]*Sink{out, err}
	parts := []Source{src}
	if p, ok := src.(Parts); ok {
		parts = p.Parts()
	}
	for _, part := range parts {
		d.pumps = append(d.pumps, newPump(d, part))
	}
	d.running = len(d.pumps)
	if d.running == 0 {
		d.over()
	}
	for _, p := range d.pumps {
		go p.run()
	}
	return d
}

const (
	minMem = 4 << 10
	maxMem = 1 << 30
)

func (o Options) validate() error {
	bad := func(field string, value any, allowed string) error {
		return &UsageError{Field: "Options." + field, Value: value, Allowed: allowed}
	}
	switch {
	case int(o.Policy) >= len(policyNames):
		return bad("Policy", o.Policy, "give Spill, Backpressure, Unbounded or CapError")
	case o.MemPerSink < minMem || o.MemPerSink > maxMem:
		return bad("MemPerSink", o.MemPerSink, fmt.Sprintf("give %d to %d bytes; DefaultOptions has 256 KiB", minMem, maxMem))
	case o.Policy == Spill && o.Quantum < 1:
		return bad("Quantum", o.Quantum, "give at least 1 byte; DefaultOptions has 64 KiB")
	case o.Eager && o.Policy != Spill:
		return bad("Eager", o.Eager, fmt.Sprintf("only Spill can be eager, not %v", o.Policy))
	case o.MaxSpill < 0:
		return bad("MaxSpill", o.MaxSpill, "give 0 for no bound, or a number of bytes")
	case o.StallAfter < 0:
		return bad("StallAfter", o.StallAfter, "give 0 for never, or a time")
	case o.StallError && o.StallAfter == 0:
		return bad("StallError", o.StallError, "set StallAfter as well: 0 is never")
	case o.Policy == CapError && o.Cap < 1:
		return bad("Cap", o.Cap, "give at least 1 byte; DefaultOptions has 8 MiB")
	}
	return nil
}

// ParsePolicy returns the policy of that name, see [Policy.String].
func ParsePolicy(name string) (Policy, error) {
	for i, n := range policyNames {
		if n == name {
			return Policy(i), nil
		}
	}
	return 0, &UsageError{Field: "policy", Value: name, Allowed: "give spill, backpressure, unbounded or cap-error"}
}

// Stdout returns the sink of stdout.
func (d *Demux) Stdout() *Sink { return d.sinks[0] }

// Stderr returns the sink of stderr.
func (d *Demux) Stderr() *Sink { return d.sinks[1] }

// Sink returns the sink of a stream, or nil if there is none such.
func (d *Demux) Sink(s Stream) *Sink {
	if i := int(s) - int(Stdout); i == 0 || i == 1 {
		return d.sinks[i]
	}
	return nil
}

// Wait waits until the source has ended: nil, what KindExit said, or what ended
// it instead, such as a *[SourceError], or [ErrClosed] if it was ended from here.
// It returns ctx.Err() when ctx is done first.
//
// Wait reads nothing: unless Options.Eager is set, a source that has more than
// memory takes does not end before somebody reads.
func (d *Demux) Wait(ctx context.Context) error {
	select {
	case <-d.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.err != nil:
		return d.err
	case d.exited.Load():
		return d.exitErr
	case d.cut:
		return ErrClosed
	}
	return nil
}

// Close closes both sinks and the source, and returns what Close of the source
// did. Memory and files are free when it returns; goroutines end as soon as Next
// of the source returns.
func (d *Demux) Close() error {
	d.mu.Lock()
	d.stop.Store(true)
	for _, s := range d.sinks {
		if !s.isOver() { // an end that was told stays
			s.kill(ErrClosed)
		} else if s.writing == nil {
			s.dropMemory() // its reader may never come for that end
		}
	}
	d.wakePumps()
	d.mu.Unlock()
	for _, s := range d.sinks {
		s.closeFile()
	}
	return d.closeSource()
}

func (d *Demux) closeSource() error {
	d.cancel()
	d.once.Do(func() { d.srcErr = d.src.Close() })
	return d.srcErr
}

// Stats returns the counters as they are at one moment.
func (d *Demux) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	st := Stats{
		Stdout: d.sinks[0].stats(), Stderr: d.sinks[1].stats(),
		SourceBytes: d.bytes, SourceEvents: d.events, UnknownEvents: d.unknown,
		Paused: d.paused, PausedTotal: d.pausedTotal,
		Degraded: d.degraded, DegradedTotal: d.degradedTotal, DegradedErr: d.degradedErr,
		NoticesDropped: d.notices.dropped,
	}
	for _, s := range d.sinks {
		st.HeapReserved += uint64(s.blocks+s.nfree) * uint64(s.payload+headerSize)
		if s.file != nil {
			st.SpillFiles++
		}
	}
	for _, p := range d.pumps {
		st.HeapReserved += uint64(len(p.buf))
	}
	return st
}

// bounded says whether memory is.
func (d *Demux) bounded() bool { return d.o.Policy == Spill || d.o.Policy == Backpressure }

// wakePumps makes every pump that is held up look again. mu is held.
func (d *Demux) wakePumps() {
	for _, p := range d.pumps {
		p.poke()
	}
}

// spaceFreed makes a pump whose last write failed try again. mu is held.
func (d *Demux) spaceFreed() {
	for _, s := range d.sinks {
		if s.degraded {
			s.retryAt = time.Time{}
			d.wakePumps()
		}
	}
}

// onDisk is what Options.MaxSpill bounds. mu is held.
func (d *Demux) onDisk() int64 { return d.sinks[0].disk.bytes + d.sinks[1].disk.bytes }

// finished is called by each pump as the last thing. err is io.EOF or what ended
// the source, and of are the streams that it ended.
func (d *Demux) finished(p *pump, err error) {
	d.mu.Lock()
	p.commit()
	p.buf = nil
	switch {
	case p.expired:
		err = io.EOF
	case d.stop.Load():
		err, d.cut = ErrClosed, true
	case err != io.EOF:
		err = sourceEnd(err)
		if d.err == nil {
			d.err = err
		}
	}
	for i, s := range d.sinks {
		if p.streams&(1<<i) != 0 {
			s.finish(err)
		}
	}
	d.running--
	last := d.running == 0
	d.mu.Unlock()
	p.cancel()
	p.src.Close()
	if last {
		d.over()
	}
}

// over ends what no part has ended.
func (d *Demux) over() {
	d.mu.Lock()
	end := d.err
	if end == nil {
		end = io.EOF
		if d.cut {
			end = ErrClosed
		}
	}
	for _, s := range d.sinks {
		s.finish(end)
	}
	d.mu.Unlock()
	d.closeSource()
	close(d.done)
}

// sourceEnd is what a reader gets for an error of Next.
func sourceEnd(err error) error {
	if err == io.ErrUnexpectedEOF || errors.As(err, new(*RemoteError)) || errors.As(err, new(*SourceError)) {
		return err
	}
	if errors.Is(err, io.EOF) { // or errors.Is would find an end in order
		err = fmt.Errorf("%v: %w", err, io.ErrUnexpectedEOF)
	}
	return &SourceError{err}
}

// notices tells Options.Notify, from a goroutine that lives while there is one.
type notices struct {
	notify  func(Notice)
	ring    []Notice // maxNotices, allocated with the first
	at, n   int
	busy    bool
	dropped uint64
}

const maxNotices = 64

// notice queues a notice. mu is held.
func (d *Demux) notice(n Notice) {
	q := &d.notices
	if q.notify == nil {
		return
	}
	if q.n == maxNotices {
		q.dropped++
		return
	}
	if q.ring == nil {
		q.ring = make([]Notice, maxNotices)
	}
	q.ring[(q.at+q.n)%maxNotices] = n
	q.n++
	if !q.busy {
		q.busy = true
		go d.tell()
	}
}

func (d *Demux) tell() {
	q := &d.notices
	for {
		d.mu.Lock()
		if q.n == 0 {
			q.busy = false
			d.mu.Unlock()
			return
		}
		n := q.ring[q.at]
		q.ring[q.at] = Notice{}
		q.at = (q.at + 1) % maxNotices
		q.n--
		d.mu.Unlock()
		q.notify(n)
	}
}

// forever is no deadline.
const forever = time.Duration(math.MaxInt64)
