// Package sample holds what a benchmark found: one measurement with its unit,
// its count and its warnings, and the run it belongs to. It is the leaf that
// bench writes and reports reads.
package sample

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Schema is the version of the JSON form of [Run]. It grows by one with every
// change that an older reader would misread.
const Schema = 1

// The base units. A value is always in one of these; how it is shown
// (milliseconds, mebibytes) is the reader's affair.
const (
	Seconds = "sec"
	Bytes   = "B"
	Fuel    = "fuel"  // metered operations
	Ratio   = "ratio" // of two measurements of the same run
	Share   = "share" // of a whole, 0 to 1
	Count   = "count"
)

var units = []string{Seconds, Bytes, Fuel, Ratio, Share, Count}

// Sample is one measurement.
type Sample struct {
	// Name is the group, then what distinguishes the row in it, as key=value:
	// "wall/workload=join/size=medium".
	Name string `json:"name"`
	Unit string `json:"unit"`
	// Value is the median of what was observed, or the exact value.
	Value float64 `json:"value"`
	// Count is how many observations Value stands for; at least 1.
	Count int `json:"count"`
	// Values are the observations in the order they were made; absent for an
	// exact value.
	Values []float64 `json:"values,omitempty"`
	// Exact marks a value that the same build repeats to the last unit.
	Exact bool `json:"exact,omitempty"`
	// Config is what the row was measured under and its name does not say.
	Config map[string]string `json:"config,omitempty"`
	// Warnings say why the value may mislead; one line each.
	Warnings []string `json:"warnings,omitempty"`
}

// New returns the sample of observations, which must not be empty.
func New(name, unit string, values []float64) Sample {
	return Sample{Name: name, Unit: unit, Value: Quantile(values, 0.5), Count: len(values), Values: values}
}

// NewExact returns the sample of a value seen count times.
func NewExact(name, unit string, value float64, count int) Sample {
	return Sample{Name: name, Unit: unit, Value: value, Count: count, Exact: true}
}

// Group is the first part of the name.
func (s Sample) Group() string {
	group, _, _ := strings.Cut(s.Name, "/")
	return group
}

// Key returns the value of a key of the name, or "".
func (s Sample) Key(key string) string {
	for part := range strings.SplitSeq(s.Name, "/") {
		if v, ok := strings.CutPrefix(part, key+"="); ok {
			return v
		}
	}
	return ""
}

var nameForm = regexp.MustCompile(`^[a-z]+(/[a-z]+=[A-Za-z0-9.,:+_-]+)*$`)

// Validate reports the first thing that makes s unusable.
func (s Sample) Validate() error {
	bad := func(field string, value any, allowed string) error {
		return fmt.Errorf("sample %q: %s = %v: %s", s.Name, field, value, allowed)
	}
	switch {
	case !nameForm.MatchString(s.Name):
		return bad("name", fmt.Sprintf("%q", s.Name), "give group/key=value/…")
	case !slices.Contains(units, s.Unit):
		return bad("unit", fmt.Sprintf("%q", s.Unit), "give one of "+strings.Join(units, ", "))
	case s.Count < 1 || s.Values != nil && s.Count != len(s.Values):
		return bad("count", s.Count, "give the number of observations, at least 1")
	case math.IsNaN(s.Value) || math.IsInf(s.Value, 0):
		return bad("value", s.Value, "give a finite number")
	}
	for _, v := range s.Values {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return bad("values", v, "give finite numbers")
		}
	}
	return nil
}

// Quantile returns the p-quantile of values, 0 ≤ p ≤ 1, interpolated between
// the two nearest observations; NaN when there are none.
func Quantile(values []float64, p float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	at := p * float64(len(sorted)-1)
	lo := int(math.Floor(at))
	hi := min(lo+1, len(sorted)-1)
	return sorted[lo] + (at-float64(lo))*(sorted[hi]-sorted[lo])
}

// GeometricMean returns the geometric mean of positive values; NaN when there
// are none.
func GeometricMean(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sum := 0.0
	for _, v := range values {
		sum += math.Log(v)
	}
	return math.Exp(sum / float64(len(values)))
}

// Environment is where a run was made.
type Environment struct {
	Go         string `json:"go"`
	OS         string `json:"os"`
	Arch       string `json:"arch"`
	CPU        string `json:"cpu"` // model name; "unknown" where the system does not say
	Cores      int    `json:"cores"`
	GOMAXPROCS int    `json:"gomaxprocs"`
	Commit     string `json:"commit"` // from the build information; "unknown" without it
	Modified   bool   `json:"modified,omitempty"`
	Engine     string `json:"engine"`
	// What follows is absent where the system does not say, or nothing was set.
	Kernel      string `json:"kernel,omitempty"`       // release of the operating system's
	Virtual     bool   `json:"virtual,omitempty"`      // the processor says that a hypervisor is above
	Caches      string `json:"caches,omitempty"`       // of the first processor: "L1d 32K, L1i 32K, L2 512K, L3 32M"
	ClockSource string `json:"clock_source,omitempty"` // "tsc"
	Quota       string `json:"cpu_quota,omitempty"`    // of the cgroup: cpu.max, "200000 100000"
	MemoryBytes int64  `json:"memory_bytes,omitempty"` // of the machine
	Load        string `json:"load,omitempty"`         // averages over 1, 5 and 15 minutes
	GOAMD64     string `json:"goamd64,omitempty"`
	GOGC        string `json:"gogc,omitempty"`
	GOMEMLIMIT  string `json:"gomemlimit,omitempty"`
	GODEBUG     string `json:"godebug,omitempty"`
	BuildFlags  string `json:"build_flags,omitempty"` // "-ldflags=-randlayout=1 -trimpath=true"
}

// Run is all that one run of the suite measured.
type Run struct {
	Schema      int         `json:"schema"`
	Started     time.Time   `json:"started"`
	Took        float64     `json:"took_sec"`
	Quick       bool        `json:"quick,omitempty"`
	Environment Environment `json:"environment"`
	Warnings    []string    `json:"warnings,omitempty"`
	// Broken names each guarantee that was seen not to hold; one line each.
	Broken  []string `json:"broken,omitempty"`
	Samples []Sample `json:"samples"`
	// Traces are what a loop saw of one window, to be drawn.
	Traces []Trace `json:"traces,omitempty"`
}

// Trace is one window of a loop: when it did not beat.
type Trace struct {
	Name    string  `json:"name"`    // formed like that of a sample
	Seconds float64 `json:"seconds"` // length of the window
	// Gaps are the gaps above 2 ms in order: begin since the start, and length,
	// in seconds.
	Gaps [][2]float64 `json:"gaps"`
}

// Validate reports the first thing that makes t unusable.
func (t Trace) Validate() error {
	if !nameForm.MatchString(t.Name) {
		return fmt.Errorf("trace %q: name: give group/key=value/…", t.Name)
	}
	finite := func(v float64) bool { return v >= 0 && !math.IsInf(v, 1) }
	ok := finite(t.Seconds)
	for _, g := range t.Gaps {
		ok = ok && finite(g[0]) && finite(g[1])
	}
	if !ok {
		return fmt.Errorf("trace %q: give finite times that are not negative", t.Name)
	}
	return nil
}

// Find returns the sample of that name.
func (r Run) Find(name string) (Sample, bool) {
	i := slices.IndexFunc(r.Samples, func(s Sample) bool { return s.Name == name })
	if i < 0 {
		return Sample{}, false
	}
	return r.Samples[i], true
}

// In returns the samples of a group, in the order they were measured.
func (r Run) In(group string) []Sample {
	var out []Sample
	for _, s := range r.Samples {
		if s.Group() == group {
			out = append(out, s)
		}
	}
	return out
}

// Validate reports every sample and trace that is unusable and every name that
// occurs twice.
func (r Run) Validate() error {
	var errs []error
	seen := map[string]bool{}
	for _, s := range r.Samples {
		if err := s.Validate(); err != nil {
			errs = append(errs, err)
		}
		if seen[s.Name] {
			errs = append(errs, fmt.Errorf("sample %q: the name occurs twice", s.Name))
		}
		seen[s.Name] = true
	}
	for _, t := range r.Traces {
		if err := t.Validate(); err != nil {
			errs = append(errs, err)
		}
		if seen[t.Name] {
			errs = append(errs, fmt.Errorf("trace %q: the name occurs twice", t.Name))
		}
		seen[t.Name] = true
	}
	return errors.Join(errs...)
}

// Encode returns r as indented JSON; a row and a trace are one line each.
func Encode(r Run) ([]byte, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	r.Schema = Schema
	head := r
	head.Samples, head.Traces = nil, nil
	top, err := json.MarshalIndent(head, "", "  ")
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.Write(bytes.TrimSuffix(top, []byte("null\n}")))
	if err := writeLines(&b, r.Samples); err != nil {
		return nil, err
	}
	if len(r.Traces) > 0 {
		b.WriteString(",\n  \"traces\": ")
		if err := writeLines(&b, r.Traces); err != nil {
			return nil, err
		}
	}
	b.WriteString("\n}\n")
	return b.Bytes(), nil
}

// writeLines writes a JSON array with one element a line.
func writeLines[T any](b *bytes.Buffer, list []T) error {
	b.WriteString("[")
	for i, v := range list {
		line, err := json.Marshal(v)
		if err != nil {
			return err
		}
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString("\n    ")
		b.Write(line)
	}
	b.WriteString("\n  ]")
	return nil
}

// Decode reads what Encode wrote, and refuses another schema.
func Decode(from io.Reader) (Run, error) {
	var r Run
	if err := json.NewDecoder(from).Decode(&r); err != nil {
		return Run{}, fmt.Errorf("sample: %w", err)
	}
	if r.Schema != Schema {
		return Run{}, fmt.Errorf("sample: schema %d is not readable: this build reads schema %d", r.Schema, Schema)
	}
	return r, r.Validate()
}
