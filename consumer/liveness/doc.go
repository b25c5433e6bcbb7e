// Package liveness knows the live runs of a fleet, and which of their executors are silent.
//
//   - [Heartbeats]: the executors, when each was last seen alive, and what it holds.
//   - [LiveRuns]: the runs that have not ended, in memory, from a watch of the live index; claims are answered from it.
//   - [Sweeper]: it writes into the log that a run's executor is gone, or that a wait has expired.
//
// It reads indexes and checkpoints and writes control events. It must not know how they are folded: a fold worker
// reports when its shard is folded up to the end of the log, and gets entries that may be wrong.
//
// # Silent executors
//
// A sweeper whose shard is folded, and whose daemon receives heartbeats, goes through the live runs once a second,
// without a timer or goroutine per run. A run that is running, or waiting with a cancel request, needs heartbeats of its
// executor: of the instance that it names, or of any if it names none. Events are no sign of life. The run is orphaned
// after the fleet's silence (10 s), or three of the executor's intervals if that is longer, or at once if the executor
// says that it leaves or no longer holds the run. The sweeper also answers expired waits:
//
//	running ──silence──▶ read its checkpoint ──▶ run.orphaned, CAS on the event there ──▶ claimable
//	                                                   └── another event came first: it is alive
//
// All silence timers reset after a reconnect, lost heartbeats, and a pause of the daemon, which a late tick shows. A
// change of the fold worker resets none: each daemon hears all heartbeats. A daemon that does not fold (serve --no-fold)
// has live runs and answers claims; it orphans none.
package liveness
