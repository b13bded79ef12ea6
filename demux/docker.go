package demux

import (
	"context"
	"encoding/binary"
	"io"
	"strings"
)

const (
	// dockerHeader is the header of a frame: type, three zeros, length (big endian).
	dockerHeader = 8
	// sourceBuffer is how much a source reads at once.
	sourceBuffer = 64 << 10
	// smallFrame is the longest payload that is moved to its predecessor in the
	// buffer, so that both are one event: it costs less than an event does.
	smallFrame = 1 << 10
	// maxRemoteText bounds RemoteError.Text.
	maxRemoteText = 64 << 10
)

// The types of a frame.
const (
	dockerStdin = iota // carried as stdout
	dockerStdout
	dockerStderr
	dockerError
)

// FromDocker reads Docker's multiplexed format, as the attach and logs calls of
// its API send it for a container without a terminal: frames of an 8-byte header
// [type, 0, 0, 0, length (4 bytes, big endian)] and a payload.
//
// Types 0 and 1 are stdout, 2 is stderr. Type 3 is what the daemon reports in
// place of an end: a *[RemoteError]. Any other header is a *[FrameError], raised
// at its first wrong byte, so that the raw output of a terminal is refused and
// never waited for. A transport that ends inside a header or a payload is
// [io.ErrUnexpectedEOF], after what did arrive. The format has no end of its own:
// a connection that is cut between two frames cannot be told from a finished one.
//
// A frame is never held whole, whatever its header announces. The source keeps a
// buffer of 64 KiB, and joins the small frames of a stream that it finds in it.
// Close closes r if it is an [io.Closer]. If it is none, such as the Reader of a
// hijacked connection, nothing ends a Read that waits; give it one:
//
//	FromDocker(struct {
//		io.Reader
//		io.Closer
//	}{resp.Reader, resp.Conn})
func FromDocker(r io.Reader) Source {
	return &docker{in: newInput(r)}
}

type docker struct {
	in       *input
	buf      []byte          // allocated with the first read
	pos, end int             // buf[pos:end] is not parsed yet
	offset   int64           // of buf[0], in the transport
	typ      byte            // of the frame
	left     uint32          // of its payload
	errFrame bool            // inside a frame of dockerError
	text     strings.Builder // of that frame
	err      error           // what Next says when buf is parsed
}

func (d *docker) Next(ctx context.Context, _ []byte) (Event, error) {
	for {
		if e, ok := d.buffered(); ok {
			return e, nil
		}
		if d.err != nil {
			return d.ended()
		}
		d.fill(ctx)
	}
}

// buffered returns the next event if it needs no reading. The Data of what it
// returns, and of the Next before, stays valid until the next Next.
func (d *docker) buffered() (e Event, ok bool) {
	for d.pos < d.end || d.errFrame && d.left == 0 {
		switch {
		case d.errFrame && d.left == 0:
			return d.remote(), true
		case d.errFrame:
			n := d.take()
			d.text.Write(d.buf[d.pos-n : d.pos][:min(n, maxRemoteText-d.text.Len())])
		case d.left > 0:
			d.data(&e)
			return e, true
		default:
			h := d.buf[d.pos:d.end]
			if badHeader(h) {
				d.err = d.frameError(h)
				d.end = d.pos
				return Event{}, false
			}
			if len(h) < dockerHeader {
				return Event{}, false
			}
			d.header(h)
		}
	}
	return Event{}, false
}

// split moves buffered payloads into the room of their streams, in order, until one
// has no more room or something else than data comes. It returns how many bytes
// each got, and of how many frames. It is what buffered does, without an event a
// frame, which costs several times what parsing one does.
func (d *docker) split(stdout, stderr []byte) (n, m, frames int) {
	for !d.errFrame {
		if d.left == 0 {
			if d.end-d.pos < dockerHeader {
				break
			}
			h := d.buf[d.pos : d.pos+dockerHeader]
			typ := binary.LittleEndian.Uint32(h) // wrong or zero bytes and all
			if typ > dockerStderr {
				break
			}
			d.typ, d.left = byte(typ), binary.BigEndian.Uint32(h[4:])
			d.pos += dockerHeader
			frames++
		}
		data := d.buf[d.pos:min(d.end, d.pos+int(min(d.left, sourceBuffer)))]
		var k int
		if d.typ == dockerStderr {
			k = copy(stderr[m:], data)
			m += k
		} else {
			k = copy(stdout[n:], data)
			n += k
		}
		d.pos += k
		d.left -= uint32(k)
		if d.left > 0 {
			break // no room, or no more bytes
		}
	}
	return n, m, frames
}

func (d *docker) header(h []byte) {
	d.typ, d.left = h[0], binary.BigEndian.Uint32(h[4:])
	d.errFrame = d.typ == dockerError
	d.pos += dockerHeader
}

// badHeader says whether h, which may be short, begins no header.
func badHeader(h []byte) bool {
	for i, b := range h[:min(len(h), 4)] {
		if b != 0 && (i > 0 || b > dockerError) {
			return true
		}
	}
	return false
}

// take steps over what is there of the payload.
func (d *docker) take() int {
	n := int(min(int64(d.left), int64(d.end-d.pos)))
	d.pos += n
	d.left -= uint32(n)
	return n
}

// data fills in what is there of the payload, joined with the small frames of the
// same stream that follow it. It moves nothing but their payloads, and writes
// only where it has parsed already. The event is filled in place: copying one costs
// more than parsing a small frame.
func (d *docker) data(e *Event) {
	stream := Stdout
	if d.typ == dockerStderr {
		stream = Stderr
	}
	start := d.pos
	n := d.take()
	for d.left == 0 && d.end-d.pos >= dockerHeader {
		h := d.buf[d.pos : d.pos+dockerHeader]
		typ := binary.LittleEndian.Uint32(h) // wrong or zero bytes and all
		size := binary.BigEndian.Uint32(h[4:])
		if size > smallFrame || typ > dockerStderr || (typ == dockerStderr) != (stream == Stderr) {
			break
		}
		d.typ, d.left = byte(typ), size
		d.pos += dockerHeader
		m := d.take()
		copy(d.buf[start+n:], d.buf[d.pos-m:d.pos])
		n += m
	}
	e.Kind, e.Stream, e.Data = KindData, stream, d.buf[start:start+n:start+n]
}

// fill reads more behind what is not parsed, which is less than a header.
func (d *docker) fill(ctx context.Context) {
	if d.buf == nil {
		d.buf = make([]byte, sourceBuffer)
	}
	d.offset += int64(d.pos)
	d.end = copy(d.buf, d.buf[d.pos:d.end])
	d.pos = 0
	n, err := d.in.read(ctx, d.buf[d.end:])
	d.end += n
	d.err = err
}

// ended turns the end of the transport into what it means here.
func (d *docker) ended() (Event, error) {
	if d.errFrame && d.text.Len() > 0 {
		return d.remote(), nil // the rest of it will not come
	}
	if d.err == io.EOF && (d.left > 0 || d.pos < d.end) {
		d.err = io.ErrUnexpectedEOF
	}
	return Event{}, d.err
}

func (d *docker) remote() Event {
	text := d.text.String()
	d.text.Reset() // leaves what text refers to alone
	d.errFrame = false
	return Event{Kind: KindRemoteError, Err: &RemoteError{text}}
}

func (d *docker) frameError(h []byte) error {
	err := &FrameError{
		Offset: d.offset + int64(d.pos),
		Header: append([]byte(nil), h[:min(len(h), dockerHeader)]...),
		Hint:   "out of step: bytes before it were lost or added",
	}
	if err.Offset == 0 {
		err.Hint = "raw stream? a container with a terminal sends its output as it is: read that without FromDocker"
	}
	return err
}

var _ buffered = (*docker)(nil)

func (d *docker) Close() error { return d.in.close() }
