package reports

import (
	"strings"
	"testing"

	"github.com/sandbed/sandbed/bench/sample"
)

// demuxRun is a run with two policies, one of which fails.
func demuxRun() sample.Run {
	var r sample.Run
	for _, s := range []struct {
		name, end string
		bytes     float64
	}{
		{"policy=spill/order=I1/stderr=absent/figure=memory", "whole", 8192},
		{"policy=spill/order=I1/stderr=absent/figure=disk", "whole", 23 * 4096},
		{"policy=cap-8/order=I1/stderr=absent/figure=memory", "failed", 10 * 4096},
		{"policy=cap-8/order=I2/stderr=absent/figure=memory", "stalled", 4096},
	} {
		e := sample.NewExact("demux/"+s.name, sample.Bytes, s.bytes, 1)
		e.Config = map[string]string{"chunk": "4096", "end": s.end}
		r.Samples = append(r.Samples, e)
	}
	timed := sample.New("demux/source=memory/frame=32768/stderr=absent/figure=cost", sample.Ratio, []float64{1.25, 1, 2})
	timed.Config = map[string]string{"file_system": "ext4"}
	r.Samples = append(r.Samples, timed)
	return r
}

func TestDemuxPlot(t *testing.T) {
	files, err := render(demuxPeaks(demuxRun()))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 2 || files[0].name != "plots/demux-peaks.svg" || len(files[1].data) == 0 {
		t.Fatalf("%d files", len(files))
	}
	svg := string(files[0].data)
	for _, want := range []string{"Demux", "stderr is not read: peak in memory", "stderr is not read: peak on disk", ">spill<", ">cap-8<", ">I1<", ">I2<", ">2<", ">23<", ">10 err<", ">stall<"} {
		if !strings.Contains(svg, want) {
			t.Errorf("the plot does not say %q", want)
		}
	}
	if strings.Contains(svg, "10 ms late") {
		t.Error("a panel without rows")
	}
	if none := demuxPeaks(sample.Run{}); none.draw != nil || none.name != demuxPlot {
		t.Error("a plot of nothing")
	}
}

func TestDemuxSection(t *testing.T) {
	text := string(Markdown(demuxRun()))
	for _, want := range []string{"## Demux\n", "](plots/demux-peaks.png)", "| memory | 32768 B | not read: all of it to a file (ext4) | 1.25 × | 2 × | 3 |"} {
		if !strings.Contains(text, want) {
			t.Errorf("the report does not say %q", want)
		}
	}
	if strings.Contains(string(Markdown(sample.Run{})), "Demux") {
		t.Error("a section about nothing")
	}
}
