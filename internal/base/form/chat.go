package form

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Members of a chat message that become their own parts.
const (
	// fieldReasoning comes from programs other than OpenAI's: a model's reasoning.
	fieldReasoning = "reasoning_content"
	fieldRefusal   = "refusal"
)

// fieldCustom is the member of a call of a custom tool.
const fieldCustom = "custom"

// Chat reads an answer of Chat Completions.
func Chat(o Object) (*Answer, error) {
	if role, _ := o.TakeStr("role"); role != schema.RoleAssistant {
		return nil, fmt.Errorf("the message has the role %.40q", role)
	}
	if _, has := o["function_call"]; has && o["function_call"].Kind() != 'n' {
		return nil, errors.New("the message has function_call, the older format without tools")
	}
	a, d := newAnswer(KeyChat), &Detail{Members: o}
	var err error
	if d.List, err = a.addChatContent(o.Take("content")); err != nil {
		return nil, err
	}
	for _, field := range []string{fieldReasoning, fieldRefusal} {
		text, ok := o.TakeStr(field)
		if !ok {
			continue
		}
		part := schema.Text(text)
		if field == fieldReasoning {
			part = schema.Reasoning(text)
		}
		if err := a.add(nil, part, &Detail{Field: field}); err != nil {
			return nil, err
		}
	}
	if calls := o.Take("tool_calls"); calls != nil && calls.Kind() != 'n' {
		if err := a.addChatCalls(calls); err != nil {
			return nil, err
		}
	}
	maps.DeleteFunc(o, isEmpty)
	a.Source, err = d.Source(a.key)
	return a, err
}

func (a *Answer) addChatContent(v jsontext.Value) (isList bool, err error) {
	if text, ok := unquote(v); ok {
		return false, a.append(schema.Text(text))
	}
	values, isList := ParseArray(v)
	if !isList && v != nil && v.Kind() != 'n' {
		return false, errors.New("the content is neither text nor a list")
	}
	for _, v := range values {
		if err := a.addChatBlock(v); err != nil {
			return true, err
		}
	}
	return isList, nil
}

func (a *Answer) addChatBlock(v jsontext.Value) error {
	o, _ := ParseObject(v)
	typ, _ := o.TakeStr("type")
	switch typ {
	case "text":
		if text, ok := o.TakeStr("text"); ok {
			return a.add(v, schema.Text(text), &Detail{Members: o})
		}
	case fieldRefusal:
		if text, ok := o.TakeStr(fieldRefusal); ok {
			return a.add(v, schema.Text(text), &Detail{Type: typ, Members: o})
		}
	}
	return a.addForeign(v)
}

func (a *Answer) addChatCalls(calls jsontext.Value) error {
	values, ok := ParseArray(calls)
	if !ok {
		return errors.New("the message has tool_calls that are not a list")
	}
	for i, v := range values {
		o, _ := ParseObject(v)
		d := &Detail{Members: o}
		member, arguments := "function", "arguments"
		if _, custom := o[fieldCustom]; custom {
			member, arguments = fieldCustom, "input"
			d.Field = member
		}
		d.Inner, ok = o.TakeObject(member)
		if !ok {
			return fmt.Errorf("call %d has no %s", i+1, member)
		}
		if typ, _ := o.Str("type"); typ == member {
			delete(o, "type")
		}
		if err := a.addCall(o, d.Inner, "id", arguments, '"', d); err != nil {
			return err
		}
	}
	return nil
}

// Chat writes a message: one for each result of a call, and one for its other parts, if there are any.
func (e *Encoder) Chat(m *schema.Message) []any {
	d, _ := detailOf(m.Source, e.key)
	o := object{"role": m.Role}
	if m.Name != "" {
		o["name"] = m.Name
	}
	var messages, content, calls []any
	plain, empty := !d.List, len(d.Members) == 0
	for i := range m.Parts {
		p := &m.Parts[i]
		pd, own := detailOf(p.Source, e.key)
		switch {
		case p.Type == schema.PartToolCall:
			calls = append(calls, chatCall(p, &pd))
		case p.Type == schema.PartToolCallResponse:
			messages = append(messages, object{
				"role": schema.RoleTool, "tool_call_id": p.ID, "content": result(p.Response, chatResultBlocks, e.chatResultBlock),
			})
		case pd.Field != "":
			o[pd.Field], empty = textOf(p), false
		case p.Type == schema.PartReasoning && !own:
		default:
			plain = plain && p.Type == schema.PartText && len(p.Source) == 0
			content = append(content, e.chatBlock(p))
		}
	}
	if empty && len(content)+len(calls) == 0 {
		return messages
	}
	switch {
	case len(content) == 0 && !d.List && m.Role == schema.RoleAssistant:
		o["content"] = nil
	case len(content) == 1 && plain:
		o["content"] = content[0].(object)["text"] //nolint:errcheck,forcetypeassert // the block of a plain text is an object
	default:
		o["content"] = append([]any{}, content...)
	}
	if len(calls) > 0 {
		o["tool_calls"] = calls
	}
	return append(messages, with(o, d.Members))
}

// chatBlock writes one element of a content list.
func (e *Encoder) chatBlock(p *schema.Part) any {
	d, own := detailOf(p.Source, e.key)
	switch {
	case d.JSON:
		return jsontext.Value(textOf(p))
	case p.Type == schema.PartText && d.Type == fieldRefusal:
		return with(object{"type": d.Type, fieldRefusal: textOf(p)}, d.Members)
	case p.Type == schema.PartBlob && p.Modality == "audio":
		return object{"type": "input_audio", "input_audio": object{"data": textOf(p), "format": strings.TrimPrefix(p.MimeType, "audio/")}}
	case p.Type == schema.PartBlob && p.Modality == "document":
		return object{"type": "file", "file": object{"filename": "document", "file_data": dataURL(p)}}
	case p.Type == schema.PartBlob, p.Type == schema.PartURI:
		e.place(p, p.Modality == "" || p.Modality == "image")
		url := p.URI
		if p.Type == schema.PartBlob {
			url = dataURL(p)
		}
		return object{"type": "image_url", "image_url": object{"url": url}}
	case p.Type == schema.PartFile:
		return object{"type": "file", "file": object{"file_id": p.FileID}}
	default:
		e.place(p, p.Type == schema.PartText || own)
		return with(object{"type": "text", "text": textOf(p)}, d.Members)
	}
}

// chatCall writes one element of tool_calls.
func chatCall(p *schema.Part, d *Detail) any {
	member, arguments := "function", "arguments"
	if d.Field == fieldCustom {
		member, arguments = d.Field, "input"
	}
	inner := with(object{"name": p.Name, arguments: textArguments(p, d)}, d.Inner)
	return with(object{"id": p.ID, "type": member, member: inner}, d.Members)
}

var chatResultBlocks = map[string]string{"text": "text"}

// chatResultBlock writes a part of a result, which can only be a text.
func (e *Encoder) chatResultBlock(p *schema.Part) any {
	e.place(p, p.Type == schema.PartText)
	return e.chatBlock(p)
}
