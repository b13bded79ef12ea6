package processtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/pool"
)

// stressed is how many runs a stress test makes: a few, or with STRESS=1 all.
func stressed(few, all int) int {
	if os.Getenv("STRESS") != "" {
		return all
	}
	return few
}

// seed makes a random source whose seed a failure prints.
func seed(t *testing.T) func() *rand.Rand {
	s := rand.Uint64()
	if v := os.Getenv("SEED"); v != "" {
		if _, err := fmt.Sscan(v, &s); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("repeat: SEED=%d go test -run '^%s$' (the order of events is the machine's)", s, t.Name())
	var stream atomic.Uint64
	return func() *rand.Rand { return rand.New(rand.NewPCG(s, stream.Add(1))) }
}

// Random runs, kills, cancels, drains and closes: every run is answered once, with its
// own value or the reason it has none, and nothing is left of any pool.
func TestStress(t *testing.T) {
	total := stressed(300, 5000)
	source := seed(t)
	warmUp(t)
	before := resources(t)
	var answered atomic.Int64
	kinds := map[string]int{}
	var mu sync.Mutex
	all := []string{"ok", "canceled", "limit:wallClock", "engineFault", "closed"}
	missing := func(kind string) bool { return kinds[kind] == 0 }
	made := 0
	// What comes of a few runs is the machine's affair: go on until there was one of each.
	for made < total || slices.ContainsFunc(all, missing) && made < 10*total {
		r := source()
		n := 20 + r.IntN(80)
		made += n
		o := options(1 + r.IntN(3))
		o.Spare = r.IntN(2)
		o.KillWait = time.Duration(r.IntN(3)) * 50 * time.Millisecond
		o.HardKillGrace = 0
		if r.IntN(3) == 0 {
			o.MaxQueue = 5
		}
		p, err := pool.NewProcesses(pool.Command{}, o)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := range n {
			r := source()
			wg.Go(func() {
				time.Sleep(time.Duration(r.IntN(100)) * time.Millisecond)
				got := oneRun(t, p, r, i)
				answered.Add(1)
				mu.Lock()
				kinds[got]++
				mu.Unlock()
			})
		}
		switch r.IntN(3) {
		case 0: // closed in the middle of it
			time.Sleep(time.Duration(r.IntN(150)) * time.Millisecond)
			closePool(t, p)
		case 1:
			time.Sleep(time.Duration(r.IntN(150)) * time.Millisecond)
			if err := p.Drain(context.Background()); err != nil {
				t.Errorf("draining: %v", err)
			}
		}
		wg.Wait()
		closePool(t, p)
		s := p.Stats()
		var settled int64
		for _, n := range s.Settled {
			settled += n
		}
		if settled != s.Submitted || s.Processes != 0 || s.Queued+s.Running+s.Idle+s.Starting+s.Leaving+s.Abandoned != 0 {
			t.Errorf("after Close: %+v", s)
		}
	}
	if answered.Load() != int64(made) {
		t.Errorf("%d runs were answered, want %d", answered.Load(), made)
	}
	t.Logf("answers: %v", kinds)
	for _, kind := range all {
		if missing(kind) {
			t.Errorf("no run ended as %q: the test is not what it was", kind)
		}
	}
	var after inventory
	eventually(t, fmt.Sprintf("nothing more than before: %+v", before), func() bool { after = resources(t); return after.within(before) })
}

// warmUp has one pool come and go, so that what the runtime keeps is there before it is counted.
func warmUp(t *testing.T) {
	t.Helper()
	p, err := pool.NewProcesses(pool.Command{}, options(2))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Warm(context.Background()); err != nil {
		t.Error(err)
	}
	closePool(t, p)
}

func closePool(t *testing.T, p *pool.Pool) {
	t.Helper()
	var abandoned *pool.AbandonedError
	if err := p.Close(); err != nil && !errors.As(err, &abandoned) {
		t.Errorf("closing: %v", err)
	} else if err != nil {
		t.Errorf("closing: %v, though every process can be killed", err)
	}
}

// oneRun makes one random run and returns what became of it, in one word.
func oneRun(t *testing.T, p *pool.Pool, r *rand.Rand, id int) string {
	value := fmt.Sprintf(`"%d-%d"`, id, r.Uint64())
	script := "start; finish; input"
	wall := time.Hour
	allowed := []string{"ok", "closed", "queueFull"}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	switch r.IntN(8) {
	case 0: // a large one
		value = `"` + strings.Repeat("7", 256<<10+r.IntN(1<<18)) + value[1:]
	case 1: // it does not come back from its clock
		script, wall = "start; ignore 1h", time.Millisecond
		allowed = []string{"limit:wallClock", "closed", "queueFull"}
	case 2: // its caller gives up, whenever
		script = []string{"seed 1h", "start; run 1h", "start; finish; ignore 1h"}[r.IntN(3)]
		time.AfterFunc(time.Duration(r.IntN(60))*time.Millisecond, cancel)
		allowed = []string{"canceled", "gaveUp", "closed", "queueFull"}
	case 3: // its worker dies, whenever
		script = []string{"die", "panic", "start; die", "start; finish; die", "start; exit"}[r.IntN(5)]
		allowed = []string{"startup:start", "engineFault", "closed", "queueFull"}
	case 4: // its caller gives up about when it ends
		time.AfterFunc(time.Duration(r.IntN(3000))*time.Microsecond, cancel)
		allowed = append(allowed, "canceled", "gaveUp")
	}
	out, err := p.Run(ctx, engine.Request{Script: engine.Script{Source: script}, Input: json.RawMessage(value),
		Limits: engine.Limits{WallClock: wall}})
	got := label(out, err)
	switch {
	case errors.Is(err, engine.ErrClosed):
		got = "closed"
	case errors.Is(err, engine.ErrQueueFull):
		got = "queueFull"
	case errors.Is(err, context.Canceled):
		got = "gaveUp"
	}
	ok := false
	for _, a := range allowed {
		ok = ok || a == got
	}
	if !ok {
		t.Errorf("%q: got %s %s %v, want one of %q", script, got, out.Message, err, allowed)
	}
	if got == "ok" && string(out.Value) != value {
		t.Errorf("run %d got the value %.60s, want %.60s", id, out.Value, value)
	}
	return got
}

// kill -9 of random workers during load: no run is left without an answer, none
// has another's, and each that was lost says that its worker died.
func TestStressKills(t *testing.T) {
	total := stressed(400, 4000)
	source := seed(t)
	p := newPool(t, options(3))
	if err := p.Warm(context.Background()); err != nil {
		t.Fatal(err)
	}
	stop, killed := make(chan struct{}), 0
	var killer, wg sync.WaitGroup
	killer.Go(func() {
		r := source()
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(r.IntN(20)) * time.Millisecond):
			}
			if pids := children(t, os.Getpid()); len(pids) > 0 && unix.Kill(pids[r.IntN(len(pids))], unix.SIGKILL) == nil {
				killed++
			}
		}
	})
	var answered, lost atomic.Int64
	work := make(chan int)
	for range 6 {
		r := source()
		wg.Go(func() {
			for id := range work {
				value := fmt.Sprintf("%d", id)
				if r.IntN(4) == 0 {
					value = `"` + strings.Repeat(value, 1<<19/len(value)) + `"`
				}
				marks := 0
				out, err := p.Run(context.Background(), engine.Request{
					Script: engine.Script{Source: fmt.Sprintf("seed %dus; start; run %dus; finish; input", r.IntN(1000), r.IntN(3000))},
					Input:  json.RawMessage(value), Limits: engine.Limits{WallClock: time.Hour},
					OnScriptStart: func(time.Time) { marks++ }})
				answered.Add(1)
				switch got := label(out, err); got {
				case "ok":
					if string(out.Value) != value || marks != 1 {
						t.Errorf("run %d got the value %.40s, %d marks", id, out.Value, marks)
					}
				case "startup:start", "startup:compile":
					lost.Add(1)
					if marks != 0 {
						t.Errorf("run %d had begun, and is said not to have: %v", id, err)
					}
				case "engineFault":
					lost.Add(1)
					if !strings.Contains(out.Message, "signal: killed") {
						t.Errorf("run %d: %s", id, out.Message)
					}
				default:
					t.Errorf("run %d ended as %s %s", id, got, out.Message)
				}
			}
		})
	}
	for id := range total {
		work <- id
	}
	close(work)
	wg.Wait()
	close(stop)
	killer.Wait()
	t.Logf("%d runs, %d kills, %d runs lost their worker", total, killed, lost.Load())
	if answered.Load() != int64(total) || killed == 0 || lost.Load() == 0 || lost.Load() == int64(total) {
		t.Errorf("%d of %d runs answered, %d kills, %d lost", answered.Load(), total, killed, lost.Load())
	}
	s := p.Stats()
	var settled int64
	for _, n := range s.Settled {
		settled += n
	}
	if settled != int64(total) || s.Submitted != settled {
		t.Errorf("%d runs, and the books say %+v", total, s)
	}
	// A worker that was killed while it started is not tried again unasked, and a
	// Warm that comes while it still seems to start reports that start: three
	// workers have at most three to report.
	err := p.Warm(context.Background())
	for range 3 {
		if err != nil {
			err = p.Warm(context.Background())
		}
	}
	if err != nil {
		t.Errorf("warming afterwards: %v", err)
	}
	eventually(t, "three workers, and no fourth process", func() bool { s := p.Stats(); return s.Idle == 3 && s.Processes == 3 })
}
