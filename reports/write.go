package reports

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/internal/atomicfile"
	"gonum.org/v1/plot"
)

// Write puts report.md, report.json and plots/*.svg and *.png into dir, which it
// makes. Each file appears whole or not at all; report.md comes last, so that
// what it shows is there.
func Write(dir string, r sample.Run) error {
	samples, err := sample.Encode(r)
	if err != nil {
		return err
	}
	of := func(make func(sample.Run) (*plot.Plot, []entry)) func() (*plot.Plot, []entry) {
		return func() (*plot.Plot, []entry) { return make(r) }
	}
	plots, err := render(framed(killPlot, 320, of(killLatency)), framed(guardPlot, 360, of(guardCost)), framed(gapsPlot, 320, of(loopGaps)), framed(marshalPlot, 380, of(marshalCost)), demuxPeaks(r))
	if err != nil {
		return err
	}
	return place(dir, append(append([]file{{"report.json", samples}}, plots...), file{"report.md", Markdown(r)}))
}

// file is one of a report's, by its path in it.
type file struct {
	name string
	data []byte // nil: it must not be there
}

// place writes files into dir in their order, and removes those without content.
func place(dir string, files []file) error {
	for _, f := range files {
		name := filepath.Join(dir, f.name)
		if f.data == nil {
			if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := atomicfile.Write(name, f.data); err != nil {
			return err
		}
	}
	return nil
}
