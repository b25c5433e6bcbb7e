// Package eventlog reads the events of runs from the event streams of their shards, and appends to them.
//
// It owns the two ways in which Waymark looks at a log without a consumer:
//
//   - [Read] and [LastOf] ask by direct get. Any replica may answer, and its answer may be stale: complete up to
//     some moment, and silent about what came after. A caller that needs everything acknowledged before now compares
//     the answer with a barrier, which [LastOf] can return from the very same server.
//   - [Last] and [Next] ask the stream's leader. That is fresher, but slower, and no proof either: an isolated old
//     leader answers, too.
//
// A [Follower] reads a whole shard, or the keys of a bucket, and goes on with what comes.
//
// [Append] and [AppendBatch] store events behind the last message of their run, by compare-and-set, in one try, and say what the server's
// answer means for them. Executors and daemons repeat, resolve and make room by rules of their own.
//
// What it promises: records come in the order of the log, none twice, and an answer that broke off (a timeout, a lost
// server) is an error and never looks like the end of the log. Records are read in batches bounded in count and
// bytes, so that a slow reader costs little memory. A message is told from the server's own words by the header the
// server adds to every message, taken last: headers that a publisher wrote cannot end a batch or move a record.
//
// What cannot be decoded as a NATS header block comes as a record without headers; the fold rejects it as no
// CloudEvent.
//
// On failure every function returns an error that names the stream and, where it applies, the run. Nothing is retried
// here: the caller knows its deadline.
package eventlog
