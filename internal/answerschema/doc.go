// Package answerschema checks what somebody answers a waiting run with against the JSON Schema that the run asked it by.
//
// # What it owns
//
// [Check]: the schema and the payload as they came, and what is wrong with the payload, by its places.
//
// # What it promises
//
// Both texts come from others, so neither may cost more than it is worth. Nothing is ever loaded: a reference that leads
// out of the schema is refused, whatever its scheme; only the JSON Schema organisation's own metaschemas are known, and they are
// compiled in. Sizes, depth, numbers and patterns are bounded before they are used. The work of a check is counted as it
// is done and given up at [MaxWork] steps, because a few lines of schema can ask for more than a computer does in a
// year. All bounds are numbers of steps or bytes and none is a clock: what is refused once is refused always.
//
// # On failure
//
// A schema that cannot be used is an error that matches [ErrSchema] and says why; so is a check that was given up. A
// payload that does not fit is no error: it comes back as a list of [Problem].
package answerschema
