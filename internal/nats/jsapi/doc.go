// Package jsapi implements the parts of JetStream's protocol that nats.go does not offer as Waymark needs them: API
// requests with the client's prefix, messages of a stream from its leader ([Get]) or any replica ([Direct]), purges
// of one subject, acknowledgements, and the server's error codes.
//
// It knows streams, subjects and messages. It does not know fleets, runs, events or keys, it retries nothing, and it
// returns the errors of nats.go and of the server unchanged: its callers translate them.
//
// The last value of the header that the server adds to every message distinguishes a message of a stream from a
// status message, and a message that hides it counts as one without headers: headers of a publisher cannot end an answer
// or move a message.
package jsapi
