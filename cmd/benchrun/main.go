// Command benchrun measures sandbed's own engine and shows whether its
// guarantees hold. It is bench/command with our suite; run benchrun --help.
package main

import (
	"os"

	"github.com/sandbed/sandbed/bench/command"
)

func main() { os.Exit(command.Main(suite, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
