package demux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// FromReaders joins two readers that one side feeds, such as the two of an SSH
// session. Each ends on its own, with io.EOF; nil is a stream without bytes.
// Close closes those that are an [io.Closer]; a Read that waits in one that is
// none cannot be ended.
func FromReaders(stdout, stderr io.Reader) Source {
	return parts{newReader(Stdout, stdout), newReader(Stderr, stderr)}
}

// FromPipes joins the read ends of two pipes; nil is a stream without bytes.
// Close closes them. A file that does not support deadlines, such as a terminal
// opened in blocking mode, keeps a Read that waits until something arrives.
func FromPipes(stdout, stderr *os.File) Source {
	part := func(s Stream, f *os.File) Source {
		if f == nil {
			return newReader(s, nil)
		}
		return newReader(s, f)
	}
	return parts{part(Stdout, stdout), part(Stderr, stderr)}
}

// parts is a source of independent parts.
type parts []Source

func (p parts) Parts() []Source { return p }

func (p parts) Next(context.Context, []byte) (Event, error) {
	return Event{}, errors.New("demux: this source has parts: call Next of each of Parts")
}

func (p parts) Close() error {
	var errs []error
	for _, part := range p {
		errs = append(errs, part.Close())
	}
	return errors.Join(errs...)
}

// reader is one stream that is nothing but bytes.
type reader struct {
	stream Stream
	in     *input // nil: no bytes
	err    error  // sticky
	ended  bool   // KindStreamEOF was said
}

func newReader(s Stream, r io.Reader) *reader {
	if r == nil {
		return &reader{stream: s, err: io.EOF}
	}
	return &reader{stream: s, in: newInput(r)}
}

func (r *reader) Next(ctx context.Context, buf []byte) (Event, error) {
	if r.err == nil {
		var n int
		if n, r.err = r.in.read(ctx, buf); n > 0 {
			return Event{Kind: KindData, Stream: r.stream, Data: buf[:n]}, nil
		}
	}
	if r.err == io.EOF && !r.ended {
		r.ended = true
		return Event{Kind: KindStreamEOF, Stream: r.stream}, nil
	}
	return Event{}, r.err
}

func (r *reader) Close() error {
	if r.in == nil {
		return nil
	}
	return r.in.close()
}

// input is a reader whose Read can be ended by closing it.
type input struct {
	r io.Reader

	mu      sync.Mutex
	closed  bool
	reading bool
	done    <-chan struct{} // of the context that is watched
	unwatch func() bool
	err     error // of closing r
}

func newInput(r io.Reader) *input { return &input{r: r} }

// maxEmptyReads is how many reads in a row may bring neither bytes nor an error.
const maxEmptyReads = 100

// readSome reads once: n > 0 or an error, or both.
func readSome(r io.Reader, buf []byte) (int, error) {
	for range maxEmptyReads {
		n, err := r.Read(buf)
		if n < 0 || n > len(buf) {
			return 0, fmt.Errorf("demux: Read of %T returned %d for a buffer of %d", r, n, len(buf))
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
	return 0, io.ErrNoProgress
}

// read is readSome. A context that ends while it waits
// closes the reader, since nothing else ends a Read.
func (in *input) read(ctx context.Context, buf []byte) (int, error) {
	if err := in.begin(ctx); err != nil {
		return 0, err
	}
	n, err := readSome(in.r, buf)
	in.mu.Lock()
	in.reading = false
	closed := in.closed
	in.mu.Unlock()
	if err != nil && closed { // whatever the reader calls it, if only EOF
		if err = context.Cause(ctx); err == nil {
			err = ErrClosed
		}
	}
	return n, err
}

func (in *input) begin(ctx context.Context) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if in.closed {
		return ErrClosed
	}
	// One registration for all reads of a context: one a read would allocate.
	if done := ctx.Done(); done != in.done {
		if in.unwatch != nil {
			in.unwatch()
			in.unwatch = nil
		}
		if in.done = done; done != nil {
			in.unwatch = context.AfterFunc(ctx, func() { in.interrupt(done) })
		}
	}
	in.reading = true
	return nil
}

// interrupt ends the read that waits under the context of done.
func (in *input) interrupt(done <-chan struct{}) {
	in.mu.Lock()
	waits := in.reading && in.done == done
	in.mu.Unlock()
	if waits {
		in.close()
	}
}

func (in *input) close() error {
	in.mu.Lock()
	if in.closed {
		defer in.mu.Unlock()
		return in.err
	}
	in.closed = true
	if in.unwatch != nil {
		in.unwatch()
	}
	in.mu.Unlock()
	var err error
	if c, ok := in.r.(io.Closer); ok {
		err = c.Close()
	}
	in.mu.Lock()
	in.err = err
	in.mu.Unlock()
	return err
}
