module github.com/sandbed/sandbed/bench/peers/qjs

go 1.26.8

require (
	github.com/fastschema/qjs v0.0.6
	github.com/sandbed/sandbed v0.0.0
)

require github.com/tetratelabs/wazero v1.12.0 // indirect

replace github.com/sandbed/sandbed => ../../..

replace github.com/tetratelabs/wazero => github.com/tetratelabs/wazero v1.9.0
