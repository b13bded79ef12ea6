package command

import "errors"

type reportCmd struct{}

// STUB until its owner lands.
func (*reportCmd) Run(*env, *result) error { return errors.New("report: not built yet") }
