// Package reader reads runs exactly: what it returns holds every event that was acknowledged before the read began.
//
// # What it owns
//
//   - [Reader]: reads a run from a checkpoint of any age and the log behind it, or from segments and log alone.
//   - [Snapshot]: a run as it was read, with its gaps, its damage, and its content for a [Sink].
//   - [Barrier]: proof of how far a shard's log reaches. One publish serves all reads that wait when it begins.
//   - Points in a run's history ([Reader.Locate]) and the bases of forks.
//   - Pages of records ([Reader.Records]), heads at points ([Reader.LocateHead]) and folds that go on ([Reader.FoldTo]): they begin at the
//     keyframe of a segment, or at an earlier state, and read nothing before it.
//
// It knows nothing of requests, replies or the fold worker: [Sink] takes content, and stored checkpoints and segments are all that it
// shares with the fold.
//
// # What it promises
//
// A stale answer is never returned as whole: it is read again until ctx ends, and then the error is eventlog.ErrStale. A gap is
// named only after the leader confirmed it. Memory does not depend on a run's length: a long tail is read twice.
//
// # Steps of a read
//
//	checkpoint of any replica ──▶ checkpoint of the leader ──▶ rebuild from segments and log
//	log of any replica        ──▶ log of the leader        ──▶ gaps accepted
//
// Each disturbance of a read takes it one step further: a gap, an event that the log has elsewhere than the checkpoint says, a purge or
// a new segment during the read.
//
// # On failure
//
// [ErrNoRun] is proven. A [Damaged] error names the segment that is missing or corrupt. A checkpoint that cannot be used costs time only,
// and the snapshot says so.
package reader
