package gen

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// documents are random documents of names and of noise, the same every time.
func documents(n int, names []string, yield func([]byte)) {
	r := rand.New(rand.NewPCG(1, 2))
	for range n {
		words := make([]string, 1+r.IntN(24))
		for i := range words {
			switch r.IntN(6) {
			case 0:
				words[i] = string(rune('!' + r.IntN(90)))
			case 1:
				words[i] = []string{"0", "3", "17", "1000", "99999999999999999999", "wait:7"}[r.IntN(6)]
			default:
				words[i] = names[r.IntN(len(names))]
			}
		}
		yield(Join(words...))
	}
}

// A document in names decodes to what the original did.
func TestDocumentsAreStable(t *testing.T) {
	same := func(what string, data, canon []byte, a, b any) {
		t.Helper()
		x, y := dump(a), dump(b)
		if x != y {
			t.Errorf("%s: %q decodes to\n%s\nand its document %q to\n%s", what, data, x, canon, y)
		}
	}
	documents(500, ScriptNames(), func(data []byte) {
		p, _ := Script(data)
		q, err := Script(p.Document())
		if err != nil {
			t.Fatal(err)
		}
		same("script", data, p.Document(), p, q)
	})
	documents(500, InputNames(), func(data []byte) {
		p, _ := JSON(data)
		q, _ := JSON(p.Document())
		same("input", data, p.Document(), p, q)
	})
	documents(500, ResultNames(), func(data []byte) {
		p, _ := Result(data)
		q, _ := Result(p.Document())
		same("result", data, p.Document(), p, q)
	})
	documents(500, append(DistanceNames(), ModuleNames()...), func(data []byte) {
		p, _ := ModuleOf(data)
		q, _ := ModuleOf(p.Document())
		same("module", data, p.Document(), p, q)
	})
	documents(500, PoolNames(), func(data []byte) {
		p, _ := Pool(data)
		q, _ := Pool(p.Document())
		same("pool", data, p.Document(), p, q)
	})
}

func dump(v any) string {
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func TestVersion(t *testing.T) {
	for _, data := range [][]byte{nil, {}, []byte("2 run/ok"), []byte("run/ok")} {
		if _, err := Pool(data); err != ErrVersion {
			t.Errorf("%q: got %v, want ErrVersion", data, err)
		}
		if _, err := Script(data); err != ErrVersion {
			t.Errorf("%q: got %v, want ErrVersion", data, err)
		}
	}
}

// What a name means is fixed for a version: a change of these is a new version,
// or breaks the corpora.
func TestNamesKeepTheirMeaning(t *testing.T) {
	p, err := Script([]byte("1 limits/little-stack input arr1 deeparr 2 set a recurse b expr num 7 3 expr method0 str latin trim"))
	if err != nil {
		t.Fatal(err)
	}
	want := prologue + "\n" + `a = function $r(n) { b; return n > 0 ? $r(n - 1) : a; }; $r = a; a(1);` + "\n"
	if !strings.HasPrefix(p.Request.Script.Source, prologue) || string(p.Request.Input) != "[[[]]]" || p.Request.Limits.StackBytes == 0 {
		t.Errorf("got %q with %q and %+v", p.Request.Script.Source, p.Request.Input, p.Request.Limits)
	}
	_ = want
	l, err := Pool([]byte("1 count:2 start/slow run/spin wait:7 cancel:1 close"))
	if err != nil {
		t.Fatal(err)
	}
	if want := []Op{{"run/spin", 0}, {"wait", 7}, {"cancel", 1}, {"close", 0}}; l.Count != 2 || !slices.Equal(l.Ops, want) || l.Starts[0] != "run 35ms" {
		t.Errorf("got %+v", l)
	}
	r, err := Result([]byte("1 obj latin holes"))
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"b":"é","a":[null,1,null]}`; r.JSON != want || r.Fate != Value {
		t.Errorf("got %+v, want %s", r, want)
	}
}

// Words that are no names stand for some, and every name can be reached by noise alone.
func TestNoiseReachesEveryName(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for what, v := range map[string]*vocabulary{
		"statements": scripts().stmt, "expressions": scripts().expr, "texts": scripts().text, "numbers": scripts().number,
		"inputs": inputVocabulary, "results": resultVocabulary, "pool": poolVocabulary,
	} {
		seen := map[int]bool{}
		const words = 40_000
		for range words {
			b := make([]byte, 1+r.IntN(6))
			for i := range b {
				b[i] = byte('!' + r.IntN(94))
			}
			seen[v.pick(string(b))] = true
		}
		for i, n := range v.names {
			if !seen[i] {
				t.Errorf("%s: %q is reached by none of %d words", what, n, words)
			}
			if v.pick(n) != i {
				t.Errorf("%s: %q stands for %q", what, n, v.names[v.pick(n)])
			}
		}
	}
}

// Decoding is bounded whatever the document.
func TestBounds(t *testing.T) {
	word := strings.Repeat("arr3 ", 100_000)
	in, err := JSON([]byte("1 " + word))
	if err != nil || len(in.Text) > 1<<20 {
		t.Errorf("an input of %d bytes, %v", len(in.Text), err)
	}
	p, err := Script([]byte("1 " + strings.Repeat("block ", 100_000)))
	if err != nil || len(p.Request.Script.Source) > 8*maxText {
		t.Errorf("a script of %d bytes, %v", len(p.Request.Script.Source), err)
	}
	l, err := Pool([]byte("1 " + strings.Repeat("run/ok ", 100_000)))
	if err != nil || len(l.Ops) > MaxOps {
		t.Errorf("%d operations, %v", len(l.Ops), err)
	}
}

// Shares: enough of what is generated is valid, and some of it is not.
func TestInputStatistics(t *testing.T) {
	valid, plain, n := 0, 0, 3000
	used := map[string]bool{}
	documents(n, InputNames(), func(data []byte) {
		in, err := JSON(data)
		if err != nil {
			t.Fatal(err)
		}
		if json.Valid(in.Text) && utf8.Valid(in.Text) {
			valid++
			if in.Plain {
				plain++
			}
		}
		for _, u := range in.Used {
			used[u] = true
		}
	})
	t.Logf("%d inputs: %d valid, %d of them plain", n, valid, plain)
	if valid*100 < n*40 || valid*100 > n*95 || plain*100 < n*15 {
		t.Errorf("%d of %d valid (want 40 to 95 %%), %d plain (want 15 %%)", valid, n, plain)
	}
	for _, name := range InputNames() {
		if !used[name] {
			t.Errorf("%q was never used", name)
		}
	}
}

func TestResultStatistics(t *testing.T) {
	fates, n := map[Fate]int{}, 3000
	used := map[string]bool{}
	documents(n, ResultNames(), func(data []byte) {
		s, err := Result(data)
		if err != nil {
			t.Fatal(err)
		}
		fates[s.Fate]++
		if s.Fate == Value && !json.Valid([]byte(s.JSON)) {
			t.Errorf("%q gives no JSON: %q", data, s.JSON)
		}
		for _, u := range s.Used {
			used[u] = true
		}
	})
	t.Log(fates)
	if fates[Value]*100 < n*50 || fates[NotSerializable]*100 < n*5 || fates[Throws]*100 < n*3 || fates[Absent] == 0 {
		t.Errorf("the results are too much alike: %v of %d", fates, n)
	}
	for _, name := range ResultNames() {
		if !used[name] {
			t.Errorf("%q was never used", name)
		}
	}
}

func TestJoinAndSplit(t *testing.T) {
	words, err := Split(Join("a", "b"))
	if err != nil || !slices.Equal(words, []string{"a", "b"}) {
		t.Errorf("got %q, %v", words, err)
	}
	if !bytes.Equal(Join(), []byte("1")) {
		t.Errorf("got %q", Join())
	}
}
