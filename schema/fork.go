package schema

import (
	"cmp"
	"fmt"

	"github.com/go-json-experiment/json"
)

const (
	// MaxBases bounds the depth of forks: a fork of a fork of a fork.
	MaxBases = 64
	// MaxBaseHead bounds the head of a base, in bytes of JSON: any executor can write one into a single event.
	MaxBaseHead = 128 << 10
)

// BaseRef names the origin of a fork: another run of the fleet, up to one of its events. The fork never writes into
// it, and later events of that run are no part of the fork.
type BaseRef struct {
	// Run that was forked.
	Run string `json:"run" check:"required,name"`
	// Point as requested, in its text form.
	Point string `json:"point,omitzero"`
	// Position of the last message that the fork takes over, and their number.
	Position Position `json:"position"`
	Records  int64    `json:"records" check:"min=1"`
	// Digest of the run there.
	Digest string `json:"digest" check:"required,hash"`
}

// Place is the point in the other run at which the fork begins.
func (b *BaseRef) Place() Point { return Point{Kind: PointRecord, Number: uint64(b.Records)} } //nolint:gosec // at least 1

// Base is the origin of a fork, with the run's head there: the fork is folded from it without reading the other run.
type Base struct {
	BaseRef
	// Time at which the server stored the last of these messages; empty if it is unknown. Deadlines of the head have the
	// time from there on left.
	Time string `json:"time,omitzero" check:"time"`
	// Head of the run there, which has the digest.
	Head Head `json:"head"`
}

// BaseOf returns the base of a fork of a run at a point. It omits the fields of the head that a fork does not take over.
func BaseOf(point Point, records int64, head *Head) *Base {
	b := &Base{
		BaseRef: BaseRef{Run: head.Run, Point: point.String(), Position: head.Position, Records: records, Digest: head.Digest},
		Head:    head.Clone(),
	}
	b.Head.Window, b.Head.Marks, b.Head.Gaps, b.Head.Handoffs, b.Head.Handoff = nil, nil, nil, nil, nil
	b.Head.Signals, b.Head.Superseded, b.Head.Forks, b.Head.Requests = nil, nil, nil, ""
	return b
}

// problem returns the first error of a base that its fields alone do not show: a base must not bypass the caps of a
// checkpoint, and brings only a part of what fits into one.
func (b *Base) problem() (path, problem string) {
	h := &b.Head
	switch {
	case b.Position.ID == "":
		return "/position/id", "is required"
	case h.Run != b.Run:
		return "/head/run", "is another run than the base's"
	case h.Digest != b.Digest:
		return "/head/digest", "is another one than the base's"
	case h.Counts.Messages < h.TurnMessages:
		return "/head/turn_messages", fmt.Sprintf("is %d, more than the run's %d messages", h.TurnMessages, h.Counts.Messages)
	}
	if err := b.Fits(); err != nil {
		return "/head", "is too large: " + err.Error()
	}
	return "", ""
}

// Fits reports whether the head is small enough for a base.
func (b *Base) Fits() error {
	text, err := json.Marshal(&b.Head)
	if err == nil && len(text) > MaxBaseHead {
		err = fmt.Errorf("the head there has %d bytes, a base at most %d: take a point with fewer open calls, questions and phases", len(text), MaxBaseHead)
	}
	return err
}

// fork turns the head of a run that has only its start into the base's head. State that concerns the other run alone
// (its hand-offs, signals, marks, tokens used, errors) is not taken over.
func (h *Head) fork(b *Base, now string) {
	ref := b.BaseRef
	h.Base = &ref
	for _, id := range b.Head.KeyIDs {
		h.noteKey(id)
	}
	h.goOnFrom(b, now)
	for i := range h.OpenCalls {
		c := &h.OpenCalls[i]
		c.Epoch = h.Epoch
		if c.State.Requested() {
			c.Epoch = 0 // the other run's executor may have run it, if its policy needs no begin
		}
		c.Scope = cmp.Or(c.Scope, b.Run)
	}
}

// goOnFrom takes over the conversation of a base. now is the server's time of the event that does so: open waits have
// as long from there on as they had left at the point.
func (h *Head) goOnFrom(b *Base, now string) {
	was := b.Head.Clone()
	h.Turn, h.TurnOpen, h.TurnAnswered, h.TurnPurpose = was.Turn, was.TurnOpen, was.TurnAnswered, was.TurnPurpose
	h.TurnMessages, h.TurnCalls = was.TurnMessages, was.TurnCalls
	h.TurnEpoch = 0 // the executor may repeat the turn
	h.Phase, h.CompletedPhases = was.Phase, was.CompletedPhases
	h.OpenCalls, h.Interrupts = was.OpenCalls, was.Interrupts
	for i := range h.Interrupts {
		h.Interrupts[i].ExpiresAt = moved(h.Interrupts[i].ExpiresAt, b.Time, now)
	}
	for i := range h.OpenCalls {
		if c := &h.OpenCalls[i]; c.doubtful() {
			c.doubt()
		}
	}
	n, o := &h.Counts, &was.Counts
	n.Turns, n.Messages, n.ToolCalls, n.ToolResults, n.ToolFailures = o.Turns, o.Messages, o.ToolCalls, o.ToolResults, o.ToolFailures
	n.Settled, n.Artifacts, n.Compactions = o.Settled, o.Artifacts, o.Compactions
	h.Status, h.Build = h.active(), was.Build
}

// doubtful reports whether an open call is in doubt in a fork and after a rewind. A call belongs to the timeline that
// requested it: one that has begun there, or that needs a begin, may have run in any other.
func (c *OpenCall) doubtful() bool { return !c.State.Requested() || !c.Replay.Rerunnable() }

// Graft gives a state without events the content of the base that its run.started will name: messages, calls and
// results. The base's state must not be used after that.
func (s *State) Graft(base *State) {
	s.Messages, s.Turns, s.Calls, s.Phases = base.Messages, base.Turns, base.Calls, base.Phases
	s.Compactions, s.Waits, s.Artifacts, s.Decisions = base.Compactions, base.Waits, base.Artifacts, base.Decisions
	s.Values = base.Values
	s.Unknown = base.Unknown
}

// doubted updates the calls of the state from the head.
func (s *State) doubted() {
	for i := range s.Head.OpenCalls {
		o := &s.Head.OpenCalls[i]
		c := s.amendCall(o.CallKey)
		if c == nil {
			continue
		}
		c.InDoubt, c.Epoch = o.State.InDoubt(), o.Epoch
		if c.Replay.orHold() != o.Replay {
			c.Replay = o.Replay // a stricter policy, under which it is held
		}
	}
}

// BaseOfRecord returns the base that a run's first record names if the run is a fork, else nil. first is false for a
// daemon's mark, which is no event of the run: look at the next record.
func BaseOfRecord(rec *Record) (base *Base, first bool) {
	p := Prepare(NoKeys, rec)
	if d, ok := p.data.(*RunStartedData); ok {
		return d.Base, true
	}
	return nil, !ErasedMark(p.Event)
}
