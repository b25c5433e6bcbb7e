package form

import (
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Encoder writes messages.
type Encoder struct {
	// Keys in source{} under which details of the form may be; the first that is there counts.
	Keys []string
	// Outcome returns what became of the call that a part answers, and nil for an isError that is not said. nil takes it from the part.
	Outcome func(p *schema.Part, d *Detail) (response jsontext.Value, isError *bool)
	// Reasoning is the member of a chat message for the reasoning of another form.
	Reasoning string
	// Observations: the ids of responses stand in a list, as in SWE-agent's history.
	Observations bool
	// Strict writes what the provider's API takes. What it has no place for is an error ([Encoder.Err]), a list is the content of a result
	// only where it is made of the form's blocks, and reasoning that is not the provider's own is left out: no provider takes another's.
	Strict bool

	err error
}

// Err is why a strict encoder could not write a part; nil if it could.
func (e *Encoder) Err() error { return e.err }

// place notes a part that the form has no place for.
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

// takesList reports whether a result that is a list is written as one: of a strict encoder one of blocks, each of which has the member that
// blocks names for its type.
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

// callID is an id as a strict provider takes it.
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
