package form

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Members of a chat message that become their own parts.
const (
	// fieldReasoning comes from programs other than OpenAI's: a model's reasoning.
	fieldReasoning    = "reasoning_content"
	fieldRefusal      = "refusal"
	fieldFunctionCall = "function_call"
)

// Chat reads a message of Chat Completions.
func (c *Decoder) Chat(o *Object) (*Message, error) {
	m := new(Message)
	role, ok := o.TakeStr("role")
	if !ok || role == "" {
		return nil, ErrNoRole
	}
	switch role {
	case schema.RoleSystem, schema.RoleUser, schema.RoleAssistant, schema.RoleTool:
		m.Role = role
	case "developer":
		m.Role, m.Detail.Role = schema.RoleSystem, role
	case "function":
		m.Role, m.Detail.Role = schema.RoleTool, role
	default:
		// An unknown role speaks to the model, so it counts as a user.
		m.Role, m.Detail.Role = schema.RoleUser, role
	}
	if name, ok := o.Str("name"); ok && name != "" {
		m.Name = name
		o.Take("name")
	}
	if c.isResponse(m, o) {
		c.response(m, o)
	} else {
		c.chatContent(m, o)
		if s, ok := o.TakeStr(fieldReasoning); ok {
			c.field(m, schema.Reasoning(s), fieldReasoning)
		}
		if s, ok := o.TakeStr(fieldRefusal); ok {
			c.field(m, schema.Text(s), fieldRefusal)
		}
		if m.Role == schema.RoleAssistant {
			c.calls(m, o)
		}
	}
	m.members(o)
	return m, nil
}

// isResponse reports whether the whole content is the response of a call.
func (c *Decoder) isResponse(m *Message, o *Object) bool {
	if m.Role == schema.RoleTool {
		return true
	}
	_, has := o.Get("tool_call_id")
	return has && m.Role == schema.RoleUser
}

// response makes the whole content the response of a call.
func (c *Decoder) response(m *Message, o *Object) {
	content, has := o.Take("content")
	p := Response{Part: 0}
	switch {
	case !has:
		p.Detail.Lacking("content")
	default:
		p.SetContent(content)
	}
	if m.Detail.Role == "function" {
		p.Legacy = m.Name
		if _, has := o.Get("tool_call_id"); !has && p.Legacy == "" {
			p.Legacy = " "
		}
	}
	if p.Legacy == "" {
		p.ID, _ = o.Take("tool_call_id")
	}
	m.Parts = []schema.Part{{}}
	m.Responses = []Response{p}
}

func (c *Decoder) field(m *Message, part schema.Part, field string) {
	part.Source = (&Detail{Field: field}).Source(c.Key)
	m.Parts = append(m.Parts, part)
}

// chatContent converts the member content to parts, and notes its shape if the parts do not imply it.
func (c *Decoder) chatContent(m *Message, o *Object) {
	shape := m.content(o, c.Key, func(v jsontext.Value) { m.Parts = append(m.Parts, c.chatBlock(v)) })
	if shape != naturalChatShape(m.Role, m.Parts) {
		m.Detail.Content = shape
	}
}

// naturalChatShape is the shape of a content that needs no note.
func naturalChatShape(role string, content []schema.Part) string {
	switch {
	case len(content) == 0 && role == schema.RoleAssistant:
		return ShapeNull
	case len(content) == 1 && content[0].Type == schema.PartText && len(content[0].Source) == 0:
		return ShapeString
	default:
		return ShapeList
	}
}

// chatBlock converts one element of a content list to a part.
func (c *Decoder) chatBlock(v jsontext.Value) schema.Part {
	foreign := foreignPart(v, c.Key)
	o, ok := ParseObject(v)
	if !ok {
		return foreign
	}
	typ, _ := o.TakeStr("type")
	var d Detail
	var part schema.Part
	switch typ {
	case "text", fieldRefusal:
		text, ok := o.TakeStr("text")
		if typ == fieldRefusal {
			text, ok = o.TakeStr(fieldRefusal)
			d.Type = typ
		}
		if !ok {
			return foreign
		}
		part = schema.Text(text)
	case "image_url":
		inner, ok := TakeObject(o, typ)
		url, ok2 := inner.TakeStr("url")
		if !ok || !ok2 {
			return foreign
		}
		part = schema.Part{Type: schema.PartURI, Modality: "image", URI: url}
		if mime, data, ok := splitDataURL(url); ok {
			part = schema.Part{Type: schema.PartBlob, Modality: "image", MimeType: mime, Content: &data}
		}
		d.Inner = inner.Rest()
	case "input_audio":
		inner, ok := TakeObject(o, typ)
		data, ok2 := inner.TakeStr("data")
		format, ok3 := inner.TakeStr("format")
		if !ok || !ok2 || !ok3 {
			return foreign
		}
		part = schema.Part{Type: schema.PartBlob, Modality: "audio", MimeType: "audio/" + format, Content: &data}
		d.Inner = inner.Rest()
	case "file":
		inner, ok := TakeObject(o, typ)
		id, ok2 := inner.TakeStr("file_id")
		if !ok || !ok2 || id == "" {
			return foreign
		}
		part = schema.Part{Type: schema.PartFile, Modality: "document", FileID: id}
		d.Inner = inner.Rest()
	default:
		return foreign
	}
	d.Members = o.Rest()
	part.Source = d.Source(c.Key)
	if len(part.Source) > MaxMember {
		return foreign
	}
	return part
}

// splitDataURL splits a base64 data URL that can be put together again unchanged.
func splitDataURL(url string) (mime, data string, ok bool) {
	rest, ok := strings.CutPrefix(url, "data:")
	if !ok {
		return "", "", false
	}
	mime, data, ok = strings.Cut(rest, ";base64,")
	return mime, data, ok && mime != "" && !strings.ContainsAny(mime, ";,")
}

// calls converts tool_calls and the older function_call to parts and pending calls. A member of another shape stays
// unchanged, and so does one with more calls than an answer may have.
func (c *Decoder) calls(m *Message, o *Object) {
	if v, ok := o.Get("tool_calls"); ok {
		if calls, ok := c.toolCalls(m, v); ok {
			o.Take("tool_calls")
			m.Calls = append(m.Calls, calls...)
			for range calls {
				m.Parts = append(m.Parts, schema.Part{})
			}
		}
	}
	if v, ok := o.Get(fieldFunctionCall); ok {
		if fn, ok := ParseObject(v); ok {
			if _, named := fn.Str("name"); named {
				o.Take(fieldFunctionCall)
				p := Call{Part: len(m.Parts), Legacy: true, Detail: Detail{Field: fieldFunctionCall}}
				c.function(fn, &p, "arguments")
				m.Calls = append(m.Calls, p)
				m.Parts = append(m.Parts, schema.Part{})
			}
		}
	}
}

func (c *Decoder) toolCalls(m *Message, v jsontext.Value) ([]Call, bool) {
	values, ok := ParseArray(v)
	if !ok || len(values) == 0 {
		return nil, false
	}
	calls := make([]Call, 0, len(values))
	for _, v := range values {
		o, ok := ParseObject(v)
		if !ok {
			return nil, false
		}
		p := Call{Part: len(m.Parts) + len(calls)}
		member, arguments := "function", "arguments"
		if _, custom := o.Get("custom"); custom {
			member, arguments = "custom", "input"
			p.Detail.Field = member
		}
		fn, ok := TakeObject(o, member)
		if !ok {
			return nil, false
		}
		p.ID, _ = o.Take("id")
		switch typ, ok := o.Str("type"); {
		case ok && typ == member:
			o.Take("type")
		case !ok:
			if _, has := o.Get("type"); !has {
				p.Detail.Lacking("type")
			}
		}
		c.function(fn, &p, arguments)
		p.Detail.Members = o.Rest()
		calls = append(calls, p)
	}
	return calls, true
}

func (c *Decoder) function(fn *Object, p *Call, arguments string) {
	p.Name, _ = fn.Take("name")
	if args, has := fn.Take(arguments); has {
		p.Arguments = Compact(args)
		switch args.Kind() {
		case '"':
		case 'n':
			p.Detail.Content = ShapeNull
		default:
			p.Detail.Content = ShapeValue
		}
	} else {
		p.Detail.Lacking(arguments)
	}
	p.Detail.Inner = fn.Rest()
}

// ChatMessages writes a message in chat form: one, or one for each response when the message comes from a form that carries several in
// one. own says that the message itself has a detail d of this form, or that its run came in it.
func (e *Encoder) ChatMessages(m *schema.Message, own bool, write func(*schema.Message) jsontext.Value) []jsontext.Value {
	responses := 0
	for i := range m.Parts {
		if m.Parts[i].Type == schema.PartToolCallResponse {
			responses++
		}
	}
	if own || responses == 0 {
		return []jsontext.Value{write(m)}
	}
	// Foreign: each response becomes its own message, the rest another one.
	var out []jsontext.Value
	rest := *m
	rest.Parts = nil
	for i := range m.Parts {
		if m.Parts[i].Type == schema.PartToolCallResponse {
			one := *m
			one.Role, one.Source, one.Parts = schema.RoleTool, nil, m.Parts[i:i+1]
			out = append(out, write(&one))
		} else {
			rest.Parts = append(rest.Parts, m.Parts[i])
		}
	}
	if len(rest.Parts) > 0 {
		out = append(out, write(&rest))
	}
	return out
}

// Chat writes one message.
func (e *Encoder) Chat(m *schema.Message, d *Detail) jsontext.Value {
	var o Writer
	role := m.Role
	if d.Role != "" {
		role = d.Role
	}
	o.Str("role", role)
	if m.Name != "" {
		o.Str("name", m.Name)
	}
	var content []schema.Part
	var calls []jsontext.Value
	answered := false
	for i := range m.Parts {
		p := &m.Parts[i]
		pd, own := DetailOf(p.Source, e.Keys...)
		switch {
		case p.Type == schema.PartToolCall && pd.Field == fieldFunctionCall:
			o.Set(fieldFunctionCall, e.chatFunction(p, &pd, "arguments"))
		case p.Type == schema.PartToolCall:
			calls = append(calls, e.chatCall(p, &pd))
		case p.Type == schema.PartToolCallResponse:
			if !answered {
				e.chatResult(&o, p, &pd)
				answered = true
			}
			if role != "function" {
				writeID(&o, "tool_call_id", p.ID, &pd)
			}
		case pd.Field != "" && p.Content != nil:
			o.Str(pd.Field, *p.Content)
		case p.Type == schema.PartReasoning && !own:
		default:
			content = append(content, *p)
		}
	}
	if !answered {
		o.content(d.Content, naturalChatShape(m.Role, content), content, e.chatBlock)
	}
	if len(calls) > 0 {
		o.Set("tool_calls", Array(calls))
	}
	o.Members(d.Members)
	return o.Value()
}

// chatBlock writes one element of a content list.
func (e *Encoder) chatBlock(p *schema.Part) jsontext.Value {
	d, own := DetailOf(p.Source, e.Keys...)
	text := ""
	if p.Content != nil {
		text = *p.Content
	}
	if d.JSON {
		return jsontext.Value(text)
	}
	var o, inner Writer
	switch {
	case p.Type == schema.PartText && d.Type == fieldRefusal:
		o.Str("type", d.Type)
		o.Str(fieldRefusal, text)
	case p.Type == schema.PartBlob && p.Modality == "audio":
		o.Str("type", "input_audio")
		inner.Str("data", text)
		inner.Str("format", strings.TrimPrefix(p.MimeType, "audio/"))
		inner.Members(d.Inner)
		o.Set("input_audio", inner.Value())
	case p.Type == schema.PartBlob && p.Modality == "document":
		o.Str("type", "file")
		inner.Str("filename", "document")
		inner.Str("file_data", dataURL(p, text))
		o.Set("file", inner.Value())
	case p.Type == schema.PartBlob, p.Type == schema.PartURI:
		e.place(p, p.Modality == "" || p.Modality == "image")
		url := p.URI
		if p.Type == schema.PartBlob {
			url = dataURL(p, text)
		}
		o.Str("type", "image_url")
		inner.Str("url", url)
		inner.Members(d.Inner)
		o.Set("image_url", inner.Value())
	case p.Type == schema.PartFile:
		o.Str("type", "file")
		inner.Str("file_id", p.FileID)
		inner.Members(d.Inner)
		o.Set("file", inner.Value())
	default:
		e.place(p, p.Type == schema.PartText || own)
		o.Str("type", "text")
		o.Str("text", text)
	}
	o.Members(d.Members)
	return o.Value()
}

func dataURL(p *schema.Part, data string) string { return "data:" + p.MimeType + ";base64," + data }

// chatCall writes one element of tool_calls.
func (e *Encoder) chatCall(p *schema.Part, d *Detail) jsontext.Value {
	var o Writer
	writeID(&o, "id", p.ID, d)
	member, arguments := "function", "arguments"
	if d.Field == "custom" {
		member, arguments = d.Field, "input"
	}
	if _, has := d.Members["type"]; !has && !d.Lacks("type") {
		o.Str("type", member)
	}
	o.Set(member, e.chatFunction(p, d, arguments))
	o.Members(d.Members)
	return o.Value()
}

func (e *Encoder) chatFunction(p *schema.Part, d *Detail, arguments string) jsontext.Value {
	var o Writer
	e.function(&o, p, d, arguments)
	o.Members(d.Inner)
	return o.Value()
}

// function writes the name and the arguments of a call.
func (e *Encoder) function(o *Writer, p *schema.Part, d *Detail, arguments string) {
	writeName(o, p.Name, d)
	switch {
	case d.Lacks(arguments):
	case p.Arguments.Kind() == '"', d.Content != "":
		o.Set(arguments, orNull(p.Arguments))
	case p.Arguments == nil:
		o.Str(arguments, "")
	default:
		o.Str(arguments, string(p.Arguments))
	}
}

// chatResultBlocks are the blocks that a result may contain, with the member of each.
var chatResultBlocks = map[string]string{"text": "text"}

// chatResult writes the response of a call as the message's content.
func (e *Encoder) chatResult(o *Writer, p *schema.Part, d *Detail) {
	v := p.Response
	if parts := resultParts(v); parts != nil {
		texts := make([]jsontext.Value, len(parts))
		for i := range parts {
			e.place(&parts[i], parts[i].Type == schema.PartText)
			texts[i] = e.chatBlock(&parts[i])
		}
		o.Set("content", Array(texts))
		return
	}
	switch {
	case d.Lacks("content"):
	case v == nil, v.Kind() == 'n':
		o.Str("content", "")
	case v.Kind() == '"', v.Kind() == '[' && takesList(v, chatResultBlocks), d.Content == ShapeValue:
		o.Set("content", v)
	default:
		o.Str("content", string(v))
	}
}
