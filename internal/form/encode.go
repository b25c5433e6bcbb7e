package form

import (
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Encoder writes messages.
type Encoder struct {
	// Keys in source{} under which details of the form may be; the first present one counts.
	Keys []string
	// Outcome returns the outcome of a part's call, and nil for an unknown isError. nil takes the outcome from the
	// part.
	Outcome func(p *schema.Part, d *Detail) (response jsontext.Value, isError *bool)
	// Reasoning is the member of a chat message for the reasoning of another form.
	Reasoning string
	// Observations: the ids of responses are in a list, as in SWE-agent's history.
	Observations bool
	// Strict writes the format of the provider's API. A part without a place in it is an error ([Encoder.Err]). A list
	// is the content of a result only if it consists of the form's blocks. Reasoning of another provider is omitted,
	// because no provider accepts it.
	Strict bool

	err error
}

// Err is the error of a strict encoder that could not write a part; nil if it could.
func (e *Encoder) Err() error { return e.err }

// place notes a part without a place in the form.
func (e *Encoder) place(p *schema.Part, fits bool) {
	if e.Strict && !fits && e.err == nil {
		e.err = fmt.Errorf("no place for a part of type %.60q (modality %.60q)", p.Type, p.Modality)
	}
}

func (e *Encoder) outcome(p *schema.Part, d *Detail) (response jsontext.Value, isError *bool) {
	if e.Outcome != nil {
		return e.Outcome(p, d)
	}
	if p.IsError {
		isError = &p.IsError
	}
	return p.Response, isError
}

// takesList reports whether a list result is written as a list. A strict encoder requires a list of blocks, each with
// the member that blocks names for its type.
func (e *Encoder) takesList(v jsontext.Value, blocks map[string]string) bool {
	if !e.Strict {
		return true
	}
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

// callID is an id in the format of a strict provider.
func (e *Encoder) callID(id string) string {
	if !e.Strict {
		return id
	}
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, id)
}
