package schema

import (
	"maps"
	"reflect"
	"slices"
)

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
	RunStarted: {data: (*RunStartedData)(nil)},
	RunResumed: {data: (*RunResumedData)(nil), control: true, afterEnd: true},
	RunWaiting: {data: (*RunWaitingData)(nil)},
	RunInput: {data: (*RunInputData)(nil), control: true},
	RunCancelRequested: {data: (*RunCancelRequestedData)(nil), control: true},
	RunOrphaned: {data: (*RunOrphanedData)(nil), control: true},
	RunInterrupted: {data: (*RunInterruptedData)(nil)},
	RunEnded: {data: (*RunEndedData)(nil)},
	TurnStarted: {data: (*TurnStartedData)(nil)},
	TurnAnswered: {data: (*TurnAnsweredData)(nil)},
	TurnEnded: {data: (*TurnEndedData)(nil)},
	MessageAdded: {data: (*MessageAddedData)(nil)},
	ToolCalled: {data: (*ToolCalledData)(nil)},
	ToolReturned: {data: (*ToolReturnedData)(nil)},
	ToolFailed: {data: (*ToolFailedData)(nil)},
	ToolDecided: {data: (*ToolDecidedData)(nil)},
	ToolSettled: {data: (*ToolSettledData)(nil)},
	PhaseStarted: {data: (*PhaseStartedData)(nil)},
	PhaseCompleted: {data: (*PhaseCompletedData)(nil)},
	LimitReached: {data: (*LimitReachedData)(nil)},
	StateSet: {data: (*StateSetData)(nil)},
	StateDeleted: {data: (*StateDeletedData)(nil)},
	SignalSent: {data: (*SignalSentData)(nil), control: true},
	SignalConsumed: {data: (*SignalConsumedData)(nil)},
	ContextCompacted: {data: (*ContextCompactedData)(nil)},
	HandoffOffered: {data: (*HandoffOfferedData)(nil), afterEnd: true},
	HandoffAccepted: {data: (*HandoffAcceptedData)(nil), control: true, afterEnd: true},
	HandoffDeclined: {data: (*HandoffDeclinedData)(nil), control: true, afterEnd: true},
	HandoffClosed: {data: (*HandoffClosedData)(nil), control: true, afterEnd: true},
	ArtifactAdded: {data: (*ArtifactAddedData)(nil)},
	CheckpointMarked: {data: (*CheckpointMarkedData)(nil), afterEnd: true},
	ErrorRaised: {data: (*ErrorRaisedData)(nil)},
}

// EventNames are the names of the events of the vocabulary that a run's log may have, sorted.
func EventNames() []string { return slices.Sorted(maps.Keys(vocabulary)) }

// NewData returns empty data for an event name of the vocabulary, or nil.
func NewData(name string) Data {
	known, ok := vocabulary[name]
	if !ok {
		return nil
	}
	data, _ := reflect.TypeAssert[Data](reflect.New(reflect.TypeOf(known.data).Elem()))
	return data
}

// EventName implements [Data].
func (*RunStartedData) EventName() string { return RunStarted }

// EventName implements [Data].
func (*RunResumedData) EventName() string { return RunResumed }

// EventName implements [Data].
func (*RunWaitingData) EventName() string { return RunWaiting }

// EventName implements [Data].
func (*RunInputData) EventName() string { return RunInput }

// EventName implements [Data].
func (*RunCancelRequestedData) EventName() string { return RunCancelRequested }

// EventName implements [Data].
func (*RunOrphanedData) EventName() string { return RunOrphaned }

// EventName implements [Data].
func (*RunInterruptedData) EventName() string { return RunInterrupted }

// EventName implements [Data].
func (*RunEndedData) EventName() string { return RunEnded }

// EventName implements [Data].
func (*TurnStartedData) EventName() string { return TurnStarted }

// EventName implements [Data].
func (*TurnAnsweredData) EventName() string { return TurnAnswered }

// EventName implements [Data].
func (*TurnEndedData) EventName() string { return TurnEnded }

// EventName implements [Data].
func (*MessageAddedData) EventName() string { return MessageAdded }

// EventName implements [Data].
func (*ToolCalledData) EventName() string { return ToolCalled }

// EventName implements [Data].
func (*ToolReturnedData) EventName() string { return ToolReturned }

// EventName implements [Data].
func (*ToolFailedData) EventName() string { return ToolFailed }

// EventName implements [Data].
func (*ToolDecidedData) EventName() string { return ToolDecided }

// EventName implements [Data].
func (*ToolSettledData) EventName() string { return ToolSettled }

// EventName implements [Data].
func (*PhaseStartedData) EventName() string { return PhaseStarted }

// EventName implements [Data].
func (*PhaseCompletedData) EventName() string { return PhaseCompleted }

// EventName implements [Data].
func (*LimitReachedData) EventName() string { return LimitReached }

// EventName implements [Data].
func (*StateSetData) EventName() string { return StateSet }

// EventName implements [Data].
func (*StateDeletedData) EventName() string { return StateDeleted }

// EventName implements [Data].
func (*SignalSentData) EventName() string { return SignalSent }

// EventName implements [Data].
func (*SignalConsumedData) EventName() string { return SignalConsumed }

// EventName implements [Data].
func (*ContextCompactedData) EventName() string { return ContextCompacted }

// EventName implements [Data].
func (*HandoffOfferedData) EventName() string { return HandoffOffered }

// EventName implements [Data].
func (*HandoffAcceptedData) EventName() string { return HandoffAccepted }

// EventName implements [Data].
func (*HandoffDeclinedData) EventName() string { return HandoffDeclined }

// EventName implements [Data].
func (*HandoffClosedData) EventName() string { return HandoffClosed }

// EventName implements [Data].
func (*ArtifactAddedData) EventName() string { return ArtifactAdded }

// EventName implements [Data].
func (*CheckpointMarkedData) EventName() string { return CheckpointMarked }

// EventName implements [Data].
func (*ErrorRaisedData) EventName() string { return ErrorRaised }
