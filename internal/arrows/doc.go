// Package arrows holds the import arrows of the module: which package may
// import which, each with its reason. It has nothing but a test.
package arrows
