package schema

import (
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Keys of the segment bucket that say which runs were removed. The bucket is the truth and the daemon alone writes there, so
// that no executor can have a run removed by what it publishes.
const (
	// ErasingKeyPrefix begins the keys of what is being removed, by run.
	ErasingKeyPrefix = "_.erasing."
	// ErasedKeyPrefix begins the keys of what was removed, by run. They stay for good: the id is never used again.
	ErasedKeyPrefix = "_.erased."
	// SettlingKeyPrefix begins the keys of runs whose removal is so young that a crash of a server could take it back.
	SettlingKeyPrefix = "_.settling."
)

// ErasureFormat is the format version of [Erasure].
const ErasureFormat = 1

// Erasure is the removal of a run: first an order, at last the receipt. It holds nothing of what the run said.
type Erasure struct {
	// Format is [ErasureFormat].
	Format int    `json:"format"`
	Fleet  string `json:"fleet"`
	Run    string `json:"run"`
	Shard  int    `json:"shard"`
	// ID names the removal; the mark in the log has it, too.
	ID string `json:"id"`
	// By and Claimed name the sender of the request, as in control events. AskedAt is its time, RFC 3339.
	By      string `json:"by"`
	Claimed string `json:"claimed,omitzero"`
	Reason  string `json:"reason,omitzero"`
	AskedAt string `json:"asked_at"`
	// Force: it was asked for whatever is pending of the run.
	Force bool `json:"force,omitzero"`
	// DecidedAt is when it was found that nothing needs the run; empty before that. From then on whoever meets the order carries it
	// out, if the run still stands at Position.
	DecidedAt string `json:"decided_at,omitzero"`
	// Status, Events, Digest and Position are those of the run as it was.
	Status   Status   `json:"status"`
	Events   int64    `json:"events"`
	Digest   string   `json:"digest,omitzero"`
	Position Position `json:"position"`
	// Segments and TailBytes are what was sealed of it and what was not, when it was asked.
	Segments  SegmentIndex `json:"segments,omitzero"`
	TailBytes int64        `json:"tail_bytes,omitzero"`
	// Keys of the checkpoint bucket under which the run was listed.
	Keys []string `json:"keys,omitzero"`
	// Removed counts what was there when the removal began, nil before that.
	Removed *ErasedParts `json:"removed,omitzero"`
	// Chunks are the names under which the contents of its blobs lay; at most [MaxErasedChunks].
	Chunks []string `json:"chunks,omitzero"`
	// RemovedAt is when nothing was found any more; empty before that.
	RemovedAt string         `json:"removed_at,omitzero"`
	Extra     jsontext.Value `json:",embed"`
}

// MaxErasedChunks bounds the blobs that a receipt names. Those beyond it are removed and counted all the same.
const MaxErasedChunks = 1000

// ErasedParts counts what is stored of a run. Bytes are those of one copy.
type ErasedParts struct {
	// LogEvents are messages of the log beside the mark that stays.
	LogEvents int64 `json:"log_events"`
	LogBytes  int64 `json:"log_bytes,omitzero"`
	Segments  int64 `json:"segments"`
	// SegmentBytes as stored.
	SegmentBytes int64 `json:"segment_bytes,omitzero"`
	Blobs        int64 `json:"blobs"`
	BlobBytes    int64 `json:"blob_bytes,omitzero"`
	DeadLetters  int64 `json:"dead_letters"`
	// Checkpoints beside the one that says that the run was removed.
	Checkpoints     int64 `json:"checkpoints"`
	CheckpointBytes int64 `json:"checkpoint_bytes,omitzero"`
	// IndexKeys under which the run is listed.
	IndexKeys int64 `json:"index_keys"`
}

// None reports whether nothing is stored.
func (p *ErasedParts) None() bool {
	return p.LogEvents == 0 && p.Segments == 0 && p.Blobs == 0 && p.DeadLetters == 0 && p.Checkpoints == 0 && p.IndexKeys == 0
}

// Bytes is the sum.
func (p *ErasedParts) Bytes() int64 {
	return p.LogBytes + p.SegmentBytes + p.BlobBytes + p.CheckpointBytes
}

// NewErased builds the mark that a run is being removed. It stays as the last message of the run's subject, so that the
// compare-and-set of a first event fails there for good, and of an executor that still has the run, too. It is no event of
// the run and never folded: the order in the segment bucket decides, which executors cannot write.
func NewErased(fleet, daemon, run, id string, at time.Time) *Event {
	return &Event{
		ID:              run + ".erased." + id,
		Source:          Source(fleet, daemon),
		Type:            TypeOf(RunErased),
		Subject:         run,
		Time:            FormatTime(at),
		DataContentType: ContentTypeJSON,
		Data:            []byte("{}"),
	}
}

// Decided reports whether the mark of the removal may be stored.
func (e *Erasure) Decided() bool { return e.DecidedAt != "" }

// Marks reports whether an event's id is that of a mark of this removal.
func (e *Erasure) Marks(id string) bool {
	rest, ok := strings.CutPrefix(id, e.Run+".erased."+e.ID)
	return ok && (rest == "" || rest[0] == '.')
}

// ErasedMark reports whether an event is the mark that its run was removed.
func ErasedMark(e *Event) bool { return e != nil && e.Type == TypeOf(RunErased) }

// IsErasedMark is [ErasedMark] of a record.
func IsErasedMark(rec *Record) bool {
	e, err := Decode(rec.Header, rec.Body)
	return err == nil && ErasedMark(e)
}

// ErasedHead is the head of a run that was removed, with the mark at a position. It has nothing of what the run was, and
// nothing is accepted behind it.
func ErasedHead(fleet, run string, at Position, when string) Head {
	return Head{
		Fleet: fleet, Run: run, Status: StatusErased, Epoch: 1, Position: at, Counts: Counts{Events: 1}, UpdatedAt: when, EndedAt: when,
	}
}

// RetentionPolicy says how long runs are kept after their end. The zero policy keeps everything.
type RetentionPolicy struct {
	// CompletedSeconds, FailedSeconds and CancelledSeconds are how long runs of these statuses are kept after their last
	// event; 0 is for ever.
	CompletedSeconds int64 `json:"completed_seconds,omitzero"`
	FailedSeconds    int64 `json:"failed_seconds,omitzero"`
	CancelledSeconds int64 `json:"cancelled_seconds,omitzero"`
	// GraceSeconds is how long at least nothing was added to a run that is removed, whatever the others say; 0 is
	// [DefaultRetentionGrace].
	GraceSeconds int64 `json:"grace_seconds,omitzero"`
}

// Retention that is proposed, and the least grace.
const (
	DefaultRetainCompleted = 30 * 24 * time.Hour
	DefaultRetainFailed    = 7 * 24 * time.Hour
	DefaultRetentionGrace  = 10 * time.Minute
)

// MaxRetentionSeconds bounds the times of a policy: a hundred years.
const MaxRetentionSeconds = 100 * 365 * 86400

// For returns how long runs of a status are kept; 0 is for ever.
func (p *RetentionPolicy) For(s Status) time.Duration {
	switch s {
	case StatusCompleted:
		return time.Duration(p.CompletedSeconds) * time.Second
	case StatusFailed:
		return time.Duration(p.FailedSeconds) * time.Second
	case StatusCancelled:
		return time.Duration(p.CancelledSeconds) * time.Second
	default:
		return 0
	}
}

// Grace is how long at least nothing was added to a run that is removed.
func (p *RetentionPolicy) Grace() time.Duration {
	if p.GraceSeconds == 0 {
		return DefaultRetentionGrace
	}
	return time.Duration(p.GraceSeconds) * time.Second
}

// Removes reports whether the policy removes anything.
func (p *RetentionPolicy) Removes() bool {
	return p.CompletedSeconds > 0 || p.FailedSeconds > 0 || p.CancelledSeconds > 0
}

// Least is the shortest time that any status is kept; 0 when nothing is removed.
func (p *RetentionPolicy) Least() time.Duration {
	least := time.Duration(0)
	for _, s := range []Status{StatusCompleted, StatusFailed, StatusCancelled} {
		if d := p.For(s); d > 0 && (least == 0 || d < least) {
			least = d
		}
	}
	if least > 0 {
		least = max(least, p.Grace())
	}
	return least
}

// String is the policy for people.
func (p *RetentionPolicy) String() string {
	text := func(seconds int64) string {
		switch d := time.Duration(seconds) * time.Second; {
		case seconds == 0:
			return "for ever"
		case seconds == 86400:
			return "1 day"
		case seconds%86400 == 0:
			return strconv.FormatInt(seconds/86400, 10) + " days"
		default:
			return d.String()
		}
	}
	return "completed " + text(p.CompletedSeconds) + ", failed " + text(p.FailedSeconds) + ", cancelled " + text(p.CancelledSeconds)
}

// Why a run is kept, or removed.
type Why string

// Words returns the reason for people.
func (w Why) Words() string { return strings.ReplaceAll(string(w), "_", " ") }

// Reasons.
const (
	// WhyAge: it ended longer ago than the policy keeps runs of its status. The only reason to remove one.
	WhyAge Why = "older_than_policy"
	// WhyYoung: it did not.
	WhyYoung Why = "within_policy"
	// WhyForEver: the policy keeps runs of its status for ever.
	WhyForEver Why = "status_is_kept"
	// WhyActive: something was added to it within the grace.
	WhyActive Why = "within_grace"
	// WhyLive: it has not ended.
	WhyLive Why = "live"
	// WhyWaiting: it waits for something.
	WhyWaiting Why = "waiting"
	// WhyInDoubt: a call of it is in doubt, or held.
	WhyInDoubt Why = "call_in_doubt"
	// WhyOpenCall: a call of it has no outcome.
	WhyOpenCall Why = "open_call"
	// WhyHandoff: a hand-off of it is offered, or accepted and not closed.
	WhyHandoff Why = "handoff_pending"
	// WhyPinned: points of it are pinned.
	WhyPinned Why = "pinned"
	// WhyBase: a fork that is kept stands on it.
	WhyBase Why = "base_of_fork"
	// WhyUnknown: its end, or its checkpoint, cannot be read.
	WhyUnknown Why = "not_readable"
)

// CleanupItem is what a plan says of one run.
type CleanupItem struct {
	Run    string `json:"run"`
	Status Status `json:"status"`
	// Remove it, or keep it; and why.
	Remove bool `json:"remove"`
	Why    Why  `json:"why"`
	// Detail in words: the pins, the forks.
	Detail string `json:"detail,omitzero"`
	// Last is the time of its last event, RFC 3339.
	Last string `json:"last,omitzero"`
	// Bytes that are known to be stored of it: segments, tail and checkpoint.
	Bytes int64 `json:"bytes"`
	// Failed says why a run that was to be removed was not: it was used meanwhile, say.
	Failed string `json:"failed,omitzero"`
}

// CleanupRequest asks for a page of a cleanup: a plan for runs that ended long ago, and its execution.
type CleanupRequest struct {
	// Policy to go by; absent means the fleet's own.
	Policy *RetentionPolicy `json:"policy,omitzero"`
	// Status keeps the cleanup to runs of these statuses; empty means all that end a run.
	Status []Status `json:"status,omitzero"`
	// DryRun plans and removes nothing.
	DryRun bool `json:"dry_run,omitzero"`
	// By is the sender's name, a claim, as in [InputRequest]. Required unless DryRun.
	By string `json:"by,omitzero"`
	// After continues: it is the Next of the page before.
	After string `json:"after,omitzero"`
	// Limit is the number of runs of a page: 0 means [DefaultList], at most [MaxList].
	Limit int `json:"limit,omitzero"`
	// Pending asks for nothing but how many runs are being removed.
	Pending bool `json:"pending,omitzero"`
}

// CleanupReply is a page of a cleanup.
type CleanupReply struct {
	// Policy that was gone by.
	Policy RetentionPolicy `json:"policy"`
	// Items are the runs of the page, those to be removed in the order in which they are.
	Items []CleanupItem `json:"items"`
	// Next is the After of the following page; empty at the end.
	Next string `json:"next,omitzero"`
	// Pending counts the runs of the fleet whose removal was ordered and is not finished.
	Pending int64 `json:"pending"`
}

// EraseRequest asks for the removal of a run for good.
type EraseRequest struct {
	// By is the sender's name, a claim, as in [InputRequest]. Required unless Check.
	By     string `json:"by,omitzero"`
	Reason string `json:"reason,omitzero"`
	// Force removes a run that is live, waits, is pinned, or has a hand-off or a call pending. One that a fork stands on is
	// refused all the same.
	Force bool `json:"force,omitzero"`
	// Check asks what is left of a run that was removed, and removes nothing. Chunks are those of the receipt.
	Check  bool     `json:"check,omitzero"`
	Chunks []string `json:"chunks,omitzero"`
}

// EraseReply says how far the removal of a run is.
type EraseReply struct {
	Erasure Erasure `json:"erasure"`
	// Done: nothing was found any more, and the erasure is the receipt. If not, ask again.
	Done bool `json:"done"`
	// Already: the run was removed before this request.
	Already bool `json:"already,omitzero"`
	// Left is what was found by a check.
	Left *ErasedParts `json:"left,omitzero"`
}
