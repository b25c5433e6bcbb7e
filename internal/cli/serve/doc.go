// Package serve is the command serve: a daemon, with a NATS server of its own or one that it joins, until the process is told to stop.
//
// # What it owns
//
// The order in which a daemon's parts are opened and closed, what it says of its health over HTTP, and its metrics. The work itself is
// that of package consumer, and the server that of internal/natsd. It knows no other command.
//
// # A serving process
//
//	parse ▶ embedded server or join ▶ provision ▶ service, folder, http ▶ ready line ▶ wait
//	      signal ▶ not ready ▶ stop taking work ▶ finish work in hand (--grace) ▶ close in reverse
package serve
