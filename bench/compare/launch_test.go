package compare

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandbed/sandbed/bench"
	"github.com/sandbed/sandbed/bench/gate"
)

// TestMain lets the test binary stand in for a build of a suite: what it does is its
// own name.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "sample" {
		build(filepath.Base(os.Args[0]))
	}
	os.Exit(m.Run())
}

func build(kind string) {
	args := strings.Join(os.Args[1:], " ")
	switch kind {
	case "good-1":
		row := ""
		if len(os.Args) > 3 {
			row = os.Args[3]
		}
		fmt.Printf(`{"schema":1,"row":%q,"value":0.5,"batch":7,"rows":[%q,%q]}`+"\n", row, args, strings.Join(os.Environ(), " "))
	case "wrongs-1":
		fmt.Println(`{"schema":1,"row":"another","value":0.5,"batch":7}`)
	case "newer-1":
		fmt.Println(`{"schema":2}`)
	case "prints-1":
		fmt.Println("hello")
	case "floods-1":
		for range 3 << 10 {
			fmt.Print(strings.Repeat("x", 1<<10))
		}
	case "fails-1":
		fmt.Fprintln(os.Stderr, "no\nwasm today")
		os.Exit(4)
	case "hangs-1":
		fmt.Fprintln(os.Stderr, "waiting")
		time.Sleep(time.Hour)
	}
	os.Exit(0)
}

func fakeBuilds(t *testing.T, kinds ...string) *workspace {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w := &workspace{dir: t.TempDir(), trees: map[string]*tree{gate.Base: {}}, built: map[string]string{}}
	for _, kind := range kinds {
		path := filepath.Join(w.dir, kind+"-1")
		if err := os.Symlink(exe, path); err != nil {
			t.Fatal(err)
		}
		w.built["base-1"] = path
	}
	return w
}

func TestLaunches(t *testing.T) {
	t.Setenv("SECRET", "not for a launch")
	t.Setenv("GODEBUG", "asyncpreemptoff=0")
	w := fakeBuilds(t, "good")
	l := launch{arm: gate.Base, layout: 1, row: "fresh/op=eval", batch: 7, inject: 0.1, exact: true}
	if r, err := w.start(t.Context(), l); err != nil || r.Value != 0.5 || r.Batch != 7 {
		t.Errorf("got %+v, %v", r, err)
	}
	var echo bench.Listing
	if err := w.call(t.Context(), w.built["base-1"], &echo, "sample", "--row", "a", "--inject", "10"); err != nil || echo.Rows[0] != "sample --row a --inject 10" {
		t.Errorf("got %q, %v, want the arguments as they were given", echo.Rows, err)
	}
	list, err := w.list(t.Context(), w.built["base-1"])
	if err != nil || len(list.Rows) != 2 {
		t.Fatalf("got %+v, %v", list, err)
	}
	if env := list.Rows[1]; strings.Contains(env, "SECRET") || !strings.Contains(env, "GOMAXPROCS=") || !strings.Contains(env, "GODEBUG=asyncpreemptoff=0") {
		t.Errorf("the environment of a launch is %s", env)
	}
	for _, c := range []struct{ kind, want string }{
		{"wrongs", "another"}, {"newer", "schema 2"}, {"prints", "hello"}, {"floods", "line of JSON"}, {"fails", "no; wasm today"},
	} {
		w := fakeBuilds(t, c.kind)
		if _, err := w.start(t.Context(), l); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %.300v, want %q", c.kind, err, c.want)
		}
	}
	if _, err := fakeBuilds(t, "newer").list(t.Context(), fakeBuilds(t, "newer").built["base-1"]); err == nil || !strings.Contains(err.Error(), "schema 2") {
		t.Errorf("a list of another schema: got %v", err)
	}
}

func TestHungLaunchIsKilled(t *testing.T) {
	w := fakeBuilds(t, "hangs")
	ctx, cancel := context.WithCancelCause(t.Context())
	tooLong := errors.New("too long")
	time.AfterFunc(50*time.Millisecond, func() { cancel(tooLong) })
	if _, err := w.start(ctx, launch{arm: gate.Base, layout: 1, row: "a"}); !errors.Is(err, tooLong) {
		t.Errorf("got %v, want the cause of the context's end", err)
	}
}

func TestBuildEnv(t *testing.T) {
	got := buildEnv([]string{"A=1", "GOWORK=/home/me/go.work", "B=2", "GOFLAGS=-mod=mod"})
	if want := []string{"A=1", "B=2", "GOFLAGS=-mod=mod"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := buildEnv([]string{"GOWORK=off"}); len(got) != 1 {
		t.Errorf("GOWORK=off: got %q", got)
	}
}
