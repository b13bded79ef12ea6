package pool_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/pool"
)

// What a worker's goroutine costs a run, against the same VM called directly.
// The VM fills its result, as copying it out of a real one would.
func BenchmarkRoundTrip(b *testing.B) {
	for _, size := range []int{16, 1 << 20, 4 << 20} {
		newVM := func(context.Context) (engine.VM, error) {
			return evalFunc(func(_ context.Context, r engine.Request) engine.Outcome {
				now := time.Now()
				if r.OnScriptStart != nil {
					r.OnScriptStart(now)
				}
				value := make([]byte, size)
				copy(value, r.Input)
				if r.OnFinished != nil {
					r.OnFinished(time.Now())
				}
				return engine.Outcome{Class: engine.ClassOK, Value: value}
			}), nil
		}
		req := engine.Request{Input: make([]byte, size)}
		check := func(b *testing.B, out engine.Outcome, err error) {
			if err != nil || len(out.Value) != size {
				b.Fatalf("got %d bytes, %v", len(out.Value), err)
			}
		}
		b.Run(fmt.Sprintf("backend=direct/bytes=%d", size), func(b *testing.B) {
			vm, _ := newVM(ctx)
			b.ReportAllocs()
			for b.Loop() {
				check(b, vm.Eval(ctx, req), nil)
			}
		})
		b.Run(fmt.Sprintf("backend=pool/bytes=%d", size), func(b *testing.B) {
			p, err := pool.New(newVM, pool.DefaultOptions())
			if err != nil {
				b.Fatal(err)
			}
			defer p.Close()
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			b.ReportAllocs()
			for b.Loop() {
				out, err := p.Run(ctx, req)
				check(b, out, err)
			}
		})
	}
}
