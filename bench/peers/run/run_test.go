package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/sandbed/sandbed/bench/workload"
	"github.com/sandbed/sandbed/engine/enginetest"
)

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"--help", exitDone, "-peer engine"},
		{"--peer nobody", exitUsage, "give one of sandbed, sandbed-off"},
		{"--part all", exitUsage, "give one of speed, marshal"},
		{"goja", exitUsage, `argument "goja"`},
		{"--fast", exitUsage, "-fast"},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(strings.Fields(c.args), &stdout, &stderr); code != c.code || !strings.Contains(stderr.String(), c.want) || stdout.Len() > 0 {
			t.Errorf("run(%s): got %d and %q, want %d and %q", c.args, code, stderr.String(), c.code, c.want)
		}
	}
}

// TestTurns: every engine comes first as often as any other, and one that fails
// is left out with a warning.
func TestTurns(t *testing.T) {
	m := &measurement{ctx: context.Background(), log: io.Discard, all: []*contender{{name: "a"}, {name: "b"}, {name: "c"}}}
	var order strings.Builder
	err := m.turns("row", 4, func(c *contender) error {
		order.WriteString(c.name)
		if c.name == "b" && order.Len() > 3 {
			return errors.New("wrong answer")
		}
		return nil
	})
	if want := "abcbcacaac"; err != nil || order.String() != want {
		t.Errorf("got the order %s (%v), want %s", &order, err, want)
	}
	if want := "b has no figure for row: wrong answer"; fmt.Sprint(m.report.Warnings) != "["+want+"]" {
		t.Errorf("got the warnings %q, want %q", m.report.Warnings, want)
	}
	v := values{"a": {1, 2}, "b": {1}, "c": {3, 4}}
	m.keep("row", "sec", v, 2)
	if len(m.report.Samples) != 2 || m.report.Samples[1].Name != "row/peer=c" {
		t.Errorf("got the samples %v, want those of a and c", m.report.Samples)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	m.ctx = ctx
	stop := errors.New("stopped")
	if err := m.turns("row", 1, func(*contender) error { cancel(stop); return io.EOF }); err != stop {
		t.Errorf("got %v, want the cause of the context", err)
	}
}

// TestCells: what came of cases and laws is under the right guarantee.
func TestCells(t *testing.T) {
	cases := []enginetest.Case{{ID: "L1", Group: "cpu-loop"}, {ID: "A1", Group: "alloc"}, {ID: "A2", Group: "alloc"}}
	got := cells(enginetest.Report{
		Records: []enginetest.Record{{ID: "L1", Pass: true}, {ID: "A1", Pass: true}, {ID: "A2"}},
		Laws: []enginetest.LawResult{
			{Name: "stops", Status: enginetest.Held}, {Name: "class", Status: enginetest.Broken},
			{Name: "fits", Status: enginetest.NotOffered, Notes: []string{"it does not measure"}},
			{Name: "concurrent", Status: enginetest.NotOffered},
		},
		Findings: []enginetest.Finding{{Law: "class", Case: "A2", Detail: "crash"}},
	}, cases)
	want := map[string]string{
		"It stops":            "holds 1/1 1/1 [] []",
		"It fits":             "fails 1/2 0/0 [class: A2: crash] [fits: it does not measure]",
		"It says why":         "fails 0/0 0/1 [class: A2: crash] []",
		"It leaves nothing":   "not offered 0/0 0/0 [] []",
		"It does not disturb": "not offered 0/0 0/0 [] [concurrent]",
	}
	for i, g := range enginetest.Guarantees() {
		c := got[i]
		if s := fmt.Sprintf("%s %d/%d %d/%d %v %v", c.Verdict(), c.Passed, c.Cases, c.Held, c.Laws, c.Findings, c.NotOffered); s != want[g.Name] {
			t.Errorf("%s: got %s, want %s", g.Name, s, want[g.Name])
		}
	}
}

func TestProgram(t *testing.T) {
	for _, w := range workload.All() {
		if s := program(w.Script); strings.Contains(s.Source, "export ") {
			t.Errorf("%s still has an export", w.Name)
		}
	}
}

func TestMarshalInput(t *testing.T) {
	if n := len(marshalInput()); n < 3<<19 || n > 3<<19+200 {
		t.Errorf("got %d bytes, want 1.5 MiB", n)
	}
}
