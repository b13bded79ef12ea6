package reports

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbed/sandbed/bench/sample"
)

// threePeers is a comparison with all sections: ours, one that is twice as slow,
// and one that is absent.
func threePeers() Peers {
	values := func(x float64) []float64 {
		v := make([]float64, 8)
		for i := range v {
			v[i] = x * (1 + float64(i)/100)
		}
		return v
	}
	p := Peers{
		Started: time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC), Took: 61, Command: "go run ./bench/peers/run",
		Environment: sample.Environment{Cores: 2, CPU: "CPU", Commit: "abc", Go: "go1"},
		Warnings:    []string{"a warning with <b>markup</b>"},
		Peers: []Peer{
			{Name: "ours", Version: "1", Settings: "as it comes", Docs: "https://example.com/ours"},
			{Name: "slow", Version: "2", Settings: "a | b", Docs: "https://example.com/slow"},
			{Name: "gone", Absent: "node is not installed"},
		},
		Guarantees: []PeerGuarantee{{Name: "It stops", Cells: []GuaranteeCell{
			{Peer: "ours", Cases: 3, Passed: 3, Laws: 2, Held: 2},
			{Peer: "slow", Cases: 3, Passed: 2, Laws: 2, Held: 2, Findings: []string{"stops: A1: hang: <script>"}, NotOffered: []string{"fuel: it does not meter"}},
		}}, {Name: "It does not disturb", Cells: []GuaranteeCell{{Peer: "ours", Laws: 1, Held: 1}, {Peer: "slow"}}}},
	}
	for i, name := range []string{"ours", "slow"} {
		x := float64(i + 1)
		for _, row := range []string{"fresh", "work/workload=json", "work/workload=sort", "loop/figure=wall", "loop/figure=longest", "cold/cache=empty", "cold/cache=filled", "marshal", "kill"} {
			p.Samples = append(p.Samples, sample.New(row+"/peer="+name, sample.Seconds, values(x*0.001)))
		}
		p.Samples = append(p.Samples, sample.New("loop/figure=unavailable/peer="+name, sample.Share, values(0.1*x)),
			sample.New("memory/case=arrays/peer="+name, sample.Bytes, values(x*(1<<20))),
			sample.New("kill/figure=worst/peer="+name, sample.Seconds, []float64{x}))
	}
	return p
}

func TestPeersMarkdown(t *testing.T) {
	got := string(threePeers().Markdown())
	for _, want := range []string{
		"| It stops | holds, 3/3 cases, 2/2 laws | **fails**, 2/3 cases, 2/2 laws |",
		"| It does not disturb | holds, 1/1 laws | not offered |",
		"  - It stops: stops: A1: hang: &lt;script>",
		"  - It stops: not offered: fuel: it does not meter",
		"| gone | not measured: node is not installed | |",
		"| [slow](https://example.com/slow) | 2 | a \\| b |",
		"| fresh 1+1 | 1.04 ms [1 ms–1.07 ms] | 2.07 ms [2 ms–2.14 ms] **2 ×** [2 ×–2 ×] |",
		"| geometric mean of the workloads | **1 ×** [1 ×–1 ×] | **2 ×** [2 ×–2 ×] |",
		"- a warning with &lt;b>markup&lt;/b>",
		"Repeat it with `go run ./bench/peers/run`.",
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("no line %q in\n%s", want, got)
		}
	}
	for _, section := range []string{"Speed", "Four reshapes", "Kill latency", "Memory held", "Start", "Marshalling"} {
		if !strings.Contains(got, "### "+section) {
			t.Errorf("no section %q", section)
		}
	}
}

// TestPeersUnpaired: a row that an engine has not, or with fewer rounds, has no
// ratio, and without it there is no mean.
func TestPeersUnpaired(t *testing.T) {
	p := threePeers()
	if got := p.Geomean("slow"); len(got) != 8 || math.Abs(got[3]-2) > 1e-12 {
		t.Errorf("got the means %v, want 2 eight times", got)
	}
	for i, s := range p.Samples {
		if s.Name == "work/workload=json/peer=slow" {
			p.Samples[i] = sample.New(s.Name, s.Unit, s.Values[:7])
		}
	}
	if got := p.Geomean("slow"); got != nil {
		t.Errorf("got a mean %v of rows that are not paired", got)
	}
	if got := p.figure("work/workload=json", "slow"); strings.Contains(got, "×") {
		t.Errorf("got the cell %s, want no ratio", got)
	}
	if got := p.figure("work/workload=none", "slow"); got != "–" {
		t.Errorf("got the cell %s for a row that is not there", got)
	}
}

func TestWritePeers(t *testing.T) {
	dir := t.TempDir()
	p := threePeers()
	if err := WritePeers(dir, p); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"peers.md", "plots/peers-speed.svg", "plots/peers-speed.png", "plots/peers-kill.svg", "plots/peers-loop.png"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || len(b) < 500 {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, "peers.json"))
	if err != nil {
		t.Fatal(err)
	}
	var back Peers
	if err := json.Unmarshal(b, &back); err != nil || back.Schema != PeersSchema || len(back.Samples) != len(p.Samples) || back.Guarantees[0].Cells[1].Verdict() != "fails" {
		t.Errorf("read back schema %d, %d samples (%v)", back.Schema, len(back.Samples), err)
	}
	// What is not there any more has no plot either.
	p.Samples = p.Samples[:1]
	if err := WritePeers(dir, p); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "plots/peers-kill.svg")); !os.IsNotExist(err) {
		t.Errorf("a plot of an earlier run is still there (%v)", err)
	}
	p.Samples = append(p.Samples, p.Samples[0])
	if err := WritePeers(dir, p); err == nil {
		t.Error("two samples of one name were written")
	}
	if err := WritePeers(dir, Peers{}); err != nil {
		t.Errorf("a comparison of nothing: %v", err)
	}
}
