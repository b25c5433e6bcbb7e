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

// Types of items for the calls of custom tools.
const (
	customCall   = "custom_tool_call"
	customOutput = "custom_tool_call_output"
)

// Responses reads the output items of a response of the Responses API: one answer.
func Responses(items []jsontext.Value) (*Answer, error) {
	a := newAnswer(KeyResponses)
	for _, v := range items {
		if err := a.addItem(v); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func (a *Answer) addItem(v jsontext.Value) error {
	o, _ := ParseObject(v)
	typ, _ := o.TakeStr("type")
	switch typ {
	case typeMessage:
		if parts := outputParts(o); parts != nil {
			for _, p := range parts {
				source, err := p.detail.Source(a.key)
				if err != nil {
					return err
				}
				p.part.Source = source
				if err := a.append(p.part); err != nil {
					return err
				}
			}
			return nil
		}
	case "reasoning":
		if len(o) > 0 {
			// The provider accepts nothing but the unchanged item back.
			return a.add(v, schema.Part{Type: schema.PartReasoning, Content: summary(o)}, &Detail{Members: o})
		}
	case "function_call":
		return a.addCall(o, o, "call_id", "arguments", '"', &Detail{Members: o})
	case customCall:
		return a.addCall(o, o, "call_id", "input", '"', &Detail{Field: fieldCustom, Members: o})
	}
	return a.addForeign(v)
}

// outputPart is a text or refusal of an output message.
type outputPart struct {
	part   schema.Part
	detail Detail
}

// outputParts reads a message of texts and refusals; nil means that it has other content.
func outputParts(o Object) []outputPart {
	role, _ := o.TakeStr("role")
	values, _ := ParseArray(o.Take("content"))
	if role != schema.RoleAssistant {
		return nil
	}
	var parts []outputPart
	for _, v := range values {
		b, _ := ParseObject(v)
		d := Detail{Type: typeMore, Inner: b}
		typ, _ := b.TakeStr("type")
		member := "text"
		if typ == fieldRefusal {
			d.Field, member = fieldRefusal, fieldRefusal
		}
		text, isText := b.TakeStr(member)
		if !isText || typ != fieldRefusal && typ != "output_text" {
			return nil
		}
		if len(parts) == 0 {
			d.Type, d.Members = typeMessage, o
		}
		parts = append(parts, outputPart{part: schema.Text(text), detail: d})
	}
	return parts
}

// summary is the text of a reasoning item; nil if it has none.
func summary(o Object) *string {
	var all *string
	values, _ := ParseArray(o["summary"])
	for _, v := range values {
		if s, ok := ParseObject(v); ok {
			text, _ := s.Str("text")
			if all != nil {
				text = *all + "\n" + text
			}
			all = &text
		}
	}
	return all
}

// Responses writes a conversation as input items for a request of the Responses API.
func (e *Encoder) Responses(messages []schema.Message) []any {
	w := &itemWriter{e: e, custom: make(map[string]bool), items: []any{}}
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
	items []any
	// custom are the ids of calls of custom tools.
	custom map[string]bool

	// role and members of the current message, and its content; without content there is no message.
	role    string
	members Object
	content []any
}

func (w *itemWriter) flush() {
	if len(w.content) > 0 {
		w.items = append(w.items, with(object{"type": typeMessage, "role": w.role, "content": w.content}, w.members))
	}
	w.content, w.members = nil, nil
}

func (w *itemWriter) item(v any) {
	w.flush()
	w.items = append(w.items, v)
}

func (w *itemWriter) part(m *schema.Message, p *schema.Part) {
	d, own := detailOf(p.Source, w.e.key)
	switch {
	case d.JSON:
		w.item(jsontext.Value(textOf(p)))
	case p.Type == schema.PartReasoning:
		if own {
			w.item(with(object{"type": "reasoning"}, d.Members))
		}
	case p.Type == schema.PartToolCall:
		typ, arguments := "function_call", "arguments"
		if d.Field == fieldCustom {
			typ, arguments = customCall, "input"
			w.custom[p.ID] = true
		}
		w.item(with(object{"type": typ, "call_id": p.ID, "name": p.Name, arguments: textArguments(p, &d)}, d.Members))
	case p.Type == schema.PartToolCallResponse:
		typ := "function_call_output"
		if w.custom[p.ID] {
			typ = customOutput
		}
		w.item(object{"type": typ, "call_id": p.ID, "output": result(p.Response, responsesResultBlocks, w.e.inputBlock)})
	case m.Role == schema.RoleAssistant && p.Type == schema.PartText:
		if d.Type != typeMore || len(w.content) == 0 {
			w.flush()
			w.role, w.members = m.Role, d.Members
		}
		typ, member := "output_text", "text"
		if d.Field == fieldRefusal {
			typ, member = fieldRefusal, fieldRefusal
		}
		w.content = append(w.content, with(object{"type": typ, member: textOf(p)}, d.Inner))
	default:
		w.role = m.Role
		w.content = append(w.content, w.e.inputBlock(p))
	}
}

// inputBlock writes one element of the input to the model.
func (e *Encoder) inputBlock(p *schema.Part) any {
	if p.Type == schema.PartText {
		return object{"type": "input_text", "text": textOf(p)}
	}
	image := p.Modality == "image"
	e.place(p, image || p.Modality == "" || p.Modality == "document")
	o := object{"type": "input_file"}
	url := "file_url"
	if image {
		o = object{"type": "input_image", "detail": "auto"}
		url = "image_url"
	}
	switch {
	case p.Type == schema.PartFile:
		o["file_id"] = p.FileID
	case p.Type == schema.PartURI:
		o[url] = p.URI
	case image:
		e.place(p, p.Type == schema.PartBlob)
		o[url] = dataURL(p)
	default:
		e.place(p, p.Type == schema.PartBlob)
		o["filename"], o["file_data"] = "document", dataURL(p)
	}
	return o
}

var responsesResultBlocks = map[string]string{"input_text": "text", "input_image": "detail"}
