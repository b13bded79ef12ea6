package quickjs

import (
	"context"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandbed/sandbed/engine"
)

// stressRuns is how many evaluations TestStress makes: a small share of the full
// number unless STRESS is set.
func stressRuns() int {
	if os.Getenv("STRESS") != "" {
		return 1_000_000
	}
	return 5_000
}

// TestStress runs mixed evaluations with kills on one engine and holds that
// nothing accumulates: resident memory within 16 MiB, no goroutine and no mapping more.
func TestStress(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc: resident memory and mappings are counted on Linux only")
	}
	b := newTestEngine(t, Config{}).InProcess()
	scripts := []struct {
		source, label string
		limits        engine.Limits
	}{
		{"1+1", "ok", engine.Limits{}},
		{"let a=[];for(let i=0;i<300;i++)a.push({i});a.length", "ok", engine.Limits{}},
		{"JSON.parse(JSON.stringify(Array(200).fill({a:'b'}))).length", "ok", engine.Limits{}},
		{"throw new Error('x')", "error", engine.Limits{}},
		{"for(;;);", "limit:fuel", engine.Limits{Fuel: 20_000}},
		{"(function f(){f()})()", "limit:stack", engine.Limits{StackBytes: 128 << 10}},
		{"let a=[];for(;;)a.push(new Uint8Array(9000))", "limit:memory", engine.Limits{MemoryBytes: 1 << 20}},
		{"Array.prototype.reverse.call({length:9007199254740991})", "canceled", engine.Limits{}},
		{"'x'.repeat(4e6).length", "ok", engine.Limits{}},
	}
	one := func(i int) {
		// Kills and the large ones are rarer: they cost most.
		s := scripts[i%5]
		if i%50 == 49 {
			s = scripts[5+i/50%4]
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		r := engine.Request{Script: engine.Script{Source: s.source}, Limits: s.limits}
		r.Limits.WallClock = long
		if s.label == "canceled" {
			r.OnScriptStart = func(time.Time) { cancel() }
		}
		o, err := b.Run(ctx, r)
		if err != nil || o.Label() != s.label {
			t.Fatalf("run %d, %q: got %s (%s), %v, want %s", i, s.source, o.Label(), o.Message, err, s.label)
		}
	}
	const warm = 2000
	for i := range warm {
		one(i)
	}
	settle := func() (rss, maps, goroutines int) {
		runtime.GC()
		rss, maps = processMemory(t)
		return rss, maps, runtime.NumGoroutine()
	}
	rss, maps, goroutines := settle()
	for i := range stressRuns() {
		one(i)
	}
	rss2, maps2, goroutines2 := settle()
	t.Logf("%d runs: resident %d → %d KiB, mappings %d → %d, goroutines %d → %d", stressRuns(), rss, rss2, maps, maps2, goroutines, goroutines2)
	if rss2 > rss+16<<10 {
		t.Errorf("resident memory grew from %d to %d KiB, want at most 16 MiB more", rss, rss2)
	}
	// The Go heap may map an arena or two more; what a VM leaked would count in thousands.
	if maps2 > maps+16 {
		t.Errorf("mappings grew from %d to %d", maps, maps2)
	}
	if goroutines2 > goroutines {
		t.Errorf("goroutines grew from %d to %d", goroutines, goroutines2)
	}
}

// processMemory gives the resident memory in KiB and the number of mappings.
func processMemory(t *testing.T) (rss, maps int) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			rss, err = strconv.Atoi(strings.Fields(rest)[0])
		}
	}
	if err != nil || rss == 0 {
		t.Fatalf("no VmRSS in /proc/self/status: %v", err)
	}
	list, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return rss, strings.Count(string(list), "\n")
}

func BenchmarkFresh(b *testing.B) {
	v := newTestVM(b, newTestEngine(b, Config{}))
	for b.Loop() {
		if o := v.Eval(context.Background(), engine.Request{Script: engine.Script{Source: "1+1"}}); string(o.Value) != "2" {
			b.Fatal(o)
		}
	}
}

func BenchmarkRestore(b *testing.B) {
	v := newTestVM(b, newTestEngine(b, Config{}))
	for b.Loop() {
		if err := v.restore(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNewVM(b *testing.B) {
	e := newTestEngine(b, Config{})
	for b.Loop() {
		v, err := e.NewVM(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if err := v.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		e, err := New(b.Context(), Config{})
		if err != nil {
			b.Fatal(err)
		}
		if err := e.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/op")
}
