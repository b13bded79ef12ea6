package command

import "errors"

type selftestCmd struct{}

// STUB until its owner lands.
func (*selftestCmd) Run(*env, *result) error { return errors.New("selftest: not built yet") }
