// Package backup writes a whole fleet into a directory, and restores it into an empty server.
//
// # What it owns
//
// The form of a backup, and how it is made:
//
//	DIR/manifest.json                        written last: a complete backup has it, an interrupted one does not
//	DIR/streams/<stream>/backup.json         the stream's state, and its configuration under the settings
//	DIR/streams/<stream>/stream.arc.s2       its messages with their sequences and times, in the form of the server's snapshots
//
// The directories below streams have the form of "nats stream restore": a backup can be restored without Waymark.
//
// # What it promises
//
// [Take] reads a running fleet. The backup has each shard at one position of its log, the shard's cut, which is not
// before the call of Take: it has every event acknowledged before, and none after the cut. Sequences are kept, so
// positions stay valid.
//
//	pause ─▶ barrier ─▶ segments ─▶ log (up to its cut) ─▶ blobs, dead letters ─▶ manifest
//
// Streams cannot be read at one moment, so the order matters: an event that was purged before is in a segment, and the
// log has each later one. While a backup is taken, the daemon pauses purges and removals. The pause is a request: what left
// a log or the blobs all the same is noticed, by the number of older messages and by the sequence that each later event
// names, and everything is read again. A run that is removed during the backup is in it, or only its removal is.
// Checkpoints, indexes and leases are derived and not in a backup: the daemon makes them again.
//
// # States
//
//	Take ──▶ .DIR.partial-* ──▶ DIR with a manifest          a crash leaves .DIR.partial-*, which is no backup: a later one removes it
//	Restore ──▶ streams, one after the other ──▶ settings    after a crash the next Restore of the same backup continues with
//	                                                         the streams that are left; the fleet exists when its settings do
//
// # On failure
//
// Nothing is overwritten: an existing directory, an existing fleet, or a stream of another origin is refused. Errors
// are the sentinels of errors.go; they name the stream or file and the next step.
package backup
