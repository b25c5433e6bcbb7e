// Package access says who may do what on a NATS server that several fleets share, and writes it down as the server's
// configuration.
//
// It owns the lists: which subjects an executor, an observer, an operator and the daemon of a fleet need, and nothing
// more. The files in deploy/nats and the output of "waymark fleet add" are made from them, and the tests run the whole
// program within them, so that lists, files and program cannot drift apart.
//
// A fleet has an account for each role, because a permission to publish covers a message's subject and not its reply subject: in one
// account an executor could have the server's acknowledgement stored as a segment, by naming the segment's subject as reply.
//
//	account FLEET_<name>_<role>                  account WAYMARK_<name>
//	observers, executors, or operators           the daemon, every stream and bucket of the fleet
//
//	    publish ── service import ─────────────▶ events, requests, a few reads of JetStream's API
//	    reply subject ◀── rewritten by the server to one that leads back
//	    subscribe ◀── stream import ──────────── checkpoints, accepted events, notices
//
// An answer is published in the asker's account on the subject that the asker named, whatever its permissions, and goes on by the imports
// of that account. So an account imports what its role may do and nothing more.
//
// The clients' accounts have no JetStream of their own. Their API requests are mapped to [APIPrefix], where those that are
// imported are answered; so no client has to be told of a prefix. What is not imported has nobody who answers, and what a
// user is not permitted the server refuses and logs.
//
// Users are NKeys: the configuration holds public keys only, so it may be read and kept in version control, and a server
// that is broken into gives no credentials away. Nothing else has to run, as the resolver of JWTs would. To revoke a key
// is to take its line out and to reload; its connections are closed at once.
package access
