//go:build linux && !amd64

package hardentest

var attemptsOfArch []attempt
