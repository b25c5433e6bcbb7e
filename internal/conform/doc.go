// Package conform says whether an executor keeps the rules of the event vocabulary, whatever language it is written in.
//
// # What it owns
//
// The table of rules ([Rules]), each with an id, a level and a place in docs/events.md; the [Checker], which judges messages of
// a fleet in the order of the log; the scenarios that an author plays ([Scenarios]); and recordings, which are lines of JSON
// ([ReadRecording], [Recorder]). It has no I/O but the readers and writers it is given: command waymark conform is its user.
//
// # What it promises
//
//   - What the fold refuses is always found: every reason of a dead letter belongs to a rule, and a test compares the two lists.
//   - A finding names the rule, the event and the field, what was expected there and what was found, and what to do.
//   - Rules of level must are those whose breach loses something: an event is refused, a call runs twice, a run is taken for
//     dead. Rules of level should are what makes a run readable and recoverable as well as it can be.
//   - Control events, which the daemon and people write, are folded and not judged by rules of level should.
//   - Memory is bounded: a head for each of the runs under way, and a few findings of each rule and run; the others are counted.
//
// What is not in the log is not judged: whether a tool was run before its call was recorded, or what a model was told.
package conform
