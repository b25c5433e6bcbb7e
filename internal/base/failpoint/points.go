package failpoint

// PointVariable of the environment sets POINT:N:ACTION for a separate process: the nth time, counted from 1, that the
// process reaches the point it is killed (kill), stopped (stop), or ends the work there (fail).
const PointVariable = "WAYMARK_FAILPOINT"

// Point is a place in the work. Its text is its name in the environment.
type Point string

// Points of the daemon, in the order in which a batch reaches them, then those of its service and its purger, then
// the executor's.
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
	// AfterTold: the log of a parent has the signal of its child's end, and the end is still listed as untold.
	AfterTold Point = "after-told"
	// BeforePurge and AfterPurge: proven events are about to be purged, or were.
	BeforePurge Point = "before-purge"
	AfterPurge  Point = "after-purge"
	// BeforePublish and AfterPublish: an executor's event is about to be sent, or was answered. An error there means
	// a lost message, or a lost answer.
	BeforePublish Point = "before-publish"
	AfterPublish  Point = "after-publish"
)

// Points are all points.
func Points() []Point {
	return []Point{
		AfterFetch, AfterApply, AfterDeadLetters, BeforeSegmentPut, AfterSegmentPut, AfterIndexPut, BeforeCheckpointPut,
		AfterCheckpointPut, AfterWatermark, BeforeBarrier, AfterBarrier, BeforeTakeover, AfterTakeover, BeforeReply, AfterTold, BeforePurge,
		AfterPurge, BeforePublish, AfterPublish,
	}
}
