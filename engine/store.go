package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"strings"
	"sync"
	"syscall"
)

// A ScriptStore holds scripts by ref. It must be safe for concurrent use.
type ScriptStore interface {
	// Fetch returns the script ref. It reads no more than maxBytes+1 bytes of
	// source. Errors: *ScriptMissing, *ScriptTooLarge, *UsageError for what is
	// not a ref, or one of the store's own.
	Fetch(ctx context.Context, ref string, maxBytes int64) (Script, error)
}

// CheckRef reports why ref cannot name a script: a *UsageError, or nil. A ref
// is 1 to 512 bytes, segments of 1 to 128 bytes parted by '/'; a segment is of
// ASCII letters, digits, '.', '_' and '-', and does not begin or end with '.'.
func CheckRef(ref string) error {
	bad := func(remedy string) error { return &UsageError{"ref", ref, remedy} }
	if len(ref) == 0 || len(ref) > 512 {
		return bad("give 1 to 512 bytes")
	}
	for seg := range strings.SplitSeq(ref, "/") {
		if len(seg) == 0 || len(seg) > 128 {
			return bad("give segments of 1 to 128 bytes between the slashes, none at the ends")
		}
		// Names that begin with a dot are the directory store's own, and "..".
		if seg[0] == '.' || seg[len(seg)-1] == '.' {
			return bad("let no segment begin or end with a dot")
		}
		for i := range len(seg) {
			switch c := seg[i]; {
			case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
			default:
				return bad("use ASCII letters, digits, '.', '_', '-' and '/' only")
			}
		}
	}
	return nil
}

// MemoryStore is a ScriptStore in memory. Its zero value is empty and ready.
type MemoryStore struct {
	mu      sync.RWMutex
	scripts map[string]*Script // nil where a script was erased
}

// Put stores s under ref, in place of what was there or was erased.
func (m *MemoryStore) Put(ref string, s Script) error {
	if err := CheckRef(ref); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.scripts == nil {
		m.scripts = map[string]*Script{}
	}
	m.scripts[ref] = &s
	return nil
}

// Erase removes ref for good: Fetch reports it as erased. Erasing again is no
// error; a ref that never was is a *ScriptMissing.
func (m *MemoryStore) Erase(ref string) error {
	if err := CheckRef(ref); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.scripts[ref]; !ok {
		return &ScriptMissing{Ref: ref}
	}
	m.scripts[ref] = nil
	return nil
}

// Fetch implements ScriptStore.
func (m *MemoryStore) Fetch(_ context.Context, ref string, maxBytes int64) (Script, error) {
	if err := CheckRef(ref); err != nil {
		return Script{}, err
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	s, ok := m.scripts[ref]
	if s == nil {
		return Script{}, &ScriptMissing{Ref: ref, Erased: ok}
	}
	if n := int64(len(s.Source)); n > maxBytes {
		return Script{}, &ScriptTooLarge{Ref: ref, Bytes: n, Limit: maxBytes}
	}
	return *s, nil
}

// DirStore is a ScriptStore in a directory: one file a script, named by its
// ref. Refs cannot leave the directory, not by a symbolic link either. An
// erased script leaves a tombstone, an empty file .erased-NAME. Several
// processes may share a directory; what is erased while another puts it may
// end either way, but is never half of each. On a file system that ignores
// case, refs that differ in case alone are one.
type DirStore struct {
	root *os.Root
	mu   sync.RWMutex // writers exclude each other and readers
}

// OpenDir opens the store in dir, which must exist.
func OpenDir(dir string) (*DirStore, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("engine: script store: %w", err)
	}
	return &DirStore{root: root}, nil
}

// Close gives back the directory. Fetch, Put and Erase fail after it.
func (d *DirStore) Close() error { return d.root.Close() }

// tombstone is the file that marks ref as erased.
func tombstone(ref string) string {
	dir, base := path.Split(ref)
	return dir + ".erased-" + base
}

// Put stores source under ref, in place of what was there or was erased: a
// reader sees the old text or the new one, whole.
func (d *DirStore) Put(ref, source string) error {
	if err := CheckRef(ref); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if dir := path.Dir(ref); dir != "." {
		if err := d.root.MkdirAll(dir, 0o755); err != nil {
			return d.fail(ref, err)
		}
	}
	if err := d.write(ref, source); err != nil {
		return d.fail(ref, err)
	}
	// The text is in place before the tombstone goes: a crash between the two
	// leaves the script erased, never the old one alive.
	if err := d.root.Remove(tombstone(ref)); err != nil && !absent(err) {
		return d.fail(ref, err)
	}
	return nil
}

// Erase removes ref for good: Fetch reports it as erased. Erasing again is no
// error; a ref that never was is a *ScriptMissing.
func (d *DirStore) Erase(ref string) error {
	if err := CheckRef(ref); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	info, err := d.root.Stat(ref)
	switch {
	case absent(err), err == nil && info.IsDir():
		if d.erased(ref) {
			return nil
		}
		return &ScriptMissing{Ref: ref}
	case err != nil:
		return d.fail(ref, err)
	}
	if err := d.write(tombstone(ref), ""); err != nil {
		return d.fail(ref, err)
	}
	if err := d.root.Remove(ref); err != nil {
		return d.fail(ref, err)
	}
	return nil
}

// Fetch implements ScriptStore. The script is named by its ref; one that ends
// in .mjs or .mts is a module, in any other the engine decides.
func (d *DirStore) Fetch(ctx context.Context, ref string, maxBytes int64) (Script, error) {
	if err := CheckRef(ref); err != nil {
		return Script{}, err
	}
	if err := context.Cause(ctx); err != nil {
		return Script{}, err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	source, err := d.read(ref, maxBytes)
	// Asked after the read: what another process erased meanwhile is not served.
	if d.erased(ref) {
		return Script{}, &ScriptMissing{Ref: ref, Erased: true}
	}
	if err != nil {
		return Script{}, err
	}
	s := Script{Source: source, Name: ref}
	if ext := path.Ext(ref); ext == ".mjs" || ext == ".mts" {
		s.Kind = Module
	}
	return s, nil
}

func (d *DirStore) read(ref string, maxBytes int64) (string, error) {
	// Opening a named pipe would wait for its writer, so what it is comes first.
	info, err := d.root.Stat(ref)
	switch {
	case absent(err), err == nil && info.IsDir():
		return "", &ScriptMissing{Ref: ref}
	case err != nil:
		return "", d.fail(ref, err)
	case !info.Mode().IsRegular():
		return "", d.fail(ref, errors.New("not a regular file: replace it by one"))
	case info.Size() > maxBytes:
		return "", &ScriptTooLarge{Ref: ref, Bytes: info.Size(), Limit: maxBytes}
	}
	f, err := d.root.Open(ref)
	if absent(err) {
		return "", &ScriptMissing{Ref: ref}
	}
	if err != nil {
		return "", d.fail(ref, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return "", d.fail(ref, err)
	}
	if n := int64(len(b)); n > maxBytes { // it grew after Stat
		return "", &ScriptTooLarge{Ref: ref, Bytes: n, Limit: maxBytes}
	}
	return string(b), nil
}

func (d *DirStore) erased(ref string) bool {
	_, err := d.root.Lstat(tombstone(ref))
	// Where it cannot be told, the script counts as erased: serving what was
	// erased is the worse fault.
	return err == nil || !absent(err)
}

// absent reports whether err means that there is no such file. "a/b" does not
// exist either where "a" is a script.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// write puts text under name by way of a temporary file and a rename.
func (d *DirStore) write(name, text string) error {
	dir, _ := path.Split(name)
	tmp := fmt.Sprintf("%s.tmp-%016x", dir, rand.Uint64())
	f, err := d.root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = d.root.Rename(tmp, name)
	}
	if err != nil {
		d.root.Remove(tmp)
	}
	return err
}

func (d *DirStore) fail(ref string, err error) error {
	return fmt.Errorf("engine: script store: %s: %w", quoted(ref), err)
}
