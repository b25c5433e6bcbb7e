package form

import (
	"bytes"
	"errors"
	"io"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// maxDepth leaves space for the nesting levels that an event adds around a value.
const maxDepth = schema.MaxJSONDepth - 16

// ErrTooDeep is returned for values nested too deeply for an event.
var ErrTooDeep = errors.New("is nested too deeply")

// CheckJSON returns an error unless b is one JSON value that fits into an event. It checks syntax, duplicate names,
// invalid UTF-8, lone surrogates and nesting.
func CheckJSON(b []byte) error {
	d := jsontext.NewDecoder(bytes.NewReader(b))
	for {
		t, err := d.ReadToken()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return io.ErrUnexpectedEOF
			}
			return err
		}
		if k := t.Kind(); (k == '{' || k == '[') && d.StackDepth() > maxDepth {
			return &jsontext.SyntacticError{JSONPointer: d.StackPointer(), Err: ErrTooDeep}
		}
		if d.StackDepth() == 0 {
			break
		}
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return errors.New("not valid JSON: data follows the value")
	}
	return nil
}

// Object is a JSON object whose known members are taken out one by one; the rest are unknown members.
type Object map[string]jsontext.Value

// ParseObject splits a checked object. ok is false for any other value.
func ParseObject(v jsontext.Value) (o Object, ok bool) {
	if v.Kind() != '{' {
		return nil, false
	}
	err := json.Unmarshal(v, &o)
	return o, err == nil
}

// ParseArray splits a checked array. ok is false for any other value.
func ParseArray(v jsontext.Value) (values []jsontext.Value, ok bool) {
	if v.Kind() != '[' {
		return nil, false
	}
	err := json.Unmarshal(v, &values)
	return values, err == nil
}

// Take removes a member and returns it; nil if there is none.
func (o Object) Take(name string) jsontext.Value {
	v := o[name]
	delete(o, name)
	return v
}

// Str returns a member that is a string.
func (o Object) Str(name string) (string, bool) { return unquote(o[name]) }

// TakeStr removes a member if it is a string; any other value stays.
func (o Object) TakeStr(name string) (string, bool) {
	s, ok := o.Str(name)
	if ok {
		delete(o, name)
	}
	return s, ok
}

// TakeObject removes a member if it is an object.
func (o Object) TakeObject(name string) (Object, bool) {
	inner, ok := ParseObject(o[name])
	if ok {
		delete(o, name)
	}
	return inner, ok
}

func unquote(v jsontext.Value) (string, bool) {
	if v.Kind() != '"' {
		return "", false
	}
	b, err := jsontext.AppendUnquote(nil, []byte(v))
	return string(b), err == nil
}

// integer reads a JSON number without a fraction.
func integer(v jsontext.Value) (int64, bool) {
	if v.Kind() != '0' {
		return 0, false
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	return n, err == nil
}

// isEmpty reports whether a member is null or an empty list.
func isEmpty(_ string, v jsontext.Value) bool { return v.Kind() == 'n' || string(v) == "[]" }

// Marshal returns the JSON of v, which consists of strings, numbers and checked raw values: the same bytes for the same
// value.
func Marshal(v any) (jsontext.Value, error) { return json.Marshal(v, json.Deterministic(true)) }
