package pool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"

	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/pool/internal/harden"
	"github.com/sandbed/sandbed/pool/internal/wire"
)

// ServeWorker is the main of a worker process. In a process that [NewProcesses]
// started it makes a VM, hardens the process, serves runs and never returns: the
// process ends with its host. In any other process it returns at once.
//
// Call it first thing in main (in tests: in TestMain, before flags are parsed).
// What ran before it, package initialisation included, ran in the worker too.
func ServeWorker(newVM Factory) {
	if !isWorker() {
		return
	}
	s := &server{
		requests: os.NewFile(fdRequests, "requests"),
		writer:   wire.NewWriter(os.NewFile(fdReplies, "replies")),
	}
	if err := s.serve(newVM); err != nil {
		s.bye(err)
	}
	select {} // its two goroutines end the process
}

// server is the worker's side.
type server struct {
	requests *os.File
	writer   *wire.Writer
	shared   *wire.Shared
	vm       engine.VM
}

// bye tells the host why the process ends, and ends it.
func (s *server) bye(err error) {
	if s.writer.Write(0, wire.Bye{Reason: err.Error()}) != nil {
		fmt.Fprintln(os.Stderr, err) // nobody started it as a worker, or the host is gone
	}
	os.Exit(1)
}

func (s *server) serve(newVM Factory) error {
	// These descriptors must not reach whatever a factory starts.
	for _, fd := range []int{fdRequests, fdReplies, fdShared} {
		syscall.CloseOnExec(fd)
	}
	if err := s.writer.Write(0, wire.Hello{Version: wire.Version, PID: uint32(os.Getpid())}); err != nil {
		return err
	}
	if newVM == nil {
		return errors.New("pool: ServeWorker was given no factory")
	}
	const fixed = 5 // the binary, the marker, and the three below
	if len(os.Args) < fixed {
		return fmt.Errorf("pool: a worker process has %d arguments, want at least %d", len(os.Args), fixed)
	}
	parent, err := strconv.Atoi(os.Args[2])
	if err != nil {
		return fmt.Errorf("pool: the process id of the host: %w", err)
	}
	memoryBytes, err := strconv.ParseInt(os.Args[3], 10, 64)
	if err != nil {
		return fmt.Errorf("pool: the memory of the worker: %w", err)
	}
	if ppid := os.Getppid(); ppid != parent { // it died before PDEATHSIG was set, or is not our parent at all
		return fmt.Errorf("pool: the parent of the worker is process %d, its host is process %d", ppid, parent)
	}
	if s.shared, err = wire.OpenShared(os.NewFile(fdShared, "shared")); err != nil {
		return err
	}
	measures := harden.Early(fdShared+1, memoryBytes)
	runs := make(chan request)
	go s.receive(runs)
	go s.work(newVM, Boot{CacheDir: os.Args[4], Args: os.Args[fixed:]}, measures, runs)
	return nil
}

// request is one run as it came.
type request struct {
	id  uint64
	run wire.Run
}

// receive reads runs. It reads ahead, for that is how it learns that the host has
// let go or died: then the process ends, whatever it is doing. (PDEATHSIG says
// the same; either is enough.) It writes no frame, for one may be half written.
func (s *server) receive(runs chan<- request) {
	bounds := wire.FromHost()
	for {
		f, err := wire.ReadFrame(s.requests, &bounds)
		if err == io.EOF {
			os.Exit(0)
		}
		var run wire.Run
		if err == nil {
			run, err = wire.DecodeRun(f.Payload)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		runs <- request{f.Run, run}
	}
}

// work makes the VM, hardens the process and evaluates. A VM that panics or ends
// its goroutine ends the process: nobody knows in what state it left itself.
func (s *server) work(newVM Factory, boot Boot, measures []harden.Measure, runs <-chan request) {
	err := errors.New("pool: the VM ended its goroutine")
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("pool: panic: %v\n%s", v, debug.Stack())
		}
		s.bye(err)
	}()
	vm, bootErr := newVM(context.Background(), boot)
	if bootErr == nil && vm == nil {
		bootErr = errors.New("pool: the factory returned neither a VM nor an error")
	}
	if bootErr != nil {
		err = bootErr
		return
	}
	s.vm = vm
	var ready wire.Ready
	for _, m := range append(measures, harden.Late()...) {
		ready.Measures = append(ready.Measures, wire.Measure(m))
	}
	if readyErr := s.writer.Write(0, ready); readyErr != nil {
		err = readyErr
		return
	}
	for r := range runs {
		if evalErr := s.eval(r); evalErr != nil {
			err = evalErr
			return
		}
	}
}

// eval evaluates one run and answers it.
func (s *server) eval(r request) error {
	var writeErr error
	write := func(m wire.Message) {
		if writeErr == nil {
			writeErr = s.writer.Write(r.id, m)
		}
	}
	input, err := s.input(r.run.Input)
	if err != nil {
		return err
	}
	// Each mark once and in order, and none after the end: the host ends a worker
	// that says anything else.
	const (
		seeding = iota
		running
		finished
	)
	phase := seeding
	out := s.vm.Eval(context.Background(), engine.Request{
		Script: r.run.Script,
		Input:  input,
		Limits: r.run.Limits,
		OnScriptStart: func(at time.Time) {
			if phase == seeding {
				phase = running
				write(wire.Started{At: toMonotonic(at)})
			}
		},
		OnFinished: func(at time.Time) {
			if phase == running {
				phase = finished
				write(wire.Finished{At: toMonotonic(at)})
			}
		},
	})
	phase = finished
	m := wire.Outcome{Outcome: out}
	m.Outcome.Value = nil
	if n := len(out.Value); n >= sharedMin && n <= s.shared.Size() {
		m.Value = s.shared.Put(out.Value)
	} else if out.Value != nil {
		m.Value = wire.Text{Present: true, Inline: out.Value}
	}
	write(m)
	return writeErr
}

func (s *server) input(t wire.Text) ([]byte, error) {
	switch {
	case !t.Present:
		return nil, nil
	case t.Shared:
		return s.shared.Get(t, int64(s.shared.Size()))
	default:
		return t.Inline, nil
	}
}
