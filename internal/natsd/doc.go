// Package natsd runs the NATS server that a fresh machine gets: a JetStream server inside this
// process, on loopback, with generated credentials and a state directory of its own.
//
// # What it owns
//
// The running server, and the state directory while it runs; package statedir lists its files.
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
