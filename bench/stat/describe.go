package stat

import (
	"fmt"
	"math"

	"github.com/montanaflynn/stats"
)

// normalMAD makes the median absolute deviation of normal values estimate their
// standard deviation: 1 ÷ Φ⁻¹(3/4).
const normalMAD = 1.482602218505602

// RobustSigma returns a standard deviation that outliers do not move: 1.4826 × the
// median absolute deviation of d. It is 0 if more than half of d are equal, NaN if d is
// empty or holds NaN.
func RobustSigma(d []float64) float64 {
	mad, err := stats.MedianAbsoluteDeviation(d)
	if err != nil {
		return math.NaN()
	}
	return normalMAD * mad
}

// Lag1 returns the autocorrelation of d with itself one round later, −1 … 1. An
// absolute value above 0.2 says that rounds are not independent. It is 0 if all
// values are equal, NaN if there are fewer than 2 or one is not finite.
func Lag1(d []float64) float64 {
	if len(d) < 2 {
		return math.NaN()
	}
	for _, v := range d {
		if finite(v) == nil {
			return math.NaN()
		}
	}
	// The only error left is that of equal values, which comes with 0.
	r, _ := stats.AutoCorrelation(d, 1)
	return r
}

// Summary describes a sample. Quartiles are the medians of the halves.
type Summary struct {
	N      int     `json:"n"`
	Min    float64 `json:"min"`
	Q1     float64 `json:"q1"`
	Median float64 `json:"median"`
	Q3     float64 `json:"q3"`
	Max    float64 `json:"max"`
	Mean   float64 `json:"mean"`
	StdDev float64 `json:"stddev"` // of a sample, with n−1; 0 for one value
	MAD    float64 `json:"mad"`    // median absolute deviation, not scaled
}

// Describe summarises x. It returns an error if x is empty or a value is not finite.
func Describe(x []float64) (Summary, error) {
	if len(x) == 0 {
		return Summary{}, fmt.Errorf("describe: no values")
	}
	for i, v := range x {
		if finite(v) == nil {
			return Summary{}, fmt.Errorf("describe: value %d of %d is %v: leave out what was not measured", i+1, len(x), v)
		}
	}
	s := Summary{N: len(x)}
	// None of these fails on finite values, except on fewer than two.
	s.Min, _ = stats.Min(x)
	s.Median, _ = stats.Median(x)
	s.Max, _ = stats.Max(x)
	s.Mean, _ = stats.Mean(x)
	s.MAD, _ = stats.MedianAbsoluteDeviation(x)
	s.Q1, s.Q3 = s.Median, s.Median
	if len(x) > 1 {
		q, _ := stats.Quartile(x)
		s.Q1, s.Q3 = q.Q1, q.Q3
		s.StdDev, _ = stats.StandardDeviationSample(x)
	}
	return s, nil
}
