package story

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waymarkio/waymark/internal/base/encryption"
	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/look/standstill"
	"github.com/waymarkio/waymark/schema"
)

// Kinds of the lines of a story, as JSON has them.
const (
	KindRun      = "run"
	KindModel    = "model"
	KindCall     = "call"
	KindTakeover = "takeover"
	KindWait     = "wait"
	KindNote     = "note"
	KindError    = "error"
)

// unnamed is the author of an event that names none.
const unnamed = "an unnamed client"

// Beat is one line of a run's story: something that took time, or that happened.
type Beat struct {
	Kind string `json:"kind"`
	// Turn it belongs to; 0 for none.
	Turn int32 `json:"turn,omitzero"`
	// What is the subject: the name of a tool, the model.
	What string `json:"what"`
	// Detail in words.
	Detail string `json:"detail,omitzero"`
	// At is the time of its begin, RFC 3339. DurationMS is its duration so far; absent for an instant.
	At         string `json:"at,omitzero"`
	DurationMS *int64 `json:"duration_ms,omitzero"`
	// Open: it has not ended.
	Open bool `json:"open,omitzero"`
	// Record is the number of its first record.
	Record int64 `json:"-"`
	// by is the sub-agent of a call. lost: a takeover came before its outcome.
	by   string
	lost bool
	// own: calls or messages of the turn came without an answer.
	own bool
	// call that a wait is about; empty for none.
	call schema.CallKey
}

// Story collects the beats of a run from its events.
type Story struct {
	State *schema.State
	order schema.Order
	beats []*Beat
	// calls and waits that are open, by key; turn is the open call of the model.
	calls map[schema.CallKey]*Beat
	waits map[string]*Beat
	turn  *Beat
	// asked are the keys of requested calls, in order.
	asked []schema.CallKey
	// latest is the time of the previous event.
	latest time.Time
	// submitted: the run was created for an executor to claim. takeovers and signals count takeovers and open signals.
	submitted          bool
	takeovers, signals int
	// version is the last one of the agent; nil if none is known.
	version *schema.Version
	// at is the place of the current record.
	at moment
}

// moment is the place of a record in its run.
type moment struct {
	record int64
	epoch  schema.Epoch
	turn   int32
}

// New begins the story of a run.
func New(fleet, run string) *Story {
	return &Story{State: schema.NewState(fleet, run), calls: make(map[schema.CallKey]*Beat), waits: make(map[string]*Beat)}
}

// Source has the events of runs.
type Source interface {
	Name() string
	Keys(ctx context.Context) (*schema.Keys, error)
	Walk(ctx context.Context, run string, to schema.Point, yield func(*schema.Step) error) error
	// Decrypt decrypts the content of an event as far as there are keys.
	Decrypt(ctx context.Context, e *schema.Event, data schema.Data) error
}

// Read collects the story of a run. If events are missing, it is the story of the others.
func Read(ctx context.Context, from Source, head *schema.Head) (*Story, error) {
	s := New(from.Name(), head.Run)
	s.State.Open(func(e *schema.Event, data schema.Data) { _ = from.Decrypt(ctx, e, data) }) // what stays encrypted is shown as that
	return s, from.Walk(ctx, head.Run, schema.Point{}, func(step *schema.Step) error {
		keys, err := from.Keys(ctx)
		if err == nil {
			s.Add(keys, &step.Record)
		}
		return err
	})
}

// Empty reports whether there are no lines.
func (s *Story) Empty() bool { return len(s.beats) == 0 }

// Add folds a record. Refused events have no line.
func (s *Story) Add(keys *schema.Keys, rec *schema.Record) {
	s.order.Next(&s.State.Head, rec)
	v := s.State.Apply(keys, rec)
	if v.Event == nil || v.Kind != schema.Applied {
		return
	}
	h := &s.State.Head
	s.at, s.signals = moment{h.Records, h.Epoch, h.Turn}, len(h.Signals)
	s.tell(v)
}

// tell adds an accepted event.
func (s *Story) tell(v schema.Verdict) {
	at := schema.ParseTime(v.Event.Time)
	s.event(v, v.Event.Time, at)
	s.latest = at
}

func (s *Story) say(b *Beat) *Beat {
	b.Record = s.at.record
	s.beats = append(s.beats, b)
	return b
}

func (s *Story) event(v schema.Verdict, when string, at time.Time) {
	turn := s.at.turn
	if v.Data != nil {
		v.Data = encryption.ReadableContent(v.Data) // the state has its own, with what can be decrypted later
	}
	switch d := v.Data.(type) {
	case *schema.RunStartedData:
		s.say(&Beat{Kind: KindRun, What: "started", Detail: "by " + d.Executor, At: when})
		s.version = d.Version
	case *schema.RunResumedData:
		s.takeover(d, when)
	case *schema.RunOrphanedData:
		s.say(&Beat{Kind: KindTakeover, What: "orphaned", Detail: d.Executor + " fell silent", At: when})
	case *schema.RunInterruptedData:
		if len(s.beats) <= 1 && s.at.epoch == 1 && s.at.turn == 0 { // for an executor to claim
			s.submitted = true
			for _, b := range s.beats {
				b.What = submitted
			}
			return
		}
		if d.Reason != schema.InterruptedWaiting {
			s.left()
		}
		s.say(&Beat{Kind: KindRun, What: "released", Detail: d.Reason, At: when})
	case *schema.RunEndedData:
		s.end(d, when, at)
	case *schema.RunCancelRequestedData:
		s.say(&Beat{Kind: KindRun, What: "cancel", Detail: "asked for by " + cmp.Or(d.By, unnamed), At: when})
	case *schema.RunPausedData:
		s.say(&Beat{Kind: KindRun, What: "paused", Detail: "by " + cmp.Or(d.By, unnamed) + ": " + d.Reason, At: when})
	case *schema.MessageAddedData:
		if s.turn != nil && d.Message.Role == schema.RoleAssistant {
			s.turn.own = true
		}
	case *schema.TurnStartedData:
		s.unanswered()
		if changes := schema.Drift(s.version, d.Version, nil); len(changes) > 0 {
			s.say(&Beat{Kind: KindRun, What: "version", Turn: d.Turn, Detail: strings.Join(changes, "; "), At: when})
		}
		s.version = cmp.Or(d.Version, s.version)
		s.turn = &Beat{Kind: KindModel, Turn: d.Turn, What: "model", At: when, Open: true}
		s.say(s.turn)
	case *schema.TurnAnsweredData:
		s.answered(d, when, at)
	case *schema.TurnEndedData:
		s.turnEnded(d, when, at)
	case *schema.ToolCalledData:
		s.called(v, d, when)
	case *schema.ToolReturnedData:
		detail := ""
		if d.IsError != nil && *d.IsError {
			detail = "returned an error"
		}
		s.closed(v.Call, detail, d.DurationMS, at)
	case *schema.ToolFailedData:
		if b := s.calls[v.Call]; b != nil && d.Error.Type == schema.DeniedType {
			b.Open, b.Detail = false, "denied: "+d.Error.Message // it took no time
			delete(s.calls, v.Call)
			return
		}
		s.closed(v.Call, "failed: "+d.Error.Type+": "+d.Error.Message, d.DurationMS, at)
	case *schema.ToolSettledData:
		s.settled(v.Call, d, when, at)
	case *schema.RunWaitingData:
		s.waiting(v.Call, d, turn, when)
	case *schema.RunInputData:
		s.input(d, at)
	default:
		s.note(v, turn, when)
	}
}

// left ends what the executor did that has left the run.
func (s *Story) left() {
	for _, b := range s.calls {
		if b.Detail != CallRequested && !b.lost {
			b.Open, b.lost, b.Detail = false, true, "no outcome: its executor was gone"
		}
	}
	s.unanswered()
}

func (s *Story) takeover(d *schema.RunResumedData, when string) {
	s.left()
	s.takeovers++
	if s.takeovers == 1 && s.submitted {
		s.say(&Beat{Kind: KindRun, What: "claimed", Detail: "by " + d.Executor, At: when})
		return
	}
	if d.To != nil {
		s.say(&Beat{Kind: KindTakeover, What: "went back", Detail: "behind " + d.To.Place().String() + ", by " + d.Executor, At: when})
		return
	}
	s.say(&Beat{Kind: KindTakeover, What: "taken over", Detail: "by " + d.Executor + " (" + d.Reason + ")", At: when})
	// What becomes of a call that was only asked for is the next executor's doing.
	for _, key := range s.asked {
		if b := s.calls[key]; b != nil && b.Detail == CallRequested {
			s.move(b, when)
		}
	}
}

// unanswered ends a turn that got no answer. If it got calls or messages, its loop is another program's, and it had no
// request to a model.
func (s *Story) unanswered() {
	if s.turn == nil {
		return
	}
	s.turn.Open, s.turn.Detail = false, "no answer was recorded"
	if s.turn.own {
		s.beats = slices.DeleteFunc(s.beats, func(b *Beat) bool { return b == s.turn })
	}
	s.turn = nil
}

// move puts a line at the end: its call begins now.
func (s *Story) move(b *Beat, when string) {
	b.At, b.Record = when, s.at.record
	s.beats = append(slices.DeleteFunc(s.beats, func(other *Beat) bool { return other == b }), b)
}

func (s *Story) end(d *schema.RunEndedData, when string, at time.Time) {
	s.unanswered()
	for _, b := range s.calls { // they stay: the run may be reopened
		b.Open, b.lost = false, true
		if b.Detail == CallRequested || b.Detail == callRunning {
			b.Detail = "no outcome: the run ended"
		}
	}
	for _, b := range s.waits {
		b.Open = false
		b.took(0, at)
	}
	clear(s.waits)
	detail := d.Summary
	if d.Error != nil {
		why := d.Error.Type
		if d.Error.Message != "" {
			why += ": " + d.Error.Message
		}
		if why != detail {
			detail = joined(why, detail)
		}
	}
	if n := s.signals; n > 0 {
		detail = joined(detail, output.Plural(n, "signal")+" unread")
	}
	kind := KindRun
	if d.Status == string(schema.StatusFailed) {
		kind = KindError
	}
	s.say(&Beat{Kind: kind, What: d.Status, Detail: detail, At: when})
}

// answered ends the model's call. Its duration is the recorded one, else since the start of the turn or the previous event.
func (s *Story) answered(d *schema.TurnAnsweredData, when string, at time.Time) {
	b := s.turn
	if b == nil || b.Turn != d.Turn {
		begun := s.latest
		b = s.say(&Beat{Kind: KindModel, Turn: d.Turn, What: "model", At: schema.FormatTime(begun)})
		if begun.IsZero() {
			b.At = when
		}
	}
	s.turn = nil
	b.Open, b.Detail = false, joined(usageText(d.Usage), d.Model)
	b.took(d.DurationMS, at)
	s.asked = slices.DeleteFunc(s.asked, func(key schema.CallKey) bool { return s.calls[key] == nil })
	for i, key := range keysOf(d) {
		call := &d.Calls[i]
		c := s.say(&Beat{Kind: KindCall, Turn: d.Turn, What: call.Name, Detail: CallRequested, At: when, Open: true})
		if call.Error != nil {
			c.Open, c.Detail = false, "not run: "+call.Error.Message
			continue
		}
		s.calls[key] = c
		s.asked = append(s.asked, key)
	}
}

// keysOf are the keys of an answer's calls, in order.
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

func (s *Story) turnEnded(d *schema.TurnEndedData, when string, at time.Time) {
	if b := s.turn; b != nil && b.Turn == d.Turn {
		b.Open, b.Detail = false, usageText(d.Usage)
		b.took(0, at)
	}
	s.turn = nil
	if d.Error != nil {
		s.say(&Beat{Kind: KindError, Turn: d.Turn, What: "turn ended", Detail: d.Error.Type + ": " + d.Error.Message, At: when})
	}
}

func (s *Story) called(v schema.Verdict, d *schema.ToolCalledData, when string) {
	if b := s.calls[v.Call]; b != nil && !b.lost { // it begins now
		b.Detail = callRunning
		s.move(b, when)
		return
	}
	if s.turn != nil {
		s.turn.own = true
	}
	s.calls[v.Call] = s.say(&Beat{Kind: KindCall, Turn: v.Call.Turn, What: d.Name, Detail: joined(callRunning, SubAgent(d.Source)), At: when, Open: true, by: SubAgent(d.Source)})
}

// SubAgent names the sub-agent of a call's source; empty if it names none.
func SubAgent(source []byte) string {
	var of struct {
		ID   string `json:"agent_id"`
		Type string `json:"agent_type"`
	}
	if json.Unmarshal(source, &of) != nil || of.ID == "" {
		return "" // a source has any form
	}
	return "sub-agent " + strings.TrimLeft(of.Type+" "+of.ID, " ")
}

func (s *Story) closed(key schema.CallKey, detail string, duration int64, at time.Time) {
	b := s.calls[key]
	if b == nil {
		return
	}
	delete(s.calls, key)
	begun := at.Add(-time.Duration(duration) * time.Millisecond)
	switch {
	case b.lost: // run again by the next executor, which need not have said so
		b = s.say(&Beat{Kind: KindCall, Turn: b.Turn, What: b.What, At: schema.FormatTime(begun), by: b.by})
	case b.Detail == CallRequested && duration > 0 && begun.After(schema.ParseTime(b.At)): // its executor did not say that it began
		b.At = schema.FormatTime(begun)
	}
	b.Open, b.Detail = false, joined(detail, b.by)
	b.took(duration, at)
}

// CallRequested is the detail of a requested call, callRunning of a begun one.
const CallRequested, callRunning = "requested", "running"

// submitted is the first line of a run that waits for an executor to claim it.
const submitted = "submitted"

func (s *Story) settled(key schema.CallKey, d *schema.ToolSettledData, when string, at time.Time) {
	for id, b := range s.waits {
		if b.call == key {
			b.Open = false
			b.took(0, at)
			delete(s.waits, id)
		}
	}
	name := cmp.Or(s.tool(key), key.ToolCallID)
	by := ""
	if d.By != "" {
		by = " by " + d.By
	}
	b := s.say(&Beat{Kind: KindCall, Turn: key.Turn, What: name, Detail: "was in doubt, settled as " + string(d.How) + by, At: when})
	delete(s.calls, key)
	if d.How == schema.SettledRerun {
		b.Open = true
		s.calls[key] = b
	}
}

// tool is the tool of an open call.
func (s *Story) tool(key schema.CallKey) string {
	if b := s.calls[key]; b != nil {
		return b.What
	}
	return ""
}

func (s *Story) waiting(key schema.CallKey, d *schema.RunWaitingData, turn int32, when string) {
	w := schema.OpenInterrupt{InterruptID: d.InterruptID, Reason: d.Reason, ToolCallID: d.ToolCallID, Message: d.Message, Since: when, ExpiresAt: d.ExpiresAt}
	tool := s.tool(key)
	b := &Beat{Kind: KindWait, Turn: turn, What: "waits", Detail: strings.TrimPrefix(standstill.WaitText(&w, tool), "waits "), At: when, Open: true}
	if d.Reason == schema.WaitToolInDoubt {
		b.Detail, b.call = "a person must settle "+strings.TrimSpace(tool+" call "+d.ToolCallID), key
	}
	s.waits[d.InterruptID] = s.say(b)
}

func (s *Story) input(d *schema.RunInputData, at time.Time) {
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
	b.Detail = joined(b.Detail, cmp.Or(d.Claimed, d.By, unnamed)+": "+answer)
}

// note adds the line of an event that takes no time. The conversation and the application's state have none here.
func (s *Story) note(v schema.Verdict, turn int32, when string) {
	if d := Describe(v.Data, s.tool(v.Call)); d.What != "" {
		kind := KindNote
		if d.Bad {
			kind = KindError
		}
		s.say(&Beat{Kind: kind, Turn: turn, What: d.What, Detail: d.Detail, At: when})
	}
}

// took sets the duration: the recorded one, else up to a time.
func (b *Beat) took(said int64, at time.Time) {
	if said == 0 {
		begun := schema.ParseTime(b.At)
		if begun.IsZero() || at.Before(begun) {
			return
		}
		said = at.Sub(begun).Milliseconds()
	}
	b.DurationMS = &said
}

// usageText formats the tokens of a model's call.
func usageText(u *schema.Usage) string {
	if u == nil || u.IsZero() {
		return ""
	}
	return TokensText(*u)
}

// joined joins the texts that are not empty.
func joined(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), "; ")
}

// Span formats a duration.
func Span(d time.Duration) string {
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

// Barred reports whether the line has a bar: work has one, waiting has none.
func (b *Beat) Barred() bool { return b.Kind == KindModel || b.Kind == KindCall }

// TokensText formats the used tokens.
func TokensText(u schema.Usage) string {
	if u.IsZero() {
		return ""
	}
	t := fmt.Sprintf("%d in, %d out", u.InputTokens, u.OutputTokens)
	if u.CacheReadInputTokens > 0 {
		t += fmt.Sprintf(", %d from cache", u.CacheReadInputTokens)
	}
	return t
}

// Tones of a line, for its colour.
const (
	ToneBad   = "bad"
	ToneWait  = "wait"
	ToneModel = "model"
	ToneCall  = "call"
)

// Tone of a line; empty for a plain one.
func (b *Beat) Tone() string {
	switch {
	case b.Kind == KindError || strings.HasPrefix(b.Detail, "failed: "):
		return ToneBad
	case b.Kind == KindWait, b.Kind == KindTakeover, b.Open, b.Barred() && b.DurationMS == nil:
		return ToneWait
	case b.Kind == KindModel:
		return ToneModel
	case b.Kind == KindCall:
		return ToneCall
	}
	return ""
}
