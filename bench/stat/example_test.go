package stat_test

import (
	"fmt"
	"log"
	"math"

	"github.com/sandbed/sandbed/bench/stat"
)

// A row is judged after 10, 20 and 40 rounds. In each round head is either beyond
// the margin or not; only the count matters.
func ExampleSequential() {
	limits, err := stat.Sequential([]int{10, 20, 40}, 0.0025, 0.05)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("regression from:", limits.Fail)
	fmt.Println("fine up to:     ", limits.Clear)
	fmt.Printf("spent: %.5f %.4f\n", limits.SpentFail, limits.SpentClear)
	// Output:
	// regression from: [-1 18 30]
	// fine up to:      [1 4 14]
	// spent: 0.00126 0.0493
}

// What a configuration cannot see is known before it is used.
func ExampleSequential_cannotFail() {
	_, err := stat.Sequential([]int{4, 8}, 0.0025, 0.05)
	fmt.Println(err)
	// Output:
	// looks: [4 8] can never fail at alpha 0.0025: even 8 of 8 has a probability of 0.0039: plan a last look of 9 rounds or more, or fewer rows to share alpha
}

// The smallest slowdown that a margin of 5 % finds in 19 of 20 runs, by the noise of one round.
func ExampleLimits_MDE() {
	limits, err := stat.Sequential([]int{10, 15, 20, 30, 40, 60}, 0.0025, 0.05)
	if err != nil {
		log.Fatal(err)
	}
	for _, sigma := range []float64{0.01, 0.03, 0.05} {
		fmt.Printf("σ %.0f %%: %.1f %%\n", 100*sigma, 100*limits.MDE(0.05, sigma, 0.95))
	}
	// Output:
	// σ 1 %: 5.8 %
	// σ 3 %: 7.5 %
	// σ 5 %: 9.1 %
}

func ExampleLimits_Operating() {
	limits, err := stat.Sequential([]int{10, 15, 20, 30, 40, 60}, 0.0025, 0.05)
	if err != nil {
		log.Fatal(err)
	}
	fail, clear, rounds := limits.Operating(0.9) // nine rounds of ten are beyond the margin
	fmt.Printf("fails %.4f, clears %.4f, after %.0f rounds\n", fail, clear, rounds)
	// Output:
	// fails 1.0000, clears 0.0000, after 21 rounds
}

func ExampleMedianInterval() {
	batches := []float64{20.1, 20.4, 19.9, 20.0, 27.3, 20.2, 20.1, 20.6, 20.3, 20.0}
	i := stat.MedianInterval(batches, 0.95)
	fmt.Printf("%v … %v at %.1f %%\n", i.Low, i.High, 100*i.Confidence)
	// Output:
	// 20 … 20.6 at 97.9 %
}

// What no false alarm in so many runs proves.
func ExampleUpperBound() {
	fmt.Printf("0 of 40: at most %.1f %%\n", 100*stat.UpperBound(0, 40, 0.95))
	fmt.Printf("0 of 300: at most %.1f %%\n", 100*stat.UpperBound(0, 300, 0.95))
	// Output:
	// 0 of 40: at most 7.2 %
	// 0 of 300: at most 1.0 %
}

func ExampleChangePoints() {
	history := make([]float64, 40) // ln(head ÷ reference), run by run
	for run := range history {
		history[run] = 0.01 * math.Sin(float64(run*run))
		if run >= 25 {
			history[run] += math.Log(1.08)
		}
	}
	changes, err := stat.ChangePoints(history, 1)
	if err != nil {
		log.Fatal(err)
	}
	for _, c := range changes {
		fmt.Printf("run %d: %+.0f %%\n", c.At, 100*c.Step)
	}
	// Output:
	// run 25: +8 %
}
