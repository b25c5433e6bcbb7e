package schema

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// ParseData reads and validates the data of an event. Types that this version does not know give nil
// and no error. Errors are of type [*DataError].
func ParseData(e *Event) (Data, error) {
	name := e.Name()
	data := NewData(name)
	if data == nil {
		return nil, nil
	}
	if !e.isJSON() {
		return nil, &DataError{Event: name, Problem: fmt.Sprintf("content type %.60q is not JSON", e.DataContentType)}
	}
	if len(e.Data) == 0 {
		return nil, &DataError{Event: name, Problem: "is missing"}
	}
	if kind := jsontext.Value(e.Data).Kind(); kind != '{' && kind != 0 {
		if !jsontext.Value(e.Data).IsValid() {
			return nil, &DataError{Event: name, Problem: "is no JSON"}
		}
		return nil, &DataError{Event: name, Problem: fmt.Sprintf("is a JSON %s where an object is wanted", kind)}
	}
	if tooDeep(e.Data) {
		return nil, &DataError{Event: name, Problem: fmt.Sprintf("is nested deeper than %d", MaxJSONDepth)}
	}
	if err := json.Unmarshal(e.Data, data); err != nil {
		return nil, DataErrorOf(name, err)
	}
	if err := Validate(data); err != nil {
		return nil, err
	}
	return data, nil
}

// tooDeep bounds nesting before a recursive reader sees the text. Brackets inside strings do not count.
func tooDeep(b []byte) bool {
	if bytes.Count(b, []byte{'{'})+bytes.Count(b, []byte{'['}) <= MaxJSONDepth {
		return false // the usual case, decided without a look at each byte
	}
	depth, inString := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case inString:
			switch c {
			case '\\':
				i++
			case '"':
				inString = false
			}
		case c == '"':
			inString = true
		case c == '{', c == '[':
			if depth++; depth > MaxJSONDepth {
				return true
			}
		case c == '}', c == ']':
			depth--
		}
	}
	return false
}

// DataErrorOf turns an error of the JSON reader into one that names the path.
func DataErrorOf(name string, err error) *DataError {
	if known, ok := errors.AsType[*DataError](err); ok {
		return known
	}
	out := &DataError{Event: name, Problem: err.Error()}
	var semantic *json.SemanticError
	var syntactic *jsontext.SyntacticError
	switch {
	case errors.As(err, &semantic):
		out.Path = string(semantic.JSONPointer)
		out.Problem = "has the wrong type"
		if semantic.JSONKind != 0 && semantic.GoType != nil {
			out.Problem = fmt.Sprintf("is a JSON %s where %s is wanted", strings.NewReplacer("{", "object", "[", "array").Replace(semantic.JSONKind.String()), jsonNameOf(semantic.GoType.Kind().String()))
		}
		if errors.Is(semantic.Err, json.ErrUnknownName) {
			out.Problem = "is no known member"
		} else if semantic.Err != nil {
			out.Problem += ": " + semantic.Err.Error()
		}
	case errors.As(err, &syntactic):
		out.Path = string(syntactic.JSONPointer)
		out.Problem = "is not valid JSON"
		if syntactic.Err != nil {
			out.Problem += ": " + syntactic.Err.Error()
		}
	}
	return out
}

func jsonNameOf(kind string) string {
	switch kind {
	case "struct", "map":
		return "an object"
	case "slice", "array":
		return "an array"
	case "bool":
		return "a boolean"
	case "string":
		return "a string"
	case "int", "int32", "int64", "uint32", "uint64":
		return "an integer"
	default:
		return "a " + kind
	}
}
