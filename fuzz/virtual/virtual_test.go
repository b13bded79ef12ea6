package virtual

import (
	"testing"

	"github.com/sandbed/sandbed/fuzz"
)

var targets = fuzz.Targets{"FuzzPool": poolTarget}

// AllTargets is for the bridge of .clusterfuzzlite.
func AllTargets(*testing.T) fuzz.Targets { return targets }

func TestSelfTests(t *testing.T) { targets.TestSelves(t) }

func TestCommittedCorpora(t *testing.T) { targets.TestCorpora(t) }

// TestPromote is a tool: PROMOTE=FuzzPool go test ./fuzz/virtual -run '^TestPromote$'.
func TestPromote(t *testing.T) { targets.Promote(t, 24) }
