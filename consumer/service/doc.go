// Package service answers requests about the runs of a fleet over NATS request-reply: recover, get, list, history, records, settle, claim, input,
// cancel, handoff, fork, mark, signal, erase, cleanup, fleet, executors.
//
//   - [Service]: the verbs, the queue of their requests, and the content of their answers. It reads, and writes only
//     control events and barriers. The event that removes a run is one of them.
//   - [RetentionWorker]: it orders the removal of ended runs that the fleet's policy does not keep.
//   - [Worker]: what a service needs of a fold worker in its own process.
//
// It owns the permitted effects of a request, and its answer. It must not know how a log is folded, nor which
// executors are alive: it reads runs by package reader, and live runs by package liveness.
//
// # What it promises
//
//   - An answer to recover or get contains every event acknowledged before the request. For recover the proof is the
//     acknowledgement of run.resumed, published by compare-and-set on the last event folded; for get it is a
//     barrier, shared by concurrent requests, and one server's answer that shows it.
//   - A stale answer is never given as complete: without proof before the deadline the answer is 503.
//   - A takeover opens exactly one epoch for a request_id, as long as that epoch is the run's current one.
//   - A claim gives a run to one executor: by the same compare-and-set, on a read in which the run is claimable. A repeat of
//     the request is given the same run, also by another replica.
//   - A repeated request (an answer, a cancel, a hand-off) is written once; the second sender is told the first one.
//   - Missing events are named in the answer, never ignored, and named only after the leader confirmed the gap.
//   - View state is one answer: the whole conversation, in as many messages as it needs.
//   - Memory does not depend on a run's length: segments are sent as stored, four are fetched ahead, long tails are read
//     twice, a page of view events is bounded, and so is the memory of runs that are folded for view state.
//   - The answer follows the content of its page: a client must not use that before it has the last page's answer.
//   - No answer waits for a client, no read takes the place of a takeover, and no proven sender takes the place of all.
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
// A missing or corrupt checkpoint, or one of another log, costs time: segments and log are read instead, and it is
// counted. If the log lost its end, it is read from its beginning, and events that only the checkpoint knows are a
// gap. If a segment is unusable, the log's events take its place. If the log no longer has them, a missing segment is a
// gap, and a corrupt one ends the answer with the code damaged and its place. A tail that is sealed and purged during a read is taken from its segments.
// Every error reply has a stable code and a hint with the next step.
package service
