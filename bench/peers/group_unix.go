//go:build unix

package peers

import (
	"os/exec"
	"syscall"
)

// ownGroup gives a peer a process group of its own: a key pressed at the terminal
// reaches us, and killGroup reaches all that the peer has started.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func killGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
