// Package natsconn finds the NATS server for a command, or a program with the SDK, and connects to it. It knows the
// state directory of a machine's server, too; package natsd has the server's use of the directory.
//
// # What it owns
//
// The order in which a server is searched for, and the translation of settings into connection options:
//
//  1. flags               --nats, --context
//  2. environment         WAYMARK_NATS_URL, NATS_URL, WAYMARK_NATS_CONTEXT, NATS_CONTEXT
//  3. state directory     the server that "waymark serve" runs on this machine
//  4. selected context    the one chosen with "nats context select"
//
// The first level that names a server decides; the others are ignored. Within a level an address wins over the
// address of a context, whose credentials are then still used.
//
// Credentials follow the server: those on the command line are always used; those in the environment only
// when the server was named on the command line by its address, or in the environment. So a forgotten
// NATS_TOKEN never reaches the local server or a context that brings credentials of its own.
//
// And the state directory:
//
//	<state>/waymark.lock        held by the process that uses the directory
//	<state>/running.json        exists while a server runs, or if one did not stop cleanly
//	<state>/unclean.json        an unclean stop whose effects are not repaired yet
//	<state>/endpoint.json       the address of the running server: what [Discover] reads
//	<state>/nats/identity.json  user, password and name of the server, kept across starts
//	<state>/nats/waymark.json   the same as a NATS context, for the nats CLI and for clients
//	<state>/nats/store/         JetStream's files
//
// # What it promises
//
// Nothing is guessed: a name that does not exist, an unreadable file or two kinds of credentials at once are errors
// before a connection is tried. Connections do not buffer messages while they are down, so that nothing is sent long
// after its sender gave up. The file endpoint.json alone proves nothing: the server must confirm its id.
//
// # On failure
//
// Every error wraps one of the sentinels of this package and names the setting, its origin, and what was found. No
// message has passwords or tokens.
package natsconn
