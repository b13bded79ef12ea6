package peers

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// Program is a program that serves peers: a Go module or a Node package in a
// folder of this one.
type Program struct {
	Folder string   // under bench/peers
	Peers  []string // the names it serves
	Node   bool
}

// Ours is the name of the peer that the others are compared with.
const Ours = "sandbed"

// Catalog lists every program, ours first.
func Catalog() []Program {
	return []Program{
		{Folder: "sandbed", Peers: []string{Ours, "sandbed-off", "sandbed-close"}},
		{Folder: "goja", Peers: []string{"goja"}},
		{Folder: "modernc", Peers: []string{"modernc"}},
		{Folder: "qjs", Peers: []string{"qjs", "qjs-options"}},
		{Folder: "node", Peers: []string{"emscripten", "emscripten-pool"}, Node: true},
	}
}

// ErrAbsent says that a program cannot be made here, and no more is wrong: Node
// is not installed.
var ErrAbsent = errors.New("absent")

// Build makes the program of the tree at dir, which is the folder bench/peers,
// and returns how each of its peers is started. Go programs are written to out.
// The error wraps ErrAbsent where Node or npm is missing.
func (p Program) Build(ctx context.Context, dir, out string) (map[string]Command, error) {
	folder, err := filepath.Abs(filepath.Join(dir, p.Folder))
	if err != nil {
		return nil, err
	}
	var start []string
	if p.Node {
		node, err := exec.LookPath("node")
		if err != nil {
			return nil, fmt.Errorf("%w: node is not installed", ErrAbsent)
		}
		npm, err := exec.LookPath("npm")
		if err != nil {
			return nil, fmt.Errorf("%w: npm is not installed", ErrAbsent)
		}
		if err := run(ctx, folder, npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"); err != nil {
			return nil, err
		}
		start = []string{node, "--expose-gc", filepath.Join(folder, "serve.mjs")}
	} else {
		bin := filepath.Join(out, p.Folder)
		if runtime.GOOS == "windows" {
			bin += ".exe"
		}
		if err := run(ctx, folder, "go", "build", "-o", bin, "."); err != nil {
			return nil, err
		}
		start = []string{bin}
	}
	commands := map[string]Command{}
	for _, name := range p.Peers {
		commands[name] = Command{Args: append(append([]string{}, start...), name), Dir: out}
	}
	return commands, nil
}

func run(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	said, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("peers: %s in %s: %w: %s", strings.Join(args, " "), dir, err, text(strings.TrimSpace(string(said))))
	}
	return nil
}
