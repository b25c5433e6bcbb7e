// Package natsd runs the NATS server that a fresh machine gets: a JetStream server inside this
// process, on loopback, with generated credentials and a state directory of its own.
//
// # What it owns
//
// The state directory and everything in it:
//
//	<state>/waymark.lock        held by the process that uses the directory
//	<state>/running.json        there while a server runs, or when one did not stop cleanly
//	<state>/unclean.json        an unclean stop that nobody has made good yet
//	<state>/endpoint.json       where the running server is: what Discover reads
//	<state>/nats/identity.json  user, password and name of the server, kept across starts
//	<state>/nats/waymark.json   the same as a NATS context, for the nats CLI and for clients
//	<state>/nats/key.json       fingerprint of the store's encryption key, if it has one
//	<state>/nats/store/         JetStream's files
//
// Files are readable by their owner alone (0600, directories 0700). On Windows the directory
// inherits the rights of the user's profile, which come to the same.
//
// # What it promises
//
// With SyncAlways, the default, an acknowledged message is on disk. Nothing listens beyond 127.0.0.1, and a
// connection without credentials is refused. One process at a time uses a state directory: two
// servers on one store both acknowledge and then lose messages, so the second one is refused with the
// holder's process id. A store that was encrypted with another key is refused before the server can
// replace its streams.
//
// # States
//
//	Start ──▶ serving ──▶ Close ──▶ stopped            running.json removed: a clean stop
//	            │
//	            └─▶ kill -9, power cut, Close timed out, running.json stays: the next start is unclean
//	                or the disk was full
//
// A clean stop with SyncAlways also writes back what JetStream itself leaves in the page cache
// (buckets with asynchronous persistence), so that the absence of running.json can be trusted.
//
// UncleanStart stays true, over any number of clean restarts, until ClearUnclean is called: the reader
// that has to make good for lost writes may need more than one start to get there.
//
// # On failure
//
// Every error names the file, directory or port and what to do next. A Start that fails leaves no
// server, lock or marker behind. Close is bounded by Config.StopTimeout; when that passes, the marker stays
// and so does the lock, because the server may still be writing.
package natsd
