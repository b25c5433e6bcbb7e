// Package referencefold is a second fold of a run's log, written from the rules of the events and as simple as
// possible. It is the oracle of the tests, and no part of the product.
//
// # What it owns
//
//   - [Model]: the accepted events of one run, in order, and their state. It keeps the whole history, has no
//     caps and no windows, and never forgets: its memory grows with the run.
//   - [Model.Differences] and [Model.StateDifferences]: how a head or a state differs.
//
// # What it promises
//
// It shares with the real fold the reading of one event: the decoding of CloudEvents and the validation of their
// data, which have their own tests and golden files. It shares no decisions, neither the hash of an event's content
// nor the digest of a run. If the two differ, one of them is wrong.
//
// # What it does not know
//
// Texts that are shortened in a checkpoint, caps ([schema.ReasonTooMany]: see [Model.Beyond]), duplicates older than
// the fold's window of 64 events, which the fold refuses as stale or forked and the model calls duplicates, and
// points, marks and usage. A caller that compares logs with these must leave them out.
package referencefold
