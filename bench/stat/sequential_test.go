package stat

import (
	"slices"
	"testing"
)

var designLooks = []int{10, 15, 20, 30, 40, 60}

func TestSequentialTable(t *testing.T) {
	l, err := Sequential(designLooks, 0.0025, 0.05)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(l)
	if !slices.Equal(l.Fail, []int{-1, 14, 18, 24, 31, 42}) {
		t.Error(l.Fail)
	}
	l, err = Sequential(designLooks, 0.001, 0.05)
	t.Log(l, err)
	for _, s := range []float64{.02, .03, .05, .08} {
		t.Log(s, l.MDE(.05, s, .95))
	}
	t.Log(Sequential([]int{5, 8}, 0.001, 0.05))
	t.Log(UpperBound(0, 40, .95), UpperBound(0, 300, .95), ClopperPearson(3, 10, .95))
	t.Log(MedianInterval([]float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, .95), SignTest(14, 15))
}
