package reports

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"

	"github.com/sandbed/sandbed/bench/gate"
	"github.com/sandbed/sandbed/bench/sample"
	"golang.org/x/perf/benchfmt"
)

// What other tools read.

// benchfmt is the launches of one arm in the format of go test -bench, in the order
// they were made. benchstat makes a table for each set of file-level keys, so only what both
// arms share is one; the rest is in lines that begin with # and that no reader takes
// for more than a comment.
func (c *comparison) benchfmt(arm string) ([]byte, error) {
	ref, env, other := c.Base, c.BaseEnv, c.HeadEnv
	if arm == gate.Head {
		ref, env, other = c.Head, c.HeadEnv, c.BaseEnv
	}
	var b bytes.Buffer
	comment := func(format string, args ...any) { fmt.Fprintf(&b, "# %s\n", plain(fmt.Sprintf(format, args...))) }
	comment("arm: %s, asked for: %s, commit: %s", arm, ref.Name, commitText(ref))
	var config []benchfmt.Config
	for _, k := range []struct{ key, value, others string }{
		{"goos", env.OS, other.OS}, {"goarch", env.Arch, other.Arch}, {"cpu", env.CPU, other.CPU}, {"toolchain", env.Go, other.Go}, {"suite", env.Engine, other.Engine},
	} {
		if k.value == k.others && k.value != "" {
			config = append(config, benchfmt.Config{Key: k.key, Value: []byte(plain(k.value)), File: true})
		} else if k.value != "" {
			comment("%s: %s", k.key, k.value)
		}
	}
	procs := ""
	if n := env.GOMAXPROCS; n > 0 && n == other.GOMAXPROCS {
		procs = fmt.Sprintf("-%d", n)
	}
	launches := c.compared()
	w := benchfmt.NewWriter(&b)
	for _, m := range unitMetadata(launches) {
		if err := w.Write(m); err != nil {
			return nil, err
		}
	}
	for _, l := range launches {
		if l.Arm != arm {
			continue
		}
		if l.Absent {
			continue
		}
		if l.Failed != "" || number(l.Value) != l.Value {
			comment("%s failed: %s", l.Row, l.Failed)
			continue
		}

		result := &benchfmt.Result{Config: config, Name: benchfmt.Name(benchName(l.Row) + procs), Iters: max(1, l.Inner), Values: []benchfmt.Value{{Value: l.Value, Unit: benchUnit(l.Unit)}}}
		if err := w.Write(result); err != nil {
			return nil, err
		}
		if l.Order != "" {
			comment("^ round %d, order %s, first %s, stage %s, layout %d", l.Round, l.Order, yes(l.First), l.Stage, l.Layout)
		}
	}
	return b.Bytes(), nil
}

// compared are the launches of base and head; where there are none, as many as the rows have values.
func (c *comparison) compared() []gate.Launch {
	var out []gate.Launch
	for _, l := range c.launches {
		if l.Control == "" && (l.Arm == gate.Base || l.Arm == gate.Head) {
			out = append(out, l)
		}
	}
	if len(out) > 0 {
		return out
	}
	for _, r := range c.Rows {
		for arm, values := range [][]float64{r.BaseVals, r.HeadVals} {
			for _, v := range values {
				out = append(out, gate.Launch{Row: r.Name, Unit: r.Unit, Better: r.Better, Lane: r.Lane, Arm: []string{gate.Base, gate.Head}[arm], Value: v})
			}
		}
	}
	return out
}

// unitMetadata says of each unit what all of its rows share.
func unitMetadata(launches []gate.Launch) []*benchfmt.UnitMetadata {
	type about struct {
		better string
		exact  bool
	}
	var order []string
	units := map[string]about{}
	for _, l := range launches {
		unit := benchUnit(l.Unit)
		u, seen := units[unit]
		if !seen {
			order = append(order, unit)
			u = about{l.Better, true}
		}
		if l.Better != u.better {
			u.better = ""
		}
		u.exact = u.exact && l.Lane == gate.Exact
		units[unit] = u
	}
	slices.Sort(order)
	var out []*benchfmt.UnitMetadata
	add := func(unit, key, value string) {
		out = append(out, &benchfmt.UnitMetadata{UnitMetadataKey: benchfmt.UnitMetadataKey{Unit: unit, Key: key}, OrigUnit: unit, Value: value})
	}
	for _, unit := range order {
		if better := units[unit].better; better == "lower" || better == "higher" {
			add(unit, "better", better)
		}
		if units[unit].exact {
			add(unit, "assume", "exact")
		}
	}
	return out
}

// benchName is a row's name as one of go test: "wall/size=small" is "Wall/size=small".
func benchName(row string) string {
	name := []rune(strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return '_'
		}
		return r
	}, plain(strings.TrimPrefix(row, "Benchmark"))))
	if len(name) == 0 {
		return "Unnamed"
	}
	name[0] = unicode.ToUpper(name[0])
	return string(name)
}

// benchUnit is a unit as go test writes it: "sec" is "sec/op".
func benchUnit(unit string) string {
	switch unit {
	case sample.Seconds, sample.Bytes, sample.Fuel:
		return unit + "/op"
	case "":
		return "unknown"
	}
	return strings.Join(strings.Fields(plain(unit)), "_")
}

// bencher is what head measured, in Bencher's metric format.
func (c *comparison) bencher() ([]byte, error) {
	type metric struct {
		Value float64  `json:"value"`
		Lower *float64 `json:"lower_value,omitempty"`
		Upper *float64 `json:"upper_value,omitempty"`
	}
	out := map[string]map[string]metric{}
	for _, r := range c.Rows {
		if r.Head.N == 0 || number(r.Head.Median) != r.Head.Median {
			continue
		}
		measure, scale := r.Unit, 1.0
		if r.Unit == sample.Seconds {
			measure, scale = "latency", 1e9 // Bencher's own measure is in nanoseconds
		}
		m := metric{Value: scale * r.Head.Median}
		bound := func(end float64) *float64 {
			if number(end) != end || !(r.Head.CI.Confidence > 0) {
				return nil
			}
			end *= scale
			return &end
		}
		m.Lower, m.Upper = bound(r.Head.CI.Low), bound(r.Head.CI.High)
		if out[r.Name] == nil {
			out[r.Name] = map[string]metric{}
		}
		out[r.Name][measure] = m
	}
	return indented(out)
}

// smallerIsBetter is what head measured, for github-action-benchmark's tool of that
// name; rows where more is better have no place in it.
func (c *comparison) smallerIsBetter() ([]byte, error) {
	type row struct {
		Name  string  `json:"name"`
		Unit  string  `json:"unit"`
		Value float64 `json:"value"`
		Range string  `json:"range,omitempty"`
		Extra string  `json:"extra,omitempty"`
	}
	out := []row{}
	for _, r := range c.Rows {
		if r.Better == "higher" || r.Head.N == 0 || number(r.Head.Median) != r.Head.Median {
			continue
		}
		one := row{Name: r.Name, Unit: r.Unit, Value: r.Head.Median, Extra: fmt.Sprintf("%s; base %v, ratio %s, %d rounds", r.Verdict, number(r.Base.Median), ratio(r.Ratio), r.Rounds)}
		if half := (r.Head.CI.High - r.Head.CI.Low) / 2; half > 0 && !math.IsInf(half, 0) {
			one.Range = fmt.Sprintf("± %.3g", half)
		}
		out = append(out, one)
	}
	return indented(out)
}

// badge is an endpoint of shields.io.
func (c *comparison) badge() ([]byte, error) {
	worse := 0
	for _, r := range c.Rows {
		if r.Gated && r.Verdict == gate.Regression {
			worse++
		}
	}
	message, colour := plain(c.Verdict), "lightgrey"
	switch c.Verdict {
	case "ok":
		message, colour = "no slowdown of "+share(c.Design.Theta), "brightgreen"
	case "regression":
		message, colour = fmt.Sprintf("%d regressed", worse), "red"
	case "inconclusive":
		colour = "yellow"
	case "unfit":
		message = "runner unfit"
	case "failed":
		colour = "red"
	}
	return indented(struct {
		Schema  int    `json:"schemaVersion"`
		Label   string `json:"label"`
		Message string `json:"message"`
		Color   string `json:"color"`
	}{1, "benchmarks", message, colour})
}

func (c *comparison) environmentJSON() ([]byte, error) {
	type side struct {
		Ref         gate.Ref           `json:"ref"`
		Environment sample.Environment `json:"environment"`
	}
	return indented(struct {
		Schema int  `json:"schema"`
		Base   side `json:"base"`
		Head   side `json:"head"`
	}{1, side{c.Base, c.BaseEnv}, side{c.Head, c.HeadEnv}})
}

// calibrationJSON is nothing if the machine was not looked at.
func (c *comparison) calibrationJSON() ([]byte, error) {
	if c.Fitness == nil {
		return nil, nil
	}
	return indented(c.Fitness)
}
