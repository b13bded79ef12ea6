//go:build !unix

package command

import "os/exec"

// interrupt ends cmd: there is nothing gentler here.
func interrupt(cmd *exec.Cmd) error { return cmd.Process.Kill() }
