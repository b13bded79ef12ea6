package fuzz

import (
	"testing"

	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/fuzz/cover"
	"github.com/sandbed/sandbed/fuzz/gen"
	"github.com/sandbed/sandbed/fuzz/oracle"
)

// FuzzResult evaluates an expression whose JSON is known without an engine, and
// wants just that, byte for byte, or the failure that it deserves. The limit of output
// lies round the length of the JSON in UTF-8 bytes.
func FuzzResult(f *testing.F) {
	Run(f, resultTarget(theEngine(f)))
}

func resultTarget(rig *rig) Target {
	return Target{
		Seeds: Documents(gen.Version,
			"obj int latin",
			"cap:8 longemoji",
			"cap:7 longlatin",
			"cap:9 rope",
			"cap:7 arr high control",
			"cap:8 keys emoji order",
			"cap:8 longescape",
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
	limits := engine.Limits{MemoryBytes: 128 << 20, MaxOutputBytes: 16 << 20}
	want, value := "ok", ""
	switch s.Fate {
	case gen.Value:
		value = s.JSON
		if s.Capped {
			limits.MaxOutputBytes = int64(max(len(s.JSON)+s.Cap, 1))
		}
		if int64(len(s.JSON)) > limits.MaxOutputBytes {
			want, value = "limit:output", ""
		}
	case gen.NotSerializable:
		want = "resultNotSerializable"
	case gen.Throws:
		want = "error"
	}
	got := b.run(log, engine.Request{Script: engine.Script{Source: "(" + s.JS + ")", Kind: engine.Program}, Limits: limits})
	for _, name := range s.Used {
		cover.Mark(30, cover.Name(name), cover.Name(got.Label), cover.Log2(int64(len(s.Used))))
	}
	cover.Mark(31, cover.Name(got.Label), cover.Log2(int64(len(s.JSON))), uint64(s.Cap+100))
	markRun(got)
	log.Check(got.Label == want, oracle.Verdict, "got %s (%.200q), want %s", got.Label, got.Out.Message, want)
	log.Check(string(got.Out.Value) == value, oracle.Value, "got %.300q, want %.300q", got.Out.Value, value)
	b.cleanAfter(log)
}
