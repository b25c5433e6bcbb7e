// Package schema is the base of Waymark: what an event is, how it is sent, and how a run's events add up to a state.
// It has no I/O and does not know NATS; publisher, kvstore and consumer build on it.
//
// It owns
//
//   - the vocabulary: one Go struct for the data of each event type, with validation that names the
//     JSON path of the error ([Data], [Validate]);
//   - the wire format: CloudEvents 1.0 in binary and structured mode ([Decode], [Encode]), ids, content
//     hash ([Event]);
//   - the names: fleets, runs, subjects, streams, buckets and the shard of a run ([Names], [ShardOf]);
//   - the fold: [Head] (bounded, what a checkpoint stores) and [State] (with messages and results, what
//     a recovery returns);
//   - the views of a fold for people and observers: [Overview], and the notices of a turn's life ([TurnLife]);
//   - stored formats: [Record] frames and [Segment]s, each with a format version;
//   - the requests and replies of the recovery service, and its error codes ([Code]).
//
// The fold is pure: no clock, no I/O, no randomness. Two laws hold and are tested as properties, the first also of [Overview]:
//
//	fold(all)            == fold(tail, onto fold(prefix))   at every cut
//	State.Apply…; Head   == Head.Apply…                     after every prefix
//
// A run's status, as the fold sees it:
//
//	(nothing) ──started──▶ running ⇄ waiting
//	                        │  ▲ resumed
//	                        │  └── interrupted, orphaned ◀── running, waiting
//	                        └──ended──▶ completed | failed | cancelled ──resumed(reopen)──▶ running
//
// Encode and decode these types with [github.com/go-json-experiment/json], which keeps unknown members of an object
// in the field Extra. encoding/json loses them, and writes "Extra" as a member.
//
// Nothing here panics on any input: input that cannot be read comes back as an error or as a [Verdict] with a
// [Reason], and the caller stores it as a dead letter.
package schema
