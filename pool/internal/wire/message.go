package wire

import (
	"encoding/binary"
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/sandbed/sandbed/engine"
)

// The bounds of the parts of a message, in bytes.
const (
	maxNameBytes   = 64       // a class, a guard, a kind
	maxTextBytes   = 4 << 10  // a message, a stack: what engine.Outcome allows
	maxReasonBytes = 8 << 10  // why a worker says bye
	maxReadyBytes  = 64 << 10 // the report of the hardening
	maxMeasures    = 64

	helloBytes   = 8
	instantBytes = 8
	// maxOutcomeBytes is an outcome without its value: two names, two texts, their
	// lengths, two bytes of flags, nine numbers, the head of the value.
	maxOutcomeBytes = 2*(maxNameBytes+4) + 2*(maxTextBytes+4) + 2 + 9*8 + 16
)

// Hello is a worker's first word.
type Hello struct {
	Version uint32
	PID     uint32
}

// Measure is one measure of hardening.
type Measure struct {
	Name    string
	Applied bool
	Reason  string // why it was not applied
}

// Ready says that the worker can take runs.
type Ready struct {
	Measures []Measure
}

// Text is one JSON text, inline or in shared memory.
type Text struct {
	Present bool // false: there is none, as with a nil json.RawMessage
	// Shared says that the text stands at the start of the shared memory, Size
	// bytes with checksum Sum; else it is Inline.
	Shared bool
	Size   uint32
	Sum    uint32
	Inline json.RawMessage
}

// Run is one request. The callbacks of engine.Request travel back as Started and Finished.
type Run struct {
	Script engine.Script
	Limits engine.Limits
	Input  Text
}

// Started and Finished carry an instant of the clock that all processes of a
// machine share, CLOCK_MONOTONIC, in nanoseconds.
type (
	Started  struct{ At int64 }
	Finished struct{ At int64 }
)

// Outcome is what a run came to; Outcome.Value travels as Value.
type Outcome struct {
	Outcome engine.Outcome
	Value   Text
}

// Bye says why a worker is about to exit.
type Bye struct {
	Reason string
}

func (Hello) kind() Type    { return TypeHello }
func (Ready) kind() Type    { return TypeReady }
func (Run) kind() Type      { return TypeRun }
func (Started) kind() Type  { return TypeStarted }
func (Finished) kind() Type { return TypeFinished }
func (Outcome) kind() Type  { return TypeOutcome }
func (Bye) kind() Type      { return TypeBye }

func (m Hello) append(b []byte) []byte { return appendU32(appendU32(b, m.Version), m.PID) }

func (m Ready) append(b []byte) []byte {
	b = appendU32(b, uint32(min(len(m.Measures), maxMeasures)))
	for _, x := range m.Measures[:min(len(m.Measures), maxMeasures)] {
		b = appendString(b, x.Name, maxNameBytes)
		b = appendBool(b, x.Applied)
		b = appendString(b, x.Reason, 512)
	}
	return b
}

func (m Run) append(b []byte) []byte {
	b = appendString(b, string(m.Script.Kind), maxNameBytes)
	b = appendString(b, m.Script.Name, MaxPayloadBytes)
	b = appendString(b, m.Script.Source, MaxPayloadBytes)
	for _, v := range limitFields(&m.Limits) {
		b = appendI64(b, *v)
	}
	b = appendI64(b, int64(m.Limits.WallClock))
	return appendText(b, m.Input)
}

func (m Started) append(b []byte) []byte  { return appendI64(b, m.At) }
func (m Finished) append(b []byte) []byte { return appendI64(b, m.At) }

func (m Outcome) append(b []byte) []byte {
	o := &m.Outcome
	b = appendString(b, string(o.Class), maxNameBytes)
	b = appendString(b, string(o.Guard), maxNameBytes)
	b = appendString(b, o.Message, maxTextBytes)
	b = appendString(b, o.JSStack, maxTextBytes)
	b = appendBool(b, o.DuringSeed)
	b = appendBool(b, o.Killed)
	for _, v := range usageFields(&o.Usage) {
		b = appendI64(b, *v)
	}
	for _, v := range usageTimes(&o.Usage) {
		b = appendI64(b, int64(*v))
	}
	return appendText(b, m.Value)
}

func (m Bye) append(b []byte) []byte { return appendString(b, m.Reason, maxReasonBytes) }

// The order of fields on the wire.
func limitFields(l *engine.Limits) [6]*int64 {
	return [...]*int64{&l.MemoryBytes, &l.StackBytes, &l.Fuel, &l.MaxScriptBytes, &l.MaxInputBytes, &l.MaxOutputBytes}
}

func usageFields(u *engine.Usage) [4]*int64 {
	return [...]*int64{&u.Fuel, &u.PeakMemoryBytes, &u.ImageBytes, &u.StackBytes}
}

func usageTimes(u *engine.Usage) [5]*time.Duration {
	return [...]*time.Duration{&u.Seed, &u.Script, &u.Dump, &u.Copy, &u.Overrun}
}

// DecodeHello and its kin turn a frame's payload into the message, to the last
// byte, or return a *Malformed. Strings are copied; an inline text is a part of
// the payload.
func DecodeHello(p []byte) (m Hello, err error) {
	d := decoder{p: p}
	m.Version, m.PID = d.u32(), d.u32()
	return m, d.end(TypeHello)
}

// DecodeReady decodes a Ready.
func DecodeReady(p []byte) (m Ready, err error) {
	d := decoder{p: p}
	n := d.u32()
	if n > maxMeasures {
		return Ready{}, malformed("a ready names %d measures, at most %d are allowed", n, maxMeasures)
	}
	for range n {
		m.Measures = append(m.Measures, Measure{Name: d.string(maxNameBytes), Applied: d.bool(), Reason: d.string(512)})
	}
	return m, d.end(TypeReady)
}

// DecodeRun decodes a Run. It does not judge the limits: that is the VM's business.
func DecodeRun(p []byte) (m Run, err error) {
	d := decoder{p: p}
	m.Script.Kind = engine.Kind(d.string(maxNameBytes))
	m.Script.Name = d.string(MaxPayloadBytes)
	m.Script.Source = d.string(MaxPayloadBytes)
	for _, v := range limitFields(&m.Limits) {
		*v = d.i64()
	}
	m.Limits.WallClock = time.Duration(d.i64())
	m.Input = d.text()
	return m, d.end(TypeRun)
}

// DecodeStarted decodes a Started.
func DecodeStarted(p []byte) (m Started, err error) {
	d := decoder{p: p}
	m.At = d.i64()
	return m, d.end(TypeStarted)
}

// DecodeFinished decodes a Finished.
func DecodeFinished(p []byte) (m Finished, err error) {
	d := decoder{p: p}
	m.At = d.i64()
	return m, d.end(TypeFinished)
}

// DecodeOutcome decodes an Outcome and refuses one that no VM can report: an
// unknown class or guard, a guard without class limit, a negative usage, a value
// where there can be none.
func DecodeOutcome(p []byte) (m Outcome, err error) {
	d := decoder{p: p}
	o := &m.Outcome
	o.Class = engine.Class(d.string(maxNameBytes))
	o.Guard = engine.Guard(d.string(maxNameBytes))
	o.Message = d.string(maxTextBytes)
	o.JSStack = d.string(maxTextBytes)
	o.DuringSeed, o.Killed = d.bool(), d.bool()
	for _, v := range usageFields(&o.Usage) {
		*v = d.natural()
	}
	for _, v := range usageTimes(&o.Usage) {
		*v = time.Duration(d.natural())
	}
	m.Value = d.text()
	if err := d.end(TypeOutcome); err != nil {
		return Outcome{}, err
	}
	switch o.Class {
	case engine.ClassOK, engine.ClassScriptError, engine.ClassResultNotSerializable, engine.ClassLimit,
		engine.ClassInputTooLarge, engine.ClassEngineFault, engine.ClassCanceled:
	default:
		return Outcome{}, malformed("an outcome has the unknown class %q", o.Class)
	}
	switch o.Guard {
	case engine.WallClock, engine.Fuel, engine.Memory, engine.Stack, engine.Output:
		if o.Class != engine.ClassLimit {
			return Outcome{}, malformed("an outcome of class %q has guard %q", o.Class, o.Guard)
		}
	case "":
		if o.Class == engine.ClassLimit {
			return Outcome{}, malformed("an outcome of class limit names no guard")
		}
	default:
		return Outcome{}, malformed("an outcome has the unknown guard %q", o.Guard)
	}
	if m.Value.Present && o.Class != engine.ClassOK {
		return Outcome{}, malformed("an outcome of class %q has a value", o.Class)
	}
	return m, nil
}

// DecodeBye decodes a Bye.
func DecodeBye(p []byte) (m Bye, err error) {
	d := decoder{p: p}
	m.Reason = d.string(maxReasonBytes)
	return m, d.end(TypeBye)
}

// Decode decodes the payload of a frame of any type. Fuzzing and tests use it;
// the two sides know which message they wait for.
func Decode(f Frame) (Message, error) {
	switch f.Type {
	case TypeHello:
		return DecodeHello(f.Payload)
	case TypeReady:
		return DecodeReady(f.Payload)
	case TypeRun:
		return DecodeRun(f.Payload)
	case TypeStarted:
		return DecodeStarted(f.Payload)
	case TypeFinished:
		return DecodeFinished(f.Payload)
	case TypeOutcome:
		return DecodeOutcome(f.Payload)
	case TypeBye:
		return DecodeBye(f.Payload)
	}
	return nil, malformed("type %#x is unknown", uint8(f.Type))
}

func appendU32(b []byte, v uint32) []byte { return binary.LittleEndian.AppendUint32(b, v) }
func appendI64(b []byte, v int64) []byte  { return binary.LittleEndian.AppendUint64(b, uint64(v)) }

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

// appendString appends s with its length, cut to most bytes.
func appendString(b []byte, s string, most int64) []byte {
	s = cut(s, most)
	return append(appendU32(b, uint32(len(s))), s...)
}

// cut returns the longest prefix of s of at most that many bytes that does not
// end within a character.
func cut(s string, most int64) string {
	if int64(len(s)) <= most {
		return s
	}
	n := int(most)
	for back := 0; n > 0 && back < utf8.UTFMax && !utf8.RuneStart(s[n]); back++ {
		n--
	}
	return s[:n]
}

func appendText(b []byte, t Text) []byte {
	b = appendBool(b, t.Present)
	if !t.Present {
		return b
	}
	b = appendBool(b, t.Shared)
	if t.Shared {
		return appendU32(appendU32(b, t.Size), t.Sum)
	}
	return append(appendU32(b, uint32(len(t.Inline))), t.Inline...)
}

// decoder takes a payload apart. The first fault sticks, and everything after it is zero.
type decoder struct {
	p     []byte
	fault string
}

func (d *decoder) take(n int64, what string) []byte {
	if d.fault != "" {
		return nil
	}
	if n > int64(len(d.p)) {
		d.fault = what + " runs past the end"
		return nil
	}
	taken := d.p[:n:n]
	d.p = d.p[n:]
	return taken
}

func (d *decoder) u32() uint32 {
	if b := d.take(4, "a number"); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (d *decoder) i64() int64 {
	if b := d.take(8, "a number"); b != nil {
		return int64(binary.LittleEndian.Uint64(b))
	}
	return 0
}

func (d *decoder) natural() int64 {
	v := d.i64()
	if v < 0 && d.fault == "" {
		d.fault = "a usage is negative"
	}
	return max(v, 0)
}

func (d *decoder) bool() bool {
	b := d.take(1, "a flag")
	if b != nil && b[0] > 1 {
		d.fault = "a flag is neither 0 nor 1"
	}
	return b != nil && b[0] == 1
}

func (d *decoder) string(most int64) string {
	n := int64(d.u32())
	if n > most && d.fault == "" {
		d.fault = "a string is longer than allowed"
	}
	return string(d.take(n, "a string"))
}

func (d *decoder) text() (t Text) {
	if t.Present = d.bool(); !t.Present {
		return t
	}
	if t.Shared = d.bool(); t.Shared {
		t.Size, t.Sum = d.u32(), d.u32()
		return t
	}
	t.Inline = d.take(int64(d.u32()), "a text")
	return t
}

// end is the error of the whole message.
func (d *decoder) end(t Type) error {
	if d.fault == "" && len(d.p) > 0 {
		d.fault = "bytes are left over"
	}
	if d.fault != "" {
		return malformed("a %v: %s", t, d.fault)
	}
	return nil
}
