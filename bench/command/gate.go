package command

import "errors"

type gateCmd struct{}

// STUB until its owner lands.
func (*gateCmd) Run(*env, *result) error { return errors.New("gate: not built yet") }
