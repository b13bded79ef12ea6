//go:build !unix

package compare

import "os/exec"

// group bounds the wait for a command whose context ended.
func group(cmd *exec.Cmd) { cmd.WaitDelay = killGrace }
