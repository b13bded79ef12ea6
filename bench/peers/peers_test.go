package peers_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/sandbed/sandbed/bench/peers"
	"github.com/sandbed/sandbed/bench/workload"
	"github.com/sandbed/sandbed/engine"
)

// TestPeers builds every peer and shows that it speaks the protocol, gives right
// answers to all workloads and stops a loop. It fetches what they are made of:
//
//	PEERS=1 go test ./bench/peers
func TestPeers(t *testing.T) {
	if os.Getenv("PEERS") == "" {
		t.Skip("set PEERS=1 to build the peers: it fetches other engines")
	}
	ctx := context.Background()
	for _, program := range peers.Catalog() {
		t.Run(program.Folder, func(t *testing.T) {
			commands, err := program.Build(ctx, ".", t.TempDir())
			if errors.Is(err, peers.ErrAbsent) && os.Getenv("REQUIRE_ALL") == "" {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range program.Peers {
				t.Run(name, func(t *testing.T) { testPeer(t, name, commands[name]) })
			}
		})
	}
}

func testPeer(t *testing.T, name string, c peers.Command) {
	ctx := context.Background()
	b := peers.New(c, peers.Options{})
	defer b.Close()
	info, err := b.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if info.Name != name || info.Version == "" || info.Settings == "" || info.Docs == "" {
		t.Errorf("got the info %+v", info)
	}
	roomy := engine.Limits{WallClock: time.Minute, MemoryBytes: 256 << 20, MaxOutputBytes: 16 << 20}
	for _, w := range workload.All() {
		c, err := w.Case(workload.Small, 1)
		if err != nil {
			t.Fatal(err)
		}
		o, err := b.Run(ctx, engine.Request{Script: w.Script, Input: c.Input, Limits: roomy})
		if err != nil || o.Class != engine.ClassOK {
			t.Errorf("%s gave %s %q (%v)", w.Name, o.Label(), o.Message, err)
		} else if err := c.Check(o.Value); err != nil {
			t.Error(err)
		}
	}
	for _, s := range []struct {
		source, input, class, value string
		kind                        engine.Kind
	}{
		{`1+1`, ``, "ok", `2`, ""},
		{`undefined`, ``, "ok", ``, ""},
		{`input.a.b`, `{"a":{"b":"é"}}`, "ok", `"é"`, ""},
		{`typeof input`, ``, "ok", `"undefined"`, ""},
		{`(()=>{})`, ``, "resultNotSerializable", ``, ""},
		{`const a={};a.a=a;a`, ``, "resultNotSerializable", ``, ""},
		{`Promise.resolve([7])`, ``, "ok", `[7]`, ""},
		{`export default async i=>{await null;return i.a+1}`, `{"a":41}`, "ok", `42`, ""},
		{`const x=await Promise.resolve(6);export default x*7`, ``, "ok", `42`, engine.Module},
		{`export default i=>typeof i`, ``, "ok", `"undefined"`, engine.Module},
		{`throw new Error("mine")`, ``, "error", ``, ""},
		{`let let = ;`, ``, "error", ``, ""},
		{`"x".repeat(2**21)`, ``, "limit:output", ``, ""},
	} {
		r := engine.Request{Script: engine.Script{Source: s.source, Kind: s.kind}}
		if s.input != "" {
			r.Input = json.RawMessage(s.input)
		}
		if o, err := b.Run(ctx, r); err != nil || o.Label() != s.class || string(o.Value) != s.value {
			t.Errorf("%s gave %s %.60q (%.200q, %v), want %s %q", s.source, o.Label(), o.Value, o.Message, err, s.class, s.value)
		}
	}
	loop := engine.Request{Script: engine.Script{Source: `for(;;){}`}, Limits: engine.Limits{WallClock: 50 * time.Millisecond}}
	want := "limit:wallClock"
	if name == "qjs-options" {
		want = "engineFault" // its MaxExecutionTime is not used: the process has to be killed
	}
	if o, err := b.Run(ctx, loop); err != nil || o.Label() != want {
		t.Errorf("an endless loop gave %s %q (%v), want %s", o.Label(), o.Message, err, want)
	}
	if took, err := b.Batch(ctx, engine.Request{Script: engine.Script{Source: `1+1`}}, 10, json.RawMessage(`2`)); err != nil || took <= 0 {
		t.Errorf("a batch after it took %v (%v)", took, err)
	}
	if d, err := b.Loop(ctx, engine.Request{Script: engine.Script{Source: `1+1`}}, 4, json.RawMessage(`2`)); err != nil || d.Wall <= 0 {
		t.Errorf("a loop gave %+v (%v)", d, err)
	}
}
