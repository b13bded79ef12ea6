package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// store is what both stores can do, so that one test serves them.
type store interface {
	ScriptStore
	put(ref, source string) error
	Erase(ref string) error
}

type memStore struct{ MemoryStore }

func (m *memStore) put(ref, source string) error {
	return m.Put(ref, Script{Source: source, Name: ref})
}

type dirStore struct{ *DirStore }

func (d dirStore) put(ref, source string) error { return d.Put(ref, source) }

func openDir(t *testing.T) (*DirStore, string) {
	t.Helper()
	dir := t.TempDir()
	d, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d, dir
}

func eachStore(t *testing.T, f func(t *testing.T, s store)) {
	t.Run("memory", func(t *testing.T) { f(t, &memStore{}) })
	t.Run("directory", func(t *testing.T) { d, _ := openDir(t); f(t, dirStore{d}) })
}

func TestStore(t *testing.T) {
	eachStore(t, func(t *testing.T, s store) {
		fetch := func(ref, want string) {
			t.Helper()
			got, err := s.Fetch(t.Context(), ref, 10)
			if err != nil || got.Source != want || got.Name != ref {
				t.Errorf("%s: got %+v, %v, want %q", ref, got, err, want)
			}
		}
		missing := func(ref string, erased bool) {
			t.Helper()
			_, err := s.Fetch(t.Context(), ref, 10)
			var e *ScriptMissing
			if !errors.As(err, &e) || *e != (ScriptMissing{ref, erased}) {
				t.Errorf("%s: got %v, want missing, erased %t", ref, err, erased)
			}
		}
		do := func(err error) {
			t.Helper()
			if err != nil {
				t.Error(err)
			}
		}
		missing("a", false)
		do(s.put("a", "one"))
		fetch("a", "one")
		do(s.put("a", "two"))
		fetch("a", "two")
		do(s.put("empty", ""))
		fetch("empty", "")
		do(s.put("x/y/z.js", "deep"))
		fetch("x/y/z.js", "deep")
		missing("x", false)
		missing("x/y", false)
		missing("a/b", false)
		do(s.Erase("a"))
		missing("a", true)
		do(s.Erase("a"))
		missing("a", true)
		do(s.put("a", "three"))
		fetch("a", "three")
		do(s.Erase("x/y/z.js"))
		missing("x/y/z.js", true)
		missing("x/y/w.js", false)

		var e *ScriptMissing
		for _, ref := range []string{"never", "x", "empty/x"} {
			if err := s.Erase(ref); !errors.As(err, &e) || e.Erased {
				t.Errorf("erasing %s, which never was: got %v", ref, err)
			}
			missing(ref, false)
		}
	})
}

func TestStoreBoundsTheRead(t *testing.T) {
	eachStore(t, func(t *testing.T, s store) {
		for n := range 6 {
			ref := fmt.Sprint("s", n)
			if err := s.put(ref, strings.Repeat("x", n)); err != nil {
				t.Fatal(err)
			}
			got, err := s.Fetch(t.Context(), ref, 3)
			var e *ScriptTooLarge
			if n <= 3 && (err != nil || len(got.Source) != n) {
				t.Errorf("%d bytes: got %d, %v", n, len(got.Source), err)
			}
			if n > 3 && (!errors.As(err, &e) || *e != (ScriptTooLarge{ref, int64(n), 3})) {
				t.Errorf("%d bytes: got %v, want ScriptTooLarge", n, err)
			}
		}
	})
}

func TestRefs(t *testing.T) {
	good := []string{"a", "A-b_c.9.js", "a/b", "a/b/c.ts", strings.Repeat("a", 128),
		strings.Repeat(strings.Repeat("a", 127)+"/", 3) + strings.Repeat("b", 128)}
	bad := []string{"", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/..", ".hidden", "a/.erased-b", "a.", "a./b",
		"a b", "a\x00b", "a\nb", `a\b`, "C:a", "é", "a%2f", "~", strings.Repeat("a", 129), strings.Repeat("a/", 256) + "a"}
	eachStore(t, func(t *testing.T, s store) {
		for _, ref := range good {
			if err := s.put(ref, "1"); err != nil && !(ref == "a/b" || ref == "a/b/c.ts") {
				t.Errorf("%.20q: %v", ref, err)
			}
			if err := CheckRef(ref); err != nil {
				t.Errorf("%.20q: %v", ref, err)
			}
		}
		for _, ref := range bad {
			_, fetch := s.Fetch(t.Context(), ref, 10)
			for _, err := range []error{fetch, s.put(ref, "1"), s.Erase(ref)} {
				var e *UsageError
				if !errors.As(err, &e) || e.Value != ref {
					t.Errorf("%.20q: got %v, want a UsageError that shows it", ref, err)
				}
			}
		}
	})
}

func TestDirStoreKind(t *testing.T) {
	d, _ := openDir(t)
	for ref, want := range map[string]Kind{"a.js": Detect, "a.mjs": Module, "a.mts": Module, "a.ts": Detect, "mjs": Detect} {
		if err := d.Put(ref, "1"); err != nil {
			t.Fatal(err)
		}
		if got, err := d.Fetch(t.Context(), ref, 10); err != nil || got.Kind != want {
			t.Errorf("%s: got kind %q, %v, want %q", ref, got.Kind, err, want)
		}
	}
}

// Nothing outside the directory can be read, replaced or removed.
func TestDirStoreCannotBeLeft(t *testing.T) {
	d, dir := openDir(t)
	outside := t.TempDir()
	secret := filepath.Join(outside, "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"file": secret, "dir": outside, "up": ".."} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, ref := range []string{"file", "dir/secret", "up/secret"} {
		got, err := d.Fetch(t.Context(), ref, 100)
		if err == nil {
			t.Errorf("%s: read %q", ref, got.Source)
		}
		d.Erase(ref)
	}
	if err := d.Put("dir/secret", "taken"); err == nil {
		t.Error("wrote through a symbolic link")
	}
	if err := d.Put("file", "mine"); err != nil {
		t.Errorf("a link itself may be replaced: %v", err)
	}
	if b, err := os.ReadFile(secret); err != nil || string(b) != "secret" {
		t.Errorf("the file outside is now %q, %v", b, err)
	}
	if es, err := os.ReadDir(outside); err != nil || len(es) != 1 {
		t.Errorf("the directory outside holds %v, %v", es, err)
	}
}

// A tombstone wins over a text that came back by another way, and lasts.
func TestDirStoreTombstone(t *testing.T) {
	d, dir := openDir(t)
	if err := d.Put("a/b", "1"); err != nil {
		t.Fatal(err)
	}
	if err := d.Erase("a/b"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a", "b"), []byte("back"), 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	for _, s := range []*DirStore{d, again} {
		var e *ScriptMissing
		if got, err := s.Fetch(t.Context(), "a/b", 10); !errors.As(err, &e) || !e.Erased {
			t.Errorf("got %+v, %v, want erased", got, err)
		}
	}
	if err := again.Erase("a/b"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "a", "b")); !os.IsNotExist(err) {
		t.Errorf("the text that came back is still there: %v", err)
	}
}

func TestDirStoreLeavesNoTemporaryFiles(t *testing.T) {
	d, dir := openDir(t)
	if err := os.Mkdir(filepath.Join(dir, "taken"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := d.Put("taken", "1"); err == nil {
		t.Error("a directory was replaced by a script")
	}
	if err := d.Put("ok", "1"); err != nil {
		t.Fatal(err)
	}
	es, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range es {
		if strings.HasPrefix(e.Name(), ".tmp-") {
			t.Errorf("%s was left", e.Name())
		}
	}
	if _, err := OpenDir(filepath.Join(dir, "nowhere")); err == nil {
		t.Error("opened a directory that is not there")
	}
	d.Close()
	if _, err := d.Fetch(t.Context(), "ok", 10); err == nil {
		t.Error("read from a closed store")
	}
}

func TestDirStoreHonoursTheContext(t *testing.T) {
	d, _ := openDir(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errWhy)
	if _, err := d.Fetch(ctx, "a", 10); !errors.Is(err, errWhy) {
		t.Errorf("got %v", err)
	}
}

// Readers beside writers see a whole text, or erased: never a part, never missing.
func TestStoreHammer(t *testing.T) {
	eachStore(t, func(t *testing.T, s store) {
		texts := []string{strings.Repeat("a", 5000), strings.Repeat("b", 9000)}
		if err := s.put("x", texts[0]); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		var writers, readers sync.WaitGroup
		for w := range 2 {
			writers.Go(func() {
				for i := range 60 {
					err := s.put("x", texts[w])
					if i%3 == 2 {
						err = errors.Join(err, s.Erase("x"))
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
			readers.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
					}
					got, err := s.Fetch(context.Background(), "x", 10000)
					var e *ScriptMissing
					if err != nil && !(errors.As(err, &e) && e.Erased) {
						t.Error(err)
						return
					}
					if err == nil && got.Source != texts[0] && got.Source != texts[1] {
						t.Errorf("got a text of %d bytes", len(got.Source))
						return
					}
				}
			})
		}
		writers.Wait()
		close(done)
		readers.Wait()
	})
}
