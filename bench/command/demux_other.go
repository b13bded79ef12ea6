//go:build !unix

package command

import "os/exec"

// interrupt ends cmd: there is nothing gentler here.
func interrupt(cmd *exec.Cmd) error { return cmd.Process.Kill() }

// peakRSS is not known here.
func peakRSS() int64 { return 0 }
