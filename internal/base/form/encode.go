package form

import (
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Encoder writes messages of [schema.ValidHistory] in the format of a provider's API, as values for [Marshal]. A part
// without a place in it is an error ([Encoder.Err]). A list is the content of a result only if it consists of the
// form's blocks. Reasoning of another provider is omitted, because no provider accepts it.
type Encoder struct {
	key string
	err error
}

// NewEncoder returns the encoder of the form with the key.
func NewEncoder(key string) *Encoder { return &Encoder{key: key} }

// Err is the error of the first part that could not be written; nil if all could.
func (e *Encoder) Err() error { return e.err }

// place notes a part without a place in the form.
func (e *Encoder) place(p *schema.Part, fits bool) {
	if !fits && e.err == nil {
		e.err = fmt.Errorf("no place for a part of type %.60q (modality %.60q)", p.Type, p.Modality)
	}
}

// object is a JSON object that is written.
type object = map[string]any

// with adds unknown members.
func with(o object, members Object) object {
	for name, v := range members {
		o[name] = v
	}
	return o
}

func textOf(p *schema.Part) string {
	if p.Content == nil {
		return ""
	}
	return *p.Content
}

func dataURL(p *schema.Part) string { return "data:" + p.MimeType + ";base64," + textOf(p) }

// textArguments are the arguments of a call, for an API that demands a string. The string of a custom tool is any text.
func textArguments(p *schema.Part, d *Detail) any {
	if o, ok := ParseObject(p.Arguments); ok && d.Field == fieldCustom {
		if text := o.Take("arguments"); text.Kind() == '"' && len(o) == 0 {
			return text
		}
	}
	if d.AsIs || p.Arguments.Kind() == '"' {
		return p.Arguments
	}
	return string(p.Arguments)
}

// result is the result of a call. block writes a part of a result that is a content list of an MCP tool; blocks names
// the types of the form's own blocks, each with a member that only it has.
func result(v jsontext.Value, blocks map[string]string, block func(*schema.Part) any) any {
	if parts := resultParts(v); parts != nil {
		list := make([]any, len(parts))
		for i := range parts {
			list[i] = block(&parts[i])
		}
		return list
	}
	switch {
	case v == nil, v.Kind() == 'n':
		return ""
	case v.Kind() == '"', hasBlocksOnly(v, blocks):
		return v
	default:
		return string(v)
	}
}

func hasBlocksOnly(v jsontext.Value, blocks map[string]string) bool {
	values, _ := ParseArray(v)
	for _, b := range values {
		o, _ := ParseObject(b)
		typ, _ := o.Str("type")
		if _, has := o[blocks[typ]]; !has {
			return false
		}
	}
	return len(values) > 0
}

// resultParts reads a result that is a content list of an MCP tool, with texts and images; nil for any other value.
func resultParts(v jsontext.Value) []schema.Part {
	values, _ := ParseArray(v)
	var parts []schema.Part
	for _, b := range values {
		o, _ := ParseObject(b)
		delete(o, "annotations")
		delete(o, "_meta")
		typ, _ := o.TakeStr("type")
		part, ok := schema.Part{}, false
		switch typ {
		case "text":
			var text string
			text, ok = o.TakeStr("text")
			part = schema.Text(text)
		case "image":
			data, isData := o.TakeStr("data")
			mime, isMime := o.TakeStr("mimeType")
			part, ok = schema.Part{Type: schema.PartBlob, Modality: "image", MimeType: mime, Content: &data}, isData && isMime
		}
		if !ok || len(o) > 0 {
			return nil
		}
		parts = append(parts, part)
	}
	return parts
}
