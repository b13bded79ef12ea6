//go:build unix

package demux

import (
	"io"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"
)

// ownGroup makes cmd lead a process group, and says whether it will.
func ownGroup(cmd *exec.Cmd) bool {
	attr := unix.SysProcAttr{}
	if cmd.SysProcAttr != nil {
		attr = *cmd.SysProcAttr
	}
	switch {
	case attr.Setsid:
		return true // a session brings a group
	case attr.Setpgid:
		return attr.Pgid == 0
	}
	attr.Setpgid, attr.Pgid = true, 0
	cmd.SysProcAttr = &attr
	return true
}

// killGroup kills what is left of the group that pid leads.
func killGroup(pid int) { unix.Kill(-pid, unix.SIGKILL) }

// readNow reads what is there without waiting, whatever the deadline: errEmpty if
// there is nothing yet.
func readNow(f *os.File, buf []byte) (n int, err error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	if err := f.SetReadDeadline(time.Time{}); err != nil {
		return 0, err
	}
	cerr := conn.Read(func(fd uintptr) bool {
		for {
			n, err = unix.Read(int(fd), buf)
			if err != unix.EINTR {
				return true
			}
		}
	})
	switch {
	case cerr != nil:
		return 0, cerr
	case err == unix.EAGAIN:
		return 0, errEmpty
	case err != nil:
		return 0, os.NewSyscallError("read", err)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}
