package gen

import (
	"strconv"
	"time"
)

// Unit is the unit of time of operation lists. They run in virtual time, so that
// it costs nothing.
const Unit = time.Millisecond

// The clocks of a generated pool. Each differs from the sums of others, so that
// one with a wrong origin or length shows.
const (
	Wall     = 5 * Unit
	Grace    = 3 * Unit
	Liveness = 11 * Unit
	Cold     = 40 * Unit
)

// MaxOps is how many operations and starts of a list count.
const MaxOps = 20

// Op is one operation: what to do, and a number that it may take.
type Op struct {
	Name string
	N    int
}

// Act is what a run asks of its VM, and what the pool owes it when nobody interferes.
type Act struct {
	Name string
	// Script is in the language of pooltest.VM; %d is a number that tells this run from others.
	Script string
	Label  string // as enginetest and pool tests name outcomes
	// After is the time from the armed clock to the answer, exact in virtual time;
	// Deaf adds the wait for a kill that is ignored.
	After time.Duration
	Deaf  bool
	// Unarmed says that the clock is never armed, AtOnce that it is as soon as a worker has the run.
	Unarmed, AtOnce bool
}

var acts = []Act{
	{Name: "run/ok", Script: "start; finish; ok %d", Label: "ok", AtOnce: true},
	{Name: "run/slow", Script: "start; run 4ms; finish; ok %d", Label: "ok", After: 4 * Unit, AtOnce: true},
	{Name: "run/seed", Script: "seed 15ms; start; finish; ok %d", Label: "ok"},
	{Name: "run/copy", Script: "start; finish; run 30ms; ok %d", Label: "ok", After: 30 * Unit, AtOnce: true},
	{Name: "run/grace", Script: "start; run 7ms; finish; ok %d", Label: "ok", After: 7 * Unit, AtOnce: true},
	{Name: "run/all", Script: "seed 10ms; start; run 7ms; finish; run 9ms; ok %d", Label: "ok", After: 16 * Unit},
	{Name: "run/stale", Script: "stale; start; run 7ms; finish; ok %d", Label: "ok", After: 7 * Unit, AtOnce: true},
	{Name: "run/ahead", Script: "start 9ms; run 7ms; finish; ok %d", Label: "ok", After: 7 * Unit, AtOnce: true},
	{Name: "run/flood", Script: "flood 3; ok %d", Label: "ok", AtOnce: true},
	{Name: "run/error", Script: "start; class error", Label: "error", AtOnce: true},
	{Name: "run/memory", Script: "start; class limit memory", Label: "limit:memory", AtOnce: true},
	{Name: "run/spin", Script: "start; run 1h", Label: "limit:wallClock", After: Wall + Grace, AtOnce: true},
	{Name: "run/spinseed", Script: "seed 12ms; start; run 1h", Label: "limit:wallClock", After: Wall + Grace},
	{Name: "run/late", Script: "late 1ms; start; run 1h", Label: "limit:wallClock", After: Wall + Grace + Unit, AtOnce: true},
	{Name: "run/deaf", Script: "start; ignore 90ms; finish; ok %d", Label: "limit:wallClock", After: Wall + Grace, Deaf: true, AtOnce: true},
	{Name: "run/unstarted", Script: "seed 1h", Label: "startup:start", Unarmed: true},
	{Name: "run/deafseed", Script: "ignore 90ms", Label: "startup:start", Unarmed: true, Deaf: true},
	{Name: "run/fault", Script: "start; fault", Label: "engineFault", AtOnce: true},
	{Name: "run/panic", Script: "start; run 2ms; panic", Label: "engineFault", After: 2 * Unit, AtOnce: true},
	{Name: "run/exit", Script: "exit", Label: "startup:start", Unarmed: true},
	{Name: "run/exitlate", Script: "start; finish; run 1ms; exit", Label: "engineFault", After: Unit, AtOnce: true},
	{Name: "run/liar", Script: "start; class canceled", Label: "engineFault", AtOnce: true},
	{Name: "run/forged", Script: "start; class limit nothing", Label: "engineFault", AtOnce: true},
	{Name: "run/unknown", Script: "start; class mystery", Label: "engineFault", AtOnce: true},
}

// poolOps are the operations besides runs, and the most that their number may be.
var poolOps = []struct {
	name string
	most int
}{
	{"wait", 60},   // let so many units pass
	{"cancel", 15}, // end the context of the run that many runs ago
	{"soon", 30},   // end the context of the last run in so many units
	{"warm", 60},   // Warm, with a context that ends after so many units
	{"stats", 0},
	{"drain", 60}, // Drain, the same
	{"close", 0},
}

// settings of the pool.
var settings = []struct {
	name string
	most int
}{
	{"count", 4}, {"spare", 3}, {"queue", 6}, {"killwait", 6},
}

// starts say how a worker starts, one a word; fails marks those that fail.
var starts = []struct {
	name, script string
	fails        bool
}{
	{"start/ok", "", false},
	{"start/slow", "run 35ms", false},
	{"start/never", "run 90ms", true},
	{"start/deaf", "ignore 90ms", true},
	{"start/error", "error", true},
	{"start/panic", "panic", true},
	{"start/exit", "exit", true},
	{"start/nil", "nil", true},
}

var poolVocabulary = func() *vocabulary {
	var n []string
	for _, a := range acts {
		n = append(n, a.Name)
	}
	for _, o := range poolOps {
		n = append(n, o.name)
	}
	for _, s := range settings {
		n = append(n, s.name)
	}
	for _, s := range starts {
		n = append(n, s.name)
	}
	return newVocabulary(n)
}()

// PoolNames are the names of all productions of operation lists.
func PoolNames() []string { return poolVocabulary.names }

// PoolList is a pool and what is done to it.
type PoolList struct {
	Count    int // 1 to 4
	Spare    int
	MaxQueue int           // 0: no bound
	KillWait time.Duration // at least 2 units, so that only an ignored kill meets it
	// Starts say how each worker starts, in the language of pooltest.NewVM; after
	// them all start at once. Failing counts those that fail.
	Starts  []string
	Failing int
	Ops     []Op
	Words   []string
}

// Document is the document of l, in names.
func (l *PoolList) Document() []byte { return Join(l.Words...) }

// Act is the run that op asks for, if it asks for one.
func (op Op) Act() (Act, bool) {
	if i, ok := poolVocabulary.index[op.Name]; ok && i < len(acts) {
		return acts[i], true
	}
	return Act{}, false
}

// maxArgument is the largest number that a word can carry.
const maxArgument = 99

// Pool decodes a document to an operation list: words of the form name or
// name:number. Settings and starts may stand anywhere.
func Pool(data []byte) (*PoolList, error) {
	words, err := Split(data)
	if err != nil {
		return nil, err
	}
	l := &PoolList{Count: 1, KillWait: 2 * Unit}
	r := &reader{words: words}
	for r.more() && len(l.Ops)+len(l.Starts) < MaxOps {
		i, n := r.argument(poolVocabulary, maxArgument)
		name := poolVocabulary.names[i]
		means := func(most int) int { // the number as it counts, also in the document
			n %= most + 1
			r.canon[len(r.canon)-1] = name
			if most > 0 {
				r.canon[len(r.canon)-1] += ":" + strconv.Itoa(n)
			}
			return n
		}
		if i < len(acts) {
			l.Ops = append(l.Ops, Op{name, means(0)})
			continue
		}
		i -= len(acts)
		if i < len(poolOps) {
			l.Ops = append(l.Ops, Op{name, means(poolOps[i].most)})
			continue
		}
		i -= len(poolOps)
		if i < len(settings) {
			l.set(name, means(settings[i].most))
			continue
		}
		means(0)
		s := starts[i-len(settings)]
		l.Starts = append(l.Starts, s.script)
		if s.fails {
			l.Failing++
		}
	}
	if len(l.Starts) > 0 {
		l.Starts = append(l.Starts, "")
	}
	l.Words = r.canon
	return l, nil
}

func (l *PoolList) set(name string, n int) {
	switch name {
	case "count":
		l.Count = max(n, 1)
	case "spare":
		l.Spare = n
	case "queue":
		l.MaxQueue = n
	case "killwait":
		l.KillWait = time.Duration(max(n, 2)) * Unit
	}
}
