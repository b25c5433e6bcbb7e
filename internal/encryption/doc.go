// Package encryption encrypts the content of events before it leaves an executor, and decrypts it where it is read.
//
// Each value is encrypted by itself with XChaCha20-Poly1305 and is a JSON string in the event: base64 of nonce and cipher text. The event's refs
// name it, its key and the codec ([Codec]). Two keys are derived from the one given, by HKDF: one encrypts, the other makes the nonce, an HMAC
// of the place and the value. So a value at a place has one cipher text, and what is published again is the same event. Equal values at other
// places, in other runs and under other keys have others.
//
// A value is bound to its place ([Place]): the run, the type of the event, the turn, the path within the data and the ids that stand there. Put
// anywhere else it cannot be opened. The fleet is no part of the place: a backup may be restored in a fleet of another name.
package encryption
