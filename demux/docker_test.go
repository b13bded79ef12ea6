package demux

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
)

// dockerFrame appends a frame.
func dockerFrame(b []byte, typ byte, payload []byte) []byte {
	b = append(b, typ, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	return append(b, payload...)
}

// dockerReference decodes the plain way: what a stream of bytes says, and how it
// ends.
func dockerReference(b []byte) (stdout, stderr []byte, remote []string, end error) {
	for {
		if len(b) == 0 {
			return stdout, stderr, remote, io.EOF
		}
		for i, c := range b[:min(4, len(b))] {
			if i == 0 && c > 3 || i > 0 && c != 0 {
				return stdout, stderr, remote, &FrameError{}
			}
		}
		if len(b) < 8 {
			return stdout, stderr, remote, io.ErrUnexpectedEOF
		}
		typ, size := b[0], int64(binary.BigEndian.Uint32(b[4:]))
		b = b[8:]
		n := min(size, int64(len(b)))
		payload := b[:n]
		b = b[n:]
		switch typ {
		case 2:
			stderr = append(stderr, payload...)
		case 3:
			if n == size || n > 0 {
				remote = append(remote, string(payload[:min(n, 64<<10)]))
			}
		default:
			stdout = append(stdout, payload...)
		}
		if n < size {
			return stdout, stderr, remote, io.ErrUnexpectedEOF
		}
	}
}

// chunkings are ways in which the same bytes may arrive.
var chunkings = []struct {
	name string
	of   func(io.Reader) io.Reader
}{
	{"whole", func(r io.Reader) io.Reader { return r }},
	{"one-byte", iotest.OneByteReader},
	{"half", iotest.HalfReader},
	{"data-with-error", iotest.DataErrReader},
	{"random", func(r io.Reader) io.Reader {
		rng := rand.New(rand.NewPCG(7, 7))
		return readFunc(func(p []byte) (int, error) { return r.Read(p[:1+rng.IntN(min(len(p), 40))]) })
	}},
}

// checkDocker compares what the source says of b with the reference.
func checkDocker(t *testing.T, b []byte, r io.Reader) {
	t.Helper()
	stdout, stderr, remote, end := dockerReference(b)
	h := hear(t, FromDocker(r))
	if !bytes.Equal(h.stdout.Bytes(), stdout) || !bytes.Equal(h.stderr.Bytes(), stderr) {
		t.Fatalf("got %d and %d bytes, want %d and %d, of %x", h.stdout.Len(), h.stderr.Len(), len(stdout), len(stderr), b[:min(len(b), 200)])
	}
	var frame *FrameError
	if _, bad := end.(*FrameError); bad != errors.As(h.err, &frame) || !bad && h.err != end {
		t.Fatalf("ended with %v, want %v, of %x", h.err, end, b[:min(len(b), 200)])
	}
	if h.count(KindRemoteError) != len(h.events) || len(h.events) != len(remote) {
		t.Fatalf("events %v, want the remote errors %q", h.events, remote)
	}
	for i, e := range h.events {
		if got := e.Err.(*RemoteError).Text; got != remote[i] {
			t.Fatalf("remote error of %d bytes, want %d", len(got), len(remote[i]))
		}
	}
}

// TestDockerCut: a valid stream cut at every byte, arriving in every way.
func TestDockerCut(t *testing.T) {
	var b []byte
	for i, f := range []struct {
		typ byte
		n   int
	}{{1, 5}, {2, 0}, {1, 3}, {0, 1}, {2, 300}, {2, 7}, {1, 1025}, {1, 1}, {3, 9}, {2, 2}, {3, 0}, {1, 4}} {
		b = dockerFrame(b, f.typ, pattern(i, f.n))
	}
	for _, c := range chunkings {
		t.Run(c.name, func(t *testing.T) {
			for cut := range len(b) + 1 {
				checkDocker(t, b[:cut], c.of(bytes.NewReader(b[:cut])))
			}
		})
	}
}

// TestDockerSizes: frames of 2^k−1, 2^k and 2^k+1 bytes, so that headers lie
// across every edge of the buffer.
func TestDockerSizes(t *testing.T) {
	var b []byte
	for k := 10; k <= 20; k++ {
		for d := -1; d <= 1; d++ {
			b = dockerFrame(b, byte(1+(k+d)&1), pattern(k, 1<<k+d))
			b = dockerFrame(b, 2, pattern(k, smallFrame+d))
		}
	}
	checkDocker(t, b, bytes.NewReader(b))
	checkDocker(t, b, iotest.DataErrReader(iotest.HalfReader(bytes.NewReader(b))))
}

// TestDockerRandom: random frames with a random byte changed, against the
// reference.
func TestDockerRandom(t *testing.T) {
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(1, seed))
		var b []byte
		for range rng.IntN(40) {
			size := rng.IntN(1 << rng.IntN(12))
			b = dockerFrame(b, byte(rng.IntN(3)), pattern(int(seed), size))
		}
		if len(b) > 0 && seed%2 == 0 {
			b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
		}
		checkDocker(t, b, chunkings[seed%uint64(len(chunkings))].of(bytes.NewReader(b)))
	}
}

// TestDockerTransportError: what arrived comes before the error.
func TestDockerTransportError(t *testing.T) {
	b := dockerFrame(nil, 1, pattern(1, 100))
	h := hear(t, FromDocker(iotest.TimeoutReader(iotest.OneByteReader(bytes.NewReader(b)))))
	if !errors.Is(h.err, iotest.ErrTimeout) || h.stdout.Len() != 0 {
		t.Errorf("%d bytes, then %v", h.stdout.Len(), h.err)
	}
	h = hear(t, FromDocker(io.MultiReader(bytes.NewReader(b[:50]), iotest.ErrReader(iotest.ErrTimeout))))
	if !errors.Is(h.err, iotest.ErrTimeout) || !bytes.Equal(h.stdout.Bytes(), pattern(1, 100)[:42]) {
		t.Errorf("%d bytes, then %v", h.stdout.Len(), h.err)
	}
}

// TestDockerBadHeader: every wrong byte, at the start and behind a frame, is
// found before the rest of its header arrives.
func TestDockerBadHeader(t *testing.T) {
	before := dockerFrame(nil, 2, pattern(1, 10))
	for _, prefix := range [][]byte{nil, before} {
		for at := range 4 {
			for _, wrong := range []byte{1, 3, 4, 27, '$', 128, 255} {
				if at == 0 && wrong <= 3 {
					continue
				}
				header := []byte{1, 0, 0, 0}
				header[at] = wrong
				r, w := io.Pipe()
				go w.Write(append(bytes.Clone(prefix), header[:at+1]...)) // and then nothing more
				within(t, "the source", func() {
					h := hear(t, FromDocker(r))
					var bad *FrameError
					if !errors.As(h.err, &bad) || bad.Offset != int64(len(prefix)) || !bytes.Equal(bad.Header, header[:at+1]) {
						t.Fatalf("byte %d = %d behind %d bytes: %v", at, wrong, len(prefix), h.err)
					}
					if raw := strings.Contains(bad.Hint, "raw stream?"); raw != (len(prefix) == 0) {
						t.Errorf("hint at offset %d: %q", bad.Offset, bad.Hint)
					}
					if h.stderr.Len() != len(pattern(1, 10))*min(1, len(prefix)) {
						t.Errorf("%d bytes of the frame before", h.stderr.Len())
					}
				})
				r.Close()
			}
		}
	}
}

// TestDockerOffset: the offset counts from the start of the transport, not of the
// buffer.
func TestDockerOffset(t *testing.T) {
	var b []byte
	for range 1000 {
		b = dockerFrame(b, 1, pattern(1, 300))
	}
	h := hear(t, FromDocker(bytes.NewReader(append(bytes.Clone(b), "hello world"...))))
	var bad *FrameError
	if !errors.As(h.err, &bad) || bad.Offset != int64(len(b)) || string(bad.Header) != "hello wo" {
		t.Errorf("got %v, want offset %d", h.err, len(b))
	}
}

// TestDockerMemory: a header that announces 4 GiB costs one buffer, and so does
// an error text that does not end.
func TestDockerMemory(t *testing.T) {
	header := func(typ byte) []byte { return []byte{typ, 0, 0, 0, 255, 255, 255, 255} }
	cost := func(f func()) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	var h *heard
	used := cost(func() { h = hear(t, FromDocker(bytes.NewReader(append(header(1), "abc"...)))) })
	if h.err != io.ErrUnexpectedEOF || h.stdout.String() != "abc" {
		t.Errorf("%q, then %v", h.stdout.String(), h.err)
	}
	if used > 256<<10 {
		t.Errorf("used %d bytes", used)
	}
	text := pattern(3, 10<<20)
	b := dockerFrame(nil, 3, text)
	used = cost(func() { h = hear(t, FromDocker(bytes.NewReader(b))) })
	if got := h.first(t, KindRemoteError).Err.(*RemoteError).Text; got != string(text[:64<<10]) || h.err != io.EOF {
		t.Errorf("%d bytes of text, then %v", len(got), h.err)
	}
	if used > 512<<10 {
		t.Errorf("used %d bytes for the text", used)
	}
}

// TestDockerBuffered: what buffered returns is not read, and the data of earlier
// events stays as it was until the next Next.
func TestDockerBuffered(t *testing.T) {
	var b []byte
	for i := range 20_000 {
		b = dockerFrame(b, byte(1+i/3&1), pattern(i, i%90))
	}
	reads := 0
	from := bytes.NewReader(b)
	d := FromDocker(readFunc(func(p []byte) (int, error) { reads++; return from.Read(p) })).(*docker)
	events, batches := 0, 0
	for {
		e, err := d.Next(t.Context(), nil)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		batches++
		before := reads
		var kept, copies [][]byte
		for ok := true; ok; e, ok = d.buffered() {
			events++
			kept, copies = append(kept, e.Data), append(copies, bytes.Clone(e.Data))
		}
		for i := range kept {
			if !bytes.Equal(kept[i], copies[i]) {
				t.Fatalf("event %d of a batch changed", i)
			}
		}
		if reads != before {
			t.Fatal("buffered has read")
		}
	}
	if events > 7_500 || batches > len(b)/sourceBuffer+2 {
		t.Errorf("%d events in %d batches of 20,000 frames in runs of three", events, batches)
	}
}

// TestDockerSplit: split and Next in any mixture, with room of any size, give what
// the reference does, and split never steps over what is not data.
func TestDockerSplit(t *testing.T) {
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(2, seed))
		var b []byte
		for range rng.IntN(60) {
			typ := byte(rng.IntN(3))
			if rng.IntN(40) == 0 {
				typ = 3
			}
			b = dockerFrame(b, typ, pattern(int(seed), rng.IntN(1<<rng.IntN(13))))
		}
		if len(b) > 0 && seed%2 == 0 {
			b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
		}
		stdout, stderr, remote, end := dockerReference(b)
		d := FromDocker(chunkings[seed%uint64(len(chunkings))].of(bytes.NewReader(b))).(*docker)
		var got heard
		room := [2][]byte{make([]byte, rng.IntN(5000)), make([]byte, rng.IntN(5000))}
		for got.err == nil {
			for range rng.IntN(3) {
				r := [2][]byte{room[0][:rng.IntN(len(room[0])+1)], room[1][:rng.IntN(len(room[1])+1)]}
				n, m, _ := d.split(r[0], r[1])
				got.stdout.Write(r[0][:n])
				got.stderr.Write(r[1][:m])
			}
			var e Event
			if e, got.err = d.Next(t.Context(), nil); e.Kind == KindData {
				got.of(e.Stream).Write(e.Data)
			} else if e.Kind != 0 {
				got.events = append(got.events, e)
			}
		}
		var frame *FrameError
		_, bad := end.(*FrameError)
		if !bytes.Equal(got.stdout.Bytes(), stdout) || !bytes.Equal(got.stderr.Bytes(), stderr) || len(got.events) != len(remote) || bad != errors.As(got.err, &frame) || !bad && got.err != end {
			t.Fatalf("seed %d: %d and %d bytes, %d errors, %v; want %d, %d, %d, %v", seed, got.stdout.Len(), got.stderr.Len(), len(got.events), got.err, len(stdout), len(stderr), len(remote), end)
		}
	}
}

func TestDockerAllocs(t *testing.T) {
	frame := dockerFrame(dockerFrame(nil, 1, pattern(1, 64)), 2, pattern(2, 64))
	at := 0
	src := FromDocker(readFunc(func(p []byte) (int, error) { // without end
		n := copy(p, frame[at:])
		at = (at + n) % len(frame)
		for n+len(frame) < len(p) && at == 0 {
			n += copy(p[n:], frame)
		}
		return n, nil
	}))
	buf := make([]byte, 64<<10)
	ctx := t.Context()
	if n := testing.AllocsPerRun(10_000, func() {
		if _, err := src.Next(ctx, buf); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations an event", n)
	}
}

func BenchmarkDocker(b *testing.B) {
	for _, c := range []struct {
		name string
		size int
	}{{"frame=64", 64}, {"frame=32768", 32 << 10}} {
		b.Run(c.name, func(b *testing.B) {
			var data []byte
			for i := 0; len(data) < 4<<20; i++ {
				data = dockerFrame(data, byte(1+i&1), pattern(i, c.size))
			}
			b.SetBytes(int64(len(data)))
			buf := make([]byte, 64<<10)
			for b.Loop() {
				src := FromDocker(bytes.NewReader(data))
				for {
					if _, err := src.Next(b.Context(), buf); err == io.EOF {
						break
					}
				}
			}
		})
	}
}
