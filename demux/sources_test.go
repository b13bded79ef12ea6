package demux

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"
)

// heard is what a source said.
type heard struct {
	stdout, stderr bytes.Buffer
	events         []Event // without data
	err            error   // of the last Next
}

// of is the buffer of a stream.
func (h *heard) of(s Stream) *bytes.Buffer {
	if s == Stderr {
		return &h.stderr
	}
	return &h.stdout
}

// count is how many events of a kind there were.
func (h *heard) count(k Kind) (n int) {
	for _, e := range h.events {
		if e.Kind == k {
			n++
		}
	}
	return n
}

// first is the first event of a kind.
func (h *heard) first(t *testing.T, k Kind) Event {
	t.Helper()
	for _, e := range h.events {
		if e.Kind == k {
			return e
		}
	}
	t.Fatalf("no event of kind %d in %v, then %v", k, h.events, h.err)
	return Event{}
}

// hear calls Next until it fails, and once more: the end must be sticky.
func hear(t *testing.T, src Source) *heard {
	t.Helper()
	h := &heard{}
	buf := make([]byte, 64<<10)
	for {
		e, err := src.Next(t.Context(), buf)
		if err != nil {
			h.err = err
			break
		}
		if e.Kind == KindData {
			if len(e.Data) == 0 {
				t.Fatal("an event with no data")
			}
			h.of(e.Stream).Write(e.Data)
			continue
		}
		h.events = append(h.events, e)
	}
	if _, err := src.Next(t.Context(), buf); err != h.err {
		t.Fatalf("after %v Next said %v", h.err, err)
	}
	return h
}

// hearParts hears each part on a goroutine of its own.
func hearParts(t *testing.T, src Source) []*heard {
	t.Helper()
	list := src.(Parts).Parts()
	out := make([]*heard, len(list))
	var wg sync.WaitGroup
	for i, part := range list {
		wg.Go(func() { out[i] = hear(t, part) })
	}
	wg.Wait()
	return out
}

// within fails the test when f does not end: a hang, not a speed.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatalf("%s does not end", what)
	}
}

// pattern is n bytes that differ from place to place and from seed to seed.
func pattern(seed, n int) []byte {
	b := make([]byte, n)
	x := uint32(seed)*2654435761 + 1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

// TestNextEnds: Close, and the context, end a Next that waits.
func TestNextEnds(t *testing.T) {
	stop := errors.New("stop")
	for _, source := range []struct {
		name string
		make func(r *io.PipeReader) Source
	}{
		{"docker", func(r *io.PipeReader) Source { return FromDocker(r) }},
		{"readers", func(r *io.PipeReader) Source { return FromReaders(r, nil).(Parts).Parts()[0] }},
	} {
		for _, how := range []string{"close", "context", "before"} {
			t.Run(source.name+"/"+how, func(t *testing.T) {
				r, w := io.Pipe()
				src := source.make(r)
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				want := stop
				switch how {
				case "close":
					want = ErrClosed
					go func() {
						w.Write(nil) // returns when the Read waits
						src.Close()
					}()
				case "context":
					go func() {
						w.Write(nil)
						cancel(stop)
					}()
				case "before":
					cancel(stop)
				}
				within(t, "Next", func() {
					if _, err := src.Next(ctx, make([]byte, 64<<10)); !errors.Is(err, want) {
						t.Errorf("got %v, want %v", err, want)
					}
				})
				if err := src.Close(); err != nil {
					t.Error(err)
				}
				if _, err := src.Next(t.Context(), make([]byte, 64<<10)); err == nil || err == io.EOF {
					t.Errorf("after Close: %v", err)
				}
			})
		}
	}
}

// TestContextBetweenCalls: a context that ends while no Next waits under it does
// not harm the next call.
func TestContextBetweenCalls(t *testing.T) {
	r, w := io.Pipe()
	go func() {
		for i := range 100 {
			fmt.Fprintf(w, "%02d", i)
		}
		w.Close()
	}()
	src := FromReaders(r, nil).(Parts).Parts()[0]
	var got bytes.Buffer
	for {
		ctx, cancel := context.WithCancel(t.Context())
		e, err := src.Next(ctx, make([]byte, 64<<10))
		cancel()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got.Write(e.Data)
	}
	if got.Len() != 200 {
		t.Fatalf("%d bytes, want 200", got.Len())
	}
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

// TestBadReaders: a reader that breaks its contract is an error, not a hang and
// not a panic.
func TestBadReaders(t *testing.T) {
	for _, c := range []struct {
		name string
		n    int
		want error
	}{{"nothing", 0, io.ErrNoProgress}, {"too-many", 1 << 30, nil}, {"negative", -1, nil}} {
		t.Run(c.name, func(t *testing.T) {
			bad := readFunc(func([]byte) (int, error) { return c.n, nil })
			kube := FromKubernetes(func() (byte, io.Reader, error) { return 1, bad, nil })
			for _, src := range []Source{FromDocker(bad), FromReaders(nil, bad).(Parts).Parts()[1], kube} {
				h := hear(t, src)
				if h.err == nil || h.err == io.EOF || c.want != nil && h.err != c.want {
					t.Errorf("%T: got %v, want %v", src, h.err, c.want)
				}
			}
		})
	}
}

func TestReaders(t *testing.T) {
	fault := errors.New("fault")
	out := pattern(1, 200_000)
	h := hearParts(t, FromReaders(bytes.NewReader(out), io.MultiReader(bytes.NewReader(out[:70]), readFunc(func([]byte) (int, error) { return 0, fault }))))
	if h[0].err != io.EOF || h[0].count(KindStreamEOF) != 1 || !bytes.Equal(h[0].stdout.Bytes(), out) {
		t.Errorf("stdout: %d bytes, %v, %v", h[0].stdout.Len(), h[0].events, h[0].err)
	}
	// Data first, then the error, and no end.
	if h[1].err != fault || len(h[1].events) != 0 || !bytes.Equal(h[1].stderr.Bytes(), out[:70]) {
		t.Errorf("stderr: %d bytes, %v, %v", h[1].stderr.Len(), h[1].events, h[1].err)
	}
	for i, h := range hearParts(t, FromPipes(nil, nil)) {
		if h.err != io.EOF || h.count(KindStreamEOF) != 1 {
			t.Errorf("absent part %d: %v, %v", i, h.events, h.err)
		}
	}
	if _, err := FromReaders(nil, nil).Next(t.Context(), nil); err == nil || err == io.EOF {
		t.Errorf("Next of the whole: %v", err)
	}
}
