// Package checker judges the operations of executors, operators and daemons during faults: from a history of
// operations, and from the final state of the runs after everything has healed.
//
// # What it owns
//
//   - [Op]: one operation, with start, end and outcome. [Recorder] writes them as JSON lines, one when an operation begins
//     and one when it ends, so that the history of a killed process shows its last operation. [ReadHistory] combines the
//     histories of many processes; [History.Timeline] is the same for a reader.
//   - [Final]: the final state of one run: its events, and each place's view of the run.
//   - [Check]: all rules. Each [Violation] names the rule, the run, and the operations concerned.
//
// # What it promises
//
// An operation of outcome ok took effect, one that failed did not, and one whose outcome is unknown may have taken
// effect at any time since it began, or never: its end is infinity. With these, and the naive fold of
// internal/harness/referencefold, it checks:
//
//   - acknowledged: every acknowledged event is in the run, at the acknowledged place, and the large field of every
//     accepted event can be read.
//   - refused: events that certainly failed are not in the run. stranger: nor are events without a publisher.
//   - twice: no event, and no operation by any event, counts twice.
//   - model: the answered head equals the naive fold of the log, and no event is reported missing.
//   - fenced: no event of an epoch is accepted after the takeover that ended it, except late evidence.
//   - converged: all places agree.
//   - past: every answer is a state that the run was in: a prefix of its log.
//   - whole (P2): an answer has every event that was acknowledged before its request.
//   - backwards (P4): an answer has everything that an earlier answer had.
//   - order: each event follows what was acknowledged or answered before its operation began; and an executor was
//     fenced only after a takeover.
//   - calls: every answer lists the open calls and those in doubt like the naive fold; and a tool runs no more often
//     than its call's policy and the settlements in the log allow. One that must not run twice begins neither once its
//     epoch is over nor after a run of a later epoch.
//   - enough: enough operations succeeded for a meaningful result.
//
// The log is the order of a run's operations, so past, whole, backwards and order together mean that publishes,
// takeovers and reads of a run are linearizable: no other order has to be searched.
//
// The package does not know NATS or processes: it is data in, violations out.
package checker
