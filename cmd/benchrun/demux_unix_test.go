//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// TestStressDemux: a command that writes a gibibyte to stderr before it says done
// on stdout, of which only stdout is read. Stdout reaches its end, stderr is whole
// afterwards, and the process stays below 64 MiB. Without STRESS=1 it is 32 MiB,
// through this test's own binary.
func TestStressDemux(t *testing.T) {
	size, bin := 32<<20, "benchrun"
	if os.Getenv("STRESS") != "" {
		size, bin = 1<<30, filepath.Join(t.TempDir(), "benchrun")
		if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	cmd := exec.Command(bin, "demux", "--json", "--read", "stdout-then-stderr", "--",
		"sh", "-c", fmt.Sprintf("head -c %d /dev/zero >&2; echo done", size))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	type stream struct {
		Read   int64  `json:"read_bytes"`
		Memory int64  `json:"peak_memory_bytes"`
		Disk   int64  `json:"peak_disk_bytes"`
		Waits  int64  `json:"waits"`
		WaitNs int64  `json:"wait_ns"`
		End    string `json:"end"`
	}
	var got struct {
		ExitCode       int `json:"exit_code"`
		Stdout, Stderr stream
		TookNs         int64 `json:"took_ns"`
		RSS            int64 `json:"peak_rss_bytes"`
	}
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", got)
	const mem = 256 << 10
	if got.ExitCode != 0 || got.Stdout.Read != int64(len("done\n")) || got.Stdout.End != "eof" || got.Stderr.Read != int64(size) || got.Stderr.End != "eof" {
		t.Errorf("not whole: %s", out)
	}
	// What memory and the kernel's pipe do not hold waited on the disk: that was the
	// case to be tested.
	if got.Stderr.Memory > mem || got.Stderr.Disk < int64(size)-2*mem {
		t.Errorf("stderr peaked at %d bytes in memory and %d on disk", got.Stderr.Memory, got.Stderr.Disk)
	}
	// By its own account: the system's figure for a child counts what its parent held when it started it.
	if got.RSS >= 64<<20 || got.RSS == 0 && runtime.GOOS == "linux" {
		t.Errorf("resident memory peaked at %d bytes, want less than 64 MiB", got.RSS)
	}
}
