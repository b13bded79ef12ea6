package command

import "errors"

type powerCmd struct{}

// STUB until its owner lands.
func (*powerCmd) Run(*env, *result) error { return errors.New("power: not built yet") }
