package schema

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// NewState returns the state of a run before its first event.
func NewState(fleet, run string) *State { return &State{Head: NewHead(fleet, run)} }

// Apply folds one record into the state, with the fleet's keys. [Head.Apply] decides, so State.Head equals a Head
// folded alone; the state adds the content of accepted events.
func (s *State) Apply(keys *Keys, rec *Record) Verdict {
	unfinished := s.Head.TurnMessages
	v := s.Head.Apply(keys, rec)
	s.follow(v, unfinished)
	return v
}

// follow adds the content of an applied record. unfinished is the number of messages of the open turn before it.
func (s *State) follow(v Verdict, unfinished int64) {
	if v.Superseded {
		s.supersede(s.Head.Turn, unfinished)
	}
	if v.Opened {
		s.openTurn(s.Head.Turn, v.Event)
	}
	for _, key := range v.Abandoned {
		if c := s.amendCall(key); c != nil {
			c.Outcome, c.ClosedAt = OutcomeAbandoned, v.Event.Time
		}
	}
	switch {
	case v.Kind == Evidence && v.Data != nil && v.Call.ToolCallID != "":
		s.late(v)
	case v.Kind != Applied:
	case v.Data == nil:
		push(s, unknownOf, unknownEvent(v.Event))
	default:
		s.add(v)
	}
	if v.Over {
		s.turnOver(v.Event)
	}
	if v.Kind == Applied {
		s.signals(v.Event)
	}
}

// turnOver ends the latest turn if it has not ended yet.
func (s *State) turnOver(e *Event) {
	if n := len(s.Turns); n > 0 && s.Turns[n-1].EndedAt == "" {
		amend(s, turnsOf, n-1).EndedAt = e.Time
	}
}

func unknownEvent(e *Event) UnknownEvent {
	u := UnknownEvent{ID: e.ID, Type: e.Type, Time: e.Time}
	if value := jsontext.Value(e.Data); e.isJSON() && !tooDeep(value) && value.IsValid() {
		u.Data = value.Clone()
	} else {
		u.Raw = bytes.Clone(e.Data)
	}
	return u
}

// withoutRepeats returns the hand-off with each modified file once by its [PathKey], in the order of first mention.
func withoutRepeats(d *HandoffOfferedData) *HandoffOfferedData {
	if d.Context == nil || len(d.Context.FilesModified) < 2 {
		return d
	}
	offered, context := *d, *d.Context
	context.FilesModified = DistinctPaths(d.Context.FilesModified)
	offered.Context = &context
	return &offered
}

func (s *State) late(v Verdict) {
	c := s.amendCall(v.Call)
	if c == nil {
		return
	}
	s.opened(v)
	c.Late = &LateResult{EventID: v.Event.ID, Epoch: v.Event.Epoch}
	switch d := v.Data.(type) {
	case *ToolReturnedData:
		c.Late.Result, c.Late.IsError, c.Late.Source, c.Late.Refs = d.Result, d.IsError, d.Source, d.Refs
	case *ToolFailedData:
		c.Late.Error, c.Late.Refs = &d.Error, d.Refs
	}
}

func (c *Call) returned(d *ToolReturnedData) {
	c.Outcome, c.InDoubt, c.Result, c.IsError = OutcomeReturned, false, d.Result, d.IsError
	c.ResultSource, c.DurationMS = d.Source, d.DurationMS
	c.addRefs(d.Refs)
}

// addRefs adds those of an outcome. Its source is not the call's.
func (c *Call) addRefs(refs []Ref) {
	c.Refs = slices.Clip(c.Refs)
	for _, r := range refs {
		if r.Path == "/source" || strings.HasPrefix(r.Path, "/source/") {
			r.Path = "/result_" + r.Path[1:]
		}
		c.Refs = append(c.Refs, r)
	}
}

func (c *Call) settled(e *Event, d *ToolSettledData, epoch Epoch) {
	c.Settlements = append(slices.Clip(c.Settlements), d.How)
	c.InDoubt = false
	switch d.How {
	case SettledRerun:
		c.Late, c.Epoch = nil, epoch
		return
	case SettledAbandoned:
		c.Outcome, c.Result, c.IsError = OutcomeAbandoned, d.Result, d.IsError
		c.addRefs(d.Refs)
	case SettledAdopted:
		c.Outcome = OutcomeReturned
		switch late := c.Late; {
		case len(d.Result) > 0 || len(d.Refs) > 0 || late == nil:
			c.Result, c.IsError = d.Result, d.IsError
			c.addRefs(d.Refs)
		case late.Error != nil:
			c.Outcome, c.Error = OutcomeFailed, late.Error
			c.addRefs(late.Refs)
		default:
			c.Result, c.IsError, c.ResultSource = late.Result, late.IsError, late.Source
			c.addRefs(late.Refs)
		}
	default:
		c.Outcome, c.Result, c.IsError, c.ResultSource = OutcomeReturned, d.Result, d.IsError, d.Source
		c.addRefs(d.Refs)
	}
	c.ClosedAt = e.Time
}

func (s *State) phase(name string) *StatePhase {
	if i := slices.IndexFunc(s.Phases, func(p StatePhase) bool { return p.Phase == name }); i >= 0 {
		return amend(s, phasesOf, i)
	}
	push(s, phasesOf, StatePhase{Phase: name})
	return &s.Phases[len(s.Phases)-1]
}

func (s *State) offered(id string, d *HandoffOfferedData) {
	for i := range slices.Backward(s.Handoffs) {
		if h := &s.Handoffs[i]; h.HandoffID == id && h.Status == HandoffStatusOffered {
			h.Offered = d
			return
		}
	}
	s.Handoffs = append(s.Handoffs, StateHandoff{HandoffID: id, Status: HandoffStatusOffered, Offered: d})
}

func (s *State) handoff(id, status, by, claimed, reason, child string, refs []Ref) {
	for i := range slices.Backward(s.Handoffs) {
		if h := &s.Handoffs[i]; h.HandoffID == id {
			h.Status, h.By, h.Claimed, h.Reason, h.Refs = status, by, claimed, reason, refs
			if child != "" {
				h.ChildRun = child // the closer need not repeat the child run
			}
			return
		}
	}
	s.Handoffs = append(s.Handoffs, StateHandoff{HandoffID: id, Status: status, By: by, Claimed: claimed, Reason: reason, ChildRun: child, Refs: refs})
}

func (s *State) openTurn(turn int32, e *Event) *StateTurn {
	if n := len(s.Turns); n > 0 && s.Turns[n-1].Answer != nil {
		s.turnOver(e) // no call of its answer can begin any more
	}
	push(s, turnsOf, StateTurn{Turn: turn, Epoch: s.Head.Epoch, Attempts: 1, StartedAt: e.Time})
	return &s.Turns[len(s.Turns)-1]
}

func (s *State) turnStarted(e *Event, d *TurnStartedData, superseded bool) {
	var t *StateTurn
	if superseded && len(s.Turns) > 0 {
		t = amend(s, turnsOf, len(s.Turns)-1)
		t.Attempts++
		t.Epoch, t.StartedAt = s.Head.Epoch, e.Time
	} else {
		t = s.openTurn(d.Turn, e)
	}
	t.Purpose, t.Version = d.Purpose, cmp.Or(d.Version, t.Version)
	for i := range d.Messages {
		s.addMessage(e, d.Turn, d.Messages[i], d.Refs, fmt.Sprintf("/messages/%d", i))
	}
}

// supersede drops the last n messages of an open turn: those since it was opened. Messages of other turns may be
// between them. Compactions keep their place relative to the messages.
func (s *State) supersede(turn int32, n int64) {
	var dropped []int
	for i := len(s.Messages) - 1; i >= 0 && n > 0; i-- {
		if s.Messages[i].Turn == turn {
			n--
			dropped = append(dropped, i)
			remove(s, messagesOf, i)
		}
	}
	for i := range s.Compactions {
		before := 0
		for _, at := range dropped {
			if at < s.Compactions[i].At {
				before++
			}
		}
		if before > 0 {
			amend(s, compactionsOf, i).At -= before
		}
	}
}

func (s *State) turnAnswered(e *Event, d *TurnAnsweredData, keys []CallKey) {
	t := s.turn(d.Turn, e)
	s.addMessage(e, d.Turn, d.Message, d.Refs, "/message")
	t.Answer = &StateAnswer{
		FinishReasons: d.FinishReasons, ResponseID: d.ResponseID, Model: d.Model, Usage: d.Usage, DurationMS: d.DurationMS, Source: d.Source, Extra: d.Extra,
		Refs: slices.DeleteFunc(slices.Clone(d.Refs), func(r Ref) bool {
			return strings.HasPrefix(r.Path, "/message/") || strings.HasPrefix(r.Path, "/calls/")
		}),
	}
	for i := range d.Calls {
		c := newCall(keys[i], d.Called(i), e.Time, s.Head.Epoch)
		if failed := d.Calls[i].Error; failed != nil {
			c.Outcome, c.Error, c.ClosedAt = OutcomeFailed, failed, e.Time
		}
		push(s, callsOf, c)
	}
}

// Called returns call i of the answer in the form of tool.called.
func (d *TurnAnsweredData) Called(i int) *ToolCalledData {
	called := d.Calls[i].Called()
	called.Refs = refsBelow(d.Refs, fmt.Sprintf("/calls/%d", i))
	return called
}

// Called returns the call in the form of tool.called, without refs.
func (c *RequestedCall) Called() *ToolCalledData {
	return &ToolCalledData{
		ToolCallID: c.ToolCallID, Occurrence: c.Occurrence, Name: c.Name, Arguments: c.Arguments, Replay: c.Replay,
		IdempotencyKey: c.IdempotencyKey, VerifySubject: c.VerifySubject, SideEffect: c.SideEffect, TimeoutMS: c.TimeoutMS,
		Source: c.Source, Extra: c.Extra,
	}
}

// newCall returns a recorded call.
func newCall(key CallKey, d *ToolCalledData, at string, epoch Epoch) Call {
	return Call{
		CallKey: key, Name: d.Name, Arguments: d.Arguments, Replay: d.Replay, IdempotencyKey: d.IdempotencyKey,
		VerifySubject: d.VerifySubject, SideEffect: d.SideEffect, TimeoutMS: d.TimeoutMS, Source: d.Source, Outcome: OutcomeOpen,
		Refs: d.Refs, CalledAt: at, Epoch: epoch,
	}
}

// begun applies tool.called to a requested call. Fields that the event omits keep the answer's values.
func (c *Call) begun(e *Event, d *ToolCalledData, epoch Epoch) {
	c.BegunAt, c.Epoch = e.Time, epoch
	if d.Replay != "" {
		c.Replay = Stricter(c.Replay, d.Replay)
	}
	c.IdempotencyKey, c.VerifySubject = cmp.Or(d.IdempotencyKey, c.IdempotencyKey), cmp.Or(d.VerifySubject, c.VerifySubject)
	c.SideEffect, c.TimeoutMS = cmp.Or(d.SideEffect, c.SideEffect), cmp.Or(d.TimeoutMS, c.TimeoutMS)
}

func (s *State) turnEnded(e *Event, d *TurnEndedData, over bool) {
	t := s.turn(d.Turn, e)
	for i := range d.Messages {
		s.addMessage(e, d.Turn, d.Messages[i], d.Refs, fmt.Sprintf("/messages/%d", i))
	}
	ended := *d
	ended.Messages = nil
	ended.Refs = slices.DeleteFunc(slices.Clone(d.Refs), func(r Ref) bool { return strings.HasPrefix(r.Path, "/messages/") })
	if !over && ended.Error == nil && t.Ended != nil {
		ended.Error = t.Ended.Error // the turn ended before the fork
	}
	if t.Ended = &ended; over {
		t.EndedAt = e.Time
	}
}

// turn returns the latest turn if it has the number, else opens it: earlier content may be lost.
func (s *State) turn(number int32, e *Event) *StateTurn {
	if n := len(s.Turns); n > 0 && s.Turns[n-1].Turn == number {
		return amend(s, turnsOf, n-1)
	}
	return s.openTurn(number, e)
}

// addMessage appends a message; refs of the event below at become the message's own.
func (s *State) addMessage(e *Event, turn int32, m Message, refs []Ref, at string) {
	m.Extra = withoutMembers(m.Extra, "turn", "event_id", "epoch", "time", "refs")
	push(s, messagesOf, StateMessage{
		Message: m, Turn: turn, EventID: e.ID, Epoch: s.Head.Epoch, Time: e.Time, Refs: refsBelow(refs, at),
	})
}

// refsBelow are the refs of what is below a place, with paths relative to it.
func refsBelow(refs []Ref, at string) (below []Ref) {
	for _, r := range refs {
		if rest, ok := strings.CutPrefix(r.Path, at); ok && strings.HasPrefix(rest, "/") {
			r.Path = rest
			below = append(below, r)
		}
	}
	return below
}
