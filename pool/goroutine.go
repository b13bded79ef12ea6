package pool

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/sandbed/sandbed/engine"
)

// vmWorker is the goroutine worker: a VM in this process.
type vmWorker struct {
	newVM func(context.Context) (engine.VM, error)
	vm    engine.VM
}

func (w *vmWorker) warm(ctx context.Context) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = panicError("starting a VM", v)
		}
	}()
	w.vm, err = w.newVM(ctx)
	if err == nil && w.vm == nil {
		err = errors.New("pool: newVM returned neither a VM nor an error")
	}
	return err
}

// eval makes a panic an engine fault, which also has the pool replace the worker:
// nobody knows in what state it left the VM.
func (w *vmWorker) eval(ctx context.Context, r engine.Request) (out engine.Outcome, _ error) {
	defer func() {
		if v := recover(); v != nil {
			out = engine.Outcome{Class: engine.ClassEngineFault, Message: cut(panicError("the VM", v).Error())}
		}
	}()
	return w.vm.Eval(ctx, r), nil
}

func (w *vmWorker) died() <-chan struct{} { return nil }

func (w *vmWorker) close() (err error) {
	if w.vm == nil {
		return nil
	}
	defer func() {
		if v := recover(); v != nil {
			err = panicError("closing a VM", v)
		}
	}()
	return w.vm.Close()
}

func panicError(where string, v any) error {
	return fmt.Errorf("pool: panic in %s: %v\n%s", where, v, debug.Stack())
}
