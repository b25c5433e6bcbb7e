package schema

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

// EventName implements [Data].
func (*StateSetData) EventName() string { return StateSet }

// EventName implements [Data].
func (*StateDeletedData) EventName() string { return StateDeleted }

// EventName implements [Data].
func (*SignalSentData) EventName() string { return SignalSent }

// EventName implements [Data].
func (*SignalConsumedData) EventName() string { return SignalConsumed }
