// Package journal keeps a history outside Waymark: what executors did, written down by themselves in a
// plain file, and a deliberately dumb checker that compares it with what a recovery gave back.
//
// It owns the file's format, one JSON object a line, with a line break before and behind it. Every process appends
// with one write and one fsync to the same file, so that a line is there before what it announces goes on.
// OpenUnsynced leaves out the fsync, which the killing of processes does not need. It knows
// nothing of NATS, events or the fold, and shares no code with them: it is the witness.
//
// Order within one process is the order of the lines. Between processes only times compare, and only as
// "ended before it began".
//
// Failure: a line that does not parse is an error that names its number. The beginning of a line is what a killed
// writer leaves, as the system ends its write between two pages of the file. It is counted ([Reader.Torn]) and
// ignored: what it was to announce did not go on.
package journal
