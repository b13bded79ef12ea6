package reports

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/bench/stat"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Peers is a comparison of engines on one machine. The first engine is the one
// that the others are compared with.
type Peers struct {
	Schema      int                `json:"schema"`
	Started     time.Time          `json:"started"`
	Took        float64            `json:"took_sec"`
	Quick       bool               `json:"quick,omitempty"`
	Command     string             `json:"command"`
	Environment sample.Environment `json:"environment"`
	Warnings    []string           `json:"warnings,omitempty"`
	Peers       []Peer             `json:"peers"`
	// Guarantees is the matrix, a row a guarantee.
	Guarantees []PeerGuarantee `json:"guarantees,omitempty"`
	// Samples are named by peer: "work/workload=join/peer=goja". The values of
	// two peers in one row are paired by round.
	Samples []sample.Sample `json:"samples"`
}

// PeersSchema is the version of the JSON form of [Peers].
const PeersSchema = 1

// Peer is one engine with its settings.
type Peer struct {
	Name     string `json:"name"`
	Version  string `json:"version,omitempty"`
	Settings string `json:"settings,omitempty"`
	Docs     string `json:"docs,omitempty"`
	// Absent says why the engine was not measured; empty if it was.
	Absent string `json:"absent,omitempty"`
}

// PeerGuarantee is a row of the matrix.
type PeerGuarantee struct {
	Name  string          `json:"name"`
	Cells []GuaranteeCell `json:"cells"`
}

// GuaranteeCell is what one engine did under one guarantee.
type GuaranteeCell struct {
	Peer       string   `json:"peer"`
	Cases      int      `json:"cases"`
	Passed     int      `json:"passed"`
	Laws       int      `json:"laws"`
	Held       int      `json:"held"`
	NotOffered []string `json:"not_offered,omitempty"` // laws, with the reason
	Findings   []string `json:"findings,omitempty"`    // in the order they were made
}

// Verdict is "holds", "fails" or "not offered".
func (c GuaranteeCell) Verdict() string {
	switch {
	case c.Passed < c.Cases || c.Held < c.Laws || len(c.Findings) > 0:
		return "fails"
	case c.Cases+c.Laws == 0:
		return "not offered"
	}
	return "holds"
}

// WritePeers puts peers.md, peers.json and plots/peers-*.svg and *.png into dir,
// which it makes. Each file appears whole or not at all; peers.md comes last.
func WritePeers(dir string, p Peers) error {
	if err := (sample.Run{Samples: p.Samples}).Validate(); err != nil {
		return err
	}
	p.Schema = PeersSchema
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(p); err != nil {
		return err
	}
	height := func(n int) vg.Length { return 110 + 22*vg.Length(n) }
	n := len(p.present())
	plots, err := render(
		framed(peersSpeedPlot, height(n), p.speedPlot),
		framed(peersKillPlot, height(n), func() (*plot.Plot, []entry) {
			return p.dots("Kill latency: deadline → evaluation over, VM freed", "time after the deadline (logarithmic); small: a script, large: median", "kill", sample.Seconds, 1e-5)
		}),
		framed(peersLoopPlot, height(n), func() (*plot.Plot, []entry) {
			return p.dots("Four reshapes at once, collector busy: longest gap of a loop beside them", "longest gap (logarithmic); small: a round, large: median", "loop/figure=longest", sample.Seconds, 1e-3)
		}))
	if err != nil {
		return err
	}
	return place(dir, append(append([]file{{"peers.json", b.Bytes()}}, plots...), file{"peers.md", p.Markdown()}))
}

const (
	peersSpeedPlot = "peers-speed"
	peersKillPlot  = "peers-kill"
	peersLoopPlot  = "peers-loop"
)

// present are the names of those that were measured.
func (p Peers) present() []string {
	var names []string
	for _, peer := range p.Peers {
		if peer.Absent == "" {
			names = append(names, peer.Name)
		}
	}
	return names
}

func (p Peers) find(row, peer string) (sample.Sample, bool) {
	return sample.Run{Samples: p.Samples}.Find(row + "/peer=" + peer)
}

// workloads are the rows of the geometric mean.
func (p Peers) workloads() []string {
	var rows []string
	for _, s := range p.Samples {
		if w := s.Key("workload"); s.Group() == "work" && !slices.Contains(rows, "work/workload="+w) {
			rows = append(rows, "work/workload="+w)
		}
	}
	return rows
}

// ratios are the values of a peer to those of the first, round by round; nil
// unless both have the same rounds.
func (p Peers) ratios(row, peer string) []float64 {
	names := p.present()
	if len(names) == 0 {
		return nil
	}
	ours, ok1 := p.find(row, names[0])
	theirs, ok2 := p.find(row, peer)
	if !ok1 || !ok2 || len(ours.Values) != len(theirs.Values) {
		return nil
	}
	var r []float64
	for i, v := range theirs.Values {
		if ours.Values[i] <= 0 {
			return nil
		}
		r = append(r, v/ours.Values[i])
	}
	return r
}

// Geomean is the geometric mean over all workloads of the time of a peer to that
// of the first, round by round; nil unless the peer has every row.
func (p Peers) Geomean(peer string) []float64 {
	var logs []float64
	rows := p.workloads()
	for _, row := range rows {
		r := p.ratios(row, peer)
		if r == nil || logs != nil && len(r) != len(logs) {
			return nil
		}
		if logs == nil {
			logs = make([]float64, len(r))
		}
		for i, v := range r {
			logs[i] += math.Log(v) / float64(len(rows))
		}
	}
	for i := range logs {
		logs[i] = math.Exp(logs[i])
	}
	return logs
}

// interval writes an interval of the median; what the data do not bound is
// left open.
func interval(values []float64, unit string) string {
	i := stat.MedianInterval(values, 0.95)
	if math.IsInf(i.Low, 0) && math.IsInf(i.High, 0) { // 95 % takes six values
		return fmt.Sprintf("n=%d", len(values))
	}
	end := func(v float64) string {
		if math.IsInf(v, 0) {
			return "…"
		}
		return Value(v, unit)
	}
	return end(i.Low) + "–" + end(i.High)
}

// figure is a cell: the median with its interval, and the paired ratio to the
// first engine.
func (p Peers) figure(row, peer string) string {
	s, ok := p.find(row, peer)
	if !ok {
		return "–"
	}
	cell := fmt.Sprintf("%s [%s]", Value(s.Value, s.Unit), interval(s.Values, s.Unit))
	paired := s.Group() != "kill" && s.Group() != "memory" // there a value is not a round
	if r := p.ratios(row, peer); paired && r != nil && peer != p.present()[0] {
		cell += fmt.Sprintf(" **%s** [%s]", Value(sample.Quantile(r, 0.5), sample.Ratio), interval(r, sample.Ratio))
	}
	if len(s.Warnings) > 0 {
		cell += " (" + inline(strings.Join(s.Warnings, "; ")) + ")"
	}
	return cell
}

// Markdown writes the matrix and the price table.
func (p Peers) Markdown() []byte {
	w := &page{}
	names := p.present()
	w.line("# Engines side by side")
	w.line("")
	kind := "full run"
	if p.Quick {
		kind = "quick run: few repetitions, no more than a first look"
	}
	w.line("%s, %s, %s on %d cores of %s. Commit %s%s, %s, load before %s.", p.Started.UTC().Format("2006-01-02 15:04 MST"), kind,
		time.Duration(p.Took*float64(time.Second)).Round(time.Second), p.Environment.Cores, inline(p.Environment.CPU),
		inline(p.Environment.Commit), map[bool]string{true: " with changes"}[p.Environment.Modified], inline(p.Environment.Go), inline(p.Environment.Load))
	w.line("")
	w.line("Repeat it with `%s`.", strings.ReplaceAll(plain(p.Command), "`", "'"))
	w.line("")
	for _, s := range p.Warnings {
		w.line("- %s", inline(s))
	}
	w.line("")
	w.line("## Who")
	w.line("")
	w.line("| engine | version | settings |")
	w.line("| --- | --- | --- |")
	for _, peer := range p.Peers {
		if peer.Absent != "" {
			w.line("| %s | not measured: %s | |", inline(peer.Name), inline(peer.Absent))
			continue
		}
		w.line("| [%s](%s) | %s | %s |", inline(peer.Name), peer.Docs, inline(peer.Version), inline(peer.Settings))
	}
	w.line("")
	w.line("Every engine sees the input as the global `input` and gives JSON.stringify of the completion value, dumped once. Where an engine does not return a default export, the script is turned into an async function.")
	w.line("")
	p.matrix(w, names)
	p.price(w, names)
	return w.Bytes()
}

func (p Peers) matrix(w *page, names []string) {
	if len(p.Guarantees) == 0 {
		return
	}
	w.line("## What is guaranteed")
	w.line("")
	w.line("By the built-in corpus and the laws of engine/enginetest: cases passed and laws held, of those offered.")
	w.line("")
	w.line("| | %s |", strings.Join(names, " | "))
	w.line("| --- |%s", strings.Repeat(" --- |", len(names)))
	for _, g := range p.Guarantees {
		w.Write([]byte("| " + inline(g.Name)))
		for _, name := range names {
			cell := "–"
			for _, c := range g.Cells {
				if c.Peer != name {
					continue
				}
				cell = c.Verdict()
				if cell == "fails" {
					cell = "**fails**"
				}
				if c.Cases > 0 {
					cell += fmt.Sprintf(", %d/%d cases", c.Passed, c.Cases)
				}
				if c.Laws > 0 {
					cell += fmt.Sprintf(", %d/%d laws", c.Held, c.Laws)
				}
			}
			w.Write([]byte(" | " + cell))
		}
		w.line(" |")
	}
	w.line("")
	w.line("The first symptom of each failure, and what is not offered:")
	w.line("")
	for _, name := range names {
		var lines []string
		for _, g := range p.Guarantees {
			for _, c := range g.Cells {
				if c.Peer != name {
					continue
				}
				if len(c.Findings) > 0 {
					lines = append(lines, fmt.Sprintf("  - %s: %s", inline(g.Name), inline(c.Findings[0])))
				}
				if len(c.NotOffered) > 0 {
					lines = append(lines, fmt.Sprintf("  - %s: not offered: %s", inline(g.Name), inline(strings.Join(c.NotOffered, "; "))))
				}
			}
		}
		if len(lines) == 0 {
			lines = []string{"  - none"}
		}
		w.line("- %s", inline(name))
		w.line("%s", strings.Join(lines, "\n"))
	}
	w.line("")
	w.fold("All findings", func() {
		for _, g := range p.Guarantees {
			for _, c := range g.Cells {
				for _, f := range c.Findings {
					w.line("- %s, %s: %s", inline(c.Peer), inline(g.Name), inline(f))
				}
			}
		}
	})
}

func (p Peers) price(w *page, names []string) {
	if len(p.Samples) == 0 || len(names) == 0 {
		return
	}
	w.line("## What it costs")
	w.line("")
	w.line("Medians over rounds in which the engines took turns, with 95 %% intervals; bold: the ratio to %s, paired by round. An evaluation is in a fresh VM, set-up and tear-down included, timed inside the process of the engine.", inline(names[0]))
	w.line("")
	section := func(title, note string, rows [][2]string) {
		var lines []string
		for _, r := range rows {
			cells := make([]string, len(names))
			seen := false
			for i, name := range names {
				cells[i] = p.figure(r[1], name)
				seen = seen || cells[i] != "–"
			}
			if seen {
				lines = append(lines, fmt.Sprintf("| %s | %s |", inline(r[0]), strings.Join(cells, " | ")))
			}
		}
		if len(lines) == 0 {
			return
		}
		w.line("### %s", title)
		w.line("")
		if note != "" {
			w.line("%s", note)
			w.line("")
		}
		w.line("| | %s |", strings.Join(names, " | "))
		w.line("| --- |%s", strings.Repeat(" ---: |", len(names)))
		w.line("%s", strings.Join(lines, "\n"))
		if title == "Speed" {
			mean := make([]string, len(names))
			for i, name := range names {
				mean[i] = "–"
				if r := p.Geomean(name); r != nil {
					mean[i] = fmt.Sprintf("**%s** [%s]", Value(sample.Quantile(r, 0.5), sample.Ratio), interval(r, sample.Ratio))
				}
			}
			w.line("| geometric mean of the workloads | %s |", strings.Join(mean, " | "))
		}
		w.line("")
	}
	rows := [][2]string{{"fresh 1+1", "fresh"}}
	for _, row := range p.workloads() {
		rows = append(rows, [2]string{strings.TrimPrefix(row, "work/workload="), row})
	}
	section("Speed", "![speed](plots/"+peersSpeedPlot+".png)", rows)
	section("Four reshapes at once", "Beside a loop in the same process that has nothing to do, while the collector is called every 20 ms.\n\n![loop](plots/"+peersLoopPlot+".png)",
		[][2]string{{"wall", "loop/figure=wall"}, {"longest gap", "loop/figure=longest"}, {"unavailable, of the wall", "loop/figure=unavailable"}})
	section("Kill latency", "How long after a deadline of 50 ms the evaluation was over and its VM freed, over the scripts of the corpus that must end by clock. One that never came back counts with the time after which its process was killed.\n\n![kill](plots/"+peersKillPlot+".png)",
		[][2]string{{"median script", "kill"}, {"worst script", "kill/figure=worst"}})
	memory := [][2]string{}
	for _, s := range p.Samples {
		if r := [2]string{"resident set, " + s.Key("case"), "memory/case=" + s.Key("case")}; s.Group() == "memory" && !slices.Contains(memory, r) {
			memory = append(memory, r)
		}
	}
	section("Memory held under a limit of 32 MiB", "How much the resident set of the process grew at most, and how the evaluation ended; a process is killed at 3 GiB.", memory)
	section("Start", "From starting the process to its first result; the caches are those for compiled code, which not every engine has.",
		[][2]string{{"caches empty", "cold/cache=empty"}, {"caches filled", "cold/cache=filled"}})
	section("Marshalling", "A JSON text of 1.5 MiB in, reshaped in the VM, 3.7 MiB out.", [][2]string{{"in, reshape, out", "marshal"}})
}

// speedPlot draws the ratios to the first engine: each workload as a small mark,
// the geometric mean with its interval as a large one, and the fresh 1+1.
func (p Peers) speedPlot() (*plot.Plot, []entry) {
	names := p.present()
	if len(names) < 2 || len(p.workloads()) == 0 {
		return nil, nil
	}
	var small plotter.XYs
	mean, fresh := dotSeries{}, dotSeries{}
	for i, name := range names {
		y := float64(len(names) - 1 - i)
		for _, row := range p.workloads() {
			if r := p.ratios(row, name); r != nil && i > 0 {
				small = append(small, plotter.XY{X: sample.Quantile(r, 0.5), Y: y + 0.15})
			}
		}
		mean.add(p.Geomean(name), y+0.15)
		fresh.add(p.ratios("fresh", name), y-0.2)
	}
	c := newDotPlot("Speed: time against "+names[0]+", paired in one run", "ratio (logarithmic); bar: 95 % interval of the median", names, sample.Ratio)
	c.scatter("a workload", small, draw.GlyphStyle{Color: dark, Radius: 1.5, Shape: draw.RingGlyph{}})
	c.series("geometric mean of the workloads", mean, draw.GlyphStyle{Color: dark, Radius: 4, Shape: draw.CircleGlyph{}})
	c.series("fresh 1+1", fresh, draw.GlyphStyle{Color: light, Radius: 4, Shape: draw.PyramidGlyph{}})
	return c.done()
}

// dots draws one row of samples: an engine a line, its values as small marks.
func (p Peers) dots(title, x, row, unit string, least float64) (*plot.Plot, []entry) {
	names := p.present()
	var small, open plotter.XYs
	median := dotSeries{}
	for i, name := range names {
		y := float64(len(names) - 1 - i)
		s, ok := p.find(row, name)
		if !ok {
			continue
		}
		var values []float64
		lost := s.Config["lost"] // so many of the largest
		n := 0
		_, _ = fmt.Sscan(lost, &n) // absent: 0
		for k, v := range slices.Sorted(slices.Values(s.Values)) {
			v = max(v, least)
			values = append(values, v)
			if k >= len(s.Values)-n {
				open = append(open, plotter.XY{X: v, Y: y})
			} else {
				small = append(small, plotter.XY{X: v, Y: y})
			}
		}
		median.add(values, y)
	}
	if len(small)+len(open) == 0 {
		return nil, nil
	}
	c := newDotPlot(title, x, names, unit)
	c.scatter("one value", small, draw.GlyphStyle{Color: dark, Radius: 1.5, Shape: draw.RingGlyph{}})
	c.series("median, 95 % interval", median, draw.GlyphStyle{Color: dark, Radius: 4, Shape: draw.CircleGlyph{}})
	c.scatter("never: killed with its process", open, draw.GlyphStyle{Color: light, Radius: 6, Shape: draw.CrossGlyph{}})
	return c.done()
}

// dotSeries are medians with their intervals.
type dotSeries struct {
	points    plotter.XYs
	intervals []plotter.XYs
}

func (d *dotSeries) add(values []float64, y float64) {
	if len(values) == 0 {
		return
	}
	d.points = append(d.points, plotter.XY{X: sample.Quantile(values, 0.5), Y: y})
	i := stat.MedianInterval(values, 0.95)
	sorted := slices.Sorted(slices.Values(values))
	d.intervals = append(d.intervals, plotter.XYs{{X: max(i.Low, sorted[0]), Y: y}, {X: min(i.High, sorted[len(sorted)-1]), Y: y}})
}

// dotPlot is a plot with a line an engine and a logarithmic axis.
type dotPlot struct {
	p      *plot.Plot
	key    []entry
	unit   string
	lo, hi float64
	failed bool
}

func newDotPlot(title, x string, names []string, unit string) *dotPlot {
	c := &dotPlot{p: newPlot(title, x, ""), unit: unit, lo: math.Inf(1)}
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = faint, faint
	c.p.Add(grid)
	var rows labelled
	for i, name := range names {
		rows = append(rows, plot.Tick{Value: float64(len(names) - 1 - i), Label: name})
	}
	c.p.Y.Tick.Marker = rows
	c.p.Y.Min, c.p.Y.Max = -0.5, float64(len(names))-0.5
	return c
}

func (c *dotPlot) scatter(label string, points plotter.XYs, style draw.GlyphStyle) {
	if len(points) == 0 {
		return
	}
	s, err := plotter.NewScatter(points)
	if err != nil {
		c.failed = true
		return
	}
	s.GlyphStyle = style
	c.p.Add(s)
	c.key = append(c.key, entry{label, s})
	for _, p := range points {
		c.lo, c.hi = min(c.lo, p.X), max(c.hi, p.X)
	}
}

func (c *dotPlot) series(label string, d dotSeries, style draw.GlyphStyle) {
	for _, i := range d.intervals {
		l, err := plotter.NewLine(i)
		if err != nil {
			c.failed = true
			return
		}
		l.LineStyle = draw.LineStyle{Color: style.Color, Width: 1.5}
		c.p.Add(l)
		c.lo, c.hi = min(c.lo, i[0].X), max(c.hi, i[1].X)
	}
	c.scatter(label, d.points, style)
}

func (c *dotPlot) done() (*plot.Plot, []entry) {
	if c.failed || len(c.key) == 0 || !(c.lo > 0) || math.IsInf(c.hi, 0) {
		return nil, nil
	}
	c.p.X.Scale = plot.LogScale{}
	c.p.X.Min, c.p.X.Max = c.lo/1.15, c.hi*1.15
	var marks ticks
	wide := c.hi/c.lo > 300
	for e := -9; e <= 6; e++ {
		for m := 1; m < 10; m++ {
			v := float64(m) * math.Pow(10, float64(e))
			label := ""
			if m == 1 || !wide && (m == 2 || m == 5) {
				label = Value(v, c.unit)
			}
			marks = append(marks, plot.Tick{Value: v, Label: label})
		}
	}
	c.p.X.Tick.Marker = marks
	return c.p, c.key
}
