// Package history compares the tool calls of runs: it finds where two runs diverge.
//
// It owns the sequence of a run's tool calls ([Steps]), and the comparison of two sequences ([Compare]). It does no I/O:
// the caller reads the runs.
//
// Two calls are the same if name, arguments and outcome are: JSON is compared by value, so that the order of members
// and the spelling of numbers do not matter, and a field in the blob store by its hash. Ids, times and epochs are not
// compared: a fork and its origin, or two runs of the same program, have different ones.
package history
