package command

import "errors"

type calibrateCmd struct{}

// STUB until its owner lands.
func (*calibrateCmd) Run(*env, *result) error { return errors.New("calibrate: not built yet") }
