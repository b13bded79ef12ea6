package properties

import (
	"fmt"
	"io"
	"math/rand"
	"os"
	"strings"
	"testing"

	"github.com/leanovate/gopter/gen"

	"github.com/sandbed/sandbed/demux/demuxtest"
)

// spillDir is a directory for spill files; one in memory, where there is one, since
// thousands are opened and what is on disk is other tests' business.
func spillDir(t *testing.T) string {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		if dir, err := os.MkdirTemp("/dev/shm", "properties-"); err == nil {
			t.Cleanup(func() {
				if err := os.RemoveAll(dir); err != nil {
					t.Error(err)
				}
			})
			return dir
		}
	}
	return t.TempDir()
}

// P7: whatever is done to a demultiplexer, each byte comes once, in order and to its
// own reader, the books balance, and what is in memory stays within its bound.
func TestP7BytesAreConserved(t *testing.T) {
	dir := spillDir(t)
	hold(t, 1500, 160, forAll(gen.SliceOf(gen.UInt8()), func(b []byte) error {
		s := demuxtest.DecodeSchedule(b, dir)
		err := bubble(t, func() error { return s.Run(demuxtest.New) })
		if err != nil {
			return fmt.Errorf("%w\nbytes %x\n%v", err, b, s)
		}
		return nil
	}))
}

// cell is an order of chunks and how its two readers behave.
type cell struct {
	Order    string
	Policy   int
	Cadences [2]int
	Stdout   bool // who is the only one, or the one that is judged
}

func drawCell(r *rand.Rand) cell {
	var b strings.Builder
	for n := 1 + r.Intn(60); n > 0; {
		run := min(n, 1+r.Intn(1<<r.Intn(5)))
		b.WriteString(strings.Repeat(oneOf(r, "O", "E"), run))
		n -= run
	}
	return cell{b.String(), r.Intn(5), [2]int{r.Intn(8), r.Intn(8)}, r.Intn(2) == 0}
}

// lagging are the cadences of readers that read to the end, each in its own time.
var lagging = []demuxtest.Cadence{demuxtest.Prompt, demuxtest.Yield, demuxtest.Lag1, demuxtest.Lag10, demuxtest.Lag50, demuxtest.Lag80, demuxtest.Bursty, demuxtest.Tiny}

// setting is the policy of a cell, of those that are meant to be used.
func (c cell) setting(dir string, names ...string) demuxtest.Setting {
	name := names[c.Policy%len(names)]
	for _, s := range demuxtest.Settings(dir) {
		if s.Name == name {
			return s
		}
	}
	panic("properties: there is no setting " + name)
}

// run runs the cell with these readers, in virtual time.
func (c cell) run(t *testing.T, s demuxtest.Setting, stdout, stderr demuxtest.Cadence) (r demuxtest.Result, err error) {
	err = bubble(t, func() (err error) {
		r, err = demuxtest.VirtualExperiment(demuxtest.New, demuxtest.Cell{
			Setting: s, Interleaving: demuxtest.Interleaving{Name: "drawn", Order: c.Order}, Stdout: stdout, Stderr: stderr})
		return err
	})
	return r, err
}

// P8: a reader of one stream gets all of it, though nobody ever reads the other.
func TestP8OneReaderFinishes(t *testing.T) {
	dir := spillDir(t)
	hold(t, 700, 10, forAll(draw(drawCell), func(c cell) error {
		s := c.setting(dir, "spill", "spill-p0", "eager", "unbounded")
		readers, i := [2]demuxtest.Cadence{demuxtest.Absent, demuxtest.Absent}, 1
		if c.Stdout {
			i = 0
		}
		readers[i] = lagging[c.Cadences[i]]
		r, err := c.run(t, s, readers[0], readers[1])
		if err != nil {
			return err
		}
		if r.Stalled || r.Bytes[i] != r.Total[i] || r.End[i] != io.EOF {
			return fmt.Errorf("%s, the only reader is %s: got %d of %d bytes, then %v, stalled %v", s.Name, readers[i].Name, r.Bytes[i], r.Total[i], r.End[i], r.Stalled)
		}
		if s.Name != "unbounded" && (r.PeakMem[0] > 1 || r.PeakMem[1] > 1) {
			return fmt.Errorf("%s: peaks in memory of %v chunks, want at most 1", s.Name, r.PeakMem)
		}
		return nil
	}))
}

// P9: a reader that reads on, however slowly, gets every byte and no error.
func TestP9SlowReadersAreNotFailed(t *testing.T) {
	dir := spillDir(t)
	hold(t, 700, 10, forAll(draw(drawCell), func(c cell) error {
		s := c.setting(dir, "spill", "spill-p0", "eager", "unbounded", "backpressure")
		stdout, stderr := lagging[c.Cadences[0]], lagging[c.Cadences[1]]
		r, err := c.run(t, s, stdout, stderr)
		if err != nil {
			return err
		}
		if !r.Whole() {
			return fmt.Errorf("%s, %s and %s: got %v of %v bytes, then %v, stalled %v", s.Name, stdout.Name, stderr.Name, r.Bytes, r.Total, r.End, r.Stalled)
		}
		return nil
	}))
}
