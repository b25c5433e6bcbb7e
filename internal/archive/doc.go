// Package archive writes runs into one file, and imports them into a fleet.
//
// # What it owns
//
// The form of an archive: a tar file, compressed with zstd. Both can be read anywhere (tar --zstd -tf) and stream in
// one direction, so that a run of any size goes through a pipe, and the NATS server needs the compression library
// anyway. Entries, in this order:
//
//	runs/<run>/events/<number>      frames of schema.AppendFrame: the run's messages from the log
//	runs/<run>/blobs/<sha256>       the blobs of its events
//	manifest.json                   last: runs with their digests, entries with their SHA-256
//
// The manifest is last so that a truncated archive never looks complete.
//
// # What it promises
//
// An archive is not trusted. [Open] reads all of it, within limits, before it is used: only regular entries, only
// names of the form above, each once and in order, each with its size and sum; every run folds to the digest in the
// manifest. Entries are never written to a disk under a name from the archive.
//
// [Import] publishes a run like an executor, by compare-and-set on its subject: an existing run is never overwritten.
// It is restored under its own id, in a fleet of the same name whose keys accept it, byte for byte: so the digest is
// the same.
//
// # On failure
//
// Errors are [*EntryError], which names the entry and the next step, or the sentinels of errors.go.
package archive
