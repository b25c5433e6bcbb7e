package answerschema

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

const (
	// MaxWork is the number of steps after which a check is given up: one for each pair of a payload position and a
	// schema position, more for lists of values, long texts and patterns. A form with a few dozen fields takes a few
	// hundred, a list of 10,000 small objects about 200,000. The maximum takes some tenths of a second.
	MaxWork = 500_000
	// MaxDepth is the deepest nesting of the values that a schema describes, with its references.
	MaxDepth = 128
	// MaxProblems is the maximum number of reported problems.
	MaxProblems = 20
)

// Errors of a check that takes too long.
var (
	errWork  = fmt.Errorf("%w: the check was given up after %d steps; its references or lists multiply", ErrSchema, MaxWork)
	errDepth = fmt.Errorf("%w: the check was given up at a depth of %d", ErrSchema, MaxDepth)
)

// Problem is one violation of the schema.
type Problem struct {
	// Path is the JSON Pointer of the place in the payload; empty for the payload itself.
	Path string `json:"path"`
	// Problem in words.
	Problem string `json:"problem"`
}

// Check validates a payload against a schema. It returns the problems of the payload, ordered by position, or nil. The
// error matches [ErrSchema].
func Check(asked, payload []byte) ([]Problem, error) {
	s, err := Parse(asked)
	if err != nil {
		return nil, err
	}
	return s.Check(payload)
}

// Check is [Check] with a schema that was read before.
func (s *Schema) Check(payload []byte) ([]Problem, error) {
	value := jsontext.Value(bytes.TrimSpace(payload))
	if len(value) == 0 {
		return []Problem{{Problem: "is required"}}, nil
	}
	if wrong := invalid(value); wrong != nil {
		return []Problem{*wrong}, nil
	}
	c := new(check)
	if err := c.value(s, value, ""); err != nil {
		return nil, err
	}
	slices.SortFunc(c.problems, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Problem, b.Problem))
	})
	found := slices.Compact(c.problems)
	return found[:min(len(found), MaxProblems)], nil
}

// invalid says why a text is not one JSON value.
func invalid(text jsontext.Value) *Problem {
	dec := jsontext.NewDecoder(bytes.NewReader(text))
	_, err := dec.ReadValue()
	if err == nil && len(bytes.TrimSpace(text[dec.InputOffset():])) > 0 {
		err = errors.New("there is text after the value")
	}
	if err == nil {
		return nil
	}
	p := &Problem{Problem: clip("is not valid JSON: " + err.Error())}
	if syntactic, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		p.Path = string(syntactic.JSONPointer)
	}
	return p
}

// check is one check in progress.
type check struct {
	steps, depth int
	problems     []Problem
}

// spend counts steps. It returns an error beyond MaxWork.
func (c *check) spend(steps int) error {
	if c.steps += steps; c.steps > MaxWork {
		return errWork
	}
	return nil
}

// perStep is the number of bytes that one step reads.
const perStep = 64

// most bounds the problems that are collected, of which the first are reported.
const most = 1000

func (c *check) add(path, format string, args ...any) {
	if len(c.problems) < most {
		c.problems = append(c.problems, Problem{Path: path, Problem: clip(fmt.Sprintf(format, args...))})
	}
}

// value compares a value with a schema. Its error is errWork or errDepth.
func (c *check) value(s *Schema, v jsontext.Value, path string) error {
	if c.depth++; c.depth > MaxDepth {
		return errDepth
	}
	defer func() { c.depth-- }()
	if err := c.spend(1 + len(v)/perStep); err != nil {
		return err
	}
	if s.target != nil {
		if err := c.value(s.target, v, path); err != nil {
			return err
		}
	}
	if got := typeOf(v); len(s.Types) > 0 && !slices.Contains(s.Types, got) && (got != "integer" || !slices.Contains(s.Types, "number")) {
		if got == "integer" {
			got = "number"
		}
		c.add(path, "got %s, want %s", got, strings.Join(s.Types, " or "))
		return nil
	}
	if err := c.listed(s, v, path); err != nil {
		return err
	}
	if err := c.forms(s.AnyOf, false, v, path); err != nil {
		return err
	}
	if err := c.forms(s.OneOf, true, v, path); err != nil {
		return err
	}
	switch v.Kind() {
	case '{':
		return c.object(s, v, path)
	case '[':
		return c.array(s, v, path)
	case '"':
		return c.text(s, v, path)
	case '0':
		c.number(s, v, path)
	default: // null, true and false have no keywords of their own
	}
	return nil
}

// typeOf is the narrowest type of a value.
func typeOf(v jsontext.Value) string {
	switch v.Kind() {
	case '{':
		return "object"
	case '[':
		return "array"
	case '"':
		return "string"
	case '0':
		if whole(string(v)) {
			return "integer"
		}
		return "number"
	case 'n':
		return "null"
	default:
		return "boolean"
	}
}

// whole reports whether a number is an integer, in any form: 1, 1.0 or 1e3.
func whole(number string) bool {
	if !strings.ContainsAny(number, "eE") {
		_, fraction, _ := strings.Cut(number, ".")
		return strings.Trim(fraction, "0") == ""
	}
	f := float(number)
	return f == math.Trunc(f)
}

// float is a number as a double; beyond its range infinite.
func float(number string) float64 {
	f, _ := strconv.ParseFloat(number, 64) // the error says that it is beyond the range
	return f
}

// listed checks enum and const.
func (c *check) listed(s *Schema, v jsontext.Value, path string) error {
	if len(s.Const) > 0 {
		if err := c.spend(1 + len(s.Const)/perStep); err != nil {
			return err
		}
		if !schema.SameJSON(s.Const, v) {
			c.add(path, "value must be %s", s.Const)
		}
	}
	if s.Enum == nil {
		return nil
	}
	for _, allowed := range s.Enum {
		if err := c.spend(1 + (len(allowed)+len(v))/perStep); err != nil {
			return err
		}
		if schema.SameJSON(allowed, v) {
			return nil
		}
	}
	names := make([]string, 0, len(s.Enum))
	for _, allowed := range s.Enum[:min(len(s.Enum), MaxProblems)] {
		names = append(names, clip(string(allowed)))
	}
	c.add(path, "value must be one of %s", strings.Join(names, ", "))
	return nil
}

// forms checks anyOf or, if only one form may match, oneOf. Where no form matches, the problems are those of all forms.
func (c *check) forms(list []*Schema, only bool, v jsontext.Value, path string) error {
	if len(list) == 0 {
		return nil
	}
	found, matched := c.problems, 0
	var unmatched []Problem
	for _, form := range list {
		c.problems = nil
		if err := c.value(form, v, path); err != nil {
			return err
		}
		if len(c.problems) == 0 {
			matched++
		}
		unmatched = append(unmatched, c.problems[:min(len(c.problems), most-len(unmatched))]...)
	}
	c.problems = found
	switch {
	case matched == 0:
		c.problems = append(c.problems, unmatched...)
	case matched > 1 && only:
		c.add(path, "matches %d forms of oneOf, must match one", matched)
	}
	return nil
}

func (c *check) object(s *Schema, v jsontext.Value, path string) error {
	dec := jsontext.NewDecoder(bytes.NewReader(v))
	if _, err := dec.ReadToken(); err != nil {
		return nil //nolint:nilerr // the text is valid
	}
	missing := slices.Clone(s.Required)
	for dec.PeekKind() == '"' {
		token, err := dec.ReadToken()
		if err != nil {
			return nil //nolint:nilerr // the text is valid
		}
		name := token.String()
		member, err := dec.ReadValue()
		if err != nil {
			return nil //nolint:nilerr // the text is valid
		}
		if err := c.spend(1 + len(missing)); err != nil {
			return err
		}
		missing = slices.DeleteFunc(missing, func(wanted string) bool { return wanted == name })
		below := s.Properties[name]
		if below == nil {
			if s.AdditionalProperties != nil && !*s.AdditionalProperties {
				c.add(path, "additional property %q is not allowed", name)
			}
			continue
		}
		if err := c.value(below, member.Clone(), join(path, name)); err != nil {
			return err
		}
	}
	for _, name := range missing {
		c.add(path, "property %q is missing", name)
	}
	return nil
}

func (c *check) array(s *Schema, v jsontext.Value, path string) error {
	dec := jsontext.NewDecoder(bytes.NewReader(v))
	if _, err := dec.ReadToken(); err != nil {
		return nil //nolint:nilerr // the text is valid
	}
	n := 0
	for ; dec.PeekKind() != ']'; n++ {
		element, err := dec.ReadValue()
		if err != nil {
			return nil //nolint:nilerr // the text is valid
		}
		if s.Items == nil {
			continue
		}
		if err := c.value(s.Items, element.Clone(), path+"/"+strconv.Itoa(n)); err != nil {
			return err
		}
	}
	c.between(path, "Items", n, s.MinItems, s.MaxItems)
	return nil
}

func (c *check) text(s *Schema, v jsontext.Value, path string) error {
	unquoted, err := jsontext.AppendUnquote(nil, v)
	if err != nil {
		return nil //nolint:nilerr // the text is valid
	}
	c.between(path, "Length", utf8.RuneCount(unquoted), s.MinLength, s.MaxLength)
	if s.pattern == nil {
		return nil
	}
	if err := c.spend(len(unquoted) * s.work / perStep); err != nil {
		return err
	}
	if !s.pattern.Match(unquoted) {
		c.add(path, "does not match the pattern %q", s.Pattern)
	}
	return nil
}

// between checks a length against its bounds.
func (c *check) between(path, what string, got int, least, greatest *int) {
	if least != nil && got < *least {
		c.add(path, "min%s: got %d, want %d", what, got, *least)
	}
	if greatest != nil && got > *greatest {
		c.add(path, "max%s: got %d, want %d", what, got, *greatest)
	}
}

func (c *check) number(s *Schema, v jsontext.Value, path string) {
	f := float(string(v))
	for _, bound := range []struct {
		keyword string
		at      *float64
		wrong   func(at float64) bool
	}{
		{"minimum", s.Minimum, func(at float64) bool { return f < at }},
		{"maximum", s.Maximum, func(at float64) bool { return f > at }},
		{"exclusiveMinimum", s.ExclusiveMinimum, func(at float64) bool { return f <= at }},
		{"exclusiveMaximum", s.ExclusiveMaximum, func(at float64) bool { return f >= at }},
	} {
		if bound.at != nil && bound.wrong(*bound.at) {
			c.add(path, "%s: got %s, want %v", bound.keyword, v, *bound.at)
		}
	}
}
