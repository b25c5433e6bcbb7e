// Package publisher is the SDK of executors: it makes what an agent does durable at every turn and tool boundary, and
// takes runs over.
//
// It owns the way of an event from the executor to its acknowledgement: sequence and chain, the compare-and-set that
// lets only one writer in, the answers of the server, large fields, and the handle's own fold of the run. What comes
// after the acknowledgement belongs to package consumer.
//
//	fleet ── Start, Resume ──▶ run ── StartTurn ──▶ turn ── Answer, Tool, End
//	  │                         ├── Phase, Compact, Artifact, Error, Limit, Mark, Wait, Handoff
//	  └── Get, Head, Events,    └── End, Interrupt
//	      List, History, Settle
//
// # Promises
//
//   - A method that returned nil has made its event durable (in pipelined mode [Run.Flush] has). An event that
//     returned an error is not in the log, except where the error is [ErrUnresolved].
//   - Events of one handle are in the log in the order of their calls, without gaps, each once.
//   - What the fold would refuse is not published: the error is [ErrRejected] and nothing happened.
//   - Nothing is retried for ever, and nothing is dropped in silence.
//
// # The answers
//
// Every event expects the run's last stream sequence. One message is under way per run; it is sent again, the same
// message with the same id, until the deadline.
//
//	acknowledged           durable
//	wrong last sequence    the run is read up to the sequence named, then
//	                         my own id              the earlier try had succeeded: durable
//	                         higher epoch           ErrFenced, the handle ends; the outcome of a call in doubt is handed in as evidence
//	                         control event          folded; published behind it, unless the fold then refuses it
//	                                                (ErrRejected) or it is a cancellation and this begins new
//	                                                work (ErrCancelRequested, once)
//	                         lower epoch, others    folded; published behind them
//	                         my epoch, not mine     ErrForked, the handle ends
//	                         mine is gone           ErrLogRegressed, the handle ends
//	10164, 10158           wait, the same again
//	stream full            ErrFleetFull with the quota; the handle goes on
//	none                   the same again until the deadline, then ErrUnresolved
//
// # States of a handle
//
//	usable ──no answer──▶ unresolved ──same call, Resolve──▶ usable
//	   └──fenced, forked, regressed──▶ ended        (only Resume goes on with the run)
//
// # Batches
//
// Several events of one call, or of one window in pipelined mode, go out as one atomic batch when there are enough of
// them to be worth it ([Config].BatchFrom). Events of many runs that wait at the same moment are sent as one batch, too
// ([Config].GroupFrom). A batch is never sent twice: whatever happens to it, its members are resolved one by one.
//
// # Large fields
//
// A result, argument, output or part above 256 KiB goes to the fleet's object store, named by its content, before its
// event is published; the event carries the reference. [Fleet.Hydrate] and [Fleet.Blob] load and verify.
package publisher
