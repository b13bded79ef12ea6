package main

import (
	"encoding/json"
	"os/exec"
	"reflect"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// exitCode runs a command and compares its exit code: "exitcode 2 benchrun …".
// Its output is then in stdout and stderr as after exec. An optional "<FILE"
// before the command is its standard input.
func exitCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exitcode N command [args…]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	if err != nil {
		exit, ok := err.(*exec.ExitError)
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d\nstdout:\n%sstderr:\n%s", got, want, ts.ReadFile("stdout"), ts.ReadFile("stderr"))
	}
}

// oneJSON checks that a file (or stdout) is n JSON objects, each on one line:
// "onejson stdout 1".
func oneJSON(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: onejson FILE N")
	}
	text := ts.ReadFile(args[0])
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if want, _ := strconv.Atoi(args[1]); len(lines) != want || !strings.HasSuffix(text, "\n") {
		ts.Fatalf("%d lines, want %s:\n%s", len(lines), args[1], text)
	}
	for _, line := range lines {
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			ts.Fatalf("%v in %s", err, line)
		}
	}
}

// field compares one field of the JSON object in the last line of a file with a
// JSON text; "absent" means it is not there: `field stdout usage.fuel 190`. With
// "!" they must differ.
func field(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: field FILE PATH JSON|absent")
	}
	lines := strings.Split(strings.TrimSpace(ts.ReadFile(args[0])), "\n")
	var got any
	ts.Check(json.Unmarshal([]byte(lines[len(lines)-1]), &got))
	there := true
	for key := range strings.SplitSeq(args[1], ".") {
		object, ok := got.(map[string]any)
		if got, there = object[key]; !ok || !there {
			break
		}
	}
	var want any
	if args[2] != "absent" {
		ts.Check(json.Unmarshal([]byte(args[2]), &want))
	}
	same := there == (args[2] != "absent") && reflect.DeepEqual(got, want)
	if same == neg {
		ts.Fatalf("%s: got %v (there: %v), want %s (negated: %v) in\n%s", args[1], got, there, args[2], neg, lines[len(lines)-1])
	}
}

// samefuel compares value, fuel and peak memory of two lines of eval, all of
// which must be there: "samefuel stdout other.json".
func sameFuel(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: samefuel FILE FILE")
	}
	type line struct {
		Class string
		Value json.RawMessage
		Usage struct {
			Fuel   int64 `json:"fuel"`
			Memory int64 `json:"memory_peak_bytes"`
		}
	}
	var got, want line
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &got))
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[1])), &want))
	if got.Usage.Fuel == 0 || got.Class != "ok" || !reflect.DeepEqual(got, want) {
		ts.Fatalf("got %+v, want %+v", got, want)
	}
}
