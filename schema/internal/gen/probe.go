package main

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/schema"
)

// Only schema.Validate defines what is required and allowed. The generator discovers it: it makes a full, valid
// example of an event's data, changes one thing at a time, and reads the verdict.

// place is one member of an example: its path, and its type and member name.
type place struct {
	path, owner, member string
	typ                 reflect.Type
}

type prober struct {
	*builder
	event   string
	example object
	places  []place
}

func (b *builder) probe(event string) error {
	p := &prober{builder: b, event: event}
	p.example = p.full("", reflect.TypeOf(schema.NewData(event)).Elem())
	if err := p.settle(); err != nil {
		return err
	}
	for _, at := range p.places {
		if err := p.ask(at); err != nil {
			return err
		}
	}
	return nil
}

// full is an example with every member set.
func (p *prober) full(path string, t reflect.Type) object {
	o := object{}
	for field := range t.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		if t == reflect.TypeFor[schema.Ref]() && (name == "key_id" || name == "codec") {
			p.places = append(p.places, place{path + "/" + name, t.Name(), name, field.Type})
			continue // they are required together; see refRules
		}
		at := place{path + "/" + name, t.Name(), name, field.Type}
		p.places = append(p.places, at)
		o[name] = p.value(at.path, field.Type)
	}
	return o
}

func (p *prober) value(path string, t reflect.Type) any {
	switch t.Kind() {
	case reflect.Pointer:
		return p.value(path, t.Elem())
	case reflect.Struct:
		if t == reflect.TypeFor[schema.Base]() {
			return exampleBase()
		}
		return p.full(path, t)
	case reflect.Slice:
		if t == rawType {
			return 1
		}
		return []any{p.value(path+"/0", t.Elem())}
	case reflect.Map:
		return object{"k": "v"}
	case reflect.Bool:
		return true
	case reflect.String:
		return "x"
	default:
		return 1
	}
}

// exampleBase is the base of a fork: a head has its own schema, and is only valid as a whole.
func exampleBase() object {
	digest := strings.Repeat("0", 64)
	return object{
		"run": "x", "point": "end", "position": object{"stream_sequence": 1, "id": "x"}, "records": 1, "digest": digest,
		"head": object{
			"run": "x", "status": "running", "epoch": 1, "sequence": 1, "position": object{"stream_sequence": 1, "id": "x"}, "digest": digest,
			"turn": 0, "counts": object{"events": 1},
		},
	}
}

// settle mends the example until it is valid.
func (p *prober) settle() error {
	for range 50 {
		bad := p.validate(p.example)
		if bad == nil {
			return nil
		}
		var value any
		switch {
		case len(allowed(bad.Problem)) > 0:
			value = allowed(bad.Problem)[0]
		case strings.Contains(bad.Problem, "hex digits") && !strings.Contains(bad.Problem, "dataref"):
			value = strings.Repeat("0", 64)
		case strings.Contains(bad.Problem, "dataref"):
			value = schema.DataRef("r", strings.Repeat("0", 64))
		case strings.Contains(bad.Problem, "RFC 3339"):
			value = "2026-01-01T00:00:00Z"
		case strings.Contains(bad.Problem, "JSON Pointer"):
			value = "/x"
		case strings.Contains(bad.Problem, "belongs to"):
			value = nil // it belongs to another value of another member
		default:
			return fmt.Errorf("no example found: %w", bad)
		}
		set(p.example, bad.Path, value)
	}
	return errors.New("no valid example found")
}

func (p *prober) validate(example object) *schema.DataError {
	data := schema.NewData(p.event)
	text, err := json.Marshal(example)
	if err == nil {
		err = json.Unmarshal(text, data)
	}
	if err != nil {
		return &schema.DataError{Event: p.event, Problem: err.Error()}
	}
	if err = schema.Validate(data); err == nil {
		return nil
	}
	var bad *schema.DataError
	if !errors.As(err, &bad) {
		bad = &schema.DataError{Event: p.event, Problem: err.Error()}
	}
	return bad
}

// with validates the example with one member changed; a nil value removes it.
func (p *prober) with(path string, value any) *schema.DataError {
	changed, ok := clone(p.example).(object)
	if !ok {
		return nil
	}
	set(changed, path, value)
	return p.validate(changed)
}

// quoted finds the values in a verdict of the form … is none of ["a" "b"], or … is none of a, b.
var quoted = regexp.MustCompile(`is none of \[?(.*?)\]?$`)

func allowed(problem string) []string {
	m := quoted.FindStringSubmatch(problem)
	if m == nil {
		return nil
	}
	var out []string
	for word := range strings.FieldsSeq(m[1]) {
		word = strings.TrimSuffix(word, ",")
		if s, err := strconv.Unquote(word); err == nil {
			word = s
		}
		if word != "" {
			out = append(out, word)
		}
	}
	return out
}

const (
	namePattern = `^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`
	hashPattern = `^([0-9a-f]{64})?$`
	textPattern = `^[^\x00-\x1f\x7f-\x9f]*$` // understood by RE2 and by ECMA 262
	refPattern  = `^(waymark-blob:[A-Za-z0-9][A-Za-z0-9_-]{0,63}\.sha256-[0-9a-f]{64})?$`
)

// ask finds the rules for one member and writes them into its type's schema.
func (p *prober) ask(at place) error {
	owner := p.defs[at.owner]
	property := child(child(owner, "properties"), at.member)
	if at.owner == "Ref" && at.member == "dataref" {
		owner["allOf"] = refRules()
	} else if bad := p.with(at.path, nil); bad != nil {
		if !strings.HasPrefix(bad.Path+"/", at.path+"/") {
			return fmt.Errorf("without %s: %w", at.path, bad)
		}
		p.required(owner, at)
	}
	kind := at.typ
	for kind.Kind() == reflect.Pointer {
		kind = kind.Elem()
	}
	switch kind.Kind() {
	case reflect.String:
		p.askText(property, at)
	case reflect.Int32, reflect.Int64, reflect.Int, reflect.Uint32, reflect.Uint64:
		if p.with(at.path, -1) != nil {
			property["minimum"] = 0
			if p.with(at.path, 0) != nil {
				property["minimum"] = 1
			}
		}
	case reflect.Map:
		many := object{}
		for i := range schema.MaxLabels + 1 {
			many[strconv.Itoa(i)] = "v"
		}
		if p.with(at.path, many) != nil {
			property["maxProperties"] = schema.MaxLabels
			property["propertyNames"] = object{"minLength": 1, "maxLength": schema.MaxLabelKey}
			property["additionalProperties"] = object{"type": "string", "maxLength": schema.MaxLabelValue}
		}
	case reflect.Slice:
		if kind.Elem().Kind() == reflect.String && p.with(at.path, []any{}) != nil {
			property["minItems"] = 1
		}
		if kind.Elem().Kind() == reflect.String && p.with(at.path, slices.Repeat([]any{"x"}, schema.MaxSignals+1)) != nil {
			property["maxItems"] = schema.MaxSignals
		}
	default: // booleans, objects, any JSON: their type is the only rule
	}
	p.conditions(owner, at, property)
	return nil
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

// required notes a required member; a top-level one may be in the blob store instead.
func (p *prober) required(owner object, at place) {
	if _, hasRefs := p.example["refs"]; hasRefs && strings.Count(at.path, "/") == 1 {
		moved, _ := clone(p.example).(object)
		set(moved, at.path, nil)
		set(moved, "/refs/0/path", at.path)
		if p.validate(moved) == nil {
			owner["anyOf"] = []any{
				object{"required": []string{at.member}},
				object{
					"required": []string{"refs"},
					"properties": object{"refs": object{"contains": object{
						"properties": object{"path": object{"const": at.path}}, "required": []string{"path"},
					}}},
				},
			}
			return
		}
	}
	requireMember(owner, at.member)
}

// longestText is longer than any bound of a text.
const longestText = 1 << 16

func (p *prober) askText(property object, at place) {
	if bad := p.with(at.path, "?!"); bad != nil {
		switch {
		case len(allowed(bad.Problem)) > 0:
			property["enum"] = allowed(bad.Problem)
			return
		case strings.Contains(bad.Problem, "valid name"):
			property["pattern"] = namePattern
			return
		case strings.Contains(bad.Problem, "dataref"):
			property["pattern"] = refPattern
			return
		case strings.Contains(bad.Problem, "hex digits"):
			property["pattern"] = hashPattern
			if p.with(at.path, "") != nil {
				property["minLength"] = 1
			}
			return
		case strings.Contains(bad.Problem, "RFC 3339"):
			property["format"] = "date-time"
		case strings.Contains(bad.Problem, "JSON Pointer"):
			property["pattern"], property["maxLength"] = "^/", schema.MaxIdentifier
			return
		}
	}
	if p.with(at.path, "") != nil {
		property["minLength"] = 1
	}
	refusedBehind := func(length int) bool { return p.with(at.path, strings.Repeat("x", length+1)) != nil }
	switch {
	case property["format"] != nil:
	case refusedBehind(0): // refused at any length, because another member is missing: those are identifiers
		property["maxLength"] = schema.MaxIdentifier
	case refusedBehind(longestText):
		property["maxLength"] = sort.Search(longestText, refusedBehind)
	}
	if p.with(at.path, "\x01") != nil && property["format"] == nil {
		property["pattern"] = textPattern
	}
}

// conditions finds members that are required only with certain values of this one.
func (p *prober) conditions(owner object, at place, property object) {
	values, _ := property["enum"].([]string)
	if at.owner == "Part" && at.member == "type" { // open, but the known ones have conditions
		values = p.source.parts
		property["examples"] = values
	}
	base := strings.TrimSuffix(at.path, "/"+at.member)
	for _, value := range values {
		for _, other := range p.places {
			if other.owner != at.owner || other.member == at.member || !strings.HasPrefix(other.path, base+"/") {
				continue
			}
			changed, _ := clone(p.example).(object)
			set(changed, at.path, value)
			set(changed, other.path, nil)
			required, _ := owner["required"].([]string)
			bad := p.validate(changed)
			if bad == nil || bad.Path != other.path || slices.Contains(required, other.member) || owner["anyOf"] != nil {
				continue
			}
			rule := object{
				"if":   object{"required": []string{at.member}, "properties": object{at.member: object{"const": value}}},
				"then": object{"required": []string{other.member}, "properties": object{other.member: object{"minLength": 1}}},
			}
			rules, _ := owner["allOf"].([]any)
			if !slices.ContainsFunc(rules, func(r any) bool { return reflect.DeepEqual(r, rule) }) {
				owner["allOf"] = append(rules, rule)
			}
		}
	}
}

// set changes the member at a JSON Pointer without escapes; nil removes it.
func set(v any, path string, value any) {
	name, rest, deeper := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch v := v.(type) {
	case object:
		if deeper {
			set(v[name], "/"+rest, value)
		} else if value == nil {
			delete(v, name)
		} else {
			v[name] = value
		}
	case []any:
		i, err := strconv.Atoi(name)
		if err != nil || i >= len(v) {
			return
		}
		if deeper {
			set(v[i], "/"+rest, value)
		} else {
			v[i] = value
		}
	}
}

func clone(v any) any {
	switch v := v.(type) {
	case object:
		c := make(object, len(v))
		for k, m := range v {
			c[k] = clone(m)
		}
		return c
	case []any:
		c := make([]any, len(v))
		for i, m := range v {
			c[i] = clone(m)
		}
		return c
	}
	return v
}
