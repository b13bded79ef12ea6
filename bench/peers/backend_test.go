package peers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbed/sandbed/engine"
)

// TestMain makes the test binary a peer, or a grandchild of one, when it is
// started as such.
func TestMain(m *testing.M) {
	switch os.Getenv("SANDBED_FAKE_PEER") {
	case "":
		os.Exit(m.Run())
	case "grandchild":
		sleep()
	case "mute":
		_, _ = io.Copy(io.Discard, os.Stdin)
	case "deaf":
		sleep()
	case "stranger":
		fmt.Println("Welcome to Node.js")
		sleep()
	}
	wire := os.Stdout
	Serve(Peer{
		Info: Info{Name: "fake", Version: "1", Settings: "none", Docs: "nowhere"},
		Open: func(context.Context) (engine.Backend, error) {
			return Fresh(func(ctx context.Context, r engine.Request) engine.Outcome { return misbehave(ctx, wire, r) }), nil
		},
	})
}

// sleep sleeps on; a process without another goroutine must not select for ever.
func sleep() {
	for {
		time.Sleep(time.Hour)
	}
}

// misbehave does what the script says, in one word.
func misbehave(ctx context.Context, wire *os.File, r engine.Request) engine.Outcome {
	word, arg, _ := strings.Cut(r.Script.Source, " ")
	if r.OnScriptStart != nil && word != "unbegun" {
		r.OnScriptStart(time.Now())
	}
	ok := func(v string) engine.Outcome {
		if r.OnFinished != nil {
			r.OnFinished(time.Now())
		}
		return engine.Outcome{Class: engine.ClassOK, Value: json.RawMessage(v)}
	}
	switch word {
	case "1+1":
		return ok("2")
	case "input":
		return ok(strconv.Quote(fmt.Sprintf("%x %v", []byte(r.Input), r.Input == nil)))
	case "source":
		return ok(strconv.Quote(fmt.Sprintf("%x", r.Script.Source)))
	case "long":
		n, _ := strconv.Atoi(arg)
		return ok(`"` + strings.Repeat("a", n) + `"`)
	case "throw":
		return engine.Outcome{Class: engine.ClassScriptError, Message: strings.Repeat("é", 3000) + "\xff"}
	case "wait":
		<-ctx.Done()
		return engine.Outcome{Class: engine.ClassCanceled}
	case "eat": // 64 MiB, given back before anybody looks
		b := make([]byte, 64<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		runtime.KeepAlive(b)
		b = nil
		debug.FreeOSMemory()
		return ok("5")
	case "nap": // longer than HangAfter, within the wall clock
		time.Sleep(200 * time.Millisecond)
		return ok("4")
	case "unbegun", "hang":
		select {}
	case "exit":
		fmt.Fprintln(os.Stderr, "fatal error: out of memory\n\ngoroutine 1:")
		os.Exit(2)
	case "panic":
		panic("mine")
	case "lost-panic":
		go panic("in another goroutine")
		select {}
	case "print":
		fmt.Println("guest text") // must not reach the wire
		return ok("3")
	case "garbage":
		fmt.Fprintln(wire, "not a reply")
		select {}
	case "forged":
		fmt.Fprintln(wire, `{"id":99999,"class":"ok","done":true}`)
		select {}
	case "flood":
		for {
			_, _ = wire.Write(bytes.Repeat([]byte("x"), 1<<16))
		}
	case "grow":
		var kept [][]byte
		for range 64 { // 1 GiB at most
			b := make([]byte, 16<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			kept = append(kept, b)
		}
		runtime.KeepAlive(kept)
		select {}
	case "orphan":
		self, _ := os.Executable()
		c := exec.Command(self)
		c.Env = append(os.Environ(), "SANDBED_FAKE_PEER=grandchild")
		c.Stdout, c.Stderr = wire, os.Stderr
		if err := c.Start(); err != nil {
			return engine.Outcome{Class: engine.ClassEngineFault, Message: err.Error()}
		}
		return ok(strconv.Itoa(c.Process.Pid))
	}
	return engine.Outcome{Class: engine.ClassScriptError, Message: "unknown word"}
}

func fake(t *testing.T, mode string, o Options) *Backend {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b := New(Command{Args: []string{self, "fake"}, Env: []string{"SANDBED_FAKE_PEER=" + mode}}, o)
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return b
}

func script(source string) engine.Request {
	return engine.Request{Script: engine.Script{Source: source}, Limits: engine.Limits{WallClock: time.Millisecond}}
}

func TestBackend(t *testing.T) {
	b := fake(t, "serve", Options{})
	ctx := context.Background()
	run := func(r engine.Request) engine.Outcome {
		t.Helper()
		o, err := b.Run(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	info, err := b.Info(ctx)
	if want := (Info{"fake", "1", "none", "nowhere"}); err != nil || info != want {
		t.Fatalf("got info %v (%v), want %v", info, err, want)
	}
	for _, c := range []struct {
		source string
		input  json.RawMessage
		class  string
		value  string
	}{
		{"1+1", nil, "ok", "2"},
		{"input", nil, "ok", `" true"`},
		{"input", json.RawMessage{}, "ok", `" false"`},
		{"input", json.RawMessage("\"\xff\""), "ok", `"22ff22 false"`},
		{"source \xff", nil, "ok", `"736f7572636520ff"`},
		{"print", nil, "ok", "3"},
		{"panic", nil, "engineFault", ""},
		{"throw", nil, "error", ""},
		{"long 1048574", nil, "ok", `"` + strings.Repeat("a", 1048574) + `"`},
		{"long 1048575", nil, "limit:output", ""},
	} {
		r := script(c.source)
		r.Input = c.input
		var started, finished time.Time
		r.OnScriptStart = func(t time.Time) { started = t }
		r.OnFinished = func(t time.Time) { finished = t }
		o := run(r)
		if o.Label() != c.class || string(o.Value) != c.value {
			t.Errorf("%q: got %s %.40q (%q), want %s %.40q", c.source, o.Label(), o.Value, o.Message, c.class, c.value)
		}
		if started.IsZero() || c.class == "ok" && finished.Before(started) {
			t.Errorf("%q: started %v, finished %v", c.source, started, finished)
		}
		if len(o.Message) > 4<<10 {
			t.Errorf("%q: a message of %d bytes", c.source, len(o.Message))
		}
	}
	if o := run(script("panic")); o.Message != "panic: mine" {
		t.Errorf("got the message %q, want that of the panic", o.Message)
	}

	// A cancelled run ends, and those beside it do not.
	ctx, cancel := context.WithCancelCause(context.Background())
	r := script("wait")
	r.OnScriptStart = func(time.Time) { cancel(errors.New("enough")) }
	if o := run(r); o.Class != engine.ClassCanceled {
		t.Errorf("a cancelled run gave %s %q", o.Label(), o.Message)
	}
	if _, err := b.Run(ctx, script("1+1")); err == nil || err.Error() != "enough" {
		t.Errorf("a run under a context that had ended gave %v, want its cause", err)
	}
	ctx = context.Background()
	var wg sync.WaitGroup
	for n := range 20 {
		wg.Go(func() {
			r := script("input")
			r.Input = json.RawMessage(strconv.Itoa(n))
			o, err := b.Run(ctx, r)
			if want := fmt.Sprintf(`"%x false"`, strconv.Itoa(n)); err != nil || string(o.Value) != want {
				t.Errorf("run %d gave %s (%v), want %s", n, o.Value, err, want)
			}
		})
	}
	wg.Wait()

	if _, err := b.Batch(ctx, script("1+1"), 10, json.RawMessage("2")); err != nil {
		t.Error(err)
	}
	var wrong *WrongAnswer
	if _, err := b.Batch(ctx, script("1+1"), 10, json.RawMessage("3")); !errors.As(err, &wrong) {
		t.Errorf("a batch with a wrong answer gave %v", err)
	}
	if d, err := b.Loop(ctx, script("1+1"), 4, json.RawMessage("2")); err != nil || d.Wall <= 0 {
		t.Errorf("a loop gave %+v (%v)", d, err)
	}
	if e, err := b.End(ctx, script("1+1")); err != nil || e.Lost || e.Took <= 0 {
		t.Errorf("an end gave %+v (%v)", e, err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Run(ctx, script("1+1")); !errors.Is(err, engine.ErrClosed) {
		t.Errorf("a run after Close gave %v", err)
	}
}

// TestSymptoms: whatever a process does, its run ends with what was seen, and
// the next run gets an answer.
func TestSymptoms(t *testing.T) {
	o := Options{HangAfter: 50 * time.Millisecond, MaxRSS: 200 << 20, MaxLine: 1 << 20}
	for _, c := range []struct{ source, want string }{
		{"hang", "hang: not back 50ms after its wall clock of 1ms; the process was killed"},
		{"exit", "crash: the process ended: exit status 2: fatal error: out of memory"},
		{"lost-panic", "crash: the process ended: exit status 2: panic: in another goroutine"},
		{"garbage", `protocol: the process wrote a line that is no reply: "not a reply`},
		{"forged", `protocol: the process wrote a line that is no reply: "{\"id\":99999`},
		{"flood", "protocol: the process wrote a line of more than 1048576 bytes"},
		{"grow", "memory: the resident set of "},
	} {
		t.Run(c.source, func(t *testing.T) {
			o := o
			if c.source != "hang" {
				o.HangAfter = time.Minute // the other guards must find it
			}
			if c.source == "grow" && runtime.GOOS != "linux" {
				t.Skip("the resident set is read from /proc")
			}
			b := fake(t, "serve", o)
			r := script(c.source)
			out, err := b.Run(context.Background(), r)
			if err != nil || out.Class != engine.ClassEngineFault || !out.Killed || !strings.HasPrefix(out.Message, c.want) {
				t.Errorf("got %s %q (%v), want an engine fault that says %q", out.Label(), out.Message, err, c.want)
			}
			if out, err := b.Run(context.Background(), script("1+1")); err != nil || string(out.Value) != "2" {
				t.Errorf("the next run gave %s %q (%v)", out.Label(), out.Message, err)
			}
		})
	}
	t.Run("within its wall clock", func(t *testing.T) {
		b := fake(t, "serve", Options{HangAfter: time.Millisecond})
		r := script("nap")
		r.Limits.WallClock = time.Hour
		for _, end := range []bool{false, true} { // a context that can end, and one that cannot
			ctx, cancel := context.Background(), func() {}
			if end {
				ctx, cancel = context.WithCancel(ctx)
			}
			if out, err := b.Run(ctx, r); err != nil || string(out.Value) != "4" {
				t.Errorf("got %s %q (%v), want 4", out.Label(), out.Message, err)
			}
			cancel()
		}
	})
	t.Run("unbegun", func(t *testing.T) {
		b := fake(t, "serve", Options{StartWithin: 50 * time.Millisecond})
		out, err := b.Run(context.Background(), script("unbegun"))
		if err != nil || !strings.HasPrefix(out.Message, "hang: the script had not begun after 50ms") {
			t.Errorf("got %s %q (%v)", out.Label(), out.Message, err)
		}
	})
	t.Run("deaf to a cancel", func(t *testing.T) {
		b := fake(t, "serve", Options{HangAfter: 50 * time.Millisecond})
		ctx, cancel := context.WithCancel(context.Background())
		r := script("hang")
		r.Limits.WallClock = time.Hour
		r.OnScriptStart = func(time.Time) { cancel() }
		out, err := b.Run(ctx, r)
		if err != nil || !strings.HasPrefix(out.Message, "hang: not back 50ms after it was cancelled") {
			t.Errorf("got %s %q (%v)", out.Label(), out.Message, err)
		}
	})
}

// TestStart: a process that never says who it is is no peer, and the error says
// what it did instead.
func TestStart(t *testing.T) {
	for mode, want := range map[string]string{
		"mute":     "hang: the process had not answered after 100ms",
		"deaf":     "hang: the process had not answered after 100ms",
		"stranger": `protocol: the process wrote a line that is no reply: "Welcome to Node.js`,
	} {
		o := Options{OpenWithin: 100 * time.Millisecond}
		if mode == "stranger" {
			o.OpenWithin = time.Minute
		}
		b := fake(t, mode, o)
		var startup *engine.WorkerStartupError
		if err := b.Warm(context.Background()); !errors.As(err, &startup) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", mode, err, want)
		}
	}
	b := New(Command{Args: []string{"/nonexistent/peer"}}, Options{})
	if err := b.Warm(context.Background()); err == nil || !strings.Contains(err.Error(), "/nonexistent/peer") {
		t.Errorf("a program that is not there gave %v", err)
	}
}

// TestGrowth: the peak counts, though nothing of it is left.
func TestGrowth(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the resident set is read from /proc")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := Command{Args: []string{self, "fake"}, Env: []string{"SANDBED_FAKE_PEER=serve"}}
	grow := func(source, value string) int64 {
		t.Helper()
		n, e, err := Growth(context.Background(), c, Options{}, script(source))
		if err != nil || e.Lost || string(e.Outcome.Value) != value {
			t.Fatalf("%s: got %+v (%v)", source, e, err)
		}
		return n
	}
	if n := grow("eat", "5"); n < 60<<20 || n > 128<<20 {
		t.Errorf("64 MiB grew the resident set by %d bytes", n)
	}
	if n := grow("1+1", "2"); n > 32<<20 {
		t.Errorf("1+1 grew the resident set by %d bytes", n)
	}
	if took, err := ColdStart(context.Background(), c, Options{}, t.TempDir()); err != nil || took <= 0 {
		t.Errorf("a cold start took %v (%v)", took, err)
	}
}

// TestCloseLeavesNothing: what a peer has started ends with it, though it holds
// the pipes, and so does a peer that never reads.
func TestCloseLeavesNothing(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there are no process groups")
	}
	b := fake(t, "serve", Options{})
	out, err := b.Run(context.Background(), script("orphan"))
	if err != nil || out.Class != engine.ClassOK {
		t.Fatalf("got %s %q (%v)", out.Label(), out.Message, err)
	}
	orphan, err := strconv.Atoi(string(out.Value))
	if err != nil {
		t.Fatal(err)
	}
	peer := b.now.cmd.Process.Pid
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{peer, orphan} {
		for n := 0; alive(pid); n++ { // killed already; its parent has to reap it
			if n == 1000 {
				t.Fatalf("process %d is still there", pid)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// alive says whether a process runs; one that is dead and not reaped does not.
func alive(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err == nil && !strings.Contains(string(status), "State:\tZ")
}

// TestServe: what the parent must never see happen is refused.
func TestServe(t *testing.T) {
	p := Peer{Info: Info{Name: "fake"}, Open: func(context.Context) (engine.Backend, error) {
		return Fresh(func(context.Context, engine.Request) engine.Outcome { return engine.Outcome{Class: engine.ClassOK} }), nil
	}}
	for _, c := range []struct{ args, in, want string }{
		{"", "", "give one of fake"},
		{"other", "", "give one of fake"},
		{"fake", "{", "reading a request"},
		{"fake", `{"op":"stop"}`, "give info, eval, cancel, batch or loop"},
		{"fake", `{"id":1,"op":"cancel","of":7}`, "<nil>"},
	} {
		var out bytes.Buffer
		err := serve(strings.Fields(c.args), strings.NewReader(c.in), &out, []Peer{p})
		if !strings.Contains(fmt.Sprint(err), c.want) || out.Len() > 0 {
			t.Errorf("serve(%q) of %q: got %v and wrote %q, want %q", c.args, c.in, err, out.String(), c.want)
		}
	}
}

func TestPlain(t *testing.T) {
	for _, c := range []struct {
		s    engine.Script
		same bool
	}{
		{engine.Script{Source: "1+1"}, true},
		{engine.Script{Source: "export default 1", Kind: engine.Program}, true},
		{engine.Script{Source: `"export default"`}, true},
		{engine.Script{Source: "export default 1"}, false},
		{engine.Script{Source: "1", Kind: engine.Module}, false},
		{engine.Script{Source: "const a = 1;export default a"}, false},
	} {
		got := Plain(c.s)
		if (got == c.s.Source) != c.same || strings.Contains(got, "export default") && !c.same {
			t.Errorf("Plain(%+v) = %q", c.s, got)
		}
	}
}
