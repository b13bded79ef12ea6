package processtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/pool"
	"github.com/sandbed/sandbed/pool/pooltest"
)

// newPool makes a pool of workers with these arguments, and closes it with the test.
func newPool(t testing.TB, o pool.Options, args ...string) *pool.Pool {
	t.Helper()
	p, err := pool.NewProcesses(pool.Command{Args: args, CacheDir: "/no/such/cache"}, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if n := p.Stats().Processes; n != 0 {
			t.Errorf("%d processes are left after Close", n)
		}
	})
	return p
}

func run(p *pool.Pool, source string) (engine.Outcome, error) {
	return p.Run(context.Background(), engine.Request{Script: engine.Script{Source: source}, Limits: engine.Limits{WallClock: time.Hour}})
}

// label is what became of a run, in one word.
func label(out engine.Outcome, err error) string {
	var startup *engine.WorkerStartupError
	switch {
	case errors.As(err, &startup):
		return "startup:" + string(startup.Phase)
	case err != nil:
		return err.Error()
	default:
		return out.Label()
	}
}

// eventually waits for what another process or the kernel does in its own time.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("after a minute still not: %s", what)
		}
	}
}

// children are the worker processes of the host, alive or unreaped.
func children(t testing.TB, host int) (pids []int) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no processes in /proc: %v", err)
	}
	for _, dir := range dirs {
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue // it ended
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if ppid, _ := strconv.Atoi(fields[1]); ppid == host {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			pids = append(pids, pid)
		}
	}
	return pids
}

// The suite for any pool, with a process for each worker.
func TestSuite(t *testing.T) {
	pooltest.Run(t, func(o pool.Options, start string) (pooltest.Pool, error) {
		return pool.NewProcesses(pool.Command{Args: []string{start}}, o)
	})
	if left := children(t, os.Getpid()); len(left) > 0 {
		t.Errorf("the suite left processes behind: %v", left)
	}
}

// A worker sees nothing of its host's environment, files and directory, and is
// told what its command says.
func TestWorkerSeesNothing(t *testing.T) {
	t.Setenv("PROCESSTEST_SECRET", "secret")
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	leak, err := os.Open("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	defer leak.Close()
	// What a host inherited itself has no close-on-exec flag.
	if _, err := unix.FcntlInt(leak.Fd(), unix.F_SETFD, 0); err != nil {
		t.Fatal(err)
	}
	p := newPool(t, options(1), "", "second argument")
	out, err := run(p, "self")
	if err != nil {
		t.Fatal(err)
	}
	var s self
	if err := json.Unmarshal(out.Value, &s); err != nil {
		t.Fatal(err)
	}
	if len(s.Environ) != 0 || !s.Group || !strings.HasSuffix(s.Dir, " (deleted)") {
		t.Errorf("a worker has %d variables, leads its group: %v, stands in %s", len(s.Environ), s.Group, s.Dir)
	}
	if want := (pool.Boot{CacheDir: "/no/such/cache", Args: []string{"", "second argument"}}); !reflect.DeepEqual(s.Boot, want) {
		t.Errorf("got %+v, want %+v", s.Boot, want)
	}
	for _, f := range s.Files {
		fd, target, _ := strings.Cut(f, " ")
		n, _ := strconv.Atoi(fd)
		switch {
		case n == 0 && target == "/dev/null":
		case n >= 1 && n <= 4 && strings.HasPrefix(target, "pipe:"):
		case n == 5 && strings.HasPrefix(target, "/memfd:sandbed-worker"):
		// What the process opened itself: the attempts, the runtime.
		case n > 5 && (target == "/" || strings.HasPrefix(target, "/memfd:held") || strings.HasPrefix(target, "anon_inode:") ||
			strings.HasPrefix(target, "/sys/fs/cgroup/")):
		default:
			t.Errorf("a worker holds descriptor %s", f)
		}
	}
	if len(s.Files) < 6 {
		t.Errorf("got %d descriptors, want at least 6: %v", len(s.Files), s.Files)
	}
	if !strings.HasPrefix(s.Dir, temp+"/") {
		t.Errorf("a worker stands in %s, want a directory of its own in %s", s.Dir, temp)
	}
	left, err := os.ReadDir(temp)
	if err != nil || len(left) > 0 {
		t.Errorf("working directories are left: %v %v", left, err)
	}
}

// Every field of a request and of an outcome crosses.
func TestCrossing(t *testing.T) {
	p := newPool(t, options(1))
	r := engine.Request{
		Script: engine.Script{Source: "request é", Name: "näme.js", Kind: engine.Module},
		Input:  json.RawMessage("1"),
		Limits: engine.Limits{MemoryBytes: 1 << 20, StackBytes: 1 << 17, WallClock: time.Minute, Fuel: 4, MaxScriptBytes: 5, MaxInputBytes: 6, MaxOutputBytes: 1000},
	}
	before := time.Now()
	var marks []time.Time
	r.OnScriptStart = func(at time.Time) { marks = append(marks, at) }
	r.OnFinished = r.OnScriptStart
	out, err := p.Run(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Script engine.Script
		Limits engine.Limits
		Nil    bool
	}
	if err := json.Unmarshal(out.Value, &got); err != nil || got.Script != r.Script || got.Limits != r.Limits || got.Nil {
		t.Errorf("got %+v, error %v, want %+v", got, err, r)
	}
	want := engine.Outcome{Class: engine.ClassOK, Value: out.Value, Message: "m", JSStack: "s", Usage: engine.Usage{Fuel: 1, Copy: 2}}
	if !reflect.DeepEqual(out, want) {
		t.Errorf("got %+v, want %+v", out, want)
	}
	// One clock for both processes: the instants lie in order, between ours.
	if len(marks) != 2 || marks[0].Before(before) || marks[1].Before(marks[0]) || marks[1].After(time.Now()) {
		t.Errorf("marks %v are not in order between %v and now", marks, before)
	}
	// They are those of the VM, not of their arrival.
	var late time.Duration
	r.Script.Source, r.OnScriptStart = "late", func(at time.Time) { late = time.Since(at) }
	if out, err := p.Run(context.Background(), r); label(out, err) != "ok" || late < markDelay {
		t.Errorf("got %s, and a mark %v ago, want at least %v", label(out, err), late, markDelay)
	}
	if out, err = run(p, "request"); err != nil || json.Unmarshal(out.Value, &got) != nil || !got.Nil {
		t.Errorf("no input: got %s, error %v", out.Value, err)
	}
}

// What is small, what is shared and what is too large for either cross alike.
func TestSizes(t *testing.T) {
	p := newPool(t, options(1))
	const shared, memory = 256 << 10, 64 << 20
	for _, n := range []int{2, shared - 1, shared, shared + 1, memory + 1, memory - 1, memory} {
		input := []byte(`"` + strings.Repeat("7", n-2) + `"`)
		out, err := p.Run(context.Background(), engine.Request{
			Script: engine.Script{Source: "start; finish; input"}, Input: input,
			Limits: engine.Limits{WallClock: time.Hour, MaxOutputBytes: int64(n)}})
		if err != nil || !bytes.Equal(out.Value, input) {
			t.Errorf("%d bytes: got %s of %d bytes, error %v", n, out.Label(), len(out.Value), err)
		}
	}
	if s := p.Stats(); s.Replaced != 0 {
		t.Errorf("a worker was lost: %+v", s)
	}
	const kept = 16 << 20
	if got := residentShared(t); got == 0 || got > kept {
		t.Errorf("%d bytes of shared memory are resident, want at most %d", got, kept)
	}
}

// residentShared is how many bytes of the host's memfds are resident.
func residentShared(t *testing.T) (n int64) {
	t.Helper()
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if target, _ := os.Readlink(fd); strings.HasPrefix(target, "/memfd:sandbed-worker") {
			var st unix.Stat_t
			if err := unix.Stat(fd, &st); err != nil {
				t.Fatal(err)
			}
			n += st.Blocks * 512
		}
	}
	return n
}

// Every measure holds here, and Stats says so; RequireHardening is content.
func TestHardening(t *testing.T) {
	o := options(1)
	o.RequireHardening = true
	p := newPool(t, o)
	if got := p.Stats().Hardening; got != nil {
		t.Errorf("before any worker was started: %v", got)
	}
	out, err := run(p, "attempts")
	if err != nil || out.Class != engine.ClassOK {
		t.Fatalf("got %+v, error %v", out, err)
	}
	var attempts []struct {
		Name    string
		Error   string
		Refused bool
	}
	if err := json.Unmarshal(out.Value, &attempts); err != nil {
		t.Fatal(err)
	}
	if len(attempts) < 50 {
		t.Errorf("got %d attempts, want at least 50", len(attempts))
	}
	for _, a := range attempts {
		if !a.Refused {
			t.Errorf("%s: got %q, want it refused", a.Name, a.Error)
		}
	}
	names := map[string]bool{}
	for _, m := range p.Stats().Hardening {
		names[m.Name] = m.Applied
	}
	for _, name := range []string{"parentDeathSignal", "workingDirectory", "descriptors", "emptyEnvironment", "processGroup", "coreLimit", "fileLimit", "dataLimit",
		"goMemoryLimit", "noNewPrivileges", "landlock", "seccomp"} {
		if applied, ok := names[name]; !ok || !applied {
			t.Errorf("%s: reported %v, applied %v", name, ok, applied)
		}
	}
	// And the kernel says the same, of every thread.
	pids := children(t, os.Getpid())
	if len(pids) != 1 {
		t.Fatalf("got workers %v, want one", pids)
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pids[0]))
	if err != nil || len(threads) < 2 {
		t.Fatalf("got threads %v, error %v", threads, err)
	}
	for _, thread := range threads {
		status, err := os.ReadFile(thread)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"\nNoNewPrivs:\t1\n", "\nSeccomp:\t2\n"} {
			if !strings.Contains(string(status), want) {
				t.Errorf("%s has no %q", thread, want)
			}
		}
	}
}

// A missing measure is an error if the host asked for all of them, with its
// name and reason, and a line in Stats if not.
func TestMissingMeasure(t *testing.T) {
	t.Setenv("TMPDIR", "/no/such/directory")
	o := options(1)
	p := newPool(t, o)
	if out, err := run(p, "start; finish"); label(out, err) != "ok" {
		t.Errorf("got %s, want ok", label(out, err))
	}
	missing := slices.DeleteFunc(p.Stats().Hardening, func(m pool.Measure) bool { return m.Applied })
	if len(missing) != 1 || missing[0].Name != "workingDirectory" || missing[0].Reason == "" {
		t.Errorf("got missing measures %+v, want workingDirectory with its reason", missing)
	}
	o.RequireHardening = true
	var hardening *pool.HardeningError
	err := newPool(t, o).Warm(context.Background())
	if !errors.As(err, &hardening) || !strings.Contains(err.Error(), "workingDirectory (") {
		t.Errorf("got %v, want a *HardeningError that names workingDirectory", err)
	}
}

// A worker that wants more memory than it may have dies, and alone.
func TestMemoryBound(t *testing.T) {
	p, err := pool.NewProcesses(pool.Command{MemoryBytes: 256 << 20}, options(1))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if out, err := run(p, "allocate 16777216"); label(out, err) != "ok" {
		t.Errorf("16 MiB: got %s %s, want ok", label(out, err), out.Message)
	}
	out, err := run(p, "allocate 1073741824")
	if label(out, err) != "startup:start" || !strings.Contains(err.Error(), "exit status") {
		t.Errorf("1 GiB: got %s, %v, want startup:start with its exit status", label(out, err), err)
	}
	if out, err := run(p, "start; finish"); label(out, err) != "ok" {
		t.Errorf("afterwards: got %s, want ok", label(out, err))
	}
}

// What a VM prints is not taken for frames, and not kept beyond a bound.
func TestPrints(t *testing.T) {
	p := newPool(t, options(1))
	for range 2 {
		if out, err := run(p, "print 20000"); label(out, err) != "ok" || string(out.Value) != "20000" {
			t.Fatalf("got %s %s, want ok", label(out, err), out.Message)
		}
	}
	out, err := run(p, "start; panic")
	if err != nil || out.Class != engine.ClassEngineFault || !strings.Contains(out.Message, "told to panic") || !strings.Contains(out.Message, " bytes more, and ") {
		t.Errorf("got %s %s", label(out, err), out.Message)
	}
}

// A binary that does not call ServeWorker gives an error that says so, within
// ColdStart and without a chain of processes.
func TestForgotten(t *testing.T) {
	for _, c := range []struct {
		how      string
		cold     time.Duration
		contains string
	}{
		{"and pool", time.Minute, "NewProcesses: pool: this process is itself a worker process"},
		{"and print", time.Minute, "malformed"},
		{"and hang", time.Second, "ColdStart"},
	} {
		o := options(1)
		o.ColdStart = c.cold
		p := newPool(t, o, "forgetful "+c.how)
		out, err := run(p, "start")
		if label(out, err) != "startup:compile" || !strings.Contains(err.Error(), "pool.ServeWorker") || !strings.Contains(err.Error(), c.contains) {
			t.Errorf("%s: got %v, want an error that names pool.ServeWorker and holds %q", c.how, err, c.contains)
		}
		if n := p.Stats().StartupFailures; n != 1 {
			t.Errorf("%s: %d workers were started, want 1", c.how, n)
		}
	}
	for _, path := range []string{"/bin/true", "/no/such/binary"} {
		p, err := pool.NewProcesses(pool.Command{Path: path}, options(1))
		if err != nil {
			t.Fatal(err)
		}
		if err = p.Warm(context.Background()); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v, want an error that names it", path, err)
		}
		p.Close()
	}
}

func TestBadCommand(t *testing.T) {
	for field, c := range map[string]pool.Command{
		"CacheDir":    {CacheDir: "cache"},
		"MemoryBytes": {MemoryBytes: 64<<20 - 1},
		"Args":        {Args: []string{"a\x00b"}},
	} {
		var bad *pool.CommandError
		if _, err := pool.NewProcesses(c, options(1)); !errors.As(err, &bad) || bad.Field != field {
			t.Errorf("%+v: got %v, want a *CommandError for %s", c, err, field)
		}
	}
	for _, n := range []int64{64 << 20, 64 << 30} {
		if err := (pool.Command{MemoryBytes: n}).Validate(); err != nil {
			t.Error(err)
		}
	}
	if err := (pool.Command{MemoryBytes: 64<<30 + 1}).Validate(); err == nil {
		t.Error("64 GiB and a byte are accepted")
	}
	var option *pool.OptionError
	if _, err := pool.NewProcesses(pool.Command{}, options(0)); !errors.As(err, &option) || option.Field != "Count" {
		t.Errorf("count 0: got %v, want an *OptionError for Count", err)
	}
}

// A worker that was taken over costs its run, never the host, and is replaced.
func TestRogues(t *testing.T) {
	for how, want := range rogues {
		t.Run(how, func(t *testing.T) {
			p := newPool(t, options(1), "rogue "+how)
			for i := range 2 {
				out, err := run(p, "anything")
				text := out.Message
				if err != nil {
					text = err.Error()
				}
				if got := label(out, err); got != want[0] || !strings.Contains(text, want[1]) {
					t.Errorf("run %d: got %s, %q, want %s with %q", i, got, text, want[0], want[1])
				}
			}
		})
	}
}

// An outcome that nobody asked for spoils the next run, not its answer.
func TestTwoOutcomes(t *testing.T) {
	p := newPool(t, options(1), "rogue two outcomes")
	for i, want := range []string{"ok", "startup:start", "ok"} {
		if out, err := run(p, "anything"); label(out, err) != want {
			t.Errorf("run %d: got %s, want %s", i, label(out, err), want)
		}
	}
}

// A worker in a session of its own that never answers is killed by its clock.
func TestIgnoresEverything(t *testing.T) {
	o := options(1)
	o.HardKillGrace = 50 * time.Millisecond
	p := newPool(t, o, "rogue ignore everything")
	for range 2 {
		out, err := p.Run(context.Background(), engine.Request{Script: engine.Script{Source: "x"}, Limits: engine.Limits{WallClock: time.Millisecond}})
		if label(out, err) != "limit:wallClock" || !out.Killed {
			t.Errorf("got %s, killed %v, want limit:wallClock, killed", label(out, err), out.Killed)
		}
	}
}

// kill -9 of a worker at any point settles its run once and replaces the worker.
func TestKilledFromOutside(t *testing.T) {
	p := newPool(t, options(1))
	worker := func() int {
		t.Helper()
		var pids []int
		eventually(t, "one worker", func() bool { pids = children(t, os.Getpid()); return len(pids) == 1 })
		return pids[0]
	}
	kill := func(pid int) {
		t.Helper()
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	// Idle: it is replaced before anybody notices.
	if err := p.Warm(context.Background()); err != nil {
		t.Fatal(err)
	}
	first := worker()
	kill(first)
	eventually(t, "another worker idle", func() bool { s := p.Stats(); return s.Replaced == 1 && s.Idle == 1 })
	if second := worker(); second == first {
		t.Errorf("worker %d is still there", first)
	}
	// While the input is parsed, while the script runs, while the result is handed over.
	for script, want := range map[string]string{
		"seed 1h":                  "startup:start",
		"start; run 1h":            "engineFault",
		"start; finish; ignore 1h": "engineFault",
	} {
		answers := make(chan string, 2)
		r := engine.Request{Script: engine.Script{Source: script}, Limits: engine.Limits{WallClock: time.Hour}}
		reached := make(chan struct{}, 2)
		r.OnScriptStart = func(time.Time) { reached <- struct{}{} }
		r.OnFinished = r.OnScriptStart
		go func() { answers <- label(p.Run(context.Background(), r)) }()
		eventually(t, "running", func() bool { return p.Stats().Running == 1 })
		for range strings.Count(script, ";") {
			<-reached
		}
		kill(worker())
		if got := <-answers; got != want {
			t.Errorf("killed during %q: got %s, want %s", script, got, want)
		}
		if out, err := run(p, "start; finish; ok 2"); label(out, err) != "ok" {
			t.Errorf("after %q: got %s, want ok", script, label(out, err))
		}
	}
}

// kill -9 of the host leaves no worker behind, not even one that is busy: by the
// signal of the kernel alone, by the end of the pipe alone, and by both.
func TestHostKilled(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, worker := range []string{"rogue ignore everything", "deaf", ""} {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), "PROCESSTEST_HOST="+worker)
		cmd.Stderr = os.Stderr
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "up\n" {
			t.Fatalf("the host said %q, error %v", line, err)
		}
		workers := children(t, cmd.Process.Pid)
		if len(workers) != 2 {
			t.Errorf("the host has workers %v, want two", workers)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		cmd.Wait()
		for _, pid := range workers {
			eventually(t, fmt.Sprintf("worker %q gone", worker), func() bool { return gone(pid) })
		}
	}
}

// gone is true of a process that has ended; a zombie waits for init.
func gone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || bytes.Contains(stat, []byte(") Z "))
}

// What a factory started goes with its worker, however that ends.
func TestGroupKilled(t *testing.T) {
	for how, end := range map[string]func(p *pool.Pool, worker int) error{
		"closed":              func(p *pool.Pool, worker int) error { return p.Close() },
		"killed from outside": func(p *pool.Pool, worker int) error { return unix.Kill(worker, unix.SIGKILL) },
	} {
		p := newPool(t, options(1), "child")
		out, err := run(p, "self")
		if err != nil {
			t.Fatal(err)
		}
		var s self
		if err := json.Unmarshal(out.Value, &s); err != nil {
			t.Fatal(err)
		}
		pids := children(t, os.Getpid())
		if len(pids) != 1 || s.Child == 0 || gone(s.Child) {
			t.Fatalf("%s: workers %v, child %d", how, pids, s.Child)
		}
		if err := end(p, pids[0]); err != nil {
			t.Error(err)
		}
		eventually(t, how+": the worker's child gone", func() bool { return gone(s.Child) })
		p.Close()
	}
}

// Close leaves nothing of a pool, used or not, for the collector to find.
func TestCloseLeavesNothing(t *testing.T) {
	warmUp(t)
	runtime.GC()
	time.Sleep(10 * time.Millisecond) // finalizers of earlier tests, which only lower the count
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	before := resources(t)
	for i := range 6 {
		p, err := pool.NewProcesses(pool.Command{}, options(2))
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			if err := p.Warm(context.Background()); err != nil {
				t.Error(err)
			}
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	var after inventory
	eventually(t, fmt.Sprintf("nothing more than before: %+v", before), func() bool { after = resources(t); return after.within(before) })
}

// inventory is what the host holds.
type inventory struct {
	goroutines, files, memfds, mappings, workers int
}

func resources(t testing.TB) (i inventory) {
	t.Helper()
	i.goroutines = runtime.NumGoroutine()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	i.files = len(fds)
	for _, fd := range fds {
		if target, _ := os.Readlink("/proc/self/fd/" + fd.Name()); strings.HasPrefix(target, "/memfd:") {
			i.memfds++
		}
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	i.mappings = bytes.Count(maps, []byte("/memfd:"))
	i.workers = len(children(t, os.Getpid()))
	return i
}

func (i inventory) within(j inventory) bool {
	return i.goroutines <= j.goroutines && i.files <= j.files && i.memfds <= j.memfds && i.mappings <= j.mappings && i.workers <= j.workers
}
