// Package wire is what a pool and its worker processes say to each other:
// frames over two pipes, and large texts through one piece of shared memory.
//
// Neither side believes the other. A length is checked against a bound before a
// byte is allocated, a frame carries a CRC over header and payload, and what
// does not parse to the last byte is a [*Malformed], never a panic. The package
// promises integrity, not secrecy or authenticity: whoever holds the pipe may
// say anything that parses.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
)

// Version is the version of the protocol, which [Hello] carries. Host and worker
// are one binary, so there is no negotiation: another version is an error.
const Version = 1

// Type says what a frame carries.
type Type uint8

// The types of frame, with the direction in which they travel.
const (
	TypeHello    Type = 1 + iota // worker to host: main has reached the worker's loop
	TypeReady                    // worker to host: the VM is booted and the hardening applied
	TypeRun                      // host to worker: evaluate this
	TypeStarted                  // worker to host: the clock of the run is armed
	TypeFinished                 // worker to host: the result is dumped
	TypeOutcome                  // worker to host: what the run came to
	TypeBye                      // worker to host: why the worker is about to exit
	types                        // how many there are, and one
)

func (t Type) String() string {
	if t > 0 && t < types {
		return [...]string{"hello", "ready", "run", "started", "finished", "outcome", "bye"}[t-1]
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// HeaderBytes is the size of a frame's header: payload length (4 bytes), type
// (1), three zero bytes, run id (8), CRC-32C of all that and of the payload (4).
// Numbers are little-endian.
const HeaderBytes = 20

// MaxPayloadBytes is the largest payload of any frame.
const MaxPayloadBytes = math.MaxUint32

// Frame is one message with its run id; the id is 0 outside a run.
type Frame struct {
	Type    Type
	Run     uint64
	Payload []byte // belongs to the receiver
}

// Bounds is the largest payload that a reader takes, by type. Zero refuses the type.
type Bounds [types]int64

// FromWorker returns the bounds of a host that waits for the result of a run
// with that limit of output.
func FromWorker(maxOutputBytes int64) Bounds {
	return Bounds{
		TypeHello:    helloBytes,
		TypeReady:    maxReadyBytes,
		TypeStarted:  instantBytes,
		TypeFinished: instantBytes,
		TypeOutcome:  maxOutcomeBytes + min(max(maxOutputBytes, 0), MaxPayloadBytes-maxOutcomeBytes),
		TypeBye:      maxReasonBytes + 4,
	}
}

// FromHost returns the bounds of a worker.
func FromHost() Bounds {
	return Bounds{TypeRun: MaxPayloadBytes}
}

// Malformed is the error for bytes that are no frame, or a frame that is no message.
type Malformed struct {
	What string
}

func (e *Malformed) Error() string { return "wire: malformed frame: " + e.What }

func malformed(format string, args ...any) error {
	return &Malformed{fmt.Sprintf(format, args...)}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum is the CRC of a text in shared memory.
func Checksum(p []byte) uint32 { return crc32.Checksum(p, castagnoli) }

// seal fills in the header of a frame whose payload follows HeaderBytes of room.
func seal(frame []byte, t Type, run uint64) error {
	size := len(frame) - HeaderBytes
	if int64(size) > MaxPayloadBytes {
		return fmt.Errorf("wire: a %v of %d bytes is larger than the %d bytes of a frame", t, size, int64(MaxPayloadBytes))
	}
	binary.LittleEndian.PutUint32(frame[0:], uint32(size))
	binary.LittleEndian.PutUint32(frame[4:], uint32(t)) // and the three zero bytes
	binary.LittleEndian.PutUint64(frame[8:], run)
	sum := crc32.Update(Checksum(frame[:16]), castagnoli, frame[HeaderBytes:])
	binary.LittleEndian.PutUint32(frame[16:], sum)
	return nil
}

// firstStep is how much of a payload is allocated on the word of a header; more
// only as the bytes come, so a lie costs the liar as much as its victim.
const firstStep = 1 << 20

// ReadFrame reads one frame from r. It returns io.EOF at the end of the stream,
// io.ErrUnexpectedEOF within a frame, a *Malformed for bytes that are no frame
// or break the bounds, and whatever else r returns. It never allocates more than
// twice the payload that came, or firstStep.
func ReadFrame(r io.Reader, bounds *Bounds) (Frame, error) {
	var h [HeaderBytes]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return Frame{}, err
	}
	size := int64(binary.LittleEndian.Uint32(h[0:]))
	kind := binary.LittleEndian.Uint32(h[4:])
	if kind == 0 || kind >= uint32(types) {
		return Frame{}, malformed("type %#x is unknown", kind)
	}
	f := Frame{Type: Type(kind), Run: binary.LittleEndian.Uint64(h[8:])}
	if bounds[f.Type] == 0 {
		return Frame{}, malformed("a %v is not expected in this direction", f.Type)
	}
	if size > bounds[f.Type] {
		return Frame{}, malformed("a %v of %d bytes is larger than the %d allowed", f.Type, size, bounds[f.Type])
	}
	f.Payload = make([]byte, min(size, firstStep))
	for read := int64(0); ; {
		n, err := io.ReadFull(r, f.Payload[read:])
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return Frame{}, err
		}
		if read += int64(n); read == size {
			break
		}
		grown := make([]byte, min(size, 2*read))
		copy(grown, f.Payload)
		f.Payload = grown
	}
	sum := crc32.Update(Checksum(h[:16]), castagnoli, f.Payload)
	if want := binary.LittleEndian.Uint32(h[16:]); sum != want {
		return Frame{}, malformed("the CRC of a %v is %#08x, its header says %#08x", f.Type, sum, want)
	}
	return f, nil
}

// A Message is the payload of a frame.
type Message interface {
	kind() Type
	append(b []byte) []byte
}

// Writer writes frames. It serves one goroutine at a time.
type Writer struct {
	w   io.Writer
	buf []byte
}

// NewWriter returns a Writer on w, which gets one Write a frame.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// keepBuffer is the largest buffer a Writer keeps between frames.
const keepBuffer = 1 << 20

// Write writes m as one frame.
func (w *Writer) Write(run uint64, m Message) error {
	var room [HeaderBytes]byte
	frame := m.append(append(w.buf[:0], room[:]...))
	if cap(frame) <= keepBuffer {
		w.buf = frame
	}
	if err := seal(frame, m.kind(), run); err != nil {
		return err
	}
	_, err := w.w.Write(frame)
	return err
}
