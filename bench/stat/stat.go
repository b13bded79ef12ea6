// Package stat holds the statistics that the gate needs and no library has:
// exact sign tests and intervals, group-sequential limits, corrections for many
// rows, change points. Everything is a pure function; what draws at random takes
// a seed.
package stat

// Interval is a two-sided interval with its confidence. An end that the data do
// not bound is infinite.
type Interval struct {
	Low        float64 `json:"low"`
	High       float64 `json:"high"`
	Confidence float64 `json:"confidence"` // attained, not asked for
}
