// Package fold folds the shards of a fleet: it makes of the log what the other parts of the daemon read.
//
//   - [Worker]: one shard's fold loop. It reads the events in order, seals segments, puts checkpoints and the watermark, keeps the indexes of
//     runs, and has what is sealed purged and runs that were removed taken out. One replica's worker holds the shard's lease.
//   - [Config] and [Stats]: how it folds, and what it did.
//
// It owns all that is derived from a shard's log. It must not know who asks for a run: the service meets it in the buckets, and asks it for
// nothing but another try of a parked run.
//
// A term is one time of holding the lease. What a term keeps in memory is dropped with it: another worker goes on from the watermark. The
// order in which a batch is stored makes a crash between any two steps harmless: dead letters, segments, checkpoints, watermark.
//
// # The live index
//
// An entry for each run that has not ended, or whose hand-off is on offer, in the checkpoint bucket. The worker puts it before
// the run's first checkpoint and when it changes, and erases it after the last one, at the revision it knew before that:
// a worker that was paused in between cannot erase a run that came back to life. What a crash left between the steps, or
// another hand wrote, is mended from the checkpoints when a term begins and every ten minutes, and an entry
// that cannot be read at once.
//
// # What is purged
//
// A worker's purger (package purge) purges what was sealed, ten minutes later, or at once when the log is nearly full. It never deletes what
// it has not just proven to be in segments that the run's checkpoint counts, byte for byte, as the leaders show them;
// a run's last event stays. See docs/decisions/0021.
//
// # The index of runs
//
// Beside the live index there are two more, in the same bucket, so that a list or a tree reads its own runs and not all of
// them. A run that is not live has a key by its place in the log, its agent and its status, and each run one below every run
// that it came of (schema.EndedKey, schema.ChildKeys). The worker puts them before the checkpoint that they are of; a run
// is at every moment in the live index or among the ended ones, or both. A list reads the live ones from memory, the
// ended ones from the index in volumes of the log, from the newest down, and then the checkpoints of its own page, which
// decide: what an index says too much is not listed. A bucket without index is filled once, and lists say so.
package fold
