// Package journal is a history outside Waymark: executors record their actions in a plain file, and a deliberately
// simple checker compares it with the result of a recovery.
//
// It owns the file's format, one JSON object per line, with a line break before and after it. Every process appends
// with one write and one fsync to the same file, so that a line is stored before the announced action. OpenUnsynced
// omits the fsync, which tests that only kill processes do not need. It knows nothing of NATS, events or the fold,
// and shares no code with them: it is an independent witness.
//
// Order within one process is the order of the lines. Between processes only times can be compared, and only as
// "ended before it began".
//
// A line that does not parse is an error with its number. A killed writer may leave the beginning of a line, because
// the system ends its write between two pages of the file. It is counted ([Reader.Torn]) and ignored: the announced
// action did not happen.
package journal
