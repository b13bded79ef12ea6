package demuxtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/sandbed/sandbed/demux"
)

// Chunk is the unit of the experiment in bytes: one event, one read, and what a
// sink holds in memory. It is the least MemPerSink, so that a block of a spill
// file is one chunk as well and peaks are whole numbers.
const Chunk = 4 << 10

// Interleaving is the order in which a source delivers chunks: O and E.
type Interleaving struct{ Name, Order string }

// Interleavings are the eight of the experiment, of 48 chunks each.
func Interleavings() []Interleaving {
	r := strings.Repeat
	return []Interleaving{
		{"I1", r("OE", 24)},
		{"I2", r("OOE", 16)},
		{"I3", r("OEE", 16)},
		{"I4", r("OOOOOOOE", 6)},
		{"I5", r("O", 24) + r("E", 24)},
		{"I6", r("E", 24) + r("O", 24)},
		{"I7", "OOOOOOEEEOOOOOOEOOOOOEEEEOOOOOEEEOOOEEEOOOOOOOEE"},
		{"I8", r("O", 48)},
	}
}

// Cadence is how one reader behaves. The zero value reads as fast as chunks come.
type Cadence struct {
	Name string
	// Every is the length of a turn, in each of which it reads Burst chunks, at least
	// one; 0 means that it always reads.
	Every time.Duration
	Burst int
	// Absent readers neither read nor close. Sequential ones begin when the other
	// has ended; the peaks are taken then.
	Absent, Sequential bool
	// Cancel closes the sink after half of its chunks.
	Cancel bool
	// Tiny reads 64 bytes at a time.
	Tiny bool
}

// The cadences by name; Yield is one turn of the scheduler, in which no clock
// that matters moves.
var (
	Prompt     = Cadence{Name: "prompt"}
	Yield      = Cadence{Name: "yield", Every: time.Nanosecond}
	Lag1       = Cadence{Name: "lag-1ms", Every: time.Millisecond}
	Lag10      = Cadence{Name: "lag-10ms", Every: 10 * time.Millisecond}
	Lag50      = Cadence{Name: "lag-50ms", Every: 50 * time.Millisecond}
	Lag80      = Cadence{Name: "lag-80ms", Every: 80 * time.Millisecond}
	Bursty     = Cadence{Name: "bursty", Every: 160 * time.Millisecond, Burst: 8}
	Absent     = Cadence{Name: "absent", Absent: true}
	CancelMid  = Cadence{Name: "cancel-mid", Every: 10 * time.Millisecond, Cancel: true}
	Sequential = Cadence{Name: "sequential", Sequential: true}
	Tiny       = Cadence{Name: "tiny", Tiny: true}
)

// Cadences are all of them.
func Cadences() []Cadence {
	return []Cadence{Prompt, Yield, Lag1, Lag10, Lag50, Lag80, Bursty, Absent, CancelMid, Sequential, Tiny}
}

// Setting is a policy with the options of the experiment.
type Setting struct {
	Name    string
	Options demux.Options
}

// Settings are the six of the experiment, scaled to [Chunk]: one chunk in memory,
// a cap of eight, a Patience of 20 ms and a microsecond, so that a turn at the same
// instant comes before it. Spill files go to dir.
func Settings(dir string) []Setting {
	base := demux.DefaultOptions()
	base.MemPerSink, base.Quantum, base.Cap = Chunk, Chunk/4, 8*Chunk
	base.Patience = 20*time.Millisecond + time.Microsecond
	base.SpillDir, base.AllowMemoryBacked = dir, true
	with := func(name string, set func(*demux.Options)) Setting {
		o := base
		set(&o)
		return Setting{name, o}
	}
	return []Setting{
		with("unbounded", func(o *demux.Options) { o.Policy = demux.Unbounded }),
		with("cap-8", func(o *demux.Options) { o.Policy = demux.CapError }),
		with("backpressure", func(o *demux.Options) { o.Policy = demux.Backpressure }),
		with("spill-p0", func(o *demux.Options) { o.Patience = 0 }),
		with("spill", func(o *demux.Options) {}),
		with("eager", func(o *demux.Options) { o.Eager = true }),
	}
}

// Cell is one run: a policy, an order of chunks, and a cadence for each reader.
type Cell struct {
	Setting        Setting
	Interleaving   Interleaving
	Stdout, Stderr Cadence
}

func (c Cell) String() string {
	return fmt.Sprintf("%s/%s/stdout=%s/stderr=%s", c.Setting.Name, c.Interleaving.Name, c.Stdout.Name, c.Stderr.Name)
}

// needsClock says whether the cell depends on a clock: whether somebody is slower than
// a Patience that is neither 0 nor for ever.
func (c Cell) needsClock() bool {
	o := c.Setting.Options
	return o.Policy == demux.Spill && !o.Eager && o.Patience > 0 && max(c.Stdout.Every, c.Stderr.Every) >= o.Patience
}

// Result is what came of a cell. Peaks are of stdout and stderr in chunks,
// rounded up, as [demux.SinkStats] has them.
type Result struct {
	PeakMem, PeakDisk, PeakTotal [2]int
	// Bytes were read, of the Total that the source had, before End.
	Bytes, Total [2]int64
	End          [2]error // io.EOF if all went well
	// Stalled is a run that could not go on: a reader starved, and no turn of the
	// other was to come.
	Stalled bool
	// Wait is the longest that a reader waited while the source was held up. It is
	// 0 where no clock ran.
	Wait [2]time.Duration
	// HeapReserved is the most that Stats showed between two events, in bytes.
	HeapReserved int64
}

// Whole reports whether both readers got every byte and then io.EOF.
func (r Result) Whole() bool {
	return !r.Stalled && r.Bytes == r.Total && r.End[0] == io.EOF && r.End[1] == io.EOF
}

// ErrNeedsClock is a cell whose result depends on time: one with a reader that is
// slower than Patience. It can only be run in virtual time.
var ErrNeedsClock = errors.New("demuxtest: the cell needs virtual time")

// Experiment runs a cell in lock-step: an event is handed out only when every
// reader has done all that it can, so the peaks are exact, whatever the machine
// does. It needs no clock, and so cannot run a cell with a reader that is slower
// than Patience, which is [ErrNeedsClock]; [VirtualExperiment] can.
func Experiment(f Factory, c Cell) (Result, error) {
	if c.needsClock() {
		return Result{}, fmt.Errorf("%w: %v", ErrNeedsClock, c)
	}
	return newLockstep(c, false).run(f)
}

// VirtualExperiment is Experiment for any cell. It must be called in a bubble of
// testing/synctest.
func VirtualExperiment(f Factory, c Cell) (Result, error) { return newLockstep(c, true).run(f) }

// lockstep drives one cell. Its only concurrency is that of the demultiplexer.
type lockstep struct {
	c       Cell
	virtual bool
	src     *script
	d       Demux
	readers [2]*lockReader

	handed  int // events handed out, the end among them
	atGate  atomic.Bool
	arrived chan struct{}
	release chan struct{}
	onEvent func(demux.Stats) // after each event, if set
	res     Result
	wg      sync.WaitGroup
}

// lockReader is a reader that reads when it is granted a turn.
type lockReader struct {
	cadence  Cadence
	r        *checked
	grant    chan int // chunks; −1 until the end
	reading  atomic.Bool
	consumed atomic.Int64
	err      atomic.Pointer[error] // the end

	begun  bool          // a turn of which the end was not yet seen
	period time.Duration // the last multiple of Every
	credit int           // chunks that it may still read in this period
	closed bool
}

func newLockstep(c Cell, virtual bool) *lockstep {
	l := &lockstep{c: c, virtual: virtual, arrived: make(chan struct{}, 1), release: make(chan struct{})}
	i := 0
	l.src = newScriptFunc(io.EOF, func() (step, bool) {
		if i == len(c.Interleaving.Order) {
			return step{}, false
		}
		i++
		return data(streamOf(c.Interleaving.Order[i-1]), Chunk), true
	})
	for _, r := range c.Interleaving.Order {
		l.res.Total[streamOf(byte(r))-1] += Chunk
	}
	l.src.gate = func(ctx context.Context) error {
		l.atGate.Store(true)
		select {
		case l.arrived <- struct{}{}:
		default:
		}
		select {
		case <-l.release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-l.src.closed:
			return errSourceClosed
		}
	}
	return l
}

func streamOf(c byte) demux.Stream {
	if c == 'E' {
		return demux.Stderr
	}
	return demux.Stdout
}

func (r *lockReader) run() {
	size := Chunk
	if r.cadence.Tiny {
		size = 64
	}
	buf := make([]byte, size)
	for n := range r.grant {
		for left := n * Chunk; (n < 0 || left > 0) && r.err.Load() == nil; {
			k := size
			if n > 0 {
				k = min(k, left)
			}
			got, err := r.r.Read(buf[:k])
			left -= got
			r.consumed.Add(int64(got))
			if err != nil {
				r.err.Store(&err)
			}
		}
		r.reading.Store(false)
	}
}

func (l *lockstep) run(f Factory) (Result, error) {
	d, err := f(l.src, l.c.Setting.Options)
	if err != nil {
		return Result{}, err
	}
	l.d = d
	st, ok := d.(statser)
	if !ok {
		d.Close()
		return Result{}, fmt.Errorf("%w: Stats", errNotOffered)
	}
	for i, cadence := range []Cadence{l.c.Stdout, l.c.Stderr} {
		stream := streams[i]
		l.readers[i] = &lockReader{cadence: cadence, credit: max(1, cadence.Burst), grant: make(chan int), r: &checked{sink: d.Sink(stream), stream: stream}}
		l.wg.Go(l.readers[i].run)
	}
	err = l.drive(st)
	if e := d.Close(); err == nil {
		err = e
	}
	for _, r := range l.readers {
		close(r.grant)
	}
	l.wg.Wait()
	if p := l.src.breach.Load(); p != nil && err == nil {
		err = *p
	}
	return l.res, err
}

// drive is the run: turns of the readers in the order of time, stdout first, and
// after each the events that the demultiplexer then asks for.
func (l *lockstep) drive(st statser) error {
	var at time.Duration
	if err := l.settle(st); err != nil {
		return err
	}
	for {
		if err := l.turns(st, at); err != nil {
			return err
		}
		for l.atGate.Load() {
			l.handed++
			l.atGate.Store(false)
			select {
			case <-l.arrived:
			default:
			}
			l.release <- struct{}{}
			if err := l.settle(st); err != nil {
				return err
			}
			now := st.Stats()
			l.res.HeapReserved = max(l.res.HeapReserved, int64(now.HeapReserved))
			if l.onEvent != nil {
				l.onEvent(now)
			}
			if err := l.turns(st, at); err != nil {
				return err
			}
		}
		over, next := true, time.Duration(-1)
		for _, r := range l.readers {
			if r.closed || r.err.Load() != nil || r.cadence.Absent || r.cadence.Sequential {
				continue
			}
			over = false
			if due := r.period + r.cadence.Every; !r.reading.Load() && (next < 0 || due < next) {
				next = due
			}
		}
		if over {
			break
		}
		switch {
		case l.virtual && next < 0:
			o := l.c.Setting.Options
			at += l.pass(max(0, o.Patience) + o.StallAfter + time.Second)
		case l.virtual:
			at += l.pass(next - at)
		default:
			at = max(at, next)
		}
		if next < 0 && !l.atGate.Load() {
			// Every reader waits for the source, and the source for a reader.
			l.res.Stalled = true
			break
		}
	}
	l.measure(st.Stats())
	return l.rest(st)
}

// turns lets each reader do what it may at this time.
func (l *lockstep) turns(st statser, now time.Duration) error {
	for again := true; again; {
		again = false
		for i, r := range l.readers {
			c := r.cadence
			if r.closed || r.err.Load() != nil || r.reading.Load() || c.Absent || c.Sequential {
				continue
			}
			n := -1 // a prompt reader has one turn
			if c.Every > 0 {
				n = 1
				if period := now / c.Every * c.Every; period > r.period {
					r.period, r.credit = period, max(1, c.Burst)
				}
				if r.begun { // the turn that has just ended is of this period
					r.credit--
				}
			}
			r.begun = false
			if c.Every > 0 && r.credit == 0 {
				continue
			}
			again = true
			if c.Cancel && r.consumed.Load() >= l.res.Total[i]/2 {
				r.closed = true
				if err := r.r.sink.Close(); err != nil {
					return err
				}
			} else {
				r.begun = true
				r.reading.Store(true)
				r.grant <- n
			}
			if err := l.settle(st); err != nil {
				return err
			}
		}
	}
	return nil
}

// pass lets virtual time go on for d, or until the demultiplexer asks for the next
// event, and returns how long that took.
func (l *lockstep) pass(d time.Duration) time.Duration {
	from := time.Now()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-l.arrived:
	case <-timer.C:
	}
	synctest.Wait()
	return time.Since(from)
}

// settle waits until nothing will happen without a new event or turn.
func (l *lockstep) settle(st statser) error {
	if l.virtual {
		synctest.Wait()
		return nil
	}
	begun := time.Now()
	for i := 0; !l.settled(st.Stats()); i++ {
		if i < 1000 {
			runtime.Gosched()
			continue
		}
		time.Sleep(50 * time.Microsecond)
		if time.Since(begun) > hangAfter {
			return fmt.Errorf("%v: after event %d nothing moves: %+v", l.c, l.handed, st.Stats())
		}
	}
	return nil
}

// settled decides that from the rules of the policies, for want of a clock.
func (l *lockstep) settled(st demux.Stats) bool {
	starving := [2]bool{}
	for i, r := range l.readers {
		k := st.Sink(streams[i])
		if r.closed || r.err.Load() != nil || !r.reading.Load() {
			continue
		}
		if k.Read != uint64(r.consumed.Load()) || k.LiveMem+k.LiveDisk > 0 || k.Done {
			return false // it has something to read, or to report
		}
		starving[i] = true
	}
	if l.atGate.Load() || l.handed == 0 {
		return l.atGate.Load()
	}
	if l.handed > len(l.c.Interleaving.Order) {
		return st.Stdout.Done && st.Stderr.Done
	}
	// An event is on its way. It stays there if its sink is full and nobody starves
	// for whom the policy would make room.
	i := streamOf(l.c.Interleaving.Order[l.handed-1]) - 1
	o := l.c.Setting.Options
	if int(st.Sink(streams[i]).LiveMem) < o.MemPerSink || l.readers[i].closed {
		return false
	}
	switch {
	case o.Policy == demux.Backpressure:
		return true
	case o.Policy == demux.Spill && o.Eager:
		return false
	case o.Policy == demux.Spill && o.Patience > 0:
		lagging := l.readers[i].cadence
		return !starving[1-i] || !lagging.Absent && !lagging.Sequential
	}
	return !starving[1-i]
}

func (l *lockstep) measure(st demux.Stats) {
	chunks := func(n uint64) int { return int((n + Chunk - 1) / Chunk) }
	for i, stream := range streams {
		k := st.Sink(stream)
		l.res.PeakMem[i], l.res.PeakDisk[i], l.res.PeakTotal[i] = chunks(k.PeakMem), chunks(k.PeakDisk), chunks(k.PeakTotal)
		if l.virtual {
			l.res.Wait[i] = k.StarvedMax
		}
	}
}

// rest reads what absent and sequential readers have left, so that loss is seen.
func (l *lockstep) rest(st statser) error {
	for _, r := range l.readers {
		if r.closed || r.err.Load() != nil || l.res.Stalled || r.reading.Load() {
			continue
		}
		r.reading.Store(true)
		r.grant <- -1
		if err := l.settle(st); err != nil {
			return err
		}
	}
	for i, r := range l.readers {
		l.res.Bytes[i] = r.consumed.Load()
		if p := r.err.Load(); p != nil {
			l.res.End[i] = *p
		}
		var b breachError
		if errors.As(l.res.End[i], &b) {
			return fmt.Errorf("%v: %w", l.c, b)
		}
	}
	return nil
}

// Cells are all runs of the experiment: every cadence in each role beside a prompt
// reader, and some pairs of readers that both lag.
func Cells(dir string) []Cell {
	pairs := [][2]Cadence{{Prompt, Prompt}, {Yield, Yield}, {Lag10, Lag10}, {Lag50, Lag50}, {Lag10, Bursty}, {Bursty, Lag10}}
	for _, c := range Cadences()[1:] {
		pairs = append(pairs, [2]Cadence{Prompt, c}, [2]Cadence{c, Prompt})
	}
	var cells []Cell
	for _, p := range pairs {
		for _, order := range Interleavings() {
			for _, s := range Settings(dir) {
				cells = append(cells, Cell{s, order, p[0], p[1]})
			}
		}
	}
	return cells
}

// String is the peaks in memory of stdout and stderr, then those on disk if any,
// and how it ended if not well: "1/1 d 0/22", "1/9 ERR", "1/1 STALL".
func (r Result) String() string {
	s := fmt.Sprintf("%d/%d", r.PeakMem[0], r.PeakMem[1])
	if r.PeakDisk != [2]int{} {
		s += fmt.Sprintf(" d %d/%d", r.PeakDisk[0], r.PeakDisk[1])
	}
	for _, err := range r.End {
		if err != nil && err != io.EOF && !r.Stalled {
			s += " ERR"
		}
	}
	if r.Stalled {
		s += " STALL"
	}
	return s
}
