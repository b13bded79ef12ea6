package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/sandbed/sandbed/engine"
)

// everything is one message of each type with every field set, and the empty ones.
func everything() map[string]Message {
	return map[string]Message{
		"hello":                  Hello{Version: Version, PID: 4711},
		"ready":                  Ready{Measures: []Measure{{Name: "landlock", Reason: "not supported by this kernel"}, {Name: "seccomp", Applied: true}}},
		"ready without measures": Ready{},
		"run": Run{
			Script: engine.Script{Source: "export default 1 // é", Name: "a.js", Kind: engine.Module},
			Limits: engine.Limits{MemoryBytes: 1, StackBytes: 2, WallClock: 3, Fuel: 4, MaxScriptBytes: 5, MaxInputBytes: 6, MaxOutputBytes: math.MaxInt64},
			Input:  Text{Present: true, Inline: json.RawMessage(`{"a":[1,2]}`)},
		},
		"run without input":      Run{},
		"run with shared input":  Run{Input: Text{Present: true, Shared: true, Size: 1 << 31, Sum: 0xdeadbeef}},
		"run with an empty text": Run{Input: Text{Present: true, Inline: json.RawMessage{}}},
		"started":                Started{At: math.MaxInt64},
		"finished":               Finished{At: -1},
		"outcome": Outcome{
			Outcome: engine.Outcome{Class: engine.ClassOK, Usage: engine.Usage{Fuel: 1, PeakMemoryBytes: 2, ImageBytes: 3, StackBytes: 4,
				Seed: 5, Script: 6, Dump: 7, Copy: 8, Overrun: 9 * time.Second}},
			Value: Text{Present: true, Inline: json.RawMessage(`"x"`)},
		},
		"outcome of a limit": Outcome{Outcome: engine.Outcome{Class: engine.ClassLimit, Guard: engine.Memory, Message: "m", JSStack: "s", DuringSeed: true, Killed: true}},
		"outcome in shared memory": Outcome{Outcome: engine.Outcome{Class: engine.ClassOK},
			Value: Text{Present: true, Shared: true, Size: 7, Sum: 1}},
		"bye": Bye{Reason: "no VM: disk full"},
	}
}

// encode is m as a frame.
func encode(t testing.TB, run uint64, m Message) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := NewWriter(&b).Write(run, m); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// anything bounds every type, for tests of both directions.
func anything() Bounds {
	b := FromWorker(1 << 20)
	b[TypeRun] = 1 << 20
	return b
}

func TestRoundTrip(t *testing.T) {
	bounds := anything()
	for name, m := range everything() {
		frame := encode(t, 42, m)
		for reader, r := range map[string]io.Reader{"whole": bytes.NewReader(frame), "byte by byte": iotest.OneByteReader(bytes.NewReader(frame))} {
			f, err := ReadFrame(r, &bounds)
			if err != nil {
				t.Fatalf("%s, %s: %v", name, reader, err)
			}
			got, err := Decode(f)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if f.Run != 42 || f.Type != m.kind() || !reflect.DeepEqual(got, m) {
				t.Errorf("%s: got run %d %v %+v, want run 42 %v %+v", name, f.Run, f.Type, got, m.kind(), m)
			}
		}
	}
}

// Every cut and every flipped bit of every frame is an error, and never a panic.
func TestDamage(t *testing.T) {
	bounds := anything()
	for name, m := range everything() {
		frame := encode(t, 7, m)
		for n := range frame {
			_, err := ReadFrame(bytes.NewReader(frame[:n]), &bounds)
			if want := io.ErrUnexpectedEOF; n == 0 && !errors.Is(err, io.EOF) || n > 0 && !errors.Is(err, want) {
				t.Errorf("%s cut to %d bytes: got %v", name, n, err)
			}
			for bit := range 8 {
				bad := bytes.Clone(frame)
				bad[n] ^= 1 << bit
				if f, err := ReadFrame(bytes.NewReader(bad), &bounds); err == nil {
					t.Errorf("%s with bit %d of byte %d flipped was read as %+v", name, bit, n, f)
				}
			}
		}
	}
}

// reseal makes a frame with a good CRC round any payload.
func reseal(t testing.TB, kind Type, payload []byte) []byte {
	t.Helper()
	frame := append(make([]byte, HeaderBytes), payload...)
	if err := seal(frame, kind, 1); err != nil {
		t.Fatal(err)
	}
	return frame
}

// A payload that is cut, or has a byte too many, is malformed even with a good CRC.
func TestLengthsWithin(t *testing.T) {
	bounds := anything()
	for name, m := range everything() {
		payload := encode(t, 1, m)[HeaderBytes:]
		for n := range len(payload) {
			checkPayload(t, fmt.Sprintf("%s cut to %d", name, n), &bounds, m.kind(), payload[:n])
		}
		checkPayload(t, name+" and a byte", &bounds, m.kind(), append(bytes.Clone(payload), 0))
	}
}

func checkPayload(t *testing.T, name string, bounds *Bounds, kind Type, payload []byte) {
	t.Helper()
	f, err := ReadFrame(bytes.NewReader(reseal(t, kind, payload)), bounds)
	var m Message
	if err == nil {
		m, err = Decode(f)
	}
	if bad := new(Malformed); !errors.As(err, &bad) {
		t.Errorf("%s: got %+v, error %v, want a *Malformed", name, m, err)
	}
}

func TestRefused(t *testing.T) {
	bounds := anything()
	outcome := func(edit func(*Outcome)) []byte {
		m := Outcome{Outcome: engine.Outcome{Class: engine.ClassOK}}
		edit(&m)
		return encode(t, 1, m)[HeaderBytes:]
	}
	for name, c := range map[string]struct {
		kind    Type
		payload []byte
	}{
		"unknown class":                {TypeOutcome, outcome(func(m *Outcome) { m.Outcome.Class = "fine" })},
		"no class":                     {TypeOutcome, outcome(func(m *Outcome) { m.Outcome.Class = "" })},
		"unknown guard":                {TypeOutcome, outcome(func(m *Outcome) { m.Outcome.Class, m.Outcome.Guard = engine.ClassLimit, "cpu" })},
		"guard without limit":          {TypeOutcome, outcome(func(m *Outcome) { m.Outcome.Guard = engine.Fuel })},
		"limit without guard":          {TypeOutcome, outcome(func(m *Outcome) { m.Outcome.Class = engine.ClassLimit })},
		"negative fuel":                {TypeOutcome, outcome(func(m *Outcome) { m.Outcome.Usage.Fuel = -1 })},
		"negative overrun":             {TypeOutcome, outcome(func(m *Outcome) { m.Outcome.Usage.Overrun = -1 })},
		"an error with a value":        {TypeOutcome, outcome(func(m *Outcome) { m.Outcome.Class, m.Value.Present = engine.ClassScriptError, true })},
		"a flag of 2":                  {TypeOutcome, append([]byte{2, 0, 0, 0, 'o', 'k', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2}, make([]byte, 74)...)},
		"a string of 4 GiB":            {TypeBye, []byte{255, 255, 255, 255, 'x'}},
		"a message of 4097":            {TypeOutcome, append(append([]byte{2, 0, 0, 0, 'o', 'k', 0, 0, 0, 0, 1, 16, 0, 0}, make([]byte, 4097)...), make([]byte, 79)...)},
		"65 measures":                  {TypeReady, append([]byte{65, 0, 0, 0}, make([]byte, 65*9)...)},
		"2^32-1 measures":              {TypeReady, []byte{255, 255, 255, 255}},
		"a text longer than its frame": {TypeRun, append(make([]byte, 3*4+7*8), 1, 0, 255, 255, 255, 255)},
	} {
		checkPayload(t, name, &bounds, c.kind, c.payload)
	}
}

// header is a header that claims anything.
func header(size uint32, kind Type) []byte {
	h := make([]byte, HeaderBytes)
	binary.LittleEndian.PutUint32(h, size)
	h[4] = byte(kind)
	return h
}

// The size is judged before anything is allocated for it: n-1 and n are read, n+1 is not.
func TestBounds(t *testing.T) {
	bounds := FromWorker(1000)
	most := bounds[TypeOutcome]
	for _, size := range []int64{most - 1, most, most + 1} {
		_, err := ReadFrame(bytes.NewReader(header(uint32(size), TypeOutcome)), &bounds)
		bad := new(Malformed)
		if tooLarge := errors.As(err, &bad); tooLarge != (size > most) {
			t.Errorf("an outcome of %d bytes, %d allowed: got %v", size, most, err)
		}
	}
	for kind := range Type(10) {
		_, err := ReadFrame(bytes.NewReader(header(1, kind)), &Bounds{})
		if bad := new(Malformed); !errors.As(err, &bad) {
			t.Errorf("a %v where nothing is allowed: got %v, want a *Malformed", kind, err)
		}
	}
	if FromWorker(math.MaxInt64)[TypeOutcome] < 0 || FromWorker(-1)[TypeOutcome] != maxOutcomeBytes {
		t.Error("bounds of an absurd output limit are absurd")
	}
}

// The largest outcome and the longest reason that the encoder makes must fit the reader's bounds.
func TestLargestFits(t *testing.T) {
	long := strings.Repeat("é", 10_000)
	bounds := FromWorker(100)
	for _, m := range []Message{
		Outcome{Outcome: engine.Outcome{Class: engine.ClassResultNotSerializable, Message: long, JSStack: long}},
		Outcome{Outcome: engine.Outcome{Class: engine.ClassOK}, Value: Text{Present: true, Inline: bytes.Repeat([]byte("1"), 100)}},
		Ready{Measures: func() (m []Measure) {
			for range 70 {
				m = append(m, Measure{Name: long, Reason: long})
			}
			return m
		}()},
		Bye{Reason: long},
	} {
		f, err := ReadFrame(bytes.NewReader(encode(t, 1, m)), &bounds)
		if err != nil {
			t.Errorf("%v: %v", m.kind(), err)
			continue
		}
		got, err := Decode(f)
		if err != nil {
			t.Errorf("%v: %v", m.kind(), err)
		}
		if o, ok := got.(Outcome); ok && o.Outcome.Message != "" && o.Outcome.Message != strings.Repeat("é", 2048) {
			t.Errorf("a message was cut to %d bytes, want 4096", len(o.Outcome.Message))
		}
	}
}

func TestCut(t *testing.T) {
	for _, c := range []struct {
		s    string
		most int64
		want string
	}{
		{"", 3, ""}, {"abc", 3, "abc"}, {"abcd", 3, "abc"}, {"aé", 2, "a"}, {"aé", 3, "aé"},
		{"a😀", 4, "a"}, {"a😀", 5, "a😀"}, {"\x80\x80\x80\x80\x80\x80", 5, "\x80"}, {"é", 0, ""},
	} {
		if got := cut(c.s, c.most); got != c.want {
			t.Errorf("cut(%q, %d) = %q, want %q", c.s, c.most, got, c.want)
		}
	}
}

// A header that lies costs at most firstStep, whatever it claims; a payload that
// does come is read whole, through several steps of growth.
func TestAllocation(t *testing.T) {
	bounds := FromHost()
	lie := header(math.MaxUint32, TypeRun)
	cost := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := ReadFrame(bytes.NewReader(lie), &bounds); err == nil {
				b.Fatal("a frame without its payload was read")
			}
		}
	}).AllocedBytesPerOp()
	if cost > 2*firstStep {
		t.Errorf("a header that claims 4 GiB made the reader allocate %d bytes, want at most %d", cost, 2*firstStep)
	}
	for _, size := range []int{firstStep - 1, firstStep, firstStep + 1, 5*firstStep + 3} {
		text := bytes.Repeat([]byte("7"), size)
		f, err := ReadFrame(bytes.NewReader(encode(t, 1, Run{Input: Text{Present: true, Inline: text}})), &bounds)
		if err != nil {
			t.Fatal(err)
		}
		if m, err := DecodeRun(f.Payload); err != nil || !bytes.Equal(m.Input.Inline, text) {
			t.Errorf("an input of %d bytes: got %d, error %v", size, len(m.Input.Inline), err)
		}
	}
}

// fuzzFrames is the property that fuzzing will test: a stream is a row of frames
// and then one clear error, and what decodes encodes to the same bytes.
func fuzzFrames(t testing.TB, stream []byte) {
	bounds := anything()
	r := bytes.NewReader(stream)
	for {
		before := len(stream) - r.Len()
		f, err := ReadFrame(r, &bounds)
		if err != nil {
			if bad := new(Malformed); !errors.As(err, &bad) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("an error of no kind: %v", err)
			}
			return
		}
		m, err := Decode(f)
		if err != nil {
			if bad := new(Malformed); !errors.As(err, &bad) {
				t.Fatalf("an error of no kind: %v", err)
			}
			continue
		}
		if again, want := encode(t, f.Run, m), stream[before:len(stream)-r.Len()]; !bytes.Equal(again, want) {
			t.Fatalf("%+v\nwas read from %x\nbut encodes to %x", m, want, again)
		}
	}
}

func FuzzFrames(f *testing.F) {
	for _, m := range everything() {
		frame := encode(f, 1, m)
		f.Add(frame)
		f.Add(append(bytes.Clone(frame), frame[:len(frame)/2]...))
	}
	f.Add(header(math.MaxUint32, TypeOutcome))
	f.Fuzz(func(t *testing.T, stream []byte) { fuzzFrames(t, stream) })
}
