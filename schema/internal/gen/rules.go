package main

import (
	"math"
	"reflect"
	"slices"

	"github.com/waymarkio/waymark/schema/internal/rule"
)

const (
	namePattern = `^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`
	hashPattern = `^([0-9a-f]{64})?$`
	textPattern = `^[^\x00-\x1f\x7f-\x9f]*$` // understood by RE2 and by ECMA 262
	refPattern  = `^(waymark-blob:[A-Za-z0-9][A-Za-z0-9_-]{0,63}\.sha256-[0-9a-f]{64})?$`
)

// addRules writes the rules of a type's fields into its schema. They hold wherever the type occurs; its members are
// required only in events.
func (b *builder) addRules(owner object, t reflect.Type) {
	_, hasRefs := t.FieldByName("Refs")
	for _, f := range rule.Of(t) {
		if f.Name == "" {
			continue // addFields has followed it
		}
		property := child(child(owner, "properties"), f.Name)
		if f.Check != nil {
			apply(property, f.Check, f.Type)
		}
		if f.Each != nil {
			entries := child(property, "items")
			if f.Type.Kind() == reflect.Map {
				delete(property, "items")
				entries = child(property, "additionalProperties")
			}
			apply(entries, f.Each, f.Type.Elem())
		}
		if f.Key != nil {
			names := object{}
			apply(names, f.Key, f.Type.Key())
			property["propertyNames"] = names
		}
		if f.With != nil {
			conditions(owner, f)
		}
		if t.Name() == "Part" && f.Name == "type" { // an open list
			property["examples"] = b.source.parts
		}
		switch {
		case !b.ofEvents[t.Name()] || !required(f):
		case f.Content != "large":
			requireMember(owner, f.Name)
		case hasRefs:
			owner["anyOf"] = movable(f.Name)
		}
	}
	if t.Name() == "Ref" {
		owner["allOf"] = refRules()
	}
}

// required reports whether an event without the member is refused: by its own rules, or by those of its members.
func required(f rule.Field) bool {
	if f.Check != nil && (f.Check.Required || f.Check.Min > 0) {
		return true
	}
	return f.Type.Kind() == reflect.Struct && slices.ContainsFunc(rule.Of(f.Type), required)
}

func apply(property object, r *rule.Rules, t reflect.Type) {
	switch t.Kind() {
	case reflect.String:
		applyText(property, r)
	case reflect.Map:
		bound(property, r, "minProperties", "maxProperties")
	case reflect.Slice:
		if t != rawType {
			bound(property, r, "minItems", "maxItems")
		}
	default:
		bound(property, r, "minimum", "maximum")
	}
}

// bound writes the bounds of a number or of a number of entries.
func bound(property object, r *rule.Rules, lowest, highest string) {
	if r.Required {
		property[lowest] = 1
	}
	if r.Min != math.MinInt64 {
		property[lowest] = r.Min
	}
	if r.Max != math.MaxInt64 {
		property[highest] = r.Max
	}
}

func applyText(property object, r *rule.Rules) {
	if r.OneOf != nil {
		property["enum"] = r.OneOf
		return
	}
	switch r.Form {
	case rule.FormName:
		property["pattern"] = namePattern
		return
	case rule.FormText:
		property["pattern"] = textPattern
	case rule.FormHash:
		property["pattern"] = hashPattern
	case rule.FormTime:
		property["format"] = "date-time"
	case rule.FormPointer:
		property["pattern"] = "^/"
	case rule.FormDataRef:
		property["pattern"] = refPattern
	}
	if r.Required {
		property["minLength"] = 1
	}
	if r.Max != math.MaxInt64 {
		property["maxLength"] = r.Max
	}
}

// conditions writes that a member is required with some values of another one.
func conditions(owner object, f rule.Field) {
	rules, _ := owner["allOf"].([]any)
	for _, value := range f.With.Values {
		then := object{"required": []string{f.Name}}
		if f.Type.Kind() == reflect.String {
			then["properties"] = object{f.Name: object{"minLength": 1}}
		}
		rules = append(rules, object{
			"if":   object{"required": []string{f.With.Member}, "properties": object{f.With.Member: object{"const": value}}},
			"then": then,
		})
	}
	owner["allOf"] = rules
}

// movable says that a member is required, and may be in the blob store.
func movable(member string) []any {
	return []any{
		object{"required": []string{member}},
		object{
			"required": []string{"refs"},
			"properties": object{"refs": object{"contains": object{
				"properties": object{"path": object{"const": "/" + member}}, "required": []string{"path"},
			}}},
		},
	}
}

// refRules are the rules of a ref: an encrypted field has key and codec, one that is not encrypted is in a blob.
func refRules() []any {
	has := func(member string) object {
		return object{"required": []string{member}, "properties": object{member: object{"minLength": 1}}}
	}
	return []any{
		object{"if": has("key_id"), "then": has("codec"), "else": has("dataref")},
		object{"if": has("codec"), "then": has("key_id")},
	}
}
