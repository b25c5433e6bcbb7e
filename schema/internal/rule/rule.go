package rule

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Form is the form of a text.
type Form string

// Forms.
const (
	// FormName is a name of a run, an agent, an executor.
	FormName Form = "name"
	// FormText has no control characters (they would break logs and terminals) and is valid UTF-8.
	FormText Form = "text"
	// FormHash is a SHA-256 sum in hex.
	FormHash Form = "hash"
	// FormTime is an RFC 3339 time.
	FormTime Form = "time"
	// FormPointer is a JSON Pointer.
	FormPointer Form = "pointer"
	// FormDataRef is a reference of a blob.
	FormDataRef Form = "dataref"
)

var forms = []Form{FormName, FormText, FormHash, FormTime, FormPointer, FormDataRef}

// Rules of one value.
type Rules struct {
	Required bool
	// Min and Max are the bounds; [math.MinInt64] and [math.MaxInt64] without one.
	Min, Max int64
	// OneOf are the accepted texts, nil for any.
	OneOf []string
	// Form of a text, empty for any.
	Form Form
}

// Condition makes a member required that is optional otherwise.
type Condition struct {
	// Member is another member of the object, Field its index in the struct, and Values those that make it required.
	Member string
	Field  int
	Values []string
}

// Field is a field of a struct, with the rules of its member.
type Field struct {
	// Index in the struct, and the name of the JSON member; empty for an embedded struct.
	Index int
	Name  string
	Type  reflect.Type
	// Content is the field's tag of that name.
	Content string
	// Check is nil without rules. Each and Key are those of a list's or map's entries.
	Check, Each, Key *Rules
	With             *Condition
}

// Of returns the fields of a struct type. It panics on a tag that it cannot read.
func Of(t reflect.Type) []Field {
	var fields []Field
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || name == "" && !f.Anonymous {
			continue
		}
		field := Field{Index: i, Name: name, Type: f.Type, Content: f.Tag.Get("content")}
		var err error
		for _, tag := range []struct {
			name string
			into **Rules
		}{{"check", &field.Check}, {"each", &field.Each}, {"key", &field.Key}} {
			if text, ok := f.Tag.Lookup(tag.name); ok && err == nil {
				*tag.into, err = parse(text)
			}
		}
		if field.Check != nil && field.Check.Required && f.Type.Kind() >= reflect.Int && f.Type.Kind() <= reflect.Float64 {
			err = errors.New("a number is required by min")
		}
		if text, ok := f.Tag.Lookup("with"); ok && err == nil {
			field.With, err = condition(t, text)
		}
		if err != nil {
			panic(fmt.Sprintf("rules of field %s.%s: %v", t.Name(), f.Name, err))
		}
		fields = append(fields, field)
	}
	return fields
}

func parse(tag string) (*Rules, error) {
	r := &Rules{Min: math.MinInt64, Max: math.MaxInt64}
	for word := range strings.SplitSeq(tag, ",") {
		name, value, _ := strings.Cut(word, "=")
		var err error
		switch {
		case word == "required":
			r.Required = true
		case name == "min":
			r.Min, err = strconv.ParseInt(value, 10, 64)
		case name == "max":
			r.Max, err = strconv.ParseInt(value, 10, 64)
		case name == "oneof":
			r.OneOf = strings.Split(value, "|")
		case slices.Contains(forms, Form(word)):
			r.Form = Form(word)
		default:
			err = fmt.Errorf("%q is no rule", word)
		}
		if err != nil {
			return nil, err
		}
	}
	return r, nil
}

func condition(t reflect.Type, tag string) (*Condition, error) {
	member, values, _ := strings.Cut(tag, "=")
	for i := range t.NumField() {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); name == member && t.Field(i).Type.Kind() == reflect.String {
			return &Condition{Member: member, Field: i, Values: strings.Split(values, "|")}, nil
		}
	}
	return nil, fmt.Errorf("%q names no text of the object", tag)
}
