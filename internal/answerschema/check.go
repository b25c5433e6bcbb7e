package answerschema

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// Bounds of a check.
const (
	// MaxSchema is the largest schema, in bytes.
	MaxSchema = 64 << 10
	// MaxDepth is the deepest nesting of schema and payload.
	MaxDepth = 128
	// MaxWork is the number of steps after which a check is given up: one for each pair of a payload position and a
	// schema position, more for lists, members, texts and patterns. A form with a few dozen fields takes a few hundred,
	// a list of 10,000 small objects about 200,000. The maximum takes some tenths of a second.
	MaxWork = 500_000
	// MaxProblems is the maximum number of reported problems.
	MaxProblems = 20
	// maxProblem is the longest text of a problem, in bytes.
	maxProblem = 300
	// maxLeaves bounds the problems from which the reported ones are chosen.
	maxLeaves = 1000
)

// ErrSchema is returned for a schema that cannot be used. The error says why.
var ErrSchema = errors.New("the schema cannot be used")

// Problem is one violation of the schema.
type Problem struct {
	// Path is the JSON Pointer of the place in the payload; empty for the payload itself.
	Path string `json:"path"`
	// Problem in words.
	Problem string `json:"problem"`
}

// schemaURL is the name of the schema during compilation; relative references stay within it.
const schemaURL = "urn:waymark:response-schema"

// Check validates a payload against a schema. It returns the problems of the payload, ordered by position, or nil. The
// error matches [ErrSchema].
func Check(schema, payload []byte) ([]Problem, error) {
	doc, err := document(schema)
	if err != nil {
		return nil, err
	}
	value, wrong := read(payload, 0)
	if wrong != nil {
		return []Problem{*wrong}, nil
	}
	compiled, err := compile(doc)
	if err != nil {
		return nil, err
	}
	return validate(compiled, value)
}

// Usable returns an error that matches [ErrSchema] for a schema by which no payload can be checked.
func Usable(schema []byte) error {
	doc, err := document(schema)
	if err != nil {
		return err
	}
	_, err = compile(doc)
	return err
}

// document reads a schema within its bounds.
func document(schema []byte) (any, error) {
	if len(schema) > MaxSchema {
		return nil, fmt.Errorf("%w: it has %d bytes, at most %d are checked", ErrSchema, len(schema), MaxSchema)
	}
	doc, wrong := read(schema, maxValues)
	if wrong != nil {
		return nil, fmt.Errorf("%w: at %q: %s", ErrSchema, wrong.Path, wrong.Problem)
	}
	return doc, nil
}

// compile returns the schema ready for use, with the count of its work built in.
func compile(doc any) (*jsonschema.Schema, error) {
	switch doc.(type) {
	case map[string]any, bool:
	default:
		return nil, fmt.Errorf("%w: it is neither an object nor a boolean", ErrSchema)
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(nothing{})
	c.UseRegexpEngine(pattern)
	if err := c.AddResource(schemaURL, doc); err != nil {
		return nil, fmt.Errorf("%w: %s", ErrSchema, clip(err.Error()))
	}
	compiled, err := c.Compile(schemaURL)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", ErrSchema, clip(reason(err)))
	}
	if err := new(meter).attach(compiled); err != nil {
		return nil, err
	}
	return compiled, nil
}

// validate runs the check. The library can only be stopped by a panic from within; only the meter's panic is recovered.
func validate(compiled *jsonschema.Schema, value any) (problems []Problem, err error) {
	defer func() {
		if r := recover(); r != nil {
			if r != errWork { //nolint:errorlint // the exact value that the meter panics with
				panic(r)
			}
			problems, err = nil, fmt.Errorf("%w: %w", ErrSchema, errWork)
		}
	}()
	switch invalid, ok := errors.AsType[*jsonschema.ValidationError](compiled.Validate(value)); {
	case !ok:
		return nil, nil
	default:
		return told(invalid), nil
	}
}

// nothing is the loader of a schema that may only refer to itself.
type nothing struct{}

// Load refuses.
func (nothing) Load(string) (any, error) {
	return nil, errors.New("nothing is loaded; a schema may refer only to places within itself")
}

// reason is the problem of a schema, without the library's prefix if a better text is inside.
func reason(err error) string {
	if load, ok := errors.AsType[*jsonschema.LoadURLError](err); ok {
		return fmt.Sprintf("it refers to %q: %s", load.URL, load.Err)
	}
	if invalid, ok := errors.AsType[*jsonschema.SchemaValidationError](err); ok {
		if cause, ok := errors.AsType[*jsonschema.ValidationError](invalid.Err); ok {
			if list := told(cause); len(list) > 0 {
				return fmt.Sprintf("it is not a JSON Schema: at %q: %s", list[0].Path, list[0].Problem)
			}
		}
	}
	return err.Error()
}

// told flattens a library error to the invalid positions.
func told(root *jsonschema.ValidationError) []Problem {
	var leaves []Problem
	seen := make(map[Problem]bool)
	var walk func(*jsonschema.ValidationError)
	walk = func(e *jsonschema.ValidationError) {
		if len(leaves) >= maxLeaves {
			return
		}
		for _, cause := range e.Causes {
			walk(cause)
		}
		if len(e.Causes) > 0 {
			return
		}
		p := Problem{Path: pointer(e.InstanceLocation), Problem: clip(words(e.ErrorKind))}
		if !seen[p] {
			seen[p] = true
			leaves = append(leaves, p)
		}
	}
	walk(root)
	slices.SortFunc(leaves, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Problem, b.Problem))
	})
	if len(leaves) > MaxProblems {
		leaves = leaves[:MaxProblems]
	}
	return leaves
}

// words describes a problem. It omits large values, which the library repeats.
func words(k jsonschema.ErrorKind) string {
	switch k := k.(type) {
	case *kind.Pattern:
		return fmt.Sprintf("does not match the pattern %q", k.Want)
	case *kind.Format:
		if k.Want == "regex" {
			return fmt.Sprintf("is not a valid regex: %v", k.Err)
		}
		return fmt.Sprintf("is not a valid %s", k.Want)
	default:
		return (&jsonschema.ValidationError{ErrorKind: k}).BasicOutput().Error.String()
	}
}

func pointer(tokens []string) string {
	var b strings.Builder
	for _, t := range tokens {
		b.WriteByte('/')
		b.WriteString(strings.NewReplacer("~", "~0", "/", "~1").Replace(t))
	}
	return b.String()
}

// clip shortens a text for its reader.
func clip(s string) string {
	if len(s) > maxProblem {
		s = s[:maxProblem] + "…"
	}
	return strings.ToValidUTF8(s, "")
}

// read parses a text within the bounds of depth and numbers, which the library does not have.
func read(text []byte, most int) (any, *Problem) {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, &Problem{Problem: "is required"}
	}
	if wrong := bounded(text, most); wrong != nil {
		return nil, wrong
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, &Problem{Problem: clip("is not valid JSON: " + err.Error())}
	}
	return v, nil
}
