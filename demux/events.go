package demux

import (
	"context"
	"io"
	"iter"
	"sync"
)

// FromEvents reads the events that seq yields; an error that it yields, or its
// end, which is io.EOF, ends the source. Data that was yielded may be used again
// as soon as yield returns. seq runs only while its next event is wanted. Close
// ends it at its yield: if it waits for something else, it must see to its own end.
func FromEvents(seq iter.Seq2[Event, error]) Source {
	next, stop := iter.Pull2(seq)
	return &events{next: next, stop: stop}
}

type events struct {
	next func() (Event, error, bool)
	stop func()

	mu      sync.Mutex
	running bool // next
	closed  bool
}

func (e *events) Next(ctx context.Context, _ []byte) (Event, error) {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return Event{}, ErrClosed
	}
	e.running = true
	e.mu.Unlock()
	ev, err, ok := e.next()
	e.mu.Lock()
	e.running = false
	closed := e.closed
	e.mu.Unlock()
	if closed {
		e.stop()
	}
	if !ok {
		return Event{}, io.EOF
	}
	return ev, err
}

func (e *events) Close() error {
	e.mu.Lock()
	idle := !e.closed && !e.running
	e.closed = true
	e.mu.Unlock()
	if idle {
		e.stop()
	}
	return nil
}
