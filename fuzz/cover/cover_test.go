package cover

import (
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"testing"
)

// Every bucket has a branch of its own.
func TestEveryBucketHasABranch(t *testing.T) {
	seen := map[uint32]bool{}
	for i := range uint32(Buckets) {
		before := sink
		hit(i)
		seen[sink-before] = true
	}
	if len(seen) != Buckets {
		t.Errorf("%d branches, want %d", len(seen), Buckets)
	}
	file, err := parser.ParseFile(token.NewFileSet(), "buckets.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	cases := 0
	ast.Inspect(file, func(n ast.Node) bool {
		if _, ok := n.(*ast.CaseClause); ok {
			cases++
		}
		return true
	})
	if cases != Buckets {
		t.Errorf("%d cases in buckets.go, want %d: go generate ./fuzz/cover", cases, Buckets)
	}
}

// Features spread evenly: small numbers, which is what features are made of.
func TestFeaturesSpread(t *testing.T) {
	counts := make([]int, Buckets)
	n := 0
	for a := range uint64(32) {
		for b := range uint64(32) {
			for c := range uint64(16) {
				counts[Bucket(a, b, c)]++
				n++
			}
		}
	}
	empty, most := 0, 0
	for _, c := range counts {
		most = max(most, c)
		if c == 0 {
			empty++
		}
	}
	// 4 a bucket on average: by chance 2 % stay empty, and none has 20.
	if empty*100 > Buckets*5 || most > 20 {
		t.Errorf("%d features: %d of %d buckets are empty, one has %d", n, empty, Buckets, most)
	}
	if Bucket(1, 2) == Bucket(2, 1) && Bucket(3, 4) == Bucket(4, 3) {
		t.Error("the order of parts makes no difference")
	}
}

func TestLog2(t *testing.T) {
	for n, want := range map[int64]uint64{-5: 0, 0: 0, 1: 1, 2: 2, 3: 2, 4: 3, 1 << 40: 41} {
		if got := Log2(n); got != want {
			t.Errorf("Log2(%d): got %d, want %d", n, got, want)
		}
	}
	if Name("ok") == Name("error") {
		t.Error("names are not told apart")
	}
}

func BenchmarkMark(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	for b.Loop() {
		Mark(r.Uint64N(8), r.Uint64N(30), r.Uint64N(10))
	}
}
