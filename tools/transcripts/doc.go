// Command transcripts writes transcripts of other agents into a fleet, as runs.
//
//	waymark serve &
//	go -C tools/transcripts run . ~/sessions/*.jsonl
//	go -C tools/transcripts run . -dry-run ~/trajectories/*.traj
//
// It is for tests, for benchmarks and for looking at Waymark with one's own conversations. It finds the server as every
// program of the SDK does: by WAYMARK_…, NATS_…, a NATS context, or the server of this machine. The package transcript
// says which formats it reads, and what it leaves out.
//
// Errors go to standard error with exit code 1; runs that were written before the error stay.
package main
