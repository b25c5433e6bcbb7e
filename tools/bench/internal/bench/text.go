package bench

import (
	"math/rand/v2"
	"strings"
	"sync"
)

// Texts use a vocabulary in which, as in any language, a word's frequency is about the inverse of its rank. With these
// numbers zstd compresses them like English prose, to about a third.
const (
	vocabulary = 8192
	frequency  = 1.02
	frequent   = 1 << 16
)

// words are the vocabulary. It takes 10 ms to make, so only measurements make it.
var words = sync.OnceValue(func() []string { return drawn(makeWords()) })

// drawn repeats words by their frequency.
func drawn(all []string) []string {
	z := rand.NewZipf(rand.New(rand.NewPCG(3, 4)), frequency, 8, vocabulary-1) //nolint:gosec // text, not secrets
	list := make([]string, frequent)
	for i := range list {
		list[i] = all[z.Uint64()]
	}
	return list
}

// makeWords makes the same words every time.
func makeWords() []string {
	rng := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // text, not secrets
	const begin, middle = "bcdfghjklmnprstvwz", "aeiou"
	all := make([]string, vocabulary)
	for i := range all {
		var b strings.Builder
		for range 1 + rng.IntN(4) {
			b.WriteByte(begin[rng.IntN(len(begin))])
			b.WriteByte(middle[rng.IntN(len(middle))])
			if rng.IntN(3) == 0 {
				b.WriteByte(begin[rng.IntN(len(begin))])
			}
		}
		all[i] = b.String()
	}
	return all
}

// Text makes random words. The same seed makes the same text. It has one owner.
type Text struct{ rng *rand.Rand }

// NewText returns a source of text.
func NewText(seed uint64) *Text {
	return &Text{rng: rand.New(rand.NewPCG(seed, 0x77617970))} //nolint:gosec // text, not secrets
}

// Bytes returns words of exactly n bytes together.
func (t *Text) Bytes(n int) []byte {
	all := words()
	b := make([]byte, 0, n+16)
	for len(b) < n {
		b = append(b, all[t.rng.IntN(len(all))]...)
		b = append(b, ' ')
	}
	return b[:n]
}

// Quoted returns a JSON string of exactly n bytes, quotes included.
func (t *Text) Quoted(n int) []byte {
	b := append([]byte{'"'}, t.Bytes(n-2)...)
	return append(b, '"')
}
