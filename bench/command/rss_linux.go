package command

import (
	"bytes"
	"os"
	"strconv"
)

// peakRSS is the most memory that this process has had resident, in bytes; 0 if the
// system does not say. Not by getrusage: what that counts was inherited from
// whoever started the process.
func peakRSS() int64 {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(text, []byte("\nVmHWM:"))
	line, _, _ := bytes.Cut(rest, []byte(" kB\n"))
	kib, err := strconv.ParseInt(string(bytes.TrimSpace(line)), 10, 64)
	if err != nil {
		return 0
	}
	return kib << 10
}
