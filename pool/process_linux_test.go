package pool

import (
	"bytes"
	"strings"
	"testing"
)

// Of what a worker writes to its standard error the first and the last KiB are
// kept, however it comes.
func TestWords(t *testing.T) {
	for _, step := range []int{1, 1000, wordsKept, 3*wordsKept + 1} {
		for _, size := range []int{0, 1, wordsKept - 1, wordsKept, wordsKept + 1, 2*wordsKept - 1, 2 * wordsKept, 2*wordsKept + 1, 100 * wordsKept} {
			text := []byte(strings.Repeat("0123456789abcde", size/15+1))[:size]
			var w words
			for rest := text; len(rest) > 0; {
				n, err := w.Write(rest[:min(step, len(rest))])
				if err != nil {
					t.Fatal(err)
				}
				rest = rest[n:]
			}
			first, last := text[:min(size, wordsKept)], text[max(min(size, wordsKept), size-wordsKept):]
			dropped := int64(size - len(first) - len(last))
			if !bytes.Equal(w.first, first) || !bytes.Equal(w.last, last) || w.dropped != dropped {
				t.Errorf("%d bytes by %d: kept %d and %d, dropped %d, want %d, %d and %d",
					size, step, len(w.first), len(w.last), w.dropped, len(first), len(last), dropped)
			}
			if quoted := w.quote(); (quoted == "") != (size == 0) || strings.Contains(quoted, "bytes more") != (dropped > 0) {
				t.Errorf("%d bytes by %d: quoted as %.60s", size, step, quoted)
			}
		}
	}
}
