package transcript

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// chatMessages writes a message in chat form: one, or one for each response when the message comes from a
// format that carries several in one.
func (x *exporter) chatMessages(m *schema.StateMessage) []jsontext.Value {
	var responses int
	for i := range m.Parts {
		if m.Parts[i].Type == schema.PartToolCallResponse {
			responses++
		}
	}
	if _, own := detailOf(m.Source, x.f); own || responses == 0 || x.runFormat() == x.f {
		return []jsontext.Value{x.chatMessage(m)}
	}
	// Foreign: each response becomes a message of its own, what remains another one.
	var out []jsontext.Value
	rest := *m
	rest.Parts = nil
	for i := range m.Parts {
		if m.Parts[i].Type == schema.PartToolCallResponse {
			one := *m
			one.Role, one.Source, one.Parts = schema.RoleTool, nil, m.Parts[i:i+1]
			out = append(out, x.chatMessage(&one))
		} else {
			rest.Parts = append(rest.Parts, m.Parts[i])
		}
	}
	if len(rest.Parts) > 0 {
		out = append(out, x.chatMessage(&rest))
	}
	return out
}

// chatMessage writes one message.
func (x *exporter) chatMessage(m *schema.StateMessage) jsontext.Value {
	d, _ := detailOf(m.Source, x.f)
	var o writer
	role := m.Role
	if d.Role != "" {
		role = d.Role
	}
	o.str("role", role)
	if m.Name != "" {
		o.str("name", m.Name)
	}
	var content []schema.Part
	var calls []jsontext.Value
	var ids []jsontext.Value
	var reasoning []string
	answered := false
	for i := range m.Parts {
		p := &m.Parts[i]
		pd, own := detailOf(p.Source, x.f)
		switch {
		case p.Type == schema.PartToolCall && pd.Field == fieldFunctionCall:
			o.set(fieldFunctionCall, x.chatFunction(p, &pd, "arguments"))
		case p.Type == schema.PartToolCall && pd.Field == fieldAction:
			o.set(fieldAction, orNull(p.Arguments))
		case p.Type == schema.PartToolCall:
			calls = append(calls, x.chatCall(p, &pd))
		case p.Type == schema.PartToolCallResponse:
			if !answered {
				x.chatContent(&o, m, p, &pd)
				answered = true
			}
			ids = append(ids, x.chatResponseID(&o, role, p, &pd)...)
		case pd.Field != "" && p.Content != nil:
			o.str(pd.Field, *p.Content)
		case p.Type == schema.PartReasoning && !own:
			if p.Content != nil {
				reasoning = append(reasoning, *p.Content)
			}
		default:
			content = append(content, *p)
		}
	}
	if len(ids) > 0 {
		o.set("tool_call_ids", array(ids))
	}
	if len(reasoning) > 0 {
		name := fieldReasoning
		if x.f == SWEAgent {
			name = fieldThought
		}
		o.str(name, strings.Join(reasoning, "\n"))
	}
	if !answered {
		o.content(d.Content, naturalChatShape(m.Role, content), content, x.chatBlock)
	}
	if len(calls) > 0 {
		o.set("tool_calls", array(calls))
	}
	for field, from := range d.Copy {
		if from == "content" && len(content) > 0 && content[0].Content != nil {
			o.str(field, *content[0].Content)
		}
	}
	o.members(d.Members)
	return o.value()
}

func orNull(v jsontext.Value) jsontext.Value {
	if v == nil {
		return jsontext.Value("null")
	}
	return v
}

// chatBlock writes one element of a content list.
func (x *exporter) chatBlock(p *schema.Part) jsontext.Value {
	d, _ := detailOf(p.Source, x.f)
	text := ""
	if p.Content != nil {
		text = *p.Content
	}
	if d.JSON {
		return jsontext.Value(text)
	}
	var o, inner writer
	switch {
	case p.Type == schema.PartText && d.Type == fieldRefusal:
		o.str("type", d.Type)
		o.str(fieldRefusal, text)
	case p.Type == schema.PartBlob && p.Modality == "audio":
		o.str("type", "input_audio")
		inner.str("data", text)
		inner.str("format", strings.TrimPrefix(p.MimeType, "audio/"))
		inner.members(d.Inner)
		o.set("input_audio", inner.value())
	case p.Type == schema.PartBlob, p.Type == schema.PartURI:
		url := p.URI
		if p.Type == schema.PartBlob {
			url = "data:" + p.MimeType + ";base64," + text
		}
		o.str("type", "image_url")
		inner.str("url", url)
		inner.members(d.Inner)
		o.set("image_url", inner.value())
	case p.Type == schema.PartFile:
		o.str("type", "file")
		inner.str("file_id", p.FileID)
		inner.members(d.Inner)
		o.set("file", inner.value())
	default:
		o.str("type", "text")
		o.str("text", text)
	}
	o.members(d.Members)
	return o.value()
}

// chatCall writes one element of tool_calls.
func (x *exporter) chatCall(p *schema.Part, d *detail) jsontext.Value {
	var o writer
	writeID(&o, "id", p.ID, d)
	member, arguments := "function", "arguments"
	if d.Field == "custom" {
		member, arguments = d.Field, "input"
	}
	if _, has := d.Members["type"]; !has && !d.lacks("type") {
		o.str("type", member)
	}
	o.set(member, x.chatFunction(p, d, arguments))
	o.members(d.Members)
	return o.value()
}

func writeID(o *writer, name, id string, d *detail) {
	switch {
	case d.ID != nil:
		o.set(name, d.ID)
	case !d.lacks("id"):
		o.str(name, id)
	}
}

func writeName(o *writer, name string, d *detail) {
	switch {
	case d.Name != nil:
		o.set("name", d.Name)
	case !d.lacks("name"):
		o.str("name", name)
	}
}

func (x *exporter) chatFunction(p *schema.Part, d *detail, arguments string) jsontext.Value {
	var o writer
	writeName(&o, p.Name, d)
	switch {
	case d.lacks(arguments):
	case p.Arguments.Kind() == '"', d.Content != "":
		o.set(arguments, orNull(p.Arguments))
	case p.Arguments == nil:
		o.str(arguments, "")
	default:
		o.str(arguments, string(p.Arguments))
	}
	o.members(d.Inner)
	return o.value()
}

// chatContent writes the response of a call as the message's content.
func (x *exporter) chatContent(o *writer, m *schema.StateMessage, p *schema.Part, d *detail) {
	v := p.Response
	if c := x.callOf(m, p); v == nil && c != nil && c.Error != nil {
		v = quote(c.Error.Message)
	}
	switch {
	case d.lacks("content"):
	case v == nil || d.Content == shapeNull:
		o.set("content", jsontext.Value("null"))
	case v.Kind() == '"', v.Kind() == '[', d.Content == shapeValue:
		o.set("content", v)
	default:
		o.str("content", string(v))
	}
}

// chatResponseID writes tool_call_id, or returns the id for the list that swe-agent has.
func (x *exporter) chatResponseID(o *writer, role string, p *schema.Part, d *detail) []jsontext.Value {
	if role == "function" {
		return nil
	}
	if x.f == SWEAgent && d.Field != "tool_call_id" {
		if d.lacks("id") || role != schema.RoleTool && d.Field != "tool_call_ids" {
			return nil
		}
		if d.ID != nil {
			return []jsontext.Value{d.ID}
		}
		return []jsontext.Value{quote(p.ID)}
	}
	writeID(o, "tool_call_id", p.ID, d)
	return nil
}
