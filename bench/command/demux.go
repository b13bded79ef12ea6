package command

import "errors"

type demuxCmd struct{}

// STUB until its owner lands.
func (*demuxCmd) Run(*env, *result) error { return errors.New("demux: not built yet") }
