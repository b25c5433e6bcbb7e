// Package service answers requests about the runs of a fleet over NATS request-reply: recover, get, list, history, records, profile, settle, claim, input,
// cancel, handoff, mark, retry, erase, cleanup, fleet, executors.
//
//   - [Service]: the verbs, the queue of their requests, and the content of their answers. It reads, and writes nothing but control events,
//     barriers and orders to remove runs.
//   - [RetentionWorker]: it orders the removal of ended runs that the fleet's policy does not keep.
//   - [Worker]: what a service asks of a fold worker in its own process.
//
// It keeps states and profiles of the runs that are looked at, to go on from: bounded, proven by digests at each use, and forgotten with their
// runs.
//
// It owns what a request may do and how it is answered. It must not know how a log is folded, nor who is alive: it reads runs by package reader,
// and live runs by package liveness.
//
// # What it promises
//
//   - An answer to recover or get contains every event acknowledged before the request. For recover the proof is the
//     acknowledgement of run.resumed, published by compare-and-set behind the last event folded; for get it is a
//     barrier, shared by all who wait for one, and one server's answer that shows it.
//   - Stale is never passed off as whole: without proof before the deadline the answer is 503.
//   - A takeover opens exactly one epoch for a request_id, as long as that epoch is the run's current one.
//   - A claim gives a run to one executor: by the same compare-and-set, on a reading in which the run is claimable. A repeat of
//     the request is given the same run, also by another replica.
//   - What was asked for twice (an answer, a cancel, a hand-off) is written once; who comes second is told who was first.
//   - Missing events are named in the answer, never folded over, and named only after the leader confirmed it.
//   - View state is one reply: the whole conversation, or its newest turns and the request for those before. The pages add up to the run
//     as it was when the first was asked for.
//   - Memory does not depend on a run's length: segments are sent as stored, four are fetched ahead, long tails are read
//     twice, replies under way are bounded, and so is what is held of a run that is folded for view state.
//   - The segments of view events are sent while the run is read and proven, the answer behind them: before it came nothing
//     is called whole.
//
// # A takeover
//
//	read ──▶ judge ──▶ publish run.resumed, CAS on the last event ──▶ read back, fold ──▶ answer
//	 ▲         │                    │
//	 │         │ epoch open already, └── another event came first
//	 │         ▼ or refusal           │
//	 │      prove by barrier           │
//	 └─────────┴───────────────────────┘
//
// # On failure
//
// A checkpoint that is missing, corrupt or of another log costs time: segments and log are read instead, and it is
// counted. A log that went back is read from its beginning, and what the checkpoint knew beyond it is a gap. A corrupt
// segment ends an answer with the code damaged and its place. Segments that were sent, and are not what the run was found
// to be, are taken back. A tail that is sealed and purged while it is read is taken from its segments. A client that does not acknowledge its replies
// is told so, and ends its own answer and nothing else. Every error reply has a stable code and says what to do next.
package service
