//go:build unix

package compare

import (
	"os/exec"
	"syscall"
)

// group gives a command a process group of its own, so that a key pressed at the
// terminal reaches us and not it, and kills the whole group when its context ends.
func group(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = killGrace
}
