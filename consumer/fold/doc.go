// Package fold folds the shards of a fleet: from the log it makes the data that the rest of the daemon reads.
//
//   - [Worker]: one shard's fold loop. It reads the events in order, seals segments, puts checkpoints and the watermark, and keeps the
//     indexes of runs. Its purger and remover delete sealed events and removed runs. One replica's worker holds the shard's lease.
//   - [Config] and [Stats]: its settings and its counters.
//
// It owns all data derived from a shard's log. It must not know of requests: the service reads the buckets.
//
// A term is the time between acquiring and losing the lease. Its memory is dropped with it: another worker continues
// from the watermark. A batch is stored in an order that makes a crash between any two steps harmless: dead letters,
// segments, checkpoints, watermark.
//
// # The live index
//
// It has an entry for each run that has not ended, or has an offered hand-off, in the checkpoint bucket. The worker
// puts it before the run's first checkpoint and when it changes, and deletes it after the last one, at the revision
// it knew before that: a worker that was paused in between cannot delete a run that was reopened. Entries that a
// crash left are repaired from the checkpoints in the first moments of a term, and when the connection was lost.
//
// # Purge
//
// A worker's purger (package purge) purges sealed events after ten minutes, or at once when the log is nearly full.
// It only deletes events that it has just proven to be in segments of the run's checkpoint, byte for byte, on the
// leaders; a run's last event stays. See docs/decisions/0021.
//
// # The index of runs
//
// The same bucket has two more indexes, so that a list or a tree reads its own runs and not all of them. A run that
// is not live has a summary under its agent and its status, and each run has a key below every parent
// (schema.EndedKey, schema.ChildKeys). The worker puts them before the checkpoint, in the order of the log; a run is
// always in the live index or among the ended ones, or both. A list reads the live runs from memory, the ended ones
// from the last put down, and then the checkpoints of its own page, which decide: stale entries are skipped. A shard
// that is folded again from the beginning of its log has the index again at the end, and lists report that.
package fold
