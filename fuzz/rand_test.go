package fuzz

import "math/rand/v2"

// newRand gives the same numbers in every run: a statistic is no lottery.
func newRand() *rand.Rand { return rand.New(rand.NewPCG(11, 13)) }
