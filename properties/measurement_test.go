package properties

import (
	"fmt"
	"math"
	"math/rand"
	"slices"
	"testing"
	"time"

	"github.com/sandbed/sandbed/bench/gate"
	"github.com/sandbed/sandbed/bench/sample"
	"github.com/sandbed/sandbed/bench/stat"
)

// comparison is a row that was never measured: its noise, and what head is slower by.
type comparison struct {
	Seed     int64
	Sigma    float64 // of one launch, as a share
	Injected float64
	Scale    float64 // of all times
	Skewed   bool
	Looks    []int
	Alpha    float64
}

const row = "wall/row=a"

func drawComparison(r *rand.Rand) comparison {
	c := comparison{Seed: r.Int63(), Sigma: oneOf(r, 0.001, 0.01, 0.03, 0.1), Injected: 0.02 + r.Float64(), Scale: math.Exp(4 * r.NormFloat64()),
		Skewed: r.Intn(2) == 0, Alpha: oneOf(r, 0.1, 0.05, 0.01, 0.0025)}
	for n := 8 + r.Intn(10); n <= 60; n += 1 + r.Intn(20) {
		c.Looks = append(c.Looks, n)
	}
	return c
}

// launches are all that could be asked for, with head slower by a share and all times
// multiplied by scale.
func (c comparison) launches(slower, scale float64, rounds int) []gate.Launch {
	r := rand.New(rand.NewSource(c.Seed))
	noise := func() float64 {
		if c.Skewed {
			return math.Exp(c.Sigma * (r.ExpFloat64() - 1))
		}
		return math.Exp(c.Sigma * r.NormFloat64())
	}
	var list []gate.Launch
	for layout, stage := range []string{gate.Screen, gate.Confirm} {
		for i := range rounds {
			order := []string{"AB", "BA", "BA", "AB"}[i%4]
			for _, arm := range []string{gate.Base, gate.Head} {
				v := 0.02 * scale * noise()
				if arm == gate.Head {
					v *= 1 + slower
				}
				list = append(list, gate.Launch{Schema: gate.Schema, Row: row, Unit: sample.Seconds, Better: "lower", Lane: gate.Time, Stage: stage, Arm: arm,
					Round: i, Order: order, First: (arm == gate.Base) == (order == "AB"), Layout: layout, Value: v, Inner: 9, Started: time.Unix(0, 0)})
			}
		}
	}
	return list
}

func design(looks ...int) gate.Design {
	d := gate.DefaultDesign([]gate.RowPlan{{Row: row}}, 1)
	d.Injection = 0 // a run without controls
	if len(looks) > 0 {
		d.Looks = looks
	}
	return d
}

func decide(d gate.Design, list []gate.Launch) (gate.Row, error) {
	report, err := gate.Decide(d, list, gate.Options{})
	if err != nil {
		return gate.Row{}, err
	}
	if len(report.Rows) != 1 {
		return gate.Row{}, fmt.Errorf("%d rows in the report, want 1", len(report.Rows))
	}
	return report.Rows[0], nil
}

// crossing is the probability that a fair coin reaches a limit at one of the looks: of
// the counts that are still open, by how many rounds there were.
func crossing(looks, limits []int) float64 {
	open := []float64{1}
	crossed, at := 0.0, 0
	for n := 1; n <= looks[len(looks)-1]; n++ {
		next := make([]float64, n+1)
		for k, p := range open {
			next[k] += p / 2
			next[k+1] += p / 2
		}
		open = next
		if n == looks[at] {
			for k := range open {
				if limits[at] >= 0 && k >= limits[at] {
					crossed += open[k]
					open[k] = 0
				}
			}
			at++
		}
	}
	return crossed
}

// P14: an injected slowdown moves the ratio by itself; a machine that is slower in all
// changes no verdict; equal builds are called slower no more often than alpha.
func TestP14MeasurementIsTrue(t *testing.T) {
	const each = 12
	alarms, asked := 0, 0
	hold(t, 60, 10, forAll(draw(drawComparison), func(c comparison) error {
		d := design(40)
		plain, err := decide(d, c.launches(0, 1, 40))
		if err != nil {
			return err
		}
		moved, err := decide(d, c.launches(c.Injected, 1, 40))
		if err != nil {
			return err
		}
		if got := moved.Ratio / plain.Ratio; math.Abs(got/(1+c.Injected)-1) > 1e-9 {
			return fmt.Errorf("%g was injected and the ratio went from %g to %g, by %g", c.Injected, plain.Ratio, moved.Ratio, got-1)
		}
		if c.Sigma <= 0.01 && c.Injected > 0.2 && moved.Verdict != gate.Regression {
			return fmt.Errorf("%g was injected under noise of %g: %s (%s)", c.Injected, c.Sigma, moved.Verdict, moved.Reason)
		}

		slowdown := oneOf(rand.New(rand.NewSource(c.Seed)), 0, 0.03, 0.06, c.Injected)
		here, err := decide(design(), c.launches(slowdown, 1, 60))
		if err != nil {
			return err
		}
		there, err := decide(design(), c.launches(slowdown, c.Scale, 60))
		if err != nil {
			return err
		}
		if here.Verdict != there.Verdict || here.Slower != there.Slower || here.Rounds != there.Rounds || math.Abs(here.Ratio/there.Ratio-1) > 1e-9 {
			return fmt.Errorf("%s, %d of %d, ratio %g; all times multiplied by %g: %s, %d of %d, ratio %g", here.Verdict, here.Slower, here.Rounds, here.Ratio,
				c.Scale, there.Verdict, there.Slower, there.Rounds, there.Ratio)
		}

		// At a slowdown of just the margin, where alpha is meant, and with none.
		for i := range each {
			again := c
			again.Seed += int64(i)
			step, err := design().Next(again.launches(float64(i%2)*0.05, 1, 60))
			if err != nil {
				return err
			}
			asked++
			if step.Word == gate.Regression {
				alarms++
			}
		}

		// What the limits promise, by counting every way that the rounds can go.
		l, err := stat.Sequential(c.Looks, c.Alpha, 0.05)
		if err != nil {
			return nil // too few rounds for this alpha, which it says
		}
		fail := crossing(c.Looks, l.Fail)
		if fail > c.Alpha || math.Abs(fail-l.SpentFail) > 1e-12 {
			return fmt.Errorf("the limits %v at %v cross with a probability of %g; alpha is %g, and they say %g", l.Fail, c.Looks, fail, c.Alpha, l.SpentFail)
		}
		last := slices.Clone(l.Fail)
		if i := len(last) - 1; last[i] > 0 {
			if last[i]--; crossing(c.Looks, last) <= c.Alpha {
				return fmt.Errorf("the limits %v at %v are too high: %d would do at the last", l.Fail, c.Looks, last[i])
			}
		}
		return nil
	}))
	// Each is called slower with a probability of at most 5 %: so many never are.
	if limit := stat.UpperBound(asked*5/100, asked, 1-1e-9); asked > 0 && float64(alarms) > limit*float64(asked) {
		t.Errorf("%d of %d equal builds were called slower, want at most 5 %%", alarms, asked)
	}
}
