//go:build unix

package stdcopy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/pkg/stdcopy"
	"github.com/sandbed/sandbed/bench/timing"
	"github.com/sandbed/sandbed/demux"
)

func frame(b []byte, typ byte, payload []byte) []byte {
	b = append(b, typ, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	return append(b, payload...)
}

// frames is about total bytes in frames of a size, stdout and stderr in turn.
func frames(b []byte, size, total int) []byte {
	payload := make([]byte, size)
	for i := range payload {
		payload[i] = byte(i * 7)
	}
	for i := 0; i*size < total; i++ {
		b = frame(b, byte(1+i&1), payload)
	}
	return b
}

// source has no method but Read, so that nobody takes a short cut. It calls mark when
// its first skip bytes were read.
type source struct {
	r    *bytes.Reader
	skip int
	mark func()
}

func (s *source) Read(p []byte) (int, error) {
	before := int(s.r.Size()) - s.r.Len()
	n, err := s.r.Read(p)
	if before < s.skip && before+n >= s.skip {
		s.mark()
	}
	return n, err
}

// byDemux splits what r says and writes it as io.Copy does: by WriteTo.
func byDemux(stdout, stderr io.Writer, r io.Reader) error {
	d, err := demux.New(demux.FromDocker(r), demux.DefaultOptions())
	if err != nil {
		return err
	}
	defer d.Close()
	var errs [2]error
	var wg sync.WaitGroup
	wg.Go(func() { _, errs[0] = io.Copy(stdout, d.Stdout()) })
	wg.Go(func() { _, errs[1] = io.Copy(stderr, d.Stderr()) })
	wg.Wait()
	return errors.Join(errs[:]...)
}

func byStdCopy(stdout, stderr io.Writer, r io.Reader) error {
	_, err := stdcopy.StdCopy(stdout, stderr, r)
	return err
}

// TestSame: both give the same bytes.
func TestSame(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(3, seed))
		var b []byte
		for range rng.IntN(60) {
			payload := make([]byte, rng.IntN(1<<rng.IntN(17)))
			for i := range payload {
				payload[i] = byte(rng.Uint32())
			}
			b = frame(b, byte(rng.IntN(3)), payload)
		}
		var want, got [2]bytes.Buffer
		if err := byStdCopy(&want[0], &want[1], bytes.NewReader(b)); err != nil {
			t.Fatal(err)
		}
		if err := byDemux(&got[0], &got[1], bytes.NewReader(b)); err != nil {
			t.Fatal(err)
		}
		for i := range got {
			if !bytes.Equal(got[i].Bytes(), want[i].Bytes()) {
				t.Fatalf("seed %d, stream %d: %d bytes, want %d", seed, i+1, got[i].Len(), want[i].Len())
			}
		}
	}
}

// TestCut: of a connection that is cut inside a frame StdCopy drops what arrived
// of the frame and reports success; the demux delivers it and says so.
func TestCut(t *testing.T) {
	b := frame(nil, 1, []byte("hello world"))
	b = b[:len(b)-5]
	var got [2]bytes.Buffer
	if err := byStdCopy(&got[0], &got[1], bytes.NewReader(b)); err != nil || got[0].Len() != 0 {
		t.Errorf("StdCopy changed: %q, %v", got[0].String(), err)
	}
	got = [2]bytes.Buffer{}
	if err := byDemux(&got[0], &got[1], bytes.NewReader(b)); !errors.Is(err, io.ErrUnexpectedEOF) || got[0].String() != "hello " {
		t.Errorf("demux: %q, %v", got[0].String(), err)
	}
}

// touch counts, and reads one byte of each cache line.
type touch struct{ n, sum int }

func (w *touch) Write(p []byte) (int, error) {
	w.n += len(p)
	for i := 0; i < len(p); i += 64 {
		w.sum += int(p[i])
	}
	return len(p), nil
}

// cases are what is timed. least is a gain that a test holds on any machine, far
// below what the benchmark shows on a quiet one; 0 is none.
var cases = []struct {
	name  string
	data  func() []byte
	skip  int // how much of data is read before the clock starts
	least float64
}{
	{"frame=32768", func() []byte { return frames(nil, 32<<10, 64<<20) }, 0, 0},
	{"frame=64", func() []byte { return frames(nil, 64, 2<<20) }, 0, 2},
	// StdCopy's buffer grows to the largest frame, and all of it moves with every
	// frame that follows.
	{"frame=64/after=16777216", func() []byte {
		return frames(frame(nil, 1, make([]byte, 16<<20)), 64, 8<<10)
	}, 8 + 16<<20, 10},
}

// cost is what one run took: by the clock, and of processor time.
type cost struct{ wall, cpu time.Duration }

func once(tb testing.TB, split func(stdout, stderr io.Writer, r io.Reader) error, data []byte, skip, want int) cost {
	var stdout, stderr touch
	begun, cpu := time.Now(), cpuTime(tb)
	err := split(&stdout, &stderr, &source{bytes.NewReader(data), skip, func() { begun, cpu = time.Now(), cpuTime(tb) }})
	took := cost{time.Since(begun), cpuTime(tb) - cpu}
	if err != nil || stdout.n+stderr.n != want {
		tb.Fatalf("%d bytes, want %d: %v", stdout.n+stderr.n, want, err)
	}
	return took
}

func cpuTime(tb testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func payload(data []byte) (n int) {
	for len(data) > 0 {
		size := int(binary.BigEndian.Uint32(data[4:]))
		n += size
		data = data[8+size:]
	}
	return n
}

// BenchmarkGain pairs both on the same bytes in memory, in both orders: how many
// times faster the demux is, at the median and at the first and last decile of the
// pairs. The demux uses three goroutines and StdCopy one, so the gain in processor
// time is reported as well: it is what a busy machine sees.
func BenchmarkGain(b *testing.B) {
	for _, c := range cases {
		b.Run(c.name, func(b *testing.B) {
			data := c.data()
			want := payload(data)
			var wall, cpu []float64
			for b.Loop() {
				var d, s cost
				if len(wall)%2 == 0 {
					d, s = once(b, byDemux, data, c.skip, want), once(b, byStdCopy, data, c.skip, want)
				} else {
					s, d = once(b, byStdCopy, data, c.skip, want), once(b, byDemux, data, c.skip, want)
				}
				wall = append(wall, float64(s.wall)/float64(d.wall))
				cpu = append(cpu, float64(s.cpu)/float64(d.cpu))
			}
			slices.Sort(wall)
			slices.Sort(cpu)
			b.ReportMetric(0, "ns/op") // of both together: says nothing
			b.ReportMetric(wall[len(wall)/2], "gain")
			b.ReportMetric(wall[len(wall)/10], "gain-p10")
			b.ReportMetric(wall[len(wall)*9/10], "gain-p90")
			b.ReportMetric(cpu[len(cpu)/2], "cpu-gain")
		})
	}
}

func TestGain(t *testing.T) {
	for _, c := range cases {
		if c.least == 0 {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			data := c.data()
			want := payload(data)
			timing.Paired{
				Name:    fmt.Sprintf("the demux is %g times as fast as StdCopy", c.least),
				Subject: func() { once(t, byDemux, data, c.skip, want) },
				Control: func() { once(t, byStdCopy, data, c.skip, want) },
				Factor:  1 / c.least,
			}.Check(t)
		})
	}
}
