package form

import (
	"maps"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Shapes of a content that parts alone do not imply.
const (
	ShapeString = "string"
	ShapeList   = "list"
	ShapeNull   = "null"
	ShapeAbsent = "absent"
	// ShapeValue: content is another JSON value, stored as text in the one part of type json.
	ShapeValue = "value"
)

// partJSON is the type of a part that keeps a foreign JSON value as text, when it has no type of its own.
const partJSON = "json"

// Detail is the rest of a provider's message or part besides text, calls and results. It is stored in source{} under a
// key of the form; all of it may be deleted without losing text, calls or results.
type Detail struct {
	// Role of the provider, if it is not one of ours (developer, function).
	Role string `json:"role,omitzero"`
	// Content is the shape of the content if it is not the natural one.
	Content string `json:"content,omitzero"`
	// Field is the message's member for the part, if it is not content or tool_calls.
	Field string `json:"field,omitzero"`
	// Type of the provider's part or call, if ours does not imply it.
	Type string `json:"type,omitzero"`
	// ID as written by the provider, if it could not be ours.
	ID jsontext.Value `json:"id,omitzero"`
	// Name as written by the provider, if it could not be ours.
	Name jsontext.Value `json:"name,omitzero"`
	// IsError of a response that is stored in the message itself, or that is not a boolean.
	IsError jsontext.Value `json:"is_error,omitzero"`
	// JSON: the part's content is the JSON text of the provider's whole part.
	JSON bool `json:"json,omitzero"`
	// Absent members that are usually present.
	Absent []string `json:"absent,omitzero"`
	// Members of the message, part or call that this package does not know, unchanged.
	Members map[string]jsontext.Value `json:"members,omitzero"`
	// Inner members of the object inside the part or call (function, image_url, source).
	Inner map[string]jsontext.Value `json:"inner,omitzero"`
	// From is the source of a result that is not the call's outcome.
	From string `json:"from,omitzero"`
}

// IsZero reports whether there is nothing to keep.
func (d *Detail) IsZero() bool {
	return d.Role == "" && d.Content == "" && d.Field == "" && d.Type == "" && d.ID == nil && d.Name == nil &&
		d.IsError == nil && !d.JSON && len(d.Absent) == 0 && d.Members == nil && len(d.Inner) == 0 && d.From == ""
}

// Lacking notes that a member is absent.
func (d *Detail) Lacking(name string) { d.Absent = append(d.Absent, name) }

// Lacks reports whether a member was absent.
func (d *Detail) Lacks(name string) bool { return slices.Contains(d.Absent, name) }

// Source returns the stored form; nil if there is nothing to keep.
func (d *Detail) Source(key string) jsontext.Value {
	if d.IsZero() {
		return nil
	}
	return Marshal(map[string]*Detail{key: d})
}

// DetailOf reads the detail in source{} under the first present key; found is false if there is none.
func DetailOf(source jsontext.Value, keys ...string) (d Detail, found bool) {
	found = Stored(source, &d, keys...)
	return d, found
}

// Stored decodes source{} under the first present key into a value, which stays zero if there is none.
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

// Call is a call of a message whose id is not assigned yet.
type Call struct {
	// Part of the message for it.
	Part int
	// ID, Name and Arguments as they were; nil when absent.
	ID, Name, Arguments jsontext.Value
	// Legacy calls have no id, and are found by name.
	Legacy bool
	Detail Detail
}

// Response is a result whose call is not found yet.
type Response struct {
	// Part of the message for it.
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

// Message is a provider's message in our form, before ids are assigned: the parts of calls and responses are still
// empty.
type Message struct {
	schema.Message
	Detail    Detail
	Calls     []Call
	Responses []Response
	// Unrecorded counts the calls or parts of a list that is too long and was kept unchanged.
	Unrecorded int
}

// members keeps the rest of a provider's message, of any size: the SDK moves a large source to the blob store.
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

// foreignType reports whether a provider's type can be used unchanged without being mistaken for one of ours.
func foreignType(t string) bool {
	switch t {
	case "", schema.PartText, schema.PartReasoning, schema.PartToolCall, schema.PartToolCallResponse,
		schema.PartBlob, schema.PartFile, schema.PartURI, partJSON:
		return false
	}
	return len(t) <= 64
}

// MaxMember is the maximum detail of a part, in bytes. A larger part is kept as its JSON text.
const MaxMember = 16 << 10

// maxParts bounds the parts of one message.
const maxParts = 512

// content converts the member content to parts and returns its shape. block converts one element of a list. A list with
// too many elements becomes one unchanged part.
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

// content writes the member content in its noted shape, otherwise in its natural shape.
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

// SortedKeys gives maps the same order everywhere.
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
