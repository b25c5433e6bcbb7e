package transcript

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// maxDepth leaves room for the levels that an event adds around a value.
const maxDepth = schema.MaxJSONDepth - 16

// checkJSON reports what makes b anything but one JSON value that an event can carry: syntax, duplicate
// names, invalid UTF-8, lone surrogates, too deep nesting.
func checkJSON(b []byte) error {
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
			return &jsontext.SyntacticError{JSONPointer: d.StackPointer(), Err: errTooDeep}
		}
		if d.StackDepth() == 0 {
			break
		}
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return errors.New("not valid JSON: something follows the value")
	}
	return nil
}

// replaceInvalid returns a copy of b in which each lone surrogate escape and each byte that is no UTF-8 is U+FFFD, and
// how many those are.
func replaceInvalid(b []byte) (out []byte, n int) {
	out = make([]byte, 0, len(b))
	for i := 0; i < len(b); {
		if b[i] != '\\' {
			r, size := utf8.DecodeRune(b[i:])
			if r == utf8.RuneError && size <= 1 {
				n++
			}
			out = utf8.AppendRune(out, r)
			i += size
			continue
		}
		size := min(2, len(b)-i)
		switch first := escaped(b[i:]); {
		case !utf16.IsSurrogate(first):
		case utf16.DecodeRune(first, escaped(b[i+6:])) != utf8.RuneError:
			size = 12
		default:
			out = append(out, `\ufffd`...)
			i += 6
			n++
			continue
		}
		out = append(out, b[i:i+size]...)
		i += size
	}
	return out, n
}

// escaped is the code unit that b begins with as \uXXXX; -1 when it does not.
func escaped(b []byte) rune {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return -1
	}
	v, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(v)
}

// object is a JSON object whose members are taken out one by one; what is left is what nobody knew.
type object struct {
	names  []string
	values []jsontext.Value
}

// parseObject splits an object that was checked before. ok is false for any other value.
func parseObject(v jsontext.Value) (o *object, ok bool) { return parseObjectWith(v) }

func parseObjectWith(v jsontext.Value, opts ...jsontext.Options) (o *object, ok bool) {
	if v.Kind() != '{' {
		return nil, false
	}
	d := jsontext.NewDecoder(bytes.NewReader(v), opts...)
	if _, err := d.ReadToken(); err != nil {
		return nil, false
	}
	o = new(object)
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
		o.names = append(o.names, key)
		o.values = append(o.values, value.Clone())
	}
	return o, true
}

// parseArray splits an array that was checked before.
func parseArray(v jsontext.Value) (values []jsontext.Value, ok bool) {
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

func (o *object) get(name string) (jsontext.Value, bool) {
	for i, n := range o.names {
		if n == name {
			return o.values[i], true
		}
	}
	return nil, false
}

// take removes a member and returns it.
func (o *object) take(name string) (jsontext.Value, bool) {
	for i, n := range o.names {
		if n == name {
			v := o.values[i]
			o.names = append(o.names[:i:i], o.names[i+1:]...)
			o.values = append(o.values[:i:i], o.values[i+1:]...)
			return v, true
		}
	}
	return nil, false
}

// str returns a member that is a string.
func (o *object) str(name string) (string, bool) {
	v, _ := o.get(name)
	return unquote(v)
}

// takeStr removes a member if it is a string; any other value stays.
func (o *object) takeStr(name string) (string, bool) {
	s, ok := o.str(name)
	if ok {
		o.take(name)
	}
	return s, ok
}

// rest returns what is left as raw members, or nil.
func (o *object) rest() map[string]jsontext.Value {
	if len(o.names) == 0 {
		return nil
	}
	m := make(map[string]jsontext.Value, len(o.names))
	for i, n := range o.names {
		m[n] = o.values[i]
	}
	return m
}

func unquote(v jsontext.Value) (string, bool) {
	if v.Kind() != '"' {
		return "", false
	}
	b, err := jsontext.AppendUnquote(nil, []byte(v))
	return string(b), err == nil
}

// quote returns the JSON text of s.
func quote(s string) jsontext.Value {
	b, err := jsontext.AppendQuote(nil, s)
	if err != nil {
		// Invalid UTF-8 became the replacement character; strings of checked JSON have none.
		return b
	}
	return b
}

// compact returns a copy of v without white space outside strings; strings and numbers stay to the letter.
func compact(v jsontext.Value) jsontext.Value {
	if v == nil {
		return nil
	}
	c := v.Clone()
	if err := c.Compact(); err != nil {
		return v.Clone()
	}
	return c
}

// integer reads a JSON number without fraction.
func integer(v jsontext.Value) (int64, bool) {
	if v.Kind() != '0' {
		return 0, false
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	return n, err == nil
}

// boolean reads true or false.
func boolean(v jsontext.Value) (b, ok bool) {
	k := v.Kind()
	return k == 't', k == 't' || k == 'f'
}

// timeOf reads an RFC 3339 text, or a count of seconds since 1970. Anything else is no time.
func timeOf(v jsontext.Value) time.Time {
	if s, ok := unquote(v); ok {
		if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
			return t.UTC()
		}
		return time.Time{}
	}
	if v.Kind() == '0' {
		f, err := strconv.ParseFloat(string(v), 64)
		if err == nil && f > 0 && f < 1e11 {
			return time.UnixMicro(int64(f * 1e6)).UTC()
		}
	}
	return time.Time{}
}

// marshalValue returns the JSON of v, which is made of strings, numbers and checked raw values.
func marshalValue(v any) jsontext.Value {
	b, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		// Only a programming error gets here; the value is unreadable, not wrong.
		return quote(fmt.Sprintf("unwritable: %v", err))
	}
	return b
}
