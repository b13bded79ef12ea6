package demuxtest

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sandbed/sandbed/demux"
)

func setting(t *testing.T, name string) Setting {
	for _, s := range Settings(t.TempDir()) {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("no setting is named %s", name)
	return Setting{}
}

// The two tests that the design this package replaces had to keep green: OOE forty
// times, one reader a turn behind, then the other. Every byte, no error.
func TestLaggingReaders(t *testing.T) {
	order := Interleaving{"OOE×40", strings.Repeat("OOE", 40)}
	for _, lag := range []Cadence{Yield, Lag1, Lag10} {
		for _, stdout := range []bool{false, true} {
			c := Cell{Interleaving: order, Stdout: Prompt, Stderr: lag}
			behind, peak := 1, 39 // of 40 chunks all but the first, which was handed over
			if stdout {
				c.Stdout, c.Stderr = lag, Prompt
				behind, peak = 0, 79
			}
			for _, name := range []string{"spill", "spill-p0", "eager", "backpressure", "unbounded"} {
				c.Setting = setting(t, name)
				r := virtual(t, New, c)
				if !r.Whole() {
					t.Errorf("%v: %v of %v bytes, then %v", c, r.Bytes, r.Total, r.End)
				}
				want := 1
				if name == "unbounded" {
					want = peak
				}
				if r.PeakMem[behind] != want {
					t.Errorf("%v: the peak of the lagging reader is %d chunks, want %d", c, r.PeakMem[behind], want)
				}
			}
			c.Setting = setting(t, "cap-8")
			r := virtual(t, New, c)
			var over *demux.OverCapError
			if !errors.As(r.End[behind], &over) || r.PeakMem[behind] != 9 || r.Bytes[behind] != Chunk {
				t.Errorf("%v: got %v after %d bytes with a peak of %d, want an OverCapError after one chunk with a peak of cap + 1",
					c, r.End[behind], r.Bytes[behind], r.PeakMem[behind])
			}
			if r.End[1-behind] != io.EOF || r.Bytes[1-behind] != r.Total[1-behind] {
				t.Errorf("%v: the prompt reader got %d of %d bytes, then %v", c, r.Bytes[1-behind], r.Total[1-behind], r.End[1-behind])
			}
		}
	}
}

// Peaks do not depend on the volume: 48, 480 and 4,800 chunks.
func TestVolumeIndependence(t *testing.T) {
	for _, name := range []string{"spill", "spill-p0", "eager", "backpressure"} {
		for _, i := range []int{1} { // OOE
			for _, p := range [][2]Cadence{{Prompt, Lag10}, {Lag10, Prompt}, {Lag10, Bursty}, {Prompt, Absent}} {
				if name == "backpressure" && p[1].Absent {
					continue
				}
				var first Result
				for _, times := range []int{1, 10, 100} {
					order := Interleavings()[i]
					order.Order = strings.Repeat(order.Order, times)
					c := Cell{setting(t, name), order, p[0], p[1]}
					r := virtual(t, New, c)
					if !r.Whole() {
						t.Errorf("%v ×%d: %v of %v bytes, then %v", c, times, r.Bytes, r.Total, r.End)
					}
					if times == 1 {
						first = r
						continue
					}
					if r.PeakMem != first.PeakMem || r.HeapReserved > first.HeapReserved {
						t.Errorf("%v ×%d: peaks in memory of %v chunks, %d bytes reserved; of 48 chunks %v and %d",
							c, times, r.PeakMem, r.HeapReserved, first.PeakMem, first.HeapReserved)
					}
				}
			}
		}
	}
}

// runningTotal is the first withdrawn design: what a sink holds is a running total,
// charged when a chunk is put in and credited when the sink is pulled. A pull
// stays under way until a chunk of its own comes, and whoever drives the source
// meanwhile puts in more; their reader takes each at once, and no pull is called.
type runningTotal struct {
	order       string
	total, live [2]int
	peak, held  [2]int // of total, and of what was really held when a chunk was put in
}

func (r *runningTotal) run() {
	pulls := []int{1, 0} // under way, in the order in which they were called
	for r.order != "" {
		driver := pulls[0]
		pulls = pulls[1:]
		for r.order != "" {
			s := int(streamOf(r.order[0]) - 1)
			r.order = r.order[1:]
			r.total[s]++
			r.live[s]++
			r.peak[s], r.held[s] = max(r.peak[s], r.total[s]), max(r.held[s], r.live[s])
			r.live[s]-- // its reader waits
			if s == driver {
				break
			}
		}
		r.total[driver] = 0 // its pull is over, and the next is called
		pulls = append(pulls, driver)
	}
}

// Of 2:1 the running total says 3 where 1 is held; of blocks, all of one.
func TestWithdrawnRunningTotal(t *testing.T) {
	for name, want := range map[string]int{"I1": 2, "I2": 3, "I4": 8, "I5": 24, "I8": 48} {
		for _, order := range Interleavings() {
			if order.Name != name {
				continue
			}
			r := &runningTotal{order: order.Order}
			r.run()
			if r.peak[0] != want || r.held[0] != 1 {
				t.Errorf("%s: the running total of stdout peaks at %d with %d held, want %d and 1", name, r.peak[0], r.held[0], want)
			}
			// What is derived from the positions is right.
			if got := virtual(t, New, Cell{setting(t, "unbounded"), order, Prompt, Prompt}); got.PeakMem[0] != 1 {
				t.Errorf("%s: the engine counts %d chunks, want 1", name, got.PeakMem[0])
			}
		}
	}
}

// The second withdrawn design fails only a sink that "took nothing yet" while n
// events were delivered. A reader that is merely a turn behind takes nothing for as
// long as the prompt one has something to read: no n tells it from an absent one.
func TestWithdrawnTookNothing(t *testing.T) {
	for _, n := range []int{100, 100_000} {
		order := Interleaving{"OE", "OE" + strings.Repeat("O", n-1) + "E"}
		longest := func(lag Cadence) (most int, r Result) {
			c := Cell{setting(t, "unbounded"), order, Prompt, lag}
			var err error
			synctest.Test(t, func(*testing.T) {
				l := newLockstep(c, true)
				var taken uint64
				none := 0
				l.onEvent = func(st demux.Stats) {
					if none++; st.Stderr.Read != taken {
						taken, none = st.Stderr.Read, 0
					}
					most = max(most, none)
				}
				r, err = l.run(New)
			})
			if err != nil {
				t.Fatal(err)
			}
			return most, r
		}
		lagging, r := longest(Lag1)
		absent, _ := longest(Absent)
		if !r.Whole() {
			t.Errorf("the lagging reader got %v of %v bytes, then %v", r.Bytes, r.Total, r.End)
		}
		if lagging < n || absent < n {
			t.Errorf("in %d events the lagging reader took nothing for %d, the absent one for %d; want both at least %d", len(order.Order), lagging, absent, n)
		}
	}
}
