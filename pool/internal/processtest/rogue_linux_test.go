package processtest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/pool/internal/wire"
)

// rogues are workers that have been taken over, by what they say: before they
// are ready, and in answer to a run. The value is what the host must make of it:
// the label of an answer, and a part of the error's text.
var rogues = map[string][2]string{
	// Before they are ready.
	"silent at once":      {"startup:compile", "pool.ServeWorker"},
	"garbage at once":     {"startup:compile", "pool.ServeWorker"},
	"wrong version":       {"startup:compile", "version 99"},
	"another process":     {"startup:compile", "from process 1"},
	"ready without hello": {"startup:compile", "pool.ServeWorker"},
	"half a ready":        {"startup:compile", "unexpected EOF"},
	"bye":                 {"startup:compile", "told to give up"},

	// Before the script started.
	"exit on run":          {"startup:start", "exit status 7"},
	"garbage on run":       {"startup:start", "malformed"},
	"another run":          {"startup:start", "for run"},
	"finished first":       {"startup:start", "want"},
	"hello again":          {"startup:start", "want"},
	"a run of its own":     {"startup:start", "not expected in this direction"},
	"lying length":         {"startup:start", "larger than"},
	"length of 4 GiB":      {"startup:start", "larger than"},
	"half a frame":         {"startup:start", "unexpected EOF"},
	"half a header":        {"startup:start", "unexpected EOF"},
	"segfault":             {"startup:start", "SIGSEGV"},
	"kill itself":          {"startup:start", "signal: killed"},
	"kill its group":       {"startup:start", "signal: killed"},
	"value beyond limit":   {"startup:start", "larger than"},
	"memory beyond limit":  {"startup:start", "larger than"},
	"memory beyond memory": {"startup:start", "larger than"},
	"memory with bad CRC":  {"startup:start", "CRC"},
	"unknown class":        {"startup:start", "unknown class"},
	"negative fuel":        {"startup:start", "negative"},

	// Afterwards it is the engine that failed.
	"started twice":              {"engineFault", "want"},
	"finished twice":             {"engineFault", "want"},
	"exit after start":           {"engineFault", "exit status 7"},
	"exit while handing over":    {"engineFault", "unexpected EOF"},
	"garbage while handing over": {"engineFault", "malformed"},
}

// rogue is a process that speaks the protocol by hand, and badly.
func rogue(how string) {
	requests, replies := os.NewFile(3, "requests"), os.NewFile(4, "replies")
	w := wire.NewWriter(replies)
	send := func(run uint64, m wire.Message) {
		if err := w.Write(run, m); err != nil {
			os.Exit(1)
		}
	}
	garbage := []byte(strings.Repeat("garbage ", 100))

	switch how {
	case "silent at once":
		os.Exit(7)
	case "garbage at once":
		replies.Write(garbage)
	case "wrong version":
		send(0, wire.Hello{Version: 99, PID: uint32(os.Getpid())})
	case "another process":
		send(0, wire.Hello{Version: wire.Version, PID: 1})
	case "ready without hello":
		send(0, wire.Ready{})
	default:
		send(0, wire.Hello{Version: wire.Version, PID: uint32(os.Getpid())})
	}
	switch how {
	case "half a ready":
		replies.Write(frame(0, wire.Ready{Measures: []wire.Measure{{Name: "x"}}})[:25])
		os.Exit(7)
	case "bye":
		send(0, wire.Bye{Reason: "told to give up"})
		time.Sleep(time.Hour) // it does not even go
	}
	send(0, wire.Ready{})

	bounds := wire.FromHost()
	for {
		f, err := wire.ReadFrame(requests, &bounds)
		if err == io.EOF {
			time.Sleep(time.Hour) // nor does it go with its host's pipe
		}
		if err != nil {
			panic(err)
		}
		started := func() { send(f.Run, wire.Started{}) }
		finished := func() { send(f.Run, wire.Finished{}) }
		outcome := func(edit func(*wire.Outcome)) {
			m := wire.Outcome{Outcome: engine.Outcome{Class: engine.ClassOK}}
			edit(&m)
			send(f.Run, m)
		}
		value := bytes.Repeat([]byte("1"), 2<<20)
		claim := func(size uint32) {
			h := frame(f.Run, wire.Outcome{})[:wire.HeaderBytes]
			binary.LittleEndian.PutUint32(h, size)
			replies.Write(h)
		}
		switch how {
		case "exit on run":
			os.Exit(7)
		case "garbage on run":
			replies.Write(garbage)
		case "another run":
			send(f.Run+1, wire.Started{})
		case "finished first":
			finished()
		case "hello again":
			send(f.Run, wire.Hello{Version: wire.Version})
		case "a run of its own":
			send(f.Run, wire.Run{})
		case "lying length":
			claim(1<<20 + 64<<10)
		case "length of 4 GiB":
			claim(^uint32(0))
		case "half a frame":
			replies.Write(frame(f.Run, wire.Outcome{})[:40])
			os.Exit(0)
		case "half a header":
			replies.Write(frame(f.Run, wire.Outcome{})[:7])
			os.Exit(0)
		case "segfault":
			unix.Kill(os.Getpid(), unix.SIGSEGV)
		case "kill itself":
			unix.Kill(os.Getpid(), unix.SIGKILL)
		case "kill its group":
			unix.Kill(0, unix.SIGKILL)
		case "value beyond limit":
			outcome(func(m *wire.Outcome) { m.Value = wire.Text{Present: true, Inline: value[:1<<20+1]} })
		case "memory beyond limit":
			outcome(func(m *wire.Outcome) { m.Value = wire.Text{Present: true, Shared: true, Size: 1<<20 + 1} })
		case "memory beyond memory":
			outcome(func(m *wire.Outcome) { m.Value = wire.Text{Present: true, Shared: true, Size: ^uint32(0)} })
		case "memory with bad CRC":
			outcome(func(m *wire.Outcome) { m.Value = wire.Text{Present: true, Shared: true, Size: 1 << 20, Sum: 1} })
		case "unknown class":
			outcome(func(m *wire.Outcome) { m.Outcome.Class = "splendid" })
		case "negative fuel":
			outcome(func(m *wire.Outcome) { m.Outcome.Usage.Fuel = -1 })
		case "started twice":
			started()
			started()
		case "finished twice":
			started()
			finished()
			finished()
		case "exit after start":
			started()
			os.Exit(7)
		case "exit while handing over":
			started()
			finished()
			replies.Write(frame(f.Run, wire.Outcome{})[:40])
			os.Exit(7)
		case "garbage while handing over":
			started()
			finished()
			replies.Write(garbage)
		case "two outcomes":
			outcome(func(*wire.Outcome) {})
			outcome(func(*wire.Outcome) {})
		case "ignore everything":
			unix.Setsid()
			started()
			for {
				time.Sleep(time.Second)
			}
		default:
			panic(fmt.Sprintf("processtest: unknown rogue %q", how))
		}
	}
}

func frame(run uint64, m wire.Message) []byte {
	var b bytes.Buffer
	if err := wire.NewWriter(&b).Write(run, m); err != nil {
		panic(err)
	}
	return b.Bytes()
}
