package session

import (
	"encoding/json"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

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

// around is how many levels of nesting a record has around a result.
const around = 10

// Keepable is a result that an event can have: other JSON becomes a text.
func Keepable(r publisher.ToolResult) publisher.ToolResult {
	r.Duration = max(r.Duration, 0)
	inside := schema.Event{Data: []byte(strings.Repeat("[", around) + string(r.Result) + strings.Repeat("]", around))}
	if !inside.Embeddable() {
		r.Result, _ = json.Marshal("(waymark keeps this result as text: it is no JSON, names a member twice, or is nested too deep) " + string(r.Result)) // a text
	}
	return r
}
