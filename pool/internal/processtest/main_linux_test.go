package processtest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/pool"
	"github.com/sandbed/sandbed/pool/internal/harden/hardentest"
	"github.com/sandbed/sandbed/pool/pooltest"
)

// marker is what the pool puts first among a worker's arguments, and fixed is
// how many arguments stand before those of Command.Args.
const (
	marker = "sandbed-worker-process"
	fixed  = 5
)

// PDEATHSIG belongs to the main thread of a process.
func init() { runtime.LockOSThread() }

// TestMain is also every other process of these tests.
func TestMain(m *testing.M) {
	if worker, ok := os.LookupEnv("PROCESSTEST_HOST"); ok {
		host(worker)
	}
	if len(os.Args) > fixed && os.Args[1] == marker {
		switch role, how, _ := strings.Cut(os.Args[fixed], " "); role {
		case "forgetful": // a main that never calls ServeWorker
			forget(how)
		case "rogue":
			rogue(how)
		case "deaf": // to the death of its parent
			if err := unix.Prctl(unix.PR_SET_PDEATHSIG, 0, 0, 0, 0); err != nil {
				panic(err)
			}
			os.Args[fixed] = ""
		}
	}
	pool.ServeWorker(newVM)
	os.Exit(m.Run())
}

// newVM makes the VMs of pooltest, which do what the script says and start as
// the first argument says.
func newVM(ctx context.Context, b pool.Boot) (engine.VM, error) {
	attempts, err := hardentest.Prepare()
	if err != nil {
		return nil, err
	}
	self := self{Boot: b, Environ: os.Environ(), Group: unix.Getpgrp() == os.Getpid()}
	if self.Dir, err = os.Readlink("/proc/self/cwd"); err != nil {
		return nil, err
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, err
	}
	for _, fd := range fds {
		if target, err := os.Readlink(filepath.Join("/proc/self/fd", fd.Name())); err == nil {
			self.Files = append(self.Files, fd.Name()+" "+target)
		}
	}
	start := ""
	if len(b.Args) > 0 {
		start = b.Args[0]
	}
	if start == "child" { // a process of its own, before it is hardened
		child := exec.Command("/proc/self/exe", marker, "", "", "", "forgetful and hang")
		if err := child.Start(); err != nil {
			return nil, err
		}
		self.Child, start = child.Process.Pid, ""
	}
	inner, err := pooltest.NewVM(nil, start)(ctx)
	if inner == nil || err != nil {
		return nil, err
	}
	return &vm{inner, self, attempts}, nil
}

// self is what a worker saw of itself before it was hardened.
type self struct {
	Boot    pool.Boot
	Environ []string
	Dir     string
	Group   bool
	Files   []string
	Child   int
}

// vm adds to the VM of pooltest what only a process can do.
type vm struct {
	engine.VM
	self     self
	attempts func() []hardentest.Result
}

func (v *vm) Eval(ctx context.Context, r engine.Request) engine.Outcome {
	op, arg, _ := strings.Cut(r.Script.Source, " ")
	var value any
	switch op {
	case "self":
		value = v.self
	case "attempts":
		value = v.attempts()
	case "print": // to both standard streams
		n, _ := strconv.Atoi(arg)
		for range n {
			fmt.Println("not a frame")
			fmt.Fprintln(os.Stderr, "nor is this")
		}
		value = n
	case "request":
		value = struct {
			Script engine.Script
			Limits engine.Limits
			Nil    bool
		}{r.Script, r.Limits, r.Input == nil}
	case "late": // with the mark of the armed clock
		at := time.Now()
		time.Sleep(markDelay)
		r.OnScriptStart(at)
		return engine.Outcome{Class: engine.ClassOK}
	case "allocate": // more than the process may have
		n, _ := strconv.Atoi(arg)
		b := make([]byte, n)
		for i := 0; i < n; i += 4096 {
			b[i] = 1
		}
		value = runtime.NumGoroutine()
	default:
		return v.VM.Eval(ctx, r)
	}
	r.OnScriptStart(time.Now())
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	r.OnFinished(time.Now())
	return engine.Outcome{Class: engine.ClassOK, Value: text, Message: "m", JSStack: "s", Usage: engine.Usage{Fuel: 1, Copy: 2}}
}

// markDelay is how late a VM told "late" reports that its clock was armed.
const markDelay = 50 * time.Millisecond

// forget is a main without ServeWorker.
func forget(how string) {
	switch how {
	case "and pool":
		_, err := pool.NewProcesses(pool.Command{}, pool.DefaultOptions())
		fmt.Fprintln(os.Stderr, "NewProcesses:", err)
		os.Exit(1)
	case "and print":
		for range 1000 {
			fmt.Println("usage: any program")
			os.NewFile(4, "").WriteString("usage: any program\n")
		}
		os.Exit(0)
	case "and hang":
		time.Sleep(time.Hour)
	}
	panic("processtest: unknown way to forget: " + how)
}

// host is a process that has a pool of such workers and gets killed. It says when
// one of them is busy.
func host(worker string) {
	p, err := pool.NewProcesses(pool.Command{Args: []string{worker}}, options(2))
	if err == nil {
		err = p.Warm(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	started := make(chan struct{})
	go p.Run(context.Background(), engine.Request{
		Script:        engine.Script{Source: "start; ignore 1h"},
		Limits:        engine.Limits{WallClock: time.Hour},
		OnScriptStart: func(time.Time) { close(started) },
	})
	<-started
	fmt.Println("up")
	time.Sleep(time.Hour)
}

// options are clocks that no slow machine runs out of.
func options(count int) pool.Options {
	return pool.Options{Count: count, ColdStart: time.Minute, StartupLiveness: time.Minute, HardKillGrace: time.Minute, KillWait: time.Minute}
}
