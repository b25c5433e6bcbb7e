package form

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Anthropic reads the content of an answer of the Messages API.
func Anthropic(blocks []jsontext.Value) (*Answer, error) {
	a := newAnswer(KeyAnthropic)
	for _, v := range blocks {
		if err := a.addAnthropic(v); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func (a *Answer) addAnthropic(v jsontext.Value) error {
	o, _ := ParseObject(v)
	typ, _ := o.TakeStr("type")
	switch typ {
	case "text":
		if text, ok := o.TakeStr("text"); ok {
			return a.add(v, schema.Text(text), &Detail{Members: o})
		}
	case "thinking":
		if text, ok := o.TakeStr("thinking"); ok {
			return a.add(v, schema.Reasoning(text), &Detail{Members: o})
		}
	case "redacted_thinking":
		return a.add(v, schema.Part{Type: schema.PartReasoning}, &Detail{Type: typ, Members: o})
	case "tool_use":
		return a.addCall(o, o, "id", "input", '{', &Detail{Members: o})
	}
	return a.addForeign(v)
}

// Anthropic writes the parts of a message as blocks. The results of calls come first in their turn, so they are apart.
func (e *Encoder) Anthropic(m *schema.Message) (results, blocks []any) {
	for i := range m.Parts {
		p := &m.Parts[i]
		d, own := detailOf(p.Source, e.key)
		switch {
		case p.Type == schema.PartReasoning && !own:
		case p.Type == schema.PartText && strings.TrimSpace(textOf(p)) == "" && hasEmptyOnly(d.Members): // which the API refuses
		case p.Type == schema.PartToolCallResponse:
			results = append(results, e.anthropicResult(p))
		default:
			blocks = append(blocks, e.anthropicBlock(p))
		}
	}
	return results, blocks
}

func hasEmptyOnly(members Object) bool {
	for name, v := range members {
		if !isEmpty(name, v) {
			return false
		}
	}
	return true
}

func (e *Encoder) anthropicBlock(p *schema.Part) any {
	d, own := detailOf(p.Source, e.key)
	if d.JSON {
		return jsontext.Value(textOf(p))
	}
	kind := "image"
	if p.Modality == "document" || p.Type == schema.PartFile && p.Modality != kind {
		kind = "document"
	}
	media := func(source object) any {
		e.place(p, p.Modality == "" || p.Modality == kind)
		return object{"type": kind, "source": source}
	}
	switch p.Type {
	case schema.PartReasoning:
		if d.Type != "" {
			return with(object{"type": d.Type}, d.Members)
		}
		return with(object{"type": "thinking", "thinking": textOf(p)}, d.Members)
	case schema.PartToolCall:
		return with(object{"type": "tool_use", "id": schema.PlainCallID(p.ID), "name": p.Name, "input": anthropicInput(p.Arguments)}, d.Members)
	case schema.PartBlob:
		return media(object{"type": "base64", "media_type": p.MimeType, "data": textOf(p)})
	case schema.PartURI:
		return media(object{"type": "url", "url": p.URI})
	case schema.PartFile:
		return media(object{"type": "file", "file_id": p.FileID})
	default:
		e.place(p, p.Type == schema.PartText || own)
		return with(object{"type": "text", "text": textOf(p)}, d.Members)
	}
}

// anthropicInput is the object that the arguments are, or whose text they are.
func anthropicInput(args jsontext.Value) jsontext.Value {
	if text, ok := unquote(args); ok {
		return jsontext.Value(text)
	}
	return args
}

var anthropicResultBlocks = map[string]string{"text": "text", "image": "source", "document": "source", "search_result": "source", "tool_reference": "tool_name"}

func (e *Encoder) anthropicResult(p *schema.Part) any {
	o := object{"type": "tool_result", "tool_use_id": schema.PlainCallID(p.ID), "content": result(p.Response, anthropicResultBlocks, e.anthropicBlock)}
	if p.IsError {
		o["is_error"] = true
	}
	return o
}
