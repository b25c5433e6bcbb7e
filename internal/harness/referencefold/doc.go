// Package referencefold is a second fold of a run's log, written from the rules of the events and kept as dumb as can be. It is
// the oracle of the tests, and no part of the product.
//
// # What it owns
//
//   - [Model]: the events of one run that count, in order, and what they add up to. It keeps the whole history, knows no
//     caps and no windows, and never forgets: its memory grows with the run.
//   - [Model.Differences] and [Model.StateDifferences]: what a head or a state says otherwise.
//
// # What it promises
//
// It shares with the real fold what reads one event: the decoding of CloudEvents and the validation of their data, which have
// tests and golden files of their own. It shares none of its decisions, neither the hash of an event's content nor the
// digest of a run. Where the two differ, one of them is wrong.
//
// # What it does not know
//
// Texts that are shortened in a checkpoint, caps ([schema.ReasonTooMany]: see [Model.Beyond]), duplicates older than the
// fold's window of 64 events, which the fold refuses as stale or forked and the model calls duplicates, and points, marks and
// usage. A caller that compares logs in which these occur leaves them out.
package referencefold
