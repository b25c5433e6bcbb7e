package schema

import (
	"fmt"
	"net/http"

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
	// VerbHistory lists the checkpoints kept of a run.
	VerbHistory = "history"
	// VerbSettle settles a call in doubt by an operator's word.
	VerbSettle = "settle"
	// VerbClaim hands a claimable run of the fleet to the executor that asks.
	VerbClaim = "claim"
	// VerbInput answers a run that waits.
	VerbInput = "input"
	// VerbCancel asks a run's executor to stop.
	VerbCancel = "cancel"
	// VerbHandoff accepts, declines or closes a hand-off.
	VerbHandoff = "handoff"
	// VerbMark pins the point where a run stands under a name.
	VerbMark = "mark"
	// VerbSignal sends a message into a run that has not ended.
	VerbSignal = "signal"
	// VerbFleet says how the fleet is.
	VerbFleet = "fleet"
	// VerbExecutors says which executors a fleet has, and how long ago each was heard.
	VerbExecutors = "executors"
	// VerbErase removes a run for good.
	VerbErase = "erase"
	// VerbCleanup removes the runs that a policy does not keep.
	VerbCleanup = "cleanup"
	// VerbRetry folds a parked run again, see [ParkedRun].
	VerbRetry = "retry"
)

// Changes reports whether a request of a verb has an effect: its sender is proven, and a lost answer leaves in doubt whether it was carried out.
func Changes(verb string) bool {
	switch verb {
	case VerbGet, VerbList, VerbHistory, VerbFleet, VerbExecutors:
		return false
	}
	return true
}

// Views of a run that recover and get answer with.
const (
	// ViewState answers with one message that has the head and the content, [StateView]. Of a run that does not fit it has the newest turns,
	// and the request for the rest. It is the default.
	ViewState = "state"
	// ViewHead answers with one message that has the head alone: it costs the same for a run of any length.
	ViewHead = "head"
	// ViewEvents streams the run's segments as stored and then the tail, in replies that must be acknowledged; the client folds.
	ViewEvents = "events"
)

// MinReplyBytes is the least that a request may bound its answer to.
const MinReplyBytes = 4 << 10

// Limits and defaults of the service.
const (
	// MaxStateView bounds the payload of a run that the daemon holds to answer with its state: of a larger one it holds the newest turns.
	MaxStateView = 16 << 20
	// MaxFoldedView bounds the stored size of a run that the daemon folds for somebody else.
	MaxFoldedView = 256 << 20
	// FlowWindow is the number of bytes of replies that may be unacknowledged.
	FlowWindow = 4 << 20
	// MaxList and DefaultList bound a page of list.
	MaxList     = 1000
	DefaultList = 100
)

// Headers of replies.
const (
	// HeaderReply numbers the replies to one request from 1.
	HeaderReply = "Waymark-Reply"
	// HeaderKind says what a reply's body is: one of the Kind… constants.
	HeaderKind = "Waymark-Kind"
	// HeaderError and HeaderErrorCode are those of the NATS micro protocol.
	HeaderError     = "Nats-Service-Error"
	HeaderErrorCode = "Nats-Service-Error-Code"
)

// Kinds of replies. One of them is the answer, which is JSON; those of the view come before or behind it, pieces of
// content in their order; an empty one ends it all. Content that comes before the answer is sent while the run is still
// being read: nothing is known to be whole before the answer has come, says that it is complete, and its head has the
// digest that the content folds to. A reply that carries a reply subject is acknowledged there with an empty message
// once it was consumed; at most [FlowWindow] bytes are under way unacknowledged, and a client that acknowledges none of
// them in time gets the error [CodeNotAcknowledged].
const (
	// KindAnswer is the answer: [RecoverReply], [GetReply], …. It comes once. With view events segments come before it
	// and the tail behind it; every other answer is the first reply, and has no content beside it.
	KindAnswer = "answer"
	// KindAgain takes back all that was sent before it, and is empty: the run was found to be damaged, and what it is
	// comes behind. The numbers of replies go on.
	KindAgain = "again"
	// KindSegment is a segment as stored; see [DecodeSegment].
	KindSegment = "segment"
	// KindFrames are frames of the tail; see [NewFrameReader].
	KindFrames = "frames"
	// KindEnd is the last, empty reply.
	KindEnd = "end"
)

// RecoverRequest asks for a run and takes it over.
type RecoverRequest struct {
	// Executor that takes over. Required.
	Executor string `json:"executor"`
	// Instance of the executor; see [Heartbeat].
	Instance string `json:"instance,omitzero"`
	// Agent that the executor runs; when set it must be the run's.
	Agent string `json:"agent,omitzero"`
	// Reason is claim, request, restart, input, reopen or rewind; absent means request.
	Reason string `json:"reason,omitzero"`
	// RequestID makes a repeat of the request continue the epoch it opened. Required.
	RequestID string `json:"request_id"`
	// Epoch, if given, is the one that the request opened: it is continued or refused, and no other is opened.
	Epoch Epoch `json:"epoch,omitzero"`
	// View is state, head or events; absent means state.
	View string `json:"view,omitzero"`
	// After, for the view events, leaves out segments up to and including this number: the client has them.
	After int `json:"after,omitzero"`
	// MaxBytes as in [GetRequest].
	MaxBytes int64 `json:"max_bytes,omitzero"`
	// At is a point of the run in its text form, see [Point]: the run as it was there is shown, and nothing is taken over.
	// Executor and RequestID are not needed then, and Reason is refused. With reason rewind the run is taken over behind the point,
	// also if it has ended: what came later stays in the record, and is no part of the state any more.
	At string `json:"at,omitzero"`
}

// RecoverReply is the answer to a takeover. A repetition of the request is answered with the run as it is then, in the same epoch.
type RecoverReply struct {
	Head Head `json:"head"`
	// State is the content of the run, with the view state.
	State *StateView `json:"state,omitzero"`
	// Epoch that the executor now holds, and the first sequence it writes in it.
	Epoch        Epoch    `json:"epoch"`
	NextSequence Sequence `json:"next_sequence"`
	// LastStream is the stream sequence of the run's last event: the executor's next CAS.
	LastStream StreamSequence `json:"last_stream_sequence"`
	// InDoubt calls must be settled before the run goes on with them.
	InDoubt []OpenCall `json:"in_doubt"`
	// Complete is false when events of the run are known to be missing; Gaps says which.
	Complete bool         `json:"complete"`
	Gaps     []Gap        `json:"gaps"`
	Segments SegmentIndex `json:"segments"`
	// Damage was met and survived: nothing of it is in the answer.
	Damage []Damage `json:"damage,omitzero"`
	// Shard that holds the run: where the executor publishes. Absent from daemons that do not say it.
	Shard int `json:"shard"`
	// At says where the point of the request was found. With it nothing was taken over: epoch and next sequence are
	// those of the run at the point, for reading only.
	At *Moment `json:"at,omitzero"`
}

// Kinds of damage.
const (
	// DamagedCheckpoint: a checkpoint cannot be read.
	DamagedCheckpoint = "checkpoint"
	// DamagedSegment: a segment cannot be read, or is gone.
	DamagedSegment = "segment"
)

// Damage tells who reads a run that something stored of it is damaged, and what was used instead. The answer is whole
// unless it says otherwise; verify tells more.
type Damage struct {
	// What is checkpoint or segment.
	What string `json:"what"`
	// Revision of the checkpoint, Segment by its number.
	Revision Revision `json:"revision,omitzero"`
	Segment  int      `json:"segment,omitzero"`
	// Detail in words.
	Detail string `json:"detail"`
	// Instead is what the answer was made from, in words: an earlier checkpoint, segments and log, or the log.
	Instead string `json:"instead"`
}

// GetRequest reads a run without taking it over. The answer contains every event acknowledged before the
// request.
type GetRequest struct {
	// View is state, head or events; absent means state.
	View string `json:"view,omitzero"`
	// After as in [RecoverRequest].
	After int `json:"after,omitzero"`
	// MaxBytes, for the view state, bounds the answer: at least [MinReplyBytes]. Absent means what a message of the server may have
	// (max_payload), which is the most in any case.
	MaxBytes int64 `json:"max_bytes,omitzero"`
	// At is a point of the run in its text form, see [Point]; absent means its end.
	At string `json:"at,omitzero"`
	// Before, for the view state at a point, asks for what is older than a page: the number of turns, calls and messages before it. Take it
	// from [Older], with the point.
	Before int `json:"before,omitzero"`
}

// GetReply is the answer to a read.
type GetReply struct {
	Head Head `json:"head"`
	// State is the content of the run, with the view state.
	State *StateView `json:"state,omitzero"`
	// Quarantined as in [RunSummary], by the daemon's own number of claims.
	Quarantined bool         `json:"quarantined,omitzero"`
	Complete    bool         `json:"complete"`
	Gaps        []Gap        `json:"gaps"`
	Segments    SegmentIndex `json:"segments"`
	// Bytes of the run's events, sealed ones as stored.
	Bytes int64 `json:"bytes"`
	// Shard that holds the run.
	Shard int `json:"shard"`
	// Overdue is work of the run that its executor says takes longer than it may; see [Overdue]. Not with At, and not from a replica that
	// does not fold.
	Overdue []Overdue `json:"overdue,omitzero"`
	// Damage was met and survived: nothing of it is in the answer.
	Damage []Damage `json:"damage,omitzero"`
	// At says where the point of the request was found; absent for a run's end. Head, Complete and Gaps are the run's as it was
	// there, Segments and Bytes are those of today.
	At *Moment `json:"at,omitzero"`
}

// ListRequest lists runs by their checkpoints. It does not wait for the fold worker. The newest come first: those that have not
// ended from the one started last, then those that have from the one ended last. With Parent or Related the list is in the
// order of run ids.
type ListRequest struct {
	// Status keeps runs of these statuses; empty keeps all.
	Status []Status `json:"status,omitzero"`
	// Agent keeps runs of this agent.
	Agent string `json:"agent,omitzero"`
	// Parent keeps children of this run.
	Parent string `json:"parent,omitzero"`
	// Related keeps runs whose parent this is, or that continue it.
	Related string `json:"related,omitzero"`
	// Quarantined keeps runs that are quarantined; see [RunSummary].
	Quarantined bool `json:"quarantined,omitzero"`
	// Held keeps runs with a call that a person must settle, ended runs included; see [Head.HeldCalls].
	Held bool `json:"held,omitzero"`
	// Offered keeps runs with a hand-off that waits for a taker, ended runs included.
	Offered bool `json:"offered,omitzero"`
	// ModelTier keeps runs that began with this class of models.
	ModelTier string `json:"model_tier,omitzero"`
	// Completion keeps completed runs that ended in one of these ways, with limit failed ones, too; empty keeps all runs.
	Completion []Completion `json:"completion,omitzero"`
	// Labels must all be there with these values.
	Labels map[string]string `json:"labels,omitzero"`
	// Since and Until keep runs of that time, RFC 3339, Since included and Until not: an ended run's is when the server
	// stored its last event, that of another is when it was started, as its executor said. Not with Parent or Related.
	Since string `json:"since,omitzero"`
	Until string `json:"until,omitzero"`
	// After continues a list: it is the Next of the page before, and good for the same request only.
	After string `json:"after,omitzero"`
	// Limit is the size of the page: 0 means [DefaultList], at most [MaxList].
	Limit int `json:"limit,omitzero"`
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
	// Waits counts what the run waits for, Handoffs its hand-offs that were neither declined nor closed.
	Waits    int `json:"waits,omitzero"`
	Handoffs int `json:"handoffs,omitzero"`
	// Overdue counts the work of the run that its executor says takes longer than it may; see [Overdue].
	Overdue int `json:"overdue,omitzero"`
	// CompletedBy is the call of the completion tool that completed the run, Limit the limit that it reached; see [Head].
	CompletedBy string `json:"completed_by,omitzero"`
	Limit       string `json:"limit_reached,omitzero"`
	// Quarantined: too many claims made no progress, and nobody is given the run before somebody asks for it by name.
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

// ListReply is a page of runs. A list of all its pages has every run once that could be listed from its beginning to its
// end; one that was reopened meanwhile, or written to after its end, may be missing.
type ListReply struct {
	Runs []RunSummary `json:"runs"`
	// Next is the After of the following page; empty at the end. A page may be short, or empty, with more to come.
	Next string `json:"next,omitzero"`
	// Incomplete: the index that the list is read from is still being built, and runs may be missing.
	Incomplete bool `json:"incomplete,omitzero"`
	// Parked are runs that the fold leaves where they stand, whether the list has them or not: on the first page, the first
	// [MaxListParked] of them.
	Parked []ParkedRun `json:"parked,omitzero"`
}

// MaxListParked bounds the parked runs that an answer names: of all shards there may be more than fit into a message.
const MaxListParked = 64

// RetryReply says what came of a parked run that was folded again. All replicas hear the request, which is empty, and the one that folds the
// run's shard answers.
type RetryReply struct {
	Run string `json:"run"`
	// Tried is false for a run that was not parked: nothing was done.
	Tried bool `json:"tried"`
	// Parked is how it is parked after the try; absent when it is folded again.
	Parked *ParkedRun `json:"parked,omitzero"`
}

// MarkRequest pins the point where a run stands: it can be restored by the name. A repeat is answered like the first one as
// long as nothing was written behind it.
type MarkRequest struct {
	// Name of the point, at most [MaxIdentifier] bytes. Required.
	Name string `json:"name"`
	// By is the sender's name, a claim, as in [InputRequest].
	By string `json:"by"`
	// Move takes the name from the point that has it; without it that is a conflict.
	Move bool `json:"move,omitzero"`
	// RequestID makes a repeat of the request find its first try, so that it does not take the name back from who moved it since; empty
	// means that a repeat is found only as long as the run stands where it was marked.
	RequestID string `json:"request_id,omitzero"`
}

// HistoryReply lists the checkpoints kept of a run, newest first.
type HistoryReply struct {
	Run         string         `json:"run"`
	Checkpoints []HistoryEntry `json:"checkpoints"`
}

// HistoryEntry is one checkpoint kept.
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

// SettleRequest settles a call in doubt by an operator's word.
type SettleRequest struct {
	CallKey
	How     Settlement     `json:"how"`
	Result  jsontext.Value `json:"result,omitzero"`
	IsError *bool          `json:"is_error,omitzero"`
	// Refs say that the result is encrypted; nothing else is taken.
	Refs []Ref `json:"refs,omitzero"`
	// Seen is the id of the last event of the run that the sender had read, as head.position of waymark.get says: the request is a conflict if
	// the call was begun or settled behind it, so that it settles no attempt but the one that was seen. Empty settles whichever there is.
	Seen string `json:"seen,omitzero"`
	// By is the sender's name, a claim, as in [InputRequest].
	By string `json:"by"`
	// RequestID makes a repeat of the request find its first try, and settles nothing twice; empty means every try is one
	// of its own.
	RequestID string `json:"request_id,omitzero"`
}

// SettleReply says where the settlement stands in the log.
type SettleReply struct {
	EventID string         `json:"event_id"`
	Stream  StreamSequence `json:"stream_sequence"`
	// By is that of the event, as in [ControlReply].
	By string `json:"by,omitzero"`
}

// Code is the stable code string of a service error.
type Code string

// Codes of service errors.
const (
	CodeBadRequest   Code = "bad_request"
	CodeForbidden    Code = "forbidden"
	CodeNotFound     Code = "run_not_found"
	CodeConflict     Code = "conflict"
	CodeRunEnded     Code = "run_ended"
	CodeWrongAgent   Code = "wrong_agent"
	CodeTooLarge     Code = "too_large"
	CodeOverloaded   Code = "overloaded"
	CodeInternal     Code = "internal"
	CodeUnavailable  Code = "unavailable"
	CodeDamaged      Code = "damaged"
	CodeStorageFull  Code = "storage_full"
	CodeNotInDoubt   Code = "not_in_doubt"
	CodeUnknownFleet Code = "unknown_fleet"
	// CodeUnknownInterrupt answers something that the run does not wait for, or no longer.
	CodeUnknownInterrupt Code = "unknown_interrupt"
	// CodeInvalidAnswer answers with what the run's response_schema does not allow; details name the places.
	CodeInvalidAnswer Code = "invalid_answer"
	// CodeUnknownHandoff names a hand-off that the run has not open.
	CodeUnknownHandoff Code = "unknown_handoff"
	// CodeTooManySignals sends a signal into a run that has [MaxSignals] open ones.
	CodeTooManySignals Code = "too_many_signals"
	// CodeHandoffTaken accepts an offer that another accepted, or that is not the one that was read.
	CodeHandoffTaken Code = "handoff_taken"
	// CodeQuarantined claims by name a run whose claims made no progress.
	CodeQuarantined Code = "quarantined"
	// CodePointNotFound names a point that the run does not have; details name what there is.
	CodePointNotFound Code = "point_not_found"
	// CodePointAmbiguous names a point that the run has more than once; details name them.
	CodePointAmbiguous Code = "point_ambiguous"
	// CodePointPurged names a point whose events, or some before it, are no longer kept.
	CodePointPurged Code = "point_purged"
	// CodeErased names a run that was removed; its id is never used again.
	CodeErased Code = "erased"
	// CodeNotAcknowledged: the client did not acknowledge the replies of the view events in time, and gets no more of them.
	CodeNotAcknowledged Code = "not_acknowledged"
	// CodeNeeded asks for the removal of a run that something still needs; details name why, and the forks.
	CodeNeeded Code = "needed"
)

// HTTPStatus is the number that goes into Nats-Service-Error-Code.
func (c Code) HTTPStatus() int {
	switch c {
	case CodeBadRequest:
		return http.StatusBadRequest
	case CodeForbidden, CodeWrongAgent:
		return http.StatusForbidden
	case CodeNotFound, CodeUnknownFleet, CodeUnknownInterrupt, CodeUnknownHandoff, CodePointNotFound:
		return http.StatusNotFound
	case CodeInvalidAnswer:
		return http.StatusUnprocessableEntity
	case CodeConflict, CodeRunEnded, CodeNotInDoubt, CodeHandoffTaken, CodeQuarantined, CodePointAmbiguous, CodeNeeded:
		return http.StatusConflict
	case CodePointPurged, CodeErased:
		return http.StatusGone
	case CodeNotAcknowledged:
		return http.StatusRequestTimeout
	case CodeTooLarge:
		return http.StatusRequestEntityTooLarge
	case CodeOverloaded, CodeTooManySignals:
		return http.StatusTooManyRequests
	case CodeUnavailable:
		return http.StatusServiceUnavailable
	case CodeStorageFull:
		return http.StatusInsufficientStorage
	default:
		return http.StatusInternalServerError
	}
}

// ServiceError is the body of an error reply. The client SDK returns it as it is.
type ServiceError struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	// Hint says what to do next.
	Hint    string         `json:"hint,omitzero"`
	Details jsontext.Value `json:"details,omitzero"`
	Extra   jsontext.Value `json:",embed"`
}

// Fail returns the error reply with a code, the next step, and a message.
func Fail(code Code, hint, format string, args ...any) *ServiceError {
	return &ServiceError{Code: code, Message: fmt.Sprintf(format, args...), Hint: hint}
}

// Error is the message, the code and the hint.
func (e *ServiceError) Error() string {
	s := fmt.Sprintf("%s (%s)", e.Message, e.Code)
	if e.Hint != "" {
		s += ": " + e.Hint
	}
	return s
}
