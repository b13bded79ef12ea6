package quickjs

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// FreshRuntime makes a JavaScript runtime and context, evaluates 1+1 in it and
// frees both, n times on one instance, and returns how long that took. It is
// what freshness costs without the boot image, and exists to be compared.
func (e *Engine) FreshRuntime(ctx context.Context, n int) (time.Duration, error) {
	v, err := e.newVM(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = v.Close() }() // only counts down
	v.run.done = ctx.Done()
	v.refuel(quantum)
	call := func(name string, args ...uint64) uint64 {
		var r uint64
		if err == nil {
			r, err = v.callByName(name, args...)
		}
		return r
	}
	source, table := v.alloc(call, 4), v.alloc(call, 20)
	if err != nil {
		return 0, err
	}
	copy(v.mem.bytes()[source:], "1+1\x00")
	v.storeAllocator(table)
	newRuntime, newContext := v.module.ExportedFunction("JS_NewRuntime2"), v.module.ExportedFunction("JS_NewContext")
	freeContext, freeRuntime := v.module.ExportedFunction("JS_FreeContext"), v.module.ExportedFunction("JS_FreeRuntime")
	start := time.Now()
	for range n {
		rt, err1 := v.invoke(newRuntime, uint64(table), 0)
		js, err2 := v.invoke(newContext, rt)
		sum, err3 := v.invoke(v.fn.eval, js, uint64(source), 3, uint64(source), evalGlobal)
		_, err4 := v.invoke(freeContext, js)
		_, err5 := v.invoke(freeRuntime, rt)
		if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
			return 0, fmt.Errorf("quickjs: fresh runtime: %w", err)
		}
		if sum != 2 {
			return 0, fmt.Errorf("quickjs: fresh runtime: 1+1 gave %#x", sum)
		}
	}
	return time.Since(start), nil
}
