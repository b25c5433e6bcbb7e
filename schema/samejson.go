package schema

import (
	"bytes"
	"math/big"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// SameJSON reports whether two JSON values mean the same: white space, the order of members and the spelling of
// strings and numbers do not count. Numbers are compared by their exact value: 1, 1.0 and 1e0 are
// equal, 9007199254740992 and 9007199254740993 are not, although both are the same double. A text that is no JSON,
// has a duplicate member or is not UTF-8 equals only itself.
func SameJSON(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	left, right := jsontext.Value(a).Clone(), jsontext.Value(b).Clone()
	// RFC 8785 turns numbers into doubles, so they keep their text.
	exact := []jsontext.Options{jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false)}
	if left.Canonicalize(exact...) != nil || right.Canonicalize(exact...) != nil {
		return false
	}
	if bytes.Equal(left, right) {
		return true
	}
	xs, ys := jsontext.NewDecoder(bytes.NewReader(left)), jsontext.NewDecoder(bytes.NewReader(right))
	for {
		if xs.PeekKind() != ys.PeekKind() {
			return false
		}
		x, err := xs.ReadToken()
		if err != nil {
			return true // both have ended: they are valid, and of the same kinds
		}
		number := x.Kind() == '0'
		text := x.String()
		y, err := ys.ReadToken()
		if err != nil {
			return false
		}
		if text != y.String() && (!number || !sameNumber(text, y.String())) {
			return false
		}
	}
}

// sameNumber compares two JSON numbers by their exact value.
func sameNumber(a, b string) bool {
	x, ok := exact(a)
	y, ok2 := exact(b)
	return ok && ok2 && x.Cmp(y) == 0
}

// exact reads a valid JSON number; false for an exponent of more than four characters, which takes too long to compute
// with. Such numbers are equal only if their text is.
func exact(text string) (*big.Rat, bool) {
	if at := strings.IndexAny(text, "eE"); at >= 0 && len(text)-at > len("e-999") {
		return nil, false
	}
	return new(big.Rat).SetString(text)
}
