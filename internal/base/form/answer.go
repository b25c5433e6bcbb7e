package form

import (
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Keys in source{} of the forms.
const (
	KeyAnthropic = "anthropic"
	KeyChat      = "openai-chat"
	KeyResponses = "openai-responses"
)

// partJSON is the type of a part that keeps a foreign JSON value as text, when it has no type of its own.
const partJSON = "json"

const (
	// maxMember is the maximum detail of a part, in bytes. A larger part is kept as its JSON text.
	maxMember = 16 << 10
	// maxParts bounds the parts of an answer.
	maxParts = 512
)

// Detail is the rest of a provider's message or part besides text and calls. It is stored in source{} under a key of
// the form; all of it may be deleted without losing text or calls.
type Detail struct {
	// Field is the message's member for the part, if it is not content or tool_calls.
	Field string `json:"field,omitzero"`
	// Type of the provider's part, if ours does not imply it.
	Type string `json:"type,omitzero"`
	// List: the content of a chat message is a list, even of one text.
	List bool `json:"list,omitzero"`
	// AsIs: the arguments of a call are not of the kind that the API demands.
	AsIs bool `json:"as_is,omitzero"`
	// JSON: the part's content is the JSON text of the provider's whole part.
	JSON bool `json:"json,omitzero"`
	// Members of the message, part or call that this package does not know, unchanged.
	Members Object `json:"members,omitempty"`
	// Inner members of the object inside the part or call.
	Inner Object `json:"inner,omitempty"`
}

// Source returns the stored form under the key of a form; nil if there is nothing to keep.
func (d *Detail) Source(key string) (jsontext.Value, error) {
	v, err := Marshal(map[string]*Detail{key: d})
	if string(v) == `{"`+key+`":{}}` {
		return nil, err
	}
	return v, err
}

// detailOf reads the detail in source{} under a key; found is false if there is none.
func detailOf(source jsontext.Value, key string) (d Detail, found bool) {
	var all Object
	if len(source) == 0 || json.Unmarshal(source, &all) != nil || all[key] == nil || json.Unmarshal(all[key], &d) != nil {
		return Detail{}, false
	}
	return d, true
}

// Call is a call of an answer. Its arguments are nil when absent.
type Call struct {
	ID, Name  string
	Arguments jsontext.Value
}

// Answer is a model's answer in our form.
type Answer struct {
	schema.Message
	Calls []Call

	key string // of the form
}

func newAnswer(key string) *Answer {
	return &Answer{Message: schema.Message{Role: schema.RoleAssistant}, key: key}
}

// add appends a part with its detail. v is the provider's whole part.
func (a *Answer) add(v jsontext.Value, part schema.Part, d *Detail) error {
	var err error
	if part.Source, err = d.Source(a.key); err != nil {
		return err
	}
	if len(part.Source) > maxMember {
		return a.addForeign(v)
	}
	return a.append(part)
}

func (a *Answer) append(part schema.Part) error {
	if len(a.Parts) == maxParts {
		return fmt.Errorf("the answer has more than %d parts", maxParts)
	}
	a.Parts = append(a.Parts, part)
	return nil
}

// addForeign keeps a foreign value: its JSON text is the part's content.
func (a *Answer) addForeign(v jsontext.Value) error {
	typ := partJSON
	if o, ok := ParseObject(v); ok {
		if t, ok := o.Str("type"); ok && isForeignType(t) {
			typ = t
		}
	}
	source, err := (&Detail{JSON: true}).Source(a.key)
	if err != nil {
		return err
	}
	text := string(v)
	return a.append(schema.Part{Type: typ, Content: &text, Source: source})
}

// isForeignType reports whether a provider's type can be used unchanged without being mistaken for one of ours.
func isForeignType(t string) bool {
	switch t {
	case "", schema.PartText, schema.PartReasoning, schema.PartToolCall, schema.PartToolCallResponse,
		schema.PartBlob, schema.PartFile, schema.PartURI, partJSON:
		return false
	}
	return len(t) <= 64
}

// addCall takes the id of a call from the member idName of o, and its name and arguments from fn. usual is the kind of
// arguments that the API demands.
func (a *Answer) addCall(o, fn Object, idName, argumentsName string, usual jsontext.Kind, d *Detail) error {
	n := len(a.Calls) + 1
	id, name, arguments := o.Take(idName), fn.Take("name"), fn.Take(argumentsName)
	if arguments.Kind() == 'n' {
		arguments = nil
	}
	idText, ok := unquote(id)
	if id != nil && !ok {
		return fmt.Errorf("call %d has the id %.80s, which is not a string", n, id)
	}
	nameText, ok := unquote(name)
	if name != nil && !ok {
		return fmt.Errorf("call %d has the name %.80s, which is not a string", n, name)
	}
	d.AsIs = arguments != nil && arguments.Kind() != usual
	part := schema.CallPart(idText, nameText)
	var err error
	if part.Source, err = d.Source(a.key); err != nil {
		return err
	}
	a.Calls = append(a.Calls, Call{ID: idText, Name: nameText, Arguments: arguments})
	return a.append(part)
}

// Usage reads the token counts of a model call, with the names of any form. Those without a field of their own are
// Extra. It returns nil if the value is not an object.
func Usage(v jsontext.Value) (*schema.Usage, error) {
	o, ok := ParseObject(v)
	if !ok {
		return nil, nil
	}
	take := func(names ...string) (count int64) {
		for _, name := range names {
			if n, ok := integer(o.Take(name)); ok && n >= 0 {
				count = n
			}
		}
		return count
	}
	u := &schema.Usage{
		InputTokens:              take("input_tokens", "prompt_tokens"),
		OutputTokens:             take("output_tokens", "completion_tokens"),
		CacheReadInputTokens:     take("cache_read_input_tokens"),
		CacheCreationInputTokens: take("cache_creation_input_tokens"),
	}
	within := func(count *int64, name string, details ...string) {
		for _, d := range details {
			inner, _ := ParseObject(o[d])
			if n, ok := integer(inner[name]); ok && n >= 0 {
				*count = n
			}
		}
	}
	within(&u.CacheReadInputTokens, "cached_tokens", "prompt_tokens_details", "input_tokens_details")
	within(&u.ReasoningOutputTokens, "reasoning_tokens", "completion_tokens_details", "output_tokens_details")
	var err error
	if len(o) > 0 {
		u.Extra, err = Marshal(o)
	}
	return u, err
}
