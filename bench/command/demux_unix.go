//go:build unix

package command

import (
	"os/exec"
	"syscall"
)

// interrupt sends SIGINT to the group that cmd leads, as a terminal would.
func interrupt(cmd *exec.Cmd) error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
