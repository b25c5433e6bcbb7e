package schema

import (
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Keys of the segment bucket that record removed runs. The bucket decides, and only the daemon writes it, so no
// executor can cause a removal by an event.
const (
	// ErasingKeyPrefix begins the keys of removals in progress, by run.
	ErasingKeyPrefix = "_.erasing."
	// ErasedKeyPrefix begins the keys of finished removals, by run. They stay forever: the id is never used again.
	ErasedKeyPrefix = "_.erased."
	// SettlingKeyPrefix begins the keys of runs whose removal is so recent that a server crash could undo it.
	SettlingKeyPrefix = "_.settling."
)

// ErasureFormat is the format version of [Erasure].
const ErasureFormat = 1

// Erasure is the removal of a run: first an order, at the end the receipt. It has no content of the run.
type Erasure struct {
	// Format is [ErasureFormat].
	Format int    `json:"format"`
	Fleet  string `json:"fleet"`
	Run    string `json:"run"`
	Shard  int    `json:"shard"`
	// ID names the removal; its tombstone in the log has the same id.
	ID string `json:"id"`
	// By and Claimed name the sender of the request, as in control events. AskedAt is its time, RFC 3339.
	By      string `json:"by"`
	Claimed string `json:"claimed,omitzero"`
	Reason  string `json:"reason,omitzero"`
	AskedAt string `json:"asked_at"`
	// Force: the removal was requested although something of the run is pending.
	Force bool `json:"force,omitzero"`
	// DecidedAt is when the daemon found that nothing needs the run; empty before that. From then on any daemon that
	// finds the order carries it out, if the run is still at Position.
	DecidedAt string `json:"decided_at,omitzero"`
	// Status, Events, Digest and Position are those of the run before its removal.
	Status   Status   `json:"status"`
	Events   int64    `json:"events"`
	Digest   string   `json:"digest,omitzero"`
	Position Position `json:"position"`
	// Segments and TailBytes are the sealed and the unsealed parts of the run at the time of the request.
	Segments  SegmentIndex `json:"segments,omitzero"`
	TailBytes int64        `json:"tail_bytes,omitzero"`
	// Keys of the checkpoint bucket under which the run was listed.
	Keys []string `json:"keys,omitzero"`
	// Removed counts the stored parts at the beginning of the removal; nil before that.
	Removed *ErasedParts `json:"removed,omitzero"`
	// Chunks are the object ids of the run's blobs; at most [MaxErasedChunks].
	Chunks []string `json:"chunks,omitzero"`
	// RemovedAt is when the daemon found nothing of the run any more; empty before that.
	RemovedAt string         `json:"removed_at,omitzero"`
	Extra     jsontext.Value `json:",embed"`
}

// MaxErasedChunks bounds the blobs that a receipt names. Further blobs are removed and counted, but not named.
const MaxErasedChunks = 1000

// ErasedParts counts the stored parts of a run. Bytes are those of one copy.
type ErasedParts struct {
	// LogEvents are messages of the log except the tombstone, which stays.
	LogEvents int64 `json:"log_events"`
	LogBytes  int64 `json:"log_bytes,omitzero"`
	Segments  int64 `json:"segments"`
	// SegmentBytes as stored.
	SegmentBytes int64 `json:"segment_bytes,omitzero"`
	Blobs        int64 `json:"blobs"`
	BlobBytes    int64 `json:"blob_bytes,omitzero"`
	DeadLetters  int64 `json:"dead_letters"`
	// Checkpoints except the one that records the removal.
	Checkpoints     int64 `json:"checkpoints"`
	CheckpointBytes int64 `json:"checkpoint_bytes,omitzero"`
	// IndexKeys under which the run is listed.
	IndexKeys int64 `json:"index_keys"`
}

// None reports whether nothing is stored.
func (p *ErasedParts) None() bool {
	return p.LogEvents == 0 && p.Segments == 0 && p.Blobs == 0 && p.DeadLetters == 0 && p.Checkpoints == 0 && p.IndexKeys == 0
}

// Bytes is the sum of all parts in bytes.
func (p *ErasedParts) Bytes() int64 {
	return p.LogBytes + p.SegmentBytes + p.BlobBytes + p.CheckpointBytes
}

// NewErased builds the tombstone of a removal. It stays as the last message of the run's subject, so that the
// compare-and-set of a first event fails there forever, and that of an executor that still has the run. It is no
// event of the run and is never folded: the order in the segment bucket decides, which executors cannot write.
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

// Decided reports whether the tombstone of the removal may be stored.
func (e *Erasure) Decided() bool { return e.DecidedAt != "" }

// Marks reports whether an event's id is that of a tombstone of this removal.
func (e *Erasure) Marks(id string) bool {
	rest, ok := strings.CutPrefix(id, e.Run+".erased."+e.ID)
	return ok && (rest == "" || rest[0] == '.')
}

// ErasedMark reports whether an event is the tombstone of a removed run.
func ErasedMark(e *Event) bool { return e != nil && e.Type == TypeOf(RunErased) }

// IsErasedMark is [ErasedMark] of a record.
func IsErasedMark(rec *Record) bool {
	e, err := Decode(rec.Header, rec.Body)
	return err == nil && ErasedMark(e)
}

// ErasedHead is the head of a removed run, with the tombstone at a position. It has no data of the run, and no event
// is accepted after it.
func ErasedHead(fleet, run string, at Position, when string) Head {
	return Head{
		Fleet: fleet, Run: run, Status: StatusErased, Epoch: 1, Position: at, Counts: Counts{Events: 1}, UpdatedAt: when, EndedAt: when,
	}
}

// RetentionPolicy says how long runs are kept after their end. The zero policy keeps everything.
type RetentionPolicy struct {
	// CompletedSeconds, FailedSeconds and CancelledSeconds are how long runs of these statuses are kept after their
	// last event; 0 is forever.
	CompletedSeconds int64 `json:"completed_seconds,omitzero"`
	FailedSeconds    int64 `json:"failed_seconds,omitzero"`
	CancelledSeconds int64 `json:"cancelled_seconds,omitzero"`
	// GraceSeconds is the shortest time between a run's last event and its removal, whatever the other fields say; 0
	// is [DefaultRetentionGrace].
	GraceSeconds int64 `json:"grace_seconds,omitzero"`
}

// The proposed retention, and the smallest grace.
const (
	DefaultRetainCompleted = 30 * 24 * time.Hour
	DefaultRetainFailed    = 7 * 24 * time.Hour
	DefaultRetentionGrace  = 10 * time.Minute
)

// MaxRetentionSeconds bounds the times of a policy: a hundred years.
const MaxRetentionSeconds = 100 * 365 * 86400

// For returns how long runs of a status are kept; 0 is forever.
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

// Grace is the shortest time between a run's last event and its removal.
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

// Least is the shortest time that runs of any status are kept; 0 if nothing is removed.
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

// String describes the policy for people.
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

// Why is the reason to keep or remove a run.
type Why string

// Words returns the reason for people.
func (w Why) Words() string { return strings.ReplaceAll(string(w), "_", " ") }

// Reasons.
const (
	// WhyAge: the run ended longer ago than the policy keeps runs of its status. The only reason to remove a run.
	WhyAge Why = "older_than_policy"
	// WhyYoung: the policy still keeps the run.
	WhyYoung Why = "within_policy"
	// WhyForEver: the policy keeps runs of this status forever.
	WhyForEver Why = "status_is_kept"
	// WhyActive: the run got an event within the grace.
	WhyActive Why = "within_grace"
	// WhyLive: the run has not ended.
	WhyLive Why = "live"
	// WhyWaiting: the run waits for something.
	WhyWaiting Why = "waiting"
	// WhyInDoubt: the run has a call in doubt, or held.
	WhyInDoubt Why = "call_in_doubt"
	// WhyOpenCall: the run has a call without an outcome.
	WhyOpenCall Why = "open_call"
	// WhyHandoff: a hand-off of the run is offered, or accepted and not closed.
	WhyHandoff Why = "handoff_pending"
	// WhyPinned: points of the run are pinned.
	WhyPinned Why = "pinned"
	// WhyBase: a fork that is kept is based on the run.
	WhyBase Why = "base_of_fork"
	// WhyUnknown: the run's end or its checkpoint cannot be read.
	WhyUnknown Why = "not_readable"
)

// CleanupItem is a plan's decision about one run.
type CleanupItem struct {
	Run    string `json:"run"`
	Status Status `json:"status"`
	// Remove is true to remove the run, false to keep it; Why is the reason.
	Remove bool `json:"remove"`
	Why    Why  `json:"why"`
	// Detail in words: the pins, the forks.
	Detail string `json:"detail,omitzero"`
	// Last is the time of its last event, RFC 3339.
	Last string `json:"last,omitzero"`
	// Bytes known to be stored for the run: segments, tail and checkpoint.
	Bytes int64 `json:"bytes"`
	// Failed says why a planned removal was not done, for example because the run changed after the plan.
	Failed string `json:"failed,omitzero"`
}

// CleanupRequest asks for a page of a cleanup: a plan for runs that ended long ago, and its execution.
type CleanupRequest struct {
	// Policy to apply; absent means the fleet's own.
	Policy *RetentionPolicy `json:"policy,omitzero"`
	// Status limits the cleanup to runs of these statuses; empty means all that end a run.
	Status []Status `json:"status,omitzero"`
	// DryRun plans and removes nothing.
	DryRun bool `json:"dry_run,omitzero"`
	// By is the sender's name, a claim, as in [InputRequest]. Required unless DryRun.
	By string `json:"by,omitzero"`
	// After continues a listing: the Next of the previous page.
	After string `json:"after,omitzero"`
	// Limit is the number of runs of a page: 0 means [DefaultList], at most [MaxList].
	Limit int `json:"limit,omitzero"`
	// Pending asks only how many removals are in progress.
	Pending bool `json:"pending,omitzero"`
}

// CleanupReply is a page of a cleanup.
type CleanupReply struct {
	// Policy that was applied.
	Policy RetentionPolicy `json:"policy"`
	// Items are the runs of the page, those to be removed in the order of their removal.
	Items []CleanupItem `json:"items"`
	// Next is the After of the following page; empty at the end.
	Next string `json:"next,omitzero"`
	// Pending counts the runs of the fleet whose removal is ordered and not finished.
	Pending int64 `json:"pending"`
}

// EraseRequest asks for the permanent removal of a run.
type EraseRequest struct {
	// By is the sender's name, a claim, as in [InputRequest]. Required unless Check.
	By     string `json:"by,omitzero"`
	Reason string `json:"reason,omitzero"`
	// Force removes a run that is live, waits, is pinned, or has a pending hand-off or call. The base of a fork is
	// refused even then.
	Force bool `json:"force,omitzero"`
	// Check asks what is left of a removed run, and removes nothing. Chunks are those of the receipt.
	Check  bool     `json:"check,omitzero"`
	Chunks []string `json:"chunks,omitzero"`
}

// EraseReply says how far the removal of a run is.
type EraseReply struct {
	Erasure Erasure `json:"erasure"`
	// Done: nothing of the run is left, and the erasure is the receipt. If false, ask again.
	Done bool `json:"done"`
	// Already: the run was removed before this request.
	Already bool `json:"already,omitzero"`
	// Left is what a check found.
	Left *ErasedParts `json:"left,omitzero"`
}
