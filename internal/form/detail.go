package form

import (
	"maps"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Shapes of a content that parts alone do not tell.
const (
	ShapeString = "string"
	ShapeList   = "list"
	ShapeNull   = "null"
	ShapeAbsent = "absent"
	// ShapeValue: content is another JSON value; it stands as text in the one part of type json.
	ShapeValue = "value"
)

// partJSON is the type of a part that keeps a foreign JSON value as text, when it has no type of its own.
const partJSON = "json"

// Detail is what a provider's message or part has beyond text, calls and results. It is stored in source{}
// under a key of the form; all of it may be deleted without losing text, calls or results.
type Detail struct {
	// Role of the provider, when it is none of ours (developer, function).
	Role string `json:"role,omitzero"`
	// Content is the shape of the content where it is not the natural one.
	Content string `json:"content,omitzero"`
	// Field is the member of the message that the part stands for, when it is not content or tool_calls.
	Field string `json:"field,omitzero"`
	// Type of the provider's part or call, where ours does not tell.
	Type string `json:"type,omitzero"`
	// ID as the provider wrote it, when it could not be ours.
	ID jsontext.Value `json:"id,omitzero"`
	// Name as the provider wrote it, when it could not be ours.
	Name jsontext.Value `json:"name,omitzero"`
	// IsError of a response that is stored in the message itself, or that is no boolean.
	IsError jsontext.Value `json:"is_error,omitzero"`
	// JSON: the part's content is the JSON text of the provider's whole part.
	JSON bool `json:"json,omitzero"`
	// Absent members that are usually there.
	Absent []string `json:"absent,omitzero"`
	// Members of the message, part or call that this package does not know, as they were.
	Members map[string]jsontext.Value `json:"members,omitzero"`
	// Inner members of the object inside the part or call (function, image_url, source).
	Inner map[string]jsontext.Value `json:"inner,omitzero"`
	// From says where a result is that is not the call's outcome.
	From string `json:"from,omitzero"`
}

// IsZero reports whether there is nothing to keep.
func (d *Detail) IsZero() bool {
	return d.Role == "" && d.Content == "" && d.Field == "" && d.Type == "" && d.ID == nil && d.Name == nil &&
		d.IsError == nil && !d.JSON && len(d.Absent) == 0 && d.Members == nil && len(d.Inner) == 0 && d.From == ""
}

// Lacking notes that a member is not there.
func (d *Detail) Lacking(name string) { d.Absent = append(d.Absent, name) }

// Lacks reports whether a member was not there.
func (d *Detail) Lacks(name string) bool { return slices.Contains(d.Absent, name) }

// Source returns the stored form; nil when there is nothing to keep.
func (d *Detail) Source(key string) jsontext.Value {
	if d.IsZero() {
		return nil
	}
	return Marshal(map[string]*Detail{key: d})
}

// DetailOf reads what source{} keeps under the first of the keys that it has; found is false when it keeps nothing.
func DetailOf(source jsontext.Value, keys ...string) (d Detail, found bool) {
	found = Stored(source, &d, keys...)
	return d, found
}

// Stored reads what source{} keeps under the first of the keys that it has into a value, which is left zero if there is nothing.
func Stored[T any](source jsontext.Value, into *T, keys ...string) bool {
	if len(source) == 0 {
		return false
	}
	var all map[string]jsontext.Value
	if err := json.Unmarshal(source, &all); err != nil {
		return false
	}
	for _, key := range keys {
		raw, ok := all[key]
		if !ok {
			continue
		}
		var read T
		if err := json.Unmarshal(raw, &read); err != nil {
			return false
		}
		*into = read
		return true
	}
	return false
}

// Writer builds a JSON object in order.
type Writer struct {
	b     []byte
	count int
}

// Set writes a member.
func (w *Writer) Set(name string, v jsontext.Value) {
	if w.count == 0 {
		w.b = append(w.b, '{')
	} else {
		w.b = append(w.b, ',')
	}
	w.count++
	w.b = append(append(append(w.b, Quote(name)...), ':'), v...)
}

// Str writes a member that is a string.
func (w *Writer) Str(name, s string) { w.Set(name, Quote(s)) }

// Members writes members in the order of their names.
func (w *Writer) Members(m map[string]jsontext.Value) {
	for _, name := range SortedKeys(m) {
		w.Set(name, m[name])
	}
}

// Value is the object.
func (w *Writer) Value() jsontext.Value {
	if w.count == 0 {
		return jsontext.Value("{}")
	}
	return append(w.b, '}')
}

// Array returns a JSON array of values.
func Array(values []jsontext.Value) jsontext.Value {
	b := []byte{'['}
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, v...)
	}
	return append(b, ']')
}

// Call is a call of a message whose id is still to be given.
type Call struct {
	// Part of the message that stands for it.
	Part int
	// ID, Name and Arguments as they were; nil when absent.
	ID, Name, Arguments jsontext.Value
	// Legacy calls have no id, and are found by name.
	Legacy bool
	Detail Detail
}

// Response is a result whose call is still to be found.
type Response struct {
	// Part of the message that stands for it.
	Part int
	// ID and Content as they were; nil when absent.
	ID, Content jsontext.Value
	// Legacy is the function's name, for results without id.
	Legacy  string
	IsError *bool
	Detail  Detail
}

// SetContent takes a response's content. A null result and no result look alike to some readers of JSON,
// and only strings and lists are what providers expect, so other shapes are noted.
func (p *Response) SetContent(v jsontext.Value) {
	p.Content = Compact(v)
	switch v.Kind() {
	case '"', '[':
	case 'n':
		p.Detail.Content = ShapeNull
	default:
		p.Detail.Content = ShapeValue
	}
}

// Message is a provider's message in our form, before ids are given: the parts of calls and responses are still empty.
type Message struct {
	schema.Message
	Detail    Detail
	Calls     []Call
	Responses []Response
	// Unrecorded counts the calls, or the parts, of a list that is too long and was kept as it was.
	Unrecorded int
}

// members keeps what is left of a provider's message, of any size: the SDK moves a large source to the blob store.
func (m *Message) members(o *Object) {
	m.Detail.Members = o.Rest()
	for name, v := range m.Detail.Members {
		m.Detail.Members[name] = Compact(v)
	}
}

// foreignPart keeps a foreign value: its JSON text is the part's content.
func foreignPart(v jsontext.Value, key string) schema.Part {
	typ := partJSON
	if o, ok := ParseObject(v); ok {
		if t, ok := o.Str("type"); ok && foreignType(t) {
			typ = t
		}
	}
	text := string(Compact(v))
	return schema.Part{Type: typ, Content: &text, Source: (&Detail{JSON: true}).Source(key)}
}

// foreignType reports whether a provider's type may stand as ours without being taken for one of ours.
func foreignType(t string) bool {
	switch t {
	case "", schema.PartText, schema.PartReasoning, schema.PartToolCall, schema.PartToolCallResponse,
		schema.PartBlob, schema.PartFile, schema.PartURI, partJSON:
		return false
	}
	return len(t) <= 64
}

// MaxMember is the largest detail of a part, in bytes. A part with more is kept as the JSON text that it was.
const MaxMember = 16 << 10

// maxParts bounds the parts of one message.
const maxParts = 512

// content turns the member content into parts and returns its shape. block takes one element of a list. A list with more elements than a
// message takes is one part, as it was.
func (m *Message) content(o *Object, key string, block func(jsontext.Value)) string {
	v, has := o.Take("content")
	if !has {
		return ShapeAbsent
	}
	switch v.Kind() {
	case 'n':
		return ShapeNull
	case '"':
		s, _ := Unquote(v)
		m.Parts = append(m.Parts, schema.Text(s))
		return ShapeString
	case '[':
		values, _ := ParseArray(v)
		if len(values) > maxParts {
			m.Unrecorded = len(values)
			m.Parts = append(m.Parts, foreignPart(v, key))
			return ShapeValue
		}
		for _, e := range values {
			block(e)
		}
		return ShapeList
	default:
		m.Parts = append(m.Parts, foreignPart(v, key))
		return ShapeValue
	}
}

// content writes the member content in the shape it had, or in its natural shape when none was noted.
func (w *Writer) content(shape, natural string, parts []schema.Part, block func(*schema.Part) jsontext.Value) {
	if shape == "" {
		shape = natural
	}
	switch {
	case shape == ShapeAbsent && len(parts) == 0:
	case shape == ShapeNull && len(parts) == 0:
		w.Set("content", jsontext.Value("null"))
	case shape == ShapeString && len(parts) == 1 && parts[0].Content != nil:
		w.Str("content", *parts[0].Content)
	case shape == ShapeValue && len(parts) == 1 && parts[0].Content != nil:
		w.Set("content", jsontext.Value(*parts[0].Content))
	default:
		blocks := make([]jsontext.Value, len(parts))
		for i := range parts {
			blocks[i] = block(&parts[i])
		}
		w.Set("content", Array(blocks))
	}
}

// SortedKeys makes the order of maps the same everywhere.
func SortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func orNull(v jsontext.Value) jsontext.Value {
	if v == nil {
		return jsontext.Value("null")
	}
	return v
}

func writeID(o *Writer, name, id string, d *Detail) {
	switch {
	case d.ID != nil:
		o.Set(name, d.ID)
	case !d.Lacks("id"):
		o.Str(name, id)
	}
}

func writeName(o *Writer, name string, d *Detail) {
	switch {
	case d.Name != nil:
		o.Set("name", d.Name)
	case !d.Lacks("name"):
		o.Str("name", name)
	}
}
