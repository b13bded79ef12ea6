package command

import "errors"

type sampleCmd struct{}

// STUB until its owner lands.
func (*sampleCmd) Run(*env, *result) error { return errors.New("sample: not built yet") }
