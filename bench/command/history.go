package command

import "errors"

type historyCmd struct{}

// STUB until its owner lands.
func (*historyCmd) Run(*env, *result) error { return errors.New("history: not built yet") }
