package reports

import (
	"fmt"
	"image/color"
	"math"
	"slices"
	"strconv"

	"github.com/sandbed/sandbed/bench/gate"
	"github.com/sandbed/sandbed/bench/sample"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// The plots of a comparison, by the name of their files under plots/.
const (
	forestPlot  = "forest"
	roundsPlot  = "rounds"
	ecdfPlot    = "ecdf"
	historyPlot = "history"
)

const (
	forestRows = 40 // that the forest plot shows
	tileRows   = 6  // that are drawn one by one
	plotName   = 44 // characters of a name in a plot
)

var (
	band = color.RGBA{R: 0xd2, G: 0xd2, B: 0xd2, A: 0xff} // within the margin
	red  = color.RGBA{R: 0xb0, G: 0x1c, B: 0x1c, A: 0xff}
)

func (c *comparison) drawings() []drawing {
	return []drawing{c.forest(), c.rounds(), c.ecdf(), historyDrawing(c.history)}
}

type mark struct {
	label string
	words []gate.Word
	style draw.GlyphStyle
}

// marks are how a row's verdict is drawn: each has its own shape.
var marks = []mark{
	{"regression", []gate.Word{gate.Regression, gate.Failed}, draw.GlyphStyle{Color: red, Radius: 4, Shape: draw.BoxGlyph{}}},
	{"waived", []gate.Word{gate.Waived}, draw.GlyphStyle{Color: red, Radius: 4, Shape: draw.SquareGlyph{}}},
	{"improvement", []gate.Word{gate.Improvement}, draw.GlyphStyle{Color: light, Radius: 5, Shape: draw.PyramidGlyph{}}},
	{"OK", []gate.Word{gate.OK}, draw.GlyphStyle{Color: dark, Radius: 4, Shape: draw.CircleGlyph{}}},
	{"no verdict", nil, draw.GlyphStyle{Color: color.Gray{Y: 0x40}, Radius: 4, Shape: draw.RingGlyph{}}},
}

// forest is the ratio of each row with its interval, on the band of its margin.
func (c *comparison) forest() drawing {
	rows := c.paired()
	title := "Head against base, by row, with intervals that are valid at every look"
	if c.Unpaired {
		title = "Head against base, by row"
	}
	if len(rows) > forestRows {
		title += fmt.Sprintf(": the first %d of %d", forestRows, len(rows))
		rows = rows[:forestRows]
	}
	if len(rows) == 0 {
		return drawing{name: forestPlot}
	}
	height := vg.Length(110 + 18*len(rows))
	return framed(forestPlot, height, func() (*plot.Plot, []entry) {
		var key []entry
		p := newPlot(title, "head ÷ base (logarithmic)", "")
		lo, hi := 0.95, 1.05
		for _, r := range rows {
			for _, v := range []float64{r.Ratio, r.Interval.Low, r.Interval.High, 1 + r.Theta, 1 / (1 + r.Theta)} {
				if v > 0 && !math.IsInf(v, 0) {
					lo, hi = min(lo, v), max(hi, v)
				}
			}
		}
		lo, hi = lo/math.Pow(hi/lo, 0.04), hi*math.Pow(hi/lo, 0.04)
		y := func(i int) float64 { return float64(len(rows) - 1 - i) }
		for i, r := range rows {
			if r.Theta <= 0 {
				continue
			}
			a, b := 1/(1+r.Theta), 1+r.Theta
			box, err := plotter.NewPolygon(plotter.XYs{{X: a, Y: y(i) - 0.5}, {X: b, Y: y(i) - 0.5}, {X: b, Y: y(i) + 0.5}, {X: a, Y: y(i) + 0.5}})
			if err != nil {
				return nil, nil
			}
			box.Color, box.LineStyle = band, draw.LineStyle{}
			p.Add(box)
		}
		vertical(p, 1, -0.5, float64(len(rows))-0.5, draw.LineStyle{Color: color.Gray{Y: 0x60}, Width: 1})
		used := make([]plotter.XYs, len(marks))
		for i, r := range rows {
			k := slices.IndexFunc(marks, func(m mark) bool { return slices.Contains(m.words, r.Verdict) })
			if k < 0 {
				k = len(marks) - 1
			}
			used[k] = append(used[k], plotter.XY{X: r.Ratio, Y: y(i)})
			style := draw.LineStyle{Color: marks[k].style.Color, Width: 1.5}
			from, to := r.Interval.Low, r.Interval.High
			// An end that nothing bounds runs out of the plot, dashed.
			if !(from > 0) {
				from, style.Dashes = lo, []vg.Length{3, 2}
			}
			if math.IsInf(to, 0) || math.IsNaN(to) {
				to, style.Dashes = hi, []vg.Length{3, 2}
			}
			line, err := plotter.NewLine(plotter.XYs{{X: from, Y: y(i)}, {X: to, Y: y(i)}})
			if err != nil {
				return nil, nil
			}
			line.LineStyle = style
			p.Add(line)
		}
		for k, pts := range used {
			if len(pts) == 0 {
				continue
			}
			s, err := plotter.NewScatter(pts)
			if err != nil {
				return nil, nil
			}
			s.GlyphStyle = marks[k].style
			p.Add(s)
			key = append(key, entry{marks[k].label, s})
		}
		p.X.Scale = plot.LogScale{}
		p.X.Min, p.X.Max = lo, hi
		p.X.Tick.Marker = ratioTicks(lo, hi, 9)
		var names ticks
		for i, r := range rows {
			name := r.Name
			if !r.Gated {
				name += " (not gated)"
			}
			names = append(names, plot.Tick{Value: y(i), Label: cut(plain(name), plotName)})
		}
		p.Y.Tick.Marker = labelled(names)
		p.Y.Tick.Label.Font.Size = 9
		p.Y.Min, p.Y.Max = -0.6, float64(len(rows))-0.4
		return p, append(key, entry{"interval", &plotter.Line{LineStyle: draw.LineStyle{Color: color.Black, Width: 1.5}}}, entry{"not bounded yet", &plotter.Line{LineStyle: draw.LineStyle{Color: color.Black, Width: 1.5, Dashes: []vg.Length{3, 2}}}}, entry{"within the margin", &plotter.Polygon{Color: band}})
	})
}

// vertical draws a line at x.
func vertical(p *plot.Plot, x, from, to float64, style draw.LineStyle) {
	if line, err := plotter.NewLine(plotter.XYs{{X: x, Y: from}, {X: x, Y: to}}); err == nil {
		line.LineStyle = style
		p.Add(line)
	}
}

// horizontal draws a line at y and returns it, for a legend.
func horizontal(p *plot.Plot, y, from, to float64, style draw.LineStyle) *plotter.Line {
	line, err := plotter.NewLine(plotter.XYs{{X: from, Y: y}, {X: to, Y: y}})
	if err != nil {
		return nil
	}
	line.LineStyle = style
	p.Add(line)
	return line
}

// ratioTicks marks round ratios, at most about so many.
func ratioTicks(lo, hi float64, most int) ticks {
	var out ticks
	if hi/lo > 3 {
		for e := -6; e <= 6; e++ {
			for _, m := range []float64{1, 2, 5} {
				v := m * math.Pow(10, float64(e))
				out = append(out, plot.Tick{Value: v, Label: strconv.FormatFloat(v, 'g', 6, 64)})
			}
		}
		return out
	}
	step := 1.0
	for _, s := range []float64{0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5} {
		if (hi-lo)/s <= float64(most) {
			step = s
			break
		}
	}
	decimals := max(0, int(math.Ceil(-math.Log10(step)-1e-9)))
	for k := math.Ceil(lo / step); k*step <= hi; k++ {
		out = append(out, plot.Tick{Value: k * step, Label: strconv.FormatFloat(k*step, 'f', decimals, 64)})
	}
	return out
}

// tiles draws plots in a grid of two columns below a title and a legend.
func tiles(name, title string, key []entry, make []func() *plot.Plot) drawing {
	make = slices.DeleteFunc(make, func(f func() *plot.Plot) bool { return f() == nil })
	if len(make) == 0 {
		return drawing{name: name}
	}
	columns := min(2, len(make))
	lines := (len(make) + columns - 1) / columns
	const above, each = 46, 165
	return drawing{name, above + each*vg.Length(lines), func(c draw.Canvas) {
		titled(c, title, key, func(body draw.Canvas) {
			grid := draw.Tiles{Rows: lines, Cols: columns, PadX: 14, PadY: 10}
			for i, f := range make {
				p := f()
				p.Title.TextStyle.Font.Size = 9
				p.Title.Padding = 3
				for _, a := range []*plot.Axis{&p.X, &p.Y} {
					a.Label.TextStyle.Font.Size, a.Tick.Label.Font.Size = 9, 8
				}
				p.Draw(grid.At(body, i%columns, i/columns))
			}
		})
	}}
}

// shown are the rows that are drawn one by one: those to look at first.
func (c *comparison) shown() []gate.Row {
	rows := c.paired()
	slices.SortStableFunc(rows, func(a, b gate.Row) int {
		switch {
		case notable(a) == notable(b):
			return 0
		case notable(a):
			return -1
		}
		return 1
	})
	return rows[:min(len(rows), tileRows)]
}

// first says which rows tiles show.
func (c *comparison) first(title string) string {
	if n := len(c.paired()); n > tileRows {
		return fmt.Sprintf("%s: the first %d of %d rows", title, tileRows, n)
	}
	return title
}

var (
	baseFirst = draw.GlyphStyle{Color: dark, Radius: 3, Shape: draw.CircleGlyph{}}
	headFirst = draw.GlyphStyle{Color: light, Radius: 3.5, Shape: draw.PyramidGlyph{}}

	medianLine = draw.LineStyle{Color: color.Black, Width: 1.5}
	marginLine = draw.LineStyle{Color: red, Width: 1, Dashes: []vg.Length{4, 3}}
)

// rounds is the ratio of each round by the order of its two launches: what drifts,
// or leans to one order, shows here.
func (c *comparison) rounds() drawing {
	var make []func() *plot.Plot
	for _, r := range c.shown() {
		make = append(make, func() *plot.Plot {
			if len(r.LogRatios) == 0 {
				return nil
			}
			p := newPlot(cut(plain(r.Name), plotName), "round", "head ÷ base")
			n := float64(len(r.LogRatios))
			lo, hi := 1/(1+r.Theta), 1+r.Theta
			var ab, ba plotter.XYs
			for i, d := range r.LogRatios {
				v := math.Exp(d)
				if math.IsNaN(v) || math.IsInf(v, 0) || v == 0 {
					continue
				}
				lo, hi = min(lo, v), max(hi, v)
				pt := plotter.XY{X: float64(i + 1), Y: v}
				if i < len(r.Orders) && r.Orders[i] == "BA" {
					ba = append(ba, pt)
				} else {
					ab = append(ab, pt)
				}
			}
			horizontal(p, 1, 0, n+1, draw.LineStyle{Color: faint, Width: 1})
			margin := 1 + r.Theta
			if r.Better == "higher" {
				margin = 1 / margin
			}
			horizontal(p, margin, 0, n+1, marginLine)
			horizontal(p, r.Ratio, 0, n+1, medianLine)
			for _, s := range []struct {
				pts   plotter.XYs
				style draw.GlyphStyle
			}{{ab, baseFirst}, {ba, headFirst}} {
				if len(s.pts) == 0 {
					continue
				}
				scatter, err := plotter.NewScatter(s.pts)
				if err != nil {
					return nil
				}
				scatter.GlyphStyle = s.style
				p.Add(scatter)
			}
			pad := math.Pow(hi/lo, 0.06)
			p.Y.Scale = plot.LogScale{}
			p.Y.Min, p.Y.Max = lo/pad, hi*pad
			p.Y.Tick.Marker = ratioTicks(p.Y.Min, p.Y.Max, 6)
			p.X.Min, p.X.Max = 0, n+1
			p.X.Tick.Marker = countTicks(n)
			return p
		})
	}
	return tiles(roundsPlot, c.first("Ratio by round (logarithmic)"), []entry{{"base first", &plotter.Scatter{GlyphStyle: baseFirst}}, {"head first", &plotter.Scatter{GlyphStyle: headFirst}},
		{"median", &plotter.Line{LineStyle: medianLine}}, {"margin", &plotter.Line{LineStyle: marginLine}}}, make)
}

// countTicks marks about five whole numbers from 1 to n.
func countTicks(n float64) ticks {
	step := max(1, math.Ceil(n/5))
	if step > 5 {
		step = math.Ceil(step/5) * 5
	}
	out := ticks{{Value: 1, Label: "1"}}
	for v := step; v <= n; v += step {
		if v > 1 {
			out = append(out, plot.Tick{Value: v, Label: fmt.Sprint(v)})
		}
	}
	return out
}

var (
	baseLine = draw.LineStyle{Color: dark, Width: 2}
	headLine = draw.LineStyle{Color: light, Width: 2, Dashes: []vg.Length{6, 3}}
)

// ecdf is the share of launches within a value, for base and head.
func (c *comparison) ecdf() drawing {
	var make []func() *plot.Plot
	for _, r := range c.shown() {
		make = append(make, func() *plot.Plot {
			if len(r.BaseVals) == 0 || len(r.HeadVals) == 0 {
				return nil
			}
			all := append(slices.Clone(r.BaseVals), r.HeadVals...)
			lo, hi := slices.Min(all), slices.Max(all)
			if math.IsNaN(lo) || math.IsInf(lo, 0) || math.IsInf(hi, 0) {
				return nil
			}
			if lo == hi {
				lo, hi = lo-math.Abs(lo)*0.01-1e-12, hi+math.Abs(hi)*0.01+1e-12
			}
			marks, unit := valueTicks(lo, hi, r.Unit)
			p := newPlot(cut(plain(r.Name), plotName), unit, "launches, %")
			pad := 0.04 * (hi - lo)
			for _, s := range []struct {
				values []float64
				style  draw.LineStyle
			}{{r.BaseVals, baseLine}, {r.HeadVals, headLine}} {
				line, err := steps(s.values, lo-pad, hi+pad)
				if err != nil {
					return nil
				}
				line.LineStyle = s.style
				p.Add(line)
			}
			p.X.Min, p.X.Max = lo-pad, hi+pad
			p.X.Tick.Marker = marks
			p.Y.Min, p.Y.Max = 0, 100
			p.Y.Tick.Marker = ticks{{Value: 0, Label: "0"}, {Value: 25}, {Value: 50, Label: "50"}, {Value: 75}, {Value: 100, Label: "100"}}
			return p
		})
	}
	return tiles(ecdfPlot, c.first("Launches within a value"), []entry{{"base", &plotter.Line{LineStyle: baseLine}}, {"head", &plotter.Line{LineStyle: headLine}}}, make)
}

// steps is the share of values, in percent, that are at most x, from x = from to x = to.
func steps(values []float64, from, to float64) (*plotter.Line, error) {
	pts := plotter.XYs{{X: from, Y: 0}}
	sorted := slices.Sorted(slices.Values(values))
	for i, v := range sorted {
		pts = append(pts, plotter.XY{X: v, Y: 100 * float64(i+1) / float64(len(sorted))})
	}
	line, err := plotter.NewLine(append(pts, plotter.XY{X: to, Y: 100}))
	if err == nil {
		line.StepStyle = plotter.PostStep
	}
	return line, err
}

// valueTicks marks a linear axis of a unit and names the unit as it is shown:
// "11.8", "12.0" … of "ms".
func valueTicks(lo, hi float64, unit string) (ticks, string) {
	size, name := 1.0, unit
	scales := map[string][]struct {
		name string
		size float64
	}{
		sample.Seconds: {{"s", 1}, {"ms", 1e-3}, {"µs", 1e-6}, {"ns", 1e-9}},
		sample.Bytes:   {{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}},
		sample.Share:   {{"%", 0.01}},
	}[unit]
	for _, s := range scales {
		size, name = s.size, s.name
		if hi >= s.size {
			break
		}
	}
	step := math.Pow(10, math.Floor(math.Log10((hi-lo)/size))-1)
	for _, m := range []float64{1, 2, 5, 10, 20, 50} {
		if (hi-lo)/size <= 6*step*m {
			step *= m
			break
		}
	}
	decimals := max(0, int(math.Ceil(-math.Log10(step)-1e-9)))
	var out ticks
	for k := math.Ceil(lo / size / step); k*step*size <= hi; k++ {
		out = append(out, plot.Tick{Value: k * step * size, Label: strconv.FormatFloat(k*step, 'f', decimals, 64)})
	}
	return out, name
}
