// Package history compares the tool calls of runs: where two runs diverge, and whether a run that was read again made
// the calls in its record.
//
// It owns the sequence of a run's tool calls ([Steps]), the comparison of two sequences ([Compare]), and the file of
// calls that a replay is compared with ([Golden]). It does no I/O: the caller reads the runs.
//
// Two calls are the same if name, arguments and outcome are: JSON is compared by value, so that the order of members
// and the spelling of numbers do not matter, and a field in the blob store by its hash. Ids, times and epochs are not
// compared: a fork and its origin, or two runs of the same program, have different ones.
package history
