module github.com/sandbed/sandbed/bench/peers/sandbed

go 1.26.8

require github.com/sandbed/sandbed v0.0.0

require (
	github.com/aperturerobotics/go-quickjs-wasi-reactor v0.15.1 // indirect
	github.com/tetratelabs/wazero v1.12.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
)

replace github.com/sandbed/sandbed => ../../..
