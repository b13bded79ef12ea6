package wire

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"testing"
)

// BenchmarkTransport is one text to the other side and back, through pipes and
// through shared memory: the figures that the pool's choice rests on. The other
// side is a goroutine; frames, copies, checks and system calls are those of a process.
func BenchmarkTransport(b *testing.B) {
	for _, size := range []int{1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20} {
		for _, via := range []string{"pipe", "memfd"} {
			b.Run(fmt.Sprintf("bytes=%d/via=%s", size, via), func(b *testing.B) {
				host, worker := pair(b, 32<<20)
				theirs, ours := duplex(b)
				text := bytes.Repeat([]byte{'7'}, size)
				send := func(s *Shared, p []byte) Text {
					if via == "memfd" {
						return s.Put(p)
					}
					return Text{Present: true, Inline: p}
				}
				receive := func(s *Shared, t Text) []byte {
					if !t.Shared {
						return t.Inline
					}
					p, err := s.Get(t, int64(size))
					if err != nil {
						b.Error(err)
					}
					return p
				}
				done := make(chan error, 1)
				go func() {
					bounds, w := FromHost(), NewWriter(theirs.out)
					for {
						f, err := ReadFrame(theirs.in, &bounds)
						if err == io.EOF {
							done <- nil
							return
						}
						var m Run
						if err == nil {
							m, err = DecodeRun(f.Payload)
						}
						if err == nil {
							o := Outcome{Value: send(worker, receive(worker, m.Input))}
							o.Outcome.Class = "ok"
							err = w.Write(f.Run, o)
						}
						if err != nil {
							done <- err
							return
						}
					}
				}()
				bounds, w := FromWorker(int64(size)), NewWriter(ours.out)
				b.SetBytes(2 * int64(size))
				for b.Loop() {
					if err := w.Write(1, Run{Input: send(host, text)}); err != nil {
						b.Fatal(err)
					}
					f, err := ReadFrame(ours.in, &bounds)
					if err != nil {
						b.Fatal(err)
					}
					o, err := DecodeOutcome(f.Payload)
					if err != nil {
						b.Fatal(err)
					}
					if got := receive(host, o.Value); len(got) != size {
						b.Fatalf("got %d bytes back, want %d", len(got), size)
					}
				}
				b.StopTimer()
				ours.out.Close()
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}

type side struct{ in, out *os.File }

func duplex(b *testing.B) (theirs, ours side) {
	b.Helper()
	pipe := func() (r, w *os.File) {
		r, w, err := os.Pipe()
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { r.Close(); w.Close() })
		return r, w
	}
	theirs.in, ours.out = pipe()
	ours.in, theirs.out = pipe()
	return theirs, ours
}
