// Package answerschema validates answers to waiting runs against the schema of the question: a subset of JSON Schema
// that is small enough to be read, shown as a form, and checked at bounded cost.
//
// # The subset
//
//	any value   type (one name or several), enum, const, anyOf, oneOf, $ref to "#/$defs/NAME" of the same schema
//	object      properties, required, additionalProperties (true or false)
//	array       items, minItems, maxItems
//	string      minLength, maxLength, pattern (a Go regular expression)
//	number      minimum, maximum, exclusiveMinimum, exclusiveMaximum
//
// Annotations are ignored: title, description, default, examples, format, deprecated, readOnly, writeOnly, $schema, $id,
// $comment. Any other keyword is an error of the schema, because an answer would be accepted against it.
//
// # What it promises
//
// Both texts come from outside, so their cost is bounded: the size of a schema, the size of a compiled pattern, and the
// steps of a check. A few lines of schema can require more work than a computer does in a year; a check is given up at
// [MaxWork] steps. All bounds are numbers of steps or bytes, not times: a refused payload is always refused. No schema
// is loaded from elsewhere.
//
// # On failure
//
// An unusable schema is an error that matches [ErrSchema] and says why; so is a check that was given up. An invalid
// payload is not an error: it is returned as a list of [Problem].
package answerschema
