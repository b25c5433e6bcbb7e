package answerschema

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

const (
	// MaxSchema is the largest schema, in bytes.
	MaxSchema = 64 << 10
	// maxPattern bounds the instructions of a compiled pattern.
	maxPattern = 4000
	// refPrefix is the beginning of a reference.
	refPrefix = "#/$defs/"
)

// ErrSchema is returned for a schema that cannot be used. The error says why: ask again with a schema of the subset.
var ErrSchema = errors.New("the schema cannot be used")

// Schema is a schema of the subset.
type Schema struct {
	Title string `json:"title"`
	// Type is one name or a list, Types has the names; none allows any.
	Type  jsontext.Value   `json:"type"`
	Types []string         `json:"-"`
	Enum  []jsontext.Value `json:"enum"`
	Const jsontext.Value   `json:"const"`
	AnyOf []*Schema        `json:"anyOf"`
	OneOf []*Schema        `json:"oneOf"`
	Ref   string           `json:"$ref"`

	Properties           map[string]*Schema `json:"properties"`
	Required             []string           `json:"required"`
	AdditionalProperties *bool              `json:"additionalProperties"`

	Items    *Schema `json:"items"`
	MinItems *int    `json:"minItems"`
	MaxItems *int    `json:"maxItems"`

	MinLength *int   `json:"minLength"`
	MaxLength *int   `json:"maxLength"`
	Pattern   string `json:"pattern"`

	Minimum          *float64 `json:"minimum"`
	Maximum          *float64 `json:"maximum"`
	ExclusiveMinimum *float64 `json:"exclusiveMinimum"`
	ExclusiveMaximum *float64 `json:"exclusiveMaximum"`

	// Defs are the targets of references, in the outermost schema.
	Defs map[string]*Schema `json:"$defs"`
	// Other are the members beyond the subset.
	Other map[string]jsontext.Value `json:",embed"`

	pattern *regexp.Regexp
	// work is the cost of matching one byte with the pattern.
	work   int
	target *Schema
}

var (
	types       = []string{"array", "boolean", "integer", "null", "number", "object", "string"}
	annotations = []string{"$comment", "$id", "$schema", "default", "deprecated", "description", "examples", "format", "readOnly", "writeOnly"}
)

// Parse reads a schema. The error matches [ErrSchema].
func Parse(text []byte) (*Schema, error) {
	if len(text) > MaxSchema {
		return nil, fmt.Errorf("%w: it has %d bytes, use at most %d", ErrSchema, len(text), MaxSchema)
	}
	if jsontext.Value(text).Kind() != '{' {
		return nil, fmt.Errorf("%w: it is not a JSON object", ErrSchema)
	}
	s := new(Schema)
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("%w: %s", ErrSchema, clip(err.Error()))
	}
	if err := s.prepare(s.Defs, ""); err != nil {
		return nil, err
	}
	return s, nil
}

// prepare checks what the types of the fields do not, compiles patterns, and finds the targets of references.
func (s *Schema) prepare(defs map[string]*Schema, path string) error {
	refuse := func(keyword, format string, args ...any) error {
		return fmt.Errorf("%w: at %q: %s", ErrSchema, clip(path+"/"+keyword), clip(fmt.Sprintf(format, args...)))
	}
	if s == nil {
		return fmt.Errorf("%w: at %q: null is not a schema", ErrSchema, clip(path))
	}
	for _, keyword := range slices.Sorted(maps.Keys(s.Other)) {
		if !slices.Contains(annotations, keyword) {
			return refuse(keyword, "this keyword is not supported")
		}
	}
	if err := s.names(); err != nil {
		return refuse("type", "%s", err)
	}
	for _, name := range s.Types {
		if !slices.Contains(types, name) {
			return refuse("type", "%q is none of %s", name, strings.Join(types, ", "))
		}
	}
	if s.Ref != "" {
		name, local := strings.CutPrefix(s.Ref, refPrefix)
		if s.target = defs[name]; !local || s.target == nil {
			return refuse("$ref", "%q is no schema below $defs of the outermost schema", s.Ref)
		}
	}
	if s.Pattern != "" {
		parsed, err := syntax.Parse(s.Pattern, syntax.Perl)
		if err != nil {
			return refuse("pattern", "%s", err)
		}
		program, err := syntax.Compile(parsed.Simplify())
		if err != nil {
			return refuse("pattern", "%s", err)
		}
		if s.work = len(program.Inst); s.work > maxPattern {
			return refuse("pattern", "it has %d steps, use at most %d", s.work, maxPattern)
		}
		if s.pattern, err = regexp.Compile(s.Pattern); err != nil {
			return refuse("pattern", "%s", err)
		}
	}
	return s.each(path, func(below *Schema, path string) error { return below.prepare(defs, path) })
}

// names reads both forms of the keyword type.
func (s *Schema) names() error {
	switch s.Type.Kind() {
	case jsontext.KindInvalid:
		return nil
	case jsontext.KindBeginArray:
		return json.Unmarshal(s.Type, &s.Types)
	default:
	}
	s.Types = make([]string, 1)
	return json.Unmarshal(s.Type, &s.Types[0])
}

// each calls do for the schemas directly below.
func (s *Schema) each(path string, do func(below *Schema, path string) error) error {
	for _, named := range []struct {
		keyword string
		schemas map[string]*Schema
	}{{"properties", s.Properties}, {"$defs", s.Defs}} {
		if named.keyword == "$defs" && path != "" && len(named.schemas) > 0 {
			return fmt.Errorf("%w: at %q: $defs belong to the outermost schema", ErrSchema, clip(path))
		}
		for _, name := range slices.Sorted(maps.Keys(named.schemas)) {
			if err := do(named.schemas[name], join(path+"/"+named.keyword, name)); err != nil {
				return err
			}
		}
	}
	for keyword, list := range map[string][]*Schema{"anyOf": s.AnyOf, "oneOf": s.OneOf} {
		for i, below := range list {
			if err := do(below, fmt.Sprintf("%s/%s/%d", path, keyword, i)); err != nil {
				return err
			}
		}
	}
	if s.Items != nil {
		return do(s.Items, path+"/items")
	}
	return nil
}

// join adds a name to a JSON Pointer.
func join(path, name string) string {
	return path + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}

// clip shortens a text for its reader.
func clip(s string) string {
	const most = 300
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(s, "")
}
