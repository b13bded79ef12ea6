package reports

import (
	"fmt"
	"image/color"
	"math"
	"slices"

	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/bench/stat"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// What proves the gate: how often it finds a slowdown, and how often it invents one.

// PowerPoint is how often slowdowns of one size were found.
type PowerPoint struct {
	Series   string  `json:"series"`   // which rows: "margin 5 %"
	Injected float64 `json:"injected"` // 0.10 is 10 %; above 0
	Found    int     `json:"found"`
	Of       int     `json:"of"` // at least 1
}

// WritePower draws the power curve into dir: plots/power.svg and .png. Bars are 95 %
// Clopper-Pearson intervals.
func WritePower(dir string, points []PowerPoint) error {
	files, err := render(powerDrawing(points))
	if err != nil {
		return err
	}
	return place(dir, files)
}

func powerDrawing(points []PowerPoint) drawing {
	const name = "power"
	var series []string
	hi, sizes := 0.0, ticks{{Value: 0, Label: "0"}}
	for _, p := range points {
		if p.Of > 0 && p.Injected > 0 {
			hi = max(hi, 100*p.Injected)
			size := plot.Tick{Value: 100 * p.Injected, Label: digits(100 * p.Injected)}
			if !slices.Contains(sizes, size) {
				sizes = append(sizes, size)
			}
			if !slices.Contains(series, p.Series) {
				series = append(series, p.Series)
			}
		}
	}
	if len(series) == 0 {
		return drawing{name: name}
	}
	return framed(name, 340, func() (*plot.Plot, []entry) {
		p := newPlot("Power: injected slowdowns that the gate found", "injected slowdown, %", "found, % of comparisons; bar: 95 % interval")
		grid := plotter.NewGrid()
		grid.Vertical.Color, grid.Horizontal.Color = faint, faint
		p.Add(grid)
		aim := draw.LineStyle{Color: color.Gray{Y: 0x50}, Width: 1, Dashes: []vg.Length{1, 2}}
		var key []entry
		for i, name := range series {
			style := []struct {
				line  draw.LineStyle
				glyph draw.GlyphStyle
			}{
				{draw.LineStyle{Color: dark, Width: 1.5}, draw.GlyphStyle{Color: dark, Radius: 4, Shape: draw.CircleGlyph{}}},
				{draw.LineStyle{Color: light, Width: 1.5, Dashes: []vg.Length{6, 3}}, draw.GlyphStyle{Color: light, Radius: 5, Shape: draw.PyramidGlyph{}}},
				{draw.LineStyle{Color: color.Gray{Y: 0x40}, Width: 1.5, Dashes: []vg.Length{2, 2}}, draw.GlyphStyle{Color: color.Gray{Y: 0x40}, Radius: 4, Shape: draw.SquareGlyph{}}},
			}[i%3]
			var pts plotter.XYs
			var bars plotter.YErrors
			for _, q := range points {
				if q.Series != name || q.Of <= 0 || q.Injected <= 0 {
					continue
				}
				found := 100 * float64(q.Found) / float64(q.Of)
				// Series of the same size stand side by side, or their bars would cover each other.
				pts = append(pts, plotter.XY{X: 100*q.Injected + hi*0.008*(float64(i)-float64(len(series)-1)/2), Y: found})
				ci := stat.ClopperPearson(q.Found, q.Of, 0.95)
				bars = append(bars, struct{ Low, High float64 }{found - 100*ci.Low, 100*ci.High - found})
			}
			order := slices.Clone(pts)
			slices.SortFunc(order, func(a, b plotter.XY) int { return int(math.Copysign(1, a.X-b.X)) })
			line, dots, err := plotter.NewLinePoints(order)
			if err != nil {
				return nil, nil
			}
			line.LineStyle, dots.GlyphStyle = style.line, style.glyph
			errs, err := plotter.NewYErrorBars(struct {
				plotter.XYs
				plotter.YErrors
			}{pts, bars})
			if err != nil {
				return nil, nil
			}
			errs.LineStyle = draw.LineStyle{Color: style.line.Color, Width: 1}
			p.Add(line, errs, dots)
			key = append(key, entry{cut(plain(name), plotName), both{line, dots}})
		}
		p.X.Min, p.X.Max = 0, hi*1.05
		p.X.Tick.Marker = sizes
		p.Y.Min, p.Y.Max = 0, 103
		p.Y.Tick.Marker = ticks{{Value: 0, Label: "0"}, {Value: 20, Label: "20"}, {Value: 40, Label: "40"}, {Value: 60, Label: "60"}, {Value: 80, Label: "80"}, {Value: 100, Label: "100"}}
		return p, append(key, entry{"aim: 95 %", horizontal(p, 95, 0, hi*1.05, aim)})
	})
}

// both is the thumbnail of a line with its points.
type both struct {
	line *plotter.Line
	dots *plotter.Scatter
}

func (b both) Thumbnail(c *draw.Canvas) {
	b.line.Thumbnail(c)
	b.dots.Thumbnail(c)
}

// WriteAA draws into dir what comparisons of a commit with itself came to:
// plots/aa.svg and .png. The medians are log ratios, one a row and comparison; fired of
// the comparisons raised a false REGRESSION.
func WriteAA(dir string, medians []float64, margin float64, fired, comparisons int) error {
	files, err := render(aaDrawing(medians, margin, fired, comparisons))
	if err != nil {
		return err
	}
	return place(dir, files)
}

func aaDrawing(medians []float64, margin float64, fired, comparisons int) drawing {
	const name = "aa"
	var percent plotter.Values
	reach := 100 * margin * 1.15 // both margins are in the picture
	for _, d := range medians {
		if v := 100 * math.Expm1(d); !math.IsNaN(v) && !math.IsInf(v, 0) {
			percent = append(percent, v)
			reach = max(reach, math.Abs(v)*1.02)
		}
	}
	if len(percent) == 0 || comparisons <= 0 {
		return drawing{name: name}
	}
	title := fmt.Sprintf("A commit against itself: %d of %d comparisons fired (at most %s with 95 %% confidence)", fired, comparisons, Value(stat.UpperBound(fired, comparisons, 0.95), sample.Share))
	return framed(name, 320, func() (*plot.Plot, []entry) {
		p := newPlot(title, "difference found where there is none, %: median of a row in one comparison", "rows")
		const bins = 40
		h := &plotter.Histogram{FillColor: color.Gray{Y: 0xb0}, LineStyle: draw.LineStyle{Color: dark, Width: 1}, Width: 2 * reach / bins}
		most := 0.0
		for i := range bins {
			bin := plotter.HistogramBin{Min: -reach + float64(i)*h.Width, Max: -reach + float64(i+1)*h.Width}
			for _, v := range percent {
				if v >= bin.Min && (v < bin.Max || i == bins-1) {
					bin.Weight++
				}
			}
			most = max(most, bin.Weight)
			if bin.Weight > 0 {
				h.Bins = append(h.Bins, bin)
			}
		}
		p.Add(h)
		vertical(p, 100*margin, 0, most*1.1, marginLine)
		vertical(p, 100*(1/(1+margin)-1), 0, most*1.1, marginLine)
		p.X.Min, p.X.Max = -reach, reach
		p.Y.Min, p.Y.Max = 0, most*1.1
		return p, []entry{{fmt.Sprintf("%d rows", len(percent)), h}, {"margin: " + Value(margin, sample.Share), &plotter.Line{LineStyle: marginLine}}}
	})
}
