package fuzz

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"testing"
	"unicode/utf8"

	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/fuzz/cover"
	"github.com/sandbed/sandbed/fuzz/gen"
	"github.com/sandbed/sandbed/fuzz/oracle"
)

// FuzzInput hands inputs of awkward shapes to the policy and has the script give
// them back. What encoding/json calls valid must come back as it would read it;
// what it does not is refused before a backend hears of it; the limit counts
// UTF-8 bytes.
func FuzzInput(f *testing.F) {
	Run(f, inputTarget(theEngine(f)))
}

func inputTarget(rig *rig) Target {
	var lines []string
	for _, name := range gen.InputNames() {
		lines = append(lines, name, "arr1 "+name)
	}
	lines = append(lines, "obj2 high twice num 1e400 null low num -0", "rows 5e-324 pair 1E+2 swapped", "deepobj 2999", "longwide 3000")
	return Target{
		Seeds: Documents(gen.Version, lines...),
		Check: func(t *testing.T, data []byte, log *oracle.Log) error {
			in, err := gen.JSON(data)
			if err != nil {
				return err
			}
			checkInput(rig.inProcess, in, log)
			return nil
		},
		Oracles: []oracle.ID{oracle.Panic, oracle.Verdict, oracle.Value, oracle.Charge, oracle.Clean},
		Document: func(data []byte) []byte {
			in, err := gen.JSON(data)
			if err != nil {
				return data
			}
			return append(append(in.Document(), '\n'), in.Text[:min(len(in.Text), 1000)]...)
		},
	}
}

// counted counts what reaches a backend.
type counted struct {
	engine.Backend
	runs int
	last engine.Outcome
}

func (c *counted) Run(ctx context.Context, r engine.Request) (engine.Outcome, error) {
	c.runs++
	out, err := c.Backend.Run(ctx, r)
	c.last = out
	return out, err
}

func checkInput(b *backend, in *gen.Input, log *oracle.Log) {
	valid := json.Valid(in.Text) && utf8.Valid(in.Text)
	var whole string // what came under the full limit
	for _, most := range []int64{engine.DefaultMaxInputBytes, int64(len(in.Text)), int64(len(in.Text)) - 1} {
		if most < 1 {
			continue
		}
		c := &counted{Backend: b.Backend}
		sandbox, err := engine.NewSandbox(c, engine.Spec{Limits: engine.Limits{MaxInputBytes: most, MaxOutputBytes: 16 << 20}, Retry: &engine.Retry{}})
		if err != nil {
			log.Check(false, oracle.Fault, "%v", err)
			return
		}
		var res engine.Result
		func() {
			defer func() {
				p := recover()
				log.Check(p == nil, oracle.Panic, "%v", p)
			}()
			res, err = sandbox.Eval(context.Background(), engine.Call{Script: engine.Script{Source: "input", Kind: engine.Program}, Input: json.RawMessage(in.Text)})
		}()
		label, _ := engine.Describe(err)
		for _, name := range in.Used {
			cover.Mark(40, cover.Name(name), cover.Name(label), cover.Log2(int64(len(in.Used))))
		}
		cover.Mark(41, cover.Name(label), cover.Log2(int64(len(in.Text))), cover.Log2(res.Usage.Fuel))
		switch {
		case !valid:
			log.Check(label == "inputNotSerializable" && c.runs == 0, oracle.Verdict, "no JSON ended as %s after %d runs", label, c.runs)
			continue
		case int64(len(in.Text)) > most:
			log.Check(label == "inputTooLarge" && c.runs == 0, oracle.Verdict, "%d bytes under a limit of %d ended as %s after %d runs", len(in.Text), most, label, c.runs)
			continue
		}
		// What is deep may overflow the VM while it is parsed: the caller's input,
		// never the script.
		log.Check(label == "ok" || !in.Plain && label == "inputTooLarge" && c.last.DuringSeed, oracle.Verdict, "valid JSON ended as %s: %v", label, err)
		log.Check(!engine.ScriptFault(err), oracle.Charge, "an input was called the script's fault: %v", err)
		if whole == "" {
			whole = label
		}
		log.Check(label == whole, oracle.Verdict, "%s under a limit of %d, %s under the default", label, most, whole)
		if label == "ok" {
			got, err := meaning(res.Value)
			want, err2 := meaning(in.Text)
			log.Check(err == nil && err2 == nil && reflect.DeepEqual(got, want), oracle.Value, "got %.300q for %.300q (%v, %v)", res.Value, in.Text, err, err2)
		}
	}
	b.cleanAfter(log)
}

// meaning is what JavaScript makes of a JSON text and gives back: the last of two
// equal keys, numbers as doubles, null for what is too large for one.
func meaning(text []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(keepSurrogates(text)))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	return asDouble(v)
}

func asDouble(v any) (any, error) {
	var err error
	switch v := v.(type) {
	case json.Number:
		f, err := strconv.ParseFloat(string(v), 64)
		if math.IsInf(f, 0) {
			return nil, nil
		}
		return f + 0, err // no negative zero
	case []any:
		for i := range v {
			if v[i], err = asDouble(v[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for k := range v {
			if v[k], err = asDouble(v[k]); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

// keepSurrogates writes the escapes of surrogates without a partner as plain
// text: encoding/json makes one replacement character of all of them.
func keepSurrogates(text []byte) []byte {
	var out []byte
	unit := func(i int) (uint64, bool) {
		if i+6 > len(text) || text[i] != '\\' || text[i+1] != 'u' {
			return 0, false
		}
		u, err := strconv.ParseUint(string(text[i+2:i+6]), 16, 16)
		return u, err == nil
	}
	for i := 0; i < len(text); {
		u, ok := unit(i)
		switch {
		case !ok && text[i] == '\\' && i+1 < len(text):
			out = append(out, text[i], text[i+1])
			i += 2
		case !ok:
			out = append(out, text[i])
			i++
		case u >= 0xd800 && u < 0xdc00:
			if low, ok := unit(i + 6); ok && low >= 0xdc00 && low < 0xe000 {
				out = append(out, text[i:i+12]...)
				i += 12
				break
			}
			fallthrough
		case u >= 0xd800 && u < 0xe000:
			out = fmt.Appendf(out, `\\u%04x`, u)
			i += 6
		default:
			out = append(out, text[i:i+6]...)
			i += 6
		}
	}
	return out
}
