package reports

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"image/png"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandbed/sandbed/bench/sample"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares got with testdata/name.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; run go test ./reports -update and read the diff. Got:\n%s", path, got)
	}
}

// invented is a run with every group. The figures are drawn, not measured.
func invented() sample.Run {
	rng := rand.New(rand.NewPCG(1, 2))
	values := func(n int, median, sigma float64) []float64 {
		v := make([]float64, n)
		for i := range v {
			v[i] = median * math.Exp(sigma*rng.NormFloat64())
		}
		return v
	}
	with := func(s sample.Sample, key, value string) sample.Sample {
		s.Config = map[string]string{key: value}
		return s
	}
	r := sample.Run{
		Schema: sample.Schema, Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Took: 61.4,
		Environment: sample.Environment{Go: "go1.26.0", OS: "linux", Arch: "amd64", CPU: "A | processor", Cores: 2, GOMAXPROCS: 2, Commit: "0123abc", Modified: true, Engine: "an engine 1.0"},
		Warnings:    []string{"the machine before the run is unsteady: the middle 80 % spread over 31 % of the median"},
	}
	add := func(s sample.Sample) { r.Samples = append(r.Samples, s) }
	var on, done []float64
	for _, w := range []string{"reshape", "join", "template"} {
		row := "workload=" + w + "/size=medium"
		add(with(sample.New("wall/"+row, sample.Seconds, values(20, 0.012, 0.05)), "metering", "on"))
		add(sample.NewExact("fuel/"+row, sample.Fuel, 1234567, 5))
		add(sample.NewExact("peak/"+row, sample.Bytes, 3<<20, 5))
		add(sample.NewExact("output/"+row, sample.Bytes, 4711, 5))
		s := sample.New("guard/metering=on/"+row, sample.Ratio, values(20, 1.06, 0.02))
		on = append(on, s.Value)
		add(s)
		s = sample.New("guard/metering=close-on-done/"+row, sample.Ratio, values(20, 4.2, 0.1))
		s.Warnings = []string{"unsteady"}
		done = append(done, s.Value)
		add(s)
	}
	mean := func(metering string, v []float64) {
		s := sample.NewExact("guard/metering="+metering, sample.Ratio, sample.GeometricMean(v), len(v))
		s.Exact = false
		add(s)
	}
	mean("on", on)
	mean("close-on-done", done)
	add(sample.New("fresh/op=eval", sample.Seconds, values(20, 25e-6, 0.05)))
	add(sample.New("fresh/op=runtime", sample.Seconds, values(20, 340e-6, 0.05)))
	add(sample.New("fresh/op=gain", sample.Ratio, values(20, 13, 0.05)))
	add(sample.New("cold/of=process/cache=empty", sample.Seconds, values(3, 1.9, 0.05)))
	add(sample.New("cold/of=process/cache=filled", sample.Seconds, values(15, 0.2, 0.05)))
	add(sample.New("cold/of=vm", sample.Seconds, values(200, 500e-6, 0.05)))
	add(with(sample.New("memory/case=A01", sample.Bytes, []float64{35 << 20}), "ceiling", "36700160"))
	add(with(sample.New("memory/case=B02", sample.Bytes, []float64{12 << 20}), "ceiling", "36700160"))
	add(sample.New("memory/figure=share", sample.Share, []float64{1, 0.25}))
	for _, gc := range []string{"off", "on"} {
		median := map[string]float64{"off": 0.0009, "on": 0.0012}[gc]
		var all []float64
		for _, id := range []string{"A04", "A05"} {
			v := values(200, median, 0.4)
			all = append(all, v...)
			add(sample.New("kill/gc="+gc+"/case="+id, sample.Seconds, v))
		}
		add(sample.New("kill/gc="+gc, sample.Seconds, all))
	}
	for _, m := range []string{"none", "on", "off"} {
		add(sample.New("loop/metering="+m+"/figure=longest", sample.Seconds, values(10, map[string]float64{"none": 0.0015, "on": 0.004, "off": 0.18}[m], 0.2)))
		add(sample.New("loop/metering="+m+"/figure=unavailable", sample.Share, values(10, 0.01, 0.2)))
	}
	// Two values each: medians and worsts that can be told apart.
	for _, gc := range []string{"off", "on"} {
		for _, l := range []struct {
			of                 string
			wall, longest, off float64
		}{{"nothing", 0.3, 0.0012, 0}, {"reshapes/backend=inproc", 1.291, 1.287, 0.997}, {"reshapes/backend=pool/workers=4", 0.337, 0.004, 0.012}} {
			name := "loop/of=" + l.of + "/gc=" + gc + "/figure="
			add(sample.New(name+"wall", sample.Seconds, []float64{l.wall, l.wall * 1.02}))
			add(sample.New(name+"longest", sample.Seconds, []float64{l.longest, l.longest * 2}))
			add(sample.New(name+"unavailable", sample.Share, []float64{l.off, l.off}))
			add(sample.New(name+"control", sample.Seconds, []float64{0.0011, 0.0013}))
			add(sample.New(name+"stopping", sample.Seconds, []float64{80e-6, 90e-6}))
			if l.of != "nothing" && gc == "off" {
				add(sample.New(name+"ideal", sample.Seconds, []float64{l.wall / 1.05, l.wall / 1.05}))
				add(sample.New(name+"stretch", sample.Ratio, []float64{1.05, 1.07}))
			}
		}
		r.Traces = append(r.Traces,
			sample.Trace{Name: "gaps/of=reshapes/backend=inproc/gc=" + gc, Seconds: 1.291, Gaps: [][2]float64{{0.001, 0.32}, {0.322, 0.967}}},
			sample.Trace{Name: "gaps/of=reshapes/backend=pool/workers=4/gc=" + gc, Seconds: 0.337, Gaps: [][2]float64{{0.1, 0.0041}, {0.2, 0.003}}[:map[string]int{"off": 0, "on": 2}[gc]]})
	}
	for i, backend := range []string{"inproc", "pool", "process"} {
		for _, dir := range []string{"in", "out"} {
			for j, size := range []string{"1KiB", "64KiB", "3.68MiB", "16MiB"} {
				row := "marshal/dir=" + dir + "/size=" + size + "/backend=" + backend
				bytes := []float64{1 << 10, 64 << 10, 3.68 * (1 << 20), 16 << 20}[j]
				handover := 10e-6*math.Pow(4, float64(i)) + bytes*1e-9*float64(1+i)
				if dir == "out" {
					handover *= 1.4
				}
				s := with(sample.New(row, sample.Seconds, values(3, 0.001+handover, 0.02)), "bytes", fmt.Sprint(int(bytes)))
				add(s)
				add(with(sample.New(row+"/figure=handover", sample.Seconds, values(3, handover, 0.02)), "bytes", fmt.Sprint(int(bytes))))
				if backend != "inproc" {
					add(sample.New(row+"/figure=over", sample.Seconds, values(3, 0.0004*float64(i), 0.02)))
					add(sample.New(row+"/figure=ratio", sample.Ratio, values(3, 1.1, 0.02)))
				}
			}
		}
		where := "backend=" + backend
		if backend != "inproc" {
			where += "/workers=4"
			add(sample.New("cold/of=worker/backend="+backend+"/cache=filled", sample.Seconds, values(3, 0.05*float64(i), 0.02)))
			add(sample.New("kill/to=next/backend="+backend+"/spare=0", sample.Seconds, values(3, 0.05*float64(i), 0.02)))
		}
		add(sample.New("fair/"+where+"/figure=alone", sample.Seconds, values(5, 0.001, 0.02)))
		add(with(sample.New("fair/"+where+"/figure=beside", sample.Seconds, values(5, []float64{0.9, 0.0012, 0.0014}[i], 0.02)), "hogs", "3"))
	}
	add(sample.New("marshal/of=decoding/size=3.68MiB", sample.Seconds, []float64{0.03}))
	add(sample.New("marshal/of=encoding/size=3.68MiB", sample.Seconds, []float64{0.02}))
	return r
}

func TestMarkdown(t *testing.T) {
	golden(t, "report.md", Markdown(invented()))
	broken := sample.Run{Schema: sample.Schema, Quick: true, Broken: []string{"fits: case A01 reached 99 bytes, allowed are 98"}, Environment: sample.Environment{Engine: "an engine <1>"}}
	golden(t, "broken.md", Markdown(broken))
}

func TestValue(t *testing.T) {
	for _, c := range []struct {
		v    float64
		unit string
		want string
	}{
		{0, sample.Seconds, "0 ns"},
		{2.5e-8, sample.Seconds, "25 ns"},
		{1.2345e-5, sample.Seconds, "12.3 µs"},
		{0.00143, sample.Seconds, "1.43 ms"},
		{0.25, sample.Seconds, "250 ms"},
		{61.5, sample.Seconds, "61.5 s"},
		{512, sample.Bytes, "512 B"},
		{36700160, sample.Bytes, "35 MiB"},
		{1500, sample.Bytes, "1.46 KiB"},
		{1.0512, sample.Ratio, "1.05 ×"},
		{0.0512, sample.Ratio, "0.0512 ×"},
		{0.9875, sample.Share, "98.8 %"},
		{1234567, sample.Fuel, "1,234,567 fuel"},
		{-1234, sample.Count, "-1,234"},
		{999, sample.Count, "999"},
	} {
		if got := Value(c.v, c.unit); got != c.want {
			t.Errorf("Value(%v, %s): got %q, want %q", c.v, c.unit, got, c.want)
		}
	}
}

func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	run := invented()
	if err := Write(dir, run); err != nil {
		t.Fatal(err)
	}
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if got := read("report.md"); !bytes.Equal(got, Markdown(run)) {
		t.Error("report.md is not what Markdown gives")
	}
	if _, err := sample.Decode(bytes.NewReader(read("report.json"))); err != nil {
		t.Errorf("report.json: %v", err)
	}
	for _, name := range []string{killPlot, guardPlot, gapsPlot, marshalPlot} {
		img, err := png.Decode(bytes.NewReader(read("plots/" + name + ".png")))
		if err != nil || img.Bounds().Dx() != 800 {
			t.Errorf("%s.png: %v, want a picture 800 pixels wide", name, err)
		}
		svg := read("plots/" + name + ".svg")
		text := ""
		for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
			tok, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s.svg: %v", name, err)
			}
			if c, ok := tok.(xml.CharData); ok {
				text += string(c) + "\n"
			}
		}
		for _, want := range map[string][]string{
			killPlot:  {"Kill latency", "share of kills, %", "collector quiet", "called every 20 ms", "1 ms"},
			guardPlot: {"Guard cost", "ratio to metering off", "metering on", "metering close-on-done", "reshape", "template"},
			gapsPlot: {"Loop gaps over time", "time since the reshapes began, s", "gap of the loop", "in-process: done after 1.29 s, longest gap 967 ms",
				"4 goroutine workers: done after 337 ms, no gap above 2 ms", "collector every 20 ms: done after 337 ms, longest gap 4.10 ms"},
			marshalPlot: {"Marshalling", "size of the text", "handover, median", "in-process, in", "goroutine workers, out", "process workers, out", "1 MiB", "1 ms"},
		}[name] {
			if !strings.Contains(text, want) {
				t.Errorf("%s.svg does not say %q", name, want)
			}
		}
	}

	// A second run that has no kills leaves none of the first's plots, and
	// nothing half written.
	run.Samples, run.Traces = nil, nil
	if err := Write(dir, run); err != nil {
		t.Fatal(err)
	}
	var names []string
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			t.Fatal(err)
		}
		if !d.IsDir() {
			names = append(names, d.Name())
		}
		return nil
	})
	if got := strings.Join(names, " "); got != "report.json report.md" {
		t.Errorf("after a run without samples: %s", got)
	}
}

func TestWriteKeepsTheOldFile(t *testing.T) {
	dir := t.TempDir()
	if err := Write(dir, invented()); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(filepath.Join(dir, "report.md"))
	if err != nil {
		t.Fatal(err)
	}
	bad := invented()
	bad.Samples[0].Value = math.NaN()
	if err := Write(dir, bad); err == nil {
		t.Fatal("a sample that is not a number was written")
	}
	after, err := os.ReadFile(filepath.Join(dir, "report.md"))
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("a refused run changed report.md (%v)", err)
	}
}
