package enginetest

import (
	"bytes"
	_ "embed"
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Inexact is a case whose outcome may differ from the expected one while it is
// an accepted one, and why.
type Inexact struct {
	Case string
	// Slow: only where the machine is slow, when the case meets its wall clock.
	// Such a line is never stale.
	Slow   bool
	Reason string
	Date   string // when it was last confirmed, as 2006-01-02
}

//go:embed testdata/inexact.csv
var inexact []byte

// InexactCases is the list for engine/quickjs, as testdata/inexact.csv has it.
// The error names a line that cannot be used.
func InexactCases() ([]Inexact, error) { return parseInexact(bytes.NewReader(inexact)) }

func parseInexact(r io.Reader) ([]Inexact, error) {
	c := csv.NewReader(r)
	c.FieldsPerRecord = 4
	rows, err := c.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("inexact.csv: %w", err)
	}
	if len(rows) == 0 || !slices.Equal(rows[0], []string{"case", "when", "reason", "date"}) {
		return nil, fmt.Errorf("inexact.csv line 1: give the header case,when,reason,date")
	}
	var list []Inexact
	for i, f := range rows[1:] {
		x := Inexact{f[0], f[1] == "slow", strings.TrimSpace(f[2]), f[3]}
		bad := func(field, remedy string) error {
			return fmt.Errorf("inexact.csv line %d (%q): %s: %s", i+2, f, field, remedy)
		}
		if x.Case == "" || slices.ContainsFunc(list, func(y Inexact) bool { return y.Case == x.Case }) {
			return nil, bad("case", "give every case once, by its id")
		}
		if f[1] != "always" && f[1] != "slow" {
			return nil, bad("when", "give always, or slow for a case that meets its clock on a slow machine")
		}
		if x.Reason == "" {
			return nil, bad("reason", "say why the outcome may differ")
		}
		if _, err := time.Parse(time.DateOnly, x.Date); err != nil {
			return nil, bad("date", "give it as 2006-01-02")
		}
		list = append(list, x)
	}
	return list, nil
}

// CheckInexact holds the records of one or more runs of the same corpus against
// a list: a case that passed inexactly and is not listed is a finding, and so is
// a listed one that was exact in every run, or that is no case at all. A case that
// ended by its clock needs no line: a slow machine explains it.
func CheckInexact(list []Inexact, runs ...[]Record) []Finding {
	const (
		unseen = iota
		exact
		differed
	)
	seen := map[string]int{}
	var findings []Finding
	for _, records := range runs {
		for _, r := range records {
			how := exact
			if r.Pass && !r.Exact {
				how = differed
				listed := slices.ContainsFunc(list, func(x Inexact) bool { return x.Case == r.ID })
				if !listed && r.Class != "limit:wallClock" && seen[r.ID] != differed {
					findings = append(findings, Finding{"inexact", r.ID, fmt.Sprintf("got %s, want %s: add a line to inexact.csv that says why, or mend it", r.Class, r.Expected)})
				}
			}
			seen[r.ID] = max(seen[r.ID], how)
		}
	}
	for _, x := range list {
		switch seen[x.Case] {
		case unseen:
			findings = append(findings, Finding{"inexact", x.Case, "listed in inexact.csv, and no case has this id"})
		case exact:
			if x.Slow {
				continue
			}
			findings = append(findings, Finding{"inexact", x.Case, "listed in inexact.csv, and exact in every run: remove the line"})
		}
	}
	return findings
}
