// Package eventlog reads the events of runs from the event streams of their shards, and appends to them.
//
// It owns the two ways to read a log without a consumer:
//
//   - [Read], [Scan] and [LastOf] ask by direct get. Any replica may answer, and its answer may be stale: complete up to
//     some moment, and silent about later events. A caller that needs everything acknowledged before now compares
//     the answer with a barrier, which [LastOf] can return from the same server.
//   - [Last] and [Next] ask the stream's leader. That is fresher, but slower, and no proof either: an isolated old
//     leader answers, too.
//
// A [Follower] reads a whole shard, or the keys of a bucket, and continues with new messages.
//
// [Append] stores an event after the last message of its run, by compare-and-set, in one try, and translates the
// server's answer. Executors and daemons have their own rules to repeat, resolve and make room.
//
// Records come in log order and without duplicates. An answer that breaks off (a timeout, a lost server) is an error
// and never looks like the end of the log. Records are read in batches bounded in count and bytes, so that a slow
// reader costs little memory. The last value of the header that the server adds to every message distinguishes a
// message from the server's status messages: headers of a publisher cannot end a batch or move a record.
//
// A message with a malformed header block is a record without headers; the fold rejects it as no CloudEvent.
//
// On failure every function returns an error that names the stream and, if there is one, the run. Nothing is retried
// here: the caller knows its deadline.
package eventlog
