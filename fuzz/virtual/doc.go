// Package virtual holds the fuzz targets that run in virtual time, apart from
// those that need an engine: the fuzzer copies every coverage counter of the
// binary after every input, and with the engine and its compiler linked in that
// alone takes half a millisecond. It has nothing but tests.
package virtual
