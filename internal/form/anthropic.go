package form

import (
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Anthropic reads a message of the Messages API. of is its role if it names none; a role that is neither user nor
// assistant is noted.
func (c *Decoder) Anthropic(o *Object, of string) (*Message, error) {
	m := new(Message)
	if role, ok := o.TakeStr("role"); ok {
		if role == "" {
			return nil, ErrNoRole
		}
		m.Role = role
		if role != of {
			m.Detail.Role, m.Role = role, of
		}
	} else {
		m.Role = of
		m.Detail.Lacking("role")
	}
	shape := m.content(o, c.Key, func(v jsontext.Value) { c.anthropicBlock(m, v) })
	if shape != naturalShape(m.Role, m.Parts) {
		m.Detail.Content = shape
	}
	m.members(o)
	return m, nil
}

// naturalShape is the shape of a content that needs no note: a person's text is a string.
func naturalShape(role string, content []schema.Part) string {
	if role == schema.RoleUser && len(content) == 1 && content[0].Type == schema.PartText && len(content[0].Source) == 0 {
		return ShapeString
	}
	return ShapeList
}

// anthropicBlock converts one block of a content list to a part, a call or a response.
func (c *Decoder) anthropicBlock(m *Message, v jsontext.Value) {
	foreign := func() { m.Parts = append(m.Parts, foreignPart(v, c.Key)) }
	o, ok := ParseObject(v)
	if !ok {
		foreign()
		return
	}
	kind, _ := o.TakeStr("type")
	var d Detail
	var part schema.Part
	switch {
	case kind == "text":
		part = schema.Part{Type: schema.PartText}
		if !takeContent(o, &part, "text") {
			foreign()
			return
		}
	case kind == "thinking":
		part = schema.Part{Type: schema.PartReasoning}
		if !takeContent(o, &part, "thinking") {
			foreign()
			return
		}
	case kind == "redacted_thinking":
		part = schema.Part{Type: schema.PartReasoning}
		d.Type = kind
	case kind == "tool_use" && m.Role == schema.RoleAssistant:
		p := Call{Part: len(m.Parts)}
		p.ID, _ = o.Take("id")
		p.Name, _ = o.Take("name")
		if input, has := o.Take("input"); has {
			p.Arguments = Compact(input)
			switch input.Kind() {
			case '{':
			case 'n':
				p.Detail.Content = ShapeNull
			default:
				p.Detail.Content = ShapeValue
			}
		} else {
			p.Detail.Lacking("input")
		}
		p.Detail.Members = o.Rest()
		m.Parts = append(m.Parts, schema.Part{})
		m.Calls = append(m.Calls, p)
		return
	case kind == "tool_result" && m.Role == schema.RoleUser:
		p := Response{Part: len(m.Parts)}
		p.ID, _ = o.Take("tool_use_id")
		if content, has := o.Take("content"); has {
			p.SetContent(content)
		} else {
			p.Detail.Lacking("content")
		}
		if e, has := o.Take("is_error"); has {
			if b, ok := Boolean(e); ok {
				p.IsError = &b
			} else {
				p.Detail.IsError = e
			}
		}
		p.Detail.Members = o.Rest()
		m.Parts = append(m.Parts, schema.Part{})
		m.Responses = append(m.Responses, p)
		return
	case kind == "image" || kind == "document":
		modality := "image"
		if kind == "document" {
			modality = kind
		}
		inner, ok := TakeObject(o, "source")
		from, _ := inner.TakeStr("type")
		data, ok2 := inner.TakeStr("data")
		mime, ok3 := inner.TakeStr("media_type")
		url, ok4 := inner.TakeStr("url")
		switch {
		case ok && from == "base64" && ok2 && ok3 && !ok4:
			part = schema.Part{Type: schema.PartBlob, Modality: modality, MimeType: mime, Content: &data}
		case ok && from == "url" && ok4 && !ok2 && !ok3:
			part = schema.Part{Type: schema.PartURI, Modality: modality, URI: url}
		default:
			foreign()
			return
		}
		d.Inner = inner.Rest()
	default:
		foreign()
		return
	}
	d.Members = o.Rest()
	part.Source = d.Source(c.Key)
	if len(part.Source) > MaxMember {
		foreign()
		return
	}
	m.Parts = append(m.Parts, part)
}

// takeContent moves a string member into the part's content; an absent one stays nil. false: the value is not a string.
func takeContent(o *Object, part *schema.Part, name string) bool {
	if _, has := o.Get(name); !has {
		return true
	}
	s, ok := o.TakeStr(name)
	part.Content = &s
	return ok
}

// AnthropicBlock writes one block of a content list.
func (e *Encoder) AnthropicBlock(p *schema.Part) jsontext.Value {
	d, own := DetailOf(p.Source, e.Keys...)
	if d.JSON && p.Content != nil {
		return jsontext.Value(*p.Content)
	}
	var o, inner Writer
	content := func(name string) {
		if p.Content != nil {
			o.Str(name, *p.Content)
		}
	}
	media := func() {
		kind := "image"
		if p.Modality == "document" || p.Type == schema.PartFile && p.Modality != kind {
			kind = "document"
		}
		e.place(p, p.Modality == "" || p.Modality == kind)
		o.Str("type", kind)
	}
	switch p.Type {
	case schema.PartReasoning:
		if d.Type != "" {
			o.Str("type", d.Type)
		} else {
			o.Str("type", "thinking")
			content("thinking")
		}
	case schema.PartToolCall:
		o.Str("type", "tool_use")
		writeID(&o, "id", callID(p.ID), &d)
		writeName(&o, p.Name, &d)
		if !d.Lacks("input") {
			o.Set("input", inputOf(p.Arguments, &d))
		}
	case schema.PartToolCallResponse:
		e.result(&o, p, &d)
	case schema.PartBlob, schema.PartURI:
		media()
		if p.Type == schema.PartBlob {
			inner.Str("type", "base64")
			inner.Str("media_type", p.MimeType)
			if p.Content != nil {
				inner.Str("data", *p.Content)
			}
		} else {
			inner.Str("type", "url")
			inner.Str("url", p.URI)
		}
		inner.Members(d.Inner)
		o.Set("source", inner.Value())
	case schema.PartFile:
		media()
		inner.Str("type", "file")
		inner.Str("file_id", p.FileID)
		o.Set("source", inner.Value())
	default:
		e.place(p, p.Type == schema.PartText || own)
		o.Str("type", "text")
		content("text")
	}
	o.Members(d.Members)
	return o.Value()
}

// inputOf is an object; the argument text of another form is parsed if it is an object.
func inputOf(args jsontext.Value, d *Detail) jsontext.Value {
	if args.Kind() == '{' || d.Content != "" {
		return orNull(args)
	}
	if s, ok := Unquote(args); ok {
		if v := jsontext.Value(s); v.Kind() == '{' && CheckJSON(v) == nil {
			return Compact(v)
		}
	}
	var o Writer
	if args != nil {
		o.Set("arguments", args)
	}
	return o.Value()
}

// anthropicResultBlocks are the blocks that a result may contain, with a member that only each has.
var anthropicResultBlocks = map[string]string{"text": "text", "image": "source", "document": "source", "search_result": "source", "tool_reference": "tool_name"}

func (e *Encoder) result(o *Writer, p *schema.Part, d *Detail) {
	o.Str("type", "tool_result")
	writeID(o, "tool_use_id", callID(p.ID), d)
	v := p.Response
	switch parts := resultParts(v); {
	case d.Lacks("content"):
	case parts != nil:
		blocks := make([]jsontext.Value, len(parts))
		for i := range parts {
			blocks[i] = e.AnthropicBlock(&parts[i])
		}
		o.Set("content", Array(blocks))
	case v == nil, v.Kind() == 'n':
		o.Str("content", "")
	case v.Kind() == '"', v.Kind() == '[' && takesList(v, anthropicResultBlocks):
		o.Set("content", v)
	default:
		o.Str("content", string(v))
	}
	switch {
	case d.IsError != nil:
		o.Set("is_error", d.IsError)
	case p.IsError:
		o.Set("is_error", Marshal(true))
	}
}
