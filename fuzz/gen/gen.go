// Package gen turns bytes into what is tried on the sandbox: scripts, inputs,
// results with the JSON they must give, and operation lists for a pool.
//
// All of them are documents: one version byte and then words. A word names a
// production, or is a number where one is wanted. Any other word stands for the
// production that its hash is nearest to, so that every change a fuzzer makes
// still means something, and so that a production that is added takes over only
// what was near it. Names keep their meaning for as long as the version stands:
// a corpus of names says what it tries, and a reducer drops words.
//
// One document means the same to native fuzzing, to gopter properties and to
// the reducer. Decoding is pure and bounded: at most [MaxWords] words count.
package gen

import (
	"errors"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
)

// Version is the first byte of every document. It changes when names change
// their meaning; a document of another version is refused, never reinterpreted.
const Version = '1'

// MaxWords is how many words of a document count.
const MaxWords = 400

// ErrVersion refuses a document that does not begin with [Version].
var ErrVersion = errors.New("gen: the document does not begin with the version byte " + strconv.QuoteRune(Version))

// Join makes a document of words.
func Join(words ...string) []byte {
	return []byte(strings.Join(append([]string{string(Version)}, words...), " "))
}

// Split gives the words of a document, at most [MaxWords].
func Split(data []byte) ([]string, error) {
	if len(data) == 0 || data[0] != Version {
		return nil, ErrVersion
	}
	words := strings.FieldsFunc(string(data[1:]), func(r rune) bool { return r <= ' ' })
	return words[:min(len(words), MaxWords)], nil
}

// vocabulary is a set of names that any word can be mapped to.
type vocabulary struct {
	names []string
	index map[string]int
	ring  []point // sorted by at
}

type point struct {
	at   uint32
	name int
}

// ringPoints is how many points a name has on the ring: with one alone the
// shares of names would differ by orders of magnitude.
const ringPoints = 16

func newVocabulary(names []string) *vocabulary {
	v := &vocabulary{names: names, index: make(map[string]int, len(names))}
	for i, n := range names {
		if _, twice := v.index[n]; twice || n == "" || strings.ContainsAny(n, " :\n") {
			panic("gen: bad name or two of it: " + strconv.Quote(n))
		}
		v.index[n] = i
		for k := range ringPoints {
			v.ring = append(v.ring, point{hash(n + "\x00" + strconv.Itoa(k)), i})
		}
	}
	slices.SortFunc(v.ring, func(a, b point) int {
		if a.at != b.at {
			return int(int64(a.at) - int64(b.at))
		}
		return strings.Compare(names[a.name], names[b.name])
	})
	return v
}

// pick gives the name that word is, or stands for.
func (v *vocabulary) pick(word string) int {
	if i, ok := v.index[word]; ok {
		return i
	}
	h := hash(word)
	at, _ := slices.BinarySearchFunc(v.ring, h, func(p point, h uint32) int { return int(int64(p.at) - int64(h)) })
	return v.ring[at%len(v.ring)].name
}

func hash(s string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(s)) // never fails
	x := h.Sum32()
	x ^= x >> 16 // FNV leaves the upper bits of short words alike
	x *= 0x85ebca6b
	x ^= x >> 13
	x *= 0xc2b2ae35
	return x ^ x>>16
}

// reader hands out the words of a document and notes what they stood for.
type reader struct {
	words []string
	canon []string
}

func (r *reader) more() bool { return len(r.words) > 0 }

// name reads a word as one of v; none is left: the given one.
func (r *reader) name(v *vocabulary, none int) int {
	if !r.more() {
		return none
	}
	i := v.pick(r.words[0])
	r.words = r.words[1:]
	r.canon = append(r.canon, v.names[i])
	return i
}

// directive takes the next word if it is, exactly, a name of v.
func (r *reader) directive(v *vocabulary) (int, bool) {
	if !r.more() {
		return 0, false
	}
	i, ok := v.index[r.words[0]]
	if ok {
		r.words = r.words[1:]
		r.canon = append(r.canon, v.names[i])
	}
	return i, ok
}

// number reads a word as a whole number of at most 16 digits, or as one of v.
func (r *reader) number(v *vocabulary) string {
	if !r.more() {
		return "1"
	}
	w := r.words[0]
	if len(w) > 16 || strings.Trim(w, "0123456789") != "" || len(w) > 1 && w[0] == '0' {
		return v.names[r.name(v, 0)]
	}
	r.words = r.words[1:]
	r.canon = append(r.canon, w)
	return w
}

// count reads a word as a number of 0 to most; what is none, or too large, stands for one within.
func (r *reader) count(most int) int {
	if !r.more() {
		return 1
	}
	w := r.words[0]
	r.words = r.words[1:]
	n, err := strconv.Atoi(w)
	if err != nil || n < 0 || n > most || strconv.Itoa(n) != w {
		n = int(hash(w) % uint32(most+1))
	}
	r.canon = append(r.canon, strconv.Itoa(n))
	return n
}

// argument splits a word of the form name:number; the number is 0 to most. What is no
// number, or too large, stands for one within.
func (r *reader) argument(v *vocabulary, most int) (name, n int) {
	word, arg, has := strings.Cut(r.words[0], ":")
	r.words = r.words[1:]
	name = v.pick(word)
	if has {
		var err error
		if n, err = strconv.Atoi(arg); err != nil || n < 0 || n > most || strconv.Itoa(n) != arg {
			n = int(hash(arg) % uint32(most+1))
		}
	}
	canon := v.names[name]
	if has {
		canon += ":" + strconv.Itoa(n)
	}
	r.canon = append(r.canon, canon)
	return name, n
}
