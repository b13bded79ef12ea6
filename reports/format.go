package reports

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/sandbed/sandbed/bench/sample"
)

// Value writes a value of a base unit for people: "1.43 ms", "32.2 MiB",
// "12,345 fuel", "1.05 ×". A unit of go test -bench keeps what it is per:
// "1.43 ms/op"; one that is not known stays as it is.
func Value(v float64, unit string) string {
	if unit, per, ok := strings.Cut(unit, "/"); ok {
		return Value(v, unit) + "/" + per
	}
	switch unit {
	case sample.Seconds:
		for _, u := range []struct {
			name string
			size float64
		}{{"s", 1}, {"ms", 1e-3}, {"µs", 1e-6}} {
			if math.Abs(v) >= u.size {
				return digits(v/u.size) + " " + u.name
			}
		}
		return digits(v*1e9) + " ns"
	case sample.Bytes:
		for _, u := range []struct {
			name string
			size float64
		}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
			if math.Abs(v) >= u.size {
				return digits(v/u.size) + " " + u.name
			}
		}
		return digits(v) + " B"
	case sample.Ratio:
		return digits(v) + " ×"
	case sample.Share:
		return digits(100*v) + " %"
	case sample.Fuel:
		return thousands(v) + " fuel"
	case sample.Count:
		return thousands(v)
	}
	return digits(v) + " " + unit
}

// digits keeps three digits that count, and all of a whole number.
func digits(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100 || math.Abs(v-math.Round(v)) < 1e-9*a || v == 0:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

func thousands(v float64) string {
	s := strconv.FormatFloat(math.Abs(v), 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	if v < 0 {
		s = "-" + s
	}
	return s
}

// Row is a sample as one line of a table: what came out, and what goes with it.
func Row(s sample.Sample) string {
	note := fmt.Sprintf("n=%d", s.Count)
	if s.Exact {
		note = fmt.Sprintf("exact, n=%d", s.Count)
	} else if len(s.Values) > 1 {
		if s.Count >= 100 { // below, it is the worst by another name
			note += "  p99 " + Value(sample.Quantile(s.Values, 0.99), s.Unit)
		}
		note += "  worst " + Value(sample.Quantile(s.Values, 1), s.Unit)
	}
	if len(s.Warnings) > 0 {
		note += "  ! " + strings.Join(s.Warnings, "; ")
	}
	return fmt.Sprintf("%-58s %14s  %s", s.Name, Value(s.Value, s.Unit), note)
}
