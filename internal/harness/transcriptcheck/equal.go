package transcriptcheck

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"slices"
	"strings"
)

// ErrDifferent is wrapped by every difference that is found.
var ErrDifferent = errors.New("differs from the source")

func differ(path, format string, args ...any) error {
	if path == "" {
		path = "/"
	}
	return fmt.Errorf("%w at %s: %s", ErrDifferent, path, fmt.Sprintf(format, args...))
}

// parse reads one JSON value; numbers keep their text.
func parse(b []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the value")
	}
	return v, nil
}

// equal compares two JSON values: members in any order, numbers by value. It returns the first difference.
func equal(path string, want, got any) error {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return differ(path, "want an object, got %s", show(got))
		}
		for _, k := range slices.Sorted(maps.Keys(w)) {
			v, has := g[k]
			if !has {
				return differ(path+"/"+k, "is missing, want %s", show(w[k]))
			}
			if err := equal(path+"/"+k, w[k], v); err != nil {
				return err
			}
		}
		for _, k := range slices.Sorted(maps.Keys(g)) {
			if _, has := w[k]; !has {
				return differ(path+"/"+k, "is not in the source: %s", show(g[k]))
			}
		}
	case []any:
		g, ok := got.([]any)
		if !ok {
			return differ(path, "want a list, got %s", show(got))
		}
		for i := range min(len(w), len(g)) {
			if err := equal(fmt.Sprintf("%s/%d", path, i), w[i], g[i]); err != nil {
				return err
			}
		}
		if len(w) != len(g) {
			return differ(path, "want %d elements, got %d", len(w), len(g))
		}
	case json.Number:
		g, ok := got.(json.Number)
		if !ok || !sameNumber(w.String(), g.String()) {
			return differ(path, "want %s, got %s", w, show(got))
		}
	default:
		if want != got {
			return differ(path, "want %s, got %s", show(want), show(got))
		}
	}
	return nil
}

func sameNumber(a, b string) bool {
	if a == b {
		return true
	}
	if len(a) > 64 || len(b) > 64 || strings.ContainsAny(a+b, "eE") {
		return false
	}
	x, ok := new(big.Rat).SetString(a)
	y, ok2 := new(big.Rat).SetString(b)
	return ok && ok2 && x.Cmp(y) == 0
}

func show(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprintf("%T", v)
	}
	if len(b) > 160 {
		return string(b[:160]) + "…"
	}
	return string(b)
}
