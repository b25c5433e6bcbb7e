package schema

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/waymarkio/waymark/schema/internal/rule"
)

// Validate returns a [*DataError] with the JSON path of the first error in data, or nil. The rules are in the tags of
// the fields (see package rule); those that a tag cannot say are in methods of the types, see [ruled].
func Validate(data Data) error {
	if data == nil {
		return &DataError{Problem: "is missing"}
	}
	p := plans()[reflect.TypeOf(data).Elem()]
	if p == nil {
		return nil
	}
	c := checker{event: data.EventName()}
	if refs := p.refsOf(data); refs != nil {
		c.refs = *refs
	}
	c.object(p, reflect.ValueOf(data).Elem())
	if c.err != nil {
		return c.err
	}
	return nil
}

// checked are the plans of the types that [Check] has seen.
var checked sync.Map

// Check returns a [*DataError] with the JSON path of the first error in the struct that value points to, a request or
// settings, by the rules in the tags of its fields, or nil.
func Check(value any) error {
	v := reflect.ValueOf(value).Elem()
	made, ok := checked.Load(v.Type())
	if !ok {
		made, _ = checked.LoadOrStore(v.Type(), planOf(v.Type(), map[reflect.Type]*plan{}))
	}
	p, _ := made.(*plan)
	if p == nil {
		return nil
	}
	var c checker
	if c.object(p, v); c.err != nil {
		return c.err
	}
	return nil
}

// RefsOf returns the refs of an event's data, nil for data that can have none.
func RefsOf(data Data) *[]Ref {
	if data == nil {
		return nil
	}
	return plans()[reflect.TypeOf(data).Elem()].refsOf(data)
}

func (p *plan) refsOf(data Data) *[]Ref {
	if p == nil || p.refs < 0 {
		return nil
	}
	refs, _ := reflect.TypeAssert[*[]Ref](reflect.ValueOf(data).Elem().Field(p.refs).Addr())
	return refs
}

// ruled is a value with rules that the tags of its fields cannot say.
type ruled interface {
	// problem returns the path of the first error, relative to the value, and what is wrong there; "" for none.
	problem() (path, problem string)
}

// plan has the rules of a struct type in the form in which they are checked.
type plan struct {
	fields []planned
	// refs is the index of the field Refs, or -1.
	refs int
	// ruled: the type is [ruled].
	ruled bool
}

type planned struct {
	rule.Field
	// below are the rules of the struct that the field holds, points to, or has a list of; nil for none.
	below *plan
}

// plans are those of the types of events' data, made once.
var plans = sync.OnceValue(func() map[reflect.Type]*plan {
	made := map[reflect.Type]*plan{}
	for _, known := range vocabulary {
		planOf(reflect.TypeOf(known.data).Elem(), made)
	}
	return made
})

// planOf returns the plan of a struct type, nil if neither it nor what it holds has rules.
func planOf(t reflect.Type, made map[reflect.Type]*plan) *plan {
	if p, ok := made[t]; ok {
		return p
	}
	made[t] = nil
	p := &plan{refs: -1, ruled: reflect.PointerTo(t).Implements(reflect.TypeFor[ruled]())}
	for _, f := range rule.Of(t) {
		if f.Name == "refs" {
			p.refs = f.Index
		}
		held := f.Type
		if held.Kind() == reflect.Pointer || held.Kind() == reflect.Slice {
			held = held.Elem()
		}
		field := planned{Field: f}
		if held.Kind() == reflect.Struct {
			field.below = planOf(held, made)
		}
		if f.Check != nil || f.Each != nil || f.Key != nil || f.With != nil || field.below != nil {
			p.fields = append(p.fields, field)
		}
	}
	if len(p.fields) > 0 || p.ruled || p.refs >= 0 {
		made[t] = p
	}
	return made[t]
}

// checker checks data, and keeps the first error.
type checker struct {
	event string
	refs  []Ref
	// path leads to the current value; depth is its length.
	path  [maxDepth]step
	depth int
	err   *DataError
}

// maxDepth bounds how deep a value with rules is: /base/head/open_calls/0/tool_call_id, with an embedded struct for
// each of them.
const maxDepth = 12

// step is a member of an object, or without a name an entry of a list.
type step struct {
	name  string
	index int
}

func (c *checker) push(s step) {
	c.path[c.depth] = s
	c.depth++
}

func (c *checker) pointer() string {
	var b strings.Builder
	for _, s := range c.path[:c.depth] {
		switch {
		case s.name != "":
			b.WriteString("/" + pointerToken(s.name))
		case s.index >= 0:
			b.WriteString("/" + strconv.Itoa(s.index))
		}
	}
	return b.String()
}

func (c *checker) fail(format string, args ...any) {
	c.err = &DataError{Event: c.event, Path: c.pointer(), Problem: fmt.Sprintf(format, args...)}
}

func (c *checker) object(p *plan, v reflect.Value) {
	for i := range p.fields {
		f := &p.fields[i]
		c.push(step{name: f.Name, index: -1})
		c.member(f, v)
		c.depth--
		if c.err != nil {
			return
		}
	}
	if !p.ruled {
		return
	}
	if own, ok := reflect.TypeAssert[ruled](v.Addr()); ok {
		if path, problem := own.problem(); problem != "" {
			c.fail("%s", problem)
			c.err.Path += path
		}
	}
}

// member checks a member of an object, and what is below it.
func (c *checker) member(f *planned, object reflect.Value) {
	v := object.Field(f.Index)
	if f.Check != nil {
		c.value(f, f.Check, v)
	}
	if f.With != nil && v.IsZero() && slices.Contains(f.With.Values, object.Field(f.With.Field).String()) {
		c.fail("is required with %s %s", f.With.Member, object.Field(f.With.Field).String())
	}
	if c.err != nil {
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		c.object(f.below, v)
	case reflect.Pointer:
		if !v.IsNil() {
			c.object(f.below, v.Elem())
		}
	case reflect.Slice:
		c.entries(f, v)
	case reflect.Map:
		c.labels(f, v)
	default:
	}
}

func (c *checker) entries(f *planned, v reflect.Value) {
	if f.Each == nil && f.below == nil {
		return
	}
	for i := range v.Len() {
		c.push(step{index: i})
		if f.Each != nil {
			c.value(f, f.Each, v.Index(i))
		} else {
			c.object(f.below, v.Index(i))
		}
		c.depth--
		if c.err != nil {
			return
		}
	}
}

// labels checks a map of texts, in the order of its keys: the verdict must not depend on the order of a map.
func (c *checker) labels(f *planned, v reflect.Value) {
	labels, ok := reflect.TypeAssert[map[string]string](v)
	if !ok || len(labels) == 0 {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if f.Key != nil {
			if c.text(f, f.Key, key); c.err != nil {
				c.err.Problem = fmt.Sprintf("key %.80q: %s", key, c.err.Problem)
				return
			}
		}
		if f.Each != nil {
			c.push(step{name: key, index: -1})
			c.text(f, f.Each, labels[key])
			c.depth--
			if c.err != nil {
				return
			}
		}
	}
}

func (c *checker) value(f *planned, r *rule.Rules, v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		c.text(f, r, v.String())
	case reflect.Int, reflect.Int32, reflect.Int64:
		c.number(r, v.Int())
	case reflect.Uint32, reflect.Uint64:
		c.number(r, int64(min(v.Uint(), 1<<63-1))) //nolint:gosec // within bounds
	default:
		switch n := v.Len(); {
		case n == 0:
			c.absent(f, r)
		case int64(n) > r.Max:
			c.fail("has %d entries, at most %d are allowed", n, r.Max)
		}
	}
}

func (c *checker) number(r *rule.Rules, n int64) {
	switch {
	case n < r.Min:
		c.fail("is %d, at least %d is allowed", n, r.Min)
	case n > r.Max:
		c.fail("is %d, at most %d is allowed", n, r.Max)
	}
}

// absent refuses a required value that is absent. One that may be in the blob store may have a ref instead.
func (c *checker) absent(f *planned, r *rule.Rules) {
	if !r.Required || f.Content == "large" && c.refers(false) {
		return
	}
	c.fail("is required")
}

// refers reports whether the event has a ref for the current value, for an encrypted one if asked.
func (c *checker) refers(encrypted bool) bool {
	if len(c.refs) == 0 {
		return false
	}
	path := c.pointer()
	return slices.ContainsFunc(c.refs, func(r Ref) bool { return r.Path == path && (r.KeyID != "" || !encrypted) })
}

func (c *checker) text(f *planned, r *rule.Rules, s string) {
	switch {
	case s == "":
		c.absent(f, r)
	case int64(len(s)) > r.Max && (f.Content == "" || !c.refers(true)): // the cipher text is longer than the text
		c.fail("is %d bytes long, at most %d", len(s), r.Max)
	case r.OneOf != nil && !slices.Contains(r.OneOf, s):
		c.fail("%.80q is none of %s", s, strings.Join(r.OneOf, ", "))
	default:
		c.form(r.Form, s)
	}
}

func (c *checker) form(form rule.Form, s string) {
	switch form {
	case rule.FormName:
		if !ValidName(s) {
			c.fail("%.80q is not a valid name: 1 to %d of A-Z a-z 0-9 _ -, beginning with a letter or digit", s, MaxName)
		}
	case rule.FormText:
		if !printable(s) && strings.ContainsFunc(s, func(r rune) bool { return isForbidden(r) || r == utf8.RuneError }) {
			c.fail("has a control character or invalid UTF-8")
		}
	case rule.FormHash:
		if !isHash(s) {
			c.fail("%.80q is not 64 lower-case hex digits", s)
		}
	case rule.FormTime:
		if !validTime(s) {
			c.fail("%.60q is not an RFC 3339 time", s)
		}
	case rule.FormPointer:
		if s[0] != '/' {
			c.fail("%.80q is not a JSON Pointer", s)
		}
	case rule.FormDataRef:
		if _, _, err := ParseDataRef(s); err != nil {
			c.fail("%s", err)
		}
	}
}

// problem implements [ruled].
func (d *RunStartedData) problem() (path, problem string) {
	seen := make(map[string]bool, len(d.State))
	for i := range d.State {
		if seen[d.State[i].Key] {
			return fmt.Sprintf("/state/%d/key", i), "is given twice"
		}
		seen[d.State[i].Key] = true
	}
	return "", ""
}

// problem implements [ruled].
func (d *RunResumedData) problem() (path, problem string) {
	if d.To != nil && d.Reason != TakeoverRewind {
		return "/to", "belongs to reason rewind only"
	}
	return "", ""
}

// problem implements [ruled].
func (d *CheckpointMarkedData) problem() (path, problem string) {
	if d.Fork && !ValidName(d.Name) {
		return "/name", "is no valid run id, and names a fork"
	}
	return "", ""
}

// problem implements [ruled].
func (d *TurnAnsweredData) problem() (path, problem string) {
	if d.Message.Role != RoleAssistant {
		return "/message/role", fmt.Sprintf("is %s, an answer has the role %s", d.Message.Role, RoleAssistant)
	}
	return "", ""
}

// problem implements [ruled]: an encrypted field has key and codec, one that is not encrypted is in a blob.
func (r *Ref) problem() (path, problem string) {
	switch {
	case r.KeyID != "" && r.Codec == "":
		return "/codec", "is required with a key"
	case r.KeyID == "" && r.Codec != "":
		return "/key_id", "is required with a codec"
	case r.KeyID == "" && r.DataRef == "":
		return "/dataref", "is required: waymark-blob:<run>.sha256-<64 hex digits>"
	}
	return "", ""
}
