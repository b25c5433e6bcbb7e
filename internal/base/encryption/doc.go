// Package encryption encrypts the content of events before it leaves an executor, and decrypts it for readers.
//
// Each value is encrypted separately with XChaCha20-Poly1305 and is a JSON string in the event: base64 of nonce and
// cipher text. The event's refs name it, its key and the codec ([Codec]). Two keys are derived from the given one, by
// HKDF: one encrypts, the other makes the nonce, an HMAC of the place and the value. So a value at a place has one
// cipher text, and a repeated publish is the same event. Equal values at other places, in other runs and under other
// keys have other cipher texts.
//
// A value is bound to its place ([Place]): the fleet, the run, the type of the event, the turn, the path within the data
// and the ids there. It cannot be opened anywhere else.
//
// For people, [ReadableContent] and the like put [Placeholder] in place of content that stays encrypted. Executors write
// the events, so refs may name any path, repeatedly, or a missing one: only content changes, and unreadable data is
// returned as it is.
package encryption
