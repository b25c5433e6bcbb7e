// Package access defines the permissions of a fleet's roles on a NATS server that several fleets share, and writes
// them as the server's configuration.
//
// It owns the lists: the subjects that an executor, an observer, an operator and the daemon of a fleet need, and no
// others. A [Watch] turns a server's refusals into errors of the calls that caused them ([Refusal]). The files in
// deploy/nats and the output of "waymark fleet add" are made from the lists, and the tests run the whole program with
// them, so that lists, files and program cannot diverge.
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
// An answer is published in the requester's account on the reply subject that the requester chose, whatever its
// permissions, and the imports of that account forward it. So an account imports only what its role may do.
//
// The clients' accounts have no JetStream of their own. Their API requests are mapped to [APIPrefix], where the
// imported ones are answered; so clients need no prefix setting. A subject that is not imported has no responder, and
// the server refuses and logs subjects that a user is not permitted.
//
// Users are NKeys: the configuration has only public keys, so it may be read and kept in version control, and a
// compromised server reveals no credentials. No further process is needed, unlike with a JWT resolver. To revoke a
// key, remove its line and reload; its connections are closed at once.
package access
