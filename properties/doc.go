// Package properties holds the guarantees of the module as properties P1 to P15,
// each tried on many generated cases. It has nothing but tests.
//
// Each property is one test function with a random source of its own. Its seed
// is new in every run and printed with the command that repeats it; -seed=N sets
// it. STRESS=1 tries twenty times as many cases.
//
// Cases are documents of fuzz/gen, so that what fails here can be handed to a fuzz target
// of the same name, and to the reducer. faults/manifest.json lists faults that each
// property was seen to find.
package properties
