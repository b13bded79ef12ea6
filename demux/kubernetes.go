package demux

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"sync"
)

// The channels of Kubernetes' remote command protocol that a client reads.
const (
	kubeStdout = byte(Stdout)
	kubeStderr = byte(Stderr)
	kubeStatus = 3
	kubeClose  = 255 // v5: the payload is the channel that ends
)

// kubeBuffer is how much of a message is read at once: little, because it is held
// beside the buffer of the Demux, which may be in use when Next is left.
const kubeBuffer = 16 << 10

// FromKubernetes reads the messages of Kubernetes' exec and attach calls over a
// WebSocket (v4.channel.k8s.io and v5.channel.k8s.io). next returns the channel of
// the next message, which is its first byte, and a reader of the rest; io.EOF when
// the connection was closed in order.
//
// Channel 1 is stdout, 2 stderr. Channel 3 brings how the command ended: KindExit,
// with a *[RemoteExit] for an exit code other than 0, or KindRemoteError for a
// command that was not run to its end. Channel 255 ends a stream. All else, such as
// resize (4), is read to its end and counted as unknown. A connection that is
// closed in order before it said how the command ended is [io.ErrUnexpectedEOF].
//
// next and the readers are called from a goroutine of their own, since nothing else
// could end a next that waits: Close and the context leave it behind. It ends as
// soon as next returns, so close the connection as well.
func FromKubernetes(next func() (byte, io.Reader, error)) Source {
	return &kubernetes{next: next, closed: make(chan struct{}), ask: make(chan struct{}), got: make(chan kubeStep)}
}

// RemoteExit is a command that ended on the other side with a code that is not 0.
type RemoteExit struct {
	Code int
	Text string // as reported; at most 64 KiB
}

func (e *RemoteExit) Error() string {
	return fmt.Sprintf("demux: the command ended with exit code %d: %s", e.Code, e.Text)
}

// ExitCode is Code, as in [os/exec.ExitError].
func (e *RemoteExit) ExitCode() int { return e.Code }

type kubernetes struct {
	next   func() (byte, io.Reader, error)
	once   sync.Once
	closed chan struct{}
	ask    chan struct{} // for a step
	got    chan kubeStep

	// Of the goroutine that reads.
	msg     io.Reader // of the message; nil between two
	channel byte
	buf     []byte // the reader's until the step is told, then Next's until it asks

	// Of Next.
	running bool
	asked   bool
	text    []byte // of a status or close message
	status  bool   // how the command ended was said
	err     error  // sticky
}

// kubeStep is some of a message.
type kubeStep struct {
	channel byte
	data    []byte
	end     bool  // of the message
	err     error // after data
}

// read makes the steps that are asked for.
func (k *kubernetes) read() {
	k.buf = make([]byte, kubeBuffer)
	for {
		select {
		case <-k.ask:
		case <-k.closed:
			return
		}
		s := k.step()
		select {
		case k.got <- s:
		case <-k.closed:
			return
		}
		if s.err != nil {
			return
		}
	}
}

func (k *kubernetes) step() kubeStep {
	if k.msg == nil {
		var err error
		if k.channel, k.msg, err = k.next(); err != nil {
			return kubeStep{err: err}
		}
		if k.msg == nil {
			return kubeStep{channel: k.channel, end: true}
		}
	}
	n, err := readSome(k.msg, k.buf)
	s := kubeStep{channel: k.channel, data: k.buf[:n]}
	if err == io.EOF {
		k.msg, s.end = nil, true
	} else {
		s.err = err
	}
	return s
}

func (k *kubernetes) Next(ctx context.Context, _ []byte) (Event, error) {
	for {
		select {
		case <-k.closed:
			return Event{}, ErrClosed
		default:
		}
		switch {
		case ctx.Err() != nil:
			return Event{}, context.Cause(ctx)
		case k.err != nil:
			return Event{}, k.err
		case !k.running:
			k.running = true
			go k.read()
		}
		if !k.asked {
			k.asked = true
			select {
			case k.ask <- struct{}{}:
			case <-k.closed:
			}
		}
		select {
		case s := <-k.got:
			k.asked = false
			if k.err = s.err; k.err == io.EOF && !k.status {
				k.err = io.ErrUnexpectedEOF
			}
			if e := k.event(s); e.Kind != 0 {
				return e, nil
			}
		case <-k.closed:
		case <-ctx.Done():
		}
	}
}

// event is what a step says; Kind 0 is nothing yet.
func (k *kubernetes) event(s kubeStep) Event {
	switch s.channel {
	case kubeStdout, kubeStderr:
		if len(s.data) > 0 {
			return Event{Kind: KindData, Stream: Stream(s.channel), Data: s.data}
		}
		return Event{} // an empty message is legal
	case kubeStatus, kubeClose:
		k.text = append(k.text, s.data[:min(len(s.data), maxRemoteText-len(k.text))]...)
	}
	if !s.end {
		return Event{} // there is more of it
	}
	text := k.text
	k.text = nil
	switch {
	case s.channel == kubeStatus && len(text) == 0:
		return Event{}
	case s.channel == kubeStatus:
		k.status = true
		return kubeEnd(text)
	case s.channel == kubeClose && len(text) == 1 && (text[0] == kubeStdout || text[0] == kubeStderr):
		return Event{Kind: KindStreamEOF, Stream: Stream(text[0])}
	}
	return Event{Kind: KindUnknown}
}

// kubeEnd reads a status message: a metav1.Status, or text before v4.
func kubeEnd(text []byte) Event {
	var s struct {
		Status, Message, Reason string
		Details                 struct {
			Causes []struct{ Reason, Message string }
		}
	}
	if json.Unmarshal(text, &s) != nil || s.Status == "" {
		return Event{Kind: KindRemoteError, Err: &RemoteError{string(text)}}
	}
	if s.Status == "Success" {
		return Event{Kind: KindExit}
	}
	if s.Reason == "NonZeroExitCode" {
		for _, c := range s.Details.Causes {
			if code, err := strconv.Atoi(c.Message); c.Reason == "ExitCode" && err == nil {
				return Event{Kind: KindExit, Err: &RemoteExit{code, s.Message}}
			}
		}
	}
	if s.Message == "" {
		s.Message = string(text)
	}
	return Event{Kind: KindRemoteError, Err: &RemoteError{s.Message}}
}

func (k *kubernetes) Close() error {
	k.once.Do(func() { close(k.closed) })
	return nil
}
