package form

import (
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Encoder writes messages in the format of the provider's API. A part without a place in it is an error
// ([Encoder.Err]). A list is the content of a result only if it consists of the form's blocks. Reasoning of another
// provider is omitted, because no provider accepts it.
type Encoder struct {
	// Keys in source{} under which details of the form may be; the first present one counts.
	Keys []string

	err error
}

// Err is the error of the first part that could not be written; nil if all could.
func (e *Encoder) Err() error { return e.err }

// place notes a part without a place in the form.
func (e *Encoder) place(p *schema.Part, fits bool) {
	if !fits && e.err == nil {
		e.err = fmt.Errorf("no place for a part of type %.60q (modality %.60q)", p.Type, p.Modality)
	}
}

// takesList reports whether a list result is written as a list: it consists of blocks, each with the member that blocks
// names for its type.
func takesList(v jsontext.Value, blocks map[string]string) bool {
	values, _ := ParseArray(v)
	for _, b := range values {
		o, ok := ParseObject(b)
		if !ok {
			return false
		}
		typ, _ := o.Str("type")
		if _, has := o.Get(blocks[typ]); !has {
			return false
		}
	}
	return len(values) > 0
}

// callID is an id in the format that Anthropic requires.
func callID(id string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, id)
}
