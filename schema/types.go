package schema

import (
	"maps"
	"reflect"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// TypePrefix and TypeSuffix enclose a name in the CloudEvents type: io.waymark.tool.called.v1.
const (
	TypePrefix = "io.waymark."
	TypeSuffix = ".v1"
)

// Names of the events. The CloudEvents type is [TypeOf](name).
const (
	RunStarted         = "run.started"
	RunResumed         = "run.resumed"
	RunWaiting         = "run.waiting"
	RunInput           = "run.input"
	RunCancelRequested = "run.cancel_requested"
	RunPaused          = "run.paused"
	RunOrphaned        = "run.orphaned"
	RunInterrupted     = "run.interrupted"
	RunEnded           = "run.ended"
	TurnStarted        = "turn.started"
	TurnAnswered       = "turn.answered"
	TurnEnded          = "turn.ended"
	MessageAdded       = "message.added"
	ToolCalled         = "tool.called"
	ToolReturned       = "tool.returned"
	ToolFailed         = "tool.failed"
	ToolDecided        = "tool.decided"
	ToolSettled        = "tool.settled"
	PhaseStarted       = "phase.started"
	PhaseCompleted     = "phase.completed"
	LimitReached       = "limit.reached"
	StateSet           = "state.set"
	StateDeleted       = "state.deleted"
	SignalSent         = "signal.sent"
	SignalConsumed     = "signal.consumed"
	ContextCompacted   = "context.compacted"
	HandoffOffered     = "handoff.offered"
	HandoffAccepted    = "handoff.accepted"
	HandoffDeclined    = "handoff.declined"
	HandoffClosed      = "handoff.closed"
	ArtifactAdded      = "artifact.added"
	CheckpointMarked   = "checkpoint.marked"
	ErrorRaised        = "error.raised"
	// Barrier is the daemon's own event on the reserved run [BarrierRun]; it is never folded.
	Barrier = "barrier.published"
	// RunErased removes the run, and is its last event; see [Removal].
	RunErased = "run.erased"
)

// Names of the daemon's events on the republished checkpoint subject or the observed subjects. They are never in a
// run's log.
const (
	CheckpointCreated   = "checkpoint.created"
	CheckpointUpdated   = "checkpoint.updated"
	CheckpointFinalized = "checkpoint.finalized"
	RunQuarantined      = "run.quarantined"
	// TurnCreated, TurnUpdated and TurnFinalized report the life of a turn; see [TurnLife].
	TurnCreated   = "turn.created"
	TurnUpdated   = "turn.updated"
	TurnFinalized = "turn.finalized"
	// RunClaimable is the name of a notice: a run waits for an executor, and the notified executor may claim it.
	RunClaimable = "run.claimable"
	// EventRefused is the name of a notice and of an observed event: the fold refused an event of the run's log. An
	// acknowledgement only says that the event is stored.
	EventRefused = "event.refused"
)

// TypeOf returns the CloudEvents type of an event name.
func TypeOf(name string) string { return TypePrefix + name + TypeSuffix }

// Data is the payload of an event whose type this version knows.
type Data interface {
	// EventName is the name of the event with this data, such as tool.called.
	EventName() string
}

// event is what is known of an event by its name.
type event struct {
	data Data
	// control: an executor never writes it with its own sequence.
	control bool
	// afterEnd: it may follow run.ended. A person's tool.settled may, too: see [Head.toolSettled].
	afterEnd bool
}

// vocabulary has the events that a run's log may have.
var vocabulary = map[string]event{
	RunStarted:         {data: (*RunStartedData)(nil)},
	RunResumed:         {data: (*RunResumedData)(nil), control: true, afterEnd: true},
	RunWaiting:         {data: (*RunWaitingData)(nil)},
	RunInput:           {data: (*RunInputData)(nil), control: true},
	RunCancelRequested: {data: (*RunCancelRequestedData)(nil), control: true},
	RunPaused:          {data: (*RunPausedData)(nil), control: true},
	RunOrphaned:        {data: (*RunOrphanedData)(nil), control: true},
	RunInterrupted:     {data: (*RunInterruptedData)(nil)},
	RunEnded:           {data: (*RunEndedData)(nil)},
	TurnStarted:        {data: (*TurnStartedData)(nil)},
	TurnAnswered:       {data: (*TurnAnsweredData)(nil)},
	TurnEnded:          {data: (*TurnEndedData)(nil)},
	MessageAdded:       {data: (*MessageAddedData)(nil)},
	ToolCalled:         {data: (*ToolCalledData)(nil)},
	ToolReturned:       {data: (*ToolReturnedData)(nil)},
	ToolFailed:         {data: (*ToolFailedData)(nil)},
	ToolDecided:        {data: (*ToolDecidedData)(nil)},
	ToolSettled:        {data: (*ToolSettledData)(nil)},
	PhaseStarted:       {data: (*PhaseStartedData)(nil)},
	PhaseCompleted:     {data: (*PhaseCompletedData)(nil)},
	LimitReached:       {data: (*LimitReachedData)(nil)},
	StateSet:           {data: (*StateSetData)(nil)},
	StateDeleted:       {data: (*StateDeletedData)(nil)},
	SignalSent:         {data: (*SignalSentData)(nil), control: true},
	SignalConsumed:     {data: (*SignalConsumedData)(nil)},
	ContextCompacted:   {data: (*ContextCompactedData)(nil)},
	HandoffOffered:     {data: (*HandoffOfferedData)(nil), afterEnd: true},
	HandoffAccepted:    {data: (*HandoffAcceptedData)(nil), control: true, afterEnd: true},
	HandoffDeclined:    {data: (*HandoffDeclinedData)(nil), control: true, afterEnd: true},
	HandoffClosed:      {data: (*HandoffClosedData)(nil), control: true, afterEnd: true},
	ArtifactAdded:      {data: (*ArtifactAddedData)(nil)},
	CheckpointMarked:   {data: (*CheckpointMarkedData)(nil), afterEnd: true},
	ErrorRaised:        {data: (*ErrorRaisedData)(nil)},
}

// EventNames are the names of the events of the vocabulary that a run's log may have, sorted.
func EventNames() []string { return slices.Sorted(maps.Keys(vocabulary)) }

// ControlOnly reports whether an executor never writes an event of that name with its own sequence.
func ControlOnly(name string) bool { return vocabulary[name].control }

// NewData returns empty data for an event name of the vocabulary, or nil.
func NewData(name string) Data {
	known, ok := vocabulary[name]
	if !ok {
		return nil
	}
	data, _ := reflect.TypeAssert[Data](reflect.New(reflect.TypeOf(known.data).Elem()))
	return data
}

// Parent names the call of another run that started this run.
type Parent struct {
	// Run is the parent's run id. Required.
	Run string `json:"run" check:"required,name"`
	// Turn of the parent, 0 when unknown.
	Turn int32 `json:"turn,omitzero" check:"min=0"`
	// ToolCallID of the parent's call, empty when none is known.
	ToolCallID string `json:"tool_call_id,omitzero" check:"max=256,text"`
	// Occurrence of the call, absent for the first of the turn with its id.
	Occurrence int `json:"occurrence,omitzero" check:"min=0"`
	// Depth of the run in a chain of delegations: 1 for a run whose parent was not delegated.
	Depth int            `json:"depth,omitzero" check:"min=0"`
	Extra jsontext.Value `json:",embed"`
}

// CallKey of the parent's call.
func (p *Parent) CallKey() CallKey {
	return CallKey{Turn: p.Turn, ToolCallID: p.ToolCallID, Occurrence: max(p.Occurrence, 1)}
}

// Ref says that a field of the data is stored differently: it is large and was moved to the blob store, or the
// executor encrypted it, or both. The content of a blob is the field's JSON text. An encrypted field is a JSON
// string, in the data or in the blob.
type Ref struct {
	// Path is the JSON Pointer (RFC 6901) of the field in the event's data, such as /result. Each field has at most one ref.
	Path string `json:"path" check:"required,max=256,pointer"`
	// DataRef is waymark-blob:<run>.sha256-<hex>; see [ParseDataRef]. No other scheme is resolved. Empty for a field
	// that is in the data.
	DataRef string `json:"dataref,omitzero" check:"dataref"`
	// Size of the blob in bytes.
	Size int64 `json:"size,omitzero" check:"min=0"`
	// KeyID names the key that the field is encrypted with; empty for a field that is not encrypted. The daemon has no keys.
	KeyID string `json:"key_id,omitzero" check:"max=256,text"`
	// Codec names the encryption, and is required with a key.
	Codec string `json:"codec,omitzero" check:"max=256,text"`
	// Place is the place that the cipher text is bound to, once the event was read: see [State.Open]. It is not in
	// the event.
	Place string `json:"-"`
}

// RunStartedData opens a run. It is a run's first event.
type RunStartedData struct {
	// Agent is the name of the agent. Required; same grammar as run ids.
	Agent string `json:"agent" check:"required,name"`
	// Executor is the name of the process that drives the run. Required.
	Executor string `json:"executor" check:"required,name"`
	// Instance identifies one start of the executor's process; see [Heartbeat].
	Instance string `json:"instance,omitzero" check:"name"`
	// Task of the run, in words.
	Task string `json:"task,omitzero" content:"large"`
	// ThreadID groups runs of one conversation.
	ThreadID string `json:"thread_id,omitzero" check:"max=256,text"`
	Model    string `json:"model,omitzero"`
	// ModelTier is a class of models, such as small or large.
	ModelTier string            `json:"model_tier,omitzero"`
	Provider  string            `json:"provider,omitzero"`
	Labels    map[string]string `json:"labels,omitzero" content:"text" check:"max=32" key:"required,max=64" each:"max=256"`
	Parent    *Parent           `json:"parent,omitzero"`
	// Priority lets the run be claimed as if it had waited longer: a minute for each step, of at most nine.
	Priority int   `json:"priority,omitzero" check:"min=0,max=9"`
	MaxTurns int32 `json:"max_turns,omitzero" check:"min=0"`
	// MaxTokens is the number of input and output tokens after which only a summing-up turn may begin, like MaxTurns
	// for turns.
	MaxTokens int64 `json:"max_tokens,omitzero" check:"min=0"`
	// CompletionTool names the tool whose call is required to complete the run.
	CompletionTool string `json:"completion_tool,omitzero" check:"max=256,text"`
	// Version of the agent at the executor; nil if it does not say.
	Version *Version `json:"version,omitzero"`
	// ResumedFrom names the run that this one continues (fork, hand-off).
	ResumedFrom string `json:"resumed_from,omitzero"`
	// Handoff is the accepted offer that the run carries out; nil for none.
	Handoff *HandoffSource `json:"handoff,omitzero"`
	// Offer is the data of that offer, for the agent; a fork has the one of its base.
	Offer jsontext.Value `json:"offer,omitzero" content:"large"`
	// Base is the origin of the run if it is a fork of another one; nil for none.
	Base *Base `json:"base,omitzero"`
	// State is the application's own initial state, each key once.
	State  []InitialValue `json:"state,omitzero"`
	Source jsontext.Value `json:"source,omitzero" content:"text"`
	Refs   []Ref          `json:"refs,omitzero"`
	Extra  jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*RunStartedData) EventName() string { return RunStarted }

// From is the point of a takeover.
type From struct {
	Epoch    Epoch    `json:"epoch" check:"min=1"`
	Sequence Sequence `json:"sequence"`
	// Digest of all accepted events up to there, hex.
	Digest string `json:"digest" check:"required,hash"`
}

// RunResumedData opens a new epoch: the run has a new executor. Control event.
type RunResumedData struct {
	// Executor that takes over. Required.
	Executor string `json:"executor" check:"required,name"`
	// Instance of the executor; see [Heartbeat].
	Instance string `json:"instance,omitzero" check:"name"`
	// Reason is claim, request, restart, input, reopen or rewind. Required.
	Reason string `json:"reason" check:"required,oneof=claim|request|restart|input|reopen|rewind"`
	// RequestID makes a repeated takeover request continue the epoch it opened. Required.
	RequestID string `json:"request_id" check:"required,max=256,text"`
	From      From   `json:"from"`
	// To is the record of this run after which it continues, with the head there; only with reason rewind. Later
	// records are superseded.
	To    *Base          `json:"to,omitzero" with:"reason=rewind"`
	Extra jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*RunResumedData) EventName() string { return RunResumed }

// RunWaitingData says that the run waits for a person or a system.
type RunWaitingData struct {
	InterruptID string `json:"interrupt_id" check:"required,max=256,text"`
	// Reason is human_input, tool_approval, external_system, auth, tool_in_doubt (a held call, whose settlement also ends
	// the wait), signal (a signal ends the wait) or timer (it ends when it expires).
	Reason     string `json:"reason" check:"required,oneof=human_input|tool_approval|external_system|auth|tool_in_doubt|signal|timer"`
	Message    string `json:"message,omitzero" content:"text"`
	ToolCallID string `json:"tool_call_id,omitzero" check:"max=256,text" with:"reason=tool_in_doubt"`
	// Occurrence distinguishes calls of the turn that share the id; absent means the call that has begun, else the
	// first requested one.
	Occurrence int `json:"occurrence,omitzero" check:"min=0"`
	// ResponseSchema is a JSON Schema that an answer must satisfy.
	ResponseSchema jsontext.Value `json:"response_schema,omitzero" content:"large"`
	ExpiresAt      string         `json:"expires_at,omitzero" check:"time" with:"reason=timer"`
	// FailedSince is the time of the first failed try, if the wait is for another try, later by the time in which the run
	// could have tried and had no executor.
	FailedSince string         `json:"failed_since,omitzero" check:"time"`
	Refs        []Ref          `json:"refs,omitzero"`
	Extra       jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*RunWaitingData) EventName() string { return RunWaiting }

// RunInputData answers a wait of a run. Control event.
type RunInputData struct {
	InterruptID string `json:"interrupt_id" check:"required,max=256,text"`
	// Status is resolved, cancelled or expired; absent means resolved.
	Status  string         `json:"status,omitzero" check:"oneof=resolved|cancelled|expired"`
	Payload jsontext.Value `json:"payload,omitzero" content:"large"`
	// By is the sender of the request: role and key if the NATS server proved them, such as operator:UBOL…, otherwise
	// the name in the request; see [IsProven]. The same in all control events.
	By string `json:"by,omitzero"`
	// Claimed is the name in the request when By is proven. The same in all control events.
	Claimed string         `json:"claimed,omitzero"`
	Refs    []Ref          `json:"refs,omitzero"`
	Extra   jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*RunInputData) EventName() string { return RunInput }

// RunCancelRequestedData asks the run's executor to stop. Control event.
type RunCancelRequestedData struct {
	By      string         `json:"by,omitzero"`
	Claimed string         `json:"claimed,omitzero"`
	Reason  string         `json:"reason,omitzero" content:"text"`
	Refs    []Ref          `json:"refs,omitzero"`
	Extra   jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*RunCancelRequestedData) EventName() string { return RunCancelRequested }

// RunPausedData says that a pause selects the run: until its next takeover no turn, call or phase may begin. Control event.
type RunPausedData struct {
	By      string `json:"by,omitzero"`
	Claimed string `json:"claimed,omitzero"`
	// Reason of the pause, in clear text.
	Reason string         `json:"reason,omitzero" check:"max=256,text"`
	Extra  jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*RunPausedData) EventName() string { return RunPaused }

// RunOrphanedData says that the run's executor fell silent. Control event.
type RunOrphanedData struct {
	Executor string `json:"executor,omitzero" check:"name"`
	// Instance of the executor that fell silent, when the run's is known.
	Instance string `json:"instance,omitzero" check:"name"`
	// LastSeen is the RFC 3339 time of its last sign of life.
	LastSeen string `json:"last_seen,omitzero" check:"time"`
	// Missed counts the missing heartbeats.
	Missed int64 `json:"missed,omitzero" check:"min=0"`
	// Unheld: the executor is alive, and never held the run. The answer to its claim was lost, or it could not read the
	// run in time, so the claim does not count as one without progress.
	Unheld bool           `json:"unheld,omitzero"`
	Extra  jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*RunOrphanedData) EventName() string { return RunOrphaned }

// RunInterruptedData says that the executor stopped cleanly and left the run to another executor.
type RunInterruptedData struct {
	// Reason is shutdown, preempted, unavailable, budget, paused or waiting: the run needs no executor until it is answered.
	Reason string         `json:"reason,omitzero" check:"oneof=shutdown|preempted|unavailable|budget|paused|waiting"`
	Extra  jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*RunInterruptedData) EventName() string { return RunInterrupted }

// RunEndedData ends a run.
type RunEndedData struct {
	// Status is completed, failed or cancelled. Required.
	Status  string         `json:"status" check:"required,oneof=completed|failed|cancelled"`
	Output  jsontext.Value `json:"output,omitzero" content:"large"`
	Summary string         `json:"summary,omitzero" content:"large"`
	// CompletedBy is the tool call that ended the run under its completion contract.
	CompletedBy string         `json:"completed_by,omitzero" check:"max=256,text"`
	Error       *Error         `json:"error,omitzero"`
	Usage       *Usage         `json:"usage,omitzero"`
	Source      jsontext.Value `json:"source,omitzero" content:"text"`
	Refs        []Ref          `json:"refs,omitzero"`
	Extra       jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*RunEndedData) EventName() string { return RunEnded }

// PhaseStartedData opens a phase of the work.
type PhaseStartedData struct {
	Phase string         `json:"phase" check:"required,max=256,text"`
	Index int64          `json:"index,omitzero"`
	Extra jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*PhaseStartedData) EventName() string { return PhaseStarted }

// PhaseCompletedData closes a phase; completed phases are never rerun on resume.
type PhaseCompletedData struct {
	Phase  string         `json:"phase" check:"required,max=256,text"`
	Index  int64          `json:"index,omitzero"`
	Output jsontext.Value `json:"output,omitzero" content:"large"`
	Refs   []Ref          `json:"refs,omitzero"`
	Extra  jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*PhaseCompletedData) EventName() string { return PhaseCompleted }

// Limits that a run may reach.
const (
	LimitTurns   = "turns"
	LimitTokens  = "tokens"
	LimitTime    = "time"
	LimitContext = "context"
	LimitBudget  = "budget"
)

// LimitReachedData says that a budget ran out.
type LimitReachedData struct {
	// Limit is turns, tokens, time, context or budget.
	Limit   string         `json:"limit" check:"required,oneof=turns|tokens|time|context|budget"`
	Value   jsontext.Value `json:"value,omitzero"`
	Maximum jsontext.Value `json:"maximum,omitzero"`
	Extra   jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*LimitReachedData) EventName() string { return LimitReached }

// ContextCompactedData says that the model continues with a summary of the turns so far.
type ContextCompactedData struct {
	Summary      string         `json:"summary" content:"large" check:"required"`
	ThroughTurn  int32          `json:"through_turn" check:"min=0"`
	TokensBefore int64          `json:"tokens_before,omitzero" check:"min=0"`
	TokensAfter  int64          `json:"tokens_after,omitzero" check:"min=0"`
	Source       jsontext.Value `json:"source,omitzero" content:"text"`
	Refs         []Ref          `json:"refs,omitzero"`
	Extra        jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*ContextCompactedData) EventName() string { return ContextCompacted }

// ArtifactAddedData names a product of the run.
type ArtifactAddedData struct {
	ArtifactID string `json:"artifact_id" check:"required,max=256,text"`
	Name       string `json:"name,omitzero" content:"text"`
	URI        string `json:"uri,omitzero" content:"text"`
	MediaType  string `json:"media_type,omitzero"`
	Size       int64  `json:"size,omitzero" check:"min=0"`
	// Digest is sha256-<hex> of the content: of a text, of the bytes in a base64 text, or of any other value's JSON.
	Digest string `json:"digest,omitzero" content:"text"`
	// Content carries a small artifact itself; a large one moves to the blob store.
	Content jsontext.Value `json:"content,omitzero" content:"large"`
	Refs    []Ref          `json:"refs,omitzero"`
	Extra   jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*ArtifactAddedData) EventName() string { return ArtifactAdded }

// CheckpointMarkedData pins this point of the run under a name, or says that another run is forked from this one.
type CheckpointMarkedData struct {
	// Name of the point, or the run id of the fork. Required.
	Name string `json:"name" check:"required,max=256,text"`
	// Fork: the name is the id of a run whose base is this run. A fork marks its base before its own first event, and
	// the base is kept as long as the fork.
	Fork bool `json:"fork,omitzero"`
	// By is the sender of the mark if it was not the run's executor: an operator's mark is a control event.
	By      string         `json:"by,omitzero"`
	Claimed string         `json:"claimed,omitzero"`
	Extra   jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*CheckpointMarkedData) EventName() string { return CheckpointMarked }

// ErrorRaisedData records an error that did not end the run.
type ErrorRaisedData struct {
	Error Error `json:"error"`
	// Scope is run, turn or tool; absent means run.
	Scope string         `json:"scope,omitzero" check:"oneof=run|turn|tool"`
	Turn  int32          `json:"turn,omitzero" check:"min=0"`
	Refs  []Ref          `json:"refs,omitzero"`
	Extra jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*ErrorRaisedData) EventName() string { return ErrorRaised }
