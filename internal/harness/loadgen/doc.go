// Package loadgen fills a fleet with generated runs, for measurements at a large size.
//
// # What it owns
//
// A plan of runs, each of which depends on its number alone ([Config.Run]), and the writer that publishes them like
// an executor: real events with the real codec, sequences and compare-and-set. It puts nothing into a bucket: the
// daemon that folds the fleet makes checkpoints, segments and indexes, so that every run can be recovered, listed and
// claimed like any other. tools/bench and internal/harness/nemesis use it.
//
// # What it promises
//
//   - A run is published completely, in one atomic batch with others, and the runs of a shard in the order of their numbers. So a
//     fill that was stopped for any reason continues where it ended, and no run exists twice.
//   - Memory is bounded by a few batches, whatever the number of runs.
//   - [Check] compares runs with those of their numbers, including the digest.
package loadgen
