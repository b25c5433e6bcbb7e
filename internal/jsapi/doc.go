// Package jsapi speaks the parts of JetStream's protocol that nats.go does not offer as Waymark needs them: requests of the API by the
// prefix of the client, messages of a stream by its leader ([Get]) or by any replica ([Direct]), purges of one subject, acknowledgements, and the
// server's error codes.
//
// It knows streams, subjects and messages. It does not know fleets, runs, events or keys, it retries nothing, and it returns the errors of
// nats.go and of the server as they are: its callers give them their names.
//
// A message of a stream is told from the server's own words by the header that the server adds to every message, taken last: headers that a
// publisher wrote cannot end an answer or move a message.
package jsapi
