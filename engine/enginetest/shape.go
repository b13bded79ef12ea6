package enginetest

import (
	"encoding/json"

	"github.com/sandbed/sandbed/engine"
)

// rows is the shape {"rows": [{"n": number}, …]}, for the law of shapes.
type rows struct{}

func newShape() (engine.Shape, error) { return rows{}, nil }

func (rows) Check(value json.RawMessage) error {
	bad := func(path, rule string) error {
		return &engine.ShapeMismatch{Violations: []engine.Violation{{Path: path, Rule: rule}}}
	}
	if value == nil {
		return bad("", "absent")
	}
	var v struct {
		Rows []struct {
			N *float64 `json:"n"`
		} `json:"rows"`
	}
	if err := json.Unmarshal(value, &v); err != nil {
		return bad("/rows", "type")
	}
	if v.Rows == nil {
		return bad("/rows", "required")
	}
	return nil
}
