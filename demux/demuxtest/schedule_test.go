package demuxtest

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// randomSchedule makes bytes for DecodeSchedule.
func randomSchedule(seed uint64) []byte {
	rng := rand.New(rand.NewPCG(seed, 7))
	b := make([]byte, 2+2*rng.IntN(60))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// Random schedules against two byte slices; STRESS=1 runs 200,000.
func TestSchedules(t *testing.T) {
	n := uint64(4000)
	if os.Getenv("STRESS") == "1" {
		n = 200_000
	}
	first := uint64(1)
	if s := os.Getenv("SEED"); s != "" {
		var err error
		if first, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
		n = 1
	}
	dir := t.TempDir()
	if shm := "/dev/shm"; isMemory(shm) { // files that open fast; other tests have a disk
		dir = shm
	}
	begun := time.Now()
	const batch = 500
	for from := first; from < first+n; from += batch {
		synctest.Test(t, func(t *testing.T) {
			for seed := from; seed < min(from+batch, first+n); seed++ {
				s := DecodeSchedule(randomSchedule(seed), dir)
				if err := s.Run(New); err != nil {
					t.Fatalf("%v\nrepeat: SEED=%d go test -run '^TestSchedules$' ./demux/demuxtest\n%v", err, seed, s)
				}
			}
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%d schedules, %.0f a second", n, float64(n)/time.Since(begun).Seconds())
}
