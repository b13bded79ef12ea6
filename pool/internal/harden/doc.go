// Package harden takes from a worker process what it no longer needs once its
// VM has booted: files, sockets, other processes, new executable memory. It is
// the operating system's boundary round a script that has taken over its VM.
//
// Every measure reports whether it holds, and Landlock and seccomp are tried
// out before they are reported: applied means seen to refuse. What the package
// does not promise: a bound on CPU, secrecy of what the process already holds,
// or safety from faults of the kernel.
package harden

// Measure is one measure of hardening.
type Measure struct {
	Name    string
	Applied bool
	Reason  string // why it was not applied
}

// The names of the measures.
const (
	Descriptors      = "descriptors" // the process holds those it was given on purpose, and its own
	EmptyEnvironment = "emptyEnvironment"
	ProcessGroup     = "processGroup"    // the process leads a group of its own
	CoreLimit        = "coreLimit"       // RLIMIT_CORE 0: no dump of the process is written
	FileLimit        = "fileLimit"       // RLIMIT_NOFILE
	DataLimit        = "dataLimit"       // RLIMIT_DATA: what the process may add to its memory
	GoMemoryLimit    = "goMemoryLimit"   // GOMEMLIMIT, set by hand since the environment is empty
	NoNewPrivileges  = "noNewPrivileges" // no_new_privs, on every thread
	Landlock         = "landlock"        // no path, no TCP port, and what else the kernel's ABI handles
	Seccomp          = "seccomp"         // the system calls of allowed, and no others
)

// measure is the report on one measure.
func measure(name string, err error) Measure {
	if err != nil {
		return Measure{Name: name, Reason: err.Error()}
	}
	return Measure{Name: name, Applied: true}
}
