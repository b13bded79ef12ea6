package gate

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// maxWaivers bounds the lines of a file of waivers.
const maxWaivers = 10_000

// ReadWaivers reads a file of waivers, one a line:
//
//	benchmark | metric | ceiling | expires | issue | reason
//
// Metric is the row's unit, ceiling the largest slowdown it covers as a ratio (1.12 for
// 12 %), expires its last day (2027-01-31). Empty lines and lines that begin with # are
// skipped. An error names the line.
func ReadWaivers(r io.Reader) ([]Waiver, error) {
	var out []Waiver
	seen := map[[2]string]bool{}
	in := bufio.NewScanner(r)
	in.Buffer(nil, maxLine)
	number := 0
	for in.Scan() {
		number++
		line := strings.TrimSpace(in.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		bad := func(field, value, allowed string) error {
			return fmt.Errorf("waivers: line %d: %s = %.100q: %s", number, field, value, allowed)
		}
		parts := strings.Split(line, "|")
		if len(parts) != 6 {
			return nil, bad("line", line, "give benchmark | metric | ceiling | expires | issue | reason")
		}
		for i, name := range []string{"benchmark", "metric", "ceiling", "expires", "issue", "reason"} {
			if parts[i] = strings.TrimSpace(parts[i]); parts[i] == "" {
				return nil, bad(name, "", "it must not be empty")
			}
		}
		w := Waiver{Row: parts[0], Unit: parts[1], Issue: parts[4], Reason: parts[5]}
		var err error
		if w.Ceiling, err = strconv.ParseFloat(parts[2], 64); err != nil || !(w.Ceiling > 1 && w.Ceiling <= 100) {
			return nil, bad("ceiling", parts[2], "give a ratio above 1, at most 100, such as 1.12")
		}
		if w.Expires, err = time.Parse(time.DateOnly, parts[3]); err != nil {
			return nil, bad("expires", parts[3], "give a day such as 2027-01-31")
		}
		if seen[[2]string{w.Row, w.Unit}] {
			return nil, bad("benchmark", w.Row, "it is waived above: keep one line")
		}
		seen[[2]string{w.Row, w.Unit}] = true
		if len(out) == maxWaivers {
			return nil, bad("line", line, fmt.Sprintf("keep at most %d waivers", maxWaivers))
		}
		out = append(out, w)
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("waivers: line %d: %w", number+1, err)
	}
	return out, nil
}

// waive settles the waivers against the rows, which it may turn from Regression to Waived.
func waive(rows []Row, waivers []Waiver, today time.Time) []Waiver {
	out := make([]Waiver, len(waivers))
	day := today.UTC().Format(time.DateOnly)
	for i, w := range waivers {
		w.State = "stale"
		expired := day > w.Expires.Format(time.DateOnly)
		for j := range rows {
			row := &rows[j]
			if row.Name != w.Row || row.Unit != w.Unit {
				continue
			}
			switch {
			case row.Verdict == Inconclusive || row.Verdict == Unmeasurable || row.Verdict == Failed:
				w.State = "unjudged"
			case row.Verdict != Regression:
			case expired:
				w.State = "expired"
			case row.slowdown() > w.Ceiling:
				w.State = "exceeded"
			default:
				w.State = "used"
				row.Verdict = Waived
			}
			if row.Verdict == Waived || w.State == "expired" || w.State == "exceeded" {
				used := w
				row.Waiver = &used
			}
		}
		if expired {
			w.State = "expired"
		}
		out[i] = w
	}
	return out
}
