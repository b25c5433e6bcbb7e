// Package statedir knows the directory in which the server of one machine keeps its state, and finds that server by way of it. Clients
// need it without the server: what the server does with the directory is in package natsd.
//
// # What it owns
//
// The state directory and everything in it:
//
//	<state>/waymark.lock        held by the process that uses the directory
//	<state>/running.json        there while a server runs, or when one did not stop cleanly
//	<state>/unclean.json        an unclean stop that is still to be cleared up
//	<state>/endpoint.json       where the running server is: what [Discover] reads
//	<state>/nats/identity.json  user, password and name of the server, kept across starts
//	<state>/nats/waymark.json   the same as a NATS context, for the nats CLI and for clients
//	<state>/nats/store/         JetStream's files
//
// Files are readable by their owner alone (0600, directories 0700). On Windows the directory
// inherits the rights of the user's profile, which come to the same.
//
// # On failure
//
// Every error wraps a sentinel of this package and names the file and what to do next. The file endpoint.json alone proves nothing: the
// server is asked for its id before it is believed.
package statedir
