package demux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// pump reads one source, or one part of it, and fills the sinks.
type pump struct {
	d      *Demux
	src    Source
	ahead  buffered // src, if it can tell what needs no waiting
	buf    []byte
	ctx    context.Context
	cancel context.CancelFunc
	inNext atomic.Bool

	// Of the pump's goroutine alone, until commit.
	events, bytes, unknown uint64
	shut                   [2]bool   // sinks that were seen to take no more
	skipped                [2]uint64 // bytes of those
	stages                 [2]stage
	streams                byte // bit i: sink i ends when this pump does

	wake  chan struct{} // of one
	timer *time.Timer

	// Guarded by Demux.mu.
	on   *Sink // that holds the pump up
	need int   // how much room it waits for
	// After KindExit: how long Next has waited in all, since when it does, and
	// whether that was too long.
	drain   *time.Timer
	waited  time.Duration
	since   time.Time
	expired bool
}

// buffered is a source that has a buffer of its own and can say what is in it, so
// that many small events cost one lock and one wake-up.
type buffered interface {
	// buffered returns the next event if Next would return it without waiting.
	// Its Data is valid until Next, so are the Data of those before it.
	buffered() (Event, bool)
	// split moves what is next, as long as it is data and the room of its stream
	// takes it, and returns how many bytes of each, in how many events.
	split(stdout, stderr []byte) (n, m, events int)
}

// single is a part that is one stream.
type single interface{ only() Stream }

func (r *reader) only() Stream      { return r.stream }
func (p *commandPipe) only() Stream { return p.stream }

func newPump(d *Demux, src Source) *pump {
	p := &pump{d: d, src: src, wake: make(chan struct{}, 1)}
	if p.ahead, _ = src.(buffered); p.ahead == nil {
		p.buf = make([]byte, sourceBuffer)
	}
	if s, ok := src.(single); ok {
		p.streams = 1 << (s.only() - Stdout)
	}
	p.ctx, p.cancel = context.WithCancel(d.ctx)
	p.timer = time.NewTimer(forever)
	return p
}

func (p *pump) run() {
	err := p.loop()
	p.timer.Stop()
	p.d.finished(p, err)
}

func (p *pump) loop() error {
	var ev Event
	for {
		for p.ahead != nil {
			if p.d.bounded() {
				p.split()
			}
			var ok bool
			if ev, ok = p.ahead.buffered(); !ok {
				break
			}
			if err := p.handle(&ev); err != nil {
				return err
			}
		}
		var err error
		ev, err = p.next()
		if ev.Kind != 0 || err == nil {
			if end := p.handle(&ev); end != nil {
				return end
			}
		}
		if err != nil {
			return err
		}
	}
}

// split does without an event a frame what deliver does, while both sinks have room.
func (p *pump) split() {
	out, err := &p.stages[0], &p.stages[1]
	n, m, events := p.ahead.split(out.dst[out.n:], err.dst[err.n:])
	out.n += n
	err.n += m
	p.bytes += uint64(n + m)
	p.events += uint64(events)
}

// next returns the next event. It commits what it has before it may wait.
func (p *pump) next() (Event, error) {
	d := p.d
	d.mu.Lock()
	p.commit()
	over := p.expired || d.stop.Load()
	d.mu.Unlock()
	if over {
		return Event{}, io.EOF
	}
	p.inNext.Store(true)
	if d.exited.Load() {
		d.mu.Lock()
		d.startDrain(p)
		d.mu.Unlock()
	}
	ev, err := p.src.Next(p.ctx, p.buf)
	p.inNext.Store(false)
	if d.exited.Load() {
		d.mu.Lock()
		p.waited += p.drained()
		d.mu.Unlock()
	}
	return ev, err
}

// handle does what an event says. An error ends the source.
func (p *pump) handle(ev *Event) error {
	p.events++
	p.bytes += uint64(len(ev.Data))
	if ev.Kind != KindData {
		return p.control(ev)
	}
	s := p.d.Sink(ev.Stream)
	if s == nil {
		p.unknown++
		return nil
	}
	p.streams |= 1 << (ev.Stream - Stdout)
	if p.d.bounded() {
		p.deliver(s, ev.Data)
	} else {
		p.deliverWhole(s, ev.Data)
	}
	return nil
}

func (p *pump) control(ev *Event) error {
	d := p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.Sink(ev.Stream)
	switch ev.Kind {
	case KindStreamEOF, KindTruncated:
		if s == nil {
			p.unknown++
			return nil
		}
		p.streams |= 1 << (ev.Stream - Stdout)
	case KindRemoteError, KindExit:
	default:
		p.unknown++
		return nil
	}
	p.commit()
	switch ev.Kind {
	case KindStreamEOF:
		s.finish(io.EOF)
	case KindTruncated:
		s.gap(ev.Lost)
	case KindRemoteError:
		err := remoteError(ev.Err)
		if d.err == nil {
			d.err = err
		}
		for _, s := range d.sinks {
			s.finish(err)
		}
		d.stop.Store(true)
		d.cancel()
		return err
	case KindExit:
		if d.exited.Load() {
			break
		}
		d.exitErr, d.exitAt = ev.Err, time.Now()
		d.exited.Store(true)
		for _, q := range d.pumps {
			if q.inNext.Load() {
				d.startDrain(q)
			}
		}
	}
	return nil
}

func remoteError(err error) error {
	if errors.As(err, new(*RemoteError)) {
		return err
	}
	text := fmt.Sprint(err)
	return &RemoteError{text[:min(len(text), maxRemoteText)]}
}

// drained is how long Next has waited since it was called or since the exit,
// whichever is later. mu is held.
func (p *pump) drained() time.Duration {
	if p.drain == nil || p.since.IsZero() {
		return 0
	}
	p.drain.Stop()
	n := time.Since(p.since)
	p.since = time.Time{}
	return n
}

// startDrain lets p wait in Next for what is left of Options.ExitDrain. Only
// waiting counts: what is there is read, however slowly. mu is held.
func (d *Demux) startDrain(p *pump) {
	if d.o.ExitDrain < 0 {
		return
	}
	p.since = time.Now()
	left := d.o.ExitDrain - p.waited
	if p.drain == nil {
		p.drain = time.AfterFunc(left, func() { d.expire(p) })
	} else {
		p.drain.Reset(left)
	}
}

// expire ends p as if its source had said io.EOF.
func (d *Demux) expire(p *pump) {
	d.mu.Lock()
	if p.since.IsZero() || p.waited+time.Since(p.since) < d.o.ExitDrain {
		d.mu.Unlock() // Next has returned, and perhaps was called again
		return
	}
	p.expired = true
	d.mu.Unlock()
	p.cancel()
	p.src.Close()
}

// stage is where a pump may put bytes of a sink without the lock.
type stage struct {
	dst  []byte
	n    int
	lent bool   // dst is the buffer of the reader that waits
	b    *block // or the end of this block
}

// deliver puts data into s, waiting for room as the policy says.
func (p *pump) deliver(s *Sink, data []byte) {
	i := s.stream - Stdout
	st := &p.stages[i]
	for len(data) > 0 {
		if st.n < len(st.dst) {
			n := copy(st.dst[st.n:], data)
			st.n += n
			data = data[n:]
			continue
		}
		if p.shut[i] = p.shut[i] || !p.stage(s, len(data)); p.shut[i] {
			p.skipped[i] += uint64(len(data))
			return
		}
	}
}

// stage gets room in s, or false if s takes no more. What is staged for the other
// sink stays so, unless the pump has to wait.
func (p *pump) stage(s *Sink, need int) bool {
	d := p.d
	i := s.stream - Stdout
	d.mu.Lock()
	defer d.mu.Unlock()
	p.commitSink(s)
	for {
		if s.shut() {
			return false
		}
		if s.owner != nil { // another part has bytes for s as well
			p.commit()
			p.sleep(forever)
			continue
		}
		if s.waiting && s.lent != nil && s.empty() {
			s.waiting, s.claimed = false, true
			s.owner = p
			p.stages[i] = stage{dst: s.lent[:min(len(s.lent), d.o.MemPerSink)], lent: true}
			return true
		}
		if room := s.room(); room > 0 {
			b := s.last()
			s.owner, s.staged = p, b
			p.stages[i] = stage{dst: b.buf[headerSize+b.w : headerSize+min(b.w+room, s.payload)], b: b}
			return true
		}
		p.commit()
		s.owner = p // without a stage
		p.hold(s, need)
		s.owner = nil
	}
}

// commit makes all that was staged readable, and counts it. mu is held.
func (p *pump) commit() {
	d := p.d
	d.events += p.events
	d.bytes += p.bytes
	d.unknown += p.unknown
	p.events, p.bytes, p.unknown = 0, 0, 0
	for i, s := range d.sinks {
		s.enqueued += p.skipped[i]
		s.discarded += p.skipped[i]
		p.skipped[i] = 0
		p.commitSink(s)
	}
}

func (p *pump) commitSink(s *Sink) {
	if s.owner != p {
		return
	}
	i := s.stream - Stdout
	s.owner, s.staged = nil, nil
	s.accept(p.stages[i])
	p.stages[i] = stage{}
	if len(p.d.pumps) > 1 {
		p.d.wakePumps() // one may wait to be the owner
	}
}

// deliverWhole is deliver for the policies without a bound: an event is accepted
// as a whole, so that peaks are exactly those of the designs they stand for.
func (p *pump) deliverWhole(s *Sink, data []byte) {
	if len(data) == 0 {
		return
	}
	d := p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	p.commit()
	p.holdWhole(s)
	if s.shut() {
		p.skipped[s.stream-Stdout] += uint64(len(data))
		p.commit()
		return
	}
	if s.waiting && len(data) <= len(s.lent) && s.empty() {
		s.waiting, s.claimed = false, true
		s.accept(stage{n: copy(s.lent, data), lent: true})
	} else {
		n := len(data)
		for len(data) > 0 {
			b := s.last()
			m := copy(b.buf[headerSize+b.w:], data)
			b.w += m
			data = data[m:]
		}
		s.accept(stage{n: n})
	}
	if d.o.Policy == CapError && s.backlog() > int64(d.o.Cap) {
		s.kill(&OverCapError{s.stream, s.backlog(), d.o.Cap})
	}
}

// holdWhole waits until s has some room, or a reader waits, as in those designs: the
// source is read on demand of either reader. mu is held, except inside.
func (p *pump) holdWhole(s *Sink) {
	d := p.d
	p.on, p.need = s, 1
	from, slept := time.Now(), false
	for !s.shut() && s.room() == 0 && !s.waiting && !s.other.waiting {
		if !slept {
			slept = true
			d.paused++
		}
		p.sleep(forever)
	}
	p.on = nil
	if slept {
		d.pausedTotal += time.Since(from)
	}
}

// hold waits until s takes what p has for it: until there is room for need bytes,
// or some of them were spilled, or s takes no more. mu is held, except inside.
func (p *pump) hold(s *Sink, need int) {
	d := p.d
	// Waking for every byte that a reader takes would cost a switch a byte.
	p.on, p.need = s, min(need, max(1, min(blockSize, d.o.MemPerSink/4)))
	now := time.Now()
	from, slept := now, false
	for !s.shut() && s.room() < p.need {
		spill, wait := d.judge(s, now)
		if spill && p.spill(s) {
			if s.room() > 0 {
				break
			}
			now = time.Now()
			continue
		}
		if spill { // the write failed, and the time of the next is known now
			_, wait = d.judge(s, time.Now())
		}
		if !slept {
			slept = true
			d.paused++
		}
		p.sleep(wait)
		now = time.Now()
	}
	p.on = nil
	if slept {
		d.pausedTotal += now.Sub(from)
	}
	s.other.fed(now)
}

// poke wakes p if it sleeps, or else before it sleeps again. mu is held.
func (p *pump) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// sleep waits for a poke, at most for a time. mu is held, except inside.
func (p *pump) sleep(most time.Duration) {
	p.d.mu.Unlock()
	if most == forever {
		<-p.wake
	} else {
		p.timer.Reset(most)
		select {
		case <-p.wake:
			p.timer.Stop()
		case <-p.timer.C:
		}
	}
	p.d.mu.Lock()
}

// judge is the rule of the policies for a source that is held up by s, which is
// full: whether to spill, else how long to wait for something to happen. mu is
// held.
//
// The source is read for a reader only: nothing is spilled unless the other
// reader starves (or Options.Eager). It has starved long enough when it waited for
// Patience in all while the source was held up, and s gave less than a Quantum in
// that time. Time in which the source had nothing does not count, so a reader of a
// silent stream does not condemn a slow one. From then on s is spilled without
// waiting until its reader takes a Quantum.
func (d *Demux) judge(s *Sink, now time.Time) (spill bool, wait time.Duration) {
	o, t := &d.o, s.other
	starving := t.waiting
	if starving {
		t.starve(s, now)
	}
	wait = forever
	switch {
	case o.Policy != Spill:
	case o.Eager:
		spill = true
	case !starving || o.Patience < 0:
	case o.Patience == 0:
		spill = true
	default:
		if s.condemned && s.nread-s.condemnedAt >= uint64(o.Quantum) {
			s.condemned = false
		}
		waited := t.window + now.Sub(t.starving)
		if !s.condemned && waited >= o.Patience {
			if s.nread-t.windowBase < uint64(o.Quantum) {
				s.condemned, s.condemnedAt = true, s.nread
				s.expiries++
			} else {
				t.newWindow(s, now)
				waited = 0
			}
		}
		if s.condemned {
			spill = true
		} else {
			wait = o.Patience - waited
		}
	}
	if spill && s.degraded && now.Before(s.retryAt) {
		spill, wait = false, s.retryAt.Sub(now)
	}
	if !starving || spill {
		return spill, wait
	}
	if s.degraded && o.SpillFullGrace >= 0 {
		from := t.starving
		if s.degradedAt.After(from) {
			from = s.degradedAt
		}
		if left := o.SpillFullGrace - now.Sub(from); left > 0 {
			wait = min(wait, left)
		} else {
			t.fail(&SpillFullError{s.stream, s.backlog(), s.degradedErr})
			return false, wait
		}
	}
	if o.StallAfter > 0 && !t.stalled {
		waited := t.episode + now.Sub(t.starving)
		if left := o.StallAfter - waited; left > 0 {
			return false, min(wait, left)
		}
		t.stalled = true
		d.notice(Notice{Kind: NoticeStall, Stream: s.stream, Starving: t.stream, Backlog: s.backlog(), Since: now.Add(-waited)})
		if o.StallError {
			t.fail(&StallError{t.stream, s.stream, s.backlog(), waited})
		}
	}
	return false, wait
}

// The waits before a failed write is tried again, unless space is released.
const (
	minRetry = 10 * time.Millisecond
	maxRetry = time.Second
)

// spill writes one block of s to its file and says whether that succeeded. mu is
// held, except inside.
func (p *pump) spill(s *Sink) bool {
	d := p.d
	if s.truncating {
		p.sleep(forever) // the reader pokes when it is done
		return true
	}
	b := s.victim()
	if b == nil {
		if s.room() == 0 { // else that must do, less than was hoped for though it is
			p.sleep(forever)
		}
		return true
	}
	from, to := b.r, b.w
	off, seq := s.disk.end, s.disk.endSeq
	var err error
	if d.o.MaxSpill > 0 && d.onDisk()+int64(to-from) > d.o.MaxSpill {
		err = errQuota
	} else {
		s.writing = b
		s.io++
		f := s.file
		d.mu.Unlock()
		if f == nil {
			f, err = d.open()
		}
		if err == nil {
			// A short write is a failure of the whole: it is written again.
			_, err = f.WriteAt(b.seal(from, to, seq), off)
		}
		d.mu.Lock()
		s.file = f
		s.writing = nil
		if s.gone == nil {
			s.disk.size = max(s.disk.size, off+int64(headerSize+to-from))
		}
		s.ioDone()
		s.spillWrites++
	}
	now := time.Now()
	if err != nil {
		s.degrade(err, now)
		if b.r == b.w && s.gone == nil {
			s.recycle(b) // its reader was faster
			return true
		}
		return false
	}
	s.recover(now)
	s.spilled += uint64(to - from)
	if s.gone == nil {
		s.toDisk(b, to-from)
	}
	return true
}

// degrade begins or goes on with an episode of failed writes. mu is held.
func (s *Sink) degrade(err error, now time.Time) {
	d := s.d
	s.degradedErr, d.degradedErr = err, err
	if s.degraded {
		s.backoff = min(2*s.backoff, maxRetry)
	} else {
		s.degraded, s.degradedAt, s.backoff = true, now, minRetry
		d.degraded++
		n := Notice{Kind: NoticeSpillFull, Stream: s.stream, Backlog: s.backlog(), Since: now, Err: err}
		if s.other.waiting {
			n.Starving = s.other.stream
		}
		d.notice(n)
	}
	s.retryAt = now.Add(s.backoff)
}

// recover ends it. mu is held.
func (s *Sink) recover(now time.Time) {
	if s.degraded {
		s.endDegraded(now)
		s.d.notice(Notice{Kind: NoticeSpillResumed, Stream: s.stream, Backlog: s.backlog(), Since: now})
	}
}

func (s *Sink) endDegraded(now time.Time) {
	if s.degraded {
		s.degraded = false
		s.d.degradedTotal += now.Sub(s.degradedAt)
	}
}
