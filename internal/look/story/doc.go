// Package story describes events and tells what a run did: its turns and calls with their durations, takeovers, waits
// and errors.
//
// # What it owns
//
// [Describe], which has the texts of each type of event; [Story], which collects the lines of a run from its events;
// [Told], which sums them up; and the texts of tokens, limits, compactions and artifacts. The command runs show and the
// pages of a run show them. [Window] tells a part of a run from a page of its records: adjacent windows add up to the
// story.
//
// # What it promises
//
// Times are those that executors wrote. Refused events have no line. Encrypted fields are named by their key.
//
// # On failure
//
// It reads nothing by itself and has no errors.
package story
