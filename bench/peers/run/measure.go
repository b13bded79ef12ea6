package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sandbed/sandbed/bench/peers"
	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/bench/workload"
	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/engine/enginetest"
	"github.com/sandbed/sandbed/reports"
)

// The parts of a measurement, in their order. What the engines do to their own
// processes comes last.
var allParts = []string{"speed", "marshal", "loop", "cold", "memory", "kill", "guarantees"}

// seed is that of the inputs: every run and every engine gets the same.
const seed = 1

// roomy are limits that no timed work meets.
var roomy = engine.Limits{WallClock: time.Minute, MemoryBytes: 512 << 20, MaxOutputBytes: 64 << 20}

// measurement is one run of the comparison.
type measurement struct {
	ctx     context.Context
	quick   bool
	parts   []string
	log     io.Writer
	started time.Time
	caches  string // where folders for caches are made
	report  reports.Peers
	all     []*contender
}

// contender is one engine with its process.
type contender struct {
	name    string
	command peers.Command
	backend *peers.Backend
}

func (m *measurement) add(name string, c peers.Command) error {
	b := peers.New(c, peers.Options{})
	info, err := b.Info(m.ctx)
	if err != nil {
		return fmt.Errorf("run: %s: %w", name, err)
	}
	m.all = append(m.all, &contender{name, c, b})
	m.report.Peers = append(m.report.Peers, reports.Peer{Name: name, Version: info.Version, Settings: info.Settings, Docs: info.Docs})
	return nil
}

func (m *measurement) close() {
	for _, c := range m.all {
		_ = c.backend.Close() // it never fails: it kills
	}
}

func (m *measurement) say(format string, args ...any) {
	fmt.Fprintf(m.log, "%8s  %s\n", time.Since(m.started).Round(time.Second), fmt.Sprintf(format, args...))
}

func (m *measurement) times(quick, full int) int {
	if m.quick {
		return quick
	}
	return full
}

// turns calls f for every engine in every round, another one first each time. An
// engine for which f fails is left out of the row from then on, and its error is
// a warning: it has no figure.
func (m *measurement) turns(row string, rounds int, f func(*contender) error) error {
	out := map[string]bool{}
	for round := range rounds {
		for i := range m.all {
			c := m.all[(i+round)%len(m.all)]
			if out[c.name] {
				continue
			}
			if err := f(c); err != nil {
				if m.ctx.Err() != nil {
					return context.Cause(m.ctx)
				}
				out[c.name] = true
				m.report.Warnings = append(m.report.Warnings, fmt.Sprintf("%s has no figure for %s: %v", c.name, row, err))
				m.say("%s: %s: %v", row, c.name, err)
			}
		}
	}
	return nil
}

// values are the observations of one row, by engine.
type values map[string][]float64

// keep turns them into samples; rounds are those that an engine needs.
func (m *measurement) keep(row, unit string, v values, rounds int) {
	for _, c := range m.all {
		if len(v[c.name]) == rounds {
			m.report.Samples = append(m.report.Samples, sample.New(row+"/peer="+c.name, unit, v[c.name]))
		}
	}
}

func (m *measurement) measure() error {
	for _, part := range allParts {
		if !slices.Contains(m.parts, part) {
			continue
		}
		m.say("%s", part)
		f := map[string]func() error{"speed": m.speed, "marshal": m.marshal, "loop": m.loop, "cold": m.cold,
			"memory": m.memory, "kill": m.kill, "guarantees": m.guarantees}[part]
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// batched times one request in turns, in batches of 20 ms or more.
func (m *measurement) batched(row string, rounds int, r engine.Request, want json.RawMessage) error {
	const least = 20 * time.Millisecond
	sizes, v := map[string]int{}, values{}
	// Not counted: it warms up and finds the size of the batches.
	if err := m.turns(row, 1, func(c *contender) error {
		for n := 1; ; n *= 2 {
			took, err := c.backend.Batch(m.ctx, r, n, want)
			if err != nil {
				return err
			}
			if took >= least {
				sizes[c.name] = n
				return nil
			}
		}
	}); err != nil {
		return err
	}
	if err := m.turns(row, rounds, func(c *contender) error {
		n := sizes[c.name]
		if n == 0 {
			return nil // it failed above, and has a warning
		}
		took, err := c.backend.Batch(m.ctx, r, n, want)
		v[c.name] = append(v[c.name], took.Seconds()/float64(n))
		return err
	}); err != nil {
		return err
	}
	m.keep(row, sample.Seconds, v, rounds)
	return nil
}

// speed times the fresh 1+1 and all workloads.
func (m *measurement) speed() error {
	rounds := m.times(6, 15)
	if err := m.batched("fresh", rounds, engine.Request{Script: engine.Script{Source: "1+1"}}, json.RawMessage("2")); err != nil {
		return err
	}
	for _, w := range workload.All() {
		c, err := w.Case(workload.Medium, seed)
		if err != nil {
			return err
		}
		m.say("workload %s", w.Name)
		if err := m.batched("work/workload="+w.Name, rounds, engine.Request{Script: program(w.Script), Input: c.Input, Limits: roomy}, c.Want); err != nil {
			return err
		}
	}
	return nil
}

// program is a workload without its default export, so that all engines are
// given the same script and none needs modules.
func program(s engine.Script) engine.Script {
	const export = "export default function reshape("
	if strings.Contains(s.Source, export) {
		s.Source = strings.Replace(s.Source, export, "function reshape(", 1) + "\nreshape(input);\n"
	}
	s.Kind = engine.Program
	return s
}

// marshalScript makes 3.7 MiB of result from 1.5 MiB of input.
const marshalScript = `input.map((r) => ({ id: r.id, label: r.name + " of " + r.city, group: r.city, paid: r.paid, total: r.total, share: r.total / 7, kind: "customer", tags: [r.name, r.city, "row"], at: { x: r.id % 97, y: r.id % 89 } }))`

// marshalInput is about 1.5 MiB of rows.
func marshalInput() json.RawMessage {
	var b bytes.Buffer
	b.WriteString("[")
	for n := 0; b.Len() < 3<<19; n++ {
		if n > 0 {
			b.WriteString(",")
		}
		fmt.Fprintf(&b, `{"id":%d,"name":"customer %d","city":"town %d","total":%d.5,"paid":%v}`, n, n*7919%10007, n%211, n*31%5003, n%3 == 0)
	}
	b.WriteString("]")
	return b.Bytes()
}

func (m *measurement) marshal() error {
	r := engine.Request{Script: engine.Script{Source: marshalScript}, Input: marshalInput(), Limits: roomy}
	want, err := m.all[0].backend.Run(m.ctx, r)
	if err != nil {
		return err
	}
	if want.Class != engine.ClassOK {
		return &peers.WrongAnswer{What: "marshal", Outcome: want}
	}
	m.say("%d bytes in, %d bytes out", len(r.Input), len(want.Value))
	return m.batched("marshal", m.times(6, 15), r, want.Value)
}

// concurrent is how many reshapes run at once.
const concurrent = 4

// loop runs reshapes at once beside a loop in the process of the engine.
func (m *measurement) loop() error {
	w := workload.All()[0]
	c, err := w.Case(workload.Medium, seed)
	if err != nil {
		return err
	}
	s := program(w.Script)
	// Long enough for a few collections.
	s.Source += fmt.Sprintf("let out; for (let n = 0; n < %d; n++) out = reshape(input); out;\n", m.times(10, 30))
	r := engine.Request{Script: s, Input: c.Input, Limits: roomy}
	rounds := m.times(6, 15)
	wall, longest, gone := values{}, values{}, values{}
	if err := m.turns("loop", rounds, func(p *contender) error {
		d, err := p.backend.Loop(m.ctx, r, concurrent, c.Want)
		wall[p.name] = append(wall[p.name], d.Wall.Seconds())
		longest[p.name] = append(longest[p.name], d.Longest.Seconds())
		gone[p.name] = append(gone[p.name], d.Unavailable.Seconds()/max(d.Wall, 1).Seconds())
		return err
	}); err != nil {
		return err
	}
	m.keep("loop/figure=wall", sample.Seconds, wall, rounds)
	m.keep("loop/figure=longest", sample.Seconds, longest, rounds)
	m.keep("loop/figure=unavailable", sample.Share, gone, rounds)
	return nil
}

// cold starts processes with caches of compiled code that are empty, and again
// with the same ones.
func (m *measurement) cold() error {
	rounds := m.times(2, 10)
	empty, filled := values{}, values{}
	if err := m.turns("cold", rounds, func(c *contender) error {
		dir, err := os.MkdirTemp(m.caches, "cache-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		for _, v := range []values{empty, filled} {
			took, err := peers.ColdStart(m.ctx, c.command, peers.Options{}, dir)
			if err != nil {
				return err
			}
			v[c.name] = append(v[c.name], took.Seconds())
		}
		return nil
	}); err != nil {
		return err
	}
	m.keep("cold/cache=empty", sample.Seconds, empty, rounds)
	m.keep("cold/cache=filled", sample.Seconds, filled, rounds)
	return nil
}

// memory fills the VM in four ways under a limit of 32 MiB.
func (m *measurement) memory() error {
	for _, k := range []struct{ name, js string }{
		{"arrays", `const k=[];for(;;)k.push(new Array(1000).fill(k))`},
		{"objects", `let k=null;for(let n=0;;n++)k={k,n,a:{n}}`},
		{"typed", `const k=[];for(;;)k.push(new Uint8Array(1<<20).fill(1))`},
		{"buffer", `new Uint8Array(300000000).fill(1).length`},
	} {
		m.say("memory %s", k.name)
		rounds := m.times(1, 3)
		grown, ends, linear := values{}, map[string][]string{}, map[string]int64{}
		r := engine.Request{Script: engine.Script{Source: k.js}, Limits: engine.Limits{WallClock: 5 * time.Second, MemoryBytes: 32 << 20}}
		if err := m.turns("memory "+k.name, rounds, func(c *contender) error {
			bytes, e, err := peers.Growth(m.ctx, c.command, peers.Options{}, r)
			if err != nil {
				return err
			}
			grown[c.name] = append(grown[c.name], float64(bytes))
			linear[c.name] = max(linear[c.name], e.Outcome.Usage.PeakMemoryBytes)
			end := e.Outcome.Label()
			if e.Outcome.Class == engine.ClassEngineFault {
				end = e.Outcome.Message
			}
			if !slices.Contains(ends[c.name], end) {
				ends[c.name] = append(ends[c.name], end)
			}
			return nil
		}); err != nil {
			return err
		}
		for _, c := range m.all {
			if len(grown[c.name]) == 0 {
				continue
			}
			s := sample.New("memory/case="+k.name+"/peer="+c.name, sample.Bytes, grown[c.name])
			s.Warnings = []string{strings.Join(ends[c.name], "; ")}
			if linear[c.name] > 0 {
				s.Config = map[string]string{"linear_bytes": fmt.Sprint(linear[c.name])}
				s.Warnings[0] += ", linear memory " + reports.Value(float64(linear[c.name]), sample.Bytes)
			}
			m.report.Samples = append(m.report.Samples, s)
		}
	}
	return nil
}

// kill runs the scripts of the corpus that must end by clock.
func (m *measurement) kill() error {
	var cases []enginetest.Case
	for _, c := range enginetest.Cases() {
		if strings.HasPrefix(c.Group, "cpu-") && c.Expected == "limit:wallClock" {
			cases = append(cases, c)
		}
	}
	cases = m.some(cases)
	rounds := m.times(1, 5)
	late, lost, early := values{}, map[string]int{}, map[string]int{}
	for i, k := range cases {
		r, ok := k.Request(0, 1)
		if !ok {
			continue
		}
		m.say("kill %d of %d, %s", i+1, len(cases), k.ID)
		each, over := values{}, map[string]bool{}
		if err := m.turns("kill", rounds, func(c *contender) error {
			if over[c.name] {
				return nil
			}
			e, err := c.backend.End(m.ctx, r)
			switch {
			case err != nil:
				return err
			case e.Lost: // not repeated: it costs seconds
				over[c.name] = true
				lost[c.name]++
			case e.Late < 0:
				over[c.name] = true
				early[c.name]++
			default:
				each[c.name] = append(each[c.name], e.Late.Seconds())
			}
			return nil
		}); err != nil {
			return err
		}
		for _, c := range m.all {
			if len(each[c.name]) > 0 && !over[c.name] {
				late[c.name] = append(late[c.name], sample.Quantile(each[c.name], 0.5))
			}
		}
	}
	for _, c := range m.all {
		v := late[c.name]
		var notes []string
		if n := lost[c.name]; n > 0 {
			notes = append(notes, fmt.Sprintf("%d of %d never", n, len(cases)))
			for range n {
				v = append(v, peers.DefaultHangAfter.Seconds())
			}
		}
		if n := early[c.name]; n > 0 {
			notes = append(notes, fmt.Sprintf("%d of %d ended before", n, len(cases)))
		}
		if len(v) == 0 {
			continue
		}
		s := sample.New("kill/peer="+c.name, sample.Seconds, v)
		s.Config, s.Warnings = map[string]string{"lost": fmt.Sprint(lost[c.name]), "cases": fmt.Sprint(len(cases))}, notes
		worst := sample.New("kill/figure=worst/peer="+c.name, sample.Seconds, []float64{slices.Max(v)})
		m.report.Samples = append(m.report.Samples, s, worst)
	}
	return nil
}

// some is every case of a full run, and every fourth of a quick one.
func (m *measurement) some(cases []enginetest.Case) []enginetest.Case {
	if !m.quick {
		return cases
	}
	var few []enginetest.Case
	for i := 0; i < len(cases); i += 4 {
		few = append(few, cases[i])
	}
	return few
}

// guarantees puts every engine through the conformance suite. It takes minutes for
// one that hangs, since what is late is tried three times.
func (m *measurement) guarantees() error {
	for _, g := range enginetest.Guarantees() {
		m.report.Guarantees = append(m.report.Guarantees, reports.PeerGuarantee{Name: g.Name})
	}
	cases := m.some(enginetest.Cases())
	for _, c := range m.all {
		m.say("guarantees of %s", c.name)
		cells, err := matrix(m.ctx, c.command, cases, func(law string) { m.say("  %s", law) })
		if err != nil {
			return err
		}
		for i, cell := range cells {
			cell.Peer = c.name
			m.report.Guarantees[i].Cells = append(m.report.Guarantees[i].Cells, cell)
		}
	}
	return nil
}

// suiteOptions are tighter than the defaults, since the suite has hundreds of
// scripts and tries what is late three times: it counts 250 ms as late, and 1 GiB is
// far beyond the 32 MiB of its limits.
var suiteOptions = peers.Options{HangAfter: time.Second, MaxRSS: 1 << 30}

// matrix is what came of one engine, a cell a guarantee.
func matrix(ctx context.Context, c peers.Command, cases []enginetest.Case, say func(law string)) ([]reports.GuaranteeCell, error) {
	report := enginetest.Examine(ctx, func(ctx context.Context) (engine.Backend, error) {
		b := peers.New(c, suiteOptions)
		return b, b.Warm(ctx) // a start is not the script's affair
	}, enginetest.Options{Cases: cases, OnLaw: func(l enginetest.LawResult) { say(l.Name + ": " + string(l.Status)) }})
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return cells(report, cases), nil
}

// cells groups a report by guarantee. A finding belongs to the guarantee of its
// case or of its law.
func cells(report enginetest.Report, cases []enginetest.Case) []reports.GuaranteeCell {
	groups := map[string]string{}
	for _, c := range cases {
		groups[c.ID] = c.Group
	}
	var all []reports.GuaranteeCell
	for _, g := range enginetest.Guarantees() {
		s := g.Score(report, cases)
		cell := reports.GuaranteeCell{Cases: s.Cases, Passed: s.Passed, Laws: s.Laws, Held: s.Held}
		for _, f := range report.Findings {
			if slices.Contains(g.Laws, f.Law) || slices.Contains(g.Groups, groups[f.Case]) {
				cell.Findings = append(cell.Findings, f.String())
			}
		}
		for _, l := range report.Laws {
			if l.Status == enginetest.NotOffered && slices.Contains(g.Laws, l.Name) {
				cell.NotOffered = append(cell.NotOffered, strings.Join(append([]string{l.Name}, l.Notes...), ": "))
			}
		}
		all = append(all, cell)
	}
	return all
}
