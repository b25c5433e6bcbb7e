// Package liveness knows the live runs of a fleet, and which of their executors are silent.
//
//   - [Heartbeats]: when each executor was last seen alive.
//   - [LiveRuns]: the runs that have not ended, in memory, from a watch of the live index; claims are answered from it.
//   - [Sweeper]: it writes into the log that a run's executor is gone, or that a wait has expired.
//
// It reads indexes and checkpoints and writes control events. It must not know how they are folded: a fold worker
// reports when its shard is folded up to the end of the log, and gets entries that may be wrong.
//
// # Silent executors
//
// A sweeper whose shard is folded, and that receives heartbeats, goes through the live runs once a second, without a
// timer or goroutine per run. A run that is running, or waiting with a cancel request, needs signs of life of its
// executor: of the instance that it names, or of any if it names none. A heartbeat is one. An accepted event is a
// sign of life only for an instance that does not sign its heartbeats. The run is orphaned after the fleet's silence
// (10 s), or three of the executor's intervals if that is longer, or at once if the executor says that it leaves. The
// sweeper also answers expired waits:
//
//	running ──silence──▶ read its checkpoint ──▶ run.orphaned, CAS on the event there ──▶ claimable
//	                                                   └── another event came first: it is alive
//
// All silence timers reset after a change of the fold worker, a reconnect, lost heartbeats, and if the daemon itself
// was paused, which a late tick shows. A daemon that does not fold (serve --no-fold) has live runs and answers
// claims; it orphans none. An executor without heartbeats is known only by its events, and only to the daemon that
// folds their shard: in a fleet of several shards, send heartbeats.
package liveness
