package quickjs

// pageSize is the size of a wasm page.
const pageSize = 64 << 10

// keepResident is how much grown memory a restore clears and keeps; what lies
// above goes back to the system. Page faults cost about 0.5 ms per MiB on a VM,
// clearing resident pages a tenth of that.
const keepResident = 4 << 20

// linearMemory backs one instance. It implements experimental.LinearMemory: the
// address never changes, growth never copies, and growth past the ceiling is
// refused and counted.
type linearMemory struct {
	region  region
	size    int64 // what the instance sees
	ceiling int64 // growth beyond it is refused
	peak    int64
	refused int
	// shrinkTo, while set, is the size that the next Reallocate gives whatever it
	// is asked for. wazero has no call that shrinks a memory, but takes the slice
	// that the allocator returns; TestShrink pins that.
	shrinkTo int64
}

// Reallocate implements experimental.LinearMemory.
func (m *linearMemory) Reallocate(size uint64) []byte {
	n := int64(size)
	if m.shrinkTo > 0 {
		n = m.shrinkTo
	} else if n > m.ceiling || m.region.commit(n) != nil {
		m.refused++
		return nil
	}
	m.size = n
	m.peak = max(m.peak, n)
	return m.region.slice(n)
}

// Free implements experimental.LinearMemory.
func (m *linearMemory) Free() { m.region.release() }

// bytes is the memory as the instance sees it.
func (m *linearMemory) bytes() []byte { return m.region.slice(m.size) }

// discard makes everything in [from, to) zero again.
func (m *linearMemory) discard(from, to int64) {
	if to <= from {
		return
	}
	keep := min(to, from+keepResident)
	clear(m.region.slice(to)[from:keep])
	if keep < to {
		m.region.zero(keep, to)
	}
}
