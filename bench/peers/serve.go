package peers

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/sandbed/sandbed/bench/loop"
	"github.com/sandbed/sandbed/engine"
)

// Peer is one sandbox with its settings, as a peer's program offers it.
type Peer struct {
	Info Info
	// Open makes the sandbox; it is called once.
	Open func(ctx context.Context) (engine.Backend, error)
}

// Serve is the main function of a peer's program: it serves the peer that the
// first argument names until stdin ends, and does not return. What the sandbox
// prints to os.Stdout goes to stderr.
func Serve(list ...Peer) {
	out := os.Stdout
	os.Stdout = os.Stderr
	if err := serve(os.Args[1:], os.Stdin, out, list); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0) // whatever still runs
}

func serve(args []string, in io.Reader, out io.Writer, list []Peer) error {
	var names []string
	for _, p := range list {
		if len(args) == 1 && p.Info.Name == args[0] {
			b, err := p.Open(context.Background())
			if err != nil {
				return fmt.Errorf("peers: %s: %w", p.Info.Name, err)
			}
			s := &server{info: p.Info, backend: b, out: out, running: map[int64]context.CancelCauseFunc{}}
			return s.serve(in)
		}
		names = append(names, p.Info.Name)
	}
	return fmt.Errorf("peers: arguments %q: give one of %s; this program is driven by bench/peers/run", args, strings.Join(names, ", "))
}

type server struct {
	info    Info
	backend engine.Backend

	write sync.Mutex
	out   io.Writer

	mu      sync.Mutex
	running map[int64]context.CancelCauseFunc
}

var errCancelled = errors.New("peers: cancelled by the caller")

func (s *server) serve(in io.Reader) error {
	d := json.NewDecoder(bufio.NewReaderSize(in, 1<<16))
	for {
		var r request
		if err := d.Decode(&r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("peers: reading a request: %w", err)
		}
		switch r.Op {
		case "info":
			s.send(reply{ID: r.ID, Info: &s.info, Done: true})
		case "cancel":
			s.mu.Lock()
			if cancel := s.running[r.Of]; cancel != nil {
				cancel(errCancelled)
			}
			s.mu.Unlock()
		case "eval", "batch", "loop":
			ctx, cancel := context.WithCancelCause(context.Background())
			s.mu.Lock()
			s.running[r.ID] = cancel
			s.mu.Unlock()
			go func() {
				answer := s.do(ctx, r)
				s.mu.Lock()
				delete(s.running, r.ID)
				s.mu.Unlock()
				cancel(nil)
				s.send(answer)
			}()
		default:
			return fmt.Errorf("peers: op = %q: give info, eval, cancel, batch or loop", r.Op)
		}
	}
}

func (s *server) send(r reply) {
	line, err := json.Marshal(r)
	if err != nil {
		line, _ = json.Marshal(reply{ID: r.ID, HostErr: err.Error(), Done: true})
	}
	s.write.Lock()
	defer s.write.Unlock()
	_, _ = s.out.Write(append(line, '\n')) // who reads is gone: so are we soon
}

func (s *server) do(ctx context.Context, r request) reply {
	switch r.Op {
	case "batch":
		return s.batch(ctx, r)
	case "loop":
		return s.loop(ctx, r)
	}
	a := reply{ID: r.ID, Done: true}
	req := r.request()
	req.OnScriptStart = func(t time.Time) {
		a.Armed = t.UnixNano()
		s.send(reply{ID: r.ID, Armed: a.Armed})
	}
	req.OnFinished = func(t time.Time) { a.Finished = t.UnixNano() }
	began := time.Now()
	out, err := s.run(ctx, req)
	returned := time.Now()
	a.NS, a.Returned = returned.Sub(began).Nanoseconds(), returned.UnixNano()
	if err != nil {
		a.HostErr = err.Error()
		return a
	}
	a.set(out)
	return a
}

// run evaluates; a panic of the sandbox is an engine fault that says so, as it
// would be to a server that recovers.
func (s *server) run(ctx context.Context, r engine.Request) (out engine.Outcome, err error) {
	defer func() {
		if p := recover(); p != nil {
			out, err = engine.Outcome{Class: engine.ClassEngineFault, Message: fmt.Sprintf("panic: %v", p), Killed: true}, nil
		}
	}()
	return s.backend.Run(ctx, r)
}

// batch evaluates the same many times, one after another; all must give the
// same value, which is the answer.
func (s *server) batch(ctx context.Context, r request) reply {
	a := reply{ID: r.ID, Done: true}
	req := r.request()
	var first engine.Outcome
	began := time.Now()
	for n := range max(1, r.Count) {
		out, err := s.run(ctx, req)
		if err != nil {
			a.HostErr = err.Error()
			return a
		}
		if n == 0 {
			first = out
		}
		if out.Class != engine.ClassOK || !bytes.Equal(out.Value, first.Value) {
			first = out
			break
		}
	}
	a.NS = time.Since(began).Nanoseconds()
	a.set(first)
	return a
}

// loop evaluates the same a few times at once beside a loop that has nothing to
// do and under a collector that is called every 20 ms.
func (s *server) loop(ctx context.Context, r request) reply {
	a := reply{ID: r.ID, Done: true}
	req := r.request()
	outs, errs := make([]engine.Outcome, max(1, r.Count)), make([]error, max(1, r.Count))
	runtime.GC()
	stop := loop.Pressure()
	l := loop.Start()
	began := time.Now()
	var wg sync.WaitGroup
	for n := range outs {
		wg.Go(func() { outs[n], errs[n] = s.run(ctx, req) })
	}
	wg.Wait()
	a.NS = time.Since(began).Nanoseconds()
	saw := l.Stop()
	stop()
	a.LongNS, a.GoneNS = saw.Longest.Nanoseconds(), saw.Unavailable.Nanoseconds()
	if err := errors.Join(errs...); err != nil {
		a.HostErr = err.Error()
		return a
	}
	a.set(outs[0])
	for _, out := range outs {
		if out.Class != engine.ClassOK || !bytes.Equal(out.Value, outs[0].Value) {
			a.set(out)
		}
	}
	return a
}

// Fresh is the backend of a sandbox that makes a VM for every evaluation. eval
// is called by many goroutines at once. The output limit is kept here, by the
// length of what came.
func Fresh(eval func(context.Context, engine.Request) engine.Outcome) engine.Backend {
	return &fresh{eval: eval}
}

type fresh struct {
	eval func(context.Context, engine.Request) engine.Outcome
}

func (f *fresh) Run(ctx context.Context, r engine.Request) (engine.Outcome, error) {
	if err := context.Cause(ctx); err != nil {
		return engine.Outcome{}, err
	}
	r.Limits = r.Limits.WithDefaults()
	out := f.eval(ctx, r)
	if out.Class == engine.ClassOK && int64(len(out.Value)) > r.Limits.MaxOutputBytes {
		out = engine.Outcome{Class: engine.ClassLimit, Guard: engine.Output, Usage: out.Usage}
	}
	return out, nil
}

func (f *fresh) Warm(context.Context) error { return nil }
func (f *fresh) Close() error               { return nil }
