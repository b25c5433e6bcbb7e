package transcript

import (
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// content turns the member content into parts and returns its shape. block takes one element of a list. A list with more elements than a
// message takes is one part, as it was.
func (m *decoded) content(o *object, f Format, block func(jsontext.Value)) string {
	v, has := o.take("content")
	if !has {
		return shapeAbsent
	}
	switch v.Kind() {
	case 'n':
		return shapeNull
	case '"':
		s, _ := unquote(v)
		m.Parts = append(m.Parts, schema.Text(s))
		return shapeString
	case '[':
		values, _ := parseArray(v)
		if len(values) > maxParts {
			m.unrecorded = len(values)
			m.Parts = append(m.Parts, jsonPart(v, f))
			return shapeValue
		}
		for _, e := range values {
			block(e)
		}
		return shapeList
	default:
		m.Parts = append(m.Parts, jsonPart(v, f))
		return shapeValue
	}
}

// content writes the member content in the shape it had, or in its natural shape when none was noted.
func (w *writer) content(shape, natural string, parts []schema.Part, block func(*schema.Part) jsontext.Value) {
	if shape == "" {
		shape = natural
	}
	switch {
	case shape == shapeAbsent && len(parts) == 0:
	case shape == shapeNull && len(parts) == 0:
		w.set("content", jsontext.Value("null"))
	case shape == shapeString && len(parts) == 1 && parts[0].Content != nil:
		w.str("content", *parts[0].Content)
	case shape == shapeValue && len(parts) == 1 && parts[0].Content != nil:
		w.set("content", jsontext.Value(*parts[0].Content))
	default:
		blocks := make([]jsontext.Value, len(parts))
		for i := range parts {
			blocks[i] = block(&parts[i])
		}
		w.set("content", array(blocks))
	}
}
