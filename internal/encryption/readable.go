package encryption

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// KeyOf is the key of the encrypted field at a path; empty for a field that is not encrypted.
func KeyOf(refs []schema.Ref, path string) string {
	if i := slices.IndexFunc(refs, func(r schema.Ref) bool { return r.Path == path }); i >= 0 {
		return refs[i].KeyID
	}
	return ""
}

// Placeholder replaces a field that is encrypted with a key.
func Placeholder(key string) string { return "(encrypted with key " + key + ")" }

// ReadableField is the text of the field at a path, or [Placeholder] of its key.
func ReadableField(text string, refs []schema.Ref, path string) string {
	if key := KeyOf(refs, path); key != "" {
		return Placeholder(key)
	}
	return text
}

// ReadableValue is a value with [Placeholder] instead of each encrypted field. The paths of refs begin at the value.
func ReadableValue[T any](v T, refs []schema.Ref) T {
	if !slices.ContainsFunc(refs, func(r schema.Ref) bool { return r.KeyID != "" }) {
		return v
	}
	b, err := json.Marshal(v)
	if err != nil {
		return v
	}
	var out T
	if err := json.Unmarshal(readable(b, refs), &out); err != nil {
		return v // the path names a field that is no text
	}
	return out
}

// ReadableContent is an event's data with [Placeholder] instead of each encrypted content value. It is a copy if it has one, and
// otherwise data itself.
func ReadableContent(data schema.Data) schema.Data {
	refs := schema.RefsOf(data)
	if refs == nil || !slices.ContainsFunc(*refs, func(r schema.Ref) bool { return r.KeyID != "" }) {
		return data
	}
	body, err := schema.MarshalData(data)
	if err != nil {
		return data
	}
	shown, err := schema.ParseData(&schema.Event{Type: schema.TypeOf(data.EventName()), DataContentType: schema.ContentTypeJSON, Data: body})
	if err != nil || shown == nil {
		return data
	}
	for _, c := range schema.Contents(shown) {
		key := KeyOf(*refs, c.Path)
		if key == "" {
			continue
		}
		if text, err := json.Marshal(Placeholder(key)); err == nil {
			_ = c.Set(text) // a value that takes no text has no cipher text either
		}
	}
	return shown
}

// ReadableData is an event's data with [Placeholder] instead of each encrypted field.
func ReadableData(data []byte) []byte {
	if !bytes.Contains(data, []byte(`"key_id"`)) {
		return data
	}
	var d struct {
		Refs []schema.Ref `json:"refs"`
	}
	if json.Unmarshal(data, &d) != nil {
		return data
	}
	return readable(data, d.Refs)
}

// field is the text for a path, with the remaining parts of the path.
type field struct {
	path []string
	text jsontext.Value
}

var unescape = strings.NewReplacer("~1", "/", "~0", "~")

func readable(data jsontext.Value, refs []schema.Ref) jsontext.Value {
	var fields []field
	for _, r := range refs {
		if r.KeyID == "" || !strings.HasPrefix(r.Path, "/") {
			continue
		}
		text, err := json.Marshal(Placeholder(r.KeyID))
		if err != nil {
			continue // the key's name is not UTF-8
		}
		path := strings.Split(r.Path[1:], "/")
		for i := range path {
			path[i] = unescape.Replace(path[i])
		}
		fields = append(fields, field{path, text})
	}
	if len(fields) == 0 {
		return data
	}
	return replaced(data, fields)
}

// replaced is a JSON value with some fields replaced. A missing field is added if its parent exists.
func replaced(v jsontext.Value, fields []field) jsontext.Value {
	below := make(map[string][]field)
	for _, f := range fields {
		if len(f.path) == 0 {
			return f.text
		}
		below[f.path[0]] = append(below[f.path[0]], field{f.path[1:], f.text})
	}
	var changed any
	switch v.Kind() {
	case '{':
		var members map[string]jsontext.Value
		if json.Unmarshal(v, &members) != nil {
			return v
		}
		for name, list := range below {
			if child := replaced(members[name], list); child != nil {
				members[name] = child
			}
		}
		changed = members
	case '[':
		var list []jsontext.Value
		if json.Unmarshal(v, &list) != nil {
			return v
		}
		for name, fields := range below {
			if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(list) {
				list[i] = replaced(list[i], fields)
			}
		}
		changed = list
	default:
		return v
	}
	b, err := json.Marshal(changed, json.Deterministic(true))
	if err != nil {
		return v
	}
	return b
}
