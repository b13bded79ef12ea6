package demux

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
)

type kubeMessage struct {
	channel byte
	payload string
}

// kubeConnection gives messages, then end.
func kubeConnection(end error, messages ...kubeMessage) func() (byte, io.Reader, error) {
	return func() (byte, io.Reader, error) {
		if len(messages) == 0 {
			return 0, nil, end
		}
		m := messages[0]
		messages = messages[1:]
		return m.channel, strings.NewReader(m.payload), nil
	}
}

const (
	kubeSuccess = `{"metadata":{},"status":"Success"}`
	kubeFailure = `{"metadata":{},"status":"Failure","message":"command terminated with non-zero exit code: exit status 7","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}`
	kubeNotRun  = `{"metadata":{},"status":"Failure","message":"container not found","reason":"InternalError","code":500}`
)

func TestKubernetes(t *testing.T) {
	reset := errors.New("connection reset")
	data := []kubeMessage{{1, ""}, {2, ""}, {3, ""}, {1, "one"}, {2, "two"}, {1, string(pattern(1, 100_000))}}
	for _, c := range []struct {
		name     string
		messages []kubeMessage
		end      error
		want     error
		exit     error // of KindExit
		remote   string
		events   string
	}{
		{name: "success", messages: []kubeMessage{{3, kubeSuccess}}, end: io.EOF, want: io.EOF, events: "exit"},
		{name: "code", messages: []kubeMessage{{3, kubeFailure}}, end: io.EOF, want: io.EOF, exit: &RemoteExit{}, events: "exit"},
		{name: "not-run", messages: []kubeMessage{{3, kubeNotRun}}, end: io.EOF, want: io.EOF, remote: "container not found", events: "remote"},
		{name: "text", messages: []kubeMessage{{3, "no such container"}}, end: io.EOF, want: io.EOF, remote: "no such container", events: "remote"},
		{name: "long-text", messages: []kubeMessage{{3, strings.Repeat("x", 1<<20)}}, end: io.EOF, want: io.EOF, remote: strings.Repeat("x", 64<<10), events: "remote"},
		{name: "odd-status", messages: []kubeMessage{{3, `{"status":"Failure"}`}}, end: io.EOF, want: io.EOF, remote: `{"status":"Failure"}`, events: "remote"},
		{name: "odd-code", messages: []kubeMessage{{3, `{"status":"Failure","message":"m","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"x"}]}}`}}, end: io.EOF, want: io.EOF, remote: "m", events: "remote"},
		// Looks like success, but nobody said so.
		{name: "cut", end: io.EOF, want: io.ErrUnexpectedEOF},
		{name: "half-closed", messages: []kubeMessage{{255, "\x01"}, {255, "\x02"}}, end: io.EOF, want: io.ErrUnexpectedEOF, events: "stdout-eof stderr-eof"},
		{name: "reset", messages: []kubeMessage{{3, kubeSuccess}}, end: reset, want: reset, events: "exit"},
		{name: "v5", messages: []kubeMessage{{255, "\x02"}, {255, "\x01"}, {3, kubeSuccess}}, end: io.EOF, want: io.EOF, events: "stderr-eof stdout-eof exit"},
		{name: "other", messages: []kubeMessage{{4, `{"Width":80}`}, {0, "in"}, {9, ""}, {255, "\x03"}, {255, ""}, {255, "\x01\x02"}, {3, kubeSuccess}}, end: io.EOF, want: io.EOF, events: "unknown unknown unknown unknown unknown unknown exit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := hear(t, FromKubernetes(kubeConnection(c.end, append(slices.Clone(data), c.messages...)...)))
			if h.stdout.String() != "one"+string(pattern(1, 100_000)) || h.stderr.String() != "two" {
				t.Errorf("%d and %d bytes", h.stdout.Len(), h.stderr.Len())
			}
			var said []string
			for _, e := range h.events {
				switch e.Kind {
				case KindStreamEOF:
					said = append(said, e.Stream.String()+"-eof")
				case KindUnknown:
					said = append(said, "unknown")
				case KindExit:
					said = append(said, "exit")
					if (e.Err == nil) != (c.exit == nil) {
						t.Errorf("exit: %v", e.Err)
					}
					var exit *RemoteExit
					if c.exit != nil && (!errors.As(e.Err, &exit) || exit.ExitCode() != 7) {
						t.Errorf("exit: %v, want code 7", e.Err)
					}
				case KindRemoteError:
					said = append(said, "remote")
					if got := e.Err.(*RemoteError).Text; got != c.remote {
						t.Errorf("remote error %.100q, want %.100q", got, c.remote)
					}
				}
			}
			if got := strings.Join(said, " "); got != c.events || h.err != c.want {
				t.Errorf("got %q then %v, want %q then %v", got, h.err, c.events, c.want)
			}
		})
	}
}

// TestKubernetesChunking: how a message arrives does not matter, and one that is
// cut is not a whole one.
func TestKubernetesChunking(t *testing.T) {
	payload := pattern(1, 3000)
	for _, c := range chunkings {
		sent := []kubeMessage{{1, string(payload)}, {3, kubeFailure}, {255, "\x01"}}
		h := hear(t, FromKubernetes(func() (byte, io.Reader, error) {
			if len(sent) == 0 {
				return 0, nil, io.EOF
			}
			m := sent[0]
			sent = sent[1:]
			return m.channel, c.of(strings.NewReader(m.payload)), nil
		}))
		if !bytes.Equal(h.stdout.Bytes(), payload) || h.err != io.EOF || h.count(KindExit) != 1 || h.count(KindStreamEOF) != 1 {
			t.Errorf("%s: %d bytes, %v, %v", c.name, h.stdout.Len(), h.events, h.err)
		}
	}
	for _, channel := range []byte{1, 3, 4} {
		first := true
		h := hear(t, FromKubernetes(func() (byte, io.Reader, error) {
			if !first {
				return 0, nil, io.EOF
			}
			first = false
			return channel, io.MultiReader(strings.NewReader(kubeSuccess), iotest.ErrReader(io.ErrUnexpectedEOF)), nil
		}))
		if h.err != io.ErrUnexpectedEOF || len(h.events) != 0 || channel == 1 && h.stdout.String() != kubeSuccess {
			t.Errorf("cut in channel %d: %v, %v", channel, h.events, h.err)
		}
	}
}

// TestKubernetesUnknown: 100 MiB on a channel that nobody knows, and 100,000
// messages, are counted and dropped.
func TestKubernetesUnknown(t *testing.T) {
	n := 0
	h := hear(t, FromKubernetes(func() (byte, io.Reader, error) {
		switch n++; {
		case n <= 100_000:
			return 4, strings.NewReader("x"), nil
		case n == 100_001:
			return 77, io.LimitReader(readFunc(func(p []byte) (int, error) { return len(p), nil }), 100<<20), nil
		case n == 100_002:
			return 1, strings.NewReader("data"), nil
		case n == 100_003:
			return 3, strings.NewReader(kubeSuccess), nil
		}
		return 0, nil, io.EOF
	}))
	if h.count(KindUnknown) != 100_001 || h.stdout.String() != "data" || h.err != io.EOF {
		t.Errorf("%d unknown, %q, %v", h.count(KindUnknown), h.stdout.String(), h.err)
	}
}

// TestKubernetesEnds: Close and the context end a Next whose next waits for a server
// that says nothing; a context that ended is not the end of the source.
func TestKubernetesEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		connection := make(chan string)
		src := FromKubernetes(func() (byte, io.Reader, error) {
			text, ok := <-connection
			if !ok {
				return 0, nil, io.ErrClosedPipe
			}
			return 1, strings.NewReader(text), nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := src.Next(ctx, nil); err != context.DeadlineExceeded {
			t.Errorf("got %v", err)
		}
		go func() { connection <- "data" }()
		if e, err := src.Next(t.Context(), nil); err != nil || string(e.Data) != "data" {
			t.Errorf("%q, %v", e.Data, err)
		}
		time.AfterFunc(time.Second, func() { src.Close() })
		if _, err := src.Next(t.Context(), nil); err != ErrClosed {
			t.Errorf("got %v", err)
		}
		src.Close()
		if _, err := src.Next(t.Context(), nil); err != ErrClosed {
			t.Errorf("then %v", err)
		}
		close(connection) // or the bubble reports the goroutine that waits for it
	})
}
