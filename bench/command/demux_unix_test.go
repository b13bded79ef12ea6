//go:build unix

package command

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// runDemux runs the command as its flags would, and returns its line of JSON.
func runDemux(t *testing.T, ctx context.Context, c demuxCmd) (demuxReport, int) {
	t.Helper()
	c.JSON = true
	var out bytes.Buffer
	r := &result{}
	if err := c.Run(&env{ctx: ctx, stdin: strings.NewReader("ignored"), stdout: &out}, r); err != nil {
		t.Fatal(err)
	}
	var report demuxReport
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		t.Fatal(err)
	}
	return report, r.code
}

// TestDemuxOrphan: a process that is left behind and holds stdout is a finding,
// not an end.
func TestDemuxOrphan(t *testing.T) {
	dir := t.TempDir()
	pids, held := filepath.Join(dir, "pids"), filepath.Join(dir, "held")
	report, code := runDemux(t, t.Context(), demuxCmd{
		Policy: "spill", Read: "both", Stdout: held, Stderr: pids, waitDelay: 20 * time.Millisecond,
		Command: []string{"sh", "-c", `sleep 1000 2>/dev/null & echo $! >&2; echo out`},
	})
	text, err := os.ReadFile(pids)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(pid, syscall.SIGKILL)
	if code != exitBroken || report.ExitCode != 0 || report.Stdout.ReadBytes != 4 || !strings.Contains(report.Stdout.End, "stdout is still open 20ms after the command ended") || report.Stderr.End != "eof" {
		t.Errorf("code %d, %+v", code, report)
	}
	if _, err := os.Stat(held); err == nil || report.Stdout.File != "" {
		t.Error("a stream that is not whole has a file")
	}
}

// TestDemuxStall: under backpressure a reader that waits for a stream nobody reads
// gets an error that says so, and the command ends.
func TestDemuxStall(t *testing.T) {
	report, code := runDemux(t, t.Context(), demuxCmd{
		Policy: "backpressure", Read: "stdout-then-stderr", stallAfter: 20 * time.Millisecond,
		Command: []string{"sh", "-c", `head -c 1048576 /dev/zero >&2; echo done`},
	})
	if code != exitBroken || report.ExitCode != 0 || !strings.Contains(report.Stdout.End, "read or close it") || report.Stderr.End != "eof" || report.Stderr.ReadBytes != 1<<20 {
		t.Errorf("code %d, %+v", code, report)
	}
}

// TestDemuxInterrupt: an interrupt reaches what the shell waits for, and what was
// written until then is kept.
func TestDemuxInterrupt(t *testing.T) {
	dir := t.TempDir()
	out, fifo := filepath.Join(dir, "out"), filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer cancel()
		// Opens when what the shell waits for has opened it: a signal that comes while a shell
		// starts a child may be lost.
		if f, err := os.OpenFile(fifo, os.O_WRONLY, 0); err == nil {
			cancel()
			<-ended
			f.Close()
		}
	}()
	defer close(ended)
	report, code := runDemux(t, ctx, demuxCmd{
		Policy: "spill", Read: "both", Stdout: out, waitDelay: time.Hour,
		Command: []string{"sh", "-c", `echo partial; cat "$0"; echo more`, fifo},
	})
	text, err := os.ReadFile(out)
	if code != exitFailed || err != nil || string(text) != "partial\n" || report.ExitCode == 0 || report.Stdout.End != "eof" {
		t.Errorf("code %d, %q, %v, %+v", code, text, err, report)
	}
}
