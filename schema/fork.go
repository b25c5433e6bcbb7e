package schema

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// MaxBases bounds the depth of forks: a fork of a fork of a fork.
const MaxBases = 64

// BaseRef names the origin of a fork: another run of the fleet, up to one of its events. The fork never writes into
// it, and later events of that run are no part of the fork.
type BaseRef struct {
	// Run that was forked.
	Run string `json:"run"`
	// Point as requested, in its text form.
	Point string `json:"point,omitzero"`
	// Position of the last message that the fork takes over, and their number.
	Position Position `json:"position"`
	Records  int64    `json:"records"`
	// Digest of the run there.
	Digest string `json:"digest"`
}

// Place is the point in the other run at which the fork begins.
func (b *BaseRef) Place() Point { return Point{Kind: PointRecord, Number: uint64(b.Records)} } //nolint:gosec // at least 1

// Base is the origin of a fork, with the run's head there: the fork is folded from it without reading the other run.
type Base struct {
	BaseRef
	// Head of the run there, which has the digest.
	Head Head `json:"head"`
	// Begun are the calls that are in doubt in the fork although they were only requested at the point, or have
	// another policy there.
	Begun []BegunCall `json:"begun,omitzero"`
}

// BegunCall is a call that was open at a point, and that the run began after it, or may still begin.
type BegunCall struct {
	CallKey
	// Replay is the policy under which it began, if that is stricter than its policy at the point.
	Replay Replay `json:"replay,omitzero"`
}

// BaseOf returns the base of a fork of a run at a point; begun as in [Moment]. It omits the fields of the head that a
// fork does not take over.
func BaseOf(point Point, records int64, head *Head, begun []BegunCall) *Base {
	b := &Base{
		Begun:   begun,
		BaseRef: BaseRef{Run: head.Run, Point: point.String(), Position: head.Position, Records: records, Digest: head.Digest},
		Head:    head.Clone(),
	}
	b.Head.Window, b.Head.Marks, b.Head.Gaps, b.Head.Handoffs, b.Head.Handoff = nil, nil, nil, nil, nil
	b.Head.Signals, b.Head.Superseded = nil, nil
	return b
}

// check returns the first error of a base, as a path and a problem.
func (b *Base) check() (path, problem string) {
	h := &b.Head
	_, err := ParseHash(b.Digest)
	switch {
	case !ValidName(b.Run):
		return "/base/run", "is no run id"
	case err != nil || b.Digest == "":
		return "/base/digest", "is no digest of 64 hex digits"
	case b.Position.ID == "" || len(b.Position.ID) > MaxPoint:
		return "/base/position/id", "is missing or too long"
	case b.Records < 1:
		return "/base/records", "is below 1"
	case h.Run != b.Run:
		return "/base/head/run", "is another run than the base's"
	case h.Digest != b.Digest:
		return "/base/head/digest", "is another one than the base's"
	case h.Turn < 0 || h.TurnMessages < 0 || h.Counts.Messages < h.TurnMessages:
		return "/base/head/turn", "or its messages are below 0"
	}
	for _, l := range []struct {
		path   string
		n, max int
	}{
		{"/base/head/open_calls", len(h.OpenCalls), MaxOpenCalls},
		{"/base/begun", len(b.Begun), MaxOpenCalls},
		{"/base/head/turn_calls", len(h.TurnCalls), MaxTurnCalls},
		{"/base/head/interrupts", len(h.Interrupts), MaxInterrupts},
		{"/base/head/completed_phases", len(h.CompletedPhases), MaxCompletedPhases},
		{"/base/head/signals", len(h.Signals), MaxSignals},
		{"/base/head/superseded", len(h.Superseded), MaxRewinds},
		{"/base/head/key_ids", len(h.KeyIDs), MaxKeyIDs},
	} {
		if l.n > l.max {
			return l.path, fmt.Sprintf("has %d entries, at most %d are allowed", l.n, l.max)
		}
	}
	if slices.ContainsFunc(b.Begun, func(c BegunCall) bool {
		return c.Turn < 0 || c.Occurrence < 1 || len(c.ToolCallID) > MaxIdentifier || c.Replay != "" && c.Replay.orHold() != c.Replay
	}) {
		return "/base/begun", "has a call that is none"
	}
	return h.checkTexts()
}

// checkTexts checks the texts that a fork takes over: a base must not bypass the caps of a checkpoint.
func (h *Head) checkTexts() (path, problem string) {
	// A fold writes nothing longer: times, protocol words, names, ids, and excerpts of free text.
	const word, excerpt = 40, maxExcerpt + len("…")
	longer := func(limit int, texts ...string) bool {
		return slices.ContainsFunc(texts, func(s string) bool { return len(s) > limit })
	}
	// A control character takes six bytes in a checkpoint.
	wrong := func(texts ...string) bool {
		return longer(MaxIdentifier+len("…"), texts...) || slices.ContainsFunc(texts, func(s string) bool { return strings.ContainsFunc(s, isForbidden) })
	}
	if h.callBytes(false, 0) > MaxCallBytes {
		return "/base/head/open_calls", fmt.Sprintf("have more than %d bytes of ids and names", MaxCallBytes)
	}
	for i := range h.OpenCalls {
		if c := &h.OpenCalls[i]; c.Turn < 0 || c.Occurrence < 1 || wrong(c.ToolCallID, c.Name, c.Scope) || wrong(string(c.Replay), c.Since, c.Decision) || longer(word, string(c.Replay), c.Since, c.Decision) {
			return fmt.Sprintf("/base/head/open_calls/%d", i), "is no open call"
		}
	}
	for i := range h.Interrupts {
		if o := &h.Interrupts[i]; wrong(o.InterruptID, o.ToolCallID, o.Position.ID) || longer(excerpt, o.Message) ||
			wrong(o.Reason, o.Since, o.ExpiresAt) || longer(word, o.Reason, o.Since, o.ExpiresAt) {
			return fmt.Sprintf("/base/head/interrupts/%d", i), "has a text that no run has: it is too long, or has a control character"
		}
	}
	for i := range h.Signals {
		if s := &h.Signals[i]; s.Turn < 0 || wrong(s.SignalID, s.Name, s.Position.ID) || wrong(s.Since) || longer(word, s.Since) {
			return fmt.Sprintf("/base/head/signals/%d", i), "is no open signal"
		}
	}
	for i, id := range h.TurnCalls {
		if wrong(id) {
			return fmt.Sprintf("/base/head/turn_calls/%d", i), "is too long, or has a control character"
		}
	}
	if slices.ContainsFunc(h.KeyIDs, func(id string) bool { return id == "" || wrong(id) }) {
		return "/base/head/key_ids", "has an id that is empty or too long, or has a control character"
	}
	if wrong(h.Limit) {
		return "/base/head/limit_reached", "is too long, or has a control character"
	}
	for i, phase := range append([]string{h.Phase, h.TurnPurpose}, h.CompletedPhases...) {
		if wrong(phase) {
			return fmt.Sprintf("/base/head/completed_phases/%d", i), "is too long, or has a control character"
		}
	}
	return "", ""
}

// fork turns the head of a run that has only its start into the base's head. State that concerns the other run alone
// (its hand-offs, signals, marks, tokens used, errors) is not taken over.
func (h *Head) fork(b *Base) {
	ref := b.BaseRef
	h.Base = &ref
	for _, id := range b.Head.KeyIDs {
		h.noteKey(id)
	}
	h.goOnFrom(b)
	for i := range h.OpenCalls {
		c := &h.OpenCalls[i]
		c.Epoch = h.Epoch
		if c.Requested {
			c.Epoch = 0 // the other run's executor may have run it, if its policy needs no begin
		}
		c.Scope = cmp.Or(c.Scope, b.Run)
	}
}

// goOnFrom takes over the conversation of a base. Calls that had begun there, or are in [Base.Begun], are in doubt:
// another executor may still run them.
func (h *Head) goOnFrom(b *Base) {
	was := b.Head.Clone()
	h.Turn, h.TurnOpen, h.TurnAnswered, h.TurnPurpose = was.Turn, was.TurnOpen, was.TurnAnswered, was.TurnPurpose
	h.TurnMessages, h.TurnCalls = was.TurnMessages, was.TurnCalls
	h.TurnEpoch = 0 // the executor may repeat the turn
	h.Phase, h.CompletedPhases = was.Phase, was.CompletedPhases
	h.OpenCalls, h.Interrupts = was.OpenCalls, was.Interrupts
	for i := range h.OpenCalls {
		c := &h.OpenCalls[i]
		begun := slices.IndexFunc(b.Begun, func(o BegunCall) bool { return o.CallKey == c.CallKey })
		if begun >= 0 && b.Begun[begun].Replay != "" {
			c.Replay = Stricter(c.Replay, b.Begun[begun].Replay)
		}
		if begun >= 0 || !c.Requested {
			c.Requested, c.InDoubt, c.Held = false, true, c.Replay == ReplayHold
		}
	}
	n, o := &h.Counts, &was.Counts
	n.Turns, n.Messages, n.ToolCalls, n.ToolResults, n.ToolFailures = o.Turns, o.Messages, o.ToolCalls, o.ToolResults, o.ToolFailures
	n.Settled, n.Artifacts, n.Compactions = o.Settled, o.Artifacts, o.Compactions
	h.Status = h.active()
}

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
		c.InDoubt, c.Epoch = o.InDoubt, o.Epoch
		if c.Replay.orHold() != o.Replay {
			c.Replay = o.Replay // the stricter policy under which it began after the point
		}
	}
}

// BaseOfRecord returns the base that a run's first record names if the run is a fork, else nil. first is false for a
// daemon's mark, which is no event of the run: look at the next record.
func BaseOfRecord(rec *Record) (base *Base, first bool) {
	e, err := Decode(rec.Header, rec.Body)
	if err != nil {
		return nil, true
	}
	if ErasedMark(e) {
		return nil, false
	}
	if e.Name() != RunStarted {
		return nil, true
	}
	data, err := ParseData(e)
	if d, ok := data.(*RunStartedData); ok && err == nil {
		return d.Base, true
	}
	return nil, true
}
