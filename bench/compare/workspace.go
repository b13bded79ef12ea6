package compare

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandbed/sandbed/bench/gate"
)

// workspace is a temporary directory with the trees that are compared, what was
// built of them, and the compile cache that all launches share. The paths of both
// arms have the same length, since the length of a path moves the stack.
type workspace struct {
	repo   string // top of the repository
	prefix string // of the module within it
	pkg    string
	dir    string
	trees  map[string]*tree // by arm
	built  map[string]string
}

type tree struct {
	dir      string
	ref      gate.Ref
	worktree bool // git knows of it
}

// cleanUp bounds how long removing the trees may take.
const cleanUp = 30 * time.Second

// open finds the repository and makes the directory. The caller closes it.
func open(ctx context.Context, dir, pkg string) (*workspace, error) {
	w := &workspace{pkg: pkg, trees: map[string]*tree{}, built: map[string]string{}}
	var err error
	if w.repo, err = git(ctx, dir, "rev-parse", "--show-toplevel"); err != nil {
		return nil, &Refused{"directory", dir, fmt.Sprintf("is in no git repository: run it in the repository to compare (%v)", err)}
	}
	if w.prefix, err = git(ctx, dir, "rev-parse", "--show-prefix"); err != nil {
		return nil, err
	}
	if w.dir, err = os.MkdirTemp("", "benchrun-"); err != nil {
		return nil, err
	}
	if w.dir, err = filepath.EvalSymlinks(w.dir); err != nil {
		return nil, err
	}
	return w, errors.Join(os.Mkdir(filepath.Join(w.dir, "bin"), 0o755), os.Mkdir(filepath.Join(w.dir, "cache"), 0o755))
}

// close removes all that open and what followed made, also after an interrupt.
func (w *workspace) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanUp)
	defer cancel()
	var errs []error
	for _, t := range w.trees {
		if t.worktree {
			if _, err := git(ctx, w.repo, "worktree", "remove", "--force", t.dir); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(append(errs, os.RemoveAll(w.dir))...)
}

// checkOut makes the trees of base and head.
func (w *workspace) checkOut(ctx context.Context, c Config) error {
	base, err := w.resolve(ctx, "--base", c.Base)
	if err != nil {
		return err
	}
	head, err := w.resolve(ctx, "--head", c.Head)
	if err != nil {
		return err
	}
	changes, err := git(ctx, w.repo, "status", "--porcelain")
	if err != nil {
		return err
	}
	switch {
	case c.Dirty && c.Head != "HEAD":
		return &Refused{"--dirty", c.Head, "takes the working tree for head: leave out --head, or --dirty"}
	case c.Head == "HEAD" && changes != "" && !c.Dirty:
		first, _, _ := strings.Cut(changes, "\n")
		return &Refused{"--head", c.Head, fmt.Sprintf("there are changes that are not committed (%s): commit them, give --dirty to compare with them, or name the commit to compare without", strings.TrimSpace(first))}
	}
	if err := w.addTree(ctx, gate.Base, base); err != nil {
		return err
	}
	if !c.Dirty {
		return w.addTree(ctx, gate.Head, head)
	}
	head.Dirty = changes != ""
	t := &tree{dir: filepath.Join(w.dir, gate.Head), ref: head}
	w.trees[gate.Head] = t
	return w.copyTree(ctx, t.dir)
}

// resolve finds the commit of a revision.
func (w *workspace) resolve(ctx context.Context, flag, name string) (gate.Ref, error) {
	if name == "" || strings.HasPrefix(name, "-") {
		return gate.Ref{}, &Refused{flag, name, "give a commit, branch or tag"}
	}
	commit, err := git(ctx, w.repo, "rev-parse", "--verify", "--quiet", "--end-of-options", name+"^{commit}")
	if err != nil {
		if ctx.Err() != nil {
			return gate.Ref{}, err
		}
		return gate.Ref{}, &Refused{flag, name, "names no commit of this repository: give one that git log shows, or fetch it first"}
	}
	return gate.Ref{Name: name, Commit: commit}, nil
}

// addTree checks out a commit as a worktree of its own.
func (w *workspace) addTree(ctx context.Context, arm string, ref gate.Ref) error {
	t := &tree{dir: filepath.Join(w.dir, arm), ref: ref, worktree: true}
	w.trees[arm] = t
	// Hooks of the repository are for people who check out.
	_, err := git(ctx, w.repo, "-c", "core.hooksPath="+os.DevNull, "worktree", "add", "--detach", "--quiet", t.dir, ref.Commit)
	return err
}

// copyTree copies the files of the working tree that git does not ignore.
func (w *workspace) copyTree(ctx context.Context, to string) error {
	list, err := git(ctx, w.repo, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(strings.TrimRight(list, "\x00"), "\x00") {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := copyFile(filepath.Join(w.repo, name), filepath.Join(to, name)); err != nil {
			return err
		}
	}
	return nil
}

// copyFile copies a file or a symbolic link; what is gone, or is neither, is left out.
func copyFile(from, to string) error {
	info, err := os.Lstat(from)
	if errors.Is(err, os.ErrNotExist) {
		return nil // removed, and not yet committed
	} else if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	switch {
	case info.Mode()&os.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case !info.Mode().IsRegular():
		return nil
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// binary builds the command of an arm with its functions in an order of their own,
// once. The linker's -randlayout moves Go functions; compiled wasm it does not.
func (w *workspace) binary(ctx context.Context, arm string, layout int) (string, error) {
	tree := arm
	if arm != gate.Head || w.trees[gate.Head] == nil {
		tree = gate.Base // the controls are builds of base, and so is the head of a validation
	}
	name := fmt.Sprintf("%s-%d", tree, layout)
	if path := w.built[name]; path != "" {
		return path, nil
	}
	path := filepath.Join(w.dir, "bin", name)
	t := w.trees[tree]
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", fmt.Sprintf("-ldflags=-randlayout=%d", layout), "-o", path, w.pkg)
	cmd.Dir = filepath.Join(t.dir, filepath.FromSlash(w.prefix))
	cmd.Env = buildEnv(os.Environ())
	group(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", &Unmeasurable{tree, t.ref.Name, fmt.Errorf("it does not build: %w: %s", err, tail(out))}
	}
	w.built[name] = path
	return path, nil
}

// buildEnv leaves out a workspace file that was named by its path: it does not
// know of the worktrees.
func buildEnv(env []string) []string {
	var out []string
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "GOWORK="); ok && v != "off" {
			continue
		}
		out = append(out, e)
	}
	return out
}

// git runs git and returns what it prints, without the last line break.
func git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	group(cmd)
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("compare: git %s: %w: %s", args[0], err, tail(errs.Bytes()))
	}
	return strings.TrimRight(out.String(), "\n"), nil
}

// tail is the end of what a command printed, on one line.
func tail(out []byte) string {
	const most = 2000
	text := strings.Join(strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	if len(text) > most {
		text = "…" + text[len(text)-most:]
	}
	return strings.ToValidUTF8(text, "?")
}
