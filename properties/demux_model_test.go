package properties

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leanovate/gopter"
	"github.com/leanovate/gopter/commands"
	"github.com/leanovate/gopter/gen"

	"github.com/sandbed/sandbed/demux"
	"github.com/sandbed/sandbed/demux/demuxtest"
)

// streams are both streams, by their numbers less one.
var streams = [2]demux.Stream{demux.Stdout, demux.Stderr}

// pipe is a source that says what it is told, when it is told.
type pipe struct {
	events chan demux.Event
	closed chan struct{}
	once   sync.Once
}

func (p *pipe) Next(ctx context.Context, _ []byte) (demux.Event, error) {
	select {
	case e, ok := <-p.events:
		if !ok {
			return demux.Event{}, io.EOF
		}
		return e, nil
	case <-ctx.Done():
		return demux.Event{}, ctx.Err()
	case <-p.closed:
		return demux.Event{}, io.ErrClosedPipe
	}
}

func (p *pipe) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// demuxModel is what the two streams hold, as a user thinks of them.
type demuxModel struct {
	policy demux.Policy
	eager  bool
	memory int
	dir    string

	sent, read [2]int64
	ended      [2]bool // by an event
	closed     [2]bool
	over       bool // the source has ended
}

func (m demuxModel) String() string {
	return fmt.Sprintf("policy %v, eager %v, %d bytes in memory", m.policy, m.eager, m.memory)
}

// demuxCommand is one operation on a stream: n is in bytes or, of sleep, in milliseconds.
type demuxCommand struct {
	name   string
	stream int
	n      int
}

func (c demuxCommand) String() string {
	switch c.name {
	case "sleep":
		return fmt.Sprintf("sleep:%d", c.n)
	case "end":
		return "end"
	}
	return fmt.Sprintf("%s:%v:%d", c.name, streams[c.stream], c.n)
}

func (c demuxCommand) PreCondition(s commands.State) bool {
	m := s.(demuxModel)
	switch c.name {
	case "write", "eof":
		return !m.over && !m.ended[c.stream]
	case "read":
		// What was sent and not read, or an end, is there: the Read may wait for the other
		// stream, but not for ever.
		return m.closed[c.stream] || m.over || m.ended[c.stream] || m.sent[c.stream] > m.read[c.stream]
	case "end":
		return !m.over
	}
	return true
}

// NextState knows of a Read that all of it that may come has come: Run reads until then.
func (c demuxCommand) NextState(s commands.State) commands.State {
	m := s.(demuxModel)
	switch i := c.stream; c.name {
	case "write":
		m.sent[i] += int64(c.n)
	case "eof":
		m.ended[i] = true
	case "read":
		if !m.closed[i] {
			m.read[i] = min(m.sent[i], m.read[i]+int64(c.n))
		}
	case "close":
		m.closed[i] = true
	case "end":
		m.over = true
	}
	return m
}

// demuxPlant is a demultiplexer with its source.
type demuxPlant struct {
	d    *demux.Demux
	src  *pipe
	sent [2]int64
	read [2]int64
	wg   sync.WaitGroup
	// queue is what the source has yet to say; it says nothing while it is held up.
	mu    sync.Mutex
	queue []demux.Event
	ended bool
	more  chan struct{}
}

func newDemuxPlant(m demuxModel) (*demuxPlant, error) {
	o := demux.DefaultOptions()
	o.Policy, o.Eager, o.MemPerSink, o.Quantum = m.policy, m.eager, m.memory, 1<<10
	o.SpillDir, o.AllowMemoryBacked = m.dir, true
	p := &demuxPlant{src: &pipe{events: make(chan demux.Event), closed: make(chan struct{})}, more: make(chan struct{}, 1)}
	var err error
	if p.d, err = demux.New(p.src, o); err != nil {
		return nil, err
	}
	p.wg.Go(p.feed)
	return p, nil
}

// feed hands events to Next, which asks for them one at a time.
func (p *demuxPlant) feed() {
	for {
		p.mu.Lock()
		var e demux.Event
		ready, over := len(p.queue) > 0, p.ended && len(p.queue) == 0
		if ready {
			e, p.queue = p.queue[0], p.queue[1:]
		}
		p.mu.Unlock()
		switch {
		case over:
			close(p.src.events)
			return
		case ready:
			select {
			case p.src.events <- e:
			case <-p.src.closed:
				return
			}
		default:
			select {
			case <-p.more:
			case <-p.src.closed:
				return
			}
		}
	}
}

func (p *demuxPlant) say(events ...demux.Event) {
	p.mu.Lock()
	p.queue = append(p.queue, events...)
	p.ended = p.ended || len(events) == 0
	p.mu.Unlock()
	select {
	case p.more <- struct{}{}:
	default:
	}
}

// demuxResult is what a command saw.
type demuxResult struct {
	p   *demuxPlant
	err error
}

func (c demuxCommand) Run(sut commands.SystemUnderTest) commands.Result {
	p := sut.(*demuxPlant)
	r := demuxResult{p: p}
	s := p.d.Sink(streams[c.stream])
	switch c.name {
	case "write":
		b := make([]byte, c.n)
		demuxtest.Fill(streams[c.stream], p.sent[c.stream], b)
		p.sent[c.stream] += int64(c.n)
		p.say(demux.Event{Kind: demux.KindData, Stream: streams[c.stream], Data: b})
	case "eof":
		p.say(demux.Event{Kind: demux.KindStreamEOF, Stream: streams[c.stream]})
	case "end":
		p.say()
	case "close":
		r.err = s.Close()
	case "sleep":
		time.Sleep(time.Duration(c.n) * time.Millisecond)
	case "read":
		r.err = p.readUpTo(c.stream, c.n)
	}
	synctest.Wait()
	return r
}

// readUpTo reads until there were n bytes, or all that was sent, or an end. A Read that
// takes an hour counts as one that never returns.
func (p *demuxPlant) readUpTo(i, n int) error {
	s := p.d.Sink(streams[i])
	if err := s.SetReadDeadline(time.Now().Add(time.Hour)); err != nil {
		return err
	}
	defer s.SetReadDeadline(time.Time{})
	buf := make([]byte, max(n, 1))
	for left := n; ; {
		// At the end of what was sent a Read may wait for ever, unless an end is known.
		if n > 0 && (left == 0 || p.read[i] == p.sent[i] && left < n) {
			return nil
		}
		got, err := s.Read(buf[:max(left, 1)])
		if bad := demuxtest.Verify(streams[i], p.read[i], buf[:got]); bad >= 0 {
			return fmt.Errorf("%v: the byte at offset %d is not the one that was sent", streams[i], p.read[i]+int64(bad))
		}
		p.read[i] += int64(got)
		left -= got
		if err != nil || n == 0 {
			return err
		}
	}
}

func (c demuxCommand) PostCondition(s commands.State, result commands.Result) *gopter.PropResult {
	r := result.(demuxResult)
	return judged(s.(demuxModel).compare(c, r.p, r.err))
}

func (m demuxModel) compare(c demuxCommand, p *demuxPlant, err error) error {
	i := c.stream
	if c.name == "read" {
		both := m.closed[0] && m.closed[1]
		switch {
		case m.closed[i]:
			if !errors.Is(err, demux.ErrClosed) {
				return fmt.Errorf("a Read of %v, which is closed, gave %v", streams[i], err)
			}
		case err == io.EOF:
			if !m.ended[i] && !m.over || p.read[i] != m.sent[i] {
				return fmt.Errorf("%v ended after %d of %d bytes", streams[i], p.read[i], m.sent[i])
			}
		case err != nil && !both:
			return fmt.Errorf("a Read of %v failed: %w, %+v", streams[i], err, p.d.Stats())
		}
	} else if err != nil {
		return fmt.Errorf("%v: %w", c, err)
	}
	st := p.d.Stats()
	for i, s := range streams {
		k := st.Sink(s)
		if p.read[i] != m.read[i] || k.Read != uint64(m.read[i]) {
			return fmt.Errorf("%v: %d bytes were read and %d are counted, want %d of %d", s, p.read[i], k.Read, m.read[i], m.sent[i])
		}
		if k.LiveMem+k.LiveDisk != k.Enqueued-k.Read-k.Discarded || k.Enqueued > uint64(m.sent[i]) {
			return fmt.Errorf("%v: the books do not balance, of %d bytes sent: %+v", s, m.sent[i], k)
		}
		if m.policy != demux.Unbounded && k.PeakMem > uint64(m.memory) {
			return fmt.Errorf("%v: %d bytes were in memory, want at most %d", s, k.PeakMem, m.memory)
		}
		if m.closed[i] && k.LiveMem+k.LiveDisk != 0 {
			return fmt.Errorf("%v is closed and holds %d bytes", s, k.LiveMem+k.LiveDisk)
		}
	}
	return nil
}

// end closes everything and says what is left.
func (p *demuxPlant) end() error {
	err := p.d.Close()
	p.wg.Wait()
	synctest.Wait()
	if st := p.d.Stats(); st.SpillFiles != 0 || st.HeapReserved != 0 || st.Stdout.LiveMem+st.Stdout.LiveDisk+st.Stderr.LiveMem+st.Stderr.LiveDisk != 0 {
		err = errors.Join(err, fmt.Errorf("after Close there is something left: %+v", st))
	}
	return err
}

func demuxCommands(dir string) commands.Commands {
	sizes := []int{1, 2, 100, 1000, 4095, 4096, 4097, 8192, 20_000, 70_000}
	return &commands.ProtoCommands{
		InitialStateGen: func(p *gopter.GenParameters) *gopter.GenResult {
			m := demuxModel{dir: dir, memory: oneOf(p.Rng, 4<<10, 5000, 64<<10)}
			switch p.Rng.Intn(6) {
			case 0:
				m.policy = demux.Unbounded
			case 1, 2:
				m.eager = true
			}
			return gopter.NewGenResult(m, gopter.NoShrinker)
		},
		GenCommandFunc: func(commands.State) gopter.Gen {
			return func(p *gopter.GenParameters) *gopter.GenResult {
				c := demuxCommand{stream: p.Rng.Intn(2), n: oneOf(p.Rng, sizes...)}
				switch n := p.Rng.Intn(100); {
				case n < 45:
					c.name = "write"
				case n < 85:
					c.name = "read"
				case n < 92:
					c.name, c.n = "sleep", p.Rng.Intn(100)
				case n < 95:
					c.name, c.n = "close", 0
				case n < 98:
					c.name, c.n = "eof", 0
				default:
					c.name, c.n = "end", 0
				}
				return gopter.NewGenResult(c, func(any) gopter.Shrink {
					if c.name != "write" && c.name != "read" {
						return gopter.NoShrink
					}
					return gen.IntShrinker(c.n).Map(func(n int) commands.Command {
						return demuxCommand{c.name, c.stream, max(n, 1)}
					})
				})
			}
		},
		InitialPreConditionFunc: func(commands.State) bool { return true },
		NewSystemUnderTestFunc: func(s commands.State) commands.SystemUnderTest {
			p, err := newDemuxPlant(s.(demuxModel))
			if err != nil {
				panic(err) // gopter makes it a failure
			}
			return p
		},
	}
}

// Both streams of a demultiplexer hold what a model of them holds, for any history of
// writing, reading, closing and ending.
func TestDemuxModel(t *testing.T) {
	hold(t, 1500, 30, inBubbles(t, demuxCommands(spillDir(t)), func(sut commands.SystemUnderTest) error { return sut.(*demuxPlant).end() }))
}
