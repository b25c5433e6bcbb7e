package failpoint

// Point is a place in the work. Its text is what the environment names it by.
type Point string

// Points of the daemon, in the order in which a batch meets them, then those of its service and its janitor, then the
// executor's.
const (
	// AfterFetch: messages were read, nothing is folded.
	AfterFetch Point = "after-fetch"
	// AfterApply: a batch is folded in memory, nothing is stored.
	AfterApply Point = "after-apply"
	// AfterDeadLetters: the batch's dead letters are stored.
	AfterDeadLetters Point = "after-dead-letters"
	// BeforeSegmentPut and AfterSegmentPut: a segment is about to be stored, or stored and not counted.
	BeforeSegmentPut Point = "before-segment-put"
	AfterSegmentPut  Point = "after-segment-put"
	// AfterIndexPut: the indexes name the batch's runs, their checkpoints are not put.
	AfterIndexPut Point = "after-index-put"
	// BeforeCheckpointPut and AfterCheckpointPut: the batch's checkpoints are about to be put, or all of them were.
	BeforeCheckpointPut Point = "before-checkpoint-put"
	AfterCheckpointPut  Point = "after-checkpoint-put"
	// AfterWatermark: the watermark has passed the batch, nothing is announced.
	AfterWatermark Point = "after-watermark"
	// BeforeBarrier and AfterBarrier: a reader's barrier is about to be published, or acknowledged.
	BeforeBarrier Point = "before-barrier"
	AfterBarrier  Point = "after-barrier"
	// BeforeTakeover and AfterTakeover: run.resumed is about to be published, or acknowledged.
	BeforeTakeover Point = "before-takeover"
	AfterTakeover  Point = "after-takeover"
	// BeforeReply: the answer to a request is about to be sent.
	BeforeReply Point = "before-reply"
	// BeforePurge and AfterPurge: what was proven to be sealed is about to be purged, or was.
	BeforePurge Point = "before-purge"
	AfterPurge  Point = "after-purge"
	// BeforePublish and AfterPublish: an executor's event is about to be sent, or was answered. An error there is a message,
	// or an answer, that was lost.
	BeforePublish Point = "before-publish"
	AfterPublish  Point = "after-publish"
)

// Points are all of them.
func Points() []Point {
	return []Point{
		AfterFetch, AfterApply, AfterDeadLetters, BeforeSegmentPut, AfterSegmentPut, AfterIndexPut, BeforeCheckpointPut,
		AfterCheckpointPut, AfterWatermark, BeforeBarrier, AfterBarrier, BeforeTakeover, AfterTakeover, BeforeReply, BeforePurge,
		AfterPurge, BeforePublish, AfterPublish,
	}
}

// Bug is a mistake that can be built in.
type Bug string

// Bugs. Each names what is done otherwise than it must be.
const (
	// WatermarkFirst puts the watermark before the checkpoints that it counts.
	WatermarkFirst Bug = "watermark-first"
	// NoBarrier answers reads without a barrier.
	NoBarrier Bug = "no-barrier"
	// DefaultSync starts the embedded server with the default sync interval instead of always.
	DefaultSync Bug = "default-sync"
	// StreamDedup finds duplicates by their stream sequence alone.
	StreamDedup Bug = "stream-dedup"
	// NoEpochCheck accepts what an older epoch writes.
	NoEpochCheck Bug = "no-epoch-check"
	// NoCAS puts checkpoints and watermarks whatever their revision.
	NoCAS Bug = "no-cas"
	// NoPublishCAS publishes events behind whatever is the run's last.
	NoPublishCAS Bug = "no-publish-cas"
	// HoleFolded folds what comes behind a hole as if nothing were missing.
	HoleFolded Bug = "hole-folded"
	// SegmentCountedFirst puts the checkpoint that counts a segment before the segment.
	SegmentCountedFirst Bug = "segment-counted-first"
	// PurgeFirst purges what is about to be sealed.
	PurgeFirst Bug = "purge-first"
	// RetryNewID publishes an event that had no answer again under another id.
	RetryNewID Bug = "retry-new-id"
	// StaleAccepted takes a reading for whole that ends before what is known to be stored.
	StaleAccepted Bug = "stale-accepted"
)

// Bugs are all of them.
func Bugs() []Bug {
	return []Bug{
		WatermarkFirst, NoBarrier, DefaultSync, StreamDedup, NoEpochCheck, NoCAS, NoPublishCAS, HoleFolded, SegmentCountedFirst,
		PurgeFirst, RetryNewID, StaleAccepted,
	}
}
