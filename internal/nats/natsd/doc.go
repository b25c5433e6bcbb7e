// Package natsd runs the embedded NATS server: a JetStream server in this process, on loopback, with generated
// credentials and its own state directory.
//
// # What it owns
//
// The running server, and the state directory while it runs; package natsconn lists its files.
//
// # What it promises
//
// With SyncAlways, the default, an acknowledged message is on disk. Nothing listens beyond 127.0.0.1, and a
// connection without credentials is refused. One process at a time uses a state directory: two servers on one store
// both acknowledge and then lose messages, so the second one is refused with the first one's process id. A store that
// was encrypted with another key is refused before the server can replace its streams.
//
// # States
//
//	Start ──▶ serving ──▶ Close ──▶ stopped            running.json removed: a clean stop
//	            │
//	            └─▶ kill -9, power cut, Close timed out, running.json stays: the next start is unclean
//	                or the disk was full
//
// A clean stop with SyncAlways also syncs the files that JetStream leaves in the page cache (buckets with
// asynchronous persistence), so that the absence of running.json can be trusted.
//
// UncleanStart stays true, over any number of clean restarts, until ClearUnclean is called: the repair of lost writes
// may need more than one start.
//
// # On failure
//
// Every error names the file, directory or port and the next step. A Start that fails leaves no server, lock or
// marker. Close is bounded by Config.StopTimeout; after that, the marker and the lock stay, because the server may
// still be writing.
package natsd
