package transcript

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// chat reads messages in chat-completions form; swe-agent's history entries are such messages with more
// members.
type chat struct{ format Format }

// Members of a chat message that become parts of their own.
const (
	fieldRefusal      = "refusal"
	fieldReasoning    = "reasoning_content"
	fieldThought      = "thought"
	fieldAction       = "action"
	fieldFunctionCall = "function_call"
)

// message decodes one message; ids of calls and responses are the builder's to give.
func (c chat) message(o *object) (*decoded, error) {
	m := new(decoded)
	role, ok := o.takeStr("role")
	if !ok || role == "" {
		return nil, errNoRole
	}
	switch role {
	case schema.RoleSystem, schema.RoleUser, schema.RoleAssistant, schema.RoleTool:
		m.Role = role
	case "developer":
		m.Role, m.d.Role = schema.RoleSystem, role
	case "function":
		m.Role, m.d.Role = schema.RoleTool, role
	default:
		// A role nobody knows speaks to the model, so it is a user's.
		m.Role, m.d.Role = schema.RoleUser, role
	}
	if name, ok := o.str("name"); ok && name != "" {
		m.Name = name
		o.take("name")
	}
	for _, field := range []string{"timestamp", "created_at", "created"} {
		if v, ok := o.get(field); ok && m.At.IsZero() {
			m.At = timeOf(v)
		}
	}
	if c.isResponse(m, o) {
		c.response(m, o)
	} else {
		c.content(m, o)
		if s, ok := o.takeStr(fieldReasoning); ok {
			c.field(m, schema.Reasoning(s), fieldReasoning)
		}
		if s, ok := o.takeStr(fieldRefusal); ok {
			c.field(m, schema.Text(s), fieldRefusal)
		}
		if m.Role == schema.RoleAssistant {
			c.calls(m, o)
		}
	}
	m.members(o)
	return m, nil
}

func (c chat) isResponse(m *decoded, o *object) bool {
	if m.Role == schema.RoleTool {
		return true
	}
	_, has := o.get("tool_call_id")
	return has && m.Role == schema.RoleUser
}

// response makes the whole content the response of a call.
func (c chat) response(m *decoded, o *object) {
	content, has := o.take("content")
	p := pendingResponse{part: 0}
	switch {
	case !has:
		p.d.absent("content")
	default:
		p.setContent(content)
	}
	if c.format == SWEAgent {
		p.d.Field = "tool_call_id"
	}
	if m.d.Role == "function" {
		p.legacy = m.Name
		if _, has := o.get("tool_call_id"); !has && p.legacy == "" {
			p.legacy = " "
		}
	}
	if p.legacy == "" {
		p.rawID, _ = o.take("tool_call_id")
	}
	m.Parts = []schema.Part{{}}
	m.responses = []pendingResponse{p}
}

func (c chat) field(m *decoded, part schema.Part, field string) {
	part.Source = (&detail{Field: field}).source(c.format)
	m.Parts = append(m.Parts, part)
}

// content turns the member content into parts and notes its shape where the parts do not tell it.
func (c chat) content(m *decoded, o *object) {
	shape := m.content(o, c.format, func(v jsontext.Value) { m.Parts = append(m.Parts, c.block(v)) })
	if shape != naturalChatShape(m.Role, m.Parts) {
		m.d.Content = shape
	}
}

// naturalChatShape is the shape of a content that needs no note.
func naturalChatShape(role string, content []schema.Part) string {
	switch {
	case len(content) == 0 && role == schema.RoleAssistant:
		return shapeNull
	case len(content) == 1 && content[0].Type == schema.PartText && len(content[0].Source) == 0:
		return shapeString
	default:
		return shapeList
	}
}

// block turns one element of a content list into a part.
func (c chat) block(v jsontext.Value) schema.Part {
	foreign := jsonPart(v, c.format)
	o, ok := parseObject(v)
	if !ok {
		return foreign
	}
	typ, _ := o.takeStr("type")
	var d detail
	var part schema.Part
	switch typ {
	case "text", fieldRefusal:
		text, ok := o.takeStr("text")
		if typ == fieldRefusal {
			text, ok = o.takeStr(fieldRefusal)
			d.Type = typ
		}
		if !ok {
			return foreign
		}
		part = schema.Text(text)
	case "image_url":
		inner, ok := takeObject(o, typ)
		url, ok2 := inner.takeStr("url")
		if !ok || !ok2 {
			return foreign
		}
		part = schema.Part{Type: schema.PartURI, Modality: "image", URI: url}
		if mime, data, ok := splitDataURL(url); ok {
			part = schema.Part{Type: schema.PartBlob, Modality: "image", MimeType: mime, Content: &data}
		}
		d.Inner = inner.rest()
	case "input_audio":
		inner, ok := takeObject(o, typ)
		data, ok2 := inner.takeStr("data")
		format, ok3 := inner.takeStr("format")
		if !ok || !ok2 || !ok3 {
			return foreign
		}
		part = schema.Part{Type: schema.PartBlob, Modality: "audio", MimeType: "audio/" + format, Content: &data}
		d.Inner = inner.rest()
	case "file":
		inner, ok := takeObject(o, typ)
		id, ok2 := inner.takeStr("file_id")
		if !ok || !ok2 || id == "" {
			return foreign
		}
		part = schema.Part{Type: schema.PartFile, Modality: "document", FileID: id}
		d.Inner = inner.rest()
	default:
		return foreign
	}
	d.Members = o.rest()
	part.Source = d.source(c.format)
	if len(part.Source) > maxMember {
		return foreign
	}
	return part
}

// takeObject removes a member that is an object; the result is empty, not nil, when there is none.
func takeObject(o *object, name string) (*object, bool) {
	v, _ := o.get(name)
	inner, ok := parseObject(v)
	if !ok {
		return new(object), false
	}
	o.take(name)
	return inner, true
}

// splitDataURL splits a base64 data URL that can be put together again to the letter.
func splitDataURL(url string) (mime, data string, ok bool) {
	rest, ok := strings.CutPrefix(url, "data:")
	if !ok {
		return "", "", false
	}
	mime, data, ok = strings.Cut(rest, ";base64,")
	return mime, data, ok && mime != "" && !strings.ContainsAny(mime, ";,")
}

// calls turns tool_calls and the older function_call into parts and pending calls. A member of another
// shape stays as it was, and so does one with more calls than an answer takes.
func (c chat) calls(m *decoded, o *object) {
	if v, ok := o.get("tool_calls"); ok {
		if calls, ok := c.toolCalls(m, v); ok {
			o.take("tool_calls")
			m.calls = append(m.calls, calls...)
			for range calls {
				m.Parts = append(m.Parts, schema.Part{})
			}
		}
	}
	if v, ok := o.get(fieldFunctionCall); ok {
		if fn, ok := parseObject(v); ok {
			if _, named := fn.str("name"); named {
				o.take(fieldFunctionCall)
				p := pendingCall{part: len(m.Parts), legacy: true, d: detail{Field: fieldFunctionCall}}
				c.function(fn, &p, "arguments")
				m.calls = append(m.calls, p)
				m.Parts = append(m.Parts, schema.Part{})
			}
		}
	}
}

func (c chat) toolCalls(m *decoded, v jsontext.Value) ([]pendingCall, bool) {
	values, ok := parseArray(v)
	if !ok || len(values) == 0 {
		return nil, false
	}
	calls := make([]pendingCall, 0, len(values))
	var l load
	for i := range m.Parts {
		l.part(&m.Parts[i])
	}
	for _, v := range values {
		o, ok := parseObject(v)
		if !ok {
			return nil, false
		}
		p := pendingCall{part: len(m.Parts) + len(calls)}
		member, arguments := "function", "arguments"
		if _, custom := o.get("custom"); custom {
			member, arguments = "custom", "input"
			p.d.Field = member
		}
		fn, ok := takeObject(o, member)
		if !ok {
			return nil, false
		}
		p.rawID, _ = o.take("id")
		switch typ, ok := o.str("type"); {
		case ok && typ == member:
			o.take("type")
		case !ok:
			if _, has := o.get("type"); !has {
				p.d.absent("type")
			}
		}
		c.function(fn, &p, arguments)
		p.d.Members = o.rest()
		calls = append(calls, p)
		names := len(p.rawID) + len(p.name)
		l.part(&schema.Part{Source: p.d.source(c.format)})
		l.bytes += names
		if l.call(names, len(p.args), 0); l.full() {
			m.unrecorded = len(values)
			return nil, false
		}
	}
	return calls, true
}

func (c chat) function(fn *object, p *pendingCall, arguments string) {
	p.name, _ = fn.take("name")
	if args, has := fn.take(arguments); has {
		p.args = compact(args)
		switch args.Kind() {
		case '"':
		case 'n':
			p.d.Content = shapeNull
		default:
			p.d.Content = shapeValue
		}
	} else {
		p.d.absent(arguments)
	}
	p.d.Inner = fn.rest()
}
