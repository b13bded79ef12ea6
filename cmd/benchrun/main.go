// Command benchrun measures sandbed's own engine and shows whether its
// guarantees hold. It is bench/command with our suite; run benchrun --help.
package main

import (
	"os"

	"github.com/sandbed/sandbed/bench/command"
	"github.com/sandbed/sandbed/pool"
)

func main() {
	pool.ServeWorker(workerVM) // --backend process starts this very binary
	os.Exit(command.Main(suite, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
