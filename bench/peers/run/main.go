// Command run measures other JavaScript engines beside ours: which guarantees
// hold, and what each costs. From the root of the repository:
//
//	go run ./bench/peers/run [--quick] [--out DIR] [--peer NAME]... [--part PART]...
//
// It builds the peers, which fetches what they are made of, drives each in a
// process of its own, prints the tables and writes peers.md, peers.json and plots.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sandbed/sandbed/bench"
	"github.com/sandbed/sandbed/bench/peers"
	"github.com/sandbed/sandbed/reports"
)

// The exit codes, as those of benchrun.
const (
	exitDone   = 0 // whatever the peers did: that is the result
	exitUsage  = 2
	exitFailed = 4 // a peer could not be built, or the report not be written
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// names is a flag that may be given several times, each with one of a list.
type names struct {
	of   []string
	have []string
}

func (n *names) String() string { return strings.Join(n.have, ",") }

func (n *names) Set(s string) error {
	if !slices.Contains(n.of, s) {
		return fmt.Errorf("give one of %s", strings.Join(n.of, ", "))
	}
	n.have = append(n.have, s)
	return nil
}

func run(args []string, stdout, stderr io.Writer) int {
	var known []string
	for _, p := range peers.Catalog() {
		known = append(known, p.Peers...)
	}
	only, parts := names{of: known}, names{of: allParts}
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	flags.SetOutput(stderr)
	quick := flags.Bool("quick", false, "few repetitions: a first look")
	out := flags.String("out", "bench-out", "`folder` for peers.md, peers.json and plots")
	flags.Var(&only, "peer", "measure this `engine` beside "+peers.Ours+"; may be repeated; default all: "+strings.Join(known[1:], ", "))
	flags.Var(&parts, "part", "measure this `part` alone; may be repeated; default all: "+strings.Join(allParts, ", "))
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return exitDone
	case err != nil:
		return exitUsage
	case flags.NArg() > 0:
		fmt.Fprintf(stderr, "run: argument %q: there are only flags; see --help\n", flags.Arg(0))
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	dir, err := folder(ctx)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return exitFailed
	}
	built, err := os.MkdirTemp("", "sandbed-peers-")
	if err != nil {
		fmt.Fprintln(stderr, err)
		return exitFailed
	}
	defer os.RemoveAll(built)

	if len(parts.have) == 0 {
		parts.have = allParts
	}
	m := &measurement{ctx: ctx, quick: *quick, parts: parts.have, log: stderr, started: time.Now(), caches: built}
	m.report.Started, m.report.Quick = m.started, *quick
	m.report.Command = strings.Join(append([]string{"go", "run", "./bench/peers/run"}, args...), " ")
	m.report.Environment = bench.Environment("engines side by side")
	for _, program := range peers.Catalog() {
		wanted := slices.DeleteFunc(slices.Clone(program.Peers), func(name string) bool {
			return len(only.have) > 0 && name != peers.Ours && !slices.Contains(only.have, name)
		})
		if len(wanted) == 0 {
			continue
		}
		fmt.Fprintf(stderr, "building %s\n", program.Folder)
		commands, err := program.Build(ctx, dir, built)
		if errors.Is(err, peers.ErrAbsent) {
			for _, name := range wanted {
				m.report.Peers = append(m.report.Peers, reports.Peer{Name: name, Absent: err.Error()})
			}
			continue
		}
		if err != nil {
			fmt.Fprintln(stderr, err)
			return exitFailed
		}
		for _, name := range wanted {
			if err := m.add(name, commands[name]); err != nil {
				m.close()
				fmt.Fprintln(stderr, err)
				return exitFailed
			}
		}
	}
	defer m.close()
	if err := m.measure(); err != nil {
		fmt.Fprintln(stderr, err)
		return exitFailed
	}
	m.report.Took = time.Since(m.started).Seconds()
	if err := reports.WritePeers(*out, m.report); err != nil {
		fmt.Fprintln(stderr, err)
		return exitFailed
	}
	_, _ = stdout.Write(m.report.Markdown())
	fmt.Fprintf(stderr, "written: %s\n", filepath.Join(*out, "peers.md"))
	return exitDone
}

// folder is the folder bench/peers of the tree that this program is built from.
func folder(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}", "github.com/sandbed/sandbed/bench/peers").Output()
	if err != nil {
		return "", fmt.Errorf("run: finding the sources of the peers: start this in the repository: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}
