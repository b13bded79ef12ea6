package reports

import (
	"fmt"
	"image/color"
	"math"
	"slices"
	"strings"

	"github.com/sandbed/sandbed/bench/sample"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// What compares the backends of a sandbox: tables and plots.

// backendNames are the backends as people call them, in the order they are shown.
var backendNames = []struct{ backend, name string }{
	{"inproc", "in-process"}, {"pool", "goroutine workers"}, {"process", "process workers"},
}

// figures collects the rows of one table: the last part of each name is the figure.
func (w *writer) figures(group string, keep func(sample.Sample) bool) (order []string, cells map[string]sample.Sample) {
	cells = map[string]sample.Sample{}
	for _, s := range w.run.In(group) {
		if !keep(s) {
			continue
		}
		row, figure, ok := strings.Cut(s.Name, "/figure=")
		if !ok {
			row, figure = s.Name, ""
		}
		if !slices.Contains(order, row) {
			order = append(order, row)
		}
		cells[row+"\x00"+figure] = s
	}
	return order, cells
}

// where names the place in which a row was measured.
func where(s sample.Sample) string {
	for _, b := range backendNames {
		if s.Key("backend") == b.backend {
			switch n := s.Key("workers"); n {
			case "":
				return b.name
			case "1":
				return "1 " + strings.TrimSuffix(b.name, "s")
			default:
				return n + " " + b.name
			}
		}
	}
	return s.Key("backend")
}

// backends is the section that compares them; nothing without such rows.
func (w *writer) backends() {
	loops, loop := w.figures("loop", func(s sample.Sample) bool { return s.Key("of") != "" })
	texts, text := w.figures("marshal", func(s sample.Sample) bool { return s.Key("dir") != "" })
	fairs, fair := w.figures("fair", func(sample.Sample) bool { return true })
	if len(loops)+len(texts)+len(fairs) == 0 {
		return
	}
	w.line("## Backends")
	w.line("")
	cell := func(cells map[string]sample.Sample, row, figure string, p float64) string {
		s, ok := cells[row+"\x00"+figure]
		if !ok {
			return "–"
		}
		return Value(sample.Quantile(s.Values, p), s.Unit)
	}
	const median, worst = 0.5, 1
	if len(loops) > 0 {
		w.line("Four CPU-bound reshapes at once, beside a loop that beats every millisecond: medians of the windows, the longest gap also at worst. In-process each reshape is a task of the loop. Ideal is the processor time of the process ÷ the processors that the four can use. The control is the longest gap of a loop with nothing to do in the same window; \"stopping\" the longest wait of the collector for the world to stop. Unavailable: Σ max(0, gap − 2 ms).")
		w.line("")
		w.line("| beside | collector | wall | ideal | wall ÷ ideal | longest gap | worst | unavailable | control | stopping | windows |")
		w.line("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
		for _, row := range loops {
			s, ok := loop[row+"\x00wall"]
			if !ok {
				continue
			}
			beside, gc := where(s), map[string]string{"off": "quiet", "on": "every 20 ms"}[s.Key("gc")]
			if s.Key("of") == "nothing" {
				beside = "nothing"
			}
			w.line("| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %d |", beside, gc, cell(loop, row, "wall", median), cell(loop, row, "ideal", median), cell(loop, row, "stretch", median),
				cell(loop, row, "longest", median), cell(loop, row, "longest", worst), cell(loop, row, "unavailable", median), cell(loop, row, "control", median), cell(loop, row, "stopping", median), s.Count)
		}
		w.line("")
		w.picture(gapsPlot, "loop gaps", loopGaps)
	}
	if len(fairs) > 0 {
		w.line("How long a script of about 1 ms takes to come back, alone and beside hogs of about 300 ms each that leave one worker free. In-process all of them are tasks of the loop:")
		w.line("")
		w.line("| where | hogs | alone (median) | beside (median) | beside (worst) | runs |")
		w.line("| --- | ---: | ---: | ---: | ---: | ---: |")
		for _, row := range fairs {
			s := fair[row+"\x00beside"]
			w.line("| %s | %s | %s | %s | %s | %d |", where(s), s.Config["hogs"], cell(fair, row, "alone", median), cell(fair, row, "beside", median), cell(fair, row, "beside", worst), s.Count)
		}
		w.line("")
	}
	if len(texts) > 0 {
		w.picture(marshalPlot, "marshalling cost", marshalCost)
		w.fold("Marshalling by size", func() {
			w.line("One string into a script (in) and out of it (out). Handover is the call without the VM's own parsing, script and dump; beyond in-process it is given for a MiB.")
			w.line("")
			w.line("| direction | size | where | call | handover | beyond in-process, a MiB | call ÷ in-process | runs |")
			w.line("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |")
			for _, row := range texts {
				s := text[row+"\x00"]
				w.line("| %s | %s | %s | %s | %s | %s | %s | %d |", s.Key("dir"), s.Key("size"), where(s), cell(text, row, "", median), cell(text, row, "handover", median), cell(text, row, "over", median), cell(text, row, "ratio", median), s.Count)
			}
			decode, ok := w.run.Find("marshal/of=decoding/size=3.68MiB")
			encode, too := w.run.Find("marshal/of=encoding/size=3.68MiB")
			if ok && too {
				w.line("")
				w.line("Texts cross as bytes. If values crossed, 3.68 MiB of rows would cost %s to decode and %s to encode on top.", Value(decode.Value, decode.Unit), Value(encode.Value, encode.Unit))
			}
		})
	}
}

// picture links a plot if there is one.
func (w *writer) picture(name, alt string, make func(sample.Run) (*plot.Plot, []entry)) {
	if p, _ := make(w.run); p != nil {
		w.line("![%s](plots/%s.png)", alt, name)
		w.line("")
	}
}

// beat is the longest gap that counts as in time, in seconds: what a loop tolerates.
const beat = 0.002

// loopGaps draws when a loop did not beat: a line at 2 ms while it did, and at
// the length of the gap while it did not.
func loopGaps(r sample.Run) (*plot.Plot, []entry) {
	p := newPlot("Loop gaps over time: four concurrent CPU-bound reshapes", "time since the reshapes began, s", "gap of the loop (logarithmic)")
	var key []entry
	hi, end := beat, 0.0
	for _, c := range []struct {
		name, label string
		style       draw.LineStyle
	}{
		{"gaps/of=reshapes/backend=inproc/gc=off", "in-process", draw.LineStyle{Color: dark, Width: 3}},
		{"gaps/of=reshapes/backend=pool/workers=4/gc=on", "4 goroutine workers, collector every 20 ms", draw.LineStyle{Color: color.Gray{Y: 0x80}, Width: 1.5, Dashes: []vg.Length{2, 2}}},
		{"gaps/of=reshapes/backend=pool/workers=4/gc=off", "4 goroutine workers", draw.LineStyle{Color: light, Width: 2, Dashes: []vg.Length{7, 3}}},
	} {
		i := slices.IndexFunc(r.Traces, func(t sample.Trace) bool { return t.Name == c.name })
		if i < 0 {
			continue
		}
		t := r.Traces[i]
		pts := plotter.XYs{{X: 0, Y: beat}}
		longest := 0.0
		for _, g := range t.Gaps {
			at, length := g[0], max(g[1], beat)
			pts = append(pts, plotter.XY{X: at, Y: beat}, plotter.XY{X: at, Y: length}, plotter.XY{X: at + length, Y: length}, plotter.XY{X: at + length, Y: beat})
			longest = max(longest, g[1])
		}
		pts = append(pts, plotter.XY{X: max(t.Seconds, pts[len(pts)-1].X), Y: beat})
		hi, end = max(hi, longest), max(end, pts[len(pts)-1].X)
		line, err := plotter.NewLine(pts)
		if err != nil {
			return nil, nil
		}
		line.LineStyle = c.style
		p.Add(line)
		label := fmt.Sprintf("%s: done after %s, no gap above 2 ms", c.label, Value(t.Seconds, sample.Seconds))
		if len(t.Gaps) > 0 {
			label = fmt.Sprintf("%s: done after %s, longest gap %s", c.label, Value(t.Seconds, sample.Seconds), Value(longest, sample.Seconds))
		}
		key = append(key, entry{label, line})
	}
	if len(key) == 0 || end == 0 {
		return nil, nil
	}
	p.Y.Scale = plot.LogScale{}
	p.Y.Min = 0.001
	p.Y.Max = max(hi, 0.02) * 1.2
	p.X.Min, p.X.Max = 0, end*1.02
	var marks ticks
	for _, v := range []float64{0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5} {
		if v > p.Y.Max {
			break
		}
		label := Value(v, sample.Seconds)
		if v == beat {
			label = "≤ 2 ms"
		}
		marks = append(marks, plot.Tick{Value: v, Label: label})
	}
	p.Y.Tick.Marker = marks
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = nil, faint
	p.Add(grid)
	return p, key
}

// marshalCost draws the handover by size: one line a backend and direction.
func marshalCost(r sample.Run) (*plot.Plot, []entry) {
	p := newPlot("Marshalling: cost of the handover by size of the text", "size of the text (logarithmic)", "handover, median (logarithmic)")
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = faint, faint
	p.Add(grid)
	var key []entry
	lo, hi := math.Inf(1), 0.0
	least, most := math.Inf(1), 0.0
	for i, b := range backendNames {
		for _, d := range []struct {
			dir, label string
			dashes     []vg.Length
			shapes     [3]draw.GlyphDrawer // by backend
		}{
			{"in", "in", []vg.Length{5, 3}, [3]draw.GlyphDrawer{draw.RingGlyph{}, draw.TriangleGlyph{}, draw.SquareGlyph{}}},
			{"out", "out", nil, [3]draw.GlyphDrawer{draw.CircleGlyph{}, draw.PyramidGlyph{}, draw.BoxGlyph{}}},
		} {
			var pts plotter.XYs
			for _, s := range r.In("marshal") {
				if s.Key("backend") == b.backend && s.Key("dir") == d.dir && s.Key("figure") == "handover" && s.Value > 0 {
					var size float64
					if _, err := fmt.Sscan(s.Config["bytes"], &size); err != nil || size <= 0 {
						continue
					}
					pts = append(pts, plotter.XY{X: size, Y: s.Value})
					lo, hi = min(lo, s.Value), max(hi, s.Value)
					least, most = min(least, size), max(most, size)
				}
			}
			if len(pts) < 2 {
				continue
			}
			slices.SortFunc(pts, func(a, b plotter.XY) int { return int(a.X - b.X) })
			line, points, err := plotter.NewLinePoints(pts)
			if err != nil {
				return nil, nil
			}
			colour := []color.Color{dark, light, color.Gray{Y: 0x30}}[i]
			line.LineStyle = draw.LineStyle{Color: colour, Width: 1.5, Dashes: d.dashes}
			points.GlyphStyle = draw.GlyphStyle{Color: colour, Radius: 3, Shape: d.shapes[i]}
			p.Add(line, points)
			key = append(key, entry{b.name + ", " + d.label, both{line, points}})
		}
	}
	if hi == 0 {
		return nil, nil
	}
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Min, p.X.Max = least/1.3, most*1.3
	p.Y.Min, p.Y.Max = decade(lo, math.Floor), decade(hi, math.Ceil)
	if p.Y.Min == p.Y.Max {
		p.Y.Max *= 10
	}
	var sizes, marks ticks
	for v := 1 << 10; v <= 1<<30; v *= 4 {
		sizes = append(sizes, plot.Tick{Value: float64(v), Label: Value(float64(v), sample.Bytes)})
	}
	for e := -9; e <= 3; e++ {
		for m := 1; m < 10; m++ {
			v := float64(m) * math.Pow(10, float64(e))
			label := ""
			if m == 1 {
				label = Value(v, sample.Seconds)
			}
			marks = append(marks, plot.Tick{Value: v, Label: label})
		}
	}
	p.X.Tick.Marker, p.Y.Tick.Marker = sizes, marks
	return p, key
}
