// Package demux gives the two streams of one shared source, such as the
// multiplexed output of a process, to two independent readers: whole, in order,
// with memory bounded by a constant, whatever either reader does.
//
// The source interleaves stdout and stderr. Whoever drives it for one reader
// meets the other's bytes; what becomes of them is the [Policy]. By default they
// stay in memory up to Options.MemPerSink, then the source waits, and when a
// reader starves because of it for Options.Patience they go to a file that has
// no name. No reader is ever failed for being slow, and none ever needs the
// other to be read.
//
// The order between the streams is lost, as it is everywhere else.
package demux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// Stream is one of the two streams; the numbers are Docker's.
type Stream uint8

const (
	Stdout Stream = 1
	Stderr Stream = 2
)

func (s Stream) String() string {
	switch s {
	case Stdout:
		return "stdout"
	case Stderr:
		return "stderr"
	}
	return fmt.Sprintf("stream(%d)", uint8(s))
}

// Kind is what an Event says.
type Kind uint8

const (
	// KindData are bytes of a stream: Stream, Data.
	KindData Kind = iota + 1
	// KindStreamEOF ends one stream in order: Stream.
	KindStreamEOF
	// KindTruncated says that bytes of a stream were lost before they reached the
	// source, just here: Stream, Lost.
	KindTruncated
	// KindRemoteError ends both streams with what the other side reported: Err.
	KindRemoteError
	// KindExit says how the process ended: Err, nil for success. Data may follow.
	KindExit
	// KindUnknown is anything else the transport carries; it is counted and dropped.
	KindUnknown
)

// Event is what a Source hands over.
type Event struct {
	Kind   Kind
	Stream Stream
	// Data is valid until the next call of Next and is never kept.
	Data []byte
	Lost int64 // KindTruncated: bytes lost, −1 if unknown
	Err  error // KindRemoteError, KindExit
}

// Source is where the events come from. The Demux calls Next from one goroutine
// at a time.
type Source interface {
	// Next returns the next event, or an error: io.EOF between two events of a
	// transport that ended in order, io.ErrUnexpectedEOF if it ended inside one
	// (after what did arrive was delivered), anything else if it failed. It may
	// split a frame as it likes and may use buf, which is at least 64 KiB, for
	// Event.Data. It returns soon after ctx is done or Close was called.
	Next(ctx context.Context, buf []byte) (Event, error)
	// Close gives up; it must unblock a Next that is running. It may be called
	// more than once.
	Close() error
}

// Parts is a Source made of independent parts, such as two pipes. The Demux
// drives each part on its own goroutine and never calls Next of the whole, so
// that a part whose sink is full does not hold up the other. The end or failure of
// a part is that of the streams it has delivered; those that no part has named
// end with the last part.
type Parts interface {
	Source
	Parts() []Source
}

// Policy is what becomes of the bytes of a sink that is full while the reader of
// the other one starves.
type Policy uint8

const (
	// Spill writes them to disk after Options.Patience.
	Spill Policy = iota
	// Backpressure lets the source wait. The caller must read each sink to its
	// end or close it; otherwise the stall is reported after Options.StallAfter.
	Backpressure
	// Unbounded keeps them in memory, all of them. For comparison only.
	Unbounded
	// CapError fails the sink with *OverCapError beyond Options.Cap. It is wrong:
	// it fails readers that are merely slower. For comparison only.
	CapError
)

var policyNames = []string{"spill", "backpressure", "unbounded", "cap-error"}

// String is the name that [ParsePolicy] takes.
func (p Policy) String() string {
	if int(p) < len(policyNames) {
		return policyNames[p]
	}
	return fmt.Sprintf("policy(%d)", uint8(p))
}

// Options are the settings of a Demux. Start from [DefaultOptions]: a zero is a
// zero, not a default, except where a field says otherwise.
type Options struct {
	Policy Policy
	// MemPerSink is how many unread bytes of one sink stay in memory before the
	// source waits; 4 KiB to 1 GiB. Default 256 KiB. Blocks on disk are of 64 KiB, or
	// of MemPerSink if that is less, with 16 bytes of header each.
	MemPerSink int
	// Patience is how long a starving reader waits before the other, full sink
	// goes to disk. 0 spills at once, negative never. Spill only. Default 20 ms.
	Patience time.Duration
	// Quantum is how much the reader of a full sink has to consume in one Patience
	// to count as alive; it is then not spilled past. At least 1. Default 64 KiB.
	Quantum int
	// Eager never lets the source wait: what memory does not hold goes to disk.
	// Spill only.
	Eager bool
	// SpillDir is where spill files live: "" means $DEMUX_SPILL_DIR, else
	// /var/tmp, else os.TempDir().
	SpillDir string
	// MaxSpill bounds the bytes of both sinks on disk; 0 means no bound.
	MaxSpill int64
	// SpillFullGrace is how long a reader starves because the disk is full before
	// it gets a *SpillFullError; negative means for ever. Default 5 s.
	SpillFullGrace time.Duration
	// AllowMemoryBacked accepts a SpillDir that is memory (tmpfs, ramfs).
	AllowMemoryBacked bool
	// StallAfter is when a reader that starves because the other sink is full is
	// reported as a stall, once an episode; 0 means never. Default 30 s.
	StallAfter time.Duration
	// StallError makes a reported stall a *StallError of the starving Read as
	// well. It is not sticky: the next Read tries again.
	StallError bool
	// StrictGaps makes Read stop where bytes were lost upstream and return a
	// *GapError once, then go on.
	StrictGaps bool
	// KeepDraining goes on reading the source, and discards, after both sinks are
	// closed, so that the process can finish.
	KeepDraining bool
	// ExitDrain is how long after a KindExit event the source may go on before both
	// sinks end as if it had said EOF; negative means for ever. Default 1 s.
	ExitDrain time.Duration
	// Cap is the backlog beyond which CapError fails a sink; at least 1. CapError
	// only. Default 8 MiB.
	Cap int
	// Notify, if set, is told what a reader cannot see, from a goroutine of its
	// own, one notice at a time and with no lock held. While it is busy at most 64
	// notices wait; what is beyond is dropped and counted.
	Notify func(Notice)
}

// DefaultOptions returns the defaults named at the fields.
func DefaultOptions() Options {
	return Options{
		MemPerSink:     256 << 10,
		Patience:       20 * time.Millisecond,
		Quantum:        64 << 10,
		SpillFullGrace: 5 * time.Second,
		StallAfter:     30 * time.Second,
		ExitDrain:      time.Second,
		Cap:            8 << 20,
	}
}

// NoticeKind is what a Notice tells.
type NoticeKind uint8

const (
	// NoticeSpilling: a sink began to go to disk; once an episode.
	NoticeSpilling NoticeKind = iota + 1
	// NoticeSpillFull: the disk takes no more (Err); once an episode.
	NoticeSpillFull
	// NoticeSpillResumed: it does again.
	NoticeSpillResumed
	// NoticeStall: the reader of Starving waits for Stream to be read or closed.
	NoticeStall
	// NoticeGap: bytes of Stream were lost upstream.
	NoticeGap
)

// Notice is one thing that happened.
type Notice struct {
	Kind     NoticeKind
	Stream   Stream // whose backlog, or whose gap
	Starving Stream // who waits because of it; 0 if nobody
	Backlog  int64  // unread bytes of Stream
	Since    time.Time
	Err      error
}

// Gap is a place where bytes were lost upstream.
type Gap struct {
	Offset int64 // of the stream as it was delivered
	Lost   int64 // −1 if unknown
}

// SinkStats are the counters of one sink, in bytes unless a field says otherwise.
// LiveMem + LiveDisk = Enqueued − Read − Discarded at every moment.
type SinkStats struct {
	Enqueued  uint64 // delivered by the source and accepted
	Read      uint64
	Discarded uint64 // unread at Close, or arrived after it
	LiveMem   uint64 // unread, in memory
	LiveDisk  uint64 // unread, on disk
	// PeakMem, PeakDisk and PeakTotal are taken right after an event was accepted:
	// before its reader could take any of it.
	PeakMem, PeakDisk, PeakTotal uint64
	Spilled                      uint64 // ever written to disk
	SpillWrites, SpillReads      uint64 // calls
	Released                     uint64 // given back to the file system while open
	Gaps                         uint64 // count
	GapsMerged                   uint64 // count: beyond the 64 that Gaps lists
	Starved                      uint64 // times a reader waited while the source was held up
	StarvedTotal, StarvedMax     time.Duration
	PatienceExpired              uint64 // times this sink was spilled past
	LastRead                     time.Time
	Done                         bool  // its end is known
	Err                          error // what the reader gets at its end; nil before
}

// Stats are the counters of a Demux.
type Stats struct {
	Stdout, Stderr SinkStats
	SourceBytes    uint64
	SourceEvents   uint64
	UnknownEvents  uint64
	Paused         uint64 // times the source was held up
	PausedTotal    time.Duration
	Degraded       uint64 // episodes of a full disk
	DegradedTotal  time.Duration
	DegradedErr    error  // of the last one
	HeapReserved   uint64 // bytes of buffers held now
	SpillFiles     int    // open now
	NoticesDropped uint64
}

// Sink returns the counters of a stream.
func (s Stats) Sink(of Stream) SinkStats {
	if of == Stderr {
		return s.Stderr
	}
	return s.Stdout
}

// ErrClosed is the end of a sink that was closed by its owner, or by Close of
// the Demux before its end was reached.
var ErrClosed = fmt.Errorf("demux: closed: %w", os.ErrClosed)

// ErrMemoryBacked is the reason of a *UsageError about a spill directory that is
// memory itself.
var ErrMemoryBacked = errors.New("the file system is memory (tmpfs or ramfs), so that spilling to it frees nothing")

// UsageError is an option that cannot be meant.
type UsageError struct {
	Field   string // "Options.SpillDir"
	Value   any
	Allowed string // what to give instead
	Reason  error  // why, if not obvious; may be nil
}

func (e *UsageError) Error() string {
	if e.Reason != nil {
		return fmt.Sprintf("demux: %s = %v: %v: %s", e.Field, e.Value, e.Reason, e.Allowed)
	}
	return fmt.Sprintf("demux: %s = %v: %s", e.Field, e.Value, e.Allowed)
}

func (e *UsageError) Unwrap() error { return e.Reason }

// SourceError is a transport that failed.
type SourceError struct{ Err error }

func (e *SourceError) Error() string { return fmt.Sprintf("demux: the source failed: %v", e.Err) }
func (e *SourceError) Unwrap() error { return e.Err }

// RemoteError is what the other side reported in place of an end.
type RemoteError struct{ Text string } // at most 64 KiB

func (e *RemoteError) Error() string { return "demux: the other side reported: " + e.Text }

// FrameError is a transport that does not speak the format.
type FrameError struct {
	Offset int64 // of the header, in the transport
	Header []byte
	Hint   string
}

func (e *FrameError) Error() string {
	return fmt.Sprintf("demux: no frame at offset %d: % x: %s", e.Offset, e.Header, e.Hint)
}

// GapError says that bytes were lost upstream just here. The next Read goes on.
type GapError struct{ Gap Gap }

func (e *GapError) Error() string {
	if e.Gap.Lost < 0 {
		return fmt.Sprintf("demux: an unknown number of bytes was lost upstream at offset %d", e.Gap.Offset)
	}
	return fmt.Sprintf("demux: %d bytes were lost upstream at offset %d", e.Gap.Lost, e.Gap.Offset)
}

// StallError is a read that waits for the other sink. The next Read tries again.
type StallError struct {
	Starving, Full Stream
	Backlog        int64
	Waited         time.Duration
}

func (e *StallError) Error() string {
	return fmt.Sprintf("demux: %s has waited %v for %s, which holds %d unread bytes: read or close it", e.Starving, e.Waited, e.Full, e.Backlog)
}

// SpillFullError is a read that starves because the disk takes no more of the
// other sink. Nothing is lost; the next Read tries again.
type SpillFullError struct {
	Full    Stream
	Backlog int64
	Err     error // of the write
}

func (e *SpillFullError) Error() string {
	return fmt.Sprintf("demux: %s holds %d unread bytes and the disk takes no more: %v: free space, or read or close %s", e.Full, e.Backlog, e.Err, e.Full)
}

func (e *SpillFullError) Unwrap() error { return e.Err }

// SpillReadError is a spill file that does not give back what was written. All
// before Offset was delivered; nothing after it is.
type SpillReadError struct {
	Offset int64 // of the stream
	Err    error
}

func (e *SpillReadError) Error() string {
	return fmt.Sprintf("demux: the spill file is bad at stream offset %d: %v", e.Offset, e.Err)
}

func (e *SpillReadError) Unwrap() error { return e.Err }

// OverCapError is the end of a sink under CapError.
type OverCapError struct {
	Stream  Stream
	Backlog int64
	Cap     int
}

func (e *OverCapError) Error() string {
	return fmt.Sprintf("demux: %s holds %d unread bytes, more than the cap of %d", e.Stream, e.Backlog, e.Cap)
}
