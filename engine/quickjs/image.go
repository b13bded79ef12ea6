package quickjs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/sandbed/sandbed/engine/quickjs/meter"
)

// image is a VM that has booted, as bytes: what every evaluation starts from.
type image struct {
	memory []byte
	// stackLow and stackTop bound the C stack; all of it is zero in the image.
	stackLow, stackTop uint32
	sp                 uint32 // the stack pointer at rest
	rt, js             uint32 // JSRuntime and JSContext
	mallocSize         uint32 // what QuickJS's accounting held at boot
	global             uint64 // the global object
	// Addresses of constant strings.
	inputName, defaultName uint32
	stackAtom              uint64 // the property name "stack"
	scratch                uint32 // 32 bytes for arguments and results by pointer
}

// redZone is how far below the stack pointer a leaf function may write without
// moving it (LLVM's red zone on wasm is 128 bytes).
const redZone = 256

// headroom is the part of MemoryBytes that QuickJS's accounting keeps free, so
// that the error of a full memory can still be built.
const headroom = 64 << 10

// boot makes the first VM and copies it out as the image.
func (e *Engine) boot(ctx context.Context) (img *image, err error) {
	v := &VM{engine: e, booting: true}
	if err = v.instantiate(ctx); err != nil {
		return nil, err
	}
	defer v.discard()
	img = &image{}
	step := func(what string, f func() error) {
		if err == nil {
			if err = f(); err != nil {
				err = fmt.Errorf("quickjs: boot: %s: %w", what, err)
			}
		}
	}
	call := func(name string, args ...uint64) uint64 {
		var r uint64
		step(name, func() (err error) { r, err = v.callByName(name, args...); return err })
		return r
	}
	v.refuel(1 << 30)
	call("_initialize")
	stack := call("malloc", uint64(e.config.StackBytes)+16)
	step("stack", func() error {
		if stack == 0 {
			return errors.New("no room for the stack")
		}
		img.stackLow = uint32(stack+15) &^ 15
		img.stackTop = img.stackLow + uint32(e.config.StackBytes)
		v.sp.Set(uint64(img.stackTop))
		v.stackLimit.Set(uint64(img.stackLow + redZone))
		return nil
	})
	table := v.alloc(call, 20)
	step("allocator", func() error {
		v.storeAllocator(table)
		return nil
	})
	img.rt = uint32(call("JS_NewRuntime2", uint64(table), 0))
	step("runtime", func() error {
		if img.rt == 0 {
			return errors.New("JS_NewRuntime2 gave no runtime")
		}
		return nil
	})
	// Verify the offsets of the pinned build through the C API.
	const marker = 0x5a17c0de
	for _, f := range []struct {
		setter string
		offset uint32
	}{{"JS_SetMemoryLimit", rtMallocLimit}, {"JS_SetGCThreshold", rtGCThreshold}, {"JS_SetMaxStackSize", rtStackSize}} {
		call(f.setter, uint64(img.rt), marker)
		step("offsets", func() error {
			if got := v.load32(img.rt + f.offset); got != marker {
				return fmt.Errorf("%s did not write offset %d: this is another build of QuickJS-NG", f.setter, f.offset)
			}
			return nil
		})
	}
	call("JS_SetMemoryLimit", uint64(img.rt), 0)
	call("JS_SetMaxStackSize", uint64(img.rt), uint64(e.config.StackBytes))
	call("JS_UpdateStackTop", uint64(img.rt))
	step("stack top", func() error {
		if top := v.load32(img.rt + rtStackTop); top > img.stackTop || top < img.stackTop-redZone {
			return fmt.Errorf("stack_top is %#x, want just below %#x: this is another build of QuickJS-NG", top, img.stackTop)
		}
		v.store32(img.rt+rtStackLimit, img.stackLow+stackMargin(e.config.StackBytes))
		return nil
	})
	img.js = uint32(call("JS_NewContext", uint64(img.rt)))
	step("context", func() error {
		if img.js == 0 {
			return errors.New("JS_NewContext gave no context")
		}
		if rt := v.load32(img.js + ctxRuntime); rt != img.rt {
			return errors.New("the context does not name its runtime: this is another build of QuickJS-NG")
		}
		if n := v.load32(img.js + ctxInterrupt); n > interruptEvery {
			return fmt.Errorf("the interrupt counter is %d: this is another build of QuickJS-NG", n)
		}
		return nil
	})
	call("JS_SetCanBlock", uint64(img.rt), 0)
	call("JS_SetInterruptHandler", uint64(img.rt), uint64(e.slots[0]), 0)
	text := func(s string) uint32 {
		at := v.alloc(call, len(s)+1)
		step("strings", func() error { copy(v.mem.bytes()[at:], s+"\x00"); return nil })
		return at
	}
	img.inputName, img.defaultName = text("input"), text("default")
	img.stackAtom = call("JS_NewAtom", uint64(img.js), uint64(text("stack")))
	img.scratch = v.alloc(call, 32)
	img.global = call("JS_GetGlobalObject", uint64(img.js))
	call("JS_SetPropertyStr", uint64(img.js), img.global, uint64(img.inputName), valUndefined)
	if err != nil {
		return nil, err
	}
	if v.wasiCalls > 0 {
		return nil, fmt.Errorf("quickjs: boot: %d WASI calls that boot should not make", v.wasiCalls)
	}
	img.sp = uint32(v.sp.Get())
	img.mallocSize = v.load32(img.rt + rtMallocSize)
	img.memory = bytes.Clone(v.mem.bytes())
	clear(img.memory[img.stackLow:img.stackTop])
	return img, nil
}

// alloc is malloc during boot.
func (v *VM) alloc(call func(string, ...uint64) uint64, n int) uint32 {
	at := uint32(call("malloc", uint64(n)))
	if at == 0 {
		call("malloc: out of memory") // no such function: fails the boot with this text
	}
	return at
}

// storeAllocator writes a JSMallocFunctions: the module's own functions, with
// the usable-size function that the build lacks.
func (v *VM) storeAllocator(at uint32) {
	for i, slot := range []uint32{slotCalloc, slotMalloc, slotFree, slotRealloc, v.engine.slots[1]} {
		v.store32(at+uint32(4*i), slot)
	}
}

// stackMargin is the part of a stack that QuickJS's own check leaves free for
// what runs between its checks: regexps, the parser, the backtrace builder.
func stackMargin(stack int64) uint32 { return uint32(stack / 4) }

// instantiate gives v an instance of the module with a memory of its own.
func (v *VM) instantiate(ctx context.Context) error {
	r, err := newRegion()
	if err != nil {
		return err
	}
	v.mem = &linearMemory{region: r, ceiling: reserveCeiling}
	v.ctx = &callContext{context.Background(), v}
	e := v.engine
	v.module, err = e.runtime.InstantiateModule(withMemory(ctx, v.mem), e.compiled,
		wazero.NewModuleConfig().WithName("").WithStartFunctions())
	if err != nil {
		v.mem.Free()
		v.module = nil
		return fmt.Errorf("quickjs: instantiating the module: %w", err)
	}
	global := func(name string) api.MutableGlobal {
		g, ok := v.module.ExportedGlobal(name).(api.MutableGlobal)
		if !ok && err == nil {
			err = fmt.Errorf("quickjs: the module exports no mutable global %s", name)
		}
		return g
	}
	v.fuel, v.sp = global(meter.FuelExport), global(meter.StackPointerExport)
	v.stackLimit, v.stackLow = global(meter.StackLimitExport), global(meter.StackLowExport)
	v.pending = global(meter.PendingExport)
	for i := range v.captured {
		v.captured[i], v.capturedKind[i] = global(fmt.Sprint(meter.CapturedExport, i)), global(fmt.Sprint(meter.CapturedKindExport, i))
	}
	if err == nil {
		err = v.fetch()
	}
	if err != nil {
		v.discard()
	}
	return err
}

// reserveCeiling is as much as wasm32 can address.
const reserveCeiling = 4 << 30

// restore makes the VM's memory the image: what the image holds is copied, what
// lies beyond is cleared or given back, the memory shrinks to the image's size,
// and the globals are reset.
func (v *VM) restore() error {
	img := v.engine.image
	size := int64(len(img.memory))
	low := int64(img.stackLow)
	if v.engine.config.Metering == On {
		low = max(int64(uint32(v.stackLow.Get()))-redZone, low)
	}
	if v.mem.size < size {
		v.mem.ceiling = reserveCeiling
		if _, ok := v.module.Memory().Grow(uint32((size - v.mem.size) / pageSize)); !ok {
			return errors.New("quickjs: the memory cannot grow to the boot image")
		}
	}
	v.mem.discard(size, v.mem.size)
	mem := v.mem.region.slice(v.mem.size)
	copy(mem[:img.stackLow], img.memory[:img.stackLow])
	clear(mem[low:img.stackTop])
	// A script that corrupts its memory may have written below the low-water mark.
	v.mem.region.zeroIfTouched(int64(img.stackLow), low)
	copy(mem[img.stackTop:], img.memory[img.stackTop:])
	if v.mem.size > size {
		v.mem.shrinkTo = size
		_, ok := v.module.Memory().Grow(1)
		v.mem.shrinkTo = 0
		if !ok || int64(v.module.Memory().Size()) != size {
			return errors.New("quickjs: the memory did not shrink: this version of wazero takes another way to size it")
		}
	}
	v.mem.peak, v.mem.refused = size, 0
	v.sp.Set(uint64(img.sp))
	v.stackLow.Set(uint64(img.stackTop))
	v.stackLimit.Set(uint64(img.stackLow + redZone))
	v.pending.Set(0)
	for i := range v.captured {
		v.captured[i].Set(0)
		v.capturedKind[i].Set(0)
	}
	v.fuel.Set(0)
	return nil
}

// verify compares the VM with the image, byte for byte.
func (v *VM) verify() error {
	if v.module == nil {
		return nil // discarded: the next evaluation starts from a new instance
	}
	mem, img := v.mem.bytes(), v.engine.image.memory
	if len(mem) != len(img) {
		return fmt.Errorf("quickjs: the memory has %d bytes, the image %d", len(mem), len(img))
	}
	if !bytes.Equal(mem, img) {
		for i := range mem {
			if mem[i] != img[i] {
				return fmt.Errorf("quickjs: the memory differs from the image at byte %#x: %#x, want %#x", i, mem[i], img[i])
			}
		}
	}
	// Beyond the image everything must be zero, or the next growth would show it.
	return v.mem.region.verifyZero(int64(len(img)))
}

func (v *VM) load32(at uint32) uint32 { return binary.LittleEndian.Uint32(v.mem.bytes()[at:]) }

func (v *VM) store32(at, x uint32) { binary.LittleEndian.PutUint32(v.mem.bytes()[at:], x) }
