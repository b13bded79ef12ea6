//go:build !linux

package demuxtest

import "errors"

type spillFile struct{}

func spillFiles(string) []spillFile { return nil }
func (spillFile) secret() error     { return errors.ErrUnsupported }
func (spillFile) flip(int64) error  { return errors.ErrUnsupported }
func diskUse(string) (int64, bool)  { return 0, false }
func descriptors() int              { return 0 }
func isMemory(string) bool          { return false }
