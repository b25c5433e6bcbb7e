package schema

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// SameJSON reports whether two JSON values mean the same: white space, the order of members and the spelling of
// strings and numbers do not count. Numbers are compared by their exact decimal value, as text: 1, 1.0 and 1e0 are
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
	x, ok := decimalOf(a)
	y, ok2 := decimalOf(b)
	return ok && ok2 && x == y
}

// decimal is a number's one form: digits times ten to the power of exponent, without zeros at either end of digits. Zero
// has no digits, and no sign.
type decimal struct {
	negative bool
	digits   string
	exponent int64
}

// maxExponent bounds the exponents that are computed with. Larger numbers are equal only if their text is.
const maxExponent = 1 << 60

// decimalOf reads a valid JSON number; false for an exponent beyond maxExponent.
func decimalOf(text string) (decimal, bool) {
	d := decimal{}
	text, d.negative = strings.CutPrefix(text, "-")
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		n, err := strconv.ParseInt(text[i+1:], 10, 64)
		if err != nil || n > maxExponent || n < -maxExponent {
			return d, false
		}
		text, d.exponent = text[:i], n
	}
	whole, fraction, _ := strings.Cut(text, ".")
	d.exponent -= int64(len(fraction))
	d.digits = strings.TrimLeft(whole+fraction, "0")
	short := strings.TrimRight(d.digits, "0")
	d.exponent += int64(len(d.digits) - len(short))
	if d.digits = short; short == "" {
		return decimal{}, true
	}
	return d, true
}
