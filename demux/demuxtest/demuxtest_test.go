package demuxtest

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestReference(t *testing.T) {
	factory, done := newReference("")
	defer done()
	Run(t, factory)
}

// Every law that a faulty demultiplexer must break, and the laws that meet one.
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
	met := map[string]bool{}
	for fault, names := range faults {
		t.Run(fault, func(t *testing.T) {
			for _, name := range names {
				met[name] = true
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
		if !met[l.name] {
			t.Errorf("the law %s meets no faulty demultiplexer", l.name)
		}
	}
}
