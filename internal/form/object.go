package form

import (
	"bytes"
	"errors"
	"fmt"
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

// Object is a JSON object whose members are taken out one by one; the rest are unknown members.
type Object struct {
	Names  []string
	Values []jsontext.Value
}

// ParseObject splits a checked object. ok is false for any other value.
func ParseObject(v jsontext.Value) (o *Object, ok bool) {
	if v.Kind() != '{' {
		return nil, false
	}
	d := jsontext.NewDecoder(bytes.NewReader(v))
	if _, err := d.ReadToken(); err != nil {
		return nil, false
	}
	o = new(Object)
	for d.PeekKind() != '}' {
		name, err := d.ReadToken()
		if err != nil {
			return nil, false
		}
		key := name.String()
		value, err := d.ReadValue()
		if err != nil {
			return nil, false
		}
		o.Names = append(o.Names, key)
		o.Values = append(o.Values, value.Clone())
	}
	return o, true
}

// ParseArray splits a checked array.
func ParseArray(v jsontext.Value) (values []jsontext.Value, ok bool) {
	if v.Kind() != '[' {
		return nil, false
	}
	d := jsontext.NewDecoder(bytes.NewReader(v))
	if _, err := d.ReadToken(); err != nil {
		return nil, false
	}
	values = []jsontext.Value{}
	for d.PeekKind() != ']' {
		value, err := d.ReadValue()
		if err != nil {
			return nil, false
		}
		values = append(values, value.Clone())
	}
	return values, true
}

// Get returns a member.
func (o *Object) Get(name string) (jsontext.Value, bool) {
	for i, n := range o.Names {
		if n == name {
			return o.Values[i], true
		}
	}
	return nil, false
}

// Take removes a member and returns it.
func (o *Object) Take(name string) (jsontext.Value, bool) {
	for i, n := range o.Names {
		if n == name {
			v := o.Values[i]
			o.Names = append(o.Names[:i:i], o.Names[i+1:]...)
			o.Values = append(o.Values[:i:i], o.Values[i+1:]...)
			return v, true
		}
	}
	return nil, false
}

// Str returns a member that is a string.
func (o *Object) Str(name string) (string, bool) {
	v, _ := o.Get(name)
	return Unquote(v)
}

// TakeStr removes a member if it is a string; any other value stays.
func (o *Object) TakeStr(name string) (string, bool) {
	s, ok := o.Str(name)
	if ok {
		o.Take(name)
	}
	return s, ok
}

// Put adds a member after the others.
func (o *Object) Put(name string, v jsontext.Value) {
	o.Names = append(o.Names, name)
	o.Values = append(o.Values, v)
}

// TakeObject removes a member that is an object; the result is empty, not nil, if there is none.
func TakeObject(o *Object, name string) (*Object, bool) {
	v, _ := o.Get(name)
	inner, ok := ParseObject(v)
	if !ok {
		return new(Object), false
	}
	o.Take(name)
	return inner, true
}

// Rest returns the remaining members unchanged, or nil.
func (o *Object) Rest() map[string]jsontext.Value {
	if len(o.Names) == 0 {
		return nil
	}
	m := make(map[string]jsontext.Value, len(o.Names))
	for i, n := range o.Names {
		m[n] = o.Values[i]
	}
	return m
}

// Unquote returns the text of a JSON string; ok is false for any other value.
func Unquote(v jsontext.Value) (string, bool) {
	if v.Kind() != '"' {
		return "", false
	}
	b, err := jsontext.AppendUnquote(nil, []byte(v))
	return string(b), err == nil
}

// Quote returns the JSON text of s.
func Quote(s string) jsontext.Value {
	b, err := jsontext.AppendQuote(nil, s)
	if err != nil {
		// Invalid UTF-8 became the replacement character; strings of checked JSON have none.
		return b
	}
	return b
}

// Compact returns a copy of v without white space outside strings; strings and numbers stay unchanged.
func Compact(v jsontext.Value) jsontext.Value {
	if v == nil {
		return nil
	}
	c := v.Clone()
	if err := c.Compact(); err != nil {
		return v.Clone()
	}
	return c
}

// Integer reads a JSON number without a fraction.
func Integer(v jsontext.Value) (int64, bool) {
	if v.Kind() != '0' {
		return 0, false
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	return n, err == nil
}

// Boolean reads true or false.
func Boolean(v jsontext.Value) (b, ok bool) {
	k := v.Kind()
	return k == 't', k == 't' || k == 'f'
}

// Marshal returns the JSON of v, which consists of strings, numbers and checked raw values.
func Marshal(v any) jsontext.Value {
	b, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		// Only a programming error gets here; the value is unreadable, not wrong.
		return Quote(fmt.Sprintf("unwritable: %v", err))
	}
	return b
}
