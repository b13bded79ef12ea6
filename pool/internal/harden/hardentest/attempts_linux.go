package hardentest

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// attempt is one thing that a hardened process must not be able to do.
type attempt struct {
	name string
	is   class
	try  func(h *held) error
}

type class int

const (
	paths class = 1 << iota // Landlock alone must refuse it
	root                    // without privileges it is refused anyway
)

// held is what the process could have got hold of before it was hardened.
type held struct {
	dir    int    // a descriptor of the root directory
	memfd  int    // a file in memory
	pages  []byte // memory that may be written
	parent int
}

// Result is what became of an attempt: "" where the kernel did it.
type Result struct {
	Name  string
	Paths bool // Landlock alone must refuse it
	Root  bool // without privileges it is refused anyway
	Error string
	// Refused is true for EPERM, EACCES and ENOSYS: the kernel would not hear of
	// it. Other errors mean that it looked into it.
	Refused bool
}

// Prepare takes hold of what the attempts need and returns the attempts as one
// function. Call Prepare before the hardening and the function after it. Every
// attempt is made on several threads, old ones and new ones, and the result is
// that of the thread that got furthest.
func Prepare() (run func() []Result, err error) {
	h := &held{parent: os.Getppid()}
	if h.dir, err = unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return nil, err
	}
	if h.memfd, err = unix.MemfdCreate("held", unix.MFD_CLOEXEC); err != nil {
		return nil, err
	}
	if err = unix.Ftruncate(h.memfd, 4096); err != nil {
		return nil, err
	}
	if h.pages, err = unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
		return nil, err
	}
	const threads = 3
	start, done := make(chan struct{}), make(chan []Result, 2*threads)
	thread := func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		<-start
		done <- h.all()
	}
	var ready sync.WaitGroup
	for range threads {
		ready.Add(1)
		go func() {
			runtime.LockOSThread()
			ready.Done()
			thread()
		}()
	}
	ready.Wait()
	return func() []Result {
		for range threads {
			go thread()
		}
		close(start)
		furthest := h.all()
		for range 2 * threads {
			for i, r := range <-done {
				if !r.Refused && furthest[i].Refused {
					furthest[i] = r
				}
			}
		}
		return furthest
	}, nil
}

func (h *held) all() []Result {
	var results []Result
	for _, a := range slices.Concat(attempts, attemptsOfArch) {
		r := Result{Name: a.name, Paths: a.is&paths != 0, Root: a.is&root != 0}
		if err := a.try(h); err != nil {
			r.Error = err.Error()
			r.Refused = errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOSYS)
		}
		results = append(results, r)
	}
	return results
}

// call is a bare system call.
func call(nr uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	if _, _, e := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]); e != 0 {
		return e
	}
	return nil
}

// opened closes what an open returned.
func opened(fd int, err error) error {
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func text(s string) uintptr {
	p, err := unix.BytePtrFromString(s)
	if err != nil {
		panic(err)
	}
	return uintptr(unsafe.Pointer(p))
}

// fork is fork by the given system call. The child ends at once. RawSyscall
// keeps the runtime out of it: the child is a copy with one thread.
//
//go:norace
func fork(nr, a, b uintptr) error {
	pid, _, e := unix.RawSyscall6(nr, a, b, 0, 0, 0, 0)
	if e != 0 {
		return e
	}
	if pid == 0 {
		for {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	_, err := unix.Wait4(int(pid), nil, 0, nil)
	return err
}

// cloneArgs is the kernel's struct clone_args.
type cloneArgs struct {
	flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls uint64
}

const minusOne = ^uintptr(0)

var attempts = []attempt{
	// Files.
	{"read a file", paths, func(h *held) error { return opened(unix.Open("/etc/passwd", unix.O_RDONLY, 0)) }},
	{"list a directory", paths, func(h *held) error { return opened(unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY, 0)) }},
	{"read a file below a held directory", paths, func(h *held) error { return opened(unix.Openat(h.dir, "etc/passwd", unix.O_RDONLY, 0)) }},
	{"openat2", paths, func(h *held) error {
		return opened(unix.Openat2(h.dir, "etc/passwd", &unix.OpenHow{Flags: unix.O_RDONLY}))
	}},
	{"read the process's own memory file", paths, func(h *held) error { return opened(unix.Open("/proc/self/mem", unix.O_RDWR, 0)) }},
	{"create a file", paths, func(h *held) error {
		err := opened(unix.Open("/tmp/hardentest", unix.O_CREAT|unix.O_WRONLY|unix.O_TRUNC, 0o600))
		if err == nil {
			err = unix.Unlink("/tmp/hardentest")
		}
		if errors.Is(err, unix.ENOENT) { // another thread was faster
			return nil
		}
		return err
	}},
	{"make a directory", paths, func(h *held) error {
		err := unix.Mkdir("/tmp/hardentest.d", 0o700)
		if err == nil {
			err = unix.Rmdir("/tmp/hardentest.d")
		}
		return err
	}},
	{"stat", 0, func(h *held) error { return unix.Stat("/etc/passwd", new(unix.Stat_t)) }},
	{"readlink", 0, func(h *held) error { _, err := unix.Readlink("/proc/self/exe", make([]byte, 64)); return err }},
	{"unlink", 0, func(h *held) error { return unix.Unlinkat(h.dir, "no/such/file", 0) }},
	{"rename", 0, func(h *held) error { return unix.Renameat(h.dir, "no/such/file", h.dir, "no/such/other") }},
	{"chdir", 0, func(h *held) error { return unix.Chdir("/") }},
	{"chroot", root, func(h *held) error { return unix.Chroot("/no/such/directory") }},
	{"mount", root, func(h *held) error { return unix.Mount("none", "/no/such/directory", "tmpfs", 0, "") }},
	{"name_to_handle_at", root, func(h *held) error { _, _, err := unix.NameToHandleAt(h.dir, "etc/passwd", 0); return err }},
	{"getdents of a held directory", 0, func(h *held) error { _, err := unix.Getdents(h.dir, make([]byte, 1024)); return err }},
	{"inotify", 0, func(h *held) error { return opened(unix.InotifyInit1(unix.IN_CLOEXEC)) }},

	// Sockets and other ways to talk.
	{"socket inet", 0, func(h *held) error { return opened(unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)) }},
	{"socket inet udp", 0, func(h *held) error { return opened(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)) }},
	{"socket unix", 0, func(h *held) error { return opened(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)) }},
	{"socket netlink", 0, func(h *held) error { return opened(unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, 0)) }},
	{"socketpair", 0, func(h *held) error {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err == nil {
			unix.Close(fds[0])
			unix.Close(fds[1])
		}
		return err
	}},
	{"connect", 0, func(h *held) error {
		return unix.Connect(h.memfd, &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}})
	}},
	{"sendto", 0, func(h *held) error { return unix.Sendto(h.memfd, []byte("x"), 0, &unix.SockaddrInet4{Port: 9}) }},
	{"shmget", 0, func(h *held) error { return call(unix.SYS_SHMGET, 0, 0, 0) }},
	{"msgget", 0, func(h *held) error { return call(unix.SYS_MSGGET, 0x7fff1234, 0) }},
	{"keyctl", 0, func(h *held) error { return call(unix.SYS_KEYCTL, minusOne) }},
	{"pipe2", 0, func(h *held) error {
		var p [2]int
		err := unix.Pipe2(p[:], unix.O_CLOEXEC)
		if err == nil {
			unix.Close(p[0])
			unix.Close(p[1])
		}
		return err
	}},

	// New processes.
	{"fork by clone", 0, func(h *held) error { return fork(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0) }},
	{"fork by clone3", 0, func(h *held) error {
		a := cloneArgs{exitSignal: uint64(unix.SIGCHLD)}
		err := fork(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&a)), unsafe.Sizeof(a))
		runtime.KeepAlive(&a)
		return err
	}},
	{"execve", 0, func(h *held) error { return call(unix.SYS_EXECVE, text("/no/such/binary"), 0, 0) }},
	{"execveat", 0, func(h *held) error {
		const emptyPath = 0x1000 // AT_EMPTY_PATH
		return notExecutable(call(unix.SYS_EXECVEAT, minusOne-98, text("no/such/binary"), 0, 0, emptyPath))
	}},

	// Other processes.
	{"signal another process", 0, func(h *held) error { return unix.Kill(h.parent, 0) }},
	{"tkill", 0, func(h *held) error { return call(unix.SYS_TKILL, uintptr(h.parent), 0) }},
	{"tgkill another process", 0, func(h *held) error { return unix.Tgkill(h.parent, h.parent, 0) }},
	{"rt_sigqueueinfo", 0, func(h *held) error {
		info := [32]int32{2: -1} // SI_QUEUE; the kernel's own codes are refused to everyone
		err := call(unix.SYS_RT_SIGQUEUEINFO, 0x3fffffff, 0, uintptr(unsafe.Pointer(&info)))
		runtime.KeepAlive(&info)
		return notThere(err)
	}},
	{"pidfd_open", 0, func(h *held) error { return opened(unix.PidfdOpen(h.parent, 0)) }},
	{"pidfd_getfd", 0, func(h *held) error { return call(unix.SYS_PIDFD_GETFD, uintptr(h.memfd), 0, 0) }},
	{"signal by fcntl(F_SETOWN)", 0, func(h *held) error { _, err := unix.FcntlInt(uintptr(h.memfd), unix.F_SETOWN, 0); return err }},
	{"signal by ioctl(FIOSETOWN)", 0, func(h *held) error { return call(unix.SYS_IOCTL, uintptr(h.memfd), 0x8901, 0) }},
	{"ptrace", 0, func(h *held) error { return notThere(call(unix.SYS_PTRACE, unix.PTRACE_CONT, uintptr(h.parent), 0, 0)) }},
	{"process_vm_readv", 0, func(h *held) error { return call(unix.SYS_PROCESS_VM_READV, uintptr(h.parent), 0, 0, 0, 0, 0) }},
	{"process_vm_writev", 0, func(h *held) error { return call(unix.SYS_PROCESS_VM_WRITEV, uintptr(h.parent), 0, 0, 0, 0, 0) }},
	{"prlimit of another process", 0, func(h *held) error {
		return unix.Prlimit(h.parent, unix.RLIMIT_NOFILE, nil, new(unix.Rlimit))
	}},
	{"sched_setaffinity of another process", 0, func(h *held) error {
		var set unix.CPUSet
		if err := unix.SchedGetaffinity(0, &set); err != nil {
			return err
		}
		return unix.SchedSetaffinity(h.parent, &set)
	}},
	{"setpriority of another process", root, func(h *held) error {
		return unix.Setpriority(unix.PRIO_PROCESS, h.parent, 0)
	}},

	// New executable memory.
	{"mmap executable", 0, func(h *held) error {
		p, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
		return unmapped(p, err)
	}},
	{"mmap a file executable", 0, func(h *held) error {
		p, err := unix.Mmap(h.memfd, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_SHARED)
		return unmapped(p, err)
	}},
	{"mprotect executable", 0, func(h *held) error {
		return unix.Mprotect(h.pages, unix.PROT_READ|unix.PROT_EXEC)
	}},
	{"pkey_mprotect executable", 0, func(h *held) error {
		return call(unix.SYS_PKEY_MPROTECT, uintptr(unsafe.Pointer(&h.pages[0])), 4096, unix.PROT_READ|unix.PROT_EXEC, minusOne)
	}},
	{"memfd_create", 0, func(h *held) error { return opened(unix.MemfdCreate("x", unix.MFD_CLOEXEC)) }},
	{"personality", 0, func(h *held) error { return call(unix.SYS_PERSONALITY, 0xffffffff) }},

	// The kernel's other doors.
	{"perf_event_open", root, func(h *held) error { return notThere(call(unix.SYS_PERF_EVENT_OPEN, 0, 0, 0, 0, 0)) }},
	{"bpf", root, func(h *held) error { return call(unix.SYS_BPF, 0xffff, 0, 0) }},
	{"unshare", 0, func(h *held) error { return call(unix.SYS_UNSHARE, 0) }},
	{"setns", root, func(h *held) error { return call(unix.SYS_SETNS, uintptr(h.memfd), 0) }},
	{"setuid", 0, func(h *held) error { return call(unix.SYS_SETUID, uintptr(os.Getuid())) }},
	{"prctl", 0, func(h *held) error { return call(unix.SYS_PRCTL, unix.PR_GET_DUMPABLE) }},
	{"seccomp", 0, func(h *held) error { return call(unix.SYS_SECCOMP, 99, 0, 0) }},
	{"landlock", 0, func(h *held) error { return call(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, 1) }},
	{"io_uring_setup", root, func(h *held) error { return call(unix.SYS_IO_URING_SETUP, 0, 0) }},
	{"timer_create", 0, func(h *held) error { return call(unix.SYS_TIMER_CREATE, 99, 0, 0) }},
	{"sethostname", root, func(h *held) error { return call(unix.SYS_SETHOSTNAME, 0, 1<<20) }},
	{"reboot", root, func(h *held) error { return call(unix.SYS_REBOOT, 0, 0, 0, 0) }},
}

// notThere and notExecutable name what a kernel without the hardening answers to
// an attempt that is made so that it cannot do harm.
func notThere(err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EFAULT) {
		return nil
	}
	return err
}

func notExecutable(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func unmapped(p []byte, err error) error {
	if err == nil {
		err = unix.Munmap(p)
	}
	return err
}
