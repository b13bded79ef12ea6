package pooltest_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/sandbed/sandbed/pool"
	"github.com/sandbed/sandbed/pool/pooltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func goroutines(o pool.Options, start string) (pooltest.Pool, error) {
	return pool.New(pooltest.NewVM(nil, start), o)
}

func TestGoroutinePool(t *testing.T) { pooltest.Run(t, goroutines) }

func TestGoroutinePoolInVirtualTime(t *testing.T) { pooltest.RunVirtual(t, goroutines) }
