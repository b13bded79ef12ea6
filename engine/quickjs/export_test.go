package quickjs

// NewTestEngine is for the tests outside of the package.
var NewTestEngine = newTestEngine
