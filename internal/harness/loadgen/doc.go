// Package loadgen fills a fleet with runs, for measurements at a size that nobody would type in.
//
// # What it owns
//
// A plan of runs, each of which follows from its number alone ([Config.Run]), and the writer that publishes them
// as an executor does: real events by the real codec, with sequences and compare-and-set. Nothing is put
// into a bucket here: the daemon that folds the fleet makes checkpoints, segments and indexes of it, so that every run can be
// recovered, listed and claimed like any other. tools/bench and internal/harness/e2e use it.
//
// # What it promises
//
//   - A run is published whole, in one atomic batch with others, and the runs of a shard in the order of their numbers. So what was
//     stopped, by whatever, goes on where it ended, and no run is there twice.
//   - Memory is bounded by a few batches, whatever the number of runs.
//   - [Check] compares runs with what their numbers say, digest and all.
package loadgen
