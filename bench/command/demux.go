package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/demux"
	"github.com/sandbed/sandbed/reports"
)

type demuxCmd struct {
	Policy   string   `default:"spill" placeholder:"NAME" help:"What becomes of a full stream while the reader of the other starves: spill (default), backpressure, unbounded or cap-error; the latter two exist to be compared with."`
	Mem      *string  `placeholder:"SIZE" help:"Memory of each stream: 4KiB to 1GiB (default 256KiB)."`
	Patience *string  `placeholder:"TIME" help:"How long a starving reader waits before the other stream goes to disk: 0s to 1h (default 20ms)."`
	SpillDir string   `placeholder:"DIR" help:"Where spill files live (default $DEMUX_SPILL_DIR, else /var/tmp)."`
	Stdout   string   `placeholder:"FILE" help:"Where stdout of the command is written; without it the bytes are counted only."`
	Stderr   string   `placeholder:"FILE" help:"The same for stderr."`
	Read     string   `default:"both" placeholder:"WHICH" help:"What is read: both (default) at once, stdout, stderr, or stdout-then-stderr. What is not read is closed when the rest has ended."`
	JSON     bool     `help:"Print the accounting as one line of JSON."`
	Command  []string `arg:"" passthrough:"" placeholder:"CMD" help:"The command and its arguments."`

	stallAfter, waitDelay time.Duration // of a test; 0 means the default
}

// demuxWaitDelay is how long the command has after an interrupt, and what it left
// behind after its end, before that is killed or reported.
const demuxWaitDelay = 5 * time.Second

// Help is shown below the description.
func (demuxCmd) Help() string {
	return `Runs a command, splits its output into two streams with bounded memory, and prints what that took: bytes, peaks in memory and on disk, waits, spills. A file appears when its stream has ended in order. An interrupt ends the command, and what it wrote until then is kept.

The command's exit code is in the accounting. Exit code here: 0 if all that was to be read was read to its end, 1 if not, 2 for a command that cannot be started, 4 after an interrupt.

Examples:

    benchrun demux --stdout build.log --stderr build.err -- make -j8
    benchrun demux --read stdout-then-stderr --json -- sh -c 'seq 1e7 >&2; echo done'`
}

// demuxReport is the line of --json.
type demuxReport struct {
	Command  []string    `json:"command"`
	ExitCode int         `json:"exit_code"` // -1 if a signal ended it
	Exit     string      `json:"exit"`      // in words
	TookNs   int64       `json:"took_ns"`
	Policy   string      `json:"policy"`
	MemBytes int         `json:"mem_bytes"`
	Read     string      `json:"read"`
	Stdout   demuxStream `json:"stdout"`
	Stderr   demuxStream `json:"stderr"`
	Paused   uint64      `json:"paused"`
	PausedNs int64       `json:"paused_ns"`
	Degraded uint64      `json:"disk_full"`
	RSSBytes int64       `json:"peak_rss_bytes,omitempty"` // of this process
}

// demuxStream is the accounting of one stream.
type demuxStream struct {
	Bytes       uint64 `json:"bytes"`
	ReadBytes   uint64 `json:"read_bytes"`
	Discarded   uint64 `json:"discarded_bytes"`
	PeakMemory  uint64 `json:"peak_memory_bytes"`
	PeakDisk    uint64 `json:"peak_disk_bytes"`
	Spilled     uint64 `json:"spilled_bytes"`
	SpillWrites uint64 `json:"spill_writes"`
	SpillReads  uint64 `json:"spill_reads"`
	Waits       uint64 `json:"waits"`
	WaitNs      int64  `json:"wait_ns"`
	LongestNs   int64  `json:"longest_wait_ns"`
	Gaps        uint64 `json:"gaps"`
	End         string `json:"end"` // "eof", "closed", or an error
	File        string `json:"file,omitempty"`
}

func (c *demuxCmd) Run(e *env, r *result) error {
	opts, err := c.options()
	if err != nil {
		return err
	}
	streams := map[demux.Stream]*demuxOutput{
		demux.Stdout: {flag: "--stdout", name: c.Stdout}, demux.Stderr: {flag: "--stderr", name: c.Stderr},
	}
	for _, s := range streams {
		if err := s.create(); err != nil {
			return err
		}
		defer s.discard()
	}
	cmd := exec.CommandContext(e.ctx, c.Command[0], c.Command[1:]...)
	cmd.Cancel = func() error { return interrupt(cmd) }
	cmd.WaitDelay = cmp.Or(c.waitDelay, demuxWaitDelay)
	// It leads a group of its own, which must not read the terminal.
	if f, ok := e.stdin.(*os.File); !ok || !terminal(f) {
		cmd.Stdin = e.stdin
	}
	begun := time.Now()
	src, err := demux.FromCmd(cmd)
	if err != nil {
		var pe *os.PathError
		var ee *exec.Error
		switch {
		case errors.As(err, &pe):
			err = pe.Err
		case errors.As(err, &ee):
			err = ee.Err
		}
		return &usage{"CMD", c.Command[0], fmt.Sprintf("cannot be started (%v): give a program", err)}
	}
	d, err := demux.New(src, opts)
	if err != nil {
		return errors.Join(err, src.Close())
	}
	defer d.Close()
	c.read(d, streams)
	d.Wait(context.Background()) // how it ended is in cmd and in the streams
	took := time.Since(begun)

	report := c.report(d.Stats(), opts, streams)
	report.TookNs = took.Nanoseconds()
	report.ExitCode, report.Exit = cmd.ProcessState.ExitCode(), cmd.ProcessState.String()
	for _, s := range streams {
		if s.err != nil && s.reads {
			r.code = exitBroken
		}
	}
	if e.ctx.Err() != nil {
		r.code = exitFailed
	}
	for of, s := range streams {
		if err := s.keep(); err != nil {
			return err
		}
		report.stream(of).File = s.kept
	}
	if c.JSON {
		enc := json.NewEncoder(e.stdout)
		enc.SetEscapeHTML(false)
		return enc.Encode(report)
	}
	_, err = io.WriteString(e.stdout, report.table())
	return err
}

// options checks every flag before anything runs.
func (c *demuxCmd) options() (demux.Options, error) {
	fail := func(flag, value, allowed string) (demux.Options, error) {
		return demux.Options{}, &usage{flag, value, allowed}
	}
	o := demux.DefaultOptions()
	o.KeepDraining = true // the command's end is part of the answer
	o.StallError = true   // a policy that waits must not wait for ever
	o.StallAfter = cmp.Or(c.stallAfter, o.StallAfter)
	if len(c.Command) > 0 && c.Command[0] == "--" {
		c.Command = c.Command[1:]
	}
	if len(c.Command) == 0 {
		return fail("CMD", "", "give a command behind --, such as -- make test")
	}
	var err error
	if o.Policy, err = demux.ParsePolicy(c.Policy); err != nil {
		return fail("--policy", c.Policy, "give spill, backpressure, unbounded or cap-error")
	}
	if c.Mem != nil {
		n, err := parseSize("--mem", c.Mem, 4<<10, 1<<30)
		if err != nil {
			return o, err
		}
		o.MemPerSink = int(n)
	}
	if c.Patience != nil {
		if o.Policy != demux.Spill {
			return fail("--patience", *c.Patience, "needs --policy spill: no other policy has any")
		}
		if o.Patience, err = parseDuration("--patience", c.Patience, 0, time.Hour); err != nil {
			return o, err
		}
	}
	if c.SpillDir != "" && o.Policy != demux.Spill {
		return fail("--spill-dir", c.SpillDir, "needs --policy spill: no other policy writes to disk")
	}
	o.SpillDir = c.SpillDir
	if err := oneOf("--read", c.Read, "both", "stdout", "stderr", "stdout-then-stderr"); err != nil {
		return o, err
	}
	if c.Read == "stdout" && c.Stderr != "" {
		return fail("--stderr", c.Stderr, "needs --read both or stdout-then-stderr: stderr is not read")
	}
	if c.Read == "stderr" && c.Stdout != "" {
		return fail("--stdout", c.Stdout, "needs --read both or stdout-then-stderr: stdout is not read")
	}
	if c.Stdout != "" && filepath.Clean(c.Stdout) == filepath.Clean(c.Stderr) {
		return fail("--stderr", c.Stderr, "give another file than --stdout")
	}
	// New checks the directory, which must not wait until the command runs.
	d, err := demux.New(demux.FromReaders(nil, nil), o)
	var bad *demux.UsageError
	if errors.As(err, &bad) {
		const remedy = "give a directory on a disk that can be written, or --policy backpressure"
		flag := "--spill-dir"
		if bad.Field != "Options.SpillDir" {
			flag = bad.Field // $DEMUX_SPILL_DIR, if that is where it comes from
		}
		return fail(flag, fmt.Sprint(bad.Value), fmt.Sprintf("cannot be used (%v): %s", bad.Reason, remedy))
	} else if err != nil {
		return o, err
	}
	return o, d.Close()
}

// read reads what c.Read says, and closes what it does not when that has ended.
func (c *demuxCmd) read(d *demux.Demux, streams map[demux.Stream]*demuxOutput) {
	read := func(s demux.Stream) {
		sink, out := d.Sink(s), streams[s]
		out.reads = true
		out.err = out.copy(sink)
		sink.Close() // one that failed must not hold up the other
	}
	switch c.Read {
	case "both":
		var wg sync.WaitGroup
		wg.Go(func() { read(demux.Stdout) })
		wg.Go(func() { read(demux.Stderr) })
		wg.Wait()
	case "stdout-then-stderr":
		read(demux.Stdout)
		read(demux.Stderr)
	case "stdout":
		read(demux.Stdout)
	case "stderr":
		read(demux.Stderr)
	}
	d.Stdout().Close()
	d.Stderr().Close()
}

func (c *demuxCmd) report(st demux.Stats, o demux.Options, streams map[demux.Stream]*demuxOutput) demuxReport {
	out := demuxReport{
		Command: c.Command, Policy: o.Policy.String(), MemBytes: o.MemPerSink, Read: c.Read,
		Paused: st.Paused, PausedNs: st.PausedTotal.Nanoseconds(), Degraded: st.Degraded,
		RSSBytes: peakRSS(),
	}
	for of, s := range streams {
		k := st.Sink(of)
		end := "eof"
		switch {
		case !s.reads && (k.Err == nil || k.Err == io.EOF || errors.Is(k.Err, demux.ErrClosed)):
			end = "closed"
		case !s.reads:
			end = k.Err.Error()
		case s.err != nil:
			end = s.err.Error()
		}
		*out.stream(of) = demuxStream{
			Bytes: k.Enqueued, ReadBytes: k.Read, Discarded: k.Discarded,
			PeakMemory: k.PeakMem, PeakDisk: k.PeakDisk,
			Spilled: k.Spilled, SpillWrites: k.SpillWrites, SpillReads: k.SpillReads,
			Waits: k.Starved, WaitNs: k.StarvedTotal.Nanoseconds(), LongestNs: k.StarvedMax.Nanoseconds(),
			Gaps: k.Gaps, End: end,
		}
	}
	return out
}

func (r *demuxReport) stream(s demux.Stream) *demuxStream {
	if s == demux.Stderr {
		return &r.Stderr
	}
	return &r.Stdout
}

// table is the report for people.
func (r *demuxReport) table() string {
	var b strings.Builder
	bytes := func(n uint64) string { return reports.Value(float64(n), sample.Bytes) }
	span := func(ns int64) string { return reports.Value(float64(ns)/1e9, sample.Seconds) }
	fmt.Fprintf(&b, "%s after %s; policy %s, %s a stream\n\n", r.Exit, span(r.TookNs), r.Policy, bytes(uint64(r.MemBytes)))
	row := func(what string, of func(s *demuxStream) string) {
		fmt.Fprintf(&b, "%-24s %20s %20s\n", what, of(&r.Stdout), of(&r.Stderr))
	}
	row("", func(s *demuxStream) string {
		if s == &r.Stdout {
			return "stdout"
		}
		return "stderr"
	})
	row("bytes", func(s *demuxStream) string { return fmt.Sprint(s.Bytes) })
	row("  read", func(s *demuxStream) string { return fmt.Sprint(s.ReadBytes) })
	row("  discarded", func(s *demuxStream) string { return fmt.Sprint(s.Discarded) })
	row("peak in memory", func(s *demuxStream) string { return bytes(s.PeakMemory) })
	row("peak on disk", func(s *demuxStream) string { return bytes(s.PeakDisk) })
	row("spilled in all", func(s *demuxStream) string { return bytes(s.Spilled) })
	row("waits of its reader", func(s *demuxStream) string { return fmt.Sprint(s.Waits) })
	row("  in all", func(s *demuxStream) string { return span(s.WaitNs) })
	row("  longest", func(s *demuxStream) string { return span(s.LongestNs) })
	row("gaps", func(s *demuxStream) string { return fmt.Sprint(s.Gaps) })
	fmt.Fprintf(&b, "\nThe command was held up %d times, %s in all.\n", r.Paused, span(r.PausedNs))
	if r.Degraded > 0 {
		fmt.Fprintf(&b, "The disk was full %d times.\n", r.Degraded)
	}
	if r.RSSBytes > 0 {
		fmt.Fprintf(&b, "Resident memory of this process: at most %s.\n", bytes(uint64(r.RSSBytes)))
	}
	for _, s := range []struct {
		name string
		*demuxStream
	}{{"stdout", &r.Stdout}, {"stderr", &r.Stderr}} {
		switch {
		case s.End != "eof" && s.End != "closed":
			fmt.Fprintf(&b, "%s did not end in order: %s\n", s.name, oneLine(s.End))
		case s.File != "":
			fmt.Fprintf(&b, "%s: %s\n", s.name, s.File)
		}
	}
	return b.String()
}

// demuxOutput is where a stream goes: a file beside the one that is named, until
// it is whole.
type demuxOutput struct {
	flag, name string
	temp       *os.File // nil without a name
	reads      bool
	err        error  // how it ended, nil for in order
	badWrite   error  // of the file
	kept       string // the name, once it is there
}

func (o *demuxOutput) create() error {
	if o.name == "" {
		return nil
	}
	if info, err := os.Stat(o.name); err == nil && !info.Mode().IsRegular() {
		return &usage{o.flag, o.name, "is not a regular file: give a file"}
	}
	var err error
	if o.temp, err = os.CreateTemp(filepath.Dir(o.name), ".tmp-*"); err == nil {
		err = o.temp.Chmod(0o644)
	}
	return o.unwritable(err)
}

func (o *demuxOutput) unwritable(err error) error {
	if err == nil {
		return nil
	}
	var pe *os.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	return &usage{o.flag, o.name, fmt.Sprintf("cannot be written (%v): give a file that can", err)}
}

// copy writes the stream until it ends: nil if that was in order.
func (o *demuxOutput) copy(s *demux.Sink) error {
	_, err := s.WriteTo(o)
	return err
}

func (o *demuxOutput) Write(p []byte) (int, error) {
	if o.temp == nil {
		return len(p), nil
	}
	n, err := o.temp.Write(p)
	if err != nil {
		o.badWrite = err
	}
	return n, err
}

// keep gives a whole file its name.
func (o *demuxOutput) keep() error {
	if o.badWrite != nil {
		return o.unwritable(o.badWrite)
	}
	if o.temp == nil || o.err != nil {
		return nil
	}
	err := o.temp.Close()
	if err == nil {
		err = os.Rename(o.temp.Name(), o.name)
	}
	if err != nil {
		return o.unwritable(err)
	}
	o.temp, o.kept = nil, o.name
	return nil
}

// discard removes a file that did not become whole.
func (o *demuxOutput) discard() {
	if o.temp != nil {
		o.temp.Close()
		os.Remove(o.temp.Name())
	}
}
