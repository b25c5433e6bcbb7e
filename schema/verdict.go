package schema

// VerdictKind is the fold's decision about a record.
type VerdictKind int

// Verdicts.
const (
	// Applied: the event is part of the run's state.
	Applied VerdictKind = iota + 1
	// Evidence: a late result was kept with its call; nothing else changed.
	Evidence
	// Duplicate: the log has the event again; nothing changed.
	Duplicate
	// Replayed: the record is at or before the head's position; nothing changed.
	Replayed
	// Rejected: the event was refused for Reason and belongs in the dead letters.
	Rejected
	// Regressed: another event is at the head's position. The log was damaged and its sequences were used again.
	// Nothing was changed; the caller must read the run again from the log's beginning.
	Regressed
	// Skipped: the record removes the run; see [Removal]. It is not counted as a record of the run.
	Skipped
)

// String names the verdict.
func (k VerdictKind) String() string {
	switch k {
	case Applied:
		return "applied"
	case Evidence:
		return "evidence"
	case Duplicate:
		return "duplicate"
	case Replayed:
		return "replayed"
	case Rejected:
		return "rejected"
	case Regressed:
		return "regressed"
	case Skipped:
		return "skipped"
	default:
		return "none"
	}
}

// Verdict is the fold's decision about a record, with its effects.
type Verdict struct {
	Kind VerdictKind
	// Reason and Detail of a rejection.
	Reason Reason
	Detail string
	// Event as decoded; nil for a message that is no CloudEvent.
	Event *Event
	// Data of the event; nil for unknown types and for events rejected before their data was read.
	Data Data
	// Boundary: a run can resume after this event.
	Boundary bool
	// Call that the event opened, began, closed, settled or gave evidence for.
	Call CallKey
	// Begun: the event began a requested call.
	Begun bool
	// Calls that an answer requests, in its order.
	Calls []CallKey
	// Abandoned are the requested calls that will never begin: the event ended their turn or the run.
	Abandoned []CallKey
	// Over: the turn ended with the event.
	Over bool
	// Superseded: the event repeats an open turn; its unfinished messages no longer count.
	Superseded bool
	// Opened: the event opened a turn without turn.started.
	Opened bool
}
