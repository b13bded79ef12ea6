package harden

import (
	"fmt"

	"github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/sys/unix"
)

// allowed is every system call that a worker may make, some of them only with
// the arguments that the filters below leave: what the Go runtime, with and
// without cgo, needs to schedule, to collect and to start threads, and reading
// and writing what is open. Names that an architecture does not have are skipped.
//
// Not here, though harmless at first sight: fcntl and ioctl (F_SETOWN and
// FIOSETOWN send signals to other processes), prctl, dup, pipe2, memfd_create,
// getppid: nothing needs them.
var allowed = []string{
	"read", "write", "close",
	"pread64",                           // the runtime rereads the cgroup's CPU limit, which it keeps open
	"mmap", "munmap", "mprotect", "brk", // without PROT_EXEC
	"madvise",
	"clone",                                  // threads alone
	"set_robust_list", "rseq", "sigaltstack", // a new thread's first calls
	"futex", "sched_yield", "sched_getaffinity", "nanosleep", "clock_nanosleep", "restart_syscall",
	"clock_gettime", "clock_getres", "gettimeofday", "time",
	"rt_sigaction", "rt_sigprocmask", "rt_sigreturn",
	"tgkill", // the process's own threads: how the runtime preempts
	"getpid", "gettid", "getrandom", "membarrier",
	"epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait", "eventfd2",
	"exit", "exit_group",
}

// newNamespaces are the flags of clone that make a namespace.
const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// filter is one seccomp filter. The kernel asks all of them and obeys the strictest.
type filter struct {
	policy seccomp.Policy
}

// filters are those of the worker with that process id.
//
// Every condition on arguments has a filter of its own, in which nothing
// follows it: the library leaves the argument in the accumulator when a
// condition fails, so a later comparison in the same filter would take an
// argument for the number of the system call. (clone with flags 0 would pass as
// read.)
func filters(pid int) []filter {
	var all []filter
	for _, refused := range []struct {
		name string
		when []seccomp.Condition // any of them
	}{
		{"clone", []seccomp.Condition{
			{Argument: 0, Operation: seccomp.BitsNotSet, Value: unix.CLONE_THREAD},
			{Argument: 0, Operation: seccomp.BitsSet, Value: newNamespaces},
		}},
		{"mmap", []seccomp.Condition{{Argument: 2, Operation: seccomp.BitsSet, Value: unix.PROT_EXEC}}},
		{"mprotect", []seccomp.Condition{{Argument: 2, Operation: seccomp.BitsSet, Value: unix.PROT_EXEC}}},
		{"tgkill", []seccomp.Condition{{Argument: 0, Operation: seccomp.NotEqual, Value: uint64(pid)}}},
	} {
		group := seccomp.SyscallGroup{Action: seccomp.ActionErrno}
		for _, c := range refused.when {
			group.NamesWithCondtions = append(group.NamesWithCondtions,
				seccomp.NameWithConditions{Name: refused.name, Conditions: seccomp.ArgumentConditions{c}})
		}
		all = append(all, filter{seccomp.Policy{DefaultAction: seccomp.ActionAllow, Syscalls: []seccomp.SyscallGroup{group}}})
	}
	// Last, since it refuses to install another.
	return append(all, filter{seccomp.Policy{
		DefaultAction: seccomp.ActionErrno, // EPERM
		Syscalls: []seccomp.SyscallGroup{
			// Its flags lie in memory, which a filter cannot read; ENOSYS sends the
			// C library back to clone.
			{Names: available("clone3"), Action: seccomp.ActionErrno | seccomp.Action(unix.ENOSYS)},
			{Names: available(allowed...), Action: seccomp.ActionAllow},
		},
	}})
}

// available drops the names that this architecture does not have, which the
// library would refuse. Dropping an allowed name allows less, never more.
func available(names ...string) (known []string) {
	info, err := arch.GetInfo("")
	if err != nil {
		return names // loading them names the fault
	}
	for _, name := range names {
		if _, ok := info.SyscallNames[name]; ok {
			known = append(known, name)
		}
	}
	return known
}

// load installs the filter on every thread.
func (f filter) load() error {
	err := seccomp.LoadFilter(seccomp.Filter{NoNewPrivs: true, Flag: seccomp.FilterFlagTSync, Policy: f.policy})
	if err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	return nil
}
