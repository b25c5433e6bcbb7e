// Package checker judges what executors, operators and daemons did while things were broken: from a history of operations,
// and from what is found of the runs once everything has healed.
//
// # What it owns
//
//   - [Op]: one operation, with start, end and outcome. [Recorder] writes them as JSON lines, one when an operation begins
//     and one when it ends, so that the history of a process that was killed says what it was at. [ReadHistory] puts the histories
//     of many processes together; [History.Timeline] is the same for a reader.
//   - [Final]: what was found of one run in the end: its events, and what each place that knows the run says of it.
//   - [Check]: all rules. Each [Violation] names the rule, the run, and the operations that it is about.
//
// # What it promises
//
// An operation of outcome ok had its effect, one that failed had none, and one whose outcome is unknown may have had it at
// any time since it began, or never: its end is infinity. Against these, and the naive fold of internal/harness/referencefold, hold:
//
//   - acknowledged: every event that was acknowledged is in the run, at the place that was acknowledged, and the large field of every
//     event that counts can be read.
//   - refused: what certainly failed is not in the run. stranger: neither is what nobody published.
//   - twice: no event, and no operation by whatever event, counts twice.
//   - dense: the sequences of each epoch are 1, 2, 3 … in the order of the log.
//   - model: the head that is answered is what the naive fold makes of the log, and nothing is called missing.
//   - fenced: nothing of an epoch is accepted behind the takeover that ended it, except late evidence.
//   - converged: all places say the same.
//   - past: every answer is a state that the run was in: a prefix of its log.
//   - whole (P2): an answer has every event that was acknowledged before it was asked for.
//   - backwards (P4): an answer has all that an answer before it had.
//   - calls: every answer says of tool calls which are open and which of them in doubt, as the naive fold does; and a tool runs no
//     more often than its call's policy and the settlements in the log allow. One that must not run twice begins neither once its
//     epoch is over nor behind a run of a later epoch.
//   - linear: publishes, takeovers and reads of a run are linearizable (porcupine).
//   - enough: so many operations succeeded that the run means something.
//
// The package has no idea of NATS or processes: it is data in, violations out.
package checker
