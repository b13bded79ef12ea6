package virtual

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/fuzz"
	"github.com/sandbed/sandbed/fuzz/cover"
	"github.com/sandbed/sandbed/fuzz/gen"
	"github.com/sandbed/sandbed/fuzz/oracle"
	"github.com/sandbed/sandbed/pool"
	"github.com/sandbed/sandbed/pool/pooltest"
)

// FuzzPool takes a pool of VMs that do what they are told through a list of
// operations, in virtual time, and holds it against a model: each run is
// answered once and with what it deserves, to the instant; a kill frees the
// worker; runs are served in their order; nothing happens after Close.
func FuzzPool(f *testing.F) { fuzz.Run(f, poolTarget) }

var poolTarget = fuzz.Target{
	Seeds: fuzz.Documents(gen.Version,
		"run/ok run/ok",
		"count:2 killwait:4 start/slow run/ok run/spin run/seed stats wait:9 cancel:1 run/deaf run/late wait:50 stats run/ok",
		"run/spin run/ok run/ok",
		"run/deaf run/deaf run/deaf run/ok",
		"run/late run/late run/ok",
		"count:3 run/copy run/copy run/copy run/slow run/grace stats wait:60 run/all",
		"run/unstarted run/ok run/deafseed run/seed",
		"run/exit run/exitlate run/panic run/fault run/liar run/forged run/unknown run/ok",
		"start/error start/panic start/exit start/nil run/ok run/ok",
		"start/never start/deaf start/slow run/ok run/spin",
		"spare:2 count:2 warm:60 stats run/deaf run/deaf run/deaf run/spin stats wait:30 stats",
		"queue:2 run/spin run/ok run/ok run/ok wait:9 run/ok",
		"run/slow soon:3 run/spin soon:8 run/spinseed soon:20 run/deaf soon:10 run/copy soon:15",
		"run/stale run/flood run/ahead run/error run/memory",
		"run/spin run/ok drain:60 run/ok wait:20",
		"run/spin run/deaf close run/ok",
		"count:2 run/deaf run/seed drain:2 wait:3 close close warm:1",
		"count:4 spare:3 killwait:6 run/deaf run/deaf run/deaf run/deaf run/deaf run/deaf run/deaf run/deaf run/ok stats",
	),
	Check: func(t *testing.T, data []byte, log *oracle.Log) error {
		list, err := gen.Pool(data)
		if err != nil {
			return err
		}
		synctest.Test(t, func(*testing.T) { playPool(list, log, nil) })
		return nil
	},
	Oracles: []oracle.ID{oracle.Verdict, oracle.Value, oracle.Charge, oracle.Order, oracle.Closed, oracle.Books, oracle.Contract, oracle.Alive, oracle.Frees},
	Document: func(data []byte) []byte {
		l, err := gen.Pool(data)
		if err != nil {
			return data
		}
		return l.Document()
	},
}

// poolRun is one call of Run and what the model knows of it.
type poolRun struct {
	act    gen.Act
	nonce  int
	cancel context.CancelFunc

	room      bool      // the queue had room for it
	late      bool      // it was submitted after Close or Drain
	cancelled time.Time // when its context ended, if it did

	armings  int
	armed    time.Time
	answers  int
	answered time.Time
	label    string
	value    string
}

// poolGame is one list being played.
type poolGame struct {
	log  *oracle.Log
	list *gen.PoolList
	pool *pool.Pool
	runs []*poolRun
	wg   sync.WaitGroup
	// When Close, and when Drain or Close, was called; zero before.
	closing, refusing time.Time

	mu sync.Mutex // of log and of what the runs note, until all of them have ended
}

func (g *poolGame) check(ok bool, id oracle.ID, format string, args ...any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.log.Check(ok, id, format, args...)
}

// last is the label of the run that was answered last.
func (g *poolGame) last() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var last *poolRun
	for _, r := range g.runs {
		if r.answers > 0 && (last == nil || !r.answered.Before(last.answered)) {
			last = r
		}
	}
	if last == nil {
		return ""
	}
	return last.label
}

// playPool plays list inside a bubble. spoil, if set, stands between the pool and
// what the model hears of it, so that a test can show that the model is not deaf.
func playPool(list *gen.PoolList, log *oracle.Log, spoil func(engine.Outcome, error) (engine.Outcome, error)) *poolGame {
	ledger := new(pooltest.Ledger)
	p, err := pool.New(pooltest.NewVM(ledger, list.Starts...), pool.Options{
		Count: list.Count, Spare: list.Spare, MaxQueue: list.MaxQueue, KillWait: list.KillWait,
		ColdStart: gen.Cold, StartupLiveness: gen.Liveness, HardKillGrace: gen.Grace,
	})
	if err != nil {
		panic(err) // the generator's own options
	}
	g := &poolGame{log: log, list: list, pool: p}
	for i, op := range list.Ops {
		cover.Mark(1, cover.Name(op.Name), cover.Name(g.last()), uint64(min(g.outstanding(), 7)), uint64(list.Count))
		g.step(i, op, spoil)
		synctest.Wait()
	}
	g.wg.Wait()
	if g.refusing.IsZero() {
		g.alive(spoil)
	}

	err = p.Close()
	g.check(err == nil, oracle.Closed, "Close: %v", err)
	if g.refusing.IsZero() {
		g.refusing = time.Now()
	}
	g.run(gen.Op{Name: "run/ok"}, spoil)
	g.wg.Wait()
	after := g.runs[len(g.runs)-1]
	g.check(after.label == "closed" && after.armings == 0, oracle.Closed, "a run after Close ended as %s", after.label)
	err = p.Warm(context.Background())
	g.check(errors.Is(err, engine.ErrClosed), oracle.Closed, "Warm after Close: %v", err)
	g.judge(ledger)
	return g
}

func (g *poolGame) outstanding() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.runs {
		if r.answers == 0 {
			n++
		}
	}
	return n
}

func (g *poolGame) step(i int, op gen.Op, spoil func(engine.Outcome, error) (engine.Outcome, error)) {
	n := time.Duration(op.N) * gen.Unit
	switch op.Name {
	case "wait":
		time.Sleep(n)
	case "cancel":
		if at := len(g.runs) - 1 - op.N; at >= 0 {
			g.end(g.runs[at])
		}
	case "soon":
		if len(g.runs) > 0 {
			r := g.runs[len(g.runs)-1]
			g.wg.Go(func() {
				time.Sleep(n)
				g.end(r)
			})
		}
	case "warm":
		g.wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), n)
			defer cancel()
			from := time.Now()
			err := g.pool.Warm(ctx)
			g.check(err == nil || g.list.Failing > 0 || !g.refusing.IsZero() || errors.Is(err, context.DeadlineExceeded), oracle.Verdict, "Warm: %v", err)
			g.check(time.Since(from) <= n, oracle.Charge, "Warm took %v with a context of %v", time.Since(from), n)
		})
	case "stats":
		s := g.pool.Stats()
		g.check(s.Running <= g.list.Count && s.Starting+s.Idle+s.Running <= g.list.Count+g.list.Spare, oracle.Books, "operation %d: more workers than asked for: %+v", i, s)
		left := g.outstanding()
		g.check(s.Submitted == total(s.Settled)+int64(s.Queued+s.Running) && s.Queued+s.Running == left, oracle.Books,
			"operation %d: %d runs are unanswered: %+v", i, left, s)
	case "drain":
		if g.refusing.IsZero() {
			g.refusing = time.Now()
		}
		g.wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), n)
			defer cancel()
			if err := g.pool.Drain(ctx); err == nil {
				s := g.pool.Stats()
				g.check(s.Queued+s.Running == 0, oracle.Closed, "Drain returned with %d runs unanswered", s.Queued+s.Running)
			} else {
				g.check(errors.Is(err, context.DeadlineExceeded), oracle.Closed, "Drain: %v", err)
			}
		})
	case "close":
		now := time.Now()
		if g.closing.IsZero() {
			g.closing = now
		}
		if g.refusing.IsZero() {
			g.refusing = now
		}
		g.wg.Go(func() {
			err := g.pool.Close()
			g.check(err == nil, oracle.Closed, "Close: %v", err)
		})
	default:
		g.run(op, spoil)
	}
}

func (g *poolGame) end(r *poolRun) {
	g.mu.Lock()
	if r.cancelled.IsZero() && r.answers == 0 {
		r.cancelled = time.Now()
	}
	g.mu.Unlock()
	r.cancel()
}

// run submits a run; after synctest.Wait the pool has taken notice.
func (g *poolGame) run(op gen.Op, spoil func(engine.Outcome, error) (engine.Outcome, error)) {
	act, ok := op.Act()
	if !ok {
		panic("fuzz: unknown operation " + op.Name)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &poolRun{act: act, nonce: 1000 + len(g.runs), cancel: cancel, late: !g.refusing.IsZero(),
		room: g.list.MaxQueue == 0 || g.outstanding()-g.list.Count < g.list.MaxQueue}
	g.runs = append(g.runs, r)
	source := act.Script
	if strings.Contains(source, "%d") {
		source = fmt.Sprintf(source, r.nonce)
	}
	g.wg.Go(func() {
		out, err := g.pool.Run(ctx, engine.Request{
			Script: engine.Script{Source: source},
			Limits: engine.Limits{WallClock: gen.Wall},
			OnScriptStart: func(time.Time) {
				g.mu.Lock()
				defer g.mu.Unlock()
				r.armings++
				r.armed = time.Now()
			},
		})
		if spoil != nil {
			out, err = spoil(out, err)
		}
		g.mu.Lock()
		r.answers++
		r.answered, r.label, r.value = time.Now(), poolLabel(out, err), string(out.Value)
		g.mu.Unlock()
		cancel()
	})
}

// alive shows that after any history a trivial run succeeds: at once, or when
// the starts that fail are used up.
func (g *poolGame) alive(spoil func(engine.Outcome, error) (engine.Outcome, error)) {
	from := time.Now()
	var r *poolRun
	for range g.list.Failing + 1 {
		g.run(gen.Op{Name: "run/ok"}, spoil)
		g.wg.Wait()
		if r = g.runs[len(g.runs)-1]; r.label != "startup:compile" {
			break
		}
	}
	g.check(r.label == "ok", oracle.Alive, "a trivial run afterwards ended as %s", r.label)
	if g.list.Failing == 0 {
		g.check(time.Since(from) <= gen.Cold, oracle.Alive, "a trivial run afterwards took %v, want at most a cold start of %v", time.Since(from), gen.Cold)
	}
}

// poolLabel names what came of a run.
func poolLabel(out engine.Outcome, err error) string {
	var startup *engine.WorkerStartupError
	switch {
	case err == nil:
		return out.Label()
	case errors.As(err, &startup):
		return "startup:" + string(startup.Phase)
	case errors.Is(err, engine.ErrClosed):
		return "closed"
	case errors.Is(err, engine.ErrQueueFull):
		return "queueFull"
	case errors.Is(err, context.Canceled):
		return "gaveUp"
	}
	return err.Error()
}

// settledLabels are the names that Stats gives to errors.
var settledLabels = map[string]string{"startup:compile": pool.SettledStartCompile, "startup:start": pool.SettledStart,
	"closed": pool.SettledClosed, "queueFull": pool.SettledQueueFull, "gaveUp": pool.SettledGaveUp}

func total(m map[string]int64) (sum int64) {
	for _, n := range m {
		sum += n
	}
	return sum
}

// judge holds everything that happened against the model.
func (g *poolGame) judge(ledger *pooltest.Ledger) {
	counted := map[string]int64{}
	lost := int64(0) // runs that may have cost a worker
	var before *poolRun
	for i, r := range g.runs {
		g.check(r.answers == 1, oracle.Verdict, "run %d (%s) was answered %d times", i, r.act.Name, r.answers)
		if r.answers == 0 {
			continue
		}
		label := r.label
		if s, ok := settledLabels[label]; ok {
			label = s
		}
		counted[label]++
		if i > 0 {
			cover.Mark(2, cover.Name(g.runs[i-1].label), cover.Name(r.act.Name), cover.Name(r.label))
		}
		if r.label == "engineFault" || r.label == "startup:start" || r.act.Deaf {
			lost++
		}
		g.verdict(i, r)
		undisturbed := r.cancelled.IsZero() && r.label == r.act.Label && r.armings == 1
		if undisturbed && g.closing.IsZero() {
			want := r.act.After
			if r.act.Deaf {
				want += g.list.KillWait
			}
			g.check(r.answered.Sub(r.armed) == want, oracle.Charge, "run %d (%s) was answered %v after its clock was armed, want %v",
				i, r.act.Name, r.answered.Sub(r.armed), want)
		}
		if undisturbed && r.act.AtOnce {
			if before != nil {
				g.check(!r.armed.Before(before.armed), oracle.Order, "run %d (%s) was served %v before one that came earlier", i, r.act.Name, before.armed.Sub(r.armed))
			}
			before = r
		}
		for _, end := range []time.Time{r.cancelled, g.closing} {
			if !end.IsZero() && r.answered.After(end) && !r.late {
				g.check(r.answered.Sub(end) <= g.list.KillWait, oracle.Charge, "run %d (%s) was answered %v after it was ended, want at most %v",
					i, r.act.Name, r.answered.Sub(end), g.list.KillWait)
			}
		}
	}

	s := g.pool.Stats()
	g.check(s.Starting+s.Idle+s.Running+s.Leaving+s.Abandoned+s.Queued == 0, oracle.Closed, "workers or runs are left after Close: %+v", s)
	same := len(s.Settled) == len(counted) && s.Submitted == int64(len(g.runs))
	for label, n := range counted {
		same = same && s.Settled[label] == n
	}
	g.check(same, oracle.Books, "the pool counted %v of %d, the callers %v of %d", s.Settled, s.Submitted, counted, len(g.runs))
	g.check(s.Replaced <= lost, oracle.Frees, "%d workers were replaced, but only %d runs gave cause", s.Replaced, lost)
	c := ledger.Counts()
	g.check(c.Made == c.Closed && c.Running == 0, oracle.Closed, "%d VMs were made and %d closed, %d evaluations run", c.Made, c.Closed, c.Running)
	g.check(int64(c.MostAtOne) <= int64(g.list.Count)+s.AbandonedEver, oracle.Contract, "%d evaluations ran at once on %d workers", c.MostAtOne, g.list.Count)
	breaches := ledger.Breaches()
	g.check(len(breaches) == 0, oracle.Contract, "%q", breaches)
	cover.Mark(3, cover.Log2(s.Kills), cover.Log2(s.Replaced), cover.Log2(s.AbandonedEver), cover.Log2(s.StartupFailures))
	cover.Mark(4, uint64(c.MostAtOne), uint64(min(c.Starts, 15)))
}

// verdict holds the answer of one run against what it may be.
func (g *poolGame) verdict(i int, r *poolRun) {
	if r.late {
		g.check(r.label == "closed", oracle.Closed, "run %d (%s) came after Close or Drain and ended as %s", i, r.act.Name, r.label)
		return
	}
	if !r.room {
		g.check(r.label == "queueFull", oracle.Verdict, "run %d (%s) found the queue full and ended as %s", i, r.act.Name, r.label)
		return
	}
	ok := r.label == r.act.Label
	switch r.label {
	case "canceled", "gaveUp":
		ok = ok || !r.cancelled.IsZero() && (r.label == "canceled" || r.armings == 0)
	case "closed":
		ok = ok || !g.closing.IsZero() || !g.refusing.IsZero() && r.answered.After(g.refusing)
	case "startup:compile":
		ok = ok || g.list.Failing > 0 && r.armings == 0
	}
	g.check(ok, oracle.Verdict, "run %d (%s) ended as %s, want %s", i, r.act.Name, r.label, r.act.Label)
	if strings.Contains(r.act.Script, "%d") && r.label == "ok" {
		g.check(r.value == fmt.Sprint(r.nonce), oracle.Value, "run %d (%s) got the value %q, want %d", i, r.act.Name, r.value, r.nonce)
	}
}

// The model is not deaf: what a broken pool would do is found, each by its oracle.
func TestPoolModelIsNotDeaf(t *testing.T) {
	for name, c := range map[string]struct {
		want  oracle.ID
		spoil func(engine.Outcome, error) (engine.Outcome, error)
	}{
		"wrong label": {oracle.Verdict, func(o engine.Outcome, err error) (engine.Outcome, error) {
			o.Class = engine.ClassScriptError
			return o, err
		}},
		"another run's value": {oracle.Value, func(o engine.Outcome, err error) (engine.Outcome, error) {
			o.Value = []byte("999")
			return o, err
		}},
		"late": {oracle.Charge, func(o engine.Outcome, err error) (engine.Outcome, error) {
			time.Sleep(gen.Unit)
			return o, err
		}},
		"an answer after Close": {oracle.Closed, func(o engine.Outcome, err error) (engine.Outcome, error) {
			if errors.Is(err, engine.ErrClosed) {
				err = nil
			}
			return o, err
		}},
		"lost in the books": {oracle.Books, func(o engine.Outcome, err error) (engine.Outcome, error) {
			return engine.Outcome{}, engine.ErrQueueFull
		}},
	} {
		t.Run(name, func(t *testing.T) {
			list, err := gen.Pool([]byte("1 run/ok run/slow run/spin"))
			if err != nil {
				t.Fatal(err)
			}
			var log oracle.Log
			synctest.Test(t, func(*testing.T) { playPool(list, &log, c.spoil) })
			if !slices.ContainsFunc(log.Violations(), func(v oracle.Violation) bool { return v.ID == c.want }) {
				t.Errorf("got %v, want %s among them", log.Violations(), c.want)
			}
		})
	}
}

// Enough of what the generator makes does something, every production is played,
// and runs end in every way that they can.
func TestPoolStatistics(t *testing.T) {
	r, names := rand.New(rand.NewPCG(11, 13)), gen.PoolNames()
	labels, runs, lists := map[string]int{}, 0, 1500
	for i := range lists {
		words := make([]string, 1+r.IntN(24))
		for j := range words {
			words[j] = names[r.IntN(len(names))]
			if r.IntN(3) == 0 {
				words[j] += fmt.Sprintf(":%d", r.IntN(40))
			}
		}
		list, err := gen.Pool(gen.Join(words...))
		if err != nil {
			t.Fatal(err)
		}
		var log oracle.Log
		var g *poolGame
		synctest.Test(t, func(*testing.T) { g = playPool(list, &log, nil) })
		for _, v := range log.Violations() {
			t.Errorf("list %d, %q: %s", i, list.Document(), v)
		}
		for _, run := range g.runs {
			labels[run.label]++
			if run.label != "closed" {
				runs++
			}
		}
	}
	t.Logf("%d lists, %d runs answered before Close: %v", lists, runs, labels)
	if runs < 3*lists {
		t.Errorf("%d runs in %d lists, want 3 a list", runs, lists)
	}
	for _, label := range []string{"ok", "error", "limit:memory", "limit:wallClock", "engineFault", "startup:start", "startup:compile",
		"canceled", "gaveUp", "closed", "queueFull"} {
		if labels[label]*500 < runs {
			t.Errorf("%d runs of %d end as %s, want 0.2 %%", labels[label], runs, label)
		}
	}
}
