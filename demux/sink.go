package demux

import (
	"context"
	"errors"
	"io"
	"os"
	"time"
)

// Sink is one stream and its reader. All methods may be called at any time from
// any goroutine; reads that overlap take turns, and each gets a run of bytes
// without a hole.
type Sink struct {
	d      *Demux
	stream Stream
	other  *Sink

	turn chan struct{} // of one: holds a token while somebody reads
	wake chan struct{} // of one: for the reader that waits

	// All that follows is guarded by d.mu.

	// What is unread: head, then disk, then tail.
	head, tail list
	disk       extent
	cache      *block // the first block of disk, read back; counts as disk
	mem        int64  // bytes in head and tail
	free       *block
	blocks     int // in use
	nfree      int
	payload    int // of a block
	maxBlocks  int // unless there is no bound

	// The pump's side.
	owner     *pump  // that may add
	staged    *block // that it adds to now
	writing   *block // that it writes to disk now
	condemned bool   // spilled without further waiting, since nread was condemnedAt

	condemnedAt uint64
	degraded    bool // writes fail, since degradedAt
	degradedAt  time.Time
	degradedErr error
	backoff     time.Duration
	retryAt     time.Time

	// The file.
	file       file
	io         int // calls under way
	ioIdle     chan struct{}
	truncating bool
	noPunch    bool

	// The reader's side.
	waiting  bool   // for bytes or an end, and there are none
	lent     []byte // its buffer
	claimed  bool   // a pump fills it
	got      int    // and this is how far
	pinned   *block // being copied from without the lock
	once     error  // for the next return
	expired  bool   // the deadline is over
	deadline *time.Timer
	gaps     []Gap // at most maxGaps
	pending  []Gap // at most maxGaps: not told yet, under StrictGaps

	// Its starvation: it waits while the source is held up by the other sink.
	starving   time.Time     // since when, or zero
	window     time.Duration // in all, since the other's nread was windowBase
	windowBase uint64
	episode    time.Duration // in all, since its last byte
	stalled    bool          // that was reported
	oneRead    time.Duration // in this Read

	end    error // after the last byte, from the source
	gone   error // at once: what was unread is discarded
	closed bool  // by its owner

	enqueued, nread, discarded   uint64
	peakMem, peakDisk, peakTotal int64
	spilled                      uint64
	spillWrites, spillReads      uint64
	released                     uint64
	ngaps, merged                uint64
	starved, expiries            uint64
	starvedTotal, starvedMax     time.Duration
	lastRead                     time.Time
}

// extent is what a sink has on disk: unread blocks from start to end.
type extent struct {
	start, end       int64
	startSeq, endSeq uint32 // numbers of the blocks
	first            int64  // size of the block at start, once it was read
	bytes            int64  // unread
	size             int64  // of the file, as far as it was written
	punched          int64  // all before it was given back
}

const (
	// smallCopy is what is copied with the lock held: less than two locks cost.
	smallCopy = 2 << 10
	// releaseStep is how much a reader gets ahead before it is given back.
	releaseStep = 1 << 20
	// punchAlign is the block of every common file system.
	punchAlign = 4 << 10
	// maxGaps bounds what Gaps lists.
	maxGaps = 64
)

func newSink(d *Demux, stream Stream) *Sink {
	return &Sink{
		d: d, stream: stream,
		turn: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		payload:   min(blockSize-headerSize, d.o.MemPerSink),
		maxBlocks: (d.o.MemPerSink+blockSize-1)/blockSize + 1,
	}
}

// Read reads up to len(p) bytes, and waits for at least one. At the end it
// returns, from then on, io.EOF, or what ended the stream instead:
// io.ErrUnexpectedEOF, a *[SourceError], a *[RemoteError], a *[SpillReadError], an
// *[OverCapError], [ErrClosed]. Those that may be followed by more bytes are
// *[GapError], *[StallError], *[SpillFullError] and [os.ErrDeadlineExceeded].
// Bytes and an error never come together.
func (s *Sink) Read(p []byte) (int, error) { return s.read(context.Background(), p) }

// ReadContext is Read until ctx is done; it then returns ctx.Err() and has
// consumed nothing.
func (s *Sink) ReadContext(ctx context.Context, p []byte) (int, error) { return s.read(ctx, p) }

func (s *Sink) read(ctx context.Context, p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := s.takeTurn(ctx); err != nil {
		return 0, err
	}
	defer s.passTurn()
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	for {
		if err := s.blocked(ctx); err != nil {
			return 0, err
		}
		if b := s.front(); b != nil {
			n := s.copyOut(p)
			if n == 0 {
				continue // closed while it was copied
			}
			s.lastRead = time.Now()
			s.tidy()
			return n, nil
		}
		if s.disk.bytes > 0 {
			s.load()
			continue
		}
		if err := s.atEnd(); err != nil {
			return 0, err
		}
		if n := s.await(ctx, p); n > 0 {
			s.lastRead = time.Now()
			return n, nil
		}
	}
}

// WriteTo writes all that comes to w, without a copy in between where it was in
// memory, until the end of the stream (nil for io.EOF) or an error of w or of
// [Sink.Read]. What w did not take stays readable.
func (s *Sink) WriteTo(w io.Writer) (int64, error) {
	ctx := context.Background()
	s.takeTurn(ctx)
	defer s.passTurn()
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	var total int64
	for {
		if err := s.blocked(ctx); err != nil {
			return total, err
		}
		if b := s.front(); b != nil {
			n, err := s.writeOut(w, b)
			total += int64(n)
			if err != nil {
				return total, err
			}
			s.lastRead = time.Now()
			s.tidy()
			continue
		}
		if s.disk.bytes > 0 {
			s.load()
			continue
		}
		if err := s.atEnd(); err != nil {
			if err == io.EOF {
				err = nil
			}
			return total, err
		}
		s.await(ctx, nil)
	}
}

var errInvalidWrite = errors.New("demux: Write returned an impossible count")

func (s *Sink) writeOut(w io.Writer, b *block) (n int, err error) {
	q := b.unread()[:s.upToGap(b.w-b.r)]
	s.pinned = b
	func() {
		s.d.mu.Unlock()
		defer s.d.mu.Lock() // if Write panics as well
		n, err = w.Write(q)
	}()
	s.pinned = nil
	if n < 0 || n > len(q) {
		n, err = max(0, min(n, len(q))), errInvalidWrite
	} else if n < len(q) && err == nil {
		err = io.ErrShortWrite
	}
	if s.gone == nil && n > 0 {
		s.consume(b, n)
	}
	return n, err
}

// Buffered returns how many bytes are unread, in memory and on disk.
func (s *Sink) Buffered() int64 {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return s.backlog()
}

// Gaps returns the places known so far where bytes were lost upstream: the first
// 63, and one in which all others are merged.
func (s *Sink) Gaps() []Gap {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return append([]Gap(nil), s.gaps...)
}

// SetReadDeadline makes reads, also those that wait, fail with
// [os.ErrDeadlineExceeded] from t on. They consume nothing; the zero time, or a
// later one, lets reading go on.
func (s *Sink) SetReadDeadline(t time.Time) error {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if s.deadline != nil {
		s.deadline.Stop()
		s.deadline = nil
	}
	s.expired = false
	if t.IsZero() {
		return nil
	}
	left := time.Until(t)
	if left <= 0 {
		s.expired = true
		s.signal()
		return nil
	}
	var timer *time.Timer
	timer = time.AfterFunc(left, func() {
		s.d.mu.Lock()
		defer s.d.mu.Unlock()
		if s.deadline == timer {
			s.expired = true
			s.signal()
		}
	})
	s.deadline = timer
	return nil
}

// Close gives up what is unread and what is to come of this stream: a Read that
// waits returns [ErrClosed], and memory and disk are free when Close returns. The
// other sink is not touched. When both are closed, and one of them before its end,
// the source is closed, unless Options.KeepDraining is set.
func (s *Sink) Close() error {
	s.d.mu.Lock()
	s.kill(ErrClosed)
	s.closed = true
	if s.deadline != nil {
		s.deadline.Stop()
		s.deadline = nil
	}
	s.d.mu.Unlock()
	s.closeFile()
	return nil
}

func (s *Sink) takeTurn(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	default:
	}
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Sink) passTurn() { <-s.turn }

// blocked is why nothing may be read now, whatever there is. d.mu is held, here
// and in all that follows.
func (s *Sink) blocked(ctx context.Context) error {
	switch {
	case s.closed:
		return ErrClosed
	case s.gone != nil:
		return s.gone
	case s.expired:
		return os.ErrDeadlineExceeded
	case ctx.Err() != nil:
		return ctx.Err()
	}
	if s.upToGap(1) == 0 {
		g := s.pending[0]
		s.pending = append(s.pending[:0], s.pending[1:]...)
		return &GapError{g}
	}
	return nil
}

// atEnd is why nothing will come, if nothing is unread.
func (s *Sink) atEnd() error {
	if s.end != nil {
		s.retire()
		return s.end
	}
	if err := s.once; err != nil {
		s.once = nil
		s.episode, s.stalled = 0, false
		return err
	}
	return nil
}

// await waits until something has changed. A pump may put bytes into p meanwhile;
// await returns how many.
func (s *Sink) await(ctx context.Context, p []byte) int {
	d := s.d
	select {
	case <-s.wake: // of a wait that ended otherwise
	default:
	}
	s.waiting, s.lent, s.got = true, p, 0
	for _, q := range d.pumps {
		if q.on != nil {
			q.poke()
		}
	}
	d.mu.Unlock()
	if done := ctx.Done(); done == nil {
		<-s.wake
	} else {
		select {
		case <-s.wake:
		case <-done:
		}
	}
	d.mu.Lock()
	for s.claimed {
		d.mu.Unlock()
		<-s.wake
		d.mu.Lock()
	}
	s.waiting, s.lent = false, nil
	if !s.starving.IsZero() {
		s.fed(time.Now())
	}
	s.oneRead = 0
	return s.got
}

// signal wakes the reader if it waits.
func (s *Sink) signal() {
	if s.waiting {
		s.waiting = false
		s.post()
	}
}

func (s *Sink) post() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// fail makes the Read that waits return err, once.
func (s *Sink) fail(err error) {
	s.once = err
	s.signal()
}

// starve notes that the reader waits while s holds the source up.
func (t *Sink) starve(s *Sink, now time.Time) {
	if !t.starving.IsZero() {
		return
	}
	t.starving = now
	if t.window == 0 {
		t.windowBase = s.nread
	}
}

func (t *Sink) newWindow(s *Sink, now time.Time) {
	t.fed(now)
	t.window = 0
	t.starve(s, now)
}

// fed notes that the reader waits no more, or the source is held up no more.
func (t *Sink) fed(now time.Time) {
	if t.starving.IsZero() {
		return
	}
	n := now.Sub(t.starving)
	t.starving = time.Time{}
	if n <= 0 {
		return
	}
	if t.oneRead == 0 {
		t.starved++
	}
	t.oneRead += n
	t.window += n
	t.episode += n
	t.starvedTotal += n
	t.starvedMax = max(t.starvedMax, t.oneRead)
}

// shut says whether s takes no more bytes.
func (s *Sink) shut() bool { return s.gone != nil || s.end != nil }

func (s *Sink) empty() bool { return s.mem == 0 && s.disk.bytes == 0 }

func (s *Sink) backlog() int64 { return s.mem + s.disk.bytes }

// isOver says whether the reader was or will next be told the end of the stream.
func (s *Sink) isOver() bool { return s.gone != nil || s.end != nil && s.empty() }

// accept counts what a pump has added and lets the reader have it.
func (s *Sink) accept(st stage) {
	if st.n == 0 {
		return
	}
	s.enqueued += uint64(st.n)
	if s.shut() && !st.lent {
		s.discarded += uint64(st.n)
		return
	}
	if !s.starving.IsZero() {
		s.fed(time.Now())
	}
	s.window, s.episode, s.stalled = 0, 0, false
	s.mem += int64(st.n)
	s.peak()
	if st.lent {
		s.mem -= int64(st.n)
		s.nread += uint64(st.n)
		s.claimed, s.got = false, st.n
		s.post()
		return
	}
	if st.b != nil {
		st.b.w += st.n
	}
	s.signal()
}

func (s *Sink) peak() {
	s.peakMem = max(s.peakMem, s.mem)
	s.peakDisk = max(s.peakDisk, s.disk.bytes)
	s.peakTotal = max(s.peakTotal, s.backlog())
}

// finish sets the end that comes after the last byte, if there is none.
func (s *Sink) finish(err error) {
	if s.shut() {
		return
	}
	s.end = err
	s.endDegraded(time.Now())
	s.signal()
	s.d.wakePumps()
}

// kill ends s at once. The caller has to call closeFile without d.mu.
func (s *Sink) kill(err error) {
	if s.gone != nil {
		return
	}
	d := s.d
	s.gone = err
	s.discarded += uint64(s.backlog())
	s.mem, s.disk = 0, extent{}
	s.dropMemory()
	s.pending = nil
	s.endDegraded(time.Now())
	s.signal()
	if o := s.other; o.gone != nil && (s.end == nil || o.end == nil) && !d.o.KeepDraining {
		d.stop.Store(true)
	}
	d.wakePumps()
}

func (s *Sink) dropMemory() {
	s.head, s.tail, s.cache, s.free = list{}, list{}, nil, nil
	s.blocks, s.nfree = 0, 0
}

// retire frees what a sink that was read to its end does not need. A block that is being
// written, which the reader was faster than, is still counted: the next Read retires, or Close.
func (s *Sink) retire() {
	if s.writing != nil {
		return
	}
	s.dropMemory()
	if s.file != nil {
		s.d.mu.Unlock()
		s.closeFile()
		s.d.mu.Lock()
	}
}

// closeFile closes the file as soon as nobody uses it, and the source if there is
// nobody to read it for. d.mu is not held.
func (s *Sink) closeFile() {
	d := s.d
	d.mu.Lock()
	for s.io > 0 {
		if s.ioIdle == nil {
			s.ioIdle = make(chan struct{})
		}
		idle := s.ioIdle
		d.mu.Unlock()
		<-idle
		d.mu.Lock()
	}
	f := s.file
	s.file = nil
	d.mu.Unlock()
	if f != nil {
		f.Close()
		d.mu.Lock()
		d.spaceFreed()
		d.mu.Unlock()
	}
	if d.stop.Load() {
		d.closeSource()
	}
}

func (s *Sink) ioDone() {
	s.io--
	if s.io == 0 && s.ioIdle != nil {
		close(s.ioIdle)
		s.ioIdle = nil
	}
}

// gap notes bytes that were lost upstream.
func (s *Sink) gap(lost int64) {
	if s.shut() {
		return
	}
	g := Gap{int64(s.enqueued), lost}
	s.ngaps++
	var merged bool
	if s.gaps, merged = addGap(s.gaps, g); merged {
		s.merged++
	}
	if s.d.o.StrictGaps {
		s.pending, _ = addGap(s.pending, g)
		s.signal()
	}
	s.d.notice(Notice{Kind: NoticeGap, Stream: s.stream, Backlog: s.backlog(), Since: time.Now()})
}

// addGap merges what is too much into the last.
func addGap(list []Gap, g Gap) ([]Gap, bool) {
	if len(list) < maxGaps {
		return append(list, g), false
	}
	last := &list[maxGaps-1]
	if g.Lost < 0 || last.Lost < 0 {
		last.Lost = -1
	} else {
		last.Lost += g.Lost
	}
	return list, true
}

// upToGap bounds n by what is in front of the next gap to tell.
func (s *Sink) upToGap(n int) int {
	if len(s.pending) > 0 {
		n = int(min(int64(n), s.pending[0].Offset-int64(s.nread)))
	}
	return n
}

// Memory.

// back is the list that grows.
func (s *Sink) back() *list {
	if s.disk.bytes > 0 {
		return &s.tail
	}
	return &s.head
}

// room is how many bytes memory takes now.
func (s *Sink) room() int {
	n := 0
	if b := s.back().last; b != nil {
		n = s.payload - b.w
		if b.r == b.w {
			n = s.payload
		}
	}
	spare := s.maxBlocks - s.blocks
	if s.disk.bytes > 0 && s.head.first == nil && s.cache == nil {
		spare-- // to read back into
	}
	n += max(0, spare) * s.payload
	return max(0, min(n, s.d.o.MemPerSink-int(s.mem)))
}

// last returns the last block, which has room.
func (s *Sink) last() *block {
	l := s.back()
	b := l.last
	if b != nil && b.r == b.w {
		b.r, b.w = 0, 0
	}
	if b == nil || b.w == s.payload {
		b = s.newBlock()
		l.push(b)
	}
	return b
}

func (s *Sink) newBlock() *block {
	s.blocks++
	if b := s.free; b != nil {
		s.free, b.next = b.next, nil
		s.nfree--
		return b
	}
	return &block{buf: make([]byte, headerSize+s.payload)}
}

func (s *Sink) recycle(b *block) {
	s.blocks--
	if s.blocks+s.nfree < s.maxBlocks {
		b.r, b.w = 0, 0
		b.next, s.free = s.free, b
		s.nfree++
	}
}

// front is the first block that is in memory and unread.
func (s *Sink) front() *block {
	if b := s.head.first; b != nil && b.r < b.w {
		return b
	}
	return s.cache
}

// copyOut fills p with what is at the front.
func (s *Sink) copyOut(p []byte) int {
	n := 0
	for n < len(p) {
		b := s.front()
		if b == nil {
			break
		}
		q := b.unread()
		q = q[:s.upToGap(min(len(q), len(p)-n))]
		if len(q) == 0 {
			break
		}
		if len(q) <= smallCopy {
			copy(p[n:], q)
		} else {
			s.pinned = b
			s.d.mu.Unlock()
			copy(p[n:], q)
			s.d.mu.Lock()
			s.pinned = nil
			if s.gone != nil {
				break // and q was discarded
			}
		}
		s.consume(b, len(q))
		n += len(q)
	}
	return n
}

// consume takes n bytes from b, which is the front.
func (s *Sink) consume(b *block, n int) {
	b.r += n
	s.nread += uint64(n)
	if b == s.cache {
		s.disk.bytes -= int64(n)
		if b.r == b.w {
			s.disk.start += s.disk.first
			s.disk.startSeq++
			s.cache = nil
			s.recycle(b)
			if s.disk.bytes == 0 {
				s.head, s.tail = s.tail, list{}
			}
			s.d.spaceFreed()
		}
	} else {
		s.mem -= int64(n)
		if b.r == b.w {
			switch {
			case b == s.writing:
				s.head.pop() // and spill recycles it
			case b.w == s.payload || b != s.head.last:
				s.head.pop()
				s.recycle(b)
			case b != s.staged:
				b.r, b.w = 0, 0
			}
		}
	}
	for _, p := range s.d.pumps {
		if p.on == s && (s.mem == 0 || s.room() >= p.need) {
			p.poke()
		}
	}
}

// Disk.

// victim is the block that goes to disk next. As long as there is nothing on disk
// that is the last full one: what is behind it becomes the tail, and has room for
// a full block from then on.
func (s *Sink) victim() *block {
	if s.disk.bytes > 0 {
		return s.tail.first
	}
	var v *block
	for b := s.head.first; b != nil; b = b.next {
		if b.w == s.payload {
			v = b
		}
	}
	return v
}

// toDisk books b, of which n bytes were written behind what is on disk.
func (s *Sink) toDisk(b *block, n int) {
	live := b.w - b.r
	if live == 0 { // its reader was faster, and it is in no list
		s.recycle(b)
		return
	}
	if s.disk.bytes > 0 {
		s.tail.pop()
	} else {
		s.tail = s.head.split(b)
		s.d.notice(Notice{Kind: NoticeSpilling, Stream: s.stream, Starving: s.starver(), Backlog: s.backlog(), Since: time.Now()})
	}
	s.mem -= int64(live)
	s.disk.bytes += int64(live)
	s.disk.end += int64(headerSize + n)
	s.disk.endSeq++
	s.peak()
	if live == n && b != s.pinned {
		s.recycle(b)
		return
	}
	// The reader is in the middle of it: it is the first on disk, and is as it
	// would be had it been read back.
	s.cache, s.disk.first = b, int64(headerSize+n)
}

func (s *Sink) starver() Stream {
	if s.other.waiting {
		return s.other.stream
	}
	return 0
}

// load reads the first block of the file back.
func (s *Sink) load() {
	b := s.newBlock()
	off, seq := s.disk.start, s.disk.startSeq
	h := b.buf[:min(int64(len(b.buf)), s.disk.end-off)]
	f := s.file
	s.io++
	s.d.mu.Unlock()
	m, err := f.ReadAt(h, off)
	n := 0
	if m == len(h) {
		n, err = parseBlock(h, seq)
	} else if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	s.d.mu.Lock()
	s.ioDone()
	s.spillReads++
	if s.gone != nil {
		return
	}
	if err == nil && int64(n) > s.disk.bytes {
		err = errBlock
	}
	if err != nil {
		s.kill(&SpillReadError{int64(s.nread), err})
		s.d.mu.Unlock()
		s.closeFile()
		s.d.mu.Lock()
		return
	}
	b.r, b.w = 0, n
	s.cache, s.disk.first = b, int64(headerSize+n)
}

// tidy gives space back to the file system. Only the reader calls it.
func (s *Sink) tidy() {
	d := s.d
	f := s.file
	if f == nil || s.gone != nil {
		return
	}
	if s.disk.bytes == 0 {
		if s.disk.size == 0 || s.writing != nil {
			return
		}
		s.truncating = true
		s.io++
		d.mu.Unlock()
		err := f.Truncate(0)
		d.mu.Lock()
		s.ioDone()
		s.truncating = false
		if s.gone == nil {
			if err == nil {
				s.released += uint64(s.disk.size - s.disk.punched)
			}
			s.disk = extent{startSeq: s.disk.endSeq, endSeq: s.disk.endSeq}
		}
		d.spaceFreed()
		d.wakePumps()
		return
	}
	to := s.disk.start &^ (punchAlign - 1)
	n := to - s.disk.punched
	if s.noPunch || n < releaseStep && (n == 0 || !s.degraded && !s.other.degraded) {
		return
	}
	from := s.disk.punched
	s.io++
	d.mu.Unlock()
	err := f.Punch(from, n)
	d.mu.Lock()
	s.ioDone()
	if s.gone != nil {
		return
	}
	if err != nil {
		s.noPunch = true
		return
	}
	s.disk.punched = to
	s.released += uint64(n)
	d.spaceFreed()
}

func (s *Sink) stats() SinkStats {
	st := SinkStats{
		Enqueued: s.enqueued, Read: s.nread, Discarded: s.discarded,
		LiveMem: uint64(s.mem), LiveDisk: uint64(s.disk.bytes),
		PeakMem: uint64(s.peakMem), PeakDisk: uint64(s.peakDisk), PeakTotal: uint64(s.peakTotal),
		Spilled: s.spilled, SpillWrites: s.spillWrites, SpillReads: s.spillReads, Released: s.released,
		Gaps: s.ngaps, GapsMerged: s.merged,
		Starved: s.starved, StarvedTotal: s.starvedTotal, StarvedMax: s.starvedMax,
		PatienceExpired: s.expiries, LastRead: s.lastRead,
		Done: s.shut(), Err: s.end,
	}
	if s.gone != nil {
		st.Err = s.gone
	}
	return st
}
