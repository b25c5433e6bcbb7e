package schema

import (
	"cmp"

	"github.com/go-json-experiment/json/jsontext"
)

// Verbs of the recovery service; the request subject is [ServiceSubject].
const (
	// VerbRecover takes a run over: barrier, new epoch, state.
	VerbRecover = "recover"
	// VerbGet reads a run without taking it over.
	VerbGet = "get"
	// VerbList lists runs.
	VerbList = "list"
	// VerbHistory lists the stored checkpoints of a run.
	VerbHistory = "history"
	// VerbRecords reads a page of a run's records, by their numbers.
	VerbRecords = "records"
	// VerbSettle settles a call in doubt by an operator's decision.
	VerbSettle = "settle"
	// VerbClaim gives a claimable run of the fleet to the requesting executor.
	VerbClaim = "claim"
	// VerbInput answers a wait of a run.
	VerbInput = "input"
	// VerbCancel asks a run's executor to stop.
	VerbCancel = "cancel"
	// VerbHandoff accepts, declines or closes a hand-off.
	VerbHandoff = "handoff"
	// VerbFork marks a run as the base of a fork, before the fork begins.
	VerbFork = "fork"
	// VerbMark pins the current point of a run under a name.
	VerbMark = "mark"
	// VerbSignal sends a message into a run that has not ended.
	VerbSignal = "signal"
	// VerbFleet returns the state of the fleet.
	VerbFleet = "fleet"
	// VerbExecutors lists the executors of a fleet, and how long ago each was heard.
	VerbExecutors = "executors"
	// VerbErase removes a run permanently.
	VerbErase = "erase"
	// VerbCleanup removes the runs that a policy does not keep.
	VerbCleanup = "cleanup"
	// VerbPause pauses the runs of a scope, or ends a pause.
	VerbPause = "pause"
	// VerbLimit sets a limit of the runs of a scope, or ends one.
	VerbLimit = "limit"
	// VerbSchedule sets a schedule, or removes one.
	VerbSchedule = "schedule"
)

// Changes reports whether a request of a verb has an effect: its sender is proven, and after a lost answer its
// execution is uncertain.
func Changes(verb string) bool {
	switch verb {
	case VerbGet, VerbList, VerbHistory, VerbRecords, VerbFleet, VerbExecutors:
		return false
	}
	return true
}

// Streamed reports whether an answer to a verb may have several replies, with numbers and kinds. Every other answer is
// one reply without them.
func Streamed(verb string) bool { return verb == VerbGet || verb == VerbRecover }

// Views of a run in the answers of recover and get.
const (
	// ViewState answers with the head and the content, [State.View]. It is the default.
	ViewState = "state"
	// ViewHead answers with one message that has only the head: it costs the same for a run of any length.
	ViewHead = "head"
	// ViewEvents answers with a page of the run's events: segments as stored, other records as frames; the client folds.
	ViewEvents = "events"
)

// MinReplyBytes is the smallest bound on its answer that a request may set.
const MinReplyBytes = 4 << 10

// Limits and defaults of the service.
const (
	// MaxStateView bounds the events of a run that the daemon folds to answer with its state, in bytes. A larger run
	// is read with the view events.
	MaxStateView = 16 << 20
	// MaxStateAnswer bounds that answer, in bytes of JSON.
	MaxStateAnswer = 2 * MaxStateView
	// PageBytes bounds a page of view events, in bytes as stored. One larger event is a page of its own.
	PageBytes = 4 << 20
	// MaxList and DefaultList bound a page of list.
	MaxList     = 1000
	DefaultList = 100
	// MaxRecords and DefaultRecords bound a page of records.
	MaxRecords     = 2048
	DefaultRecords = 256
)

// Headers of replies.
const (
	// HeaderReply numbers the replies to one request from 1.
	HeaderReply = "Waymark-Reply"
	// HeaderKind is the kind of a reply's body: one of the Kind… constants.
	HeaderKind = "Waymark-Kind"
	// HeaderError and HeaderErrorCode are those of the NATS micro protocol.
	HeaderError     = "Nats-Service-Error"
	HeaderErrorCode = "Nats-Service-Error-Code"
)

// Kinds of the replies to a [Streamed] verb. One of them is the answer, which is JSON. Replies with content come before
// it, in content order; an empty reply ends them all. No reply is acknowledged: a client that wants more content than a page asks for the next
// page. Content is known to be complete only once the last page's answer has come, every answer says that it is
// complete, and the last one's head has the digest of the folded content.
const (
	// KindAnswer is the answer: [RecoverReply], [GetReply], …. It comes once.
	KindAnswer = "answer"
	// KindPart is the next part of an answer that is larger than a message: its text is that of all parts in order,
	// then that of the answer. Only answers with the view state have them.
	KindPart = "part"
	// KindSegment is a segment as stored; see [DecodeSegment].
	KindSegment = "segment"
	// KindFrames are frames of records; see [NewFrameReader].
	KindFrames = "frames"
	// KindEnd is the last, empty reply.
	KindEnd = "end"
)

// RecoverRequest asks for a run and takes it over.
type RecoverRequest struct {
	// Executor that takes over. Required.
	Executor string `json:"executor" check:"required,name"`
	// Instance of the executor; see [Heartbeat].
	Instance string `json:"instance,omitzero" check:"name"`
	// Agent that the executor runs; when set it must be the run's.
	Agent string `json:"agent,omitzero" check:"name"`
	// Reason is claim, request, restart, input, reopen or rewind; absent means request.
	Reason string `json:"reason,omitzero" check:"oneof=claim|request|restart|input|reopen|rewind"`
	// RequestID makes a repeat of the request continue the epoch it opened. Required.
	RequestID string `json:"request_id" check:"required,name"`
	// ExpectedEpoch, if set, is the epoch that the sender saw: a run in another epoch is a conflict, which names its executor.
	ExpectedEpoch Epoch `json:"expected_epoch,omitzero"`
	// View is state, head or events; absent means state.
	View string `json:"view,omitzero" check:"oneof=state|head|events"`
	// At, with reason rewind, is a point of the run in its text form, see [Point]: the run is taken over after it, even
	// if it has ended. Later records stay in the log, and are no part of the state any more.
	At string `json:"at,omitzero" with:"reason=rewind"`
	// After continues the content with view events: the Next of the answer to the same request.
	After string `json:"after,omitzero"`
}

// Default fills in the defaults.
func (r *RecoverRequest) Default() { r.Reason = cmp.Or(r.Reason, TakeoverRequest) }

// RecoverReply is the answer to a takeover. A repeat of the request gets the run's current state, in the same epoch.
type RecoverReply struct {
	Head Head `json:"head"`
	// State is the content of the run, with the view state.
	State *State `json:"state,omitzero"`
	// Next is the After of the request for the next page of view events; empty at the end.
	Next string `json:"next,omitzero"`
	// Epoch that the executor now holds, and the first sequence it writes in it.
	Epoch        Epoch    `json:"epoch"`
	NextSequence Sequence `json:"next_sequence"`
	// LastStream is the stream sequence of the run's last event, for the executor's next compare-and-set.
	LastStream StreamSequence `json:"last_stream_sequence"`
	// InDoubt calls must be settled before the run continues with them.
	InDoubt []OpenCall `json:"in_doubt"`
	// Complete is false if events of the run are known to be missing; Gaps lists them.
	Complete bool         `json:"complete"`
	Gaps     []Gap        `json:"gaps"`
	Segments SegmentIndex `json:"segments"`
	// Damage that was found and bypassed: the answer has none of it.
	Damage []Damage `json:"damage,omitzero"`
	// Shard of the run: where the executor publishes. Absent from daemons that do not report it.
	Shard int `json:"shard"`
}

// Kinds of damage.
const (
	// DamagedCheckpoint: a checkpoint cannot be read.
	DamagedCheckpoint = "checkpoint"
	// DamagedSegment: a segment cannot be read, or is gone.
	DamagedSegment = "segment"
)

// Damage tells a reader of a run that some of its stored data is damaged, and what was used instead. The answer is
// complete unless it says otherwise; verify reports more.
type Damage struct {
	// What is checkpoint or segment.
	What string `json:"what"`
	// Revision of the checkpoint, Segment by its number.
	Revision Revision `json:"revision,omitzero"`
	Segment  int      `json:"segment,omitzero"`
	// Detail in words.
	Detail string `json:"detail"`
	// Instead is the source of the answer, in words: segments and log, or the log.
	Instead string `json:"instead"`
}

// GetRequest reads a run without taking it over. The answer contains every event acknowledged before the
// request.
type GetRequest struct {
	// View is state, head or events; absent means state.
	View string `json:"view,omitzero" check:"oneof=state|head|events"`
	// At is a point of the run in its text form, see [Point]; absent means its end.
	At string `json:"at,omitzero"`
	// After continues the content with view events: the Next of the answer to the same request.
	After string `json:"after,omitzero"`
}

// GetReply is the answer to a read.
type GetReply struct {
	Head Head `json:"head"`
	// State is the content of the run, with the view state.
	State *State `json:"state,omitzero"`
	// Next is the After of the request for the next page of view events; empty at the end.
	Next string `json:"next,omitzero"`
	// Quarantined as in [RunSummary], with the daemon's own number of claims.
	Quarantined bool `json:"quarantined,omitzero"`
	// Pauses that select the run; none if it has ended. Not with At.
	Pauses []Pause `json:"pauses,omitzero"`
	// Full are the limits for whose places the run waits, each with the scope of the run's share. Not with At.
	Full     []Limit      `json:"full,omitzero"`
	Complete bool         `json:"complete"`
	Gaps     []Gap        `json:"gaps"`
	Segments SegmentIndex `json:"segments"`
	// Bytes of the run's events, sealed ones as stored.
	Bytes int64 `json:"bytes"`
	// Shard that holds the run.
	Shard int `json:"shard"`
	// Overdue is work of the run that exceeds its limit, as its executor reports; see [Overdue]. Not with At.
	Overdue []Overdue `json:"overdue,omitzero"`
	// Damage that was found and bypassed: the answer has none of it.
	Damage []Damage `json:"damage,omitzero"`
	// At is where the point of the request was found; absent for a run's end. Head, Complete and Gaps are those of
	// the run at the point, Segments and Bytes the current ones.
	At *Moment `json:"at,omitzero"`
}

// ListRequest lists runs by their checkpoints. It does not wait for the fold worker. The newest come first: runs that
// have not ended, from the one started last, then ended ones, from the one ended last. With Parent or Related the
// list is in the order of run ids.
type ListRequest struct {
	// Status keeps runs of these statuses; empty keeps all. A run that a pause selects is paused until it has ended.
	Status []Status `json:"status,omitzero" each:"required,oneof=running|waiting|interrupted|orphaned|paused|completed|failed|cancelled"`
	// Agent keeps runs of this agent.
	Agent string `json:"agent,omitzero"`
	// Parent keeps children of this run.
	Parent string `json:"parent,omitzero" check:"name"`
	// Related keeps runs whose parent is this run, or that continue it.
	Related string `json:"related,omitzero" check:"name"`
	// Quarantined keeps runs that are quarantined; see [RunSummary].
	Quarantined bool `json:"quarantined,omitzero"`
	// Held keeps runs with a call that a person must settle, ended runs included; see [Head.HeldCalls].
	Held bool `json:"held,omitzero"`
	// Offered keeps runs with an offered hand-off, ended runs included.
	Offered bool `json:"offered,omitzero"`
	// ModelTier keeps runs that began with this class of models.
	ModelTier string `json:"model_tier,omitzero"`
	// Completion keeps completed runs that ended in one of these ways, with limit also failed ones; empty keeps all
	// runs.
	Completion []Completion `json:"completion,omitzero" each:"required,oneof=tool|limit|executor"`
	// Labels must all be there with these values.
	Labels map[string]string `json:"labels,omitzero"`
	// Since and Until keep runs of that time, RFC 3339, Since included and Until not. The time of an ended run is
	// when the server stored its last event; of another run, when it started, by its executor's clock. Not with
	// Parent or Related.
	Since string `json:"since,omitzero" check:"time"`
	Until string `json:"until,omitzero" check:"time"`
	// After continues a list: the Next of the previous page, valid for the same request only.
	After string `json:"after,omitzero"`
	// Limit is the size of the page: 0 means [DefaultList], at most [MaxList].
	Limit int `json:"limit,omitzero" check:"min=0,max=1000"`
}

// RunSummary is one line of a list.
type RunSummary struct {
	Run       string `json:"run"`
	Agent     string `json:"agent,omitzero"`
	Executor  string `json:"executor,omitzero"`
	Status    Status `json:"status"`
	Epoch     Epoch  `json:"epoch"`
	Turn      int32  `json:"turn"`
	OpenCalls int    `json:"open_calls,omitzero"`
	InDoubt   int    `json:"in_doubt,omitzero"`
	// Held counts the calls that a person must settle; see [Head.HeldCalls].
	Held      int    `json:"held,omitzero"`
	Events    int64  `json:"events"`
	ToolCalls int64  `json:"tool_calls,omitzero"`
	Parent    string `json:"parent,omitzero"`
	// ResumedFrom is the run that this one continues.
	ResumedFrom string `json:"resumed_from,omitzero"`
	// HandoffOf is the run whose hand-off this one carries out.
	HandoffOf string `json:"handoff_of,omitzero"`
	// Waits counts the run's waits, Handoffs its hand-offs that are neither declined nor closed.
	Waits    int `json:"waits,omitzero"`
	Handoffs int `json:"handoffs,omitzero"`
	// Overdue counts the run's work that exceeds its limit, as its executor reports; see [Overdue].
	Overdue int `json:"overdue,omitzero"`
	// CompletedBy is the call of the completion tool that completed the run, Limit the limit that it reached; see [Head].
	CompletedBy string `json:"completed_by,omitzero"`
	Limit       string `json:"limit_reached,omitzero"`
	// Error of a run that failed, shortened.
	Error string `json:"error,omitzero"`
	// Quarantined: too many claims made no progress. No executor can claim the run automatically; release it, or
	// resume it by name.
	Quarantined bool `json:"quarantined,omitzero"`
	// ModelTier is the class of models that the run began with.
	ModelTier string `json:"model_tier,omitzero"`
	// Completion is how a completed run ended.
	Completion Completion        `json:"completion,omitzero"`
	Labels     map[string]string `json:"labels,omitzero"`
	Gapped     bool              `json:"gapped,omitzero"`
	StartedAt  string            `json:"started_at,omitzero"`
	UpdatedAt  string            `json:"updated_at,omitzero"`
	Usage      Usage             `json:"usage,omitzero"`
}

// ListReply is a page of runs. All pages of a list together have each run once that could be listed from their
// beginning to their end. A run that was reopened in the meantime, or written to after its end, may be missing.
type ListReply struct {
	Runs []RunSummary `json:"runs"`
	// Next is the After of the following page; empty at the end. A page may be short, or empty, although more follow.
	Next string `json:"next,omitzero"`
	// Incomplete: the index behind the list is still being built, and runs may be missing.
	Incomplete bool `json:"incomplete,omitzero"`
}

// MarkRequest pins the current point of a run: it can be restored by the name. A repeat gets the first answer as long
// as no event was written after it.
type MarkRequest struct {
	// Name of the point, at most [MaxIdentifier] bytes. Required.
	Name string `json:"name"`
	// By is the sender's name, a claim, as in [InputRequest].
	By string `json:"by"`
	// Move takes the name from another point; without it, a name in use is a conflict.
	Move bool `json:"move,omitzero"`
	// RequestID lets a repeat of the request find its first try, so that it does not undo a later move of the name.
	// If empty, a repeat is found only while the marked event is the run's last.
	RequestID string `json:"request_id,omitzero" check:"name"`
}

// ForkRequest marks a run as the base of a run that begins next. The daemon keeps the base as long as the fork. A
// repeat gets the first answer.
type ForkRequest struct {
	// Fork is the id of the new run. Required.
	Fork string `json:"fork" check:"required,name"`
	// By is the sender's name, a claim, as in [InputRequest].
	By string `json:"by"`
}

// HistoryReply lists the stored checkpoints of a run, newest first.
type HistoryReply struct {
	Run         string         `json:"run"`
	Checkpoints []HistoryEntry `json:"checkpoints"`
}

// HistoryEntry is one stored checkpoint.
type HistoryEntry struct {
	Revision  Revision `json:"revision"`
	Epoch     Epoch    `json:"epoch"`
	Sequence  Sequence `json:"sequence"`
	Turn      int32    `json:"turn"`
	Status    Status   `json:"status"`
	Events    int64    `json:"events"`
	Position  Position `json:"position"`
	Digest    string   `json:"digest,omitzero"`
	UpdatedAt string   `json:"updated_at,omitzero"`
	// Stored is when the server stored it, RFC 3339.
	Stored string `json:"stored"`
}

// RecordsRequest reads a page of a run's records. The answer is the run as it is after every event acknowledged before the request; a page of
// records that are there already never changes. Without From and Through the page ends with the run's last record.
type RecordsRequest struct {
	// From is the number of the first record of the page, and Through that of the last one; see [PointRecord]. With one of them the page
	// has Limit records; a page that ends before From is empty.
	From    int64 `json:"from,omitzero" check:"min=0"`
	Through int64 `json:"through,omitzero" check:"min=0"`
	// Limit is the most records of the page: 0 means [DefaultRecords], at most [MaxRecords].
	Limit int `json:"limit,omitzero" check:"min=0,max=2048"`
	// Brief leaves out values of content that are longer than [BriefBytes]: messages, arguments, results.
	Brief bool `json:"brief,omitzero"`
	// MaxBytes bounds the answer: at least [MinReplyBytes]. Absent means the server's max_payload, which is the maximum
	// in any case. A page that does not fit has fewer records.
	MaxBytes int64 `json:"max_bytes,omitzero"`
}

// RecordsReply is a page of records. Pages are asked for one after the other by the numbers of their first and last record.
type RecordsReply struct {
	Run string `json:"run"`
	// Before is the run before the first record of the page: from there a client folds.
	Before Head `json:"before"`
	// Records of the page, the oldest first.
	Records []RecordView `json:"records"`
	// Total is how many records the run has.
	Total int64 `json:"total"`
	// Complete is false when events of the run are known to be missing; Gaps says which.
	Complete bool  `json:"complete"`
	Gaps     []Gap `json:"gaps"`
}

// LeftOut is a value missing from a reply.
type LeftOut struct {
	// Path is the JSON Pointer (RFC 6901) of the value in the data of the event.
	Path string `json:"path"`
	// Size of its JSON text in bytes.
	Size int `json:"size"`
}

// RecordView is a record of a run and what the fold made of it.
type RecordView struct {
	// Record is its number, counted from 1.
	Record int64          `json:"record"`
	Stream StreamSequence `json:"stream_sequence"`
	// Verdict is applied, evidence, duplicate, rejected or regressed; Reason and Detail are those of a rejection.
	Verdict string `json:"verdict"`
	Reason  Reason `json:"reason,omitzero"`
	Detail  string `json:"detail,omitzero"`
	// LeftBehind: a rewind left the record behind.
	LeftBehind bool `json:"left_behind,omitzero"`
	// Epoch and Turn of the run behind the record.
	Epoch Epoch `json:"epoch"`
	Turn  int32 `json:"turn,omitzero"`
	// Call that the event opened, began, closed, settled or gave evidence for.
	Call *CallKey `json:"call,omitzero"`
	// Event as a CloudEvent in structured mode; absent for a message that is not an event.
	Event jsontext.Value `json:"event,omitzero"`
	// LeftOut are values of the data that are not in the reply; a path of "" is the whole data.
	LeftOut []LeftOut `json:"left_out,omitzero"`
}

// SettleRequest settles a call in doubt by an operator's decision.
type SettleRequest struct {
	CallKey
	How     Settlement     `json:"how"`
	Result  jsontext.Value `json:"result,omitzero"`
	IsError *bool          `json:"is_error,omitzero"`
	// Refs mark the result as encrypted; other refs are refused.
	Refs []Ref `json:"refs,omitzero"`
	// CallEpoch is the epoch of the open call, from head.open_calls of waymark.get. Each attempt at a call has another
	// one: the request is a conflict if the call was begun or settled since. Required, unless the call's is 0. The first
	// settlement of an attempt counts: a repeat of it gets the same reply, and any other is refused.
	CallEpoch Epoch `json:"call_epoch"`
	// By is the sender's name, a claim, as in [InputRequest].
	By string `json:"by"`
}

// Default fills in the defaults.
func (r *SettleRequest) Default() { r.Occurrence = cmp.Or(r.Occurrence, 1) }
