// Package kvstore keeps what Waymark derives from its log, and the places that everything lies in: it
// provisions a fleet's streams and buckets, and reads and writes checkpoints, segments, watermarks, leases
// and dead letters on JetStream.
//
// # What it owns
//
//   - the configuration of every stream and bucket, each flag spelled out and verified ([Provision]);
//   - the settings of fleets and the marker that a fleet was provisioned ([Fleets]);
//   - the stored form of watermarks, leases and dead letters. Checkpoints and segments have theirs in schema.
//
// # What it promises
//
//   - A put with a revision succeeds only if that is still the key's revision; otherwise [ErrConflict]. Two
//     writers never both win.
//   - A checkpoint's put is its announcement: its republished copy is the CloudEvent checkpoint.created,
//     updated or finalized.
//   - A run's key has no dot, and every key of the daemon has one: the filter "*" of a list leaves the runs.
//   - An entry of the live index is erased only at the revision that was named: a run that came back to life has another.
//   - A segment is created, never overwritten.
//   - Nothing that should exist is made again in silence: a fleet that was provisioned and misses its events,
//     segments or blobs is [ErrStreamMissing]. Checkpoint buckets are derived, so they come back by themselves.
//   - Every error of NATS is translated here, to the sentinels in errors.go; the original stays wrapped.
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
// A write whose answer did not come is [ErrUnavailable] and its outcome is unknown: read the key with the
// …Fresh method before another try, or try again with the same revision and take [ErrConflict] as a reason
// to read. Reads named Fresh ask the stream's leader; the others may be answered by any replica and can be
// stale. Neither is linearizable: only an event that was published after the question is (a barrier).
//
// Nothing here keeps a cache or runs a goroutine of its own beyond a call; a [LiveWatch] keeps a subscription until it is closed.
// Methods are safe for concurrent
// use, except those of a [Lease], which has one owner.
package kvstore
