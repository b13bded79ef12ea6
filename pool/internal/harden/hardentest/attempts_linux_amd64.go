package hardentest

import "golang.org/x/sys/unix"

// attemptsOfArch are the system calls that newer architectures no longer have,
// and the second calling convention of this one.
var attemptsOfArch = []attempt{
	{"open, the old call", paths, func(h *held) error { return call(unix.SYS_OPEN, text("/etc/passwd"), unix.O_RDONLY) }},
	{"creat", 0, func(h *held) error { return call(unix.SYS_CREAT, text("/no/such/directory/file"), 0o600) }},
	{"fork", 0, func(h *held) error { return fork(unix.SYS_FORK, 0, 0) }},
}
