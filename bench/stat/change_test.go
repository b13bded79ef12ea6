package stat

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	"gonum.org/v1/gonum/stat/distuv"
)

// levels returns runs of noise σ around a level for each segment.
func levels(r *rand.Rand, sigma float64, segments ...[2]float64) []float64 {
	var y []float64
	for _, s := range segments {
		for range int(s[0]) {
			y = append(y, s[1]+sigma*r.NormFloat64())
		}
	}
	return y
}

// pottsCost is what a segmentation costs, by its definition.
func pottsCost(y []float64, points []int, penalty float64) float64 {
	cost, from := penalty*float64(len(points)), 0
	for _, to := range append(slices.Clone(points), len(y)) {
		m := medianOf(y[from:to])
		for _, v := range y[from:to] {
			cost += math.Abs(v - m)
		}
		from = to
	}
	return cost
}

func TestPottsSegmentations(t *testing.T) {
	r := rand.New(rand.NewPCG(17, 1))
	many := 0
	for range 400 {
		y := make([]float64, 1+r.IntN(11))
		level := 0
		for i := range y {
			if r.IntN(4) == 0 {
				level = r.IntN(20)
			}
			y[i] = float64(level + r.IntN(5)) // whole numbers: costs are exact, ties are many
		}
		penalty := float64(1 + r.IntN(12))
		cost, steps := inf, 0
		for set := range 1 << (len(y) - 1) {
			var points []int
			for i := 1; i < len(y); i++ {
				if set>>(i-1)&1 == 1 {
					points = append(points, i)
				}
			}
			if c := pottsCost(y, points, penalty); c < cost || c == cost && len(points) < steps {
				cost, steps = c, len(points)
			}
		}
		got := Potts(y, penalty)
		if c := pottsCost(y, got, penalty); c != cost || len(got) != steps {
			t.Errorf("%v at %v: got %v at cost %v, want cost %v in %d steps", y, penalty, got, c, cost, steps)
		}
		if steps > 1 {
			many++
		}
	}
	if many < 40 {
		t.Errorf("got %d cases with two steps or more, want 40", many)
	}
}

func TestPotts(t *testing.T) {
	r := rand.New(rand.NewPCG(18, 1))
	y := levels(r, 0.01, [2]float64{30, 0}, [2]float64{20, 0.05}, [2]float64{25, 0.02})
	if got := Potts(y, 0); len(got) != 2 || !closeTo(got[0], 30) || !closeTo(got[1], 50) {
		t.Errorf("two steps: got %v, want about [30 50]", got)
	}
	flat := append(slices.Repeat([]float64{1}, 9), slices.Repeat([]float64{2}, 9)...)
	if got := Potts(flat, 0); !slices.Equal(got, []int{9}) {
		t.Errorf("no noise: got %v, want [9]", got)
	}
	rare := make([]float64, 40)
	rare[7], rare[20], rare[33] = 1, 1, -1
	if got := Potts(rare, 0); got != nil {
		t.Errorf("most values equal: got %v, want none", got)
	}
	y[10] = 5
	if got := Potts(y, 0); len(got) != 4 || got[0] != 10 || got[1] != 11 {
		t.Errorf("outlier: got %v, want a level of its own at 10 and the two steps", got)
	}
	for name, got := range map[string][]int{
		"none": Potts(nil, 1), "one": Potts(ascend(1), 1), "equal": Potts(make([]float64, 20), 0),
		"NaN": Potts(append(ascend(15), nan), 1), "infinite": Potts(append(ascend(15), inf), 1), "penalty": Potts(flat, nan),
		"infinite penalty": Potts(flat, inf), "beyond float64": Potts(each(flat, func(v float64) float64 { return (v - 1.5) * math.MaxFloat64 * 2 }), 0),
	} {
		if got != nil {
			t.Errorf("%s: got %v, want none", name, got)
		}
	}
}

func closeTo(got, want int) bool { return got >= want-agreeWithin && got <= want+agreeWithin }

// TestPottsInvariance: a shift, the sign and the unit of y move no point; a
// higher penalty never adds one.
func TestPottsInvariance(t *testing.T) {
	check(t, prop.ForAll(func(y []float64, penalty, more int) bool {
		p := float64(penalty) / 4
		got := Potts(y, p)
		moved := Potts(each(y, func(v float64) float64 { return 3 - 2*v }), 2*p)
		return slices.Equal(got, moved) && len(Potts(y, p+float64(more))) <= len(got) &&
			pottsCost(reversed(y), Potts(reversed(y), p), p) == pottsCost(y, got, p)
	}, values(), gen.IntRange(1, 40), gen.IntRange(0, 9)))
}

// energyDistance is the scaled statistic by its definition.
func energyDistance(x, y []float64) float64 {
	mean := func(a, b []float64, pairs float64) (sum float64) {
		for _, v := range a {
			for _, w := range b {
				sum += math.Abs(v-w) / pairs
			}
		}
		return sum
	}
	n, m := float64(len(x)), float64(len(y))
	return n * m / (n + m) * (2*mean(x, y, n*m) - mean(x, x, n*(n-1)) - mean(y, y, m*(m-1)))
}

func TestEnergyDefinition(t *testing.T) {
	r := rand.New(rand.NewPCG(19, 1))
	for _, n := range []int{10, 11, 17, 50} {
		for _, digits := range []float64{1, 1e6} { // with many ties, with none
			y := normal(r, n, 1)
			for i := range y {
				y[i] = math.Round(y[i]*digits)/digits + 1000
			}
			at, q := newEnergy(n).best(y)
			want, wantHere := math.Inf(-1), math.Inf(-1) // the latter of splits at at
			for k := minSegment; k <= n-minSegment; k++ {
				for end := k + minSegment; end <= n; end++ {
					d := energyDistance(y[:k], y[k:end])
					want = max(want, d)
					if k == at {
						wantHere = max(wantHere, d)
					}
				}
			}
			if !near(q, want, 1e-9) || !near(wantHere, want, 1e-9) {
				t.Errorf("n %d: got %v at %d, want %v, which is %v there", n, q, at, want, wantHere)
			}
		}
	}
}

// TestEDivisivePermutations: with ten values there is one split and 252 ways to deal
// them out, so that the exact p is known, and with it how often a test of drawn permutations
// must find the split.
func TestEDivisivePermutations(t *testing.T) {
	const seeds, level, permutations, allowed = 400, 0.1, 19, 1
	r := rand.New(rand.NewPCG(20, 1))
	cases := [][]float64{
		{1, 1, 0, 0, 0, 0, 0, 0, 0, 0}, // few splits differ
		{1, 1, 1, 1, 1, 0, 0, 0, 0, 0},
	}
	for _, shift := range []float64{0, 0.5, 1, 1.5, 2, 3} {
		y := normal(r, 10, 1)
		for i := range y[:5] {
			y[i] += shift
		}
		cases = append(cases, y)
	}
	for _, y := range cases {
		seen, asGood := energyDistance(y[:5], y[5:]), 0
		for set := uint(0); set < 1<<10; set++ {
			if bits.OnesCount(set) != 5 {
				continue
			}
			var a, b []float64
			for i, v := range y {
				if set>>i&1 == 1 {
					a = append(a, v)
				} else {
					b = append(b, v)
				}
			}
			if energyDistance(a, b) >= seen-1e-9 {
				asGood++
			}
		}
		p := float64(asGood) / 252
		found := 0
		for seed := range uint64(seeds) {
			if EDivisive(y, seed, level) != nil {
				found++
			}
		}
		want := 0.0
		if seen > 0 {
			want = distuv.Binomial{N: permutations, P: p}.CDF(allowed)
		}
		within(t, fmt.Sprintf("p %.4f", p), found, seeds, want)
	}
}

// TestEDivisiveLevel: without a change, a false one comes as often as allowed.
func TestEDivisiveLevel(t *testing.T) {
	const draws = 1500
	for _, s := range shapes {
		r := rand.New(rand.NewPCG(21, 1))
		found := 0
		for i := range draws {
			if EDivisive(s.sample(r, 30), uint64(i), 0.05) != nil {
				found++
			}
		}
		within(t, s.name, found, draws, 0.05)
	}
}

func TestEDivisive(t *testing.T) {
	r := rand.New(rand.NewPCG(22, 1))
	y := levels(r, 0.01, [2]float64{30, 0}, [2]float64{20, 0.05}, [2]float64{25, 0.02})
	got := EDivisive(y, 1, 0.001)
	if len(got) != 2 || !closeTo(got[0], 30) || !closeTo(got[1], 50) {
		t.Errorf("two steps: got %v, want about [30 50]", got)
	}
	if again := EDivisive(y, 1, 0.001); !slices.Equal(got, again) {
		t.Errorf("one seed: got %v and %v", got, again)
	}
	// Another spread around one median is a change too, which Potts cannot see.
	if got := EDivisive(append(normal(r, 40, 0.01), normal(r, 40, 0.3)...), 1, 0.001); len(got) != 1 || got[0] < 35 || got[0] > 50 {
		t.Errorf("spread: got %v, want one, roughly at 40", got)
	}
	step := append(make([]float64, 30), slices.Repeat([]float64{1}, 30)...)
	for name, got := range map[string][]int{
		"none": EDivisive(nil, 1, 0.01), "short": EDivisive(step[26:35], 1, 0.01), "equal": EDivisive(make([]float64, 40), 1, 0.01),
		"NaN": EDivisive(append(slices.Clone(step), nan), 1, 0.01), "infinite": EDivisive(append(slices.Clone(step), inf), 1, 0.01),
		"level 0": EDivisive(step, 1, 0), "level 1": EDivisive(step, 1, 1), "level NaN": EDivisive(step, 1, nan), "level tiny": EDivisive(step, 1, 1e-300),
		"beyond float64": EDivisive(slices.Repeat([]float64{math.MaxFloat64, -math.MaxFloat64}, 20), 1, 0.01),
	} {
		if got != nil {
			t.Errorf("%s: got %v, want none", name, got)
		}
	}
	if got := EDivisive(step, 1, 0.01); !slices.Equal(got, []int{30}) {
		t.Errorf("no noise: got %v, want [30]", got)
	}
}

func TestChangePoints(t *testing.T) {
	const sigma = 0.01
	for _, c := range []struct {
		name     string
		segments [][2]float64
		want     []int
		steps    []float64
	}{
		{"none", [][2]float64{{60, 0}}, nil, nil},
		{"slower", [][2]float64{{30, 0}, {30, 0.05}}, []int{30}, []float64{0.05}},
		{"faster", [][2]float64{{30, 0.05}, {30, 0}}, []int{30}, []float64{-0.05}},
		{"two", [][2]float64{{30, 0}, {20, 0.05}, {25, 0.15}}, []int{30, 50}, []float64{0.05, 0.10}},
		{"came and went", [][2]float64{{30, 0}, {15, 0.08}, {30, 0}}, []int{30, 45}, []float64{0.08, -0.08}},
		{"below 3 %", [][2]float64{{60, 0}, {60, 0.02}}, nil, nil},
		{"a spike of 4 runs", [][2]float64{{40, 0}, {4, 0.2}, {40, 0}}, nil, nil},
		{"the last 4 runs", [][2]float64{{60, 0}, {4, 0.2}}, nil, nil},
		{"an outlier at the change", [][2]float64{{28, 0}, {1, 3}, {1, 0}, {30, 0.08}}, []int{30}, []float64{0.08}},
		{"the last 10 runs", [][2]float64{{60, 0}, {10, 0.1}}, []int{60}, []float64{0.1}},
	} {
		for seed := range uint64(4) {
			y := levels(rand.New(rand.NewPCG(23, seed)), sigma, c.segments...)
			got, err := ChangePoints(y, seed)
			if err != nil || len(got) != len(c.want) {
				t.Errorf("%s, seed %d: got %v, %v, want %v", c.name, seed, got, err, c.want)
				continue
			}
			for i, change := range got {
				if !closeTo(change.At, c.want[i]) || math.Abs(change.After-change.Before-c.steps[i]) > 2*sigma || change.Step != math.Expm1(change.After-change.Before) {
					t.Errorf("%s, seed %d: got %+v, want a step of %v at %d", c.name, seed, change, c.steps[i], c.want[i])
				}
			}
		}
	}
	for _, bad := range []float64{nan, inf} {
		if got, err := ChangePoints([]float64{0, bad, 1}, 1); got != nil || err == nil || !strings.Contains(err.Error(), "run 2 of 3 is") {
			t.Errorf("%v: got %v, %v, want an error that names run 2", bad, got, err)
		}
	}
	for n := range 3 {
		if got, err := ChangePoints(make([]float64, n), 1); got != nil || err != nil {
			t.Errorf("%d runs: got %v, %v, want none", n, got, err)
		}
	}
}

func TestAgreed(t *testing.T) {
	for _, c := range []struct{ points, others, want []int }{
		{nil, []int{5}, nil},
		{[]int{5}, nil, nil},
		{[]int{10, 20, 30}, []int{12, 17, 30}, []int{10, 30}},
		{[]int{10, 20}, []int{8, 23}, []int{10}},
		{[]int{10, 12}, []int{11}, []int{10, 12}},
	} {
		if got := agreed(c.points, c.others); !slices.Equal(got, c.want) {
			t.Errorf("%v and %v: got %v, want %v", c.points, c.others, got, c.want)
		}
	}
}

// TestSettle: what is merged away, and in which order, without noise.
func TestSettle(t *testing.T) {
	up, down := math.Log(1.0301), math.Log(1.0299)
	for _, c := range []struct {
		name     string
		segments [][2]float64
		want     []int
	}{
		{"both sides 5", [][2]float64{{5, 0}, {5, 1}}, []int{5}},
		{"4 before", [][2]float64{{4, 0}, {9, 1}}, nil},
		{"4 after", [][2]float64{{9, 0}, {4, 1}}, nil},
		{"just 3 %", [][2]float64{{9, 0}, {9, up}}, []int{9}},
		{"just 3 % down", [][2]float64{{9, 0}, {9, -up}}, []int{9}},
		{"just below", [][2]float64{{9, 0}, {9, down}}, nil},
		{"the weaker of two goes", [][2]float64{{20, 0}, {3, 0.04}, {20, 0.14}}, []int{23}},
		{"the weaker of two goes, mirrored", [][2]float64{{20, 0}, {3, 0.10}, {20, 0.14}}, []int{20}},
		{"four went", [][2]float64{{20, 0}, {4, 0.5}, {20, 0}}, nil},
		{"five stay", [][2]float64{{20, 0}, {5, 0.5}, {20, 0}}, []int{20, 25}},
	} {
		y := levels(rand.New(rand.NewPCG(0, 0)), 0, c.segments...)
		var at, got []int
		for i, n := 0, 0; i < len(c.segments)-1; i++ {
			n += int(c.segments[i][0])
			at = append(at, n)
		}
		for _, change := range settle(y, at) {
			got = append(got, change.At)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
	// It went away: most of the segment is up, its last five are down again.
	y := levels(rand.New(rand.NewPCG(0, 0)), 0, [2]float64{20, 0}, [2]float64{9, 1}, [2]float64{5, 0.1})
	if got := settle(y, []int{20}); got != nil {
		t.Errorf("went away: got %v, want none", got)
	}
}

// TestChangePointsQuiet: histories without a change of the median, at a noise as
// of a shared machine, heavy tails included.
func TestChangePointsQuiet(t *testing.T) {
	const draws = 400
	for _, s := range shapes {
		r := rand.New(rand.NewPCG(24, 1))
		found := 0
		for i := range draws {
			y := make([]float64, 60)
			for k := range y {
				y[k] = 0.05 * (math.Log(s.draw(r)) - math.Log(s.draw(r)))
			}
			if got, err := ChangePoints(y, uint64(i)); err != nil || got != nil {
				found++
			}
		}
		if found > 3 { // EDivisive alone: 0.4 of 400
			t.Errorf("%s: got %d histories of %d with a change, want 3 or fewer", s.name, found, draws)
		}
	}
}

// TestChangePointsMirrored: the sign swapped swaps the steps and moves nothing.
func TestChangePointsMirrored(t *testing.T) {
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(25, seed))
		y := levels(r, 0.01, [2]float64{20, 0}, [2]float64{float64(5 + seed), 0.04}, [2]float64{20, 0.1 * r.Float64()})
		got, err := ChangePoints(y, seed)
		mirrored, merr := ChangePoints(negated(y), seed)
		if err != nil || merr != nil {
			t.Fatal(err, merr)
		}
		for i := range mirrored {
			mirrored[i].Before, mirrored[i].After = -mirrored[i].Before, -mirrored[i].After
			mirrored[i].Step = math.Expm1(mirrored[i].After - mirrored[i].Before)
		}
		if fmt.Sprint(got) != fmt.Sprint(mirrored) {
			t.Errorf("seed %d: got %v, mirrored %v", seed, got, mirrored)
		}
	}
}
