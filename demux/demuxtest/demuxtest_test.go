package demuxtest

import (
	"errors"
	"io"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandbed/sandbed/demux"
)

func TestReference(t *testing.T) {
	factory, done := newReference("")
	defer done()
	Run(t, factory)
}

// The faults of the reference, and the laws that each must break at least.
var faults = map[string][]string{
	"accepts anything":                   {"usage", "memoryBacked"},
	"charges what was read":              {"capError"},
	"counts twice":                       {"accounting"},
	"counts what was read as live":       {"accounting"},
	"cries at every try":                 {"spillFull"},
	"cuts at 32768":                      {"whole"},
	"cuts events of 65537":               {"whole"},
	"does not hear its context":          {"deadline"},
	"does not hear a Close":              {"pauseRelease"},
	"wedges at the bound":                {"fillDrain"},
	"drops a byte":                       {"oneReader", "iotest", "eager", "chunking", "storm"},
	"drops what is over":                 {"oneReader", "slowReader"},
	"ends in the middle":                 {"heapBound"},
	"ends on an empty event":             {"zero"},
	"ends once":                          {"whole"},
	"ends the other with one":            {"closeOne"},
	"ends what starves":                  {"spillFull", "backpressure"},
	"fails the backlog":                  {"oneReader"},
	"gives a block twice":                {"oneReader"},
	"gives the end with data":            {"whole"},
	"goes on after a bad block":          {"corrupt"},
	"goes on after its end":              {"whole"},
	"ignores the end of one stream":      {"streamEOF"},
	"keeps a long report":                {"ends"},
	"keeps a stall to itself":            {"backpressure"},
	"keeps event data":                   {"kept"},
	"keeps every gap":                    {"gaps"},
	"keeps the backlog of a closed sink": {"closeFull"},
	"keeps unknown events":               {"control"},
	"keeps what was read on disk":        {"freesDisk"},
	"leaks a descriptor":                 {"leaks"},
	"leaks a goroutine":                  {"leaks"},
	"leaves the source open":             {"closeBoth"},
	"lends a small buffer":               {"whole"},
	"lets one reader hang":               {"oneReader", "stopsReading"},
	"loses bytes at a deadline":          {"deadline"},
	"loses what a writer refused":        {"writeTo"},
	"marks gaps in the stream":           {"gaps"},
	"names its file":                     {"secret"},
	"reads the tail first":               {"heapBound"},
	"returns 0, nil":                     {"whole", "storm"},
	"spills at once":                     {"patience", "backpressure"},
	"takes a break for the end":          {"cutEverywhere"},
	"takes in all":                       {"window"},
	"tells a gap for ever":               {"strictGaps"},
	"trusts its file":                    {"corrupt"},
	"waits for ever after the exit":      {"exit"},
	"waits for every block":              {"patience"},
	"condemns for a silent stream":       {"patience"},
	"waits in each episode":              {"patience"},
	"waits in a Read of nothing":         {"zero"},
	"writes each event":                  {"heapBound"},
}

func lawNamed(t *testing.T, name string) law {
	for _, l := range laws {
		if l.name == name {
			return l
		}
	}
	t.Fatalf("no law is named %s", name)
	return law{}
}

func TestFaults(t *testing.T) {
	for fault, names := range faults {
		t.Run(fault, func(t *testing.T) {
			for _, name := range names {
				l := lawNamed(t, name)
				factory, done := newReference(fault)
				defer done()
				var err error
				if dir := t.TempDir(); l.real || fault == "leaks a goroutine" {
					err = l.judge(factory, dir, 20*time.Second)
				} else {
					synctest.Test(t, func(t *testing.T) { err = l.judge(factory, dir, forever) })
				}
				if err == nil {
					t.Errorf("the law %s did not notice", name)
				}
				t.Logf("%s: %.300v", name, err)
			}
		})
	}
	for _, l := range laws {
		if !slices.ContainsFunc(slices.Collect(maps.Values(faults)), func(names []string) bool { return slices.Contains(names, l.name) }) {
			t.Errorf("the law %s meets no faulty demultiplexer", l.name)
		}
	}
}

// Check is the suite without a testing.T.
func TestCheck(t *testing.T) {
	for fault, want := range map[string]string{"": "", "ends once": "whole"} {
		factory, done := newReference(fault)
		defer done()
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			found := Check(factory, dir, forever)
			if want == "" && len(found) > 0 || want != "" && !slices.ContainsFunc(found, func(f Finding) bool { return f.Law == want }) {
				t.Errorf("%q: found %v, want %q", fault, found, want)
			}
		})
	}
}

// A demultiplexer that has only readers is judged by what it has.
func TestPlain(t *testing.T) {
	factory, done := newReference("")
	defer done()
	plain := func(src demux.Source, o demux.Options) (Demux, error) {
		d, err := factory(src, o)
		if err != nil {
			return nil, err
		}
		return plainDemux{d}, nil
	}
	offered := 0
	for _, l := range laws {
		if l.real {
			continue
		}
		var err error
		dir := t.TempDir()
		synctest.Test(t, func(*testing.T) { err = l.judge(plain, dir, forever) })
		switch {
		case err == nil:
			offered++
		case !errors.Is(err, errNotOffered):
			t.Errorf("%s: %v", l.name, err)
		}
	}
	if offered < 12 || offered == len(laws) {
		t.Errorf("%d laws of %d were offered", offered, len(laws))
	}
}

// plainDemux hides all but the least.
type plainDemux struct{ d Demux }

func (p plainDemux) Sink(s demux.Stream) Sink { return struct{ io.ReadCloser }{p.d.Sink(s)} }
func (p plainDemux) Close() error             { return p.d.Close() }
