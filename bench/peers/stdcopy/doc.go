// Package stdcopy puts the demux beside what most users of Docker's API have:
// StdCopy of github.com/docker/docker/pkg/stdcopy. Its tests show that both give
// the same bytes and where they differ; its benchmark pairs their speed.
//
//	go test -bench .
//
// It is a module of its own so that nobody else depends on Docker.
package stdcopy
