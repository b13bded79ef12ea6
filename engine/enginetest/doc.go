// Package enginetest is the conformance suite for any [engine.Backend]: a
// corpus of hostile and awkward scripts, and laws that every sandbox must keep.
//
// A test of a backend is one line:
//
//	func TestConformance(t *testing.T) {
//		enginetest.Run(t, func(tb testing.TB) engine.Backend { return newBackend(tb) })
//	}
//
// A command uses [Check], or [Examine] for the whole report; both take a
// [Factory] and never touch testing. A backend may implement [ImageVerifier]
// beside the contract; what it does not offer is reported as not offered, and
// never as held.
//
// The suite promises no more than its cases and laws show. It judges time in one
// respect alone, that a run is back by its wall clock and a grace, and only
// after three tries; it measures no speed. A run that hangs is given up after a
// bound, and its goroutine is left behind, since Go has no way to end it.
package enginetest
