package schema

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// RemovalKeyPrefix begins the keys of the segment bucket that name, by run, the removed runs whose stored parts the
// daemon deletes, or deleted so recently that a server crash could bring them back.
const RemovalKeyPrefix = "_.removal."

// Removal is the data of run.erased, the event that removes a run: the order and the receipt. It has no content of the
// run.
type Removal struct {
	Fleet string `json:"fleet"`
	Run   string `json:"run"`
	// ID names the removal.
	ID string `json:"id"`
	// By and Claimed name the sender of the request, as in control events. At is its time, RFC 3339.
	By      string `json:"by"`
	Claimed string `json:"claimed,omitzero"`
	Reason  string `json:"reason,omitzero"`
	At      string `json:"at"`
	// Force: the removal was requested although something of the run is pending.
	Force bool `json:"force,omitzero"`
	// Overwrite: the bytes of the run are overwritten, not only marked as deleted.
	Overwrite bool `json:"overwrite,omitzero"`
	// Status, Events and Digest are those of the run before its removal. Position is its last message in the log: the
	// event counts only directly after it.
	Status Status `json:"status,omitzero"`
	// Parent is the run whose call started it; empty for none. Epoch of the run.
	Parent   string   `json:"parent,omitzero"`
	Epoch    Epoch    `json:"epoch,omitzero"`
	Events   int64    `json:"events"`
	Digest   string   `json:"digest,omitzero"`
	Position Position `json:"position"`
	// Segments of the run, and the bytes of these and of its other events.
	Segments int   `json:"segments,omitzero"`
	Bytes    int64 `json:"bytes,omitzero"`
	// Keys of the checkpoint bucket under which the run was listed.
	Keys  []string       `json:"keys,omitzero"`
	Extra jsontext.Value `json:",embed"`
}

// ErasedParts counts the stored parts of a removed run. Bytes are those of one copy.
type ErasedParts struct {
	// LogEvents are messages of the log except run.erased, which stays.
	LogEvents int64 `json:"log_events"`
	Segments  int64 `json:"segments"`
	// SegmentBytes as stored.
	SegmentBytes int64 `json:"segment_bytes,omitzero"`
	Blobs        int64 `json:"blobs"`
	BlobBytes    int64 `json:"blob_bytes,omitzero"`
	DeadLetters  int64 `json:"dead_letters"`
	// Checkpoints except the one that records the removal.
	Checkpoints int64 `json:"checkpoints"`
	// IndexKeys under which the run is listed.
	IndexKeys int64 `json:"index_keys"`
}

// None reports whether nothing is stored.
func (p *ErasedParts) None() bool {
	return p.LogEvents == 0 && p.Segments == 0 && p.Blobs == 0 && p.DeadLetters == 0 && p.Checkpoints == 0 && p.IndexKeys == 0
}

// NewErased builds the event of a removal. It stays as the last message of the run's subject, so that the
// compare-and-set of a first event fails there forever, and that of an executor that still has the run. Sign it like a
// control event. A nonce distinguishes the events of one removal: after a late event of another client the daemon
// writes a later one.
func NewErased(daemon string, r *Removal, nonce string, at time.Time) (*Event, error) {
	data, err := json.Marshal(r, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("removal of run %s: %w", r.Run, err)
	}
	return &Event{
		ID:              r.Run + ".erased." + r.ID + "." + nonce,
		Source:          Source(r.Fleet, daemon),
		Type:            TypeOf(RunErased),
		Subject:         r.Run,
		Time:            FormatTime(at),
		DataContentType: ContentTypeJSON,
		Data:            data,
	}, nil
}

// ErasedMark reports whether an event is of the type run.erased. Any client that may publish events can write one: see
// [Removes].
func ErasedMark(e *Event) bool { return e != nil && e.Type == TypeOf(RunErased) }

// Removes returns the removal of the run whose log has the record; nil if the record removes nothing. A record removes
// its run whatever was folded before: a key of the fleet signed it, if the fleet has keys, and the server stored it
// directly after the message that it names. So a signed event that the server refused counts nowhere else.
func Removes(keys *Keys, rec *Record) *Removal {
	p := Prepare(keys, rec)
	r, _ := p.removal()
	return r
}

// removal is [Removes], with the reason and a detail of a record that removes nothing.
func (p *Prepared) removal() (*Removal, Verdict) {
	if !ErasedMark(p.Event) {
		return nil, Verdict{}
	}
	r := new(Removal)
	fleet, _, _ := ParseSource(p.Event.Source)
	switch err := json.Unmarshal(p.Event.Data, r); {
	case err != nil:
		return nil, rejected(ReasonInvalidData, "%s: %s", RunErased, err)
	case r.ID == "" || r.Run != p.Event.Subject || r.Fleet != fleet:
		return nil, rejected(ReasonInvalidData, "%s of run %.64q of fleet %.64q", RunErased, r.Run, r.Fleet)
	case p.refusal != "":
		return nil, rejected(ReasonUnsigned, "%s", p.refusal)
	case p.Record.Behind != r.Position.Stream:
		return nil, rejected(ReasonMisplaced, "%s is for the place after stream sequence %d, and came after %d", p.Event.ID, r.Position.Stream, p.Record.Behind)
	}
	return r, Verdict{}
}

// erase turns the head into that of a removed run if the event removes it.
func (h *Head) erase(p *Prepared) Verdict {
	r, v := p.removal()
	switch {
	case h.Status == StatusErased:
		if r != nil {
			h.Erased = r // a later event of the removal
		}
	case r == nil:
		return v
	case r.Run != h.Run && h.Run != "" || r.Position.Stream == 0 && h.Position.Stream != 0 && !r.Force: // with force the log may have lost the run
		return rejected(ReasonMisplaced, "%s is not of this run, or is for a run without events", p.Event.ID)
	default:
		*h = ErasedHead(r)
	}
	return Verdict{Kind: Skipped}
}

// ErasedHead is the head of a removed run, without its position. It has no data of the run, and no event is accepted
// after it.
func ErasedHead(r *Removal) Head {
	return Head{
		Fleet: r.Fleet, Run: r.Run, Status: StatusErased, Epoch: 1, Counts: Counts{Events: 1}, UpdatedAt: r.At, EndedAt: r.At, Erased: r,
	}
}

// RetentionPolicy says how long runs are kept after their end. The zero policy keeps everything.
type RetentionPolicy struct {
	// CompletedSeconds, FailedSeconds and CancelledSeconds are how long runs of these statuses are kept after their
	// last event; 0 is forever.
	CompletedSeconds int64 `json:"completed_seconds,omitzero" check:"min=0,max=3153600000"`
	FailedSeconds    int64 `json:"failed_seconds,omitzero" check:"min=0,max=3153600000"`
	CancelledSeconds int64 `json:"cancelled_seconds,omitzero" check:"min=0,max=3153600000"`
	// GraceSeconds is the shortest time between a run's last event and its removal, whatever the other fields say; 0
	// is [DefaultRetentionGrace].
	GraceSeconds int64 `json:"grace_seconds,omitzero" check:"min=0,max=3153600000"`
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
	Status []Status `json:"status,omitzero" each:"required,oneof=completed|failed|cancelled"`
	// DryRun plans and removes nothing.
	DryRun bool `json:"dry_run,omitzero"`
	// By is the sender's name, a claim, as in [InputRequest]. Required unless DryRun.
	By string `json:"by,omitzero"`
	// After continues a listing: the Next of the previous page.
	After string `json:"after,omitzero"`
	// Limit is the number of runs of a page: 0 means [DefaultList], at most [MaxList].
	Limit int `json:"limit,omitzero" check:"min=0,max=1000"`
}

// CleanupReply is a page of a cleanup.
type CleanupReply struct {
	// Policy that was applied.
	Policy RetentionPolicy `json:"policy"`
	// Items are the runs of the page.
	Items []CleanupItem `json:"items"`
	// Next is the After of the following page; empty at the end.
	Next string `json:"next,omitzero"`
}

// EraseRequest asks for the permanent removal of a run.
type EraseRequest struct {
	// By is the sender's name, a claim, as in [InputRequest]. Required unless Check.
	By     string `json:"by,omitzero"`
	Reason string `json:"reason,omitzero" check:"max=256"`
	// ID of the removal, the same for all runs that are erased together; the daemon makes one if it is empty. The same
	// request again changes nothing.
	ID string `json:"id,omitzero" check:"name"`
	// Force removes a run that is live, waits, is pinned, or has a pending hand-off or call. The base of a fork is
	// refused even then.
	Force bool `json:"force,omitzero"`
	// Check asks what is left of a run, and removes nothing.
	Check bool `json:"check,omitzero"`
}

// EraseReply says how far the removal of a run is.
type EraseReply struct {
	// Removal of the run. One without an id, in the answer to a check: the run is stored, and not removed.
	Removal Removal `json:"removal"`
	// Done: nothing of the run is left. If false, ask again.
	Done bool `json:"done"`
	// Waits is why bytes of the run are not overwritten yet although nothing else is left, such as a server that is
	// away. The daemon tries again.
	Waits string `json:"waits,omitzero"`
	// GoneBy is when the servers have compacted their files after that; empty before it is done, and later.
	GoneBy string `json:"gone_by,omitzero"`
	// Already: the run was removed before this request.
	Already bool `json:"already,omitzero"`
	// Left is what a check found.
	Left *ErasedParts `json:"left,omitzero"`
}
