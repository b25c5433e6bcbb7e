// Package kvstore stores the data that Waymark derives from its log, and owns all streams and buckets: it provisions
// them for a fleet, and reads and writes checkpoints, segments, watermarks, leases and dead letters on JetStream.
//
// # What it owns
//
//   - the configuration of every stream and bucket, each flag spelled out and verified ([Provision]);
//   - the settings of fleets, which mark a fleet as provisioned ([Fleets]);
//   - the stored form of watermarks, leases and dead letters. That of checkpoints and segments is in schema.
//
// # What it promises
//
//   - A put with a revision succeeds only if that is still the key's revision; otherwise [ErrConflict]. Of two
//     writers, one fails.
//   - The put of a checkpoint also announces it: its republished copy is the CloudEvent checkpoint.created,
//     updated or finalized.
//   - A run's key has no dot, and every key of the daemon has one: the filter "*" matches only runs.
//   - An entry of the live index is deleted only at a given revision: a run that was reopened has another one.
//   - A segment is created, never overwritten.
//   - Missing data is never silently created again: a provisioned fleet without its events, segments or blobs
//     is [ErrStreamMissing]. Checkpoint buckets are derived, so they are created again automatically.
//   - Every NATS error is translated to a sentinel in errors.go; the original stays wrapped.
//
// # Life of a fleet's resources
//
//	unknown ──Provision──▶ created ──settings put (CAS)──▶ provisioned ──Provision──▶ verified
//	                                                           │
//	                                       a flag differs ─────┼─▶ *ConfigError, with the command that mends it
//	                                       events, segments or │
//	                                       blobs are missing ──┴─▶ ErrStreamMissing, never made again
//
// # On failure
//
// A write without an answer is [ErrUnavailable] and its outcome is unknown: read the key with the …Fresh method
// before another try, or try again with the same revision and read the key after [ErrConflict]. Reads named Fresh ask
// the stream's leader; the others may be answered by any replica and can be stale. Neither is linearizable: only an
// event published after the request is (a barrier).
//
// No function here keeps a cache or a goroutine after it returns; a [LiveWatch] keeps a subscription until it is
// closed. Methods are safe for concurrent use, except those of a [Lease], which has one owner.
package kvstore
