package fuzz

import "testing"

// targets are those of this package that are made of documents.
func targets(tb testing.TB) Targets {
	rig := theEngine(tb)
	return Targets{"FuzzScript": scriptTarget(rig), "FuzzResult": resultTarget(rig), "FuzzInput": inputTarget(rig)}
}

// AllTargets is for the bridge of .clusterfuzzlite.
func AllTargets(t *testing.T) Targets { return targets(t) }

func TestSelfTests(t *testing.T) { targets(t).TestSelves(t) }

func TestCommittedCorpora(t *testing.T) { targets(t).TestCorpora(t) }

// TestPromote is a tool: PROMOTE=FuzzScript go test ./fuzz -run '^TestPromote$'.
func TestPromote(t *testing.T) { targets(t).Promote(t, 24) }
