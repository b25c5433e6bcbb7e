package session

import "github.com/go-json-experiment/json/jsontext"

// Clean is JSON of another program that can be recorded: halves of characters, which JavaScript and Python allow, are
// replaced.
func Clean(text []byte) jsontext.Value {
	v := jsontext.Value(text)
	if !v.IsValid() {
		v = v.Clone()                                                                                                                   // its reader reads text, too
		_ = v.Canonicalize(jsontext.AllowInvalidUTF8(true), jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false)) // or its reader fails
	}
	return v
}
