// Package encrypted shows events whose fields an executor encrypted.
//
// # What it owns
//
// [Text], which replaces an encrypted field, and the functions that put it in place of cipher text: [Field], [Value],
// [Content] and [Data].
//
// # What it promises
//
// Executors write the events, so refs may name any path, repeatedly, or a missing one. Each part of the data is
// decoded once, however many refs there are. Fields that are not encrypted stay unchanged. Nothing is decrypted here:
// package encryption does that before, as far as keys are available.
//
// # On failure
//
// Unreadable data is returned unchanged.
package encrypted
