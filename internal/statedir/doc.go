// Package statedir knows the state directory of a machine's server, and finds that server through it. Clients need it
// without the server: package natsd has the server's use of the directory.
//
// # What it owns
//
// The state directory and everything in it:
//
//	<state>/waymark.lock        held by the process that uses the directory
//	<state>/running.json        exists while a server runs, or if one did not stop cleanly
//	<state>/unclean.json        an unclean stop whose effects are not repaired yet
//	<state>/endpoint.json       the address of the running server: what [Discover] reads
//	<state>/nats/identity.json  user, password and name of the server, kept across starts
//	<state>/nats/waymark.json   the same as a NATS context, for the nats CLI and for clients
//	<state>/nats/store/         JetStream's files
//
// Files are readable only by their owner (0600, directories 0700). On Windows the directory inherits the equivalent
// rights of the user's profile.
//
// # On failure
//
// Every error wraps a sentinel of this package and names the file and the next step. The file endpoint.json alone
// proves nothing: the server must confirm its id.
package statedir
