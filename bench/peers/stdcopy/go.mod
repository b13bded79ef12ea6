module github.com/sandbed/sandbed/bench/peers/stdcopy

go 1.26.8

require (
	github.com/docker/docker v28.5.2+incompatible
	github.com/sandbed/sandbed v0.0.0
)

require golang.org/x/sys v0.50.0 // indirect

replace github.com/sandbed/sandbed => ../../..
