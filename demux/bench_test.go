package demux

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"os"
	"strconv"
	"sync"
	"testing"
)

// frames is a Docker stream of n payload bytes in frames of a size, by order.
func frames(order string, size, n int) []byte {
	var out []byte
	p := make([]byte, size)
	for i := 0; n > 0; i++ {
		t := byte(1)
		if order[i%len(order)] == 'E' {
			t = 2
		}
		out = append(out, t, 0, 0, 0)
		out = binary.BigEndian.AppendUint32(out, uint32(size))
		out = append(out, p...)
		n -= size
	}
	return out
}

// touch is a writer that looks at every cache line.
type touch struct{ sum uint64 }

func (t *touch) Write(p []byte) (int, error) {
	for i := 0; i+8 <= len(p); i += 64 {
		t.sum += binary.LittleEndian.Uint64(p[i:])
	}
	return len(p), nil
}

const benchVolume = 64 << 20

func drainBoth(b *testing.B, src Source, o Options, buf int) {
	d, err := New(src, o)
	if err != nil {
		b.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, s := range d.sinks {
		wg.Go(func() {
			var err error
			if buf == 0 {
				_, err = s.WriteTo(&touch{})
			} else {
				_, err = io.CopyBuffer(onlyWriter{&touch{}}, onlyReader{s}, make([]byte, buf))
			}
			if err != nil {
				b.Error(err)
			}
		})
	}
	wg.Wait()
	d.Close()
}

func BenchmarkPrompt(b *testing.B) {
	for _, kind := range []string{"memory", "pipe"} {
		for _, size := range []int{64, 4 << 10, 32 << 10, 1 << 20} {
			wire := frames("OE", size, benchVolume)
			source := func() io.ReadCloser {
				if kind == "memory" {
					return io.NopCloser(bytes.NewReader(wire))
				}
				r, w, err := os.Pipe()
				if err != nil {
					b.Fatal(err)
				}
				go func() {
					for p := wire; len(p) > 0; p = p[min(len(p), 64<<10):] {
						w.Write(p[:min(len(p), 64<<10)])
					}
					w.Close()
				}()
				return r
			}
			name := "source=" + kind + "/frame=" + itoa(size)
			b.Run(name+"/how=copy", func(b *testing.B) {
				b.SetBytes(int64(len(wire)))
				for b.Loop() {
					r := source()
					io.CopyBuffer(onlyWriter{&touch{}}, onlyReader{r}, make([]byte, 64<<10))
					r.Close()
				}
			})
			b.Run(name+"/how=read", func(b *testing.B) {
				b.SetBytes(int64(len(wire)))
				for b.Loop() {
					drainBoth(b, FromDocker(source()), options(Spill, b), 64<<10)
				}
			})
			b.Run(name+"/how=writeto", func(b *testing.B) {
				b.SetBytes(int64(len(wire)))
				for b.Loop() {
					drainBoth(b, FromDocker(source()), options(Spill, b), 0)
				}
			})
		}
	}
}

func itoa(n int) string {
	switch {
	case n >= 1<<20:
		return "1MiB"
	case n >= 1<<10:
		return strconv.Itoa(n>>10) + "KiB"
	}
	return "64B"
}

// BenchmarkAbsent spills one stream of 256 MiB, and reads it back.
func BenchmarkAbsent(b *testing.B) {
	const n = 256 << 20
	chunk := bytesOf(32<<10, Stdout)
	b.Run("how=copy", func(b *testing.B) {
		b.SetBytes(n)
		dir := spillTestDir(b)
		for b.Loop() {
			f, err := os.CreateTemp(dir, "")
			if err != nil {
				b.Fatal(err)
			}
			os.Remove(f.Name())
			io.CopyBuffer(onlyWriter{f}, io.LimitReader(&again{chunk}, n), make([]byte, 64<<10))
			f.Close()
		}
	})
	for _, back := range []string{"spill", "spill+read"} {
		b.Run("how="+back, func(b *testing.B) {
			b.SetBytes(n)
			o := options(Spill, b)
			o.Eager = true
			for b.Loop() {
				d, err := New(FromReaders(io.LimitReader(&again{chunk}, n), nil), o)
				if err != nil {
					b.Fatal(err)
				}
				d.Wait(context.Background())
				if back != "spill" {
					d.Stdout().WriteTo(&touch{})
				}
				d.Close()
			}
		})
	}
}

// again is a reader of the same bytes for ever.
type again struct{ p []byte }

func (a *again) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		n += copy(p[n:], a.p)
	}
	return n, nil
}
