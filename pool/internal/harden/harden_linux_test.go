package harden

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbed/sandbed/pool/internal/harden/hardentest"
)

// TestMain is also the hardened process: "harden-try" and a comma-separated list
// of the measures to apply.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "harden-try" {
		os.Exit(try(os.Args[2]))
	}
	os.Exit(m.Run())
}

// report is what the hardened process says of itself.
type report struct {
	Measures []Measure
	Attempts []hardentest.Result
	Worked   string // what a worker needs and could not do
}

func try(measures string) int {
	run, err := hardentest.Prepare()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var r report
	switch measures {
	case "none":
	case "all":
		r.Measures = append(Early(3, 1<<30), Late()...)
	case "landlock":
		r.Measures = []Measure{measure(NoNewPrivileges, noNewPrivileges()), measure(Landlock, noPaths())}
	case "seccomp":
		r.Measures = []Measure{measure(Seccomp, noSyscalls())}
	default:
		fmt.Fprintln(os.Stderr, "unknown measures", measures)
		return 1
	}
	r.Attempts = run()
	r.Worked = work()
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// work does what a worker's runtime must still be able to do: start threads,
// grow and collect the heap, preempt, sleep.
func work() string {
	var wg sync.WaitGroup
	sum := make([]int, 16)
	for i := range sum {
		wg.Go(func() {
			var keep [][]byte
			for n := range 64 {
				keep = append(keep, make([]byte, 64<<10))
				time.Sleep(10 * time.Microsecond)
				sum[i] += len(keep[n])
			}
		})
	}
	stop := make(chan struct{})
	go func() { time.Sleep(time.Millisecond); close(stop) }()
	for spin := true; spin; {
		select {
		case <-stop:
			spin = false
		default:
		}
	}
	wg.Wait()
	// System calls that block and hold their threads, so that the runtime must start more.
	for range 8 {
		wg.Go(func() {
			time.Sleep(time.Millisecond)
			unix.Nanosleep(&unix.Timespec{Nsec: int64(2 * time.Millisecond)}, nil)
		})
	}
	wg.Wait()
	for i, got := range sum {
		if got != 64*64<<10 {
			return fmt.Sprintf("goroutine %d: got %d", i, got)
		}
	}
	return ""
}

func hardened(t *testing.T, measures string) report {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "harden-try", measures)
	cmd.Env = []string{}
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("a process with measures %q: %v\n%s", measures, err, stderr.String())
	}
	var r report
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	if r.Worked != "" {
		t.Errorf("a process with measures %q cannot work: %s", measures, r.Worked)
	}
	return r
}

// Without hardening every attempt goes through or at least gets its answer from
// the kernel, or it would prove nothing below.
func TestAttemptsWithout(t *testing.T) {
	r := hardened(t, "none")
	if len(r.Attempts) < 50 {
		t.Fatalf("got %d attempts, want at least 50", len(r.Attempts))
	}
	for _, a := range r.Attempts {
		if a.Refused && !(a.Root && os.Geteuid() != 0) && !unavailable(a.Name) {
			t.Errorf("%s: refused without hardening: %s", a.Name, a.Error)
		}
	}
}

// unavailable names what a kernel may be built or set up without.
func unavailable(name string) bool {
	return slices.Contains([]string{"io_uring_setup", "pkey_mprotect executable", "bpf", "perf_event_open"}, name)
}

func TestAttemptsWithAll(t *testing.T) {
	r := hardened(t, "all")
	if len(r.Measures) != 10 {
		t.Errorf("got %d measures, want 10", len(r.Measures))
	}
	for _, m := range r.Measures {
		if !m.Applied {
			t.Errorf("%s was not applied: %s", m.Name, m.Reason)
		}
	}
	if len(r.Attempts) < 50 {
		t.Fatalf("got %d attempts, want at least 50", len(r.Attempts))
	}
	for _, a := range r.Attempts {
		if !a.Refused {
			t.Errorf("%s: got %q, want it refused", a.Name, a.Error)
		}
	}
}

// Landlock refuses paths by itself, also on threads that ran before it.
func TestAttemptsWithLandlock(t *testing.T) {
	count := 0
	for _, a := range hardened(t, "landlock").Attempts {
		if a.Paths {
			count++
			if !a.Refused {
				t.Errorf("%s: got %q, want it refused", a.Name, a.Error)
			}
		}
	}
	if count < 5 {
		t.Errorf("got %d attempts on paths, want at least 5", count)
	}
}

// seccomp refuses everything by itself.
func TestAttemptsWithSeccomp(t *testing.T) {
	for _, a := range hardened(t, "seccomp").Attempts {
		if !a.Refused {
			t.Errorf("%s: got %q, want it refused", a.Name, a.Error)
		}
	}
}

// A measure that was installed and does not refuse is not reported as applied.
func TestRefused(t *testing.T) {
	if err := refused("nothing", func() error { return nil }, unix.EPERM); err == nil {
		t.Error("what went through was reported as refused")
	}
	if err := refused("nothing", func() error { return unix.EPERM }, unix.EPERM); err != nil {
		t.Error(err)
	}
}
