// Package keyring keeps the keys of a fleet, by which control events are checked, and signs those of a daemon.
//
// # What it owns
//
// A [Ring] holds the keys as they were read last from the fleet's settings, and when. [SignerOf] finds the key by which a
// connection proves itself to the server.
//
// # What it promises
//
// [Ring.Keys] returns keys that were read at most schema.KeysFresh ago. A change of the keys takes effect schema.KeyDelay after it
// was stored. So no reader folds an event by keys from before a change that was in effect when the server stored the event: all
// readers of a log come to the same verdicts.
//
// # On failure
//
// When the settings cannot be read, [Ring.Keys] returns the error, and nothing is folded by keys that may be outdated.
package keyring
