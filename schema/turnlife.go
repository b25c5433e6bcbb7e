package schema

import (
	"math"
	"strconv"
	"time"
)

// TurnStatus is a turn's status.
type TurnStatus string

// Statuses of a turn. All but open and answered are final.
const (
	// TurnStatusOpen: the turn has begun, and the model's answer is not recorded.
	TurnStatusOpen TurnStatus = "open"
	// TurnStatusAnswered: the model's answer is recorded, and some of its calls have no outcome yet.
	TurnStatusAnswered TurnStatus = "answered"
	// TurnStatusCompleted: the turn has ended, or its run has while the turn was open.
	TurnStatusCompleted TurnStatus = "completed"
	// TurnStatusFailed: the turn ended with an error, or its run failed while the turn was open.
	TurnStatusFailed TurnStatus = "failed"
	// TurnStatusCancelled: the run was cancelled while the turn was open.
	TurnStatusCancelled TurnStatus = "cancelled"
	// TurnStatusSuperseded: a later turn began while this one was open, or a rewind abandoned it.
	TurnStatusSuperseded TurnStatus = "superseded"
)

// Final reports whether the turn is over.
func (s TurnStatus) Final() bool { return s != TurnStatusOpen && s != TurnStatusAnswered }

// TurnLife is the life of one turn up to an event, as its notices and the checkpoint of the current turn have it.
type TurnLife struct {
	// Turn from 1.
	Turn int32 `json:"turn"`
	// Status is open, answered, completed, failed, cancelled or superseded.
	Status TurnStatus `json:"status"`
	// Purpose from turn.started: work or recovery.
	Purpose string `json:"purpose,omitzero"`
	// Epoch of the executor that has the turn, or had it last.
	Epoch Epoch `json:"epoch"`
	// Attempts counts how often the turn was started.
	Attempts int `json:"attempts"`
	// StartedAt and EndedAt are times of events. A turn that its answer opens began when the model was asked, if the
	// answer says how long that took. EndedAt is empty while the turn is open.
	StartedAt string `json:"started_at,omitzero"`
	EndedAt   string `json:"ended_at,omitzero"`
	// Changes counts the notices of the turn from 1: a subscriber that misses a number has missed a notice.
	Changes int64 `json:"changes"`
	// Messages of the turn up to its end, without those that a repeat of the turn superseded.
	Messages int64          `json:"messages,omitzero"`
	Calls    TurnCallCounts `json:"calls,omitzero"`
	// Error is the turn's latest error: of the turn itself, of one of its calls, or raised in it. Its texts are cut.
	Error *Error `json:"error,omitzero"`
}

// TurnCallCounts counts the calls of a turn.
type TurnCallCounts struct {
	// Recorded calls, whatever their outcome.
	Recorded int64 `json:"recorded"`
	// Open calls have no outcome. Begun and InDoubt are among them.
	Open    int64 `json:"open,omitzero"`
	Begun   int64 `json:"begun,omitzero"`
	InDoubt int64 `json:"in_doubt,omitzero"`
	// Returned calls have a result.
	Returned int64 `json:"returned,omitzero"`
	Failed   int64 `json:"failed,omitzero"`
	// Settled calls have the outcome of a settlement.
	Settled int64 `json:"settled,omitzero"`
	// Abandoned calls were settled without a result, or were not begun before the turn or the run ended.
	Abandoned int64 `json:"abandoned,omitzero"`
}

// TurnNotice says that a turn's life changed with an event. It is derived, and in no log.
type TurnNotice struct {
	// Name is turn.created, turn.updated or turn.finalized.
	Name string
	Data TurnData
}

// TurnData is the data of turn.created, turn.updated and turn.finalized, which the daemon publishes to observers.
type TurnData struct {
	// Run id.
	Run   string `json:"run"`
	Agent string `json:"agent,omitzero"`
	TurnLife
	// Event is the name of the event that changed the turn, such as tool.returned, and Position its place in the log.
	Event    string   `json:"event"`
	Position Position `json:"position"`
}

// TurnNoticeID is the id of a notice: the same for the same event, whenever and on whichever daemon it is folded.
func TurnNoticeID(event, name string, turn int32) string {
	return DerivedID(event, strconv.Itoa(int(turn))+"."+name)
}

// begin makes the life that of the head's turn at its first event, or at the base that the event names. The base does not
// have the outcomes of its closed calls.
func (l *TurnLife) begin(h *Head, v *Verdict) {
	*l = TurnLife{Turn: h.Turn, Status: l.openStatus(h), Purpose: h.TurnPurpose, Epoch: h.Epoch, Attempts: 1, StartedAt: v.Event.Time}
	switch d := v.Data.(type) {
	case *TurnAnsweredData:
		l.StartedAt = earlier(l.StartedAt, d.DurationMS)
	case *RunStartedData, *RunResumedData:
		l.count(h, v)
		l.Calls.Recorded, l.Messages = l.Calls.Open+int64(len(h.TurnCalls)), h.TurnMessages
		if !h.TurnOpen {
			l.Status, l.StartedAt = TurnStatusCompleted, ""
		}
	}
}

// openStatus is the status of the head's turn if it is open.
func (l *TurnLife) openStatus(h *Head) TurnStatus {
	if h.TurnAnswered {
		return TurnStatusAnswered
	}
	return TurnStatusOpen
}

// count counts the open calls of the turn, and those that the event abandoned.
func (l *TurnLife) count(h *Head, v *Verdict) {
	l.Calls.Open, l.Calls.Begun, l.Calls.InDoubt = 0, 0, 0
	for i := range h.OpenCalls {
		c := &h.OpenCalls[i]
		if c.Turn != l.Turn {
			continue
		}
		l.Calls.Open++
		if !c.State.Requested() {
			l.Calls.Begun++
		}
		if c.State.InDoubt() {
			l.Calls.InDoubt++
		}
	}
	for _, key := range v.Abandoned {
		if key.Turn == l.Turn {
			l.Calls.Abandoned++
		}
	}
}

// end ends the turn with an event.
func (l *TurnLife) end(v *Verdict, status TurnStatus) { l.Status, l.EndedAt = status, v.Event.Time }

// finalStatus is the status of a turn that an event ended.
func finalStatus(v *Verdict) TurnStatus {
	switch d := v.Data.(type) {
	case *TurnEndedData:
		if d.Error != nil {
			return TurnStatusFailed
		}
	case *RunEndedData:
		return TurnStatus(d.Status)
	}
	return TurnStatusCompleted
}

// earlier returns a time minus a number of milliseconds. It returns the time unchanged if it cannot be parsed or has
// no such time before it.
func earlier(at string, ms int64) string {
	t, err := time.Parse(time.RFC3339Nano, at)
	if err != nil || ms == 0 || ms > int64(math.MaxInt64/time.Millisecond) {
		return at
	}
	if t = t.Add(-time.Duration(ms) * time.Millisecond); t.UTC().Year() < 0 {
		return at
	}
	return FormatTime(t)
}

// shownError is an error for people: its texts are cut, and encrypted errors are left out.
func shownError(e *Error, refs []Ref, path string) *Error {
	return &Error{
		Type: shortName(e.Type), Message: shortLine(shown(e.Message, refs, path+"/message"), MaxOverviewText), Code: shortName(shown(e.Code, refs, path+"/code")),
		Retryable: e.Retryable,
	}
}
