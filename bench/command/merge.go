package command

import "errors"

type mergeCmd struct{}

// STUB until its owner lands.
func (*mergeCmd) Run(*env, *result) error { return errors.New("merge: not built yet") }
