// Package keyring holds the keys of a fleet, which check control events, and signs those of a daemon.
//
// # What it owns
//
// A [Ring] has the keys that were last read from the fleet's settings, and the time of the read. [SignerOf] finds the
// key by which a connection proves itself to the server.
//
// # What it promises
//
// [Ring.Keys] returns keys that were read at most schema.KeysFresh ago. A change of the keys takes effect
// schema.KeyDelay after it was stored. So no reader folds an event with keys from before a change that was in effect
// when the server stored the event: all readers of a log come to the same verdicts.
//
// # On failure
//
// If the settings are unreadable, [Ring.Keys] returns the error, and nothing is folded with keys that may be
// outdated.
package keyring
