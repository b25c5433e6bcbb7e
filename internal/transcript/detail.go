package transcript

import (
	"maps"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Shapes of a content that parts alone do not tell.
const (
	shapeString = "string"
	shapeList   = "list"
	shapeNull   = "null"
	shapeAbsent = "absent"
	// shapeValue: content is another JSON value; it stands as text in the one part of type json.
	shapeValue = "value"
)

// Places of a result other than a call's outcome.
const (
	fromMessage    = "message"
	fromTrajectory = "trajectory"
	fromFirst      = "first"
)

// saidDetail is one message of the assistant in an answer that is made of several.
type saidDetail struct {
	// Parts counts its parts.
	Parts int `json:"parts"`
	// After counts the other messages that stand between the first of the answer and this one.
	After  int            `json:"after,omitzero"`
	Source jsontext.Value `json:"source,omitzero"`
}

// partJSON is the type of a part that keeps a foreign JSON value as text, when it has no type of its own.
const partJSON = "json"

// detail is what a provider's message or part has beyond text, calls and results. It is stored in source{}
// under the name of the format; all of it may be deleted without losing text, calls or results.
type detail struct {
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
	// Line keeps the members of the line around a claude-code message that differ from those of the run's
	// first line, whose common members are the run's own Line. Not nil on every message that was imported.
	Line map[string]jsontext.Value `json:"line,omitzero"`
	// LineAbsent are the common members that this line does not have.
	LineAbsent []string `json:"line_absent,omitzero"`
	// Said are the source's messages of the assistant that an answer is made of, if they are several.
	Said []saidDetail `json:"said,omitzero"`
	// Steps of a swe-agent trajectory that belong to this message, in order.
	Steps []sweStep `json:"steps,omitzero"`
	// Copy: the member named by Field is the same text as the content.
	Copy map[string]string `json:"copy,omitzero"`
	// From says where a result is: in its own message (fromMessage), in the trajectory, with the first
	// of several calls.
	From string `json:"from,omitzero"`
	// Run, of a run's end: the members of the document, where they changed since the run was started.
	Run map[string]jsontext.Value `json:"run,omitzero"`
}

func (d *detail) isZero() bool {
	return d.Role == "" && d.Content == "" && d.Field == "" && d.Type == "" && d.ID == nil && d.Name == nil &&
		d.IsError == nil && !d.JSON && len(d.Absent) == 0 && d.Members == nil && len(d.Inner) == 0 &&
		d.Line == nil && len(d.LineAbsent) == 0 && len(d.Said) == 0 && len(d.Steps) == 0 && len(d.Copy) == 0 && d.From == "" && d.Run == nil
}

func (d *detail) absent(name string) { d.Absent = append(d.Absent, name) }

func (d *detail) lacks(name string) bool { return slices.Contains(d.Absent, name) }

// source returns the stored form; nil when there is nothing to keep.
func (d *detail) source(f Format) jsontext.Value {
	if d.isZero() {
		return nil
	}
	return marshalValue(map[Format]*detail{f: d})
}

// detailOf reads what source{} keeps for a format; found is false when it keeps nothing for it.
func detailOf(source jsontext.Value, f Format) (d detail, found bool) {
	if len(source) == 0 {
		return d, false
	}
	var all map[string]jsontext.Value
	if err := json.Unmarshal(source, &all); err != nil {
		return d, false
	}
	raw, ok := all[string(f)]
	if !ok {
		return d, false
	}
	if err := json.Unmarshal(raw, &d); err != nil {
		return detail{}, false
	}
	return d, true
}

// writer builds a JSON object in order.
type writer struct {
	b     []byte
	count int
}

func (w *writer) set(name string, v jsontext.Value) {
	if w.count == 0 {
		w.b = append(w.b, '{')
	} else {
		w.b = append(w.b, ',')
	}
	w.count++
	w.b = append(append(append(w.b, quote(name)...), ':'), v...)
}

func (w *writer) str(name, s string) { w.set(name, quote(s)) }

func (w *writer) members(m map[string]jsontext.Value) {
	for _, name := range sortedKeys(m) {
		w.set(name, m[name])
	}
}

func (w *writer) value() jsontext.Value {
	if w.count == 0 {
		return jsontext.Value("{}")
	}
	return append(w.b, '}')
}

// array returns a JSON array of values.
func array(values []jsontext.Value) jsontext.Value {
	b := []byte{'['}
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, v...)
	}
	return append(b, ']')
}

// pendingCall is a call whose id the builder gives.
type pendingCall struct {
	part   int
	rawID  jsontext.Value // nil when absent
	name   jsontext.Value // nil when absent
	args   jsontext.Value // nil when absent
	legacy bool
	d      detail
}

// pendingResponse is a result whose call the builder finds.
type pendingResponse struct {
	part    int
	rawID   jsontext.Value // nil when absent
	legacy  string         // the function's name, for results without id
	content jsontext.Value // nil when absent
	isError *bool
	d       detail
}

// setContent takes a response's content. A null result and no result look alike to some readers of JSON,
// and only strings and lists are what providers expect, so other shapes are noted.
func (p *pendingResponse) setContent(v jsontext.Value) {
	p.content = compact(v)
	switch v.Kind() {
	case '"', '[':
	case 'n':
		p.d.Content = shapeNull
	default:
		p.d.Content = shapeValue
	}
}

// decoded is a provider's message in our form, before ids are given.
type decoded struct {
	Message
	d         detail
	calls     []pendingCall
	responses []pendingResponse
	// unrecorded counts the calls, or the parts, of a list that is too long and was kept as it was.
	unrecorded int
}

// jsonPart keeps a foreign value: its JSON text is the part's content.
func jsonPart(v jsontext.Value, f Format) schema.Part {
	typ := partJSON
	if o, ok := parseObject(v); ok {
		if t, ok := o.str("type"); ok && foreignType(t) {
			typ = t
		}
	}
	text := string(compact(v))
	return schema.Part{Type: typ, Content: &text, Source: (&detail{JSON: true}).source(f)}
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

// maxMember is the largest detail of a part, and the largest common member of a session, in bytes. A part with more is
// kept as the JSON text that it was.
const maxMember = 16 << 10

// members keeps what is left of a provider's message, of any size: the SDK moves a large source to the blob store.
func (m *decoded) members(o *object) {
	m.d.Members = o.rest()
	for name, v := range m.d.Members {
		m.d.Members[name] = compact(v)
	}
}

// sortedKeys makes the order of maps the same everywhere.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// validIdentifier reports whether the schema takes s as an identifier.
func validIdentifier(s string) bool {
	if s == "" || len(s) > schema.MaxIdentifier {
		return false
	}
	return schema.Validate(&schema.ToolReturnedData{ToolCallID: s}) == nil
}
