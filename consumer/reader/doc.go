// Package reader reads runs exactly: its result has every event that was acknowledged before the read began.
//
// # What it owns
//
//   - [Reader]: reads a run from a checkpoint of any age and the log behind it, or from segments and log alone.
//   - [Snapshot]: a run at the time of a read, with its gaps, its damage, and its content for a [Sink].
//   - [Barrier]: proof of how far a shard's log reaches. One publish serves all reads that wait when it begins.
//   - Points in a run's history ([Reader.Locate]) and the bases of forks.
//   - Pages of records ([Reader.Records]), heads at points ([Reader.LocateHead]) and folds that go on ([Reader.FoldTo]): they begin at the
//     keyframe of a segment, or at an earlier state, and read nothing before it.
//
// It knows nothing of requests, replies or the fold worker: [Sink] receives content, and only stored checkpoints and
// segments are shared with the fold.
//
// # What it promises
//
// A stale answer is never returned as complete: it is read again until ctx ends, and then the error is
// eventlog.ErrStale. A gap is reported only after the leader confirmed it. Memory does not depend on a run's length:
// a long tail is read twice.
//
// # Steps of a read
//
//	checkpoint of any replica ──▶ checkpoint of the leader ──▶ rebuild from segments and log
//	log of any replica        ──▶ log of the leader        ──▶ gaps accepted
//
// Each disturbance moves a read to the next step: a gap, an event at another place than in the checkpoint, a purge or
// a new segment during the read.
//
// # On failure
//
// [ErrNoRun] is proven. A [Damaged] error names the missing or corrupt segment. An unusable checkpoint only costs
// time, and the snapshot reports it.
package reader
