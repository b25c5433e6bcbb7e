package schema

import "github.com/go-json-experiment/json/jsontext"

// HandoffTests counts test results of a completed file.
type HandoffTests struct {
	Passed  int64 `json:"passed" check:"min=0"`
	Skipped int64 `json:"skipped,omitzero" check:"min=0"`
	Failed  int64 `json:"failed,omitzero" check:"min=0"`
}

// HandoffCompleted is one finished or partly finished file of a hand-off.
type HandoffCompleted struct {
	File string `json:"file" content:"text" check:"required,text"`
	// Status is done or partial.
	Status string         `json:"status" check:"required,oneof=done|partial"`
	Tests  *HandoffTests  `json:"tests,omitzero"`
	Notes  string         `json:"notes,omitzero" content:"text"`
	Extra  jsontext.Value `json:",embed"`
}

// HandoffRemaining is one open piece of work of a hand-off.
type HandoffRemaining struct {
	File             string `json:"file,omitzero" content:"text" check:"text"`
	Description      string `json:"description" content:"text" check:"required"`
	ReferencePattern string `json:"reference_pattern,omitzero,case:ignore" content:"text"`
	// Priority is high, normal or low; absent means normal.
	Priority string         `json:"priority,omitzero" check:"oneof=high|normal|low"`
	Extra    jsontext.Value `json:",embed"`
}

// HandoffContext is what the next agent must know.
type HandoffContext struct {
	Decisions     []string       `json:"decisions,omitzero" content:"text"`
	Patterns      []string       `json:"patterns,omitzero" content:"text"`
	Issues        []string       `json:"issues,omitzero" content:"text"`
	FilesModified []string       `json:"files_modified,omitzero,case:ignore" content:"text" each:"text"`
	Extra         jsontext.Value `json:",embed"`
}

// HandoffSource names the offer that a run carries out.
type HandoffSource struct {
	// Run that offered. Required.
	Run string `json:"run" check:"required,name"`
	// HandoffID of the offer. Required.
	HandoffID string `json:"handoff_id" check:"required,max=256,text"`
	// OfferHash is the content hash of the accepted offer, hex. Required.
	OfferHash string         `json:"offer_hash" check:"required,hash"`
	Extra     jsontext.Value `json:",embed"`
}

// HandoffOfferedData offers the run's work to another agent, or to a continuation by the same agent.
type HandoffOfferedData struct {
	HandoffID string `json:"handoff_id,omitzero,case:ignore" check:"max=256,text"`
	// Kind is continuation (the default) or transfer.
	Kind string `json:"kind,omitzero" check:"oneof=continuation|transfer"`
	// Reason is threshold_critical, task_complete or error. Required.
	Reason    string             `json:"reason" check:"required,oneof=threshold_critical|task_complete|error"`
	Completed []HandoffCompleted `json:"completed,omitzero"`
	Remaining []HandoffRemaining `json:"remaining,omitzero"`
	Context   *HandoffContext    `json:"context,omitzero"`
	NextAgent string             `json:"next_agent,omitzero,case:ignore" check:"name"`
	// CreatedAt is when the hand-off was written, RFC 3339, and AgentID the agent or process that wrote it. Both are
	// claims of the writer; the event has its own time and source.
	CreatedAt string `json:"created_at,omitzero,case:ignore" check:"time"`
	AgentID   string `json:"agent_id,omitzero,case:ignore" check:"max=256,text"`
	// SizeChars is the size of the hand-off's text as counted by its writer; if the text itself is longer, that
	// counts. Above [HandoffSizeWarning] the run is flagged.
	SizeChars int64          `json:"size_chars,omitzero,case:ignore" check:"min=0"`
	Refs      []Ref          `json:"refs,omitzero"`
	Extra     jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*HandoffOfferedData) EventName() string { return HandoffOffered }

// HandoffSizeWarning is the number of characters above which a hand-off is flagged: a longer one costs its reader
// more context than it saves.
const HandoffSizeWarning = 4000

// HandoffAcceptedData says that the hand-off was accepted. Control event, like the two that follow.
type HandoffAcceptedData struct {
	HandoffID string `json:"handoff_id" check:"required,max=256,text"`
	By        string `json:"by,omitzero"`
	Claimed   string `json:"claimed,omitzero"`
	ChildRun  string `json:"child_run,omitzero" check:"name"`
	// OfferHash is the content hash of the accepted offer, hex; if set, it must match the offer.
	OfferHash string         `json:"offer_hash,omitzero" check:"hash"`
	Reason    string         `json:"reason,omitzero" content:"text"`
	Refs      []Ref          `json:"refs,omitzero"`
	Extra     jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*HandoffAcceptedData) EventName() string { return HandoffAccepted }

// HandoffDeclinedData says that the hand-off was declined.
type HandoffDeclinedData struct {
	HandoffID string         `json:"handoff_id" check:"required,max=256,text"`
	By        string         `json:"by,omitzero"`
	Claimed   string         `json:"claimed,omitzero"`
	Reason    string         `json:"reason,omitzero" content:"text"`
	ChildRun  string         `json:"child_run,omitzero" check:"name"`
	Refs      []Ref          `json:"refs,omitzero"`
	Extra     jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*HandoffDeclinedData) EventName() string { return HandoffDeclined }

// HandoffClosedData says that the hand-off is over.
type HandoffClosedData struct {
	HandoffID string         `json:"handoff_id" check:"required,max=256,text"`
	By        string         `json:"by,omitzero"`
	Claimed   string         `json:"claimed,omitzero"`
	Reason    string         `json:"reason,omitzero" content:"text"`
	ChildRun  string         `json:"child_run,omitzero" check:"name"`
	Refs      []Ref          `json:"refs,omitzero"`
	Extra     jsontext.Value `json:",embed"`
}

// EventName implements [Data].
func (*HandoffClosedData) EventName() string { return HandoffClosed }
