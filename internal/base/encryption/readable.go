package encryption

import (
	"reflect"
	"slices"

	"github.com/go-json-experiment/json"

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

// ReadableValue is a message with [Placeholder] instead of each encrypted field: a copy if it has one. The paths of refs
// begin at the message.
func ReadableValue[T any](v T, refs []schema.Ref) T {
	shown, _ := readable(&v, refs).(*T) // of the same type
	return *shown
}

// ReadableContent is an event's data with [Placeholder] instead of each encrypted content value: a copy if it has one,
// and otherwise data itself.
func ReadableContent(data schema.Data) schema.Data {
	refs := schema.RefsOf(data)
	if refs == nil {
		return data
	}
	shown, _ := readable(data, *refs).(schema.Data) // of the same type
	return shown
}

// readable returns its first argument, or a pointer to a copy with placeholders. Executors write the refs, which may
// name any path.
func readable(of any, refs []schema.Ref) any {
	keys := make(map[string]string)
	for _, r := range refs {
		if r.KeyID != "" {
			keys[r.Path] = r.KeyID
		}
	}
	if len(keys) == 0 {
		return of
	}
	b, err := json.Marshal(of)
	if err != nil {
		return of
	}
	shown := reflect.New(reflect.TypeOf(of).Elem()).Interface()
	if err := json.Unmarshal(b, shown); err != nil {
		return of
	}
	for _, c := range schema.Contents(shown) {
		if key := keys[c.Path]; key != "" {
			if text, err := json.Marshal(Placeholder(key)); err == nil {
				_ = c.Set(text) // a value that takes no text has no cipher text either
			}
		}
	}
	return shown
}
