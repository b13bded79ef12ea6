package enginetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/sandbed/sandbed/engine"
)

// Factory makes a backend for the suite, which closes it. It is called again
// whenever a backend was lost (it hung, panicked or came back unclean) and for
// laws that need one of their own while the first is open: closing one must not
// close another.
type Factory func(ctx context.Context) (engine.Backend, error)

// ImageVerifier is what a backend may offer beside [engine.Backend]:
// VerifyImage compares the memory, globals and stack of every VM it holds, byte
// for byte, with the boot image, and the error names the first difference. It is
// called while nothing runs, after every case. A backend that does not implement
// it gets the law "image" marked not offered, which is not the same as held.
type ImageVerifier interface {
	VerifyImage(ctx context.Context) error
}

// The defaults of Options.
const (
	DefaultGrace     = 250 * time.Millisecond
	DefaultHangAfter = 10 * time.Second
)

// Options of a check. The zero value means the defaults.
type Options struct {
	// Cases is the corpus; nil means [Cases].
	Cases []Case
	// CasesOnly leaves out the laws that have scripts of their own, for a corpus
	// of the caller's.
	CasesOnly bool
	// Scale multiplies every wall clock and the grace, for slow machines: a
	// calibration gives it. Default 1, at least 1.
	Scale float64
	// Grace is how long after its wall clock a run must be back, restored.
	// Default 250 ms. A run that is late is tried again and counts only if it is
	// late three times of three.
	Grace time.Duration
	// HangAfter is added to wall clock and grace before a run that is not back
	// is given up: a bound for detecting hangs, not for judging speed. Default 10 s.
	HangAfter time.Duration
	// OnCase, if set, is called after every case, OnLaw after every law of its
	// own (not after those that bind every run), both on the checking goroutine.
	OnCase func(Record, []Finding)
	OnLaw  func(LawResult)
}

func (o Options) withDefaults() Options {
	if o.Cases == nil {
		o.Cases = Cases()
	}
	o.Scale = max(o.Scale, 1)
	if o.Grace == 0 {
		o.Grace = DefaultGrace
	}
	o.Grace = time.Duration(float64(o.Grace) * o.Scale)
	if o.HangAfter == 0 {
		o.HangAfter = DefaultHangAfter
	}
	return o
}

// Finding is one breach of a law.
type Finding struct {
	Law    string // the name of the law, as in [Laws]
	Case   string // the case or the script within the law
	Detail string // what was seen and what was wanted; script text is quoted and cut
}

func (f Finding) String() string { return fmt.Sprintf("%s: %s: %s", f.Law, f.Case, f.Detail) }

// Record is what came of one case.
type Record struct {
	ID       string   `json:"id"`
	Class    string   `json:"class"` // what came: the label, or "none" when nothing came back
	Expected string   `json:"expected"`
	AnyOf    []string `json:"any_of"`
	// Pass is true when the case broke no law, Exact when besides the class is
	// the expected one with the expected value.
	Pass  bool `json:"pass"`
	Exact bool `json:"exact"`
	// OverrunNs is how long after its wall clock the run came back, zero if in time.
	OverrunNs       int64 `json:"overrun_ns"`
	MemoryPeakBytes int64 `json:"memory_peak_bytes"`
	// CleanAfter is true when the next 1+1 was 2, at its usual fuel, and the
	// memory was equal to the image where that can be asked.
	CleanAfter bool `json:"clean_after"`
}

// Status says what came of a law.
type Status string

// The statuses.
const (
	Held       Status = "held"
	Broken     Status = "broken"
	NotOffered Status = "not offered" // the backend lacks what the law is about; never counted as held
)

// LawResult is what came of one law.
type LawResult struct {
	Name, Sentence string
	Status         Status
	// Notes say why a law is not offered, or which of its parts proved nothing here.
	Notes    []string
	Findings []Finding
}

// Report is what came of a check.
type Report struct {
	Records  []Record
	Laws     []LawResult
	Findings []Finding
}

// Check puts a backend through every case and every law and returns the
// breaches; none means that it conforms in all that it offers.
func Check(ctx context.Context, f Factory, o Options) []Finding {
	return Examine(ctx, f, o).Findings
}

// Examine is [Check] with the whole report: a record a case, a result a law.
// A context that ends stops it after the current run, with a finding that says so.
func Examine(ctx context.Context, f Factory, o Options) Report {
	s := newSuite(ctx, f, o)
	defer s.close()
	if len(s.o.Cases) == 0 {
		s.scope("suite").add("suite", "%v", ErrNoCases)
	}
	for _, c := range s.o.Cases {
		if s.stopped() {
			break
		}
		record, findings := s.runCase(c)
		if s.o.OnCase != nil {
			s.o.OnCase(record, findings)
		}
	}
	for _, l := range laws {
		if l.check == nil || s.o.CasesOnly {
			continue
		}
		if s.stopped() {
			break
		}
		result := s.runLaw(l)
		if s.o.OnLaw != nil {
			s.o.OnLaw(result)
		}
	}
	return s.report()
}

// suite is one check under way. It belongs to one goroutine.
type suite struct {
	ctx     context.Context
	factory Factory
	o       Options

	backend   engine.Backend // nil until needed, and after one was lost
	dead      bool           // the factory failed: nothing more can be learned
	metered   bool           // fuel was reported at least once
	measured  bool           // a memory peak was reported at least once
	cleanFuel int64          // of 1+1, once known

	records  []Record
	findings []Finding
	notes    map[string][]string
	offered  map[string]bool // laws that depend on an offer: what the backend offers
	broken   map[string]bool
}

func newSuite(ctx context.Context, f Factory, o Options) *suite {
	return &suite{ctx: ctx, factory: f, o: o.withDefaults(),
		notes: map[string][]string{}, offered: map[string]bool{}, broken: map[string]bool{}}
}

// stopped reports, as a finding once, that the check cannot go on.
func (s *suite) stopped() bool {
	if s.dead {
		return true
	}
	if err := context.Cause(s.ctx); err != nil {
		s.scope("suite").add("suite", "stopped before the end: %v", err)
		s.dead = true
	}
	return s.dead
}

func (s *suite) close() {
	if s.backend != nil {
		s.discard(s.scope("suite"))
	}
}

func (s *suite) report() Report {
	r := Report{Records: s.records, Findings: s.findings}
	for _, l := range laws {
		if l.check == nil || !s.o.CasesOnly {
			r.Laws = append(r.Laws, s.result(l))
		}
	}
	return r
}

func (s *suite) result(l Law) LawResult {
	r := LawResult{Name: l.Name, Sentence: l.Sentence, Status: Held, Notes: s.notes[l.Name]}
	for _, f := range s.findings {
		if f.Law == l.Name {
			r.Findings = append(r.Findings, f)
		}
	}
	offered, asked := s.offered[l.Name]
	lack := func(why string) { r.Status, r.Notes = NotOffered, append(r.Notes, why) }
	switch {
	case s.broken[l.Name]:
		r.Status = Broken
	case asked && !offered:
		r.Status = NotOffered
	case meteredLaws[l.Name] && !s.metered:
		lack("the backend reported no fuel in any run: it does not meter")
	case l.Name == "fits" && !s.measured:
		lack("the backend reported no memory peak in any run: it does not measure")
	}
	return r
}

// scope collects the findings of one case or law.
type scope struct {
	s        *suite
	name     string
	findings []Finding
}

func (s *suite) scope(name string) *scope { return &scope{s: s, name: name} }

func (sc *scope) add(law, format string, args ...any) {
	f := Finding{Law: law, Case: sc.name, Detail: fmt.Sprintf(format, args...)}
	if slices.Contains(sc.s.findings, f) {
		return
	}
	sc.findings = append(sc.findings, f)
	sc.s.findings = append(sc.s.findings, f)
	sc.s.broken[law] = true
}

// offer says whether the backend has what a law is about; once yes, always yes.
func (s *suite) offer(law string, yes bool, why string) {
	s.offered[law] = s.offered[law] || yes
	if !yes {
		s.note(law, "%s", why)
	}
}

func (s *suite) note(law, format string, args ...any) {
	n := fmt.Sprintf(format, args...)
	if !slices.Contains(s.notes[law], n) {
		s.notes[law] = append(s.notes[law], n)
	}
}

// ready gives the backend, a new one if the last was lost.
func (s *suite) ready(sc *scope) engine.Backend {
	if s.backend != nil || s.dead {
		return s.backend
	}
	b, err := s.factory(s.ctx)
	if err == nil && b == nil {
		err = errors.New("no backend")
	}
	if err != nil {
		sc.add("suite", "the factory failed: %v", err)
		s.dead = true
		return nil
	}
	s.backend = b
	return b
}

// discard closes the backend; the next run gets another.
func (s *suite) discard(sc *scope) {
	b := s.backend
	s.backend = nil
	s.closeBackend(sc, b)
}

func (s *suite) closeBackend(sc *scope, b engine.Backend) {
	done := make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- fmt.Errorf("panic: %v", p)
			}
		}()
		done <- b.Close()
	}()
	t := time.NewTimer(s.o.HangAfter)
	defer t.Stop()
	select {
	case err := <-done:
		if err != nil {
			sc.add("close", "Close: %v", err)
		}
	case <-t.C:
		sc.add("close", "Close had not returned after %v", s.o.HangAfter)
	}
}

// run is what came of one evaluation.
type run struct {
	out   engine.Outcome
	err   error // of Run, or a typed failure of the policy
	label string
	lost  bool // hung or panicked: there is no outcome

	called, returned  time.Time
	armed, finished   time.Time
	overrun           time.Duration
	starts, finishes  int
	finishBeforeStart bool
}

// value is the value as one comparable text.
func (r run) value() string {
	if r.out.Value == nil {
		return "absent"
	}
	return string(compact(r.out.Value))
}

// evaluator runs a request: a backend's Run, or one behind the policy.
type evaluator func(ctx context.Context, r engine.Request) (engine.Outcome, error)

// eval runs r on the suite's backend and holds it against the laws that bind
// every run. A late run is repeated: lateness counts three times of three.
func (sc *scope) eval(ctx context.Context, r engine.Request) run {
	b := sc.s.ready(sc)
	if b == nil {
		return run{lost: true, label: "none"}
	}
	return sc.evalOn(ctx, b.Run, r)
}

func (sc *scope) evalOn(ctx context.Context, eval evaluator, r engine.Request) run {
	const tries = 3
	first := sc.once(ctx, eval, r)
	got := first
	for n := 1; got.overrun > sc.s.o.Grace && !got.lost && ctx.Err() == nil; n++ {
		if n == tries {
			sc.add("stops", "back %v after its wall clock of %v, with a grace of %v, the last of %d tries that were all late",
				got.overrun, r.Limits.WithDefaults().WallClock, sc.s.o.Grace, tries)
			break
		}
		got = sc.once(ctx, eval, r)
	}
	return first
}

// errHung is the cause that a hung run is cancelled with.
var errHung = errors.New("enginetest: the run did not come back")

func (sc *scope) once(ctx context.Context, eval evaluator, r engine.Request) run {
	s := sc.s
	limits := r.Limits.WithDefaults()
	var (
		mu  sync.Mutex // the hooks run on the evaluating goroutine
		got run
	)
	r.OnScriptStart = func(t time.Time) {
		mu.Lock()
		defer mu.Unlock()
		got.starts, got.armed = got.starts+1, t
	}
	r.OnFinished = func(t time.Time) {
		mu.Lock()
		defer mu.Unlock()
		got.finishBeforeStart = got.finishBeforeStart || got.starts == 0
		got.finishes, got.finished = got.finishes+1, t
	}
	type answer struct {
		out engine.Outcome
		err error
		at  time.Time
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		done      = make(chan answer, 1)
		panicked  = make(chan any, 1)
		goroutine = make(chan string, 1)
		called    = time.Now()
	)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				panicked <- p
			}
		}()
		goroutine <- goroutineID()
		out, err := eval(ctx, r)
		done <- answer{out, err, time.Now()}
	}()
	hang := time.NewTimer(limits.WallClock + s.o.Grace + s.o.HangAfter)
	defer hang.Stop()
	lost := func(law, format string, args ...any) run {
		sc.add(law, format, args...)
		if s.backend != nil {
			s.discard(sc)
		}
		return run{lost: true, label: "none"}
	}
	select {
	case a := <-done:
		mu.Lock()
		defer mu.Unlock()
		got.out, got.err, got.called, got.returned = a.out, a.err, called, a.at
	case p := <-panicked:
		return lost("panics", "the backend panicked: %s", quote(fmt.Sprint(p)))
	case <-hang.C:
		cancel(errHung)
		return lost("returns", "not back %v after its wall clock of %v; its goroutine %s was left behind",
			s.o.Grace+s.o.HangAfter, limits.WallClock, <-goroutine)
	}
	got.label = labelOf(got.out, got.err)
	from := got.armed
	if got.starts == 0 {
		from = got.returned // no script, no clock
	}
	got.overrun = max(0, got.returned.Sub(from)-limits.WallClock)
	sc.universal(r, got)
	return got
}

// goroutineID is the number of the running goroutine, to name one that is left behind.
func goroutineID() string {
	var buf [64]byte
	head := buf[:runtime.Stack(buf[:], false)]
	if f := bytes.Fields(head); len(f) > 1 {
		return string(f[1])
	}
	return "unknown"
}

// maxText bounds Message and JSStack, in bytes.
const maxText = 4 << 10

const wasmPage = 64 << 10

// universal holds one run against the laws that bind every run.
func (sc *scope) universal(r engine.Request, got run) {
	s := sc.s
	o, l := got.out, r.Limits.WithDefaults()
	if got.err != nil {
		return // the host's fault, or a refusal of the policy: the caller judges it
	}
	switch o.Class {
	case engine.ClassOK, engine.ClassScriptError, engine.ClassResultNotSerializable, engine.ClassLimit, engine.ClassInputTooLarge, engine.ClassEngineFault, engine.ClassCanceled:
	default:
		sc.add("sound", "class %q is none of the contract's", o.Class)
	}
	switch o.Guard {
	case engine.WallClock, engine.Fuel, engine.Memory, engine.Stack, engine.Output:
		if o.Class != engine.ClassLimit {
			sc.add("sound", "guard %q with class %q", o.Guard, o.Class)
		}
	default:
		if o.Guard != "" || o.Class == engine.ClassLimit {
			sc.add("sound", "class %q with guard %q", o.Class, o.Guard)
		}
	}
	if o.Value != nil {
		if o.Class != engine.ClassOK {
			sc.add("sound", "class %q carries a value", o.Class)
		}
		if !json.Valid(o.Value) || !utf8.Valid(o.Value) {
			sc.add("sound", "the value is no JSON text in UTF-8: %s", quote(string(o.Value)))
		}
		if n := int64(len(o.Value)); n > l.MaxOutputBytes {
			sc.add("output-cap", "a value of %d bytes under a limit of %d", n, l.MaxOutputBytes)
		}
	}
	for _, text := range []struct{ name, v string }{{"Message", o.Message}, {"JSStack", o.JSStack}} {
		if len(text.v) > maxText || !utf8.ValidString(text.v) {
			sc.add("messages", "%s is %d bytes (at most %d), valid UTF-8 %v", text.name, len(text.v), maxText, utf8.ValidString(text.v))
		}
	}
	if o.Class == engine.ClassInputTooLarge && !o.DuringSeed || o.DuringSeed && (o.Class == engine.ClassOK || got.starts > 0) {
		sc.add("sound", "class %q with DuringSeed %v and %d starts of the script", o.Class, o.DuringSeed, got.starts)
	}
	if o.Class == engine.ClassLimit && o.Guard == engine.Fuel && (l.Fuel == 0 || o.Usage.Fuel < l.Fuel) {
		sc.add("fuel-limit", "limit:fuel with %d used of a limit of %d", o.Usage.Fuel, l.Fuel)
	}
	if o.Class == engine.ClassOK && l.Fuel > 0 && o.Usage.Fuel > l.Fuel {
		sc.add("fuel-limit", "ok with %d used of a limit of %d", o.Usage.Fuel, l.Fuel)
	}
	// The hooks: twice or in the wrong order is wrong for every class; a run that
	// gave a value went through both.
	if got.starts > 1 || got.finishes > 1 || got.finishBeforeStart || got.finishes > 0 && got.finished.Before(got.armed) ||
		o.Class == engine.ClassOK && (got.starts != 1 || got.finishes != 1) {
		sc.add("hooks", "class %q after %d calls of OnScriptStart and %d of OnFinished, finished before started %v",
			o.Class, got.starts, got.finishes, got.finishBeforeStart || got.finished.Before(got.armed))
	}

	u := o.Usage
	ran := got.starts > 0
	// A worker that was ended from outside took what it had counted with it.
	unknown := o.Killed && u.Fuel == 0 && u.PeakMemoryBytes == 0
	s.metered = s.metered || u.Fuel > 0
	if s.metered && ran && u.Fuel <= 0 && !unknown || u.Fuel < 0 {
		sc.add("metering", "a script ran and used %d fuel", u.Fuel)
	}
	s.measured = s.measured || u.PeakMemoryBytes > 0
	if s.measured {
		limit := u.ImageBytes + int64(len(r.Input)) + l.MemoryBytes
		limit = (limit + wasmPage - 1) / wasmPage * wasmPage
		if u.PeakMemoryBytes > limit || u.PeakMemoryBytes < u.ImageBytes || u.PeakMemoryBytes%wasmPage != 0 {
			sc.add("fits", "peak %d, image %d, input %d, MemoryBytes %d: wanted whole pages from the image up to %d",
				u.PeakMemoryBytes, u.ImageBytes, len(r.Input), l.MemoryBytes, limit)
		}
	}
}

// clean shows that nothing is left of the run before: 1+1 is 2, at its usual
// fuel, and the memory is equal to the image. A backend that is not is replaced.
func (sc *scope) clean() bool {
	s := sc.s
	before := len(sc.findings)
	b := s.ready(sc)
	if b == nil {
		return false
	}
	got := sc.eval(s.ctx, engine.Request{Script: engine.Script{Source: "1+1"}, Limits: s.limits(0)})
	if got.lost {
		return false
	}
	if got.label != "ok" || got.value() != "2" {
		sc.add("clean", "the next 1+1 gave %s %s: %s", got.label, quote(got.value()), sc.why(got))
	}
	fuel := got.out.Usage.Fuel
	switch {
	case got.label != "ok": // said already
	case s.cleanFuel == 0:
		s.cleanFuel = fuel
	case fuel != s.cleanFuel:
		sc.add("fuel-same", "the next 1+1 used %d fuel, the first one %d", fuel, s.cleanFuel)
	}
	v, ok := b.(ImageVerifier)
	s.offer("image", ok, "the backend does not implement enginetest.ImageVerifier")
	if ok {
		if err := v.VerifyImage(s.ctx); err != nil {
			sc.add("image", "%v", err)
		}
	}
	if len(sc.findings) == before {
		return true
	}
	s.discard(sc)
	return false
}

// limits are the reference limits with a wall clock, 0 for one that no script
// meets that is not meant to.
func (s *suite) limits(wall time.Duration) engine.Limits {
	if wall == 0 {
		wall = 5 * time.Second
	}
	return scaled(engine.Limits{WallClock: wall, MemoryBytes: ReferenceMemory, MaxOutputBytes: ReferenceOutput, MaxInputBytes: ReferenceInput}, s.o.Scale)
}

// why is the text that came with a run, quoted and cut.
func (sc *scope) why(got run) string {
	if got.err != nil {
		return quote(got.err.Error())
	}
	return quote(got.out.Message)
}

// runCase puts the backend through one case.
func (s *suite) runCase(c Case) (Record, []Finding) {
	sc := s.scope(c.ID)
	rec := Record{ID: c.ID, Class: "none", Expected: c.Expected, AnyOf: c.AnyOf, Exact: true, CleanAfter: true}
	for i := range max(1, len(c.Inputs)) {
		r, plain := c.Request(i, s.o.Scale)
		again := func() run { return sc.eval(s.ctx, r) }
		if len(c.Inputs) > 0 {
			again = func() run { return sc.call(r, c.Inputs[i].Value) }
		}
		got := again()
		if rec.Class == "none" || rec.Class == c.Expected {
			rec.Class = got.label
		}
		rec.OverrunNs = max(rec.OverrunNs, int64(got.overrun))
		rec.MemoryPeakBytes = max(rec.MemoryPeakBytes, got.out.Usage.PeakMemoryBytes)
		rec.Exact = sc.judge(c, got) && rec.Exact
		if settled := got.label == "ok" || got.label == "error"; c.Group == "determinism" && plain && settled && !got.lost {
			if second := again(); second.label != got.label || second.value() != got.value() {
				sc.add("determinism", "two runs gave %s %s and %s %s", got.label, quote(got.value()), second.label, quote(second.value()))
			}
		}
		if c.ThenJS != "" && !got.lost {
			r.Script = engine.Script{Source: c.ThenJS}
			r.Limits.WallClock = s.limits(0).WallClock
			then := sc.eval(s.ctx, r)
			if then.label != "ok" || then.value() != string(c.ThenExpect) {
				sc.add("isolation", "the next script %s gave %s %s, want %s", quote(c.ThenJS), then.label, quote(then.value()), c.ThenExpect)
			}
		}
		rec.CleanAfter = sc.clean() && rec.CleanAfter
	}
	rec.Pass = len(sc.findings) == 0
	rec.Exact = rec.Exact && rec.Pass
	s.records = append(s.records, rec)
	return rec, sc.findings
}

// judge holds a run against what its case accepts and reports whether it is exact.
func (sc *scope) judge(c Case, got run) (exact bool) {
	if got.lost {
		return false
	}
	if !slices.Contains(c.AnyOf, got.label) {
		sc.add("class", "got %s, want %s (accepted: %v): %s", got.label, c.Expected, c.AnyOf, sc.why(got))
		return false
	}
	exact = got.label == c.Expected
	if got.label != "ok" || c.ExpectValue == nil || got.value() == string(c.ExpectValue) {
		return exact
	}
	for _, also := range c.AnyValue {
		if got.value() == string(also) {
			return false
		}
	}
	// A known fault of the pinned engine may show as a trap or as a wrong value.
	if !slices.Contains(c.AnyOf, string(engine.ClassEngineFault)) {
		sc.add("value", "got %s, want %s", quote(got.value()), c.ExpectValue)
	}
	return false
}

// runLaw puts the backend through one law.
func (s *suite) runLaw(l Law) LawResult {
	sc := s.scope(l.Name)
	l.check(sc)
	if !s.stopped() {
		sc.clean()
	}
	return s.result(l)
}
