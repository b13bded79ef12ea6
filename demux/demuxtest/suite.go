package demuxtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandbed/sandbed/demux"
)

// Sink is one of the two readers. It may also have the methods of *demux.Sink:
// ReadContext, SetReadDeadline, WriteTo, Buffered and Gaps.
type Sink interface {
	io.ReadCloser
}

// Demux is what the suite judges. It may also have Stats and Wait as a
// *demux.Demux does.
type Demux interface {
	Sink(demux.Stream) Sink
	io.Closer
}

// Factory makes a demultiplexer, which the suite closes. A policy that it does
// not have is errors.ErrUnsupported; the laws about it are then not offered.
type Factory func(demux.Source, demux.Options) (Demux, error)

// New is the [Factory] of package demux.
func New(src demux.Source, o demux.Options) (Demux, error) {
	d, err := demux.New(src, o)
	if err != nil {
		return nil, err
	}
	return own{d}, nil
}

type own struct{ *demux.Demux }

func (o own) Sink(s demux.Stream) Sink { return o.Demux.Sink(s) }

type (
	statser       interface{ Stats() demux.Stats }
	waiter        interface{ Wait(context.Context) error }
	contextReader interface {
		ReadContext(context.Context, []byte) (int, error)
	}
	deadliner interface{ SetReadDeadline(time.Time) error }
	gapper    interface{ Gaps() []demux.Gap }
	bufferer  interface{ Buffered() int64 }
)

// Finding is a law that a demultiplexer broke.
type Finding struct {
	Law string
	Err error
}

func (f Finding) String() string { return f.Law + ": " + f.Err.Error() }

// law is one thing that every demultiplexer must hold.
type law struct {
	name, says string
	check      func(*trial) error
	// real laws race goroutines against each other and run in real time.
	real bool
}

// forever is how long a law may take in virtual time: longer than any clock of
// the options that the laws set.
const forever = 1000 * time.Hour

// hangAfter is how long a law may take in real time before the demultiplexer
// counts as hung. The slowest takes seconds under -race.
const hangAfter = 2 * time.Minute

// errNotOffered is a law about something that the demultiplexer does not have.
var errNotOffered = errors.New("not offered")

// Run puts the demultiplexers of factory through every law, each in virtual time
// except those that race. Do not run it in parallel with other tests: it counts
// goroutines and descriptors.
func Run(t *testing.T, factory Factory) {
	for _, l := range laws {
		t.Run(l.name, func(t *testing.T) {
			judge := func(t *testing.T, patience time.Duration) {
				err := l.judge(factory, t.TempDir(), patience)
				if errors.Is(err, errNotOffered) {
					t.Skipf("a demultiplexer must hold that %s: %v", l.says, err)
				}
				if err != nil {
					t.Errorf("a demultiplexer must hold that %s\n%v", l.says, err)
				}
			}
			if l.real {
				judge(t, hangAfter)
				return
			}
			synctest.Test(t, func(t *testing.T) { judge(t, forever) })
		})
	}
}

// Check is Run for a caller without a testing.T, in real time: a law that takes
// longer than patience is a finding. Spill files go to a directory under dir.
func Check(factory Factory, dir string, patience time.Duration) []Finding {
	var found []Finding
	for _, l := range laws {
		if err := l.judge(factory, dir, patience); err != nil && !errors.Is(err, errNotOffered) {
			found = append(found, Finding{l.name, err})
		}
	}
	return found
}

// judge runs the law's check, then what must hold after each.
func (l law) judge(factory Factory, dir string, patience time.Duration) error {
	dir, err := os.MkdirTemp(dir, "demuxtest-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	t := &trial{factory: factory, dir: dir}
	done := make(chan error, 1)
	go func() { done <- errors.Join(l.check(t), t.end()) }()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		t.abort()
		select { // what did end after Close tells more
		case err := <-done:
			return errors.Join(fmt.Errorf("it hung for %v", patience), err)
		case <-time.After(patience):
			return fmt.Errorf("it hung for %v and Close did not end it", patience)
		}
	}
}

// trial is the demultiplexers that one law has made.
type trial struct {
	factory Factory
	dir     string

	mu   sync.Mutex
	made []*subject
	hung bool
}

// options are the defaults, with a spill directory of the trial's own.
func (t *trial) options() demux.Options {
	o := demux.DefaultOptions()
	o.SpillDir = t.dir
	o.AllowMemoryBacked = true // a law must also hold where TMPDIR is a tmpfs
	return o
}

// subject is one demultiplexer with its source and readers.
type subject struct {
	Demux
	src     *script
	o       demux.Options
	out     *checked
	err     *checked
	wg      sync.WaitGroup
	mu      sync.Mutex
	notices []demux.Notice
	ended   bool
}

func (t *trial) make(src *script, o demux.Options) (*subject, error) {
	s := &subject{src: src, o: o}
	notify := o.Notify
	o.Notify = func(n demux.Notice) {
		s.mu.Lock()
		s.notices = append(s.notices, n)
		s.mu.Unlock()
		if notify != nil {
			notify(n)
		}
	}
	d, err := t.factory(src, o)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil, fmt.Errorf("%w: policy %v", errNotOffered, o.Policy)
	}
	if err != nil {
		return nil, fmt.Errorf("making the demultiplexer: %w", err)
	}
	s.Demux = d
	s.out = &checked{sink: d.Sink(demux.Stdout), stream: demux.Stdout}
	s.err = &checked{sink: d.Sink(demux.Stderr), stream: demux.Stderr}
	t.mu.Lock()
	t.made = append(t.made, s)
	hung := t.hung
	t.mu.Unlock()
	if hung {
		s.src.Close()
		return s, errors.Join(errors.New("given up"), d.Close())
	}
	return s, nil
}

// abort unblocks what a hung law waits for.
func (t *trial) abort() {
	t.mu.Lock()
	t.hung = true
	made := t.made
	t.mu.Unlock()
	for _, s := range made {
		s.src.Close()
		s.Demux.Close()
	}
}

// end closes every demultiplexer that the law left open.
func (t *trial) end() error {
	var errs []error
	for _, s := range t.made {
		errs = append(errs, s.end())
	}
	return errors.Join(errs...)
}

// end closes the demultiplexer and checks what must hold at the end of each:
// books that balance, nothing held, a source that was used by its contract and
// is closed.
func (s *subject) end() error {
	if s.ended {
		return nil
	}
	s.ended = true
	var errs []error
	if err := s.Demux.Close(); err != nil {
		errs = append(errs, fmt.Errorf("Close: %w", err))
	}
	s.wg.Wait()
	if p := s.src.breach.Load(); p != nil {
		errs = append(errs, *p)
	}
	if !s.src.isClosed() {
		errs = append(errs, errors.New("the source is not closed after Close"))
	}
	if st, ok := s.Demux.(statser); ok {
		st := st.Stats()
		errs = append(errs, balanced(st))
		for _, stream := range streams {
			if k := st.Sink(stream); k.LiveMem+k.LiveDisk != 0 {
				errs = append(errs, fmt.Errorf("%v: after Close %d bytes are live in memory and %d on disk", stream, k.LiveMem, k.LiveDisk))
			}
		}
		if st.SpillFiles != 0 {
			errs = append(errs, fmt.Errorf("after Close %d spill files are open", st.SpillFiles))
		}
	}
	return errors.Join(errs...)
}

var streams = []demux.Stream{demux.Stdout, demux.Stderr}

func other(s demux.Stream) demux.Stream { return 3 - s }

// balanced checks promise 9 at one moment.
func balanced(st demux.Stats) error {
	for _, stream := range streams {
		k := st.Sink(stream)
		if k.LiveMem+k.LiveDisk != k.Enqueued-k.Read-k.Discarded {
			return fmt.Errorf("%v: LiveMem %d + LiveDisk %d is not Enqueued %d − Read %d − Discarded %d",
				stream, k.LiveMem, k.LiveDisk, k.Enqueued, k.Read, k.Discarded)
		}
		if k.PeakTotal < max(k.PeakMem, k.PeakDisk) {
			return fmt.Errorf("%v: PeakTotal %d is less than PeakMem %d or PeakDisk %d", stream, k.PeakTotal, k.PeakMem, k.PeakDisk)
		}
	}
	return nil
}

// monotone checks that no counter went backwards.
func monotone(a, b demux.Stats) error {
	counters := func(st demux.Stats) [24]uint64 {
		o, e := st.Stdout, st.Stderr
		return [...]uint64{
			o.Enqueued, o.Read, o.Discarded, o.PeakMem, o.PeakDisk, o.PeakTotal, o.Spilled, o.SpillWrites, o.SpillReads, o.Starved, o.PatienceExpired,
			e.Enqueued, e.Read, e.Discarded, e.PeakMem, e.PeakDisk, e.PeakTotal, e.Spilled, e.SpillWrites, e.SpillReads, e.Starved, e.PatienceExpired,
			st.SourceBytes + st.SourceEvents, st.Paused,
		}
	}
	before, after := counters(a), counters(b)
	for i := range before {
		if after[i] < before[i] {
			return fmt.Errorf("a counter went back: %+v, then %+v", a, b)
		}
	}
	return nil
}

// heapBound is promise 4.
func heapBound(o demux.Options) uint64 { return uint64(2*(o.MemPerSink+2*(64<<10)) + 64<<10 + 16<<10) }

// stats are the counters, or not offered.
func (s *subject) stats() (demux.Stats, error) {
	st, ok := s.Demux.(statser)
	if !ok {
		return demux.Stats{}, fmt.Errorf("%w: Stats", errNotOffered)
	}
	return st.Stats(), nil
}

// audit checks accounting and heap bound now.
func (s *subject) audit() error {
	st, err := s.stats()
	if err != nil {
		return nil // laws about the counters ask for them; this is beside
	}
	if err := balanced(st); err != nil {
		return err
	}
	if s.o.Policy == demux.Spill || s.o.Policy == demux.Backpressure {
		if bound := heapBound(s.o); st.HeapReserved > bound {
			return fmt.Errorf("HeapReserved is %d, more than the bound of %d", st.HeapReserved, bound)
		}
	}
	return nil
}

func (s *subject) wait(ctx context.Context) error {
	w, ok := s.Demux.(waiter)
	if !ok {
		return fmt.Errorf("%w: Wait", errNotOffered)
	}
	return w.Wait(ctx)
}

func (s *subject) reader(stream demux.Stream) *checked {
	if stream == demux.Stderr {
		return s.err
	}
	return s.out
}

// take reads exactly n bytes.
func (s *subject) take(stream demux.Stream, n int64) error {
	buf := make([]byte, 32<<10)
	r := s.reader(stream)
	for n > 0 {
		got, err := r.Read(buf[:min(n, int64(len(buf)))])
		if err != nil {
			return fmt.Errorf("%v: at offset %d, with %d bytes to come: %w", stream, r.off, n, err)
		}
		n -= int64(got)
	}
	return nil
}

// drain reads to the end, which must be want after exactly total bytes, and stay.
func (s *subject) drain(stream demux.Stream, total int64, want error) error {
	r := s.reader(stream)
	buf := make([]byte, 32<<10)
	var err error
	for err == nil {
		_, err = r.Read(buf)
	}
	var b breachError
	if errors.As(err, &b) {
		return err
	}
	if r.off != total {
		return fmt.Errorf("%v: ended after %d bytes with %v, want %d bytes", stream, r.off, err, total)
	}
	for i := range 3 {
		if !sameEnd(err, want) {
			return fmt.Errorf("%v: Read %d at its end: got %v, want %v", stream, i, err, want)
		}
		if _, err = r.Read(buf); err == nil {
			return fmt.Errorf("%v: Read after its end succeeded", stream)
		}
	}
	return nil
}

// sameEnd compares ends: io.EOF only by identity, since callers compare it so.
func sameEnd(got, want error) bool {
	if want == io.EOF || got == io.EOF {
		return got == want
	}
	return errors.Is(got, want)
}

// drainBoth drains both at the same time.
func (s *subject) drainBoth(out, err int64, want error) error {
	done := s.background(func() error { return s.drain(demux.Stderr, err, want) })
	e := s.drain(demux.Stdout, out, want)
	return errors.Join(e, <-done)
}

// background runs f on a goroutine that end waits for.
func (s *subject) background(f func() error) <-chan error {
	done := make(chan error, 1)
	s.wg.Go(func() { done <- f() })
	return done
}

// until polls for a state of the counters.
func (s *subject) until(what string, ok func(demux.Stats) bool) error {
	pause := time.Microsecond
	for range 200 {
		st, err := s.stats()
		if err != nil {
			return err
		}
		if ok(st) {
			return nil
		}
		time.Sleep(pause)
		pause = min(2*pause, time.Second)
	}
	st, _ := s.stats()
	return fmt.Errorf("never %s: %+v", what, st)
}

// noticed are the notices of a kind, once there are at least n: they come from a
// goroutine of their own.
func (s *subject) noticed(kind demux.NoticeKind, n int) []demux.Notice {
	for try := 0; ; try++ {
		var found []demux.Notice
		s.mu.Lock()
		for _, n := range s.notices {
			if n.Kind == kind {
				found = append(found, n)
			}
		}
		s.mu.Unlock()
		if len(found) >= n && try > 0 || try == 1000 {
			return found
		}
		time.Sleep(time.Millisecond)
	}
}

// first returns the first error of steps that each need the one before.
func first(steps ...func() error) error {
	for _, s := range steps {
		if err := s(); err != nil {
			return err
		}
	}
	return nil
}
