package reports

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"html/template"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/sandbed/sandbed/bench/gate"
)

var (
	//go:embed page/report.html.tmpl
	pageText string
	//go:embed page/report.css
	pageStyle string
	//go:embed page/report.js
	pageScript string

	pageTemplate = template.Must(template.New("report").Funcs(template.FuncMap{
		"short": short, "ratio": ratio, "span": span, "share": share, "arm": arm, "whole": whole, "change": change,
		"slower": slower, "adjusted": adjusted, "least": least, "controlName": controlName, "controlResult": controlResult, "fitness": fitnessText,
		"plain":    func(s string) string { return plain(cut(s, longText)) },
		"name":     breakable,
		"class":    class,
		"rank":     rank,
		"sortable": sortable,
		"part":     func(n, of int) float64 { return float64(n) / float64(of) },
		"last":     func(p []HistoryPoint) float64 { return p[len(p)-1].Ratio },
	}).Parse(pageText))
)

// picture is a plot within the page.
type picture struct {
	Caption string
	SVG     template.HTML
}

// htmlPage is what the template sees.
type htmlPage struct {
	*comparison
	Policy             string
	Style              template.CSS
	Script             template.JS
	Banner, State      string
	Counts             []wordCount
	Changed, Exact     []gate.Row
	Equal              int
	Pictures           []picture
	Facts              [][3]string
	Method, Commands   []string
	History            []Series
	TableNotes, Footer string
}

// captions say what to look for in a plot.
var captions = []struct{ name, text string }{
	{forestPlot, "Ratio of head to base by row. A bar right of the grey band is a proved slowdown, one left of its right edge is proved to be none; where more is better, mirrored. Dashed bars are not bounded yet."},
	{roundsPlot, "Ratio by round. A trend is a drift of the machine; two levels by shape are an effect of the order."},
	{ecdfPlot, "Share of launches within a value, for base and head."},
	{historyPlot, "Ratio to the pinned reference by run of the main branch."},
}

// html is the report as one file that needs no other and no network.
func (c *comparison) html(plots []file) ([]byte, error) {
	sum := sha256.Sum256([]byte(pageScript))
	_, words := banner(c.Verdict) // the symbol needs a font that not every system has
	p := htmlPage{
		comparison: c,
		// Whatever a name or a commit holds, nothing but our script runs and nothing is loaded.
		Policy: "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'",
		Style:  template.CSS(pageStyle), Script: template.JS(pageScript),
		Banner: words, State: map[string]string{"ok": "good", "regression": "bad", "failed": "bad", "inconclusive": "warn", "unfit": "warn"}[c.Verdict],
		Counts: c.counts(), Changed: c.changed(), Facts: c.facts(), Method: c.methodText(), Commands: c.commands(), History: c.history,
		TableNotes: c.notes(), Footer: c.footer(),
	}
	p.Exact, p.Equal = c.exact()
	for _, caption := range captions {
		for _, f := range plots {
			if f.name != filepath.Join("plots", caption.name+".svg") || f.data == nil {
				continue
			}
			// From <svg on: the XML declaration has no place within HTML. White is the page's.
			_, svg, _ := bytes.Cut(f.data, []byte("<svg"))
			svg = bytes.ReplaceAll(svg, []byte("fill:#FFFFFF"), []byte("fill:none"))
			p.Pictures = append(p.Pictures, picture{caption.text, template.HTML(`<svg role="img" aria-label="` + template.HTMLEscapeString(caption.text) + `"` + string(svg))})
		}
	}
	var b bytes.Buffer
	err := pageTemplate.Execute(&b, p)
	return b.Bytes(), err
}

// breakable is a name that may break behind its slashes.
func breakable(s string) template.HTML {
	return template.HTML(strings.ReplaceAll(template.HTMLEscapeString(cmp.Or(plain(cut(s, longText)), none)), "/", "/<wbr>"))
}

// class is how a verdict is coloured.
func class(w gate.Word) string {
	switch w {
	case gate.Regression, gate.Failed:
		return "bad"
	case gate.Improvement, gate.OK:
		return "good"
	case gate.Inconclusive, gate.Unmeasurable, gate.Waived:
		return "warn"
	}
	return "plain"
}

// rank sorts verdicts, those to look at first.
func rank(w gate.Word) int {
	if i := slices.Index(words, w); i >= 0 {
		return i
	}
	return len(words)
}

// sortable is a number for the page's script; nothing where there is none.
func sortable(v float64) string {
	if number(v) != v {
		return ""
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}
