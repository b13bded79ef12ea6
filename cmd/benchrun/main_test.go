package main

import (
	"flag"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/sandbed/sandbed/pool"
)

var update = flag.Bool("update", false, "rewrite the expected output in the scripts")

func TestMain(m *testing.M) {
	pool.ServeWorker(testWorkerVM) // the test binary is its own worker
	testscript.Main(m, map[string]func(){"benchrun": main})
}

// TestScripts runs testdata/script/*.txtar: the command as its users meet it.
func TestScripts(t *testing.T) {
	cache := t.TempDir() // compiled code, shared: compiling takes a second a process
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		UpdateScripts:       *update,
		RequireUniqueNames:  true,
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("XDG_CACHE_HOME", cache)
			env.Setenv("HOME", env.WorkDir) // where macOS keeps caches
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exitcode": exitCode,
			"onejson":  oneJSON,
			"field":    field,
			"samefuel": sameFuel,
		},
	})
}
