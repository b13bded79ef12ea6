package reports

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sandbed/sandbed/bench/sample"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
)

// Write puts report.md, report.json and plots/*.svg and *.png into dir, which it
// makes. Each file appears whole or not at all; report.md comes last, so that
// what it shows is there.
func Write(dir string, r sample.Run) error {
	samples, err := sample.Encode(r)
	if err != nil {
		return err
	}
	type file struct {
		name string
		data []byte
	}
	files := []file{{"report.json", samples}}
	for _, c := range []struct {
		name   string
		height vg.Length
		make   func(sample.Run) (*plot.Plot, bool)
	}{{killPlot, 320, killLatency}, {guardPlot, 360, guardCost}, {gapsPlot, 320, loopGaps}, {marshalPlot, 380, marshalCost}} {
		for _, format := range []string{"svg", "png"} {
			p, ok := c.make(r) // drawn anew: drawing changes a plot
			if !ok {
				// One of an earlier run would be taken for this one's.
				if err := os.Remove(filepath.Join(dir, "plots", c.name+"."+format)); err != nil && !errors.Is(err, fs.ErrNotExist) {
					return err
				}
				continue
			}
			data, err := render(p, c.height, format)
			if err != nil {
				return fmt.Errorf("reports: plot %s: %w", c.name, err)
			}
			files = append(files, file{filepath.Join("plots", c.name+"."+format), data})
		}
	}
	files = append(files, file{"report.md", Markdown(r)})
	if err := os.MkdirAll(filepath.Join(dir, "plots"), 0o755); err != nil {
		return err
	}
	for _, f := range files {
		if err := writeFile(filepath.Join(dir, f.name), f.data); err != nil {
			return err
		}
	}
	return nil
}

// writeFile writes beside the file and renames: a reader sees the old file or
// the new one.
func writeFile(name string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), ".tmp-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	if _, err = f.Write(data); err == nil {
		err = f.Chmod(0o644)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
