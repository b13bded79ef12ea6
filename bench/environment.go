package bench

import (
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/sandbed/sandbed/bench/sample"
)

// Environment describes where this process runs.
func Environment(engine string) sample.Environment {
	e := sample.Environment{
		Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
		CPU: "unknown", Cores: runtime.NumCPU(), GOMAXPROCS: runtime.GOMAXPROCS(0),
		Commit: "unknown", Engine: engine,
		GOGC: os.Getenv("GOGC"), GOMEMLIMIT: os.Getenv("GOMEMLIMIT"), GODEBUG: os.Getenv("GODEBUG"),
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		var flags []string
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				e.Commit = s.Value
			case "vcs.modified":
				e.Modified = s.Value == "true"
			case "GOAMD64":
				e.GOAMD64 = s.Value
			case "-ldflags", "-gcflags", "-tags", "-trimpath", "-race":
				flags = append(flags, s.Key+"="+s.Value)
			}
		}
		e.BuildFlags = strings.Join(flags, " ")
	}
	e.CPU, e.Virtual = processor(e.CPU)
	e.Kernel = firstLine("/proc/sys/kernel/osrelease")
	e.ClockSource = firstLine("/sys/devices/system/clocksource/clocksource0/current_clocksource")
	e.Quota = firstLine("/sys/fs/cgroup/cpu.max")
	e.Caches = caches("/sys/devices/system/cpu/cpu0/cache")
	if load := strings.Fields(firstLine("/proc/loadavg")); len(load) >= 3 {
		e.Load = strings.Join(load[:3], " ")
	}
	if total := strings.Fields(firstLine("/proc/meminfo")); len(total) == 3 && total[0] == "MemTotal:" {
		if kib, err := strconv.ParseInt(total[1], 10, 64); err == nil {
			e.MemoryBytes = kib << 10
		}
	}
	return e
}

// processor is the model that Linux gives the first processor, unknown if it
// does not, and whether a hypervisor is above it.
func processor(unknown string) (model string, virtual bool) {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return unknown, false
	}
	first, _, _ := strings.Cut(string(text), "\n\n")
	model = unknown
	for line := range strings.Lines(first) {
		key, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(key) {
		case "model name":
			model = strings.TrimSpace(value)
		case "flags":
			virtual = slices.Contains(strings.Fields(value), "hypervisor")
		}
	}
	return model, virtual
}

// caches lists the caches of a processor: "L1d 32K, L1i 32K, L2 512K, L3 32M".
func caches(dir string) string {
	entries, _ := filepath.Glob(filepath.Join(dir, "index*")) // the pattern is well formed
	var out []string
	for _, e := range entries {
		level, size := firstLine(filepath.Join(e, "level")), firstLine(filepath.Join(e, "size"))
		if level == "" || size == "" {
			continue
		}
		kind := map[string]string{"Data": "d", "Instruction": "i"}[firstLine(filepath.Join(e, "type"))]
		out = append(out, "L"+level+kind+" "+size)
	}
	return strings.Join(out, ", ")
}

// firstLine is the first line of a small file of the system, "" if there is none.
func firstLine(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return strings.TrimSpace(line)
}
