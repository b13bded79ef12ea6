package fuzz

import (
	"hash/fnv"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/engine/enginetest"
	"github.com/sandbed/sandbed/fuzz/cover"
	"github.com/sandbed/sandbed/fuzz/gen"
	"github.com/sandbed/sandbed/fuzz/oracle"
)

// FuzzScript runs a script twice in-process, once on a goroutine worker and, on
// one input of 50, in a process worker. Every run keeps what binds all runs;
// all of them agree, fuel included; and the VM is clean after.
//
// What ends by its clock is compared with nothing. FUZZ_PROCESSES=all asks the process
// worker every time, none never.
func FuzzScript(f *testing.F) {
	rig := theEngine(f)
	target := scriptTarget(rig)
	Run(f, target)
}

func scriptTarget(rig *rig) Target {
	processes := os.Getenv("FUZZ_PROCESSES")
	return Target{
		Seeds: scriptSeeds(),
		Check: func(t *testing.T, data []byte, log *oracle.Log) error {
			p, err := gen.Script(data)
			if err != nil {
				return err
			}
			checkScript(rig, p, log, hasProcesses && processes != "none" && (processes == "all" || oneOfFifty(data)))
			return nil
		},
		Oracles: []oracle.ID{oracle.Panic, oracle.Fault, oracle.Late, oracle.Sound, oracle.Output, oracle.Text, oracle.Memory, oracle.Fuel,
			oracle.Hooks, oracle.Same, oracle.Backends, oracle.Clean},
		Document: func(data []byte) []byte {
			p, err := gen.Script(data)
			if err != nil {
				return data
			}
			return append(append(p.Document(), '\n'), p.Request.Script.Source...)
		},
	}
}

// scriptSeeds are the cases of the corpus that are short and quick, each as it is,
// and a few compositions.
func scriptSeeds() [][]byte {
	lines := []string{
		"limits/quick input obj1 a num 5 expr add inputkey str x num 7",
		"limits/little-fuel repeat 100 set a add ref a num 1 expr ref a",
		"limits/little-stack function a overflow empty ref c expr callv a num 1 num 2",
		"limits/little-memory hog a 1000000 a typedlen Uint8Array 65536",
		"limits/little-output set a repeatx emoji 30 expr ref a",
		"limits/clock forever swallow set a proxy ref d put a str x num 1 ref a",
		"kind/module asyncset a promise empty num 3 expr ref a",
		"class a num 1 num 2 empty num 3 expr newv a num 1",
		"poisonjson empty num 1 expr object num 1 num 2",
		"limits/much-memory set a typedlen Uint8Array 16777216 expr ref a",
		"set a typedlen Uint8Array 3145728 expr apply Array fill ref a num 7",
		"growpush a a 1000 a num 1 empty expr sort ref a num 1 num 2 empty num -1",
		"asyncgen a empty num 1 forawait b ref a set c ref b then ref c d empty",
		"try throwerror InternalError oom e expr ref e",
		"expr stringify proxykeys ref d arraylike 536870912 num 1",
		"generator a empty num 1 num 2 num 3 forof b callv a num 1 num 2 set c ref b expr ref c",
	}
	for _, c := range enginetest.Cases() {
		if c.FuzzSeed {
			lines = append(lines, c.ID)
		}
	}
	return Documents(gen.Version, lines...)
}

// oneOfFifty chooses by the input, so that a finding repeats.
func oneOfFifty(data []byte) bool {
	h := fnv.New32a()
	_, _ = h.Write(data) // never fails
	return h.Sum32()%50 == 0
}

func checkScript(rig *rig, p *gen.Program, log *oracle.Log, process bool) {
	first := rig.inProcess.run(log, p.Request)
	markRun(first)
	for _, name := range p.Used {
		cover.Mark(20, cover.Name(name), cover.Name(first.Label))
	}
	if first.Panicked != nil {
		return
	}
	// A second run on the same VM: what the first left would show.
	second := rig.inProcess.run(log, p.Request)
	oracle.Equal(log, oracle.Same, "two runs in-process", first, second, true)
	rig.inProcess.cleanAfter(log)

	worker := rig.workers.run(log, p.Request)
	oracle.Equal(log, oracle.Backends, "in-process and goroutine worker", first, worker, true)
	if process {
		b, err := rig.processes()
		log.Check(err == nil, oracle.Fault, "starting process workers: %v", err)
		if err != nil {
			return
		}
		far := b.run(log, p.Request)
		// A worker that was ended took its figures with it.
		oracle.Equal(log, oracle.Backends, "in-process and process worker", first, far, !far.Out.Killed)
		b.cleanAfter(log)
	}
}

// Enough of what the generator makes parses and does something, and every
// production is reached by some document that noise makes.
func TestScriptStatistics(t *testing.T) {
	rig := theEngine(t)
	labels, parsed, n := map[string]int{}, 0, 3*max(len(gen.ScriptNames()), len(gen.CaseNames()))
	used := map[string]bool{}
	r := rand.New(rand.NewPCG(11, 13)) // the same numbers in every run
	all, cases := gen.ScriptNames(), gen.CaseNames()
	for i := range n {
		words := make([]string, 5+r.IntN(28))
		for j := range words {
			words[j] = all[r.IntN(len(all))]
			if r.IntN(8) == 0 {
				words[j] = string(rune('!' + r.IntN(90)))
			}
		}
		// Each production leads a document at least, as a statement or as an
		// expression, and so does each case.
		switch i % 3 {
		case 0:
			words[0], words[1] = "case", cases[i/3%len(cases)]
		case 1:
			words[0] = all[i/3%len(all)]
		case 2:
			words[0], words[1] = "expr", all[i/3%len(all)]
		}
		p, err := gen.Script(gen.Join(words...))
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range p.Used {
			used[u] = true
		}
		p.Request.Limits.Fuel, p.Request.Limits.MemoryBytes = 200_000, 8<<20
		got := rig.inProcess.once(p.Request)
		labels[got.Label]++
		if got.Label == "engineFault" {
			t.Logf("%q: %.300s", p.Document(), got.Out.Message)
		}
		if !strings.HasPrefix(got.Out.Message, "SyntaxError") {
			parsed++
		}
	}
	t.Logf("%d scripts: %d parse, %v", n, parsed, labels)
	if parsed*100 < n*80 {
		t.Errorf("%d of %d scripts parse, want 80 %%", parsed, n)
	}
	for _, label := range []string{"ok", "error", "limit:fuel", "limit:memory", "limit:stack"} {
		if labels[label] == 0 {
			t.Errorf("no script ends as %s: %v", label, labels)
		}
	}
	missed := 0
	for _, name := range append(all, cases...) {
		if !used[name] {
			missed++
			t.Logf("never used: %s", name)
		}
	}
	if missed > 0 {
		t.Errorf("%d productions are never used", missed)
	}
}

// evaluates finds what may throw a SyntaxError of its own.
var evaluates = regexp.MustCompile(`eval|parse|rawJSON|Function|RegExp`)

// Every production alone, its holes filled with what is simplest, is JavaScript
// that parses: one that does not would spoil every script that holds it.
func TestEveryProductionParses(t *testing.T) {
	rig := theEngine(t)
	for _, name := range gen.ScriptNames() {
		if strings.Contains(name, "limits/") || name == "input" {
			continue
		}
		for _, doc := range []string{name, "expr " + name, "expr num 1 " + name} {
			p, err := gen.Script(gen.Join(strings.Fields(doc)...))
			if err != nil {
				t.Fatal(err)
			}
			if len(p.Words) == 1 && !strings.Contains(p.Request.Script.Source, "var a=1") {
				continue // a case of the corpus as it is, which may be meant not to parse
			}
			p.Request.Limits = engine.Limits{Fuel: 100_000, MemoryBytes: 8 << 20}
			if got := rig.inProcess.once(p.Request); strings.HasPrefix(got.Out.Message, "SyntaxError") && !evaluates.MatchString(p.Request.Script.Source) {
				t.Errorf("%q: %s\n%s", doc, got.Out.Message, p.Request.Script.Source)
			}
		}
	}
}
