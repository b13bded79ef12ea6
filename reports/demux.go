package reports

import (
	"fmt"
	"image/color"
	"slices"
	"strconv"

	"github.com/sandbed/sandbed/bench/sample"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// What splitting the output of a process takes: peaks as a grid, and times.

const demuxPlot = "demux-peaks"

// The panels of the grid.
var (
	demuxReaders = []struct{ key, name string }{{"absent", "stderr is not read"}, {"lag-10ms", "stderr is read 10 ms late"}}
	demuxFigures = []struct{ key, name string }{{"memory", "peak in memory"}, {"disk", "peak on disk"}}
)

// demuxCell is one cell of a panel: chunks of both streams, and how it ended.
type demuxCell struct {
	chunks float64
	end    string // "whole", "failed" or "stalled"
}

// demuxGrid collects a panel: cells by policy, then by order.
type demuxGrid struct {
	policies, orders []string
	cells            map[[2]string]demuxCell
}

func newDemuxGrid(r sample.Run, reader, figure string) demuxGrid {
	g := demuxGrid{cells: map[[2]string]demuxCell{}}
	for _, s := range r.In("demux") {
		policy, order := s.Key("policy"), s.Key("order")
		chunk, err := strconv.ParseFloat(s.Config["chunk"], 64)
		if policy == "" || s.Key("stderr") != reader || s.Key("figure") != figure || err != nil || chunk <= 0 {
			continue
		}
		if !slices.Contains(g.policies, policy) {
			g.policies = append(g.policies, policy)
		}
		if !slices.Contains(g.orders, order) {
			g.orders = append(g.orders, order)
		}
		g.cells[[2]string{policy, order}] = demuxCell{s.Value / chunk, s.Config["end"]}
	}
	return g
}

// Plot draws the cells: the more, the darker. What went wrong has a thick frame
// and a word.
func (g demuxGrid) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	style := p.X.Tick.Label
	style.XAlign, style.YAlign = draw.XCenter, draw.YCenter
	style.Font.Size = 8
	for i, order := range g.orders {
		for j, policy := range g.policies {
			cell, ok := g.cells[[2]string{policy, order}]
			if !ok {
				continue
			}
			row := float64(len(g.policies) - 1 - j) // the first at the top
			fill, ink := shade(cell.chunks)
			box := []vg.Point{{X: x(float64(i) - 0.5), Y: y(row - 0.5)}, {X: x(float64(i) + 0.5), Y: y(row - 0.5)}, {X: x(float64(i) + 0.5), Y: y(row + 0.5)}, {X: x(float64(i) - 0.5), Y: y(row + 0.5)}}
			c.FillPolygon(fill, box)
			frame, width := color.Color(color.White), vg.Length(1)
			text := strconv.FormatFloat(cell.chunks, 'f', -1, 64)
			switch cell.end {
			case "failed":
				frame, width, text = light, 2, text+" err"
			case "stalled":
				frame, width, text = light, 2, "stall"
			}
			inset := width / 2
			c.StrokeLines(draw.LineStyle{Color: frame, Width: width}, []vg.Point{
				{X: box[0].X + inset, Y: box[0].Y + inset}, {X: box[1].X - inset, Y: box[1].Y + inset},
				{X: box[2].X - inset, Y: box[2].Y - inset}, {X: box[3].X + inset, Y: box[3].Y - inset},
				{X: box[0].X + inset, Y: box[0].Y + inset},
			})
			style.Color = ink
			c.FillText(style, vg.Point{X: x(float64(i)), Y: y(row)}, text)
		}
	}
}

// shade is the colour of a number of chunks, of 48 at most, and of the text on it.
func shade(chunks float64) (fill, ink color.Color) {
	v := uint8(245 - 185*min(1, max(0, chunks)/48))
	if v < 140 {
		return color.Gray{Y: v}, color.White
	}
	return color.Gray{Y: v}, color.Black
}

// DataRange makes room for all cells.
func (g demuxGrid) DataRange() (xmin, xmax, ymin, ymax float64) {
	return -0.5, float64(len(g.orders)) - 0.5, -0.5, float64(len(g.policies)) - 0.5
}

var _ interface {
	plot.Plotter
	plot.DataRanger
} = demuxGrid{}

// demuxPeaks draws the peaks in lock-step as a grid: policy by interleaving, in
// memory and on disk, without a reader of stderr and with one that lags.
func demuxPeaks(r sample.Run) drawing {
	if len(newDemuxGrid(r, demuxReaders[0].key, demuxFigures[0].key).cells) == 0 {
		return drawing{name: demuxPlot}
	}
	return drawing{demuxPlot, 400, func(c draw.Canvas) {
		key := []entry{
			{"one chunk", swatch{demuxCell{1, ""}}}, {"all 48 chunks", swatch{demuxCell{48, ""}}},
			{"err, stall: a reader failed or hung", swatch{demuxCell{0, "failed"}}},
		}
		titled(c, "Demux: peak of both streams in chunks, by policy and interleaving", key, func(c draw.Canvas) {
			size := c.Size()
			const gap, labels = 12, 62
			wide := (size.X - gap - labels) / 2
			for i, reader := range demuxReaders {
				for j, figure := range demuxFigures {
					g := newDemuxGrid(r, reader.key, figure.key)
					if len(g.cells) == 0 {
						continue
					}
					p := newPlot(reader.name+": "+figure.name, "", "")
					p.Title.TextStyle.Font.Size = 10
					p.Title.Padding = 1 * vg.Millimeter
					p.Add(g)
					var orders, policies labelled
					for k, o := range g.orders {
						orders = append(orders, plot.Tick{Value: float64(k), Label: o})
					}
					for k, name := range g.policies {
						label := name
						if i > 0 {
							label = "" // the panel to the left says it
						}
						policies = append(policies, plot.Tick{Value: float64(len(g.policies) - 1 - k), Label: label})
					}
					p.X.Tick.Marker, p.Y.Tick.Marker = orders, policies
					for _, a := range []*plot.Axis{&p.X, &p.Y} {
						a.Tick.Length, a.LineStyle.Width, a.Padding = 0, 0, 0
						a.Tick.Label.Font.Size = 9
					}
					left, right := vg.Length(0), labels+wide
					if i > 0 {
						left, right = labels+wide+gap, size.X
					}
					top := size.Y * vg.Length(len(demuxFigures)-j) / vg.Length(len(demuxFigures))
					bottom := size.Y * vg.Length(len(demuxFigures)-j-1) / vg.Length(len(demuxFigures))
					p.Draw(draw.Crop(c, left, right-size.X, bottom, top-size.Y-4))
				}
			}
		})
	}}
}

// swatch is a cell in the legend.
type swatch struct{ cell demuxCell }

func (s swatch) Thumbnail(c *draw.Canvas) {
	fill, _ := shade(s.cell.chunks)
	frame := draw.LineStyle{Color: faint, Width: 0.5}
	if s.cell.end == "failed" {
		frame = draw.LineStyle{Color: light, Width: 2}
	}
	box := []vg.Point{{X: c.Min.X, Y: c.Min.Y}, {X: c.Max.X, Y: c.Min.Y}, {X: c.Max.X, Y: c.Max.Y}, {X: c.Min.X, Y: c.Max.Y}}
	c.FillPolygon(fill, box)
	c.StrokeLines(frame, append(box, box[0]))
}

var _ plot.Thumbnailer = swatch{}

// demux is the section about it; nothing without such rows.
func (w *writer) demux() {
	var timed []sample.Sample
	for _, s := range w.run.In("demux") {
		if s.Key("source") != "" {
			timed = append(timed, s)
		}
	}
	peaks := demuxPeaks(w.run).draw != nil
	if !peaks && len(timed) == 0 {
		return
	}
	w.line("## Demux")
	w.line("")
	if peaks {
		w.line("Stdout is read as it comes, 48 chunks in eight orders of both streams; a stream may keep one chunk in memory. In lock-step, so the peaks are exact.")
		w.line("")
		w.line("![demux peaks](plots/%s.png)", demuxPlot)
		w.line("")
	}
	if len(timed) == 0 {
		return
	}
	w.line("What splitting Docker's frames costs, as time ÷ that of io.Copy of the same bytes, in turn:")
	w.line("")
	w.line("| source | frames | stderr | cost, median | worst | pairs |")
	w.line("| --- | ---: | --- | ---: | ---: | ---: |")
	for _, s := range timed {
		reader := map[string]string{"": "read", "closed": "closed", "absent": "not read: all of it to a file"}[s.Key("stderr")]
		if fs := s.Config["file_system"]; fs != "" {
			reader += fmt.Sprintf(" (%s)", inline(fs))
		}
		w.line("| %s | %s B | %s | %s | %s | %s |", s.Key("source"), s.Key("frame"), reader, Value(s.Value, s.Unit), Value(sample.Quantile(s.Values, 1), s.Unit), times(s))
	}
	w.line("")
}
