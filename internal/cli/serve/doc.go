// Package serve is the command serve: a daemon, with a NATS server of its own or one that it joins, until the process is told to stop.
//
// # What it owns
//
// The order in which a daemon's parts are opened and closed, its health over HTTP, and its metrics. Package consumer does the work, and
// internal/nats/natsd is the server. It imports no other command.
//
// # A serving process
//
//	parse ▶ http ▶ embedded server or join ▶ provision ▶ service, fold worker ▶ ready line ▶ wait
//	      signal ▶ not ready ▶ stop taking work ▶ finish pending work (--grace) ▶ close in reverse
//
// A server that ran out of disk stores nothing until it is restarted, and may have acknowledged events that it did not store. Once the disk
// has room, the embedded server is restarted together with the daemon, which repairs this as after an unclean stop. HTTP answers all the
// time.
package serve
