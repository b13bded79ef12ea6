package demuxtest

import (
	"encoding/csv"
	"errors"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandbed/sandbed/demux"
)

var update = flag.Bool("update", false, "write the golden files")

func virtual(t *testing.T, f Factory, c Cell) Result {
	t.Helper()
	var r Result
	var err error
	synctest.Test(t, func(*testing.T) { r, err = VirtualExperiment(f, c) })
	if err != nil {
		t.Fatalf("%v: %v", c, err)
	}
	return r
}

var settingNames = func() []string {
	var names []string
	for _, s := range Settings("") {
		names = append(names, s.Name)
	}
	return names
}()

func cellKey(c Cell) string {
	return strings.Join([]string{c.Stdout.Name, c.Stderr.Name, c.Interleaving.Name}, ",")
}

// table reads a file of cells: stdout, stderr, interleaving, then the settings.
func table(t *testing.T, name string) map[string]string {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil || len(rows) < 2 || !slices.Equal(rows[0][3:], settingNames) {
		t.Fatalf("%s: no table of the settings %q: %v", name, settingNames, err)
	}
	cells := map[string]string{}
	for _, row := range rows[1:] {
		for i, cell := range row[3:] {
			cells[strings.Join(row[:3], ",")+","+settingNames[i]] = cell
		}
	}
	return cells
}

// The peaks of every cell of the experiment, in chunks, are those of
// testdata/peaks.csv, which differ from those that were derived on paper, in
// testdata/expected.csv, only where testdata/differences.csv says why.
func TestPeaks(t *testing.T) {
	got := map[string]string{}
	var order []string
	for _, c := range Cells(t.TempDir()) {
		r := virtual(t, New, c)
		key := cellKey(c)
		if !slices.Contains(order, key) {
			order = append(order, key)
		}
		text := r.String()
		if w := max(r.Wait[0], r.Wait[1]); w > 0 {
			text += " w " + w.String()
		}
		got[key+","+c.Setting.Name] = text

		lossless := c.Setting.Options.Policy != demux.CapError && !(c.Setting.Options.Policy == demux.Backpressure && (c.Stdout.Absent || c.Stderr.Absent || c.Stdout.Sequential || c.Stderr.Sequential))
		if cancelled := c.Stdout.Cancel || c.Stderr.Cancel; lossless && !cancelled && !r.Whole() {
			t.Errorf("%v: %v of %v bytes, then %v, stalled %v", c, r.Bytes, r.Total, r.End, r.Stalled)
		}
		if bound := int64(heapBound(c.Setting.Options)); c.Setting.Options.Policy != demux.Unbounded && c.Setting.Options.Policy != demux.CapError && r.HeapReserved > bound {
			t.Errorf("%v: HeapReserved %d, more than %d", c, r.HeapReserved, bound)
		}
		if bounded := c.Setting.Options.Policy == demux.Spill || c.Setting.Options.Policy == demux.Backpressure; bounded && max(r.PeakMem[0], r.PeakMem[1]) > 1 {
			t.Errorf("%v: peaks in memory of %v chunks, want at most MemPerSink, 1", c, r.PeakMem)
		}
	}
	if *update {
		var b strings.Builder
		b.WriteString("stdout,stderr,interleaving," + strings.Join(settingNames, ",") + "\n")
		for _, key := range order {
			b.WriteString(key)
			for _, s := range settingNames {
				b.WriteString("," + got[key+","+s])
			}
			b.WriteString("\n")
		}
		if err := os.WriteFile("testdata/peaks.csv", []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden := table(t, "peaks.csv")
	if len(golden) != len(got) {
		t.Errorf("%d cells in peaks.csv, %d ran", len(golden), len(got))
	}
	for _, key := range slices.Sorted(maps.Keys(got)) {
		if golden[key] != got[key] {
			t.Errorf("%s: got %q, want %q (go test -run TestPeaks -update, and read the diff)", key, got[key], golden[key])
		}
	}

	reasons := differences(t)
	expected := table(t, "expected.csv")
	for key, want := range expected {
		peaks, _, _ := strings.Cut(golden[key], " w ")
		if want == "ERR" || want == "STALL" {
			if i := strings.LastIndexByte(peaks, ' '); i >= 0 {
				peaks = peaks[i+1:]
			}
		}
		d, listed := reasons[key]
		delete(reasons, key)
		switch {
		case want == "" || peaks == want && !listed:
		case peaks == want:
			t.Errorf("%s: differences.csv lists it, and there is none", key)
		case !listed:
			t.Errorf("%s: got %q, expected %q, and differences.csv does not say why", key, peaks, want)
		case d[0] != want || d[1] != peaks:
			t.Errorf("%s: got %q, expected %q; differences.csv says %q and %q", key, peaks, want, d[1], d[0])
		}
	}
	for key := range reasons {
		t.Errorf("%s: in differences.csv and not in expected.csv", key)
	}
}

// differences reads differences.csv: expected and got by cell; every row has a
// reason that differences.txt explains.
func differences(t *testing.T) map[string][2]string {
	f, err := os.Open("testdata/differences.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	explained, err := os.ReadFile("testdata/differences.txt")
	if err != nil {
		t.Fatal(err)
	}
	m := map[string][2]string{}
	for _, row := range rows[1:] {
		if row[6] == "" || !strings.Contains(string(explained), "\n"+row[6]+"\n") {
			t.Errorf("%q: the reason is not explained in differences.txt", row)
		}
		m[strings.Join(row[:4], ",")] = [2]string{row[4], row[5]}
	}
	return m
}

// Without a clock the same cells give the same peaks, except those that need one.
func TestPeaksWithoutClock(t *testing.T) {
	golden := table(t, "peaks.csv")
	ran, clocked := 0, 0
	for _, c := range Cells(t.TempDir()) {
		r, err := Experiment(New, c)
		if errors.Is(err, ErrNeedsClock) {
			clocked++
			continue
		}
		if err != nil {
			t.Fatalf("%v: %v", c, err)
		}
		ran++
		want, _, _ := strings.Cut(golden[cellKey(c)+","+c.Setting.Name], " w ")
		if got := r.String(); got != want {
			t.Errorf("%v: got %q, want %q", c, got, want)
		}
	}
	t.Logf("%d cells ran, %d need a clock", ran, clocked)
	if ran == 0 || clocked > ran/10 {
		t.Errorf("%d cells ran and %d need a clock", ran, clocked)
	}
}

// What differences.txt claims.
func TestDifferences(t *testing.T) {
	order := map[string]Interleaving{}
	for _, i := range Interleavings() {
		order[i.Name] = i
	}
	for name, want := range map[string]int{"I2": 16, "I3": 15, "I4": 36, "I7": 17} { // memory-first
		spill := virtual(t, New, Cell{setting(t, "spill-p0"), order[name], Lag10, Lag10})
		unbounded := virtual(t, New, Cell{setting(t, "unbounded"), order[name], Lag10, Lag10})
		if a, b := max(spill.PeakTotal[0], spill.PeakTotal[1]), max(unbounded.PeakMem[0], unbounded.PeakMem[1]); a != want || b != want {
			t.Errorf("%s: the backlog peaks at %d chunks, unbounded at %d, want %d", name, a, b, want)
		}
	}

	each, done := newReference("waits in each episode") // one-patience
	defer done()
	good, done := newReference("")
	defer done()
	for _, c := range []struct {
		order          string
		stdout, stderr Cadence
		each           int // chunks of stderr on disk
	}{
		{"I1", Lag10, Bursty, 3}, {"I3", Lag10, Bursty, 9},
		{"I1", Prompt, Lag80, 18}, {"I2", Prompt, Lag80, 12}, {"I3", Prompt, Lag80, 28},
		{"I4", Prompt, Lag80, 4}, {"I5", Prompt, Lag80, 22}, {"I6", Prompt, Lag80, 22}, {"I7", Prompt, Lag80, 14},
	} {
		cell := Cell{setting(t, "spill"), order[c.order], c.stdout, c.stderr}
		if got := virtual(t, each, cell).PeakDisk[1]; got != c.each {
			t.Errorf("%v: waiting in each episode puts %d chunks on disk, want %d", cell, got, c.each)
		}
		if ref, got := virtual(t, good, cell).PeakDisk[1], virtual(t, New, cell).PeakDisk[1]; got != ref {
			t.Errorf("%v: the engine puts %d chunks on disk, the reference %d", cell, got, ref)
		}
	}
	for name, ticks := range map[string]time.Duration{"I1": 7, "I2": 7, "I3": 15, "I4": 7, "I5": 175, "I6": 175, "I7": 31} {
		c := Cell{setting(t, "backpressure"), order[name], Prompt, Lag80}
		if r := virtual(t, New, c); r.Wait[0] != (ticks+1)*10*time.Millisecond {
			t.Errorf("%v: the longest wait is %v, want one tick more than %d", c, r.Wait[0], ticks)
		}
		c.Setting = setting(t, "spill")
		if r := virtual(t, New, c); r.Wait[0] != c.Setting.Options.Patience {
			t.Errorf("%v: the longest wait is %v, want Patience", c, r.Wait[0])
		}
	}
}
