// Package blob stores and loads the large fields of events, which are in a fleet's object store under the name of their content.
//
// # What it owns
//
// [Store.Load], on both sides: for executors and for the daemon; [Store.Put], for executors. Both follow the protocol of the
// client's object store (ADR-20 of NATS), which others may read with.
//
// # What it promises
//
// What is loaded is what the name says, whole: its SHA-256 was compared. No more than the given number of bytes is held
// in memory, whatever the object says of its own size. What is put is described only after all of it is acknowledged, and
// what is found there counts only with all of its chunks. The id of an object begins with its run's mark ([schema.BlobID]), so that
// chunks that nothing describes are found with the run; content with another run's mark is not loaded. Nothing is purged here.
//
// # On failure
//
// Nothing that is half stored has a name. [ErrTooLarge] and [ErrChanged] say that what is stored cannot be used, and trying again is of no use; a blob that is
// missing is [jetstream.ErrObjectNotFound]. Other errors are of the way there.
package blob
