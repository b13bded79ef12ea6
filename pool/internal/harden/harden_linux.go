package harden

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"

	"github.com/landlock-lsm/go-landlock/landlock"
	llsyscall "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// maxFiles is how many descriptors a worker may have: those it was given, the
// runtime's own, and a few at a time while a VM boots from its compile cache.
const maxFiles = 64

// Early applies what must hold before the VM boots: the limits, and no inherited
// descriptor beyond the first keep; and it looks at what whoever started the
// process should have done. memoryBytes is what the process may add to the data it has now; the Go heap is asked to stay
// within half of it, the rest is for the VM's own memory.
func Early(keep int, memoryBytes int64) []Measure {
	limit := func(resource int, v uint64) error {
		return unix.Setrlimit(resource, &unix.Rlimit{Cur: v, Max: v})
	}
	data, err := dataBytes()
	if err == nil {
		// Not an absolute value: under the race detector a process begins with far more.
		err = limit(unix.RLIMIT_DATA, data+uint64(memoryBytes))
	}
	debug.SetMemoryLimit(memoryBytes / 2)
	var environmentErr, groupErr error
	if n := len(os.Environ()); n > 0 {
		environmentErr = fmt.Errorf("it holds %d variables", n)
	}
	if group := unix.Getpgrp(); group != os.Getpid() {
		groupErr = fmt.Errorf("the process is in group %d", group)
	}
	return []Measure{
		measure(Descriptors, closeInherited(keep)),
		measure(EmptyEnvironment, environmentErr),
		measure(ProcessGroup, groupErr),
		measure(CoreLimit, limit(unix.RLIMIT_CORE, 0)),
		measure(FileLimit, limit(unix.RLIMIT_NOFILE, maxFiles)),
		measure(DataLimit, err),
		measure(GoMemoryLimit, nil),
	}
}

// closeInherited closes what the process inherited beyond the first keep
// descriptors: what its host had itself inherited without wanting to. Nothing
// that survived the exec has the close-on-exec flag, and everything that the Go
// runtime and library have opened since does.
func closeInherited(keep int) error {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, name := range names {
		fd, err := strconv.Atoi(name.Name())
		if err != nil || fd < keep {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd)
		}
	}
	return nil
}

// dataBytes is what RLIMIT_DATA counts of this process now.
func dataBytes() (uint64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(status) {
		if f := bytes.Fields(line); len(f) == 3 && string(f[0]) == "VmData:" {
			kib, err := strconv.ParseUint(string(f[1]), 10, 53)
			return kib << 10, err
		}
	}
	return 0, errors.New("/proc/self/status has no VmData")
}

// Late applies what must wait until the VM has booted: it opened files and
// compiled code to memory. From here on the process has what it has.
func Late() []Measure {
	return []Measure{
		measure(NoNewPrivileges, noNewPrivileges()),
		measure(Landlock, noPaths()),
		measure(Seccomp, noSyscalls()), // last: it refuses the system calls of the others
	}
}

func noNewPrivileges() error {
	if err := llsyscall.AllThreadsPrctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl(PR_SET_NO_NEW_PRIVS): %w", err)
	}
	return nil
}

// noPaths applies Landlock with no rule, with every right that this kernel
// handles. On kernels before ABI 8 libpsx brings it to every thread; a build
// with cgo then leaves the listing of /proc/self/task allowed, which libpsx needs.
func noPaths() error {
	abi, err := llsyscall.LandlockGetABIVersion()
	if err != nil || abi < 1 {
		return fmt.Errorf("this kernel has no Landlock (ABI %d, %v)", abi, err)
	}
	if err := landlock.V11.BestEffort().Restrict(); err != nil {
		return err
	}
	return refused("open", func() error {
		fd, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}, unix.EACCES)
}

func noSyscalls() error {
	runtime.LockOSThread() // no_new_privs must hold on the thread that installs a filter
	defer runtime.UnlockOSThread()
	for _, f := range filters(os.Getpid()) {
		if err := f.load(); err != nil {
			return err
		}
	}
	return refused("socket", func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}, unix.EPERM)
}

// refused tries what must now fail, so that a measure the kernel took and did
// not apply is not reported as applied.
func refused(what string, try func() error, want error) error {
	if err := try(); !errors.Is(err, want) {
		return fmt.Errorf("it was installed, yet %s gives %v, not %v", what, err, want)
	}
	return nil
}
