package virtual

import (
	"flag"
	"testing"

	"github.com/sandbed/sandbed/fuzz"
)

var targets = fuzz.Targets{"FuzzPool": poolTarget}

// AllTargets is for the bridge of .clusterfuzzlite.
func AllTargets(*testing.T) fuzz.Targets { return targets }

func TestSelfTests(t *testing.T) { targets.TestSelves(t) }

func TestCommittedCorpora(t *testing.T) { targets.TestCorpora(t) }

var promote = flag.String("promote", "", "write what the fuzzer's cache holds for this target to its committed corpus, in names")

// TestPromote is a tool: go test ./fuzz/virtual -run '^TestPromote$' -promote FuzzPool.
func TestPromote(t *testing.T) {
	if *promote == "" {
		t.Skip("give -promote=TARGET to promote the cache of a target")
	}
	targets.Promote(t, *promote, 24)
}
