// Package encrypted shows events whose fields an executor encrypted.
//
// # What it owns
//
// [Text], which stands for an encrypted field, and the readers that put it in place of cipher text: [Field], [Value], [Content] and [Data].
//
// # What it promises
//
// Executors write the events, so any path may be named, often, or lead nowhere. Each part of the data is decoded once, however many refs
// there are. Fields that are not encrypted stay as they are. Nothing is decrypted: that is done before, by package encryption, as far as there
// are keys.
//
// # On failure
//
// Data that cannot be read comes back as it is.
package encrypted
