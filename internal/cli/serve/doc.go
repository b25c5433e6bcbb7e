// Package serve is the command serve: a daemon, with a NATS server of its own or one that it joins, until the process is told to stop.
//
// # What it owns
//
// The order in which a daemon's parts are opened and closed, what it says of its health over HTTP, and its metrics. The work itself is
// that of package consumer, and the server that of internal/natsd. It knows no other command.
//
// # A serving process
//
//	parse ▶ http ▶ embedded server or join ▶ provision ▶ service, fold worker ▶ ready line ▶ wait
//	      signal ▶ not ready ▶ stop taking work ▶ finish pending work (--grace) ▶ close in reverse
//
// A server that ran out of disk stores nothing more before it is started again, and may have acknowledged what it did not store. Once the
// disk has room, the embedded server is started again with the daemon on it, which makes good for that as after an unclean stop. HTTP
// answers all the time.
package serve
