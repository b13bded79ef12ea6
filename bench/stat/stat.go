// Package stat holds the statistics that the gate needs and no library has:
// exact sign tests and intervals, group-sequential limits, corrections for many
// rows, change points. It is for the gate, the reports and anyone who judges
// paired measurements.
//
// Every function is pure: it keeps and mutates nothing that it was given, and what draws
// at random takes a seed. All are safe for concurrent use.
//
// Input that no statistic can be made of (nothing, NaN, a probability outside
// 0 … 1) gives NaN, or an error where the function returns one; never a panic. Infinite
// values are values: they have a place in the order.
//
// The package promises exact levels for independent rounds only: rounds that
// drift or depend on each other void them. [Lag1] helps to see that.
package stat

import (
	"encoding/json"
	"math"
)

// Interval is a two-sided interval with its confidence. An end that the data do
// not bound is infinite. All three are NaN if there is no interval, because the input was not valid.
//
// In JSON a number that is not finite is null, and null is read back as the
// open end, or as NaN where Confidence is null too.
type Interval struct {
	Low        float64 `json:"low"`
	High       float64 `json:"high"`
	Confidence float64 `json:"confidence"` // attained, not asked for
}

type intervalJSON struct {
	Low        *float64 `json:"low"`
	High       *float64 `json:"high"`
	Confidence *float64 `json:"confidence"`
}

// MarshalJSON implements json.Marshaler.
func (i Interval) MarshalJSON() ([]byte, error) {
	return json.Marshal(intervalJSON{finite(i.Low), finite(i.High), finite(i.Confidence)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (i *Interval) UnmarshalJSON(data []byte) error {
	var j intervalJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	*i = Interval{math.Inf(-1), math.Inf(1), math.NaN()}
	if j.Confidence == nil {
		i.Low, i.High = math.NaN(), math.NaN()
	} else {
		i.Confidence = *j.Confidence
	}
	if j.Low != nil {
		i.Low = *j.Low
	}
	if j.High != nil {
		i.High = *j.High
	}
	return nil
}

func finite(x float64) *float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return nil
	}
	return &x
}

func noInterval() Interval { return Interval{math.NaN(), math.NaN(), math.NaN()} }

// probability reports whether p is in 0 … 1; level, whether it is inside.
func probability(p float64) bool { return p >= 0 && p <= 1 }
func level(p float64) bool       { return p > 0 && p < 1 }

func hasNaN(x []float64) bool {
	for _, v := range x {
		if math.IsNaN(v) {
			return true
		}
	}
	return false
}
