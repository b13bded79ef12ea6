package command

import "errors"

type aaCmd struct{}

// STUB until its owner lands.
func (*aaCmd) Run(*env, *result) error { return errors.New("aa: not built yet") }
