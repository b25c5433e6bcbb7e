// Package history compares and searches what runs did: where two of them first part, at which event something first holds,
// and whether a run that was read again made the calls that its record says.
//
// It owns the sequence of a run's tool calls ([Steps]), how two sequences are compared ([Compare]), predicates over a run's
// events ([Predicate]), and the file of calls that a replay is held against ([Golden]). It is pure: who calls it reads the
// runs.
//
// Two calls are the same when name, arguments and outcome are: JSON is compared by value, so that the order of members and
// the spelling of numbers do not matter, and a field in the blob store by its hash. Ids, times and epochs are not
// compared: a fork and its origin, or two runs of the same program, have different ones.
package history
