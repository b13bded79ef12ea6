package demuxtest

import "testing"

func TestConformance(t *testing.T) { Run(t, New) }
