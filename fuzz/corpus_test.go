package fuzz

import (
	"flag"
	"testing"
)

// targets are those of this package that are made of documents.
func targets(tb testing.TB) Targets {
	rig := theEngine(tb)
	return Targets{"FuzzScript": scriptTarget(rig), "FuzzResult": resultTarget(rig), "FuzzInput": inputTarget(rig)}
}

// AllTargets is for the bridge of .clusterfuzzlite.
func AllTargets(t *testing.T) Targets { return targets(t) }

func TestSelfTests(t *testing.T) { targets(t).TestSelves(t) }

func TestCommittedCorpora(t *testing.T) { targets(t).TestCorpora(t) }

var promote = flag.String("promote", "", "write what the fuzzer's cache holds for this target to its committed corpus, in names")

// TestPromote is a tool: go test ./fuzz -run '^TestPromote$' -promote FuzzScript.
func TestPromote(t *testing.T) {
	if *promote == "" {
		t.Skip("give -promote=TARGET to promote the cache of a target")
	}
	targets(t).Promote(t, *promote, 24)
}
