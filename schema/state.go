package schema

import (
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// State is the sum of all of a run's events: the head, the conversation, the calls with their results. A recovery
// returns it to the next executor. The zero State is the state before the first event.
type State struct {
	// Head is the zero head in the answer of the view state.
	Head Head `json:"head,omitzero"`
	// Started is the data of run.started; nil when the run was opened implicitly.
	Started *RunStartedData `json:"started,omitzero"`
	// Messages in order, without those that a repeated turn superseded.
	Messages []StateMessage `json:"messages,omitzero"`
	// Turns in order.
	Turns []StateTurn `json:"turns,omitzero"`
	// Calls in the order they were recorded.
	Calls []Call `json:"calls,omitzero"`
	// Phases in order, with their outputs.
	Phases      []StatePhase      `json:"phases,omitzero"`
	Compactions []StateCompaction `json:"compactions,omitzero"`
	// Compacted lists what the latest compaction replaced by a summary; only in [State.View].
	Compacted *Compacted         `json:"compacted,omitzero"`
	Waits     []StateWait        `json:"waits,omitzero"`
	Handoffs  []StateHandoff     `json:"handoffs,omitzero"`
	Artifacts []StateArtifact    `json:"artifacts,omitzero"`
	Errors    []ErrorRaisedData  `json:"errors,omitzero"`
	Limits    []LimitReachedData `json:"limits,omitzero"`
	Decisions []StateDecision    `json:"decisions,omitzero"`
	// Takeovers are the epochs after the first, in order.
	Takeovers []RunResumedData `json:"takeovers,omitzero"`
	Ended     *RunEndedData    `json:"ended,omitzero"`
	// Values are the application's own state, by key.
	Values []StateValue `json:"values,omitzero"`
	// Signals in the order in which they were sent.
	Signals []StateSignal `json:"signals,omitzero"`
	// Unknown are events of types this version does not know.
	Unknown []UnknownEvent `json:"unknown,omitzero"`
	// history is what a rewind needs.
	history history
	// consumed counts the signals before the first open one.
	consumed int
	// open is set by [State.Open].
	open func(e *Event, data Data)
}

// StateMessage is a message and where it came from.
type StateMessage struct {
	Message
	// Turn it belongs to; 0 outside any turn.
	Turn int32 `json:"turn,omitzero"`
	// EventID, Epoch and Time of its event. EventID is empty in [State.View] for results that follow the message with
	// the calls, and for the summary of a compaction.
	EventID string `json:"event_id,omitzero"`
	Epoch   Epoch  `json:"epoch,omitzero"`
	Time    string `json:"time,omitzero"`
	// Refs name parts that are in the blob store; paths are relative to the message.
	Refs []Ref `json:"refs,omitzero"`
}

// StateTurn is one turn.
type StateTurn struct {
	Turn    int32  `json:"turn"`
	Purpose string `json:"purpose,omitzero"`
	// Epoch in which it was last started.
	Epoch Epoch `json:"epoch,omitzero"`
	// Attempts counts the times it was started.
	Attempts  int    `json:"attempts"`
	StartedAt string `json:"started_at,omitzero"`
	// Version of the agent since this turn; nil if it is that of the turn before.
	Version *Version `json:"version,omitzero"`
	// Answer is the model's answer from turn.answered; nil if it was not written.
	Answer *StateAnswer `json:"answer,omitzero"`
	// Ended is the data of turn.ended without its messages; nil if it was not written.
	Ended *TurnEndedData `json:"ended,omitzero"`
	// EndedAt is the time of turn.ended, or of the last outcome of the answer's calls; empty while the turn is open.
	EndedAt string `json:"ended_at,omitzero"`
}

// StateAnswer is turn.answered without its message and calls.
type StateAnswer struct {
	FinishReasons []string       `json:"finish_reasons,omitzero"`
	ResponseID    string         `json:"response_id,omitzero"`
	Model         string         `json:"model,omitzero"`
	Usage         *Usage         `json:"usage,omitzero"`
	DurationMS    int64          `json:"duration_ms,omitzero"`
	Source        jsontext.Value `json:"source,omitzero" content:"large"`
	Refs          []Ref          `json:"refs,omitzero"`
	Extra         jsontext.Value `json:",embed"`
}

// Usage is the usage of the turn's model call, as far as it is known.
func (t *StateTurn) Usage() *Usage {
	switch {
	case t.Answer != nil:
		return t.Answer.Usage
	case t.Ended != nil:
		return t.Ended.Usage
	}
	return nil
}

// Outcome of a call.
type Outcome string

// Outcomes.
const (
	OutcomeOpen      Outcome = "open"
	OutcomeReturned  Outcome = "returned"
	OutcomeFailed    Outcome = "failed"
	OutcomeAbandoned Outcome = "abandoned"
)

// Call is a tool call and its outcome.
type Call struct {
	CallKey
	Name           string         `json:"name"`
	Arguments      jsontext.Value `json:"arguments,omitzero" content:"large"`
	Replay         Replay         `json:"replay,omitzero"`
	IdempotencyKey string         `json:"idempotency_key,omitzero"`
	VerifySubject  string         `json:"verify_subject,omitzero"`
	SideEffect     string         `json:"side_effect,omitzero"`
	TimeoutMS      int64          `json:"timeout_ms,omitzero"`
	Source         jsontext.Value `json:"source,omitzero" content:"large"`
	Outcome        Outcome        `json:"outcome"`
	// Result of a returned call, or of its settlement.
	Result jsontext.Value `json:"result,omitzero" content:"large"`
	// IsError is the tool's own statement; nil if it made none.
	IsError      *bool          `json:"is_error,omitzero"`
	ResultSource jsontext.Value `json:"result_source,omitzero" content:"large"`
	Error        *Error         `json:"error,omitzero"`
	// Settlements of the call while it was in doubt, in order.
	Settlements []Settlement `json:"settlements,omitzero"`
	// InDoubt as in [OpenCall].
	InDoubt bool `json:"in_doubt,omitzero"`
	// Late is the result a fenced executor delivered while the call was in doubt.
	Late *LateResult `json:"late,omitzero"`
	// Refs name fields in the blob store: /arguments or /result.
	Refs     []Ref  `json:"refs,omitzero"`
	CalledAt string `json:"called_at,omitzero"`
	// BegunAt is when a call that an answer requested began last; empty if it has not begun, or needs no begin.
	BegunAt    string `json:"begun_at,omitzero"`
	ClosedAt   string `json:"closed_at,omitzero"`
	Epoch      Epoch  `json:"epoch,omitzero"`
	DurationMS int64  `json:"duration_ms,omitzero"`
}

// LateResult is a fenced executor's evidence about a call in doubt.
type LateResult struct {
	EventID string         `json:"event_id"`
	Epoch   Epoch          `json:"epoch"`
	Result  jsontext.Value `json:"result,omitzero" content:"large"`
	IsError *bool          `json:"is_error,omitzero"`
	Source  jsontext.Value `json:"source,omitzero" content:"large"`
	Error   *Error         `json:"error,omitzero"`
	Refs    []Ref          `json:"refs,omitzero"`
}

// StatePhase is one phase; a completed one is never run again.
type StatePhase struct {
	Phase     string         `json:"phase"`
	Index     int64          `json:"index,omitzero"`
	Attempts  int            `json:"attempts"`
	Completed bool           `json:"completed,omitzero"`
	Output    jsontext.Value `json:"output,omitzero" content:"large"`
	Refs      []Ref          `json:"refs,omitzero"`
}

// StateCompaction is a compaction and its place: before Messages[At].
type StateCompaction struct {
	ContextCompactedData
	At   int    `json:"at"`
	Time string `json:"time,omitzero"`
}

// StateArtifact is an artifact and its origin.
type StateArtifact struct {
	ArtifactAddedData
	// Turn that was open; 0 outside any turn.
	Turn int32  `json:"turn,omitzero"`
	Time string `json:"time,omitzero"`
}

// StateWait is a wait of the run, with its answer if there is one.
type StateWait struct {
	RunWaitingData
	// Turn of the call that it is about; 0 if it is about none.
	Turn  int32         `json:"turn,omitzero"`
	Input *RunInputData `json:"input,omitzero"`
}

// CallKey names the call that the wait is about. Its ToolCallID is empty if it is about none.
func (w *StateWait) CallKey() CallKey {
	return CallKey{Turn: w.Turn, ToolCallID: w.ToolCallID, Occurrence: max(w.Occurrence, 1)}
}

// StateDecision is a decision about a call, and its origin.
type StateDecision struct {
	ToolDecidedData
	// Turn of the call, and the epoch whose executor decided.
	Turn  int32  `json:"turn"`
	Epoch Epoch  `json:"epoch,omitzero"`
	Time  string `json:"time,omitzero"`
}

// CallKey names the call of the decision.
func (d *StateDecision) CallKey() CallKey {
	return CallKey{Turn: d.Turn, ToolCallID: d.ToolCallID, Occurrence: max(d.Occurrence, 1)}
}

// StateHandoff is a hand-off and its status: offered, accepted, declined or closed.
type StateHandoff struct {
	HandoffID string              `json:"handoff_id"`
	Status    string              `json:"status"`
	Offered   *HandoffOfferedData `json:"offered,omitzero"`
	// By and Claimed as in the control event.
	By      string `json:"by,omitzero"`
	Claimed string `json:"claimed,omitzero"`
	Reason  string `json:"reason,omitzero"`
	// Refs mark the reason as encrypted.
	Refs     []Ref  `json:"refs,omitzero"`
	ChildRun string `json:"child_run,omitzero"`
}

// UnknownEvent is an event of a type this version does not know, unchanged.
type UnknownEvent struct {
	ID   string         `json:"id"`
	Type string         `json:"type"`
	Time string         `json:"time,omitzero"`
	Data jsontext.Value `json:"data,omitzero"`
	// Raw is data that is not JSON.
	Raw []byte `json:"raw,omitzero"`
}

// Call returns the call with the key, or nil.
func (s *State) Call(key CallKey) *Call {
	if i := s.callAt(key); i >= 0 {
		return &s.Calls[i]
	}
	return nil
}

// callAt returns the index of the call with the key, or -1.
func (s *State) callAt(key CallKey) int {
	for i := range slices.Backward(s.Calls) {
		if s.Calls[i].CallKey == key {
			return i
		}
	}
	return -1
}

// amendCall returns the call with the key for the current record to change, or nil.
func (s *State) amendCall(key CallKey) *Call {
	if i := s.callAt(key); i >= 0 {
		return amend(s, callsOf, i)
	}
	return nil
}
