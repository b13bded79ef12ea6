package demux

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync/atomic"
)

// The channels of Kubernetes' remote command protocol that a client reads.
const (
	kubeStdout = byte(Stdout)
	kubeStderr = byte(Stderr)
	kubeStatus = 3
	kubeClose  = 255 // v5: the payload is the channel that ends
)

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
// Close does not know the connection: a next that waits ends when its owner closes
// that.
func FromKubernetes(next func() (byte, io.Reader, error)) Source {
	return &kubernetes{next: next}
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
	next    func() (byte, io.Reader, error)
	closed  atomic.Bool
	channel byte
	msg     io.Reader // of the message; nil between two
	text    []byte    // of a status or close message
	status  bool      // how the command ended was said
	err     error     // sticky
}

func (k *kubernetes) Next(ctx context.Context, buf []byte) (Event, error) {
	for {
		switch {
		case k.closed.Load():
			return Event{}, ErrClosed
		case ctx.Err() != nil:
			return Event{}, context.Cause(ctx)
		case k.err != nil:
			return Event{}, k.err
		case k.msg == nil:
			k.begin()
			continue
		}
		n, err := readSome(k.msg, buf)
		if err == io.EOF {
			k.msg = nil
		} else {
			k.err = err
		}
		if e := k.event(buf[:n]); e.Kind != 0 {
			return e, nil
		}
	}
}

func (k *kubernetes) begin() {
	k.channel, k.msg, k.err = k.next()
	if k.err == io.EOF && !k.status {
		k.err = io.ErrUnexpectedEOF
	}
	if k.msg == nil {
		k.msg = strings.NewReader("")
	}
	k.text = k.text[:0]
}

// event is what the next bytes of the message say; Kind 0 is nothing yet.
func (k *kubernetes) event(data []byte) Event {
	switch k.channel {
	case kubeStdout, kubeStderr:
		if len(data) > 0 {
			return Event{Kind: KindData, Stream: Stream(k.channel), Data: data}
		}
		return Event{} // an empty message is legal
	case kubeStatus, kubeClose:
		k.text = append(k.text, data[:min(len(data), maxRemoteText-len(k.text))]...)
	}
	if k.msg != nil {
		return Event{} // there is more of it
	}
	switch {
	case k.channel == kubeStatus && len(k.text) == 0:
		return Event{}
	case k.channel == kubeStatus:
		k.status = true
		return kubeEnd(k.text)
	case k.channel == kubeClose && len(k.text) == 1 && (k.text[0] == kubeStdout || k.text[0] == kubeStderr):
		return Event{Kind: KindStreamEOF, Stream: Stream(k.text[0])}
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

// Close makes Next end with its next message.
func (k *kubernetes) Close() error {
	k.closed.Store(true)
	return nil
}
