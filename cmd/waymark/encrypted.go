package main

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// keyOf is the key that the field at a path is encrypted with; empty for a field that is not encrypted.
func keyOf(refs []schema.Ref, path string) string {
	if i := slices.IndexFunc(refs, func(r schema.Ref) bool { return r.Path == path }); i >= 0 {
		return refs[i].KeyID
	}
	return ""
}

func encryptedText(key string) string { return "(encrypted with key " + key + ")" }

// fieldText is a field for people: in place of cipher text stands the key that it is encrypted with.
func fieldText(value string, refs []schema.Ref, path string) string {
	if key := keyOf(refs, path); key != "" {
		return encryptedText(key)
	}
	return value
}

// readable is a value in which each encrypted field says its key. Values without encrypted fields stay as they are.
func readable[T any](v T, refs []schema.Ref) T {
	if !slices.ContainsFunc(refs, func(r schema.Ref) bool { return r.KeyID != "" }) {
		return v
	}
	b, err := json.Marshal(v)
	if err != nil {
		return v
	}
	var out T
	if err := json.Unmarshal(readableJSON(b, refs), &out); err != nil {
		return v // a field that is no text
	}
	return out
}

// readableData is the data of an event for people, as [readable] has it.
func readableData(data []byte) []byte {
	if !bytes.Contains(data, []byte(`"key_id"`)) {
		return data
	}
	var d struct {
		Refs []schema.Ref `json:"refs"`
	}
	if json.Unmarshal(data, &d) != nil {
		return data
	}
	return readableJSON(data, d.Refs)
}

func readableJSON(data jsontext.Value, refs []schema.Ref) jsontext.Value {
	for _, r := range refs {
		if r.KeyID == "" || !strings.HasPrefix(r.Path, "/") {
			continue
		}
		text, err := json.Marshal(encryptedText(r.KeyID))
		if err != nil {
			continue // the key's name is not UTF-8
		}
		data = replaced(data, strings.Split(r.Path[1:], "/"), text)
	}
	return data
}

// replaced is a JSON value with another one at a path, the parts of a JSON Pointer. A path that leads nowhere changes nothing.
func replaced(v jsontext.Value, path []string, with jsontext.Value) jsontext.Value {
	if len(path) == 0 {
		return with
	}
	name := strings.NewReplacer("~1", "/", "~0", "~").Replace(path[0])
	var changed any
	switch v.Kind() {
	case '{':
		var members map[string]jsontext.Value
		if json.Unmarshal(v, &members) != nil || members[name] == nil && len(path) > 1 {
			return v
		}
		members[name] = replaced(members[name], path[1:], with)
		changed = members
	case '[':
		var list []jsontext.Value
		i, err := strconv.Atoi(name)
		if err != nil || json.Unmarshal(v, &list) != nil || i < 0 || i >= len(list) {
			return v
		}
		list[i] = replaced(list[i], path[1:], with)
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
