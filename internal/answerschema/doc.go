// Package answerschema validates answers to waiting runs against the JSON Schema of the question.
//
// # What it owns
//
// [Check]: schema and payload in, problems of the payload with their positions out.
//
// # What it promises
//
// Both texts come from outside, so their cost is bounded. No schema is ever loaded: a reference to another document is
// refused, whatever its scheme; only the JSON Schema organisation's metaschemas are known, and they are compiled in.
// Sizes, depth, numbers and patterns are bounded before use. The work of a check is counted and given up at [MaxWork]
// steps, because a few lines of schema can require more work than a computer does in a year. All bounds are numbers of
// steps or bytes, not times: a refused payload is always refused.
//
// # On failure
//
// An unusable schema is an error that matches [ErrSchema] and says why; so is a check that was given up. An invalid
// payload is not an error: it is returned as a list of [Problem].
package answerschema
