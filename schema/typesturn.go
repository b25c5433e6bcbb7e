package schema

import "github.com/go-json-experiment/json/jsontext"

// TurnStartedData opens a turn: one model call and the tool calls that it requests.
type TurnStartedData struct {
	// Turn counts from 1 and increases. Required.
	Turn int32 `json:"turn" check:"min=1"`
	// Messages that are new to the model.
	Messages []Message `json:"messages,omitzero"`
	// Signals are the ids of open signals in the messages. The answer of the turn consumes them.
	Signals []string `json:"signals,omitzero" check:"max=64" each:"required,max=256,text"`
	// Purpose is work (the default) or recovery.
	Purpose string `json:"purpose,omitzero" check:"oneof=work|recovery"`
	// Version of the agent, if it is another one than that before the turn.
	Version *Version       `json:"version,omitzero"`
	Refs    []Ref          `json:"refs,omitzero"`
	Extra   jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*TurnStartedData) EventName() string { return TurnStarted }

// TurnAnsweredData is the model's answer: its message and the calls that it requests, in one event, so that no crash
// separates them. The turn is over once each of the calls has an outcome, or at once if there are none.
type TurnAnsweredData struct {
	// Turn of the answer, from 1. Required. It is opened if turn.started did not open it.
	Turn int32 `json:"turn" check:"min=1"`
	// Message of the model, with the role assistant. Required. Its parts of type tool_call name calls of the answer.
	Message Message `json:"message"`
	// Calls that the model requests, in its order; see [RequestedCall].
	Calls []RequestedCall `json:"calls,omitzero"`
	// FinishReasons from the provider; never invented.
	FinishReasons []string `json:"finish_reasons,omitzero"`
	ResponseID    string   `json:"response_id,omitzero"`
	Model         string   `json:"model,omitzero"`
	Usage         *Usage   `json:"usage,omitzero"`
	// DurationMS is how long the model took.
	DurationMS int64          `json:"duration_ms,omitzero" check:"min=0"`
	Source     jsontext.Value `json:"source,omitzero" content:"large"`
	Refs       []Ref          `json:"refs,omitzero"`
	Extra      jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*TurnAnsweredData) EventName() string { return TurnAnswered }

// RequestedCall is a call that an answer requests. Until tool.called begins it, it has not run: a call with the
// replay hold or verify must begin before its tool runs, one that is pure or idempotent need not.
type RequestedCall struct {
	// ToolCallID is the model's id of the call; models use them more than once. Required.
	ToolCallID string `json:"tool_call_id" check:"required,max=256,text"`
	// Occurrence distinguishes calls of the turn that share the id; absent means the next.
	Occurrence int `json:"occurrence,omitzero" check:"min=0"`
	// Name of the tool. Required.
	Name string `json:"name" content:"name" check:"required,max=256,text"`
	// Arguments from the model: an object, or the provider's string unchanged.
	Arguments jsontext.Value `json:"arguments,omitzero" content:"large"`
	// Replay policy; absent means hold.
	Replay         Replay `json:"replay,omitzero" check:"oneof=pure|idempotent|verify|hold"`
	IdempotencyKey string `json:"idempotency_key,omitzero"`
	VerifySubject  string `json:"verify_subject,omitzero" check:"max=256,text" with:"replay=verify"`
	SideEffect     string `json:"side_effect,omitzero" content:"text"`
	// TimeoutMS is the tool's time limit; 0 means none.
	TimeoutMS int64 `json:"timeout_ms,omitzero" check:"min=0"`
	// Error closes the call when it is recorded: it cannot be run, or exceeds a limit. The model gets the error.
	Error  *Error         `json:"error,omitzero"`
	Source jsontext.Value `json:"source,omitzero" content:"large"`
	Extra  jsontext.Value `json:",embed"`
}

// TurnEndedData closes a turn: of an executor that does not write turn.answered, or early. Requested calls that have
// not begun are abandoned.
type TurnEndedData struct {
	// Turn that ends. Required.
	Turn int32 `json:"turn" check:"min=1"`
	// Messages of the turn that were not published yet.
	Messages []Message `json:"messages,omitzero"`
	// Usage of a model that gave no answer. It is ignored in an answered turn.
	Usage *Usage         `json:"usage,omitzero"`
	Error *Error         `json:"error,omitzero"`
	Refs  []Ref          `json:"refs,omitzero"`
	Extra jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*TurnEndedData) EventName() string { return TurnEnded }

// MessageAddedData adds one message to the conversation.
type MessageAddedData struct {
	Message Message        `json:"message"`
	Refs    []Ref          `json:"refs,omitzero"`
	Extra   jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*MessageAddedData) EventName() string { return MessageAdded }

// ToolCalledData begins a tool call, before the tool runs: a requested call, or one that it records itself. For a
// requested call, omitted fields keep the answer's values, and the stricter of two replay policies counts.
type ToolCalledData struct {
	// ToolCallID is the model's id of the call; models use them more than once. Required.
	ToolCallID string `json:"tool_call_id" check:"required,max=256,text"`
	// Occurrence distinguishes calls of the turn that share the id; absent means the first requested one, else the
	// next.
	Occurrence int `json:"occurrence,omitzero" check:"min=0"`
	// Name of the tool. Required.
	Name string `json:"name" content:"name" check:"required,max=256,text"`
	// Requested records a call that no answer requested without beginning it, because a decision comes first. Another
	// tool.called begins it.
	Requested bool `json:"requested,omitzero"`
	// Arguments from the model: an object, or the provider's string unchanged.
	Arguments jsontext.Value `json:"arguments,omitzero" content:"large"`
	// Replay policy; absent means hold.
	Replay         Replay `json:"replay,omitzero" check:"oneof=pure|idempotent|verify|hold"`
	IdempotencyKey string `json:"idempotency_key,omitzero"`
	VerifySubject  string `json:"verify_subject,omitzero" check:"max=256,text" with:"replay=verify"`
	SideEffect     string `json:"side_effect,omitzero" content:"text"`
	// TimeoutMS is the tool's time limit; 0 means none.
	TimeoutMS int64          `json:"timeout_ms,omitzero" check:"min=0"`
	Source    jsontext.Value `json:"source,omitzero" content:"large"`
	Refs      []Ref          `json:"refs,omitzero"`
	Extra     jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*ToolCalledData) EventName() string { return ToolCalled }

// ToolReturnedData records a tool's result.
type ToolReturnedData struct {
	ToolCallID string `json:"tool_call_id" check:"required,max=256,text"`
	// Occurrence distinguishes calls of the turn that share the id; absent means the one that has begun, else the
	// first. The same in tool.failed and tool.settled.
	Occurrence int            `json:"occurrence,omitzero" check:"min=0"`
	Result     jsontext.Value `json:"result,omitzero" content:"large"`
	// IsError is the tool's own statement that the result is an error; absent is not the same as false.
	IsError *bool `json:"is_error,omitzero"`
	// Attempt counts the executions of the call from 1; absent means 1.
	Attempt    int64          `json:"attempt,omitzero" check:"min=0"`
	DurationMS int64          `json:"duration_ms,omitzero" check:"min=0"`
	Source     jsontext.Value `json:"source,omitzero" content:"large"`
	Refs       []Ref          `json:"refs,omitzero"`
	Extra      jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*ToolReturnedData) EventName() string { return ToolReturned }

// ToolFailedData records that a tool did not give a result.
type ToolFailedData struct {
	ToolCallID string         `json:"tool_call_id" check:"required,max=256,text"`
	Occurrence int            `json:"occurrence,omitzero" check:"min=0"`
	Error      Error          `json:"error"`
	Attempt    int64          `json:"attempt,omitzero" check:"min=0"`
	DurationMS int64          `json:"duration_ms,omitzero" check:"min=0"`
	Refs       []Ref          `json:"refs,omitzero"`
	Extra      jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*ToolFailedData) EventName() string { return ToolFailed }

// ToolDecidedData records a decision of a policy or a person about a call.
type ToolDecidedData struct {
	ToolCallID string `json:"tool_call_id" check:"required,max=256,text"`
	// Occurrence distinguishes calls of the turn that share the id; absent means the call that has begun, else the
	// first requested one.
	Occurrence int `json:"occurrence,omitzero" check:"min=0"`
	// Decision is allow, deny or ask.
	Decision string `json:"decision" check:"required,oneof=allow|deny|ask"`
	// Mode is enforce (the default), or observe for a decision that is only recorded: the call runs regardless.
	Mode   string `json:"mode,omitzero" check:"oneof=enforce|observe"`
	Policy string `json:"policy,omitzero"`
	Reason string `json:"reason,omitzero" content:"text"`
	// By is the executor or, as the executor states, the approver. A person's answer and its sender are in run.input.
	By    string         `json:"by,omitzero"`
	Refs  []Ref          `json:"refs,omitzero"`
	Extra jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*ToolDecidedData) EventName() string { return ToolDecided }

// Binds reports whether the decision is binding for the call. An observed decision and the note that a call begins
// are not.
func (d *ToolDecidedData) Binds() bool { return d.Mode != ModeObserve && d.Policy != BeginPolicy }

// ToolSettledData settles a call in doubt before any further step. An operator's rerun makes the call requested
// again; tool.called begins it.
type ToolSettledData struct {
	ToolCallID string     `json:"tool_call_id" check:"required,max=256,text"`
	Occurrence int        `json:"occurrence,omitzero" check:"min=0"`
	How        Settlement `json:"how" check:"required,oneof=rerun|verified|adopted|abandoned|decided"`
	// Result for verified and decided; for adopted, absent means the recorded late result.
	Result  jsontext.Value `json:"result,omitzero" content:"large"`
	IsError *bool          `json:"is_error,omitzero"`
	By      string         `json:"by,omitzero"`
	Claimed string         `json:"claimed,omitzero"`
	Source  jsontext.Value `json:"source,omitzero" content:"large"`
	Refs    []Ref          `json:"refs,omitzero"`
	Extra   jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*ToolSettledData) EventName() string { return ToolSettled }
