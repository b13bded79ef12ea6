// Package command is the command line of a suite: measuring, one evaluation,
// and the table of guarantees. A sandbox gets all of it with
//
//	func main() {
//		os.Exit(command.Main(suite, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
//	}
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
	"github.com/sandbed/sandbed/bench"
	"golang.org/x/term"
)

// The exit codes. Each means one thing.
const (
	exitHeld   = 0 // all held; an evaluation ended with class ok
	exitBroken = 1 // a guarantee did not hold; an evaluation ended in another class
	exitUsage  = 2 // usage, or input that cannot be read
	exitUnfit  = 3 // the machine or the controls allow no verdict: try again elsewhere
	exitFailed = 4 // a benchmark failed or gave a wrong answer
)

// usage is an argument that cannot be meant: one line that names it, its value
// and what is allowed.
type usage struct {
	flag, value, allowed string
}

func (e *usage) Error() string {
	return fmt.Sprintf("%s %q: %s", e.flag, e.value, e.allowed)
}

// env is what a subcommand runs in.
type env struct {
	ctx            context.Context
	suite          bench.Suite
	stdin          io.Reader
	stdout, stderr io.Writer
	args           []string
}

// terminal says whether w is one.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// colours says whether what is written to w may be coloured.
func colours(w io.Writer) bool { return terminal(w) && os.Getenv("NO_COLOR") == "" }

// progress shows what is under way on the last line of a terminal, and nothing
// anywhere else. done clears the line.
func (e *env) progress() (show func(string), done func()) {
	if !terminal(e.stderr) {
		return nil, func() {}
	}
	const clear = "\r\x1b[K"
	return func(s string) { fmt.Fprintf(e.stderr, "%s%.78s", clear, s) }, func() { fmt.Fprint(e.stderr, clear) }
}

// result is how a subcommand ended.
type result struct{ code int }

type cli struct {
	Run        runCmd        `cmd:"" default:"withargs" help:"Measure the sandbox and write a report (the default command)."`
	Eval       evalCmd       `cmd:"" help:"Evaluate one script and print the outcome as one line of JSON."`
	Guarantees guaranteesCmd `cmd:"" help:"Put the sandbox through the conformance suite."`
	Demux      demuxCmd      `cmd:"" help:"Run a command and split its output with bounded memory."`
	Compare    compareCmd    `cmd:"" help:"Compare two commits: build both, interleave, judge, report."`
	Gate       gateCmd       `cmd:"" help:"Judge samples on disk, or two files of go test -bench."`
	Report     reportCmd     `cmd:"" help:"Write the report of samples on disk, or of two files of go test -bench."`
	History    historyCmd    `cmd:"" help:"Keep and show the history of the main branch."`
	AA         aaCmd         `cmd:"" name:"aa" help:"Compare a commit with itself, many times: the rate of false alarms."`
	Power      powerCmd      `cmd:"" help:"Inject slowdowns of known size: the rate at which they are found."`
	Faults     faultsCmd     `cmd:"" help:"Plant faults in sandbed's own source and see that the tests find them."`
	Selftest   selftestCmd   `cmd:"" help:"Put the gate through synthetic streams; measures nothing."`
	Calibrate  calibrateCmd  `cmd:"" help:"Say whether this machine is fit to compare on."`
	Merge      mergeCmd      `cmd:"" help:"Join the samples of the shards of one comparison."`
	Sample     sampleCmd     `cmd:"" help:"One launch of one row, as one line of JSON: what compare starts."`
	Cold       coldCmd       `cmd:"" hidden:"" help:"Evaluate 1+1 in a new process: what run starts to measure cold starts."`
}

// Main runs the command line args (without the program's name) for a suite and
// returns the exit code: 0 held, 1 a guarantee broken or an evaluation that was
// not ok, 2 usage or unreadable input, 4 a benchmark that failed or gave a wrong
// answer. An interrupt or SIGTERM ends what runs.
func Main(s bench.Suite, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	e := &env{ctx: ctx, suite: s, stdin: stdin, stdout: stdout, stderr: stderr, args: args}
	helped := false
	parser, err := kong.New(&cli{},
		kong.Name("benchrun"),
		kong.Description("Measures a JavaScript sandbox ("+s.Engine+") and shows whether its guarantees hold.\n\nExamples:\n\n    benchrun --quick\n    benchrun eval --script reshape.js --input data.json\n\nExit codes: 0 all held, 1 a guarantee broken or an evaluation that was not ok, 2 usage, 4 a benchmark failed or gave a wrong answer."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(int) { helped = true }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.WithHyphenPrefixedParameters(true),
		kong.Bind(e),
	)
	if err != nil {
		panic(err) // a fault of the struct tags above: no arguments lead here
	}
	k, err := parser.Parse(args)
	if helped {
		return exitHeld
	}
	r := &result{}
	if err == nil {
		err = k.Run(r)
	} else {
		err = &usageText{err}
	}
	if err == nil {
		return r.code
	}
	fmt.Fprintf(stderr, "benchrun: %s\n", oneLine(err.Error()))
	var bad *usage
	var text *usageText
	if errors.As(err, &bad) || errors.As(err, &text) {
		return exitUsage
	}
	return exitFailed
}

// usageText is what kong says of arguments that it cannot parse.
type usageText struct{ err error }

func (e *usageText) Error() string { return e.err.Error() + " (see benchrun --help)" }

// oneLine keeps an error on one line, whatever it quotes.
func oneLine(s string) string { return strings.Join(strings.FieldsFunc(s, isBreak), "; ") }

func isBreak(r rune) bool { return r == '\n' || r == '\r' }
