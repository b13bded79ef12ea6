package properties

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leanovate/gopter"
	"github.com/leanovate/gopter/commands"
	"github.com/leanovate/gopter/gen"

	fuzzgen "github.com/sandbed/sandbed/fuzz/gen"
	"github.com/sandbed/sandbed/pool"
)

// never is an instant that does not come.
const never = time.Duration(1<<63 - 1)

// modelRun is what the model knows of one run.
type modelRun struct {
	act      fuzzgen.Act
	label    string        // once it was answered; before, what it will be
	at       time.Duration // of the answer; never while it is queued
	kill     time.Duration // when the pool ends it; never if it need not
	taken    bool
	answered bool
}

// poolModel is a pool as it is meant: c servers, one queue, and what each kind of run
// takes, to the instant. Workers start at once in it, which is what they do here; slow starts
// are TestP5DelaysChangeNothing's.
type poolModel struct {
	count, queue int
	killWait     time.Duration
	now          time.Duration
	runs         []modelRun
	refusing     bool // Drain or Close was called
	closed       bool
}

func (m poolModel) String() string {
	return string(fuzzgen.Join(fmt.Sprintf("count:%d queue:%d killwait:%d", m.count, m.queue, m.killWait/fuzzgen.Unit)))
}

func (m *poolModel) outstanding() (queued, running int) {
	for _, r := range m.runs {
		switch {
		case r.answered:
		case r.taken:
			running++
		default:
			queued++
		}
	}
	return queued, running
}

// serve hands queued runs to free workers, and again while that answers some.
func (m *poolModel) serve() {
	for i := range m.runs {
		r := &m.runs[i]
		if _, running := m.outstanding(); running == m.count {
			return
		}
		if r.answered || r.taken {
			continue
		}
		r.taken, r.label, r.kill = true, r.act.Label, never
		// What is before the clock is armed is in none of the fields of an Act.
		seed := time.Duration(0)
		if op, ok := strings.CutPrefix(r.act.Script, "seed "); ok && !r.act.Unarmed {
			seed, _ = time.ParseDuration(op[:strings.IndexByte(op, ';')])
		}
		switch r.at = m.now + seed + r.act.After; {
		case r.act.Label == "startup:start":
			r.label = pool.SettledStart
			if r.act.Script != "exit" {
				r.kill = m.now + fuzzgen.Wall + fuzzgen.Grace + fuzzgen.Liveness
				r.at = r.kill
			}
		case r.act.Label == "limit:wallClock":
			r.kill = m.now + seed + fuzzgen.Wall + fuzzgen.Grace
		}
		if r.act.Deaf {
			r.at += m.killWait
		}
		r.answered = r.at <= m.now
	}
}

// pass lets time go on.
func (m *poolModel) pass(d time.Duration) {
	for until := m.now + d; ; {
		next := never
		for _, r := range m.runs {
			if r.taken && !r.answered {
				next = min(next, r.at)
			}
		}
		if next > until {
			m.now = until
			return
		}
		m.now = next
		for i := range m.runs {
			if r := &m.runs[i]; r.taken && !r.answered && r.at <= m.now {
				r.answered = true
			}
		}
		m.serve()
	}
}

// end ends a run from outside, with this label if a worker has it.
func (m *poolModel) end(r *modelRun, running, queued string) {
	switch {
	case r.answered:
	case !r.taken:
		r.answered, r.label, r.at = true, queued, m.now
	case m.now < r.kill: // else the pool was quicker
		r.label, r.kill, r.at = running, m.now, m.now
		if r.act.Deaf {
			r.at += m.killWait
		} else if strings.HasPrefix(r.act.Script, "late ") {
			r.at += fuzzgen.Unit
		}
		r.answered = r.at <= m.now
	}
}

func (m *poolModel) do(op fuzzgen.Op) {
	act, run := op.Act()
	switch {
	case run:
		r := modelRun{act: act, at: never}
		queued, running := m.outstanding()
		switch {
		case m.refusing:
			r.answered, r.label, r.at = true, pool.SettledClosed, m.now
		case m.queue > 0 && queued+running-m.count >= m.queue:
			r.answered, r.label, r.at = true, pool.SettledQueueFull, m.now
		}
		m.runs = append(m.runs, r)
	case op.Name == "wait":
		m.pass(time.Duration(op.N) * fuzzgen.Unit)
	case op.Name == "cancel":
		m.end(&m.runs[len(m.runs)-1-op.N], "canceled", pool.SettledGaveUp)
	case op.Name == "drain":
		m.refusing = true
	case op.Name == "close" && !m.closed:
		m.refusing, m.closed = true, true
		for i := range m.runs {
			m.end(&m.runs[i], pool.SettledClosed, pool.SettledClosed)
		}
	}
	m.serve()
}

// poolCommand is one operation, a word of fuzz/gen.
type poolCommand struct{ op fuzzgen.Op }

func (c poolCommand) String() string {
	if _, run := c.op.Act(); run {
		return c.op.Name
	}
	return fmt.Sprintf("%s:%d", c.op.Name, c.op.N)
}

func (c poolCommand) PreCondition(s commands.State) bool {
	return c.op.Name != "cancel" || c.op.N < len(s.(poolModel).runs)
}

// NextState makes a new model: gopter keeps the old one.
func (c poolCommand) NextState(s commands.State) commands.State {
	m := s.(poolModel)
	m.runs = slices.Clone(m.runs)
	m.do(c.op)
	return m
}

// Run does to the pool what do does to the model.
func (c poolCommand) Run(sut commands.SystemUnderTest) commands.Result {
	p := sut.(*plant)
	act, run := c.op.Act()
	switch {
	case run:
		p.submit(act.Script, nil)
	case c.op.Name == "wait":
		time.Sleep(time.Duration(c.op.N) * fuzzgen.Unit)
	case c.op.Name == "cancel":
		p.calls[len(p.calls)-1-c.op.N].cancel()
	case c.op.Name == "drain":
		p.wg.Go(func() { _ = p.pool.Drain(background) }) // Close in end says what went wrong
	case c.op.Name == "close":
		p.wg.Go(func() { _ = p.pool.Close() })
	}
	synctest.Wait()
	return p
}

// PostCondition compares every answer so far and the books of the pool.
func (c poolCommand) PostCondition(s commands.State, result commands.Result) *gopter.PropResult {
	return judged(s.(poolModel).compare(result.(*plant)))
}

func judged(err error) *gopter.PropResult {
	if err != nil {
		return &gopter.PropResult{Status: gopter.PropFalse, Labels: []string{err.Error()}}
	}
	return &gopter.PropResult{Status: gopter.PropTrue}
}

func (m poolModel) compare(p *plant) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	settled := map[string]int64{}
	for i, want := range m.runs {
		got := p.calls[i]
		if want.answered {
			settled[want.label]++
		}
		if got.answers > 1 || (got.answers == 1) != want.answered || want.answered && (got.label != want.label || got.at != want.at) {
			return fmt.Errorf("at %v run %d, %s: got %d answers, %s at %v; want answered %v, %s at %v", m.now, i, want.act.Name,
				got.answers, got.label, got.at, want.answered, want.label, want.at)
		}
		if want.answered && want.label == "ok" && strings.Contains(want.act.Script, "%d") && got.value != fmt.Sprint(i) {
			return fmt.Errorf("run %d got the value %q", i, got.value)
		}
	}
	st := p.pool.Stats()
	queued, running := m.outstanding()
	if st.Queued != queued || st.Running != running || st.Submitted != int64(len(m.runs)) || !maps.Equal(st.Settled, settled) {
		return fmt.Errorf("at %v the pool counts %d queued, %d running, %d submitted, settled %v; want %d, %d, %d, %v", m.now,
			st.Queued, st.Running, st.Submitted, st.Settled, queued, running, len(m.runs), settled)
	}
	return nil
}

// poolCommands generates histories of up to 30 operations for at most 4 workers.
func poolCommands() commands.Commands {
	var runs []string
	for _, name := range fuzzgen.PoolNames() {
		if _, run := (fuzzgen.Op{Name: name}).Act(); run {
			runs = append(runs, name)
		}
	}
	return &commands.ProtoCommands{
		InitialStateGen: func(p *gopter.GenParameters) *gopter.GenResult {
			return gopter.NewGenResult(poolModel{count: 1 + p.Rng.Intn(4), queue: p.Rng.Intn(3) * p.Rng.Intn(4), killWait: time.Duration(2+p.Rng.Intn(4)) * fuzzgen.Unit}, gopter.NoShrinker)
		},
		GenCommandFunc: func(s commands.State) gopter.Gen {
			return func(p *gopter.GenParameters) *gopter.GenResult {
				c := poolCommand{fuzzgen.Op{Name: runs[p.Rng.Intn(len(runs))]}}
				switch n := p.Rng.Intn(100); {
				case n < 30:
					c.op = fuzzgen.Op{Name: "wait", N: p.Rng.Intn(1 << p.Rng.Intn(6))}
				case n < 42:
					c.op = fuzzgen.Op{Name: "cancel", N: p.Rng.Intn(1 + min(8, len(s.(poolModel).runs)))}
				case n < 43:
					c.op = fuzzgen.Op{Name: "drain"}
				case n < 44:
					c.op = fuzzgen.Op{Name: "close"}
				}
				return gopter.NewGenResult(c, func(any) gopter.Shrink {
					return gen.IntShrinker(c.op.N).Map(func(n int) commands.Command {
						return poolCommand{fuzzgen.Op{Name: c.op.Name, N: max(n, 0)}}
					})
				})
			}
		},
		InitialPreConditionFunc: func(commands.State) bool { return true },
		NewSystemUnderTestFunc: func(s commands.State) commands.SystemUnderTest {
			m := s.(poolModel)
			p, err := newPlant(nil, listOptions(m.count, m.queue, m.killWait))
			if err != nil {
				panic(err) // gopter makes it a failure
			}
			return p
		},
	}
}

// Every answer of a pool, its instant and the books are those of the model, for any
// history of submitting, cancelling, draining and closing.
func TestPoolModel(t *testing.T) {
	hold(t, 600, 30, inBubbles(t, poolCommands(), func(sut commands.SystemUnderTest) error { return sut.(*plant).end() }))
}

// inBubbles is commands.Prop with a bubble of its own for each history, at the end of which
// end judges what is left.
func inBubbles(t *testing.T, c commands.Commands, end func(commands.SystemUnderTest) error) gopter.Prop {
	e := &ending{Commands: c, end: end}
	inner := commands.Prop(e)
	return func(p *gopter.GenParameters) (r *gopter.PropResult) {
		synctest.Test(t, func(*testing.T) { r = inner(p) })
		if e.err != nil && r.Status == gopter.PropTrue {
			r.Status, r.Labels = gopter.PropFalse, append(r.Labels, e.err.Error())
		}
		return r
	}
}

// ending judges a system as it is destroyed.
type ending struct {
	commands.Commands
	end func(commands.SystemUnderTest) error
	err error
}

func (e *ending) DestroySystemUnderTest(sut commands.SystemUnderTest) { e.err = e.end(sut) }
