package demuxtest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/sandbed/sandbed/demux"
)

// word is what the eight bytes of a stream at offset 8·i hold: a hash of stream
// and place (splitmix64), so that a loss, a swap or a repeat changes bytes.
func word(s demux.Stream, i int64) uint64 {
	x := uint64(i)*0x9e3779b97f4a7c15 + uint64(s)*0xd1b54a32d192ed03
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Fill writes to p what the test sources deliver of stream s from offset off.
func Fill(s demux.Stream, off int64, p []byte) {
	for len(p) > 0 {
		if off%8 == 0 && len(p) >= 8 {
			binary.LittleEndian.PutUint64(p, word(s, off/8))
			p, off = p[8:], off+8
			continue
		}
		p[0] = byte(word(s, off/8) >> (8 * (off % 8)))
		p, off = p[1:], off+1
	}
}

// Verify returns where p first differs from what [Fill] writes, or −1.
func Verify(s demux.Stream, off int64, p []byte) int {
	for i := 0; i < len(p); {
		if at := off + int64(i); at%8 == 0 && len(p)-i >= 8 && binary.LittleEndian.Uint64(p[i:]) == word(s, at/8) {
			i += 8
			continue
		}
		at := off + int64(i)
		if p[i] != byte(word(s, at/8)>>(8*(at%8))) {
			return i
		}
		i++
	}
	return -1
}

// step is one event of a script; bytes of data are made by Fill.
type step struct {
	kind   demux.Kind
	stream demux.Stream
	n      int   // KindData: bytes
	lost   int64 // KindTruncated
	err    error
}

func data(s demux.Stream, n int) step { return step{kind: demux.KindData, stream: s, n: n} }
func eof(s demux.Stream) step         { return step{kind: demux.KindStreamEOF, stream: s} }
func gap(s demux.Stream, lost int64) step {
	return step{kind: demux.KindTruncated, stream: s, lost: lost}
}

// repeat gives the steps n times over.
func repeat(n int, steps ...step) func(yield func(step) bool) {
	return func(yield func(step) bool) {
		for range n {
			for _, s := range steps {
				if !yield(s) {
					return
				}
			}
		}
	}
}

// errSourceClosed is what Next of a script returns once it was closed.
var errSourceClosed = errors.New("demuxtest: the source was closed")

// script is a demux.Source that hands out steps, then end; with no end it then
// stays silent until it is closed. It notes breaches of the Source contract, and
// spoils the bytes of an event once the next is asked for.
type script struct {
	next func() (step, bool)
	end  error
	// gate, if set, is called before every event and the end.
	gate func(ctx context.Context) error

	off       [3]int64
	own, last []byte
	running   atomic.Bool
	breach    atomic.Pointer[error]
	bytes     atomic.Int64 // handed out, both streams
	asked     atomic.Int64 // calls of Next
	closeOnce sync.Once
	closed    chan struct{}
}

func newScript(end error, steps func(yield func(step) bool)) *script {
	// Not iter.Pull: its coroutine would count as a leaked goroutine.
	var list []step
	for s := range steps {
		list = append(list, s)
	}
	i := 0
	return newScriptFunc(end, func() (step, bool) {
		if i == len(list) {
			return step{}, false
		}
		i++
		return list[i-1], true
	})
}

func newScriptFunc(end error, next func() (step, bool)) *script {
	return &script{next: next, end: end, closed: make(chan struct{})}
}

func steps(list ...step) func(yield func(step) bool) { return repeat(1, list...) }

func (s *script) blame(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	s.breach.CompareAndSwap(nil, &err)
}

func (s *script) Next(ctx context.Context, buf []byte) (demux.Event, error) {
	if s.running.Swap(true) {
		s.blame("Next was called while another Next ran")
	}
	defer s.running.Store(false)
	s.asked.Add(1)
	if len(buf) < 64<<10 {
		s.blame("Next got a buffer of %d bytes, want at least 64 KiB", len(buf))
	}
	for i := range s.last {
		s.last[i] = 0xA5
	}
	s.last = nil
	if s.gate != nil {
		if err := s.gate(ctx); err != nil {
			return demux.Event{}, err
		}
	}
	select {
	case <-s.closed:
		return demux.Event{}, errSourceClosed
	case <-ctx.Done():
		return demux.Event{}, ctx.Err()
	default:
	}
	st, ok := s.next()
	if !ok {
		if s.end != nil {
			return demux.Event{}, s.end
		}
		select {
		case <-s.closed:
			return demux.Event{}, errSourceClosed
		case <-ctx.Done():
			return demux.Event{}, ctx.Err()
		}
	}
	ev := demux.Event{Kind: st.kind, Stream: st.stream, Lost: st.lost, Err: st.err}
	if st.kind == demux.KindData {
		ev.Data = buf
		if st.n > len(buf) {
			if st.n > len(s.own) {
				s.own = make([]byte, st.n)
			}
			ev.Data = s.own
		}
		ev.Data = ev.Data[:st.n]
		Fill(st.stream, s.off[st.stream], ev.Data)
		s.off[st.stream] += int64(st.n)
		s.last = ev.Data
		s.bytes.Add(int64(st.n))
	}
	return ev, nil
}

func (s *script) Close() error {
	s.closeOnce.Do(func() { close(s.closed) })
	return nil
}

func (s *script) isClosed() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

// checked is a reader that holds every Read against the contract of io.Reader
// and the sinks, and against what the source delivers.
type checked struct {
	sink   Sink
	stream demux.Stream
	off    int64
	ended  error
}

func (c *checked) Read(p []byte) (int, error) { return c.judge(p)(c.sink.Read(p)) }

func (c *checked) judge(p []byte) func(int, error) (int, error) {
	return func(n int, err error) (int, error) {
		switch {
		case n < 0 || n > len(p):
			return 0, breach("%v: Read of %d bytes returned %d", c.stream, len(p), n)
		case n > 0 && err != nil:
			return 0, breach("%v: Read returned %d bytes together with %v", c.stream, n, err)
		case n == 0 && err == nil && len(p) > 0:
			return 0, breach("%v: Read of %d bytes returned 0, nil", c.stream, len(p))
		case n > 0 && c.ended != nil:
			return 0, breach("%v: Read returned %d bytes after its end, %v", c.stream, n, c.ended)
		}
		if i := Verify(c.stream, c.off, p[:n]); i >= 0 {
			return 0, breach("%v: the byte at %d is not the one delivered", c.stream, c.off+int64(i))
		}
		c.off += int64(n)
		if err != nil && !transient(err) {
			c.ended = err
		}
		return n, err
	}
}

// transient reports whether the next Read may succeed.
func transient(err error) bool {
	var stall *demux.StallError
	var full *demux.SpillFullError
	var gap *demux.GapError
	var timeout interface{ Timeout() bool }
	return errors.As(err, &stall) || errors.As(err, &full) || errors.As(err, &gap) ||
		errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, context.Canceled)
}

// breachError is a breach seen in a Read; no error of a demultiplexer is one.
type breachError struct{ error }

func breach(format string, args ...any) error { return breachError{fmt.Errorf(format, args...)} }

// writer verifies what is written to it; after limit bytes (−1 never) it accepts
// no more and returns err, nil for a short write.
type writer struct {
	checked
	limit int64
	err   error
}

func (w *writer) Write(p []byte) (int, error) {
	n := len(p)
	var err error
	if w.limit >= 0 && int64(n) > w.limit-w.off {
		n, err = int(w.limit-w.off), w.err
		if err == nil {
			err = io.ErrShortWrite
		}
	}
	if i := Verify(w.stream, w.off, p[:n]); i >= 0 {
		return 0, breach("%v: the byte at %d is not the one delivered", w.stream, w.off+int64(i))
	}
	w.off += int64(n)
	return n, err
}
