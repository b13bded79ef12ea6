// Package reports reads samples and verdicts and writes what people look at: of a
// run a report in markdown, its samples as JSON and plots; of a comparison the same
// as a page too, and in the formats of other tools; of many comparisons their history. It
// starts no process and reads no clock: the same samples give the same report.
//
// Names and texts come from files that anyone may have written. They are shown as
// they are and never as markup; what would hide, reorder or end text is written out.
package reports

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sandbed/sandbed/bench/sample"
)

// The plots, by the name of their files under plots/.
const (
	killPlot    = "kill-latency"
	guardPlot   = "guard-cost"
	gapsPlot    = "loop-gaps"
	marshalPlot = "marshal-cost"
)

// Markdown writes the report of a run.
func Markdown(r sample.Run) []byte {
	w := &writer{run: r}
	w.line("%s", marker("run", r.Environment.Engine))
	w.line("# sandbed: %s", inline(r.Environment.Engine))
	w.line("")
	if len(r.Broken) == 0 {
		w.line("Every guarantee that this run could see held: %s.", w.scope())
	} else {
		w.line("**%d broken:**", len(r.Broken))
		w.line("")
		for _, b := range r.Broken {
			w.line("- %s", inline(b))
		}
	}
	w.line("")
	kind := "full run"
	if r.Quick {
		kind = "quick run: few repetitions, no more than a first look"
	}
	w.line("%s, %s, %s on %d cores of %s.", r.Started.UTC().Format("2006-01-02 15:04 MST"), kind,
		time.Duration(r.Took*float64(time.Second)).Round(time.Second), r.Environment.Cores, inline(r.Environment.CPU))
	w.line("")
	if len(r.Warnings) > 0 {
		w.line("Warnings:")
		w.line("")
		for _, s := range r.Warnings {
			w.line("- %s", inline(s))
		}
		w.line("")
	}
	w.summary()
	w.backends()
	w.demux()
	w.workloads()
	w.cases("Kill latency by case", "kill", "How long after its deadline the VM was free for the next evaluation.", "gc", func(s sample.Sample) string {
		return fmt.Sprintf("%s | %s | %s", Value(s.Value, s.Unit), Value(sample.Quantile(s.Values, 1), s.Unit), times(s))
	}, "median | worst | runs")
	w.cases("Memory by case", "memory", "The largest linear memory against what image, input and limit allow together.", "", func(s sample.Sample) string {
		return fmt.Sprintf("%s | %s | %s", thousands(sample.Quantile(s.Values, 1)), s.Config["ceiling"], times(s))
	}, "peak (B) | allowed (B) | runs")
	w.all()
	w.environment()
	return w.Bytes()
}

type writer struct {
	page
	run sample.Run
}

func times(s sample.Sample) string {
	n := fmt.Sprint(s.Count)
	if len(s.Warnings) > 0 {
		n += " (" + inline(strings.Join(s.Warnings, "; ")) + ")"
	}
	return n
}

// scope says how much the run saw.
func (w *writer) scope() string {
	var parts []string
	count := func(n int, what string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, what))
		}
	}
	kills := 0
	for _, s := range w.run.In("kill") {
		if s.Key("case") == "" && s.Key("gc") != "" {
			kills += s.Count
		}
	}
	count(kills, "kills")
	if s, ok := w.run.Find("memory/figure=share"); ok {
		count(s.Count, "allocating evaluations within their memory")
	}
	count(len(w.run.In("peak")), "evaluations repeated with the same answer, fuel and memory")
	if len(parts) == 0 {
		return "it measured nothing that is a guarantee"
	}
	return strings.Join(parts, ", ")
}

// summary is the table that answers what people ask first.
func (w *writer) summary() {
	type row struct{ what, figure, runs string }
	var rows []row
	add := func(what, figure string, n int) { rows = append(rows, row{what, figure, fmt.Sprint(n)}) }
	spread := func(s sample.Sample) string {
		return fmt.Sprintf("%s median, %s p99, %s worst", Value(s.Value, s.Unit), Value(sample.Quantile(s.Values, 0.99), s.Unit), Value(sample.Quantile(s.Values, 1), s.Unit))
	}
	find := func(name string) (sample.Sample, bool) { return w.run.Find(name) }
	if s, ok := find("kill/gc=off"); ok {
		add("It stops: deadline → VM free", spread(s), s.Count)
	}
	if s, ok := find("kill/gc=on"); ok {
		add("… with the collector called every 20 ms beside it", spread(s), s.Count)
	}
	if s, ok := find("memory/figure=share"); ok {
		add("It fits: largest linear memory, as a share of what is allowed", Value(sample.Quantile(s.Values, 1), s.Unit)+" at most", s.Count)
	}
	if s, ok := find("fresh/op=eval"); ok {
		figure := Value(s.Value, s.Unit)
		if g, ok := find("fresh/op=gain"); ok {
			rt, _ := find("fresh/op=runtime")
			figure += fmt.Sprintf("; making and freeing a runtime takes %s (%s)", Value(rt.Value, rt.Unit), Value(g.Value, g.Unit))
		}
		add("It leaves nothing: a fresh `1+1`", figure, s.Count)
	}
	for _, s := range w.run.In("loop") {
		if s.Key("figure") != "longest" || s.Key("of") != "" {
			continue
		}
		what := "It does not disturb: longest gap of a 1 ms heartbeat"
		switch m := s.Key("metering"); m {
		case "none":
			what += ", no script (control)"
		case "":
		default:
			what += ", beside a BigInt burner, metering " + m
		}
		add(what, fmt.Sprintf("%s median, %s worst", Value(s.Value, s.Unit), Value(sample.Quantile(s.Values, 1), s.Unit)), s.Count)
	}
	for _, p := range []struct{ place, what string }{
		{"backend=inproc", "Four reshapes at once, in-process: wall; share of it in which the loop was gone"},
		{"backend=pool/workers=4", "… on 4 goroutine workers"},
		{"backend=process/workers=4", "… on 4 process workers"},
	} {
		row := "loop/of=reshapes/" + p.place + "/gc=off/figure="
		wall, ok := find(row + "wall")
		gone, there := find(row + "unavailable")
		longest, too := find(row + "longest")
		if ok && there && too {
			add(p.what, fmt.Sprintf("%s; %s, longest gap %s", Value(wall.Value, wall.Unit), Value(gone.Value, gone.Unit), Value(longest.Value, longest.Unit)), wall.Count)
		}
	}
	for _, c := range []struct{ name, what string }{
		{"kill/to=next/backend=pool/spare=0", "Kill → next result of the same goroutine worker"},
		{"kill/to=next/backend=process/spare=0", "… of a process worker"},
		{"kill/to=next/backend=process/spare=1", "… of a process worker with one warm spare"},
	} {
		if s, ok := find(c.name); ok {
			add(c.what, fmt.Sprintf("%s median, %s worst", Value(s.Value, s.Unit), Value(sample.Quantile(s.Values, 1), s.Unit)), s.Count)
		}
	}
	for _, s := range w.run.In("guard") {
		if s.Key("workload") == "" && s.Key("script") == "" {
			worst := sample.Sample{}
			for _, t := range w.run.In("guard") {
				if t.Key("metering") == s.Key("metering") && t.Key("workload") != "" && t.Value > worst.Value {
					worst = t
				}
			}
			add("Price of metering "+s.Key("metering")+", against off", fmt.Sprintf("%s geometric mean, %s at most (%s)", Value(s.Value, s.Unit), Value(worst.Value, worst.Unit), worst.Key("workload")), worst.Count)
		}
	}
	for _, c := range []struct{ name, what string }{
		{"cold/of=process/cache=filled", "Cold: process start → first result, compile cache filled"},
		{"cold/of=process/cache=empty", "… compile cache empty"},
		{"cold/of=vm", "Cold: one more VM"},
		{"cold/of=worker/backend=pool/cache=filled", "Cold: first result of one more goroutine worker"},
		{"cold/of=worker/backend=process/cache=filled", "… of one more process worker"},
		{"cold/of=worker/backend=process/cache=empty", "… of a process worker, compile cache empty"},
	} {
		if s, ok := find(c.name); ok {
			add(c.what, Value(s.Value, s.Unit), s.Count)
		}
	}
	if len(rows) == 0 {
		return
	}
	w.line("| what | figure | runs |")
	w.line("| --- | --- | ---: |")
	for _, r := range rows {
		w.line("| %s | %s | %s |", r.what, r.figure, r.runs)
	}
	w.line("")
	w.picture(killPlot, "kill latency", killLatency)
	w.picture(guardPlot, "guard cost", guardCost)
}

// workloads is one line a workload and size.
func (w *writer) workloads() {
	walls := w.run.In("wall")
	if len(walls) == 0 {
		return
	}
	w.line("## Workloads")
	w.line("")
	w.line("Wall time is of the whole call in a fresh VM: input parsed, script, result copied, VM made fresh again.")
	w.line("")
	var meterings []string
	for _, s := range w.run.In("guard") {
		if m := s.Key("metering"); !slices.Contains(meterings, m) {
			meterings = append(meterings, m)
		}
	}
	head, rule := "| row | wall (median) | p90 |", "| --- | ---: | ---: |"
	for _, m := range meterings {
		head += " " + m + " ÷ off |"
		rule += " ---: |"
	}
	w.line("%s fuel | peak memory | output | runs |", head)
	w.line("%s ---: | ---: | ---: | ---: |", rule)
	for _, s := range walls {
		_, row, _ := strings.Cut(s.Name, "/")
		cell := func(name string) string {
			if v, ok := w.run.Find(name); ok {
				return Value(v.Value, v.Unit)
			}
			return "–"
		}
		line := fmt.Sprintf("| %s | %s | %s |", row, Value(s.Value, s.Unit), Value(sample.Quantile(s.Values, 0.9), s.Unit))
		for _, m := range meterings {
			line += " " + cell("guard/metering="+m+"/"+row) + " |"
		}
		w.line("%s %s | %s | %s | %s |", line, cell("fuel/"+row), cell("peak/"+row), cell("output/"+row), times(s))
	}
	w.line("")
}

// cases is a folded table of a group's rows that belong to a corpus case.
func (w *writer) cases(title, group, about, key string, figures func(sample.Sample) string, columns string) {
	var rows []sample.Sample
	for _, s := range w.run.In(group) {
		if s.Key("case") != "" {
			rows = append(rows, s)
		}
	}
	if len(rows) == 0 {
		return
	}
	w.fold(title, func() {
		w.line("%s", about)
		w.line("")
		id := "case"
		if key != "" {
			id += " | " + key
		}
		w.line("| %s | %s |", id, columns)
		w.line("|%s", strings.Repeat(" --- |", strings.Count(id+"|"+columns, "|")+1))
		for _, s := range rows {
			id := s.Key("case")
			if key != "" {
				id += " | " + s.Key(key)
			}
			w.line("| %s | %s |", id, figures(s))
		}
	})
}

func (w *writer) all() {
	w.fold("All rows", func() {
		w.line("| row | value | runs | settings |")
		w.line("| --- | ---: | ---: | --- |")
		for _, s := range w.run.Samples {
			var settings []string
			for _, k := range slices.Sorted(maps.Keys(s.Config)) {
				settings = append(settings, k+"="+s.Config[k])
			}
			w.line("| %s | %s | %s | %s |", s.Name, Value(s.Value, s.Unit), times(s), inline(strings.Join(settings, ", ")))
		}
	})
}

func (w *writer) environment() {
	e := w.run.Environment
	commit := e.Commit
	if e.Modified {
		commit += " with changes"
	}
	w.line("## Environment")
	w.line("")
	w.line("| what | value |")
	w.line("| --- | --- |")
	for _, r := range [][2]string{
		{"engine", e.Engine}, {"commit", commit}, {"Go", e.Go}, {"system", e.OS + "/" + e.Arch},
		{"processor", e.CPU}, {"cores", fmt.Sprint(e.Cores)}, {"GOMAXPROCS", fmt.Sprint(e.GOMAXPROCS)},
	} {
		w.line("| %s | %s |", r[0], inline(r[1]))
	}
	w.line("")
	flag := ""
	if w.run.Quick {
		flag = " --quick"
	}
	w.line("To repeat it: `benchrun run%s`. The samples are in report.json (schema %d).", flag, w.run.Schema)
}
