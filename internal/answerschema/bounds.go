package answerschema

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

const (
	// maxDigits and maxExponent bound numbers, because the library computes with all digits of them.
	maxDigits   = 400
	maxExponent = 400
	// maxValues bounds the values of a schema, including the names of members: compiling takes quadratic time.
	maxValues = 10_000
	// maxPattern is the maximum size of a pattern, as text and with its repetitions expanded.
	maxPattern = 2000
)

// errWork says that a check takes too long.
var errWork = fmt.Errorf("the check was given up after %d steps; its references or lists multiply", MaxWork)

// bounded reads through a text and reports the first position beyond a bound. most is the maximum number of values, 0
// for any.
func bounded(text []byte, most int) *Problem {
	dec := jsontext.NewDecoder(bytes.NewReader(text))
	for depth, values := 0, 0; ; {
		tok, err := dec.ReadToken()
		switch {
		case err != nil && dec.InputOffset() > 0 && len(bytes.TrimSpace(text[dec.InputOffset():])) == 0:
			return nil
		case err != nil:
			p := &Problem{Path: string(dec.StackPointer()), Problem: clip("is not valid JSON: " + err.Error())}
			if syntactic, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
				p.Path = string(syntactic.JSONPointer)
			}
			return p
		}
		if values++; most > 0 && values > most {
			return &Problem{Path: string(dec.StackPointer()), Problem: fmt.Sprintf("comes after %d values already", most)}
		}
		switch tok.Kind() {
		case '{', '[':
			if depth++; depth > MaxDepth {
				return &Problem{Path: clip(string(dec.StackPointer())), Problem: fmt.Sprintf("is nested deeper than %d", MaxDepth)}
			}
		case '}', ']':
			depth--
		case '0':
			if !plain(tok.String()) {
				return &Problem{
					Path:    string(dec.StackPointer()),
					Problem: fmt.Sprintf("is a number of more than %d digits, or its exponent is beyond %d", maxDigits, maxExponent),
				}
			}
		default: // small whatever they are
		}
	}
}

// plain reports whether a number is small enough to compute with.
func plain(number string) bool {
	if len(number) > maxDigits {
		return false
	}
	i := strings.IndexAny(number, "eE")
	if i < 0 {
		return true
	}
	exponent, err := strconv.Atoi(strings.TrimPrefix(number[i+1:], "+"))
	return err == nil && exponent >= -maxExponent && exponent <= maxExponent
}

// pattern compiles a regular expression of bounded expanded size. Go's expressions take time linear in text and size,
// so no other bound is needed.
func pattern(s string) (jsonschema.Regexp, error) {
	if len(s) > maxPattern {
		return nil, fmt.Errorf("pattern has %d bytes, use at most %d", len(s), maxPattern)
	}
	parsed, err := syntax.Parse(s, syntax.Perl)
	if err != nil {
		return nil, err
	}
	if size(parsed) > maxPattern {
		return nil, fmt.Errorf("pattern has more than %d parts when its repetitions are written out", maxPattern)
	}
	return regexp.Compile(s)
}

// size is the number of parts of an expression with its repetitions expanded, or more than maxPattern.
func size(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)
	for _, sub := range re.Sub {
		n = min(n+size(sub), maxPattern+1)
	}
	if re.Op == syntax.OpRepeat {
		n = min(n*max(re.Min, re.Max, 1), maxPattern+1)
	}
	return n
}

// meter counts the work of one check. It replaces the format check, which the library does first for a value of the
// right type, so each position is counted before the values below it are checked.
type meter struct {
	done int
	seen map[*jsonschema.Schema]bool
}

var schemaType = reflect.TypeFor[*jsonschema.Schema]()

// attach adds the meter to a schema and all schemas that it can reach. The target of a dynamic reference is decided
// during the check and might have no meter, so dynamic references are refused.
func (m *meter) attach(s *jsonschema.Schema) error {
	if m.seen == nil {
		m.seen = make(map[*jsonschema.Schema]bool)
	}
	if s == nil || m.seen[s] {
		return nil
	}
	m.seen[s] = true
	if s.DynamicRef != nil || s.RecursiveRef != nil {
		return fmt.Errorf("%w: at %q: dynamic references are not supported", ErrSchema, clip(s.Location))
	}
	// Every field that holds schemas, in any form, including fields of a later version of the library.
	for field, value := range reflect.ValueOf(s).Elem().Fields() {
		if field.IsExported() {
			if err := m.within(value); err != nil {
				return err
			}
		}
	}
	m.meter(s)
	return nil
}

// within attaches the meter to the schemas in a field.
func (m *meter) within(v reflect.Value) error {
	switch {
	case v.Type() == schemaType:
		s, _ := reflect.TypeAssert[*jsonschema.Schema](v)
		return m.attach(s)
	case v.Kind() == reflect.Interface && !v.IsNil():
		return m.within(v.Elem())
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			if err := m.within(v.Index(i)); err != nil {
				return err
			}
		}
	case v.Kind() == reflect.Map:
		for it := v.MapRange(); it.Next(); {
			if err := m.within(it.Value()); err != nil {
				return err
			}
		}
	}
	return nil
}

// meter counts each use of one schema: the step itself, and the checks of the schemas directly below before their own
// meters are called.
func (m *meter) meter(s *jsonschema.Schema) {
	check, name := func(any) error { return nil }, ""
	if s.Format != nil {
		check, name = s.Format.Validate, s.Format.Name
	}
	inPlace := 1 + len(s.Required) + cost(s.AllOf...) + cost(s.AnyOf...) + cost(s.OneOf...) +
		cost(s.Ref, s.Not, s.If, s.Then, s.Else) + costs(s.DependentSchemas) + costs(s.Dependencies)
	element := 1 + costOf(s.Items) + costOf(s.AdditionalItems) + cost(s.Items2020, s.Contains, s.UnevaluatedItems)
	member := 1 + costOf(s.AdditionalProperties) + cost(s.PropertyNames, s.UnevaluatedProperties)
	for p, sub := range s.PatternProperties {
		member += cost(sub) + len(p.String())
	}
	text := 1
	if s.Pattern != nil {
		text += len(s.Pattern.String())
	}
	s.Format = &jsonschema.Format{Name: name, Validate: func(v any) error {
		m.done += inPlace
		switch v := v.(type) {
		case []any:
			m.done += len(v)*element + cost(s.PrefixItems...)
			if s.UniqueItems {
				m.done += weight(v)
			}
		case map[string]any:
			m.done += len(v) * member
			for property := range v {
				m.done += cost(s.Properties[property])
			}
		case string:
			m.done += len(v) * text / 64
		}
		if m.done > MaxWork {
			panic(errWork)
		}
		return check(v)
	}}
}

// cost is the work of comparing a value with schemas before their meters are called: their types, constants and lists
// of values.
func cost(schemas ...*jsonschema.Schema) int {
	n := 0
	for _, s := range schemas {
		if s == nil {
			continue
		}
		n++
		if s.Enum != nil {
			n += weight(s.Enum.Values)
		}
		if s.Const != nil {
			n += weight(*s.Const)
		}
	}
	return n
}

// costOf is cost of a field that may hold a schema, several, or something else.
func costOf(v any) int {
	switch v := v.(type) {
	case *jsonschema.Schema:
		return cost(v)
	case []*jsonschema.Schema:
		return cost(v...)
	default:
		return 1
	}
}

func costs[T any](schemas map[string]T) int {
	n := 0
	for _, s := range schemas {
		n += costOf(s)
	}
	return n
}

// weight is the number of values within a value.
func weight(v any) int {
	n := 1
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			n += weight(e)
		}
	case map[string]any:
		for _, e := range v {
			n += weight(e)
		}
	case string:
		n += len(v) / 64
	}
	return n
}
