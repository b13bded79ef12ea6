//go:build unix && !linux

package quickjs

import "errors"

const mapNoReserve = 0

// giveBack is not offered: only Linux promises zero pages after MADV_DONTNEED.
func giveBack([]byte) error { return errors.ErrUnsupported }

// touched cannot be asked: every page counts as written.
func touched([]byte) bool { return true }
