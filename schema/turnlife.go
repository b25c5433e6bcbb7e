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
	// Returned calls have a result, also by settlement.
	Returned int64 `json:"returned,omitzero"`
	Failed   int64 `json:"failed,omitzero"`
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

// turnFold updates the life of the current turn by one event.
type turnFold struct {
	head    *Head
	verdict *Verdict
	told    []TurnNotice
	// settled is the outcome of a call's settlement.
	settled Outcome
}

// tell adds a notice, and counts it as a change of the turn.
func (f *turnFold) tell(name string, l *TurnLife) {
	l.Changes++
	f.told = append(f.told, TurnNotice{Name: name, Data: TurnData{
		Run: f.head.Run, Agent: f.head.Agent, TurnLife: *l, Event: f.verdict.Event.Name(), Position: f.head.Position,
	}})
}

// finish ends a turn and adds a notice.
func (f *turnFold) finish(l *TurnLife, status TurnStatus) {
	l.Status, l.EndedAt = status, f.verdict.Event.Time
	f.tell(TurnFinalized, l)
}

// count counts the open calls of the turn.
func (f *turnFold) count(l *TurnLife) {
	l.Calls.Open, l.Calls.Begun, l.Calls.InDoubt = 0, 0, 0
	for i := range f.head.OpenCalls {
		c := &f.head.OpenCalls[i]
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
}

// abandon counts the requested calls of the turn that the event closed without an outcome.
func (f *turnFold) abandon(l *TurnLife) {
	for _, key := range f.verdict.Abandoned {
		if key.Turn == l.Turn {
			l.Calls.Abandoned++
		}
	}
}

// begin returns the life of the head's turn at its first event.
func (f *turnFold) begin() TurnLife {
	h := f.head
	l := TurnLife{Turn: h.Turn, Status: TurnStatusOpen, Purpose: h.TurnPurpose, Epoch: h.Epoch, Attempts: 1, StartedAt: f.verdict.Event.Time}
	if h.TurnAnswered {
		l.Status = TurnStatusAnswered
	}
	if d, ok := f.verdict.Data.(*TurnAnsweredData); ok {
		l.StartedAt = earlier(l.StartedAt, d.DurationMS)
	}
	return l
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

// takenOver returns the life of a turn that the head took over from a base, by a fork or a rewind. The base does not
// have the outcomes of its closed calls.
func (f *turnFold) takenOver() TurnLife {
	l := f.begin()
	f.count(&l)
	l.Calls.Recorded, l.Messages = l.Calls.Open+int64(len(f.head.TurnCalls)), f.head.TurnMessages
	if !f.head.TurnOpen {
		l.Status, l.StartedAt = TurnStatusCompleted, ""
	}
	return l
}

// follow changes the life of the current turn by an applied event. created says that it is the turn's first.
func (f *turnFold) follow(l *TurnLife, created bool) {
	h, v := f.head, f.verdict
	was := *l
	if !was.Status.Final() {
		l.Epoch = h.Epoch
	}
	switch d := v.Data.(type) {
	case *TurnStartedData:
		if v.Superseded {
			l.Attempts++
			l.Status, l.Purpose, l.StartedAt, l.Error = TurnStatusOpen, h.TurnPurpose, v.Event.Time, nil
		}
	case *TurnAnsweredData:
		l.Status = TurnStatusAnswered
		l.Calls.Recorded += int64(len(d.Calls))
		for i := range d.Calls {
			if failed := d.Calls[i].Error; failed != nil {
				l.Calls.Failed++
				l.Error = shownError(failed, d.Refs, "/calls/"+strconv.Itoa(i)+"/error")
			}
		}
	case *ToolCalledData:
		if !v.Begun && v.Call.Turn == l.Turn {
			l.Calls.Recorded++
		}
	case *ToolReturnedData:
		if v.Kind == Applied && v.Call.Turn == l.Turn {
			l.Calls.Returned++
		}
	case *ToolFailedData:
		if v.Kind == Applied && v.Call.Turn == l.Turn {
			l.Calls.Failed++
			l.Error = shownError(&d.Error, d.Refs, "/error")
		}
	case *ToolSettledData:
		switch {
		case v.Call.Turn != l.Turn || d.How == SettledRerun:
		case d.How == SettledAbandoned:
			l.Calls.Abandoned++
		case f.settled == OutcomeFailed:
			l.Calls.Failed++
		default:
			l.Calls.Returned++
		}
	case *ErrorRaisedData:
		if !was.Status.Final() && (d.Turn == 0 || d.Turn == l.Turn) {
			l.Error = shownError(&d.Error, d.Refs, "/error")
		}
	case *TurnEndedData:
		if d.Turn == l.Turn && d.Error != nil {
			l.Error = shownError(d.Error, d.Refs, "/error")
			if was.Status.Final() {
				l.Status = TurnStatusFailed // it had ended with the last outcome of its calls
			}
		}
	case *RunEndedData:
		if d.Error != nil && !was.Status.Final() {
			l.Error = shownError(d.Error, d.Refs, "/error")
		}
	}
	if h.TurnOpen {
		l.Messages = h.TurnMessages
	}
	f.abandon(l)
	f.count(l)
	f.conclude(l, &was, created)
}

// conclude adds the notices about the event's effect on the turn.
func (f *turnFold) conclude(l, was *TurnLife, created bool) {
	final := TurnStatus("")
	switch d := f.verdict.Data.(type) {
	case *TurnEndedData:
		if final = TurnStatusCompleted; d.Error != nil {
			final = TurnStatusFailed
		}
	case *RunEndedData:
		switch f.head.Status {
		case StatusFailed:
			final = TurnStatusFailed
		case StatusCancelled:
			final = TurnStatusCancelled
		default:
			final = TurnStatusCompleted
		}
	default:
		if f.verdict.Over {
			final = TurnStatusCompleted
		}
	}
	if created {
		f.tell(TurnCreated, l)
	}
	switch {
	case was.Status.Final() && f.head.TurnOpen && !f.head.Status.Terminal(): // the run was reopened
		l.Status, l.EndedAt, l.Epoch = TurnStatusOpen, "", f.head.Epoch
		if f.head.TurnAnswered {
			l.Status = TurnStatusAnswered
		}
		f.tell(TurnCreated, l)
	case !was.Status.Final() && final != "":
		f.finish(l, final)
	case created, *l == *was:
	case was.Status.Final():
		f.tell(TurnFinalized, l)
	default:
		f.tell(TurnUpdated, l)
	}
}

// shownError is an error for people: its texts are cut, and encrypted errors are left out.
func shownError(e *Error, refs []Ref, path string) *Error {
	return &Error{
		Type: shortName(e.Type), Message: shortLine(shown(e.Message, refs, path+"/message"), MaxOverviewText), Code: shortName(shown(e.Code, refs, path+"/code")),
		Retryable: e.Retryable,
	}
}
