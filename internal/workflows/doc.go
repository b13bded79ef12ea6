// Package workflows tests the shell of the action and the workflows: with the
// environment that a runner gives, and a stub of the service on loopback.
package workflows
