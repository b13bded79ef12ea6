package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandbed/sandbed/bench"
)

// sizeUnits are the suffixes of a size, in bytes.
var sizeUnits = []struct {
	name  string
	bytes int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}, {"", 1}}

// parseSize reads a flag that is a number of bytes between lo and hi: "32MiB",
// "512KiB", "1048576". A flag that was not given is 0, the default.
func parseSize(flag string, given *string, lo, hi int64) (int64, error) {
	if given == nil {
		return 0, nil
	}
	text := *given
	bad := &usage{flag, text, fmt.Sprintf("give %s to %s, such as 32MiB, 512KiB or 33554432", sizeText(lo), sizeText(hi))}
	for _, u := range sizeUnits {
		digits, ok := strings.CutSuffix(text, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 63) // no sign, no blanks
		if err != nil || int64(n) > math.MaxInt64/u.bytes {
			return 0, bad
		}
		if v := int64(n) * u.bytes; v >= lo && v <= hi {
			return v, nil
		}
		return 0, bad
	}
	return 0, bad
}

// sizeText writes a size as parseSize reads it.
func sizeText(n int64) string {
	for _, u := range sizeUnits {
		if n >= u.bytes && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}

// parseCount reads a flag that is a whole number; 0 if it was not given.
func parseCount(flag string, given *string, lo, hi int64) (int64, error) {
	if given == nil {
		return 0, nil
	}
	text := *given
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil || int64(n) < lo || int64(n) > hi {
		return 0, &usage{flag, text, fmt.Sprintf("give a whole number from %d to %d", lo, hi)}
	}
	return int64(n), nil
}

// parseDuration reads a flag that is a time; 0 if it was not given.
func parseDuration(flag string, given *string, lo, hi time.Duration) (time.Duration, error) {
	if given == nil {
		return 0, nil
	}
	text := *given
	d, err := time.ParseDuration(text)
	if err != nil || d < lo || d > hi {
		return 0, &usage{flag, text, fmt.Sprintf("give %s to %s, such as 50ms or 2s", short(lo), short(hi))}
	}
	return d, nil
}

// short is a duration without zero minutes and seconds.
func short(d time.Duration) string {
	if d == 0 {
		return "0s"
	}
	return strings.TrimSuffix(strings.TrimSuffix(d.String(), "0s"), "0m")
}

// oneOf checks a flag that is one of a few words.
func oneOf(flag, text string, allowed ...string) error {
	if slices.Contains(allowed, text) {
		return nil
	}
	return &usage{flag, text, "give " + strings.Join(allowed, ", ")}
}

// metering checks --metering against what the sandbox has; without the flag it
// is the sandbox's default.
func metering(s bench.Suite, given *string) (string, error) {
	switch {
	case given == nil:
		return s.Metering(), nil
	case len(s.Meterings) == 0:
		return "", &usage{"--metering", *given, "leave it out: " + s.Engine + " has one way only"}
	}
	return *given, oneOf("--metering", *given, s.Meterings...)
}

// backendFlags say what runs the evaluations.
type backendFlags struct {
	Backend *string `placeholder:"NAME" help:"What evaluates: inproc (default), pool for goroutine workers, process for process workers."`
	Workers *string `placeholder:"N" help:"Workers of the pool: 1 to 1024 (default: as many as processors), or 0 to evaluate in-process."`
}

// options checks the flags against what the sandbox has and fills in o.
func (f backendFlags) options(s bench.Suite, o *bench.Options) error {
	allowed := s.Backends
	if len(allowed) == 0 {
		allowed = []string{bench.BackendInProcess}
	}
	name := allowed[0]
	if f.Backend != nil {
		name = *f.Backend
		if err := oneOf("--backend", name, allowed...); err != nil {
			return err
		}
	}
	workers := 0
	if name != bench.BackendInProcess {
		workers = min(runtime.GOMAXPROCS(0), bench.MaxWorkers)
	}
	if f.Workers != nil {
		n, err := parseCount("--workers", f.Workers, 0, bench.MaxWorkers)
		if err != nil {
			return err
		}
		switch workers = int(n); {
		case workers > 0 && name == bench.BackendInProcess:
			remedy := "leave it out, or give 0: " + s.Engine + " has no workers"
			if pools := slices.DeleteFunc(slices.Clone(allowed), func(b string) bool { return b == name }); len(pools) > 0 {
				remedy = "needs --backend " + strings.Join(pools, " or ") + ": inproc has no workers"
			}
			return &usage{"--workers", *f.Workers, remedy}
		case workers == 0 && !slices.Contains(allowed, bench.BackendInProcess):
			return &usage{"--workers", *f.Workers, fmt.Sprintf("give 1 to %d: %s does not evaluate in-process", bench.MaxWorkers, s.Engine)}
		case workers == 0:
			name = bench.BackendInProcess // what a host's "no workers" means
		}
	}
	if len(s.Backends) > 0 {
		o.Backend, o.Workers = name, workers
	}
	return nil
}

// maxFile bounds what is read of a file: more than any limit lets through.
const maxFile = 2<<30 + 1

// readFile reads the file that a flag names; "-" is stdin where it is given.
func readFile(flag, name string, stdin io.Reader) ([]byte, error) {
	from := stdin
	if name != "-" || stdin == nil {
		f, err := os.Open(name)
		if err != nil {
			return nil, unreadable(flag, name, err)
		}
		defer f.Close()
		from = f
	}
	b, err := io.ReadAll(io.LimitReader(from, maxFile))
	if err != nil {
		return nil, unreadable(flag, name, err)
	}
	return b, nil
}

func unreadable(flag, name string, err error) error {
	// The error of the system repeats the name: its cause is enough.
	if pe, ok := err.(*os.PathError); ok {
		err = pe.Err
	}
	return &usage{flag, name, fmt.Sprintf("cannot be read (%v): give a file that can", err)}
}

// readInput reads the file with the input; without the flag there is none.
func readInput(given *string) (json.RawMessage, error) {
	if given == nil {
		return nil, nil
	}
	name := *given
	b, err := readFile("--input", name, nil)
	if err != nil {
		return nil, err
	}
	if !json.Valid(b) {
		var v any
		err := json.Unmarshal(b, &v)
		return nil, &usage{"--input", name, fmt.Sprintf("is not JSON (%v): give a file with one JSON text", err)}
	}
	return bytes.Trim(b, " \t\r\n"), nil // an editor's last line break is not the input's
}
