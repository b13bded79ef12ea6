package command

import "errors"

type compareCmd struct{}

// STUB until its owner lands.
func (*compareCmd) Run(*env, *result) error { return errors.New("compare: not built yet") }
