package fuzz

import (
	"testing"

	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/fuzz/cover"
	"github.com/sandbed/sandbed/fuzz/gen"
	"github.com/sandbed/sandbed/fuzz/oracle"
)

// FuzzResult evaluates an expression whose JSON is known without an engine, and
// wants just that, byte for byte, or the failure that it deserves. A limit of
// output of as many UTF-8 bytes as the JSON has is enough; one byte less is not.
func FuzzResult(f *testing.F) {
	Run(f, resultTarget(theEngine(f)))
}

func resultTarget(rig *rig) Target {
	return Target{
		Seeds: Documents(gen.Version,
			"obj int latin",
			"longemoji",
			"longlatin",
			"rope",
			"arr high control",
			"keys emoji order",
			"longescape",
			"undefined",
			"symbol",
			"tojson undefined",
			"tojson tojson int",
			"promise wrap nan",
			"arr undefined function",
			"obj undefined symbol",
			"deep deep deep sparse negzero",
			"boxed bigint",
			"obj cycle throwget",
			"keys throwjson bigint",
			"getter throwrange",
			"arr holes typed",
			"arr proxyarr proxyobj",
			"wrap ownproto",
			"boxed symbol",
			"arr max min",
			"arr tenth big",
		),
		Check: func(t *testing.T, data []byte, log *oracle.Log) error {
			s, err := gen.Result(data)
			if err != nil {
				return err
			}
			checkResult(rig.inProcess, s, log)
			return nil
		},
		Oracles: []oracle.ID{oracle.Verdict, oracle.Value, oracle.Sound, oracle.Output, oracle.Text, oracle.Hooks, oracle.Memory, oracle.Clean},
		Document: func(data []byte) []byte {
			s, err := gen.Result(data)
			if err != nil {
				return data
			}
			return append(append(s.Document(), '\n'), s.JS...)
		},
	}
}

func checkResult(b *backend, s *gen.Shape, log *oracle.Log) {
	eval := func(most int, want, value string) {
		got := b.run(log, engine.Request{
			Script: engine.Script{Source: "(" + s.JS + ")", Kind: engine.Program},
			Limits: engine.Limits{MemoryBytes: 128 << 20, MaxOutputBytes: int64(most)},
		})
		for _, name := range s.Used {
			cover.Mark(30, cover.Name(name), cover.Name(got.Label), cover.Log2(int64(len(s.Used))))
		}
		markRun(got)
		log.Check(got.Label == want, oracle.Verdict, "got %s (%.200q) under a limit of %d bytes, want %s", got.Label, got.Out.Message, most, want)
		log.Check(string(got.Out.Value) == value, oracle.Value, "got %.300q, want %.300q", got.Out.Value, value)
	}
	switch s.Fate {
	case gen.Value:
		eval(len(s.JSON), "ok", s.JSON)
		if len(s.JSON) > 1 {
			eval(len(s.JSON)-1, "limit:output", "")
		}
	case gen.Absent:
		eval(1, "ok", "")
	case gen.NotSerializable:
		eval(0, "resultNotSerializable", "")
	case gen.Throws:
		eval(0, "error", "")
	}
	b.cleanAfter(log)
}
