package schema

import (
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Reason says why an event was rejected. It is a token of the dead letter's subject and a label of
// metrics, so the set is closed.
type Reason string

// Reasons of dead letters.
const (
	// ReasonNotCloudEvent: the message is no CloudEvent in any accepted form.
	ReasonNotCloudEvent Reason = "not_cloudevent"
	// ReasonInvalidAttribute: a CloudEvents attribute is missing, malformed or contradicts the subject.
	ReasonInvalidAttribute Reason = "invalid_attribute"
	// ReasonInvalidData: the data breaks the schema of its type.
	ReasonInvalidData Reason = "invalid_data"
	// ReasonFenced: the epoch is below the run's; an older executor is still writing.
	ReasonFenced Reason = "fenced"
	// ReasonEpochAhead: the epoch is above the run's, and no takeover opened it.
	ReasonEpochAhead Reason = "epoch_ahead"
	// ReasonGap: the sequence is ahead of the next; events before it are missing.
	ReasonGap Reason = "gap"
	// ReasonLost marks gaps, never dead letters: the server stored messages that neither log nor segments have any
	// more.
	ReasonLost Reason = "lost"
	// ReasonForked: another event has this epoch and sequence.
	ReasonForked Reason = "forked"
	// ReasonStale: a sequence so old that a duplicate cannot be told from a fork.
	ReasonStale Reason = "stale"
	// ReasonRunEnded: the run has ended, and the event's type may not follow its end.
	ReasonRunEnded Reason = "run_ended"
	// ReasonAlreadyStarted: a second, different run.started.
	ReasonAlreadyStarted Reason = "already_started"
	// ReasonNotControl: a type of the daemon or operator came from an executor, or the other way round.
	ReasonNotControl Reason = "not_control"
	// ReasonStaleTakeover: a run.resumed whose from does not match the fold.
	ReasonStaleTakeover Reason = "stale_takeover"
	// ReasonUnsigned: a control event that no key of the fleet signed, in a fleet with keys. See [Keys].
	ReasonUnsigned Reason = "unsigned"
	// ReasonMisplaced: a control event signed for another place in the run: it is repeated, or events before it are
	// missing.
	ReasonMisplaced Reason = "misplaced"
	// ReasonWrongShard: the event was published in a shard that its run does not belong to, where readers do not look
	// for it.
	ReasonWrongShard Reason = "wrong_shard"
	// ReasonTurnOrder: a turn number that does not increase.
	ReasonTurnOrder Reason = "turn_order"
	// ReasonUnknownCall: a result, failure or settlement of a call that is not recorded.
	ReasonUnknownCall Reason = "unknown_call"
	// ReasonCallOpen: the call is already open.
	ReasonCallOpen Reason = "call_open"
	// ReasonNotAllowed: the begin, the result or the permission of a call that was denied, or that a person is still asked about.
	ReasonNotAllowed Reason = "not_allowed"
	// ReasonNotInDoubt: a settlement of a call that is not in doubt.
	ReasonNotInDoubt Reason = "not_in_doubt"
	// ReasonUnknownInterrupt: an input for an interrupt the run does not wait for.
	ReasonUnknownInterrupt Reason = "unknown_interrupt"
	// ReasonUnknownHandoff: an answer to an offer that is not open.
	ReasonUnknownHandoff Reason = "unknown_handoff"
	// ReasonHandoffTaken: an accepted offer is accepted again, declined or repeated, or the hash is not that of the
	// offer.
	ReasonHandoffTaken Reason = "handoff_taken"
	// ReasonSignal: a signal with the id of an open one, or the consumption of one that is not open.
	ReasonSignal Reason = "signal"
	// ReasonPhaseCompleted: a completed phase begins again.
	ReasonPhaseCompleted Reason = "phase_completed"
	// ReasonTooMany: a cap of the checkpoint is reached (open calls, calls of a turn, marks, interrupts).
	ReasonTooMany Reason = "too_many"
	// ReasonErased: the run was removed. The dead letter does not have the event's content.
	ReasonErased Reason = "erased"
)

// Reasons lists every reason of a dead letter.
func Reasons() []Reason {
	return []Reason{
		ReasonNotCloudEvent, ReasonInvalidAttribute, ReasonInvalidData, ReasonFenced, ReasonEpochAhead,
		ReasonGap, ReasonForked, ReasonStale, ReasonRunEnded, ReasonAlreadyStarted,
		ReasonNotControl, ReasonStaleTakeover, ReasonUnsigned, ReasonMisplaced, ReasonWrongShard, ReasonTurnOrder, ReasonUnknownCall, ReasonCallOpen, ReasonNotAllowed,
		ReasonNotInDoubt, ReasonUnknownInterrupt, ReasonUnknownHandoff, ReasonHandoffTaken, ReasonSignal, ReasonPhaseCompleted, ReasonTooMany, ReasonErased,
	}
}

// ErrNotCloudEvent is returned by [Decode] for a message that is no CloudEvent in any accepted form. Send ce-*
// headers, or a JSON envelope with Content-Type application/cloudevents+json.
var ErrNotCloudEvent = errors.New("not a CloudEvent: no ce-specversion header, no application/cloudevents+json and no JSON body with specversion")

// ErrCorrupt is returned when stored bytes (a checkpoint, a segment, a frame) do not match their own digest or form.
// Rebuild them from the log.
var ErrCorrupt = errors.New("corrupt stored data")

// ErrFormat is returned for a stored value whose format version this binary does not know. Use a newer binary;
// nothing was changed.
var ErrFormat = errors.New("unknown format version")

// AttributeError says which CloudEvents attribute is missing or malformed.
type AttributeError struct {
	// Name of the attribute.
	Name string
	// Problem is the description for people.
	Problem string
}

// Error names the attribute and the problem.
func (e *AttributeError) Error() string {
	return fmt.Sprintf("CloudEvents attribute %s: %s", e.Name, e.Problem)
}

// DataError says where an event's data breaks the schema of its type.
type DataError struct {
	// Event is the event's name, such as tool.called.
	Event string
	// Path is the JSON Pointer of the wrong value; empty for the whole.
	Path string
	// Problem is the description for people.
	Problem string
}

// Error names the event, the path and the problem.
func (e *DataError) Error() string {
	at := e.Path
	if at == "" {
		at = "/"
	}
	return fmt.Sprintf("data of %s at %s: %s", e.Event, at, e.Problem)
}

// ServiceError is the body of an error reply. The client SDK returns it unchanged.
type ServiceError struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	// Hint is the next step.
	Hint    string         `json:"hint,omitzero"`
	Details jsontext.Value `json:"details,omitzero"`
	Extra   jsontext.Value `json:",embed"`
}

// Fail returns an error reply with a code, the next step, and a message.
func Fail(code Code, hint, format string, args ...any) *ServiceError {
	return &ServiceError{Code: code, Message: fmt.Sprintf(format, args...), Hint: hint}
}

// With adds details, which must be encodable as JSON, and returns the error.
func (e *ServiceError) With(details any) *ServiceError {
	e.Details, _ = json.Marshal(details, json.Deterministic(true)) // without details it says the same in words
	return e
}

// Error is the message, the code and the hint.
func (e *ServiceError) Error() string {
	s := fmt.Sprintf("%s (%s)", e.Message, e.Code)
	if e.Hint != "" {
		s += ": " + e.Hint
	}
	return s
}
