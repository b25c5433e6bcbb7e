// Package archive keeps runs in one file, and brings them back into a fleet.
//
// # What it owns
//
// The form of an archive: a tar file, compressed with zstd. Both are read anywhere (tar --zstd -tf), stream in one direction, so that a
// run of any size goes through a pipe, and the compression is a library that the NATS server brings anyway. Entries, in this order:
//
//	runs/<run>/events/<number>      frames of schema.AppendFrame: the run's messages as the log had them
//	runs/<run>/blobs/<sha256>       what events refer to
//	manifest.json                   last: runs with their digests, entries with their SHA-256
//
// The manifest is last because an archive that was cut off must never look whole.
//
// # What it promises
//
// An archive is not trusted. [Open] reads all of it, within limits, before anything is done with it: only regular entries, only names of
// the form above, each once and in order, each with its size and sum; every run folds to the digest that the manifest has. Entries
// are never written to a disk under a name of the archive's.
//
// [Import] publishes a run as executors do, by compare-and-set on its subject: a run that is there is never written over. It comes back
// under its own id, in a fleet of the same name whose keys accept it, as the same bytes: so the digest is the same.
//
// # On failure
//
// Errors are [*EntryError], which names the entry and the next step, or the sentinels of errors.go.
package archive
