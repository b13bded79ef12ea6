// Package processtest holds the tests of process workers with real processes.
// They have a package of their own because their test binary is also the
// worker, the rogue and the host that gets killed: its TestMain must come first.
package processtest
