// Package blob stores and loads the large fields of events, which are in a fleet's object store, named by their
// content.
//
// # What it owns
//
// [Store.Load] for executors and the daemon; [Store.Put] for executors. Both follow the protocol of the client's
// object store (ADR-20 of NATS), so other programs can read the objects.
//
// # What it promises
//
// Loaded content matches its name, because its SHA-256 is compared. At most the given number of bytes is held in
// memory, whatever size the object claims. An object is described only after all of its content is acknowledged, and
// an existing object counts only with all of its chunks. The id of an object begins with its run's prefix
// ([schema.BlobID]), so that chunks without a description are found with the run; content with another run's prefix
// is not loaded. Nothing is purged here.
//
// # On failure
//
// An incomplete object has no name. [ErrTooLarge] and [ErrChanged] say that a stored object cannot be used, and a
// retry cannot help; a missing blob is [jetstream.ErrObjectNotFound]. Other errors concern the connection.
package blob
