//go:build !linux

package bench

// fileSystem is not known here.
func fileSystem(string) string { return "unknown" }
