// Package backup keeps a whole fleet in a directory, and brings it back into an empty server.
//
// # What it owns
//
// The form of a backup, and the way in which one comes to be:
//
//	DIR/manifest.sig                         the signature of the manifest, and with that of every file, where one was asked for
//	DIR/manifest.json                        written last: what is a backup has it, what broke off has not
//	DIR/streams/<stream>/backup.json         the stream's state, and the configuration that the settings give it
//	DIR/streams/<stream>/stream.arc.s2       its messages with their sequences and times, as the server's own snapshots have them
//
// The directories below streams are what "nats stream restore" reads, too: a backup can be brought back without Waymark.
//
// # What it promises
//
// [Take] reads a running fleet. What is in the backup is each shard as it was at one place of its log, the shard's cut, which is
// not before the moment at which Take was called: every event acknowledged before is in it, and none behind the cut. Sequences
// are kept, so positions stay true.
//
//	barrier ─▶ log (up to its cut) ─▶ segments ─▶ blobs, dead letters ─▶ what is missing or too new is mended ─▶ manifest
//
// Streams cannot be read at one moment, so the order does it. An event that the purger purges before the log was read lies in a
// segment that was stored before, and the segments are read after the log. Segments that reach beyond the cut were
// stored meanwhile: they are left out, and if the log was purged by one of them while it was being read, its events go back
// where they were. A run that is removed meanwhile is in the backup whole or not at all: what its shard's leader has of it when all
// streams are read decides. Checkpoints, indexes and leases are derived and in no backup: the daemon makes them again.
//
// # States
//
//	Take ──▶ .DIR.partial-* ──▶ DIR with a manifest          a crash leaves .DIR.partial-*, which is no backup
//	Restore ──▶ streams, one after the other ──▶ settings    a crash leaves streams that the next Restore of the same backup
//	                                                         goes on from; the fleet exists when its settings do
//
// # On failure
//
// Nothing is written over: a directory that is there, a fleet that is there, a stream that is not of this backup are refused.
// Errors are the sentinels of errors.go; they name the stream or file and what to do.
package backup
