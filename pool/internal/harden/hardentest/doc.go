// Package hardentest tries what a hardened worker must not be able to do, one
// attempt for each class of system call. Tests run it without hardening first:
// an attempt that fails there too would prove nothing.
package hardentest
