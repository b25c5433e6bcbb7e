package runs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/internal/encrypted"
	"github.com/waymarkio/waymark/internal/standstill"
	"github.com/waymarkio/waymark/schema"
)

// Kinds of the lines of a story, as JSON has them.
const (
	storyRun      = "run"
	storyTurn     = "turn"
	storyModel    = "model"
	storyCall     = "call"
	storyTakeover = "takeover"
	storyWait     = "wait"
	storyNote     = "note"
	storyError    = "error"
)

// beat is one line of a run's story: something that took time, or that happened.
type beat struct {
	Kind string `json:"kind"`
	// Turn it belongs to; 0 for none.
	Turn int32 `json:"turn,omitzero"`
	// What it is, in a word or two: the name of a tool, the model.
	What string `json:"what"`
	// Detail in words.
	Detail string `json:"detail,omitzero"`
	// At is when it began, RFC 3339, and DurationMS how long it took, or has taken so far; absent for what takes no time.
	At         string `json:"at,omitzero"`
	DurationMS *int64 `json:"duration_ms,omitzero"`
	// Open: it is not over.
	Open bool `json:"open,omitzero"`
	// lost: its executor was gone before it had an outcome.
	lost bool
	// call that a wait is about; empty for none.
	call string
}

// story collects the beats of a run from its events.
type story struct {
	state *schema.State
	beats []*beat
	// calls and waits that are open, by what names them; turn is the begin of the turn's model call.
	calls map[schema.CallKey]*beat
	waits map[string]*beat
	turn  *beat
	// latest is the time of the event before.
	latest time.Time
}

func newStory(fleet, run string) *story {
	return &story{state: schema.NewState(fleet, run), calls: make(map[schema.CallKey]*beat), waits: make(map[string]*beat)}
}

// add folds a record. What the fold does not accept is no part of the story.
func (s *story) add(keys *schema.Keys, rec *schema.Record) {
	v := s.state.Apply(keys, rec)
	if v.Event == nil || v.Kind != schema.Applied {
		return
	}
	at := instant(v.Event.Time)
	s.event(v, v.Event.Time, at)
	s.latest = at
}

func (s *story) say(b *beat) *beat {
	s.beats = append(s.beats, b)
	return b
}

func (s *story) event(v schema.Verdict, when string, at time.Time) {
	turn := s.state.Head.Turn
	switch d := v.Data.(type) {
	case *schema.RunStartedData:
		s.say(&beat{Kind: storyRun, What: "started", Detail: "by " + d.Executor, At: when})
	case *schema.RunResumedData:
		s.takeover(d, when)
	case *schema.RunOrphanedData:
		s.say(&beat{Kind: storyTakeover, What: "orphaned", Detail: d.Executor + " fell silent", At: when})
	case *schema.RunInterruptedData:
		if len(s.beats) == 1 && s.state.Head.Epoch == 1 { // for an executor to claim
			s.beats[0].What = submitted
			return
		}
		s.say(&beat{Kind: storyRun, What: "let go", Detail: d.Reason, At: when})
	case *schema.RunEndedData:
		s.end(d, when, at)
	case *schema.RunCancelRequestedData:
		s.say(&beat{Kind: storyRun, What: "cancel", Detail: "asked for by " + cmp.Or(d.By, "somebody"), At: when})
	case *schema.TurnStartedData:
		s.turn = &beat{Kind: storyModel, Turn: d.Turn, What: "model", At: when, Open: true}
		s.say(s.turn)
	case *schema.TurnAnsweredData:
		s.answered(d, when, at)
	case *schema.TurnEndedData:
		s.turnEnded(d, when, at)
	case *schema.ToolCalledData:
		s.called(v, d, turn, when)
	case *schema.ToolReturnedData:
		detail := ""
		if d.IsError != nil && *d.IsError {
			detail = "returned an error"
		}
		s.closed(v.Call, detail, d.DurationMS, at)
	case *schema.ToolFailedData:
		if b := s.calls[v.Call]; b != nil && d.Error.Type == schema.DeniedType {
			b.Open, b.Detail = false, "denied: "+encrypted.Field(d.Error.Message, d.Refs, "/error/message") // it took no time
			delete(s.calls, v.Call)
			return
		}
		s.closed(v.Call, "failed: "+d.Error.Type+": "+encrypted.Field(d.Error.Message, d.Refs, "/error/message"), d.DurationMS, at)
	case *schema.ToolSettledData:
		s.settled(v.Call, d, when, at)
	case *schema.RunWaitingData:
		s.waiting(d, turn, when)
	case *schema.RunInputData:
		s.input(d, at)
	default:
		s.note(v.Data, turn, when)
	}
}

// handedIn reports whether the run began without an executor.
func (s *story) handedIn() bool { return len(s.beats) > 0 && s.beats[0].What == submitted }

func (s *story) takeover(d *schema.RunResumedData, when string) {
	for _, b := range s.calls {
		if b.Detail != callRequested {
			b.Open, b.lost, b.Detail = false, true, "no outcome: its executor was gone"
		}
	}
	if s.turn != nil && s.turn.Open {
		s.turn.Open, s.turn.Detail = false, "no answer was recorded"
		s.turn = nil
	}
	if len(s.state.Takeovers) == 1 && s.handedIn() {
		s.say(&beat{Kind: storyRun, What: "claimed", Detail: "by " + d.Executor, At: when})
		return
	}
	what, detail := "taken over", "by "+d.Executor+" ("+d.Reason+")"
	if d.To != nil {
		what, detail = "went back", "behind "+d.To.Place().String()+", by "+d.Executor
	}
	s.say(&beat{Kind: storyTakeover, What: what, Detail: detail, At: when})
}

func (s *story) end(d *schema.RunEndedData, when string, at time.Time) {
	if s.turn != nil {
		s.turn.Open, s.turn.Detail = false, "no answer was recorded"
		s.turn = nil
	}
	for _, b := range s.calls {
		b.Open = false
		if b.Detail == callRequested || b.Detail == callRunning {
			b.Detail = "no outcome: the run ended"
		}
	}
	clear(s.calls)
	for _, b := range s.waits {
		b.Open = false
		b.took(0, at)
	}
	clear(s.waits)
	detail := encrypted.Field(d.Summary, d.Refs, "/summary")
	if d.Error != nil {
		why := d.Error.Type
		if d.Error.Message != "" {
			why += ": " + encrypted.Field(d.Error.Message, d.Refs, "/error/message")
		}
		if why != detail {
			detail = joined(why, detail)
		}
	}
	if n := len(s.state.Head.Signals); n > 0 {
		detail = joined(detail, output.Plural(n, "signal")+" unread")
	}
	kind := storyRun
	if d.Status == string(schema.StatusFailed) {
		kind = storyError
	}
	s.say(&beat{Kind: kind, What: d.Status, Detail: detail, At: when})
}

// answered ends the model's call: by its own word, or from the begin of the turn, or from the event before.
func (s *story) answered(d *schema.TurnAnsweredData, when string, at time.Time) {
	b := s.turn
	if b == nil || b.Turn != d.Turn {
		begun := s.latest
		b = s.say(&beat{Kind: storyModel, Turn: d.Turn, What: "model", At: schema.FormatTime(begun)})
		if begun.IsZero() {
			b.At = when
		}
	}
	s.turn = nil
	b.Open, b.Detail = false, joined(usageText(d.Usage), d.Model)
	b.took(d.DurationMS, at)
	for i, key := range keysOf(d) {
		call := &d.Calls[i]
		c := s.say(&beat{Kind: storyCall, Turn: d.Turn, What: call.Name, Detail: callRequested, At: when, Open: true})
		if call.Error != nil {
			c.Open, c.Detail = false, "not run: "+encrypted.Field(call.Error.Message, d.Refs, fmt.Sprintf("/calls/%d/error/message", i))
			continue
		}
		s.calls[key] = c
	}
}

// keysOf are the keys of an answer's calls, in its order.
func keysOf(d *schema.TurnAnsweredData) []schema.CallKey {
	keys := make([]schema.CallKey, len(d.Calls))
	seen := make(map[string]int)
	for i := range d.Calls {
		id := d.Calls[i].ToolCallID
		seen[id]++
		occurrence := d.Calls[i].Occurrence
		if occurrence == 0 {
			occurrence = seen[id]
		}
		keys[i] = schema.CallKey{Turn: d.Turn, ToolCallID: id, Occurrence: occurrence}
	}
	return keys
}

func (s *story) turnEnded(d *schema.TurnEndedData, when string, at time.Time) {
	if b := s.turn; b != nil && b.Turn == d.Turn {
		b.Open, b.Detail = false, usageText(d.Usage)
		b.took(0, at)
	}
	s.turn = nil
	if d.Error != nil {
		s.say(&beat{Kind: storyError, Turn: d.Turn, What: "turn ended", Detail: d.Error.Type + ": " + encrypted.Field(d.Error.Message, d.Refs, "/error/message"), At: when})
	}
}

func (s *story) called(v schema.Verdict, d *schema.ToolCalledData, turn int32, when string) {
	if b := s.calls[v.Call]; b != nil && !b.lost { // it begins now
		b.At, b.Detail = when, callRunning
		s.beats = append(slices.DeleteFunc(s.beats, func(other *beat) bool { return other == b }), b)
		return
	}
	s.calls[v.Call] = s.say(&beat{Kind: storyCall, Turn: cmp.Or(v.Call.Turn, turn), What: d.Name, Detail: callRunning, At: when, Open: true})
}

func (s *story) closed(key schema.CallKey, detail string, duration int64, at time.Time) {
	b := s.calls[key]
	if b == nil {
		return
	}
	delete(s.calls, key)
	if b.lost { // run again by the next executor, which need not have said so
		b = s.say(&beat{Kind: storyCall, Turn: b.Turn, What: b.What, At: schema.FormatTime(at.Add(-time.Duration(duration) * time.Millisecond))})
	}
	b.Open, b.Detail = false, detail
	b.took(duration, at)
}

// callRequested is the detail of a call that no executor has begun, callRunning of one that runs.
const callRequested, callRunning = "requested", "running"

// submitted is what begins a run that was handed in, and waits for an executor to claim it.
const submitted = "submitted"

func (s *story) settled(key schema.CallKey, d *schema.ToolSettledData, when string, at time.Time) {
	for id, b := range s.waits {
		if b.call == key.ToolCallID {
			b.Open = false
			b.took(0, at)
			delete(s.waits, id)
		}
	}
	name := key.ToolCallID
	if call := s.state.Call(key); call != nil {
		name = call.Name
	}
	by := ""
	if d.By != "" {
		by = " by " + d.By
	}
	b := s.say(&beat{Kind: storyCall, Turn: key.Turn, What: name, Detail: "was in doubt, settled as " + string(d.How) + by, At: when})
	delete(s.calls, key)
	if d.How == schema.SettledRerun {
		b.Open = true
		s.calls[key] = b
	}
}

// openTool is the tool of the open call with an id, the latest of them.
func (s *story) openTool(id string) (tool string) {
	for i := range s.state.Head.OpenCalls {
		if c := &s.state.Head.OpenCalls[i]; c.ToolCallID == id {
			tool = c.Name
		}
	}
	return tool
}

func (s *story) waiting(d *schema.RunWaitingData, turn int32, when string) {
	w := schema.OpenInterrupt{Reason: d.Reason, ToolCallID: d.ToolCallID, Message: encrypted.Field(d.Message, d.Refs, "/message")}
	tool := s.openTool(d.ToolCallID)
	b := &beat{Kind: storyWait, Turn: turn, What: "waits", Detail: strings.TrimPrefix(standstill.WaitText(&w, tool), "waits "), At: when, Open: true}
	if d.Reason == schema.WaitToolInDoubt {
		b.Detail, b.call = "a person must settle "+cmp.Or(tool, d.ToolCallID), d.ToolCallID
	}
	s.waits[d.InterruptID] = s.say(b)
}

func (s *story) input(d *schema.RunInputData, at time.Time) {
	b := s.waits[d.InterruptID]
	if b == nil {
		return
	}
	delete(s.waits, d.InterruptID)
	b.Open = false
	b.took(0, at)
	answer := cmp.Or(d.Status, schema.InputResolved)
	if len(d.Payload) > 0 {
		answer = string(d.Payload)
	}
	b.Detail = joined(b.Detail, cmp.Or(d.Claimed, d.By, "somebody")+": "+answer)
}

// note says what happens in no time.
func (s *story) note(data schema.Data, turn int32, when string) {
	b := &beat{Kind: storyNote, Turn: turn, At: when}
	switch d := data.(type) {
	case *schema.PhaseStartedData:
		b.What, b.Detail = "phase", d.Phase+" begins"
	case *schema.PhaseCompletedData:
		b.What, b.Detail = "phase", d.Phase+" is completed"
	case *schema.LimitReachedData:
		b.Kind, b.What, b.Detail = storyError, "limit", "reached "+limitText(d)
	case *schema.ContextCompactedData:
		b.What, b.Detail = "compacted", compactionText(d)
	case *schema.HandoffOfferedData:
		b.What, b.Detail = "hand-off", joined("offered", d.NextAgent)
	case *schema.HandoffAcceptedData:
		b.What, b.Detail = "hand-off", "accepted, carried out by "+d.ChildRun
	case *schema.HandoffDeclinedData:
		b.What, b.Detail = "hand-off", joined("declined", d.Reason)
	case *schema.HandoffClosedData:
		b.What, b.Detail = "hand-off", "closed"
	case *schema.ArtifactAddedData:
		made := artifactOf(&schema.StateArtifact{ArtifactAddedData: *d})
		b.What, b.Detail = "artifact", joined(cmp.Or(d.Name, d.ArtifactID), d.MediaType, made.sizeText(), made.wherePeople())
	case *schema.CheckpointMarkedData:
		b.What, b.Detail = "mark", d.Name
	case *schema.ErrorRaisedData:
		b.Kind, b.What, b.Detail = storyError, "error", d.Error.Type+": "+encrypted.Field(d.Error.Message, d.Refs, "/error/message")
	case *schema.ToolDecidedData:
		if d.Decision == schema.DecisionAllow {
			return
		}
		decision := d.Decision
		if d.Mode == schema.ModeObserve {
			decision += " (observed)"
		}
		b.What, b.Detail = "policy", joined(decision+" about "+cmp.Or(s.openTool(d.ToolCallID), d.ToolCallID), d.Policy, encrypted.Field(d.Reason, d.Refs, "/reason"))
	case *schema.SignalSentData:
		b.What, b.Detail = "signal", joined(d.Name, "from "+cmp.Or(d.Claimed, d.By, "somebody"))
	case *schema.SignalConsumedData:
		b.What, b.Detail = "signal", output.Plural(len(d.SignalIDs), "signal")+" consumed"
	default:
		return // the conversation, and the application's state, are of other commands
	}
	s.say(b)
}

// took says how long something took that began before: by its own word, else up to a time.
func (b *beat) took(said int64, at time.Time) {
	if said == 0 {
		begun := instant(b.At)
		if begun.IsZero() || at.Before(begun) {
			return
		}
		said = at.Sub(begun).Milliseconds()
	}
	b.DurationMS = &said
}

// usageText are the tokens of a model's call.
func usageText(u *schema.Usage) string {
	if u == nil || u.IsZero() {
		return ""
	}
	return tokensText(*u)
}

// joined joins what is not empty.
func joined(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), "; ")
}

// span is a duration for people.
func span(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm %02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh %02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd %02dh", int(d.Hours())/24, int(d.Hours())%24)
}
