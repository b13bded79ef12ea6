package reports

import (
	"bytes"
	"fmt"
	"html"
	"image/color"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"github.com/sandbed/sandbed/bench/sample"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// plotWidth is in points: 800 pixels at the 96 dots an inch of gonum's PNG.
const plotWidth vg.Length = 600

// Series differ in lightness, dash and marker, not in hue alone.
var (
	dark  = color.RGBA{R: 0x0b, G: 0x3c, B: 0x7d, A: 0xff}
	light = color.RGBA{R: 0xe0, G: 0x7b, B: 0x10, A: 0xff}
	faint = color.RGBA{R: 0xb8, G: 0xb8, B: 0xb8, A: 0xff}
)

func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text = title
	p.Title.Padding = 4 * vg.Millimeter
	p.X.Label.Text, p.Y.Label.Text = x, y
	for _, f := range []*font.Font{&p.Title.TextStyle.Font, &p.X.Label.TextStyle.Font, &p.Y.Label.TextStyle.Font, &p.X.Tick.Label.Font, &p.Y.Tick.Label.Font, &p.Legend.TextStyle.Font} {
		f.Variant = "Sans"
	}
	p.X.Label.Padding = 1 * vg.Millimeter
	p.Legend.TextStyle.Font.Size = 10
	return p
}

// ticks are the marks of an axis that lie within it.
type ticks []plot.Tick

func (t ticks) Ticks(lo, hi float64) []plot.Tick {
	var in []plot.Tick
	for _, tick := range t {
		if tick.Value >= lo*(1-1e-9) && tick.Value <= hi*(1+1e-9) {
			in = append(in, tick)
		}
	}
	return in
}

// killLatency is the share of kills that were over within a time, one curve
// with the collector quiet and one with it busy.
func killLatency(r sample.Run) (*plot.Plot, []entry) {
	const least = 1e-6 // a logarithm needs a floor; nothing is freed sooner
	p := newPlot("Kill latency: deadline → VM free", "time after the deadline (logarithmic)", "share of kills, %")
	var key []entry
	hi, lo := 0.0, math.Inf(1)
	for _, c := range []struct {
		name, label string
		style       draw.LineStyle
	}{
		{"kill/gc=off", "collector quiet", draw.LineStyle{Color: dark, Width: 2}},
		{"kill/gc=on", "collector called every 20 ms", draw.LineStyle{Color: light, Width: 2, Dashes: []vg.Length{6, 3}}},
	} {
		s, ok := r.Find(c.name)
		if !ok {
			continue
		}
		values := slices.Sorted(slices.Values(s.Values))
		var pts plotter.XYs
		for i, v := range values {
			v = max(v, least)
			lo, hi = min(lo, v), max(hi, v)
			pts = append(pts, plotter.XY{X: v, Y: 100 * float64(i+1) / float64(len(values))})
		}
		pts = slices.Insert(pts, 0, plotter.XY{X: pts[0].X, Y: 0})
		line, err := plotter.NewLine(pts)
		if err != nil {
			return nil, nil
		}
		line.StepStyle = plotter.PostStep
		line.LineStyle = c.style
		p.Add(line)
		key = append(key, entry{c.label + ": median " + Value(s.Value, s.Unit) + ", p99 " + Value(sample.Quantile(s.Values, 0.99), s.Unit) + ", worst " + Value(sample.Quantile(s.Values, 1), s.Unit) + ", " + thousands(float64(s.Count)) + " kills", line})
	}
	if len(key) == 0 {
		return nil, nil
	}
	p.X.Scale = plot.LogScale{}
	// The axis begins and ends at marks, so that there are always some.
	p.X.Min, p.X.Max = decade(lo, math.Floor), decade(hi, math.Ceil)
	if p.X.Min == p.X.Max {
		p.X.Max *= 10
	}
	var marks ticks
	for e := -9; e <= 3; e++ {
		for m := 1; m < 10; m++ {
			v := float64(m) * math.Pow(10, float64(e))
			label := ""
			if m == 1 || (m == 2 || m == 5) && p.X.Max/p.X.Min < 1500 {
				label = Value(v, sample.Seconds)
			}
			marks = append(marks, plot.Tick{Value: v, Label: label})
		}
	}
	p.X.Tick.Marker = marks
	p.Y.Min, p.Y.Max = 0, 101
	p.Y.Tick.Marker = ticks{{Value: 0, Label: "0"}, {Value: 25, Label: "25"}, {Value: 50, Label: "50"}, {Value: 75, Label: "75"}, {Value: 90, Label: "90"}, {Value: 99, Label: "99"}}
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = faint, faint
	p.Add(grid)
	return p, key
}

// decade rounds v to a power of ten.
func decade(v float64, round func(float64) float64) float64 {
	return math.Pow(10, round(math.Log10(v)))
}

// guardCost is the ratio of each metering to off, one line a workload: each
// round as a small mark, the median as a large one.
func guardCost(r sample.Run) (*plot.Plot, []entry) {
	var rows []string
	hi, lo := 1.0, 1.0
	for _, s := range r.In("guard") {
		if w := s.Key("workload") + s.Key("script"); w != "" && !slices.Contains(rows, w) {
			rows = append(rows, w)
		}
		for _, v := range s.Values {
			hi, lo = max(hi, v), min(lo, v)
		}
	}
	if len(rows) == 0 {
		return nil, nil
	}
	p := newPlot("Guard cost: time against the same evaluation without guards", "ratio to metering off (logarithmic); large mark: median, small: one round", "")
	slices.Reverse(rows) // the first at the top
	var key []entry
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = faint, faint
	p.Add(grid)
	for _, c := range []struct {
		metering string
		glyph    draw.GlyphDrawer
		small    draw.GlyphDrawer
		color    color.Color
		offset   float64
	}{
		{"on", draw.CircleGlyph{}, draw.RingGlyph{}, dark, 0.12},
		{"close-on-done", draw.PyramidGlyph{}, draw.TriangleGlyph{}, light, -0.12},
	} {
		var rounds, medians plotter.XYs
		for _, s := range r.In("guard") {
			row := slices.Index(rows, s.Key("workload")+s.Key("script"))
			if s.Key("metering") != c.metering || row < 0 {
				continue
			}
			y := float64(row) + c.offset
			medians = append(medians, plotter.XY{X: s.Value, Y: y})
			for _, v := range s.Values {
				rounds = append(rounds, plotter.XY{X: v, Y: y})
			}
		}
		if len(medians) == 0 {
			continue
		}
		small, err := plotter.NewScatter(rounds)
		if err != nil {
			return nil, nil
		}
		small.GlyphStyle = draw.GlyphStyle{Color: c.color, Radius: 1.5, Shape: c.small}
		large, err := plotter.NewScatter(medians)
		if err != nil {
			return nil, nil
		}
		large.GlyphStyle = draw.GlyphStyle{Color: c.color, Radius: 4, Shape: c.glyph}
		p.Add(small, large)
		label := "metering " + c.metering
		if mean, ok := r.Find("guard/metering=" + c.metering); ok {
			label += ": geometric mean " + Value(mean.Value, mean.Unit)
			x := mean.Value
			line, err := plotter.NewLine(plotter.XYs{{X: x, Y: -0.5}, {X: x, Y: float64(len(rows)) - 0.5}})
			if err != nil {
				return nil, nil
			}
			line.LineStyle = draw.LineStyle{Color: c.color, Width: 1, Dashes: []vg.Length{4, 3}}
			p.Add(line)
			hi, lo = max(hi, x), min(lo, x)
		}
		key = append(key, entry{label, large})
	}
	p.X.Scale = plot.LogScale{}
	p.X.Min, p.X.Max = lo/1.03, hi*1.05
	var marks ticks
	for _, v := range []float64{0.5, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 4, 6, 8, 12, 20, 50} {
		label := strconv.FormatFloat(v, 'g', -1, 64)
		if hi > 2 && (v == 1.1 || v == 0.9) {
			label = ""
		}
		marks = append(marks, plot.Tick{Value: v, Label: label})
	}
	p.X.Tick.Marker = marks
	var names ticks
	for i, row := range rows {
		names = append(names, plot.Tick{Value: float64(i), Label: row})
	}
	p.Y.Tick.Marker = labelled(names)
	p.Y.Min, p.Y.Max = -0.5, float64(len(rows))-0.5
	return p, key
}

// labelled shows all of its marks whatever the axis.
type labelled []plot.Tick

func (l labelled) Ticks(_, _ float64) []plot.Tick { return l }

// margin keeps labels off the edge, in points.
const margin = 9

// drawing is a plot that a report may hold.
type drawing struct {
	name   string // of its files under plots/
	height vg.Length
	// draw puts it on a canvas, made anew each time, since drawing changes a plot.
	draw func(draw.Canvas)
}

// entry is one of a legend.
type entry struct {
	label string
	thumb plot.Thumbnailer
}

// titled draws a title and a legend above what body draws: nothing of the data can
// lie under the legend.
func titled(c draw.Canvas, title string, key []entry, body func(draw.Canvas)) {
	const gap, below = 14, 15
	head := newPlot(title, "", "")
	head.HideAxes()
	head.Draw(c)
	top, x := vg.Length(24), vg.Length(0)
	for _, e := range key {
		l := &newPlot("", "", "").Legend
		l.Add(e.label, e.thumb)
		l.Top, l.Left = true, true
		width := l.Rectangle(c).Size().X
		if x > 0 && x+width > c.Size().X {
			top, x = top+below, 0
		}
		l.Draw(draw.Crop(c, x, 0, 0, -top))
		x += width + gap
	}
	body(draw.Crop(c, 0, 0, 0, -top-below-8))
}

// framed is the drawing of one plot, its title and legend above it; none if there
// is nothing to show.
func framed(name string, height vg.Length, make func() (*plot.Plot, []entry)) drawing {
	if p, _ := make(); p == nil {
		return drawing{name: name}
	}
	return drawing{name, height, func(c draw.Canvas) {
		p, key := make()
		title, x, y := p.Title.Text, p.X.Label, p.Y.Label
		p.Title.Text, p.X.Label.Text, p.Y.Label.Text = "", "", ""
		titled(c, title, key, func(c draw.Canvas) {
			// gonum makes room for a label in the arithmetic middle of a logarithmic axis, which is
			// near its end. So ours stand beside the plot.
			height := x.TextStyle.Height("x") + 3
			if y.Text != "" {
				y.TextStyle.XAlign, y.TextStyle.YAlign = draw.XLeft, draw.YTop
				c.FillText(y.TextStyle, vg.Point{X: c.Min.X, Y: c.Max.Y}, y.Text)
				c.Max.Y -= height + 4
			}
			x.TextStyle.XAlign, x.TextStyle.YAlign = draw.XCenter, draw.YBottom
			c.FillText(x.TextStyle, vg.Point{X: c.Center().X, Y: c.Min.Y}, x.Text)
			c.Min.Y += height
			p.Draw(c)
		})
	}}
}

// render returns the files of drawings: without content for those that have
// nothing to show, so that one of an earlier run is not taken for this one's.
func render(drawings ...drawing) ([]file, error) {
	var files []file
	for _, d := range drawings {
		for _, format := range []string{"svg", "png"} {
			f := file{name: filepath.Join("plots", d.name+"."+format)}
			if d.draw != nil {
				canvas, err := draw.NewFormattedCanvas(plotWidth, d.height, format)
				if err != nil {
					return nil, fmt.Errorf("reports: plot %s: %w", d.name, err)
				}
				d.draw(draw.Crop(draw.New(canvas), margin, -margin, margin, -margin))
				var b bytes.Buffer
				if _, err := canvas.WriteTo(&b); err != nil {
					return nil, fmt.Errorf("reports: plot %s: %w", d.name, err)
				}
				f.data = b.Bytes()
				if format == "svg" {
					f.data = fitText(f.data)
				}
			}
			files = append(files, f)
		}
	}
	return files, nil
}

// svgText is a text as gonum writes it: attributes, size in px, content.
var svgText = regexp.MustCompile(`(?s)<text ([^>]*?)font-family:Liberation Sans;([^>]*?)font-size:([0-9.]+)px">([^<]*)</text>`)

// fitText says how wide each text is, since it was placed by the widths of Liberation
// Sans: where that font is not at hand, labels would run into the axis.
func fitText(svg []byte) []byte {
	return svgText.ReplaceAllFunc(svg, func(text []byte) []byte {
		m := svgText.FindSubmatch(text)
		size, err := strconv.ParseFloat(string(m[3]), 64)
		content := html.UnescapeString(string(m[4]))
		if err != nil || content == "" {
			return text
		}
		face := font.DefaultCache.Lookup(font.Font{Typeface: plot.DefaultFont.Typeface, Variant: "Sans"}, vg.Length(size))
		return fmt.Appendf(nil, `<text textLength="%.5g" lengthAdjust="spacingAndGlyphs" %sfont-family:Liberation Sans,Arial,Helvetica,sans-serif;%sfont-size:%spx">%s</text>`, face.Width(content).Points(), m[1], m[2], m[3], m[4])
	})
}
