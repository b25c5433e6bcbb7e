package form

import (
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Types of [Detail] for the texts of an answer in the form of Responses: the first text of an output message, and the
// others.
const (
	typeMessage = "message"
	typeMore    = "more"
)

// Responses reads the output items of a response of the Responses API: one answer.
func (c *Decoder) Responses(items []jsontext.Value) *Message {
	m := &Message{Message: schema.Message{Role: schema.RoleAssistant}}
	for _, v := range items {
		o, ok := ParseObject(v)
		typ := ""
		if ok {
			typ, _ = o.TakeStr("type")
		}
		switch typ {
		case typeMessage:
			ok = c.outputMessage(m, o)
		case "reasoning":
			ok = c.reasoningItem(m, o)
		case "function_call", "custom_tool_call":
			c.callItem(m, o, typ)
		default:
			ok = false
		}
		if !ok {
			m.Parts = append(m.Parts, foreignPart(v, c.Key))
		}
	}
	return m
}

// outputMessage reads an item of texts and refusals; false means that it has other content.
func (c *Decoder) outputMessage(m *Message, o *Object) bool {
	role, _ := o.TakeStr("role")
	content, _ := o.Take("content")
	values, _ := ParseArray(content)
	var parts []schema.Part
	for _, v := range values {
		b, ok := ParseObject(v)
		if !ok {
			return false
		}
		d := Detail{Type: typeMore}
		typ, _ := b.TakeStr("type")
		text, isText := b.TakeStr("text")
		if typ == fieldRefusal {
			d.Field = fieldRefusal
			text, isText = b.TakeStr(fieldRefusal)
		}
		if !isText || typ != fieldRefusal && typ != "output_text" {
			return false
		}
		if len(parts) == 0 {
			d.Type, d.Members = typeMessage, o.Rest()
		}
		d.Inner = b.Rest()
		part := schema.Text(text)
		part.Source = d.Source(c.Key)
		parts = append(parts, part)
	}
	if role != schema.RoleAssistant || len(parts) == 0 {
		return false
	}
	m.Parts = append(m.Parts, parts...)
	return true
}

// reasoningItem keeps the item unchanged, with the text of its summary: the provider accepts nothing else back.
func (c *Decoder) reasoningItem(m *Message, o *Object) bool {
	part := schema.Part{Type: schema.PartReasoning}
	summary, _ := o.Get("summary")
	values, _ := ParseArray(summary)
	for _, v := range values {
		if s, ok := ParseObject(v); ok {
			text, _ := s.Str("text")
			if part.Content != nil {
				text = *part.Content + "\n" + text
			}
			part.Content = &text
		}
	}
	part.Source = (&Detail{Members: o.Rest()}).Source(c.Key)
	if len(part.Source) == 0 {
		return false
	}
	m.Parts = append(m.Parts, part)
	return true
}

func (c *Decoder) callItem(m *Message, o *Object, typ string) {
	p := Call{Part: len(m.Parts)}
	arguments := "arguments"
	if typ == "custom_tool_call" {
		p.Detail.Field, arguments = "custom", "input"
	}
	p.ID, _ = o.Take("call_id")
	c.function(o, &p, arguments)
	p.Detail.Members, p.Detail.Inner = p.Detail.Inner, nil
	m.Calls = append(m.Calls, p)
	m.Parts = append(m.Parts, schema.Part{})
}

// Responses writes a conversation as input items for a request of the Responses API. It needs a strict encoder.
func (e *Encoder) Responses(messages []schema.Message) []jsontext.Value {
	w := &itemWriter{e: e, custom: make(map[string]bool)}
	for i := range messages {
		m := &messages[i]
		for j := range m.Parts {
			w.part(m, &m.Parts[j])
		}
		w.flush()
	}
	return w.items
}

// itemWriter collects the parts of one item.
type itemWriter struct {
	e     *Encoder
	items []jsontext.Value
	// custom are the ids of calls of custom tools.
	custom map[string]bool

	// role and members of the current message, and its content; without content there is no message.
	role    string
	members map[string]jsontext.Value
	content []jsontext.Value
}

func (w *itemWriter) flush() {
	if len(w.content) == 0 {
		return
	}
	var o Writer
	o.Str("type", typeMessage)
	o.Str("role", w.role)
	o.Members(w.members)
	o.Set("content", Array(w.content))
	w.content, w.members = nil, nil
	w.items = append(w.items, o.Value())
}

func (w *itemWriter) item(v jsontext.Value) {
	w.flush()
	w.items = append(w.items, v)
}

func (w *itemWriter) part(m *schema.Message, p *schema.Part) {
	d, own := DetailOf(p.Source, w.e.Keys...)
	if d.JSON && p.Content != nil {
		w.item(jsontext.Value(*p.Content))
		return
	}
	var o Writer
	switch {
	case p.Type == schema.PartReasoning:
		if own {
			o.Str("type", "reasoning")
			o.Members(d.Members)
			w.item(o.Value())
		}
	case p.Type == schema.PartToolCall:
		typ, arguments := "function_call", "arguments"
		if d.Field == "custom" {
			typ, arguments = "custom_tool_call", "input"
			w.custom[p.ID] = true
		}
		o.Str("type", typ)
		writeID(&o, "call_id", p.ID, &d)
		w.e.function(&o, p, &d, arguments)
		o.Members(d.Members)
		w.item(o.Value())
	case p.Type == schema.PartToolCallResponse:
		typ := "function_call_output"
		if w.custom[p.ID] {
			typ = "custom_tool_call_output"
		}
		o.Str("type", typ)
		o.Str("call_id", p.ID)
		o.Set("output", w.output(p))
		w.item(o.Value())
	case m.Role == schema.RoleAssistant && p.Type == schema.PartText:
		if d.Type != typeMore || len(w.content) == 0 {
			w.flush()
			w.role, w.members = m.Role, d.Members
		}
		typ, member := "output_text", "text"
		if d.Field == fieldRefusal {
			typ, member = fieldRefusal, fieldRefusal
		}
		o.Str("type", typ)
		o.Str(member, textIn(p))
		o.Members(d.Inner)
		w.content = append(w.content, o.Value())
	default:
		w.role = m.Role
		w.content = append(w.content, w.e.inputBlock(p))
	}
}

// inputBlock writes one element of the input to the model.
func (e *Encoder) inputBlock(p *schema.Part) jsontext.Value {
	var o Writer
	image := p.Modality == "image"
	e.place(p, p.Type == schema.PartText || image || p.Modality == "" || p.Modality == "document")
	switch {
	case p.Type == schema.PartText:
		o.Str("type", "input_text")
		o.Str("text", textIn(p))
	case image:
		o.Str("type", "input_image")
		o.Str("detail", "auto")
		switch p.Type {
		case schema.PartFile:
			o.Str("file_id", p.FileID)
		case schema.PartURI:
			o.Str("image_url", p.URI)
		default:
			e.place(p, p.Type == schema.PartBlob)
			o.Str("image_url", dataURL(p, textIn(p)))
		}
	default:
		o.Str("type", "input_file")
		switch p.Type {
		case schema.PartFile:
			o.Str("file_id", p.FileID)
		case schema.PartURI:
			o.Str("file_url", p.URI)
		default:
			e.place(p, p.Type == schema.PartBlob)
			o.Str("filename", "document")
			o.Str("file_data", dataURL(p, textIn(p)))
		}
	}
	return o.Value()
}

// responsesResultBlocks are the blocks that a result may contain, with the member of each.
var responsesResultBlocks = map[string]string{"input_text": "text", "input_image": "detail"}

func (w *itemWriter) output(p *schema.Part) jsontext.Value {
	v := p.Response
	if parts := resultParts(v); parts != nil {
		blocks := make([]jsontext.Value, len(parts))
		for i := range parts {
			blocks[i] = w.e.inputBlock(&parts[i])
		}
		return Array(blocks)
	}
	switch {
	case v == nil, v.Kind() == 'n':
		return Quote("")
	case v.Kind() == '"', v.Kind() == '[' && takesList(v, responsesResultBlocks):
		return v
	default:
		return Quote(string(v))
	}
}

func textIn(p *schema.Part) string {
	if p.Content == nil {
		return ""
	}
	return *p.Content
}

// resultParts reads a result that is a content list of an MCP tool, with texts and images; nil for any other value.
func resultParts(v jsontext.Value) []schema.Part {
	values, _ := ParseArray(v)
	var parts []schema.Part
	for _, b := range values {
		o, ok := ParseObject(b)
		if !ok {
			return nil
		}
		o.Take("annotations")
		o.Take("_meta")
		typ, _ := o.TakeStr("type")
		switch typ {
		case "text":
			text, ok := o.TakeStr("text")
			if !ok || len(o.Names) > 0 {
				return nil
			}
			parts = append(parts, schema.Text(text))
		case "image":
			data, ok := o.TakeStr("data")
			mime, ok2 := o.TakeStr("mimeType")
			if !ok || !ok2 || len(o.Names) > 0 {
				return nil
			}
			parts = append(parts, schema.Part{Type: schema.PartBlob, Modality: "image", MimeType: mime, Content: &data})
		default:
			return nil
		}
	}
	return parts
}
