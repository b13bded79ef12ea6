package bench

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/demux"
	"github.com/sandbed/sandbed/demux/demuxtest"
)

// What splitting the output of a process takes: exact peaks in lock-step, and
// time against plain copying. No sandbox takes part.

// demux measures both.
func (m *meter) demux() error {
	dir, err := os.MkdirTemp(spillDir(), "sandbed-spill-")
	if err != nil {
		return fmt.Errorf("bench: a directory for spill files: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := m.demuxPeaks(dir); err != nil {
		return err
	}
	return m.demuxSpeed(dir)
}

// spillDir is where a Demux spills unless told otherwise.
func spillDir() string {
	if dir := os.Getenv("DEMUX_SPILL_DIR"); dir != "" {
		return dir
	}
	if info, err := os.Stat("/var/tmp"); err == nil && info.IsDir() {
		return "/var/tmp"
	}
	return os.TempDir()
}

// demuxPeaks is the experiment in lock-step: 48 chunks, stdout read as they come,
// stderr by a reader that lags or by none.
func (m *meter) demuxPeaks(dir string) error {
	for _, stderr := range []demuxtest.Cadence{demuxtest.Absent, demuxtest.Lag10} {
		for _, setting := range demuxtest.Settings(dir) {
			for _, order := range demuxtest.Interleavings() {
				cell := demuxtest.Cell{Setting: setting, Interleaving: order, Stdout: demuxtest.Prompt, Stderr: stderr}
				m.progress("demux %v", cell)
				r, err := demuxtest.Experiment(demuxtest.New, cell)
				if err != nil {
					return fmt.Errorf("bench: demux: %w", err)
				}
				end := "whole"
				switch {
				case r.Stalled:
					end = "stalled"
				case !r.Whole():
					end = "failed"
				}
				if setting.Options.Policy == demux.Spill && (end != "whole" || r.PeakMem[0] > 1 || r.PeakMem[1] > 1) {
					m.broken("demux: %v: %v, ended %v, %v", cell, r, r.End[0], r.End[1])
				}
				for _, f := range []struct {
					figure string
					chunks int
				}{{"memory", r.PeakMem[0] + r.PeakMem[1]}, {"disk", r.PeakDisk[0] + r.PeakDisk[1]}} {
					name := fmt.Sprintf("demux/policy=%s/order=%s/stderr=%s/figure=%s", setting.Name, order.Name, stderr.Name, f.figure)
					s := sample.NewExact(name, sample.Bytes, float64(f.chunks*demuxtest.Chunk), 1)
					s.Config = map[string]string{"chunk": fmt.Sprint(demuxtest.Chunk), "end": end}
					m.add(s)
				}
			}
		}
	}
	return nil
}

// touch is a writer that reads one byte of every cache line.
type touch struct {
	n   int64
	sum byte
}

func (w *touch) Write(p []byte) (int, error) {
	w.n += int64(len(p))
	for i := 0; i < len(p); i += 64 {
		w.sum += p[i]
	}
	return len(p), nil
}

// dockerFrames is about total bytes in frames of a size; of says whose the i-th is.
func dockerFrames(size, total int, of func(i int) demux.Stream) []byte {
	payload := make([]byte, size)
	for i := range payload {
		payload[i] = byte(i * 7)
	}
	b := make([]byte, 0, total+total/size*8+size)
	for i := 0; len(b) < total; i++ {
		b = append(b, byte(of(i)), 0, 0, 0)
		b = binary.BigEndian.AppendUint32(b, uint32(size))
		b = append(b, payload...)
	}
	return b
}

func inTurn(i int) demux.Stream     { return demux.Stdout + demux.Stream(i&1) }
func alwaysStderr(int) demux.Stream { return demux.Stderr }
func bare(b []byte) io.Reader       { return struct{ io.Reader }{bytes.NewReader(b)} } // no WriteTo
func copyAll(w io.Writer, r io.Reader) error {
	_, err := io.CopyBuffer(struct{ io.Writer }{w}, r, make([]byte, 64<<10))
	return err
}

// demuxSpeed times the demux against io.Copy of the same bytes from the same kind of
// source, in turn.
func (m *meter) demuxSpeed(dir string) error {
	big := dockerFrames(32<<10, m.times(16, 64)<<20, inTurn)
	small := dockerFrames(64, m.times(1, 8)<<20, inTurn)
	absent := dockerFrames(32<<10, m.times(16, 256)<<20, alwaysStderr)
	both := func(d *demux.Demux) error {
		var errs [2]error
		var wg sync.WaitGroup
		for i, s := range []demux.Stream{demux.Stdout, demux.Stderr} {
			wg.Go(func() { _, errs[i] = io.Copy(&touch{}, d.Sink(s)) })
		}
		wg.Wait()
		return errors.Join(errs[:]...)
	}
	spill := demux.DefaultOptions()
	spill.SpillDir, spill.Patience, spill.AllowMemoryBacked = dir, 0, true // the row names the file system
	for _, c := range []struct {
		name   string
		data   []byte
		pipe   bool
		into   func() (io.Writer, func(), error) // of io.Copy; nil is a touch
		o      demux.Options
		read   func(*demux.Demux) error
		config map[string]string
	}{
		{name: "source=memory/frame=32768", data: big, read: both},
		{name: "source=pipe/frame=32768", data: big, pipe: true, read: both},
		{name: "source=memory/frame=64", data: small, read: both},
		{name: "source=memory/frame=32768/stderr=closed", data: big, read: func(d *demux.Demux) error {
			d.Stderr().Close()
			_, err := io.Copy(&touch{}, d.Stdout())
			return err
		}},
		{name: "source=memory/frame=32768/stderr=absent", data: absent, o: spill, config: map[string]string{"file_system": fileSystem(dir)},
			into: func() (io.Writer, func(), error) {
				f, err := os.CreateTemp(dir, "copy-")
				if err != nil {
					return nil, nil, err
				}
				return f, func() { f.Close(); os.Remove(f.Name()) }, nil
			},
			read: func(d *demux.Demux) error { // ends when all of stderr is on disk
				_, err := io.Copy(&touch{}, d.Stdout())
				return err
			}},
	} {
		m.progress("demux %s", c.name)
		if c.o.MemPerSink == 0 {
			c.o = demux.DefaultOptions()
			c.o.Policy = demux.Backpressure // nothing is to be spilled here
		}
		source := func() (io.Reader, func()) { return bare(c.data), func() {} }
		if c.pipe {
			source = func() (io.Reader, func()) { return piped(c.data) }
		}
		split := func() (time.Duration, error) {
			r, end := source()
			defer end()
			begun := time.Now()
			d, err := demux.New(demux.FromDocker(r), c.o)
			if err != nil {
				return 0, err
			}
			err = c.read(d)
			took := time.Since(begun)
			if err == nil && d.Stats().SourceBytes != uint64(payloadBytes(c.data)) {
				err = &WrongAnswer{"demux/" + c.name, fmt.Errorf("%d bytes came out of %d", d.Stats().SourceBytes, payloadBytes(c.data))}
			}
			return took, errors.Join(err, d.Close())
		}
		plain := func() (time.Duration, error) {
			var w io.Writer = &touch{}
			if c.into != nil {
				f, end, err := c.into()
				if err != nil {
					return 0, err
				}
				defer end()
				w = f
			}
			r, end := source()
			defer end()
			begun := time.Now()
			err := copyAll(w, r)
			return time.Since(begun), err
		}
		var ratios []float64
		for round := range m.times(5, 21) {
			arms := []func() (time.Duration, error){split, plain}
			var took [2]time.Duration
			for k := range arms {
				arm := (round + k) % 2
				t, err := arms[arm]()
				if err != nil {
					return fmt.Errorf("bench: demux/%s: %w", c.name, err)
				}
				took[arm] = t
			}
			if round > 0 { // the first faults pages in
				ratios = append(ratios, took[0].Seconds()/took[1].Seconds())
			}
		}
		s := sample.New("demux/"+c.name+"/figure=cost", sample.Ratio, ratios)
		s.Config = map[string]string{"of": "time to io.Copy's of the same bytes", "bytes": fmt.Sprint(len(c.data))}
		for k, v := range c.config {
			s.Config[k] = v
		}
		s.Warnings = spreadWarning(ratios)
		m.add(s)
	}
	return nil
}

// payloadBytes is what the frames of b hold.
func payloadBytes(b []byte) (n int) {
	for len(b) > 0 {
		size := int(binary.BigEndian.Uint32(b[4:]))
		n += size
		b = b[8+size:]
	}
	return n
}

// piped is b out of a kernel pipe.
func piped(b []byte) (io.Reader, func()) {
	r, w, err := os.Pipe()
	if err != nil {
		return errReader{err}, func() {}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Write(b)
		w.Close()
	}()
	return struct{ io.Reader }{r}, func() {
		r.Close() // ends the writer, if nobody has read it to its end
		<-done
	}
}

type errReader struct{ err error }

func (e errReader) Read([]byte) (int, error) { return 0, e.err }
