package harden

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

const testPID = 4711

// verdict is what the kernel would make of a system call: the strictest answer
// of all filters, run by an interpreter that shares no code with the library
// that made them.
func verdict(t *testing.T, vms []*bpf.VM, audit uint32, nr uint32, args ...uint64) uint32 {
	t.Helper()
	// struct seccomp_data, its words big-endian since that is how bpf.VM loads them.
	data := binary.BigEndian.AppendUint32(nil, nr)
	data = binary.BigEndian.AppendUint32(data, audit)
	data = binary.BigEndian.AppendUint64(data, 0)
	for i := range 6 {
		var v uint64
		if i < len(args) {
			v = args[i]
		}
		data = binary.BigEndian.AppendUint32(data, uint32(v)) // the low half first, on a little-endian machine
		data = binary.BigEndian.AppendUint32(data, uint32(v>>32))
	}
	strictest := uint32(unix.SECCOMP_RET_ALLOW)
	for i := len(vms) - 1; i >= 0; i-- { // the kernel asks the newest first
		v, err := vms[i].Run(data)
		if err != nil {
			t.Fatal(err)
		}
		if got := uint32(v); got&unix.SECCOMP_RET_ACTION_FULL < strictest&unix.SECCOMP_RET_ACTION_FULL {
			strictest = got
		}
	}
	return strictest
}

func assemble(t *testing.T) (*arch.Info, []*bpf.VM) {
	t.Helper()
	info, err := arch.GetInfo("")
	if err != nil {
		t.Fatal(err)
	}
	var vms []*bpf.VM
	for _, f := range filters(testPID) {
		program, err := f.policy.Assemble()
		if err != nil {
			t.Fatal(err)
		}
		vm, err := bpf.NewVM(program)
		if err != nil {
			t.Fatal(err)
		}
		vms = append(vms, vm)
	}
	return info, vms
}

const (
	allow  = unix.SECCOMP_RET_ALLOW
	eperm  = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	enosys = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
)

// Every system call of the machine, allowed or not by its name, and none by its
// number alone: numbers without a name and other calling conventions are refused.
func TestFilterByName(t *testing.T) {
	info, vms := assemble(t)
	conditional := []string{"clone", "mmap", "mprotect", "tgkill"}
	for nr := range uint32(1024) {
		name := info.SyscallNumbers[int(nr)]
		want := uint32(eperm)
		switch {
		case slices.Contains(conditional, name):
			continue
		case name == "clone3":
			want = enosys
		case name != "" && slices.Contains(allowed, name):
			want = allow
		}
		// Arguments must not sway it, above all none that looks like another call's number.
		for _, arg := range []uint64{0, 1, uint64(nr), 1 << 32, ^uint64(0)} {
			if got := verdict(t, vms, uint32(info.ID), nr, arg, arg, arg, arg, arg, arg); got != want {
				t.Errorf("%d %q with arguments %#x: got %#x, want %#x", nr, name, arg, got, want)
			}
		}
		if got := verdict(t, vms, uint32(info.ID)^1, nr); got != eperm {
			t.Errorf("%d of another architecture: got %#x, want EPERM", nr, got)
		}
		if got := verdict(t, vms, uint32(info.ID), nr|0x40000000); got == allow {
			t.Errorf("%d with the x32 bit is allowed", nr)
		}
	}
}

func TestFilterByArgument(t *testing.T) {
	info, vms := assemble(t)
	const threadOfGo = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_SYSVSEM | unix.CLONE_THREAD
	type call struct {
		name string
		args []uint64
		want uint32
	}
	calls := []call{
		{"clone", []uint64{threadOfGo}, allow},
		{"clone", []uint64{threadOfGo | unix.CLONE_SETTLS | unix.CLONE_PARENT_SETTID | unix.CLONE_CHILD_CLEARTID}, allow},
		{"clone", []uint64{uint64(unix.SIGCHLD)}, eperm}, // fork
		{"clone", []uint64{unix.CLONE_VM | unix.CLONE_VFORK | uint64(unix.SIGCHLD)}, eperm},
		{"clone", []uint64{threadOfGo &^ unix.CLONE_THREAD}, eperm},
		{"mmap", []uint64{0, 4096, unix.PROT_READ | unix.PROT_WRITE}, allow},
		{"mmap", []uint64{0, 4096, unix.PROT_NONE}, allow},
		{"tgkill", []uint64{testPID, 1, uint64(unix.SIGURG)}, allow},
	}
	for bit := range 64 {
		v := uint64(1) << bit
		calls = append(calls, call{"tgkill", []uint64{testPID ^ v, 1, 9}, eperm})
		for _, name := range []string{"mmap", "mprotect"} {
			want := uint32(allow)
			if v == unix.PROT_EXEC {
				want = eperm
			}
			calls = append(calls, call{name, []uint64{0, 4096, v}, want},
				call{name, []uint64{0, 4096, v | unix.PROT_EXEC}, eperm})
		}
		want := uint32(allow)
		if v&newNamespaces != 0 || v == unix.CLONE_THREAD {
			want = eperm
		}
		calls = append(calls, call{"clone", []uint64{unix.CLONE_THREAD ^ v}, want})
	}
	// What the library would let through if conditions shared a filter: an
	// argument that is the number of an allowed call.
	for _, name := range allowed {
		if nr, ok := info.SyscallNames[name]; ok && nr&unix.CLONE_THREAD == 0 {
			calls = append(calls, call{"clone", []uint64{uint64(nr)}, eperm}, call{"tgkill", []uint64{uint64(nr)}, eperm})
		}
	}
	for _, c := range calls {
		if got := verdict(t, vms, uint32(info.ID), uint32(info.SyscallNames[c.name]), c.args...); got != c.want {
			t.Errorf("%s: got %#x, want %#x", fmt.Sprintf("%s(%#x)", c.name, c.args), got, c.want)
		}
	}
}
