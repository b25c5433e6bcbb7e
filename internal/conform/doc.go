// Package conform checks whether an executor, in any language, keeps the rules of the event vocabulary.
//
// # What it owns
//
// The table of rules ([Rules]), each with an id, a level and a section in docs/events.md; the [Checker], which checks
// messages of a fleet in log order; the scenarios that an executor's author runs ([Scenarios]); and recordings, which
// are lines of JSON ([ReadRecording], [Recorder]). It does no I/O except through the given readers and writers; waymark
// conform uses it.
//
// # What it promises
//
//   - Every event that the fold refuses is found: each reason of a dead letter belongs to a rule, and a test compares
//     the two lists.
//   - A finding names the rule, the event and the field, the expected and the actual value, and the next step.
//   - Breaking a rule of level must loses data: an event is refused, a call runs twice, or a run counts as dead. Rules
//     of level should make a run easier to read and to recover.
//   - Control events, from the daemon and people, are folded but not checked by rules of level should.
//   - Memory is bounded: a head for each active run, and a few findings of each rule and run; further ones are counted.
//
// Facts outside of the log are not checked: whether a tool ran before its call was recorded, or what a model was shown.
package conform
