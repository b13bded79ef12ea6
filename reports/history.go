package reports

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"image/color"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sandbed/sandbed/bench/gate"
	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/bench/stat"
	"github.com/sandbed/sandbed/internal/atomicfile"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// HistoryRun is one run of the main branch: a line of a history file. Its figures are
// ratios to a pinned reference build that was measured in the same job, so that a
// change of the machine is not one of the code.
type HistoryRun struct {
	Schema    int          `json:"schema"` // 1
	Started   time.Time    `json:"started"`
	Commit    string       `json:"commit"`
	Reference string       `json:"reference"` // commit of the reference build
	CPU       string       `json:"cpu"`
	Rows      []HistoryRow `json:"rows"`
}

// HistoryRow is one row of a run.
type HistoryRow struct {
	Row    string  `json:"row"`
	Unit   string  `json:"unit"`
	Better string  `json:"better"`
	Ratio  float64 `json:"ratio"` // run ÷ reference
	// Interval is that of the comparison; open where the rounds did not bound it.
	Interval stat.Interval `json:"interval"`
}

const historySchema = 1

// NewHistoryRun takes the ratios from a comparison whose base is the pinned
// reference. It refuses one that a history must not hold: unpaired, failed, without commits or
// of uncommitted changes.
func NewHistoryRun(r gate.Report) (HistoryRun, error) {
	switch {
	case r.Unpaired:
		return HistoryRun{}, errors.New("history: unpaired files are not measured in one job: give the output of benchrun compare")
	case r.Base.Commit == "" || r.Head.Commit == "":
		return HistoryRun{}, errors.New("history: commit is missing: compare two commits, the pinned reference as base")
	case r.Base.Dirty || r.Head.Dirty:
		return HistoryRun{}, errors.New("history: the comparison has uncommitted changes: commit them and compare again")
	case r.Verdict == "unfit" || r.Verdict == "failed":
		return HistoryRun{}, fmt.Errorf("history: the comparison is %s: repeat it", r.Verdict)
	}
	run := HistoryRun{Schema: historySchema, Started: r.Started.UTC(), Commit: r.Head.Commit, Reference: r.Base.Commit, CPU: r.HeadEnv.CPU}
	for _, row := range r.Rows {
		if number(row.Ratio) > 0 {
			run.Rows = append(run.Rows, HistoryRow{row.Name, row.Unit, row.Better, row.Ratio, row.Interval})
		}
	}
	if len(run.Rows) == 0 {
		return HistoryRun{}, errors.New("history: the comparison has no row with a ratio")
	}
	return run, nil
}

// DecodeHistory reads a history file. An error names the line.
func DecodeHistory(from io.Reader) ([]HistoryRun, error) {
	var runs []HistoryRun
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 16<<20)
	for n := 1; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var run HistoryRun
		if err := json.Unmarshal(lines.Bytes(), &run); err != nil {
			return nil, fmt.Errorf("history: line %d: %w", n, err)
		}
		if run.Schema != historySchema {
			return nil, fmt.Errorf("history: line %d: schema %d is not readable: this build reads schema %d", n, run.Schema, historySchema)
		}
		for _, r := range run.Rows {
			if !(r.Ratio > 0) || math.IsInf(r.Ratio, 0) {
				return nil, fmt.Errorf("history: line %d: row %q: ratio %v: give a finite number above 0", n, r.Row, r.Ratio)
			}
		}
		runs = append(runs, run)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	return runs, nil
}

// AddHistory adds a run to a history file, which it makes. A run that the file holds
// already is not added again. The file is replaced as a whole; of two that add at the same
// time one may be lost.
func AddHistory(file string, run HistoryRun) (added bool, err error) {
	old, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	runs, err := DecodeHistory(bytes.NewReader(old))
	if err != nil {
		return false, err
	}
	for _, r := range runs {
		if r.Commit == run.Commit && r.Reference == run.Reference && r.Started.Equal(run.Started) {
			return false, nil
		}
	}
	line, err := json.Marshal(run)
	if err != nil {
		return false, err
	}
	if len(old) > 0 && old[len(old)-1] != '\n' {
		old = append(old, '\n')
	}
	return true, atomicfile.Write(file, append(append(old, line...), '\n'))
}

// Series is the history of one row against the newest reference.
type Series struct {
	Row       string         `json:"row"`
	Unit      string         `json:"unit"`
	Better    string         `json:"better"`
	Reference string         `json:"reference"`
	Points    []HistoryPoint `json:"points"` // by time
	// Changes are where two detectors agree on a step of 3 % or more.
	Changes []HistoryChange `json:"changes"`
	// Cut says that runs against an older reference are left out, and why.
	Cut string `json:"cut,omitempty"`
}

// HistoryPoint is one run in a series.
type HistoryPoint struct {
	Started time.Time `json:"started"`
	Commit  string    `json:"commit"`
	Ratio   float64   `json:"ratio"`
}

// HistoryChange is a change point: Commit is the first run after it.
type HistoryChange struct {
	stat.Change
	Commit string `json:"commit"`
}

const (
	spliceRuns  = 10  // commits measured against both references before one may stand for the other
	historyRuns = 300 // of a row that are looked at: the detectors take n² time
	historySeed = 1   // of the permutations of E-divisive
)

// History returns the series of each row that the newest run has, those with
// change points first. Runs against an older reference count where 10 commits were
// measured against both.
func History(runs []HistoryRun) ([]Series, error) {
	if len(runs) == 0 {
		return nil, nil
	}
	runs = slices.Clone(runs)
	slices.SortStableFunc(runs, func(a, b HistoryRun) int { return a.Started.Compare(b.Started) })
	newest := runs[len(runs)-1]
	var out []Series
	for _, row := range newest.Rows {
		s := Series{Row: row.Row, Unit: row.Unit, Better: row.Better, Reference: newest.Reference}
		s.splice(runs)
		s.Points = s.Points[max(0, len(s.Points)-historyRuns):]
		y := make([]float64, len(s.Points))
		for i, p := range s.Points {
			y[i] = math.Log(p.Ratio)
		}
		changes, err := stat.ChangePoints(y, historySeed)
		if err != nil {
			return nil, fmt.Errorf("history: row %q: %w", row.Row, err)
		}
		for _, c := range changes {
			s.Changes = append(s.Changes, HistoryChange{c, s.Points[c.At].Commit})
		}
		out = append(out, s)
	}
	slices.SortStableFunc(out, func(a, b Series) int { return cmp.Compare(min(1, len(b.Changes)), min(1, len(a.Changes))) })
	return out, nil
}

// splice collects the points of the row from runs in order of time. It walks back
// through the references, each moved onto the next by the commits that both measured.
func (s *Series) splice(runs []HistoryRun) {
	var references []string // the newest first
	against := map[string][]HistoryPoint{}
	for _, run := range slices.Backward(runs) {
		if !slices.Contains(references, run.Reference) {
			references = append(references, run.Reference)
		}
		for _, r := range run.Rows {
			if r.Row == s.Row && r.Unit == s.Unit {
				against[run.Reference] = append(against[run.Reference], HistoryPoint{run.Started, run.Commit, r.Ratio})
			}
		}
	}
	known := map[string]float64{} // ratio to the newest reference, by commit
	for i, reference := range references {
		points := against[reference]
		if len(points) == 0 {
			continue
		}
		move := 0.0
		if i > 0 {
			var both []float64
			for _, p := range points {
				if r, ok := known[p.Commit]; ok {
					both = append(both, math.Log(r/p.Ratio))
				}
			}
			if len(both) < spliceRuns {
				s.Cut = fmt.Sprintf("runs against %s are left out: %d commits were measured against it and its successor, %d are needed", cut(reference, longName), len(both), spliceRuns)
				break
			}
			move = sample.Quantile(both, 0.5)
		}
		fresh := map[string]float64{}
		for _, p := range points {
			if _, ok := known[p.Commit]; ok {
				continue // the newer reference has it
			}
			p.Ratio *= math.Exp(move)
			fresh[p.Commit] = p.Ratio
			s.Points = append(s.Points, p)
		}
		for commit, r := range fresh {
			known[commit] = r
		}
	}
	slices.SortStableFunc(s.Points, func(a, b HistoryPoint) int { return a.Started.Compare(b.Started) })
}

// sparkline draws the last values of a series in one line of text.
func sparkline(points []HistoryPoint) string {
	const most = 30
	points = points[max(0, len(points)-most):]
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, p := range points {
		lo, hi = min(lo, p.Ratio), max(hi, p.Ratio)
	}
	blocks := []rune("▁▂▃▄▅▆▇█")
	var b strings.Builder
	for _, p := range points {
		i := 0
		if hi > lo*1.005 { // below half a percent it is flat
			i = int(math.Log(p.Ratio/lo) / math.Log(hi/lo) * float64(len(blocks)-1))
		}
		b.WriteRune(blocks[i])
	}
	return b.String()
}

// step says what a change point is: "+5.2 % at 0123abc (1.003 → 1.055)".
func (c HistoryChange) String() string {
	return fmt.Sprintf("%+.3g %% at %s (%s → %s)", 100*c.Step, short(plain(cut(c.Commit, longName))), ratio(math.Exp(c.Before)), ratio(math.Exp(c.After)))
}

func (w *comparisonPage) historyTable() {
	w.line("Ratio to the pinned reference %s by run of the main branch. A change point is where two detectors (Potts and E-divisive) agree on a step of 3 %% or more.", code(short(w.history[0].Reference)))
	w.line("")
	w.picture(historyPlot, "history of the ratio to the reference, with change points")
	w.line("| benchmark | runs | newest | course | change points |")
	w.line("| --- | ---: | ---: | --- | --- |")
	for _, s := range w.history {
		var changes []string
		for _, c := range s.Changes {
			changes = append(changes, inline(c.String()))
		}
		if s.Cut != "" {
			changes = append(changes, inline(s.Cut))
		}
		w.line("| %s | %d | %s | %s | %s |", code(s.Row), len(s.Points), ratio(s.Points[len(s.Points)-1].Ratio), sparkline(s.Points), cmp.Or(strings.Join(changes, "; "), "none"))
	}
}

// HistoryText is the history for a terminal: a line a row, then its change points.
func HistoryText(history []Series) string {
	var b strings.Builder
	for _, s := range history {
		fmt.Fprintf(&b, "%-58s %4d runs %7s  %s\n", plain(cut(s.Row, longName)), len(s.Points), ratio(s.Points[len(s.Points)-1].Ratio), sparkline(s.Points))
		for _, c := range s.Changes {
			fmt.Fprintf(&b, "    %s\n", c)
		}
		if s.Cut != "" {
			fmt.Fprintf(&b, "    %s\n", plain(s.Cut))
		}
	}
	return b.String()
}

// WriteHistory draws a history into dir: plots/history.svg and .png.
func WriteHistory(dir string, history []Series) error {
	files, err := render(historyDrawing(history))
	if err != nil {
		return err
	}
	return place(dir, files)
}

var (
	levelLine  = draw.LineStyle{Color: color.Black, Width: 1.5}
	changeLine = draw.LineStyle{Color: red, Width: 1, Dashes: []vg.Length{4, 3}}
	runMark    = draw.GlyphStyle{Color: dark, Radius: 2, Shape: draw.CircleGlyph{}}
)

// historyDrawing shows the first rows of a history, run by run, with the level
// between change points.
func historyDrawing(history []Series) drawing {
	title := "Ratio to the reference by run (logarithmic)"
	if len(history) > tileRows {
		title = fmt.Sprintf("%s: the first %d of %d rows", title, tileRows, len(history))
	}
	var make []func() *plot.Plot
	for _, s := range history[:min(len(history), tileRows)] {
		make = append(make, func() *plot.Plot {
			p := newPlot(cut(plain(s.Row), plotName), "run", "run ÷ reference")
			n := len(s.Points)
			lo, hi := 0.98, 1.02
			var pts plotter.XYs
			for i, q := range s.Points {
				lo, hi = min(lo, q.Ratio), max(hi, q.Ratio)
				pts = append(pts, plotter.XY{X: float64(i + 1), Y: q.Ratio})
			}
			scatter, err := plotter.NewScatter(pts)
			if err != nil {
				return nil
			}
			scatter.GlyphStyle = runMark
			p.Add(scatter)
			pad := math.Pow(hi/lo, 0.06)
			lo, hi = lo/pad, hi*pad
			from := 0
			for i := range len(s.Changes) + 1 {
				to := n
				if i < len(s.Changes) {
					to = s.Changes[i].At
					vertical(p, float64(to)+0.5, lo, hi, changeLine)
				}
				var level []float64
				for _, q := range s.Points[from:to] {
					level = append(level, q.Ratio)
				}
				horizontal(p, sample.Quantile(level, 0.5), float64(from)+0.5, float64(to)+0.5, levelLine)
				from = to
			}
			p.Y.Scale = plot.LogScale{}
			p.Y.Min, p.Y.Max = lo, hi
			p.Y.Tick.Marker = ratioTicks(lo, hi, 6)
			p.X.Min, p.X.Max = 0.5, float64(n)+0.5
			p.X.Tick.Marker = countTicks(float64(n))
			return p
		})
	}
	return tiles(historyPlot, title, []entry{{"run", &plotter.Scatter{GlyphStyle: runMark}}, {"level (median)", &plotter.Line{LineStyle: levelLine}}, {"change point", &plotter.Line{LineStyle: changeLine}}}, make)
}
