// Package blob loads the large fields of events, which are in a fleet's object store under the name of their content.
//
// # What it owns
//
// [Load], on both sides: for executors and for the daemon.
//
// # What it promises
//
// What it returns is what the name says, whole: its SHA-256 was compared. No more than the given number of bytes is held
// in memory, whatever the object says of its own size.
//
// # On failure
//
// [ErrTooLarge] and [ErrChanged] say that what is stored cannot be used, and trying again is of no use; a blob that is
// missing is [jetstream.ErrObjectNotFound]. Other errors are of the way there.
package blob
