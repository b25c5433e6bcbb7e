package randomlog

import (
	"cmp"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"pgregory.net/rapid"

	"github.com/waymarkio/waymark/schema"
)

// Log is a random log of one run: of valid writers, fenced writers, plain executors, the daemon, and everything that can go wrong between them and
// the log. It follows the fold under test only to know the next valid event.
type Log struct {
	// Head is that of Records.
	Head    schema.Head
	Records []schema.Record

	t       *rapid.T
	old     []schema.Writer
	w       schema.Writer
	nonce   int
	keys    *schema.Keys
	signers []Signer
}

// Signer signs with a key.
type Signer struct {
	Name string
	Sign func(text []byte) ([]byte, error)
}

// Config is what a log is drawn with.
type Config struct {
	// Fleet is "f" if it is empty. Run is required.
	Fleet, Run string
	// Keys are the fleet's; nil for a fleet without. Signers are then three: of a valid key, of one that is retired for part of the time, and of one that
	// is not the fleet's.
	Keys    *schema.Keys
	Signers []Signer
}

func begin(t *rapid.T, cfg Config) *Log {
	fleet := cmp.Or(cfg.Fleet, "f")
	return &Log{
		t: t, keys: cfg.Keys, signers: cfg.Signers, Head: schema.NewHead(fleet, cfg.Run),
		w: schema.Writer{Fleet: fleet, Run: cfg.Run, Executor: "ex-1", Epoch: 1},
	}
}

// Draw draws a log of up to so many steps, each of which adds a record or two.
func Draw(t *rapid.T, cfg Config, steps int) *Log {
	s := begin(t, cfg)
	if rapid.IntRange(0, 9).Draw(t, "opened") > 0 {
		s.write(&schema.RunStartedData{Agent: "a", Executor: "ex-1", Instance: s.oneOf("instance", "", "i1"), Labels: map[string]string{"k": "v", "l": "w"}}, 0)
	}
	s.opening()
	for range rapid.IntRange(1, steps).Draw(t, "steps") {
		s.Step()
	}
	return s
}

// Begin begins a log with its first event. [Log.Step] continues it.
func Begin(t *rapid.T, cfg Config, start *schema.RunStartedData) *Log {
	s := begin(t, cfg)
	s.write(start, 0)
	return s
}

// opening brings the run into states that chance alone seldom reaches.
func (s *Log) opening() {
	n := s.pick("opening", 10)
	if n > 1 && s.pick("requested", 3) == 0 {
		s.write(&schema.TurnAnsweredData{Turn: 1, Message: assistantMessage(), Calls: []schema.RequestedCall{
			{ToolCallID: "c1", Name: "pay", Replay: schema.Replay(s.oneOf("replay", "", "idempotent"))}, {ToolCallID: "c2", Name: "ls"}, {ToolCallID: "c1", Name: "pay"},
		}}, 1)
		s.takeoverAs("claim", s.Head.Epoch+1)
	} else if n > 1 {
		s.write(&schema.ToolCalledData{ToolCallID: "c1", Name: "pay", Replay: schema.Replay(s.oneOf("replay", "", "idempotent"))}, 1)
		s.takeoverAs("claim", s.Head.Epoch+1)
	}
	if n == 3 || n > 6 {
		s.control(&schema.RunOrphanedData{Executor: s.Head.Executor}, s.Head.Epoch)
		s.takeoverAs("claim", s.Head.Epoch+1)
	}
	if n > 3 {
		s.write(&schema.RunWaitingData{InterruptID: "i1", Reason: schema.WaitToolInDoubt, ToolCallID: "c1"}, 1)
	}
	if n == 1 || n == 5 {
		s.write(&schema.RunWaitingData{InterruptID: "i2", Reason: schema.WaitAuth}, 0)
	}
	if n == 1 || n > 4 {
		s.write(&schema.RunInterruptedData{Reason: "waiting"}, 0)
	}
	if n == 8 {
		s.control(&schema.RunCancelRequestedData{By: "op"}, s.Head.Epoch)
	}
	if n == 6 || n == 7 {
		s.control(&schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledRerun, By: "op"}, s.Head.Epoch)
	}
	if n == 6 {
		s.takeoverAs("claim", s.Head.Epoch+1)
	}
}

func (s *Log) pick(label string, n int) int { return rapid.IntRange(0, n-1).Draw(s.t, label) }

func (s *Log) oneOf(label string, from ...string) string {
	return rapid.SampledFrom(from).Draw(s.t, label)
}

func (s *Log) now() time.Time {
	return time.Unix(1_700_000_000+int64(len(s.Records)), 0)
}

func (s *Log) push(header map[string][]string, body []byte) {
	rec := schema.NewRecord(schema.StreamSequence(len(s.Records)*2+1), header, body) //nolint:gosec // a small count
	keys := schema.NoKeys
	if s.keys != nil {
		keys, rec.Stored = s.keys, s.now().UnixNano()
	}
	s.Head.Apply(keys, &rec)
	s.Records = append(s.Records, rec)
	// Events that the log accepted advance the valid writer.
	if s.Head.Epoch == s.w.Epoch {
		s.w.Last = s.Head.Sequence
	}
}

func (s *Log) write(d schema.Data, turn int32) {
	e, err := s.w.Event(d, turn, s.now(), 0)
	if err != nil {
		s.t.Fatalf("generator made invalid data: %v", err)
	}
	s.push(e.Encode())
}

func (s *Log) control(d schema.Data, epoch schema.Epoch) {
	s.nonce++
	e, err := schema.NewControl(s.Head.Fleet, "daemon", s.Head.Run, epoch, fmt.Sprint(s.nonce), d, s.now())
	if err != nil {
		s.t.Fatalf("generator made an invalid control event: %v", err)
	}
	s.sign(e)
	s.push(e.Encode())
}

// sign signs a control event of a fleet with keys, sometimes wrongly or not at all.
func (s *Log) sign(e *schema.Event) {
	if s.keys == nil {
		return
	}
	digest, key := s.Head.Digest, s.signers[0]
	switch s.pick("signature", 24) {
	case 0:
		return
	case 1:
		digest = schema.Hash{}.String()
	case 2:
		key = s.signers[2] // not a key of the fleet
	case 3:
		key = s.signers[1] // retired for part of the time
	}
	if err := e.Sign(key.Name, digest, key.Sign); err != nil {
		s.t.Fatalf("signature: %v", err)
	}
	if s.pick("changed", 24) == 0 {
		e.Time = schema.FormatTime(s.now().Add(time.Hour))
	}
}

func (s *Log) takeover() {
	if s.Head.Epoch == 0 {
		return
	}
	epoch := s.Head.Epoch + 1
	switch s.pick("takeover", 8) {
	case 0:
		epoch++
	case 1:
		epoch = s.Head.Epoch
	}
	s.takeoverAs(s.oneOf("reason", "claim", "claim", "restart", "request", "input", "reopen"), epoch)
}

func (s *Log) takeoverAs(reason string, epoch schema.Epoch) { s.takeoverTo(reason, epoch, nil) }

// Rewind adds a takeover that continues after a record, mostly a valid one.
func (s *Log) Rewind(to *schema.Base) { s.takeoverTo(schema.TakeoverRewind, s.Head.Epoch+1, to) }

func (s *Log) takeoverTo(reason string, epoch schema.Epoch, to *schema.Base) {
	from := schema.From{Epoch: max(s.Head.Epoch, 1), Sequence: s.Head.Sequence, Digest: s.Head.Digest}
	if from.Digest == "" {
		from.Digest = schema.Hash{}.String()
	}
	if s.pick("from elsewhere", 16) == 15 {
		from.Sequence++
	}
	executor := fmt.Sprintf("ex-%d", s.nonce)
	before := s.Head.Epoch
	s.control(&schema.RunResumedData{
		Executor: executor, RequestID: "q", From: from, Instance: s.oneOf("instance", "", "i2"), Reason: reason, To: to,
	}, epoch)
	if s.Head.Epoch > before && s.Head.Epoch > 1 {
		s.old = append(s.old, s.w)
		s.w = schema.Writer{Fleet: s.Head.Fleet, Run: s.Head.Run, Executor: executor, Epoch: s.Head.Epoch}
	}
}

// Step adds one or two records to the log.
func (s *Log) Step() {
	switch n := s.pick("step", 100); {
	case n < 36:
		d, turn := s.data()
		s.write(d, turn)
	case n < 52:
		s.life()
	case n < 60:
		s.takeover()
	case n < 67:
		s.control(s.controlData(), max(s.Head.Epoch, 1))
	case n < 71 && len(s.Records) > 0: // a message is in the log again
		rec := s.Records[s.pick("again", len(s.Records))]
		s.push(rec.Header, rec.Body)
	case n < 80: // an older executor goes on
		if len(s.old) == 0 {
			return
		}
		i := s.pick("old", len(s.old))
		w := &s.old[i]
		d, turn := s.data()
		if open := s.Head.OpenCalls; len(open) > 0 && s.pick("result", 2) == 0 { // it comes back from a call
			c := open[s.pick("open call", len(open))]
			d, turn = &schema.ToolReturnedData{ToolCallID: c.ToolCallID, Result: []byte("1")}, c.Turn
			if s.pick("failed", 3) == 0 {
				d = &schema.ToolFailedData{ToolCallID: c.ToolCallID, Error: schema.Error{Type: "late"}}
			}
		}
		e, err := w.Event(d, turn, s.now(), 0)
		if err == nil && w.Commit(e) == nil {
			s.push(e.Encode())
		}
	case n < 84: // events arrive in the wrong order, and perhaps again
		a, turn := s.data()
		b, turn2 := s.data()
		e1, _ := s.w.Event(a, turn, s.now(), 0)
		e2, _ := s.w.Event(b, turn2, s.now(), 1)
		s.push(e2.Encode())
		s.push(e1.Encode())
		if s.pick("heal", 2) == 0 {
			s.push(e2.Encode())
		}
	case n < 86: // a fork of the last event
		if s.w.Last == 0 {
			return
		}
		w := s.w
		w.Last--
		d, turn := s.data()
		e, _ := w.Event(d, turn, s.now(), 0)
		s.push(e.Encode())
	case n < 93:
		s.plain()
	case n < 96:
		s.mutated()
	default:
		s.garbage()
	}
}

func (s *Log) plain() {
	var d schema.Data
	turn := int32(0)
	if s.pick("control", 5) == 0 {
		d = s.controlData()
	} else {
		d, turn = s.data()
	}
	s.nonce++
	e := &schema.Event{
		ID: fmt.Sprintf("plain-%d", s.pick("id", 5)+s.nonce/2), Source: s.oneOf("source", "/waymark/f/p", "urn:x"),
		Type: schema.TypeOf(d.EventName()), Subject: s.oneOf("subject", s.Head.Run, ""), Turn: turn,
	}
	if s.pick("epoch", 4) == 0 {
		e.Epoch = s.Head.Epoch
	}
	if s.pick("unknown", 6) == 0 {
		e.Type = s.oneOf("type", "com.example.thing", "io.waymark.tool.called.v2", "io.waymark.new.thing.v1")
	}
	e.Data, _ = json.Marshal(d, json.Deterministic(true))
	s.push(e.Encode())
}

// mutated is a valid next event with its data or a header changed.
func (s *Log) mutated() {
	d, turn := s.data()
	e, err := s.w.Event(d, turn, s.now(), 0)
	if err != nil {
		s.t.Fatalf("generator: %v", err)
	}
	if s.pick("sealed", 2) == 0 { // the writer itself wrote nonsense
		e.Data = s.mutate(e.Data)
		e.Seal()
		s.push(e.Encode())
		return
	}
	header, body := e.Encode()
	if s.pick("where", 2) == 0 {
		body = s.mutate(body)
	} else {
		name := s.oneOf("header", "ce-epoch", "ce-sequence", "ce-turn", "ce-subject", "ce-source", "ce-time", "ce-type", "ce-id")
		value := s.oneOf("value", "", "0", "1", "2", "99999999999", "/waymark/g/x", "r2", "%", "%00", "caf\u00e9")
		header[name] = []string{value}
	}
	s.push(header, body)
}

func (s *Log) mutate(b []byte) []byte {
	b = append([]byte(nil), b...)
	switch i := s.pick("at", len(b)); s.pick("how", 3) {
	case 0:
		b[i] = rapid.Byte().Draw(s.t, "byte")
	case 1:
		b = append(b[:i], b[i+1:]...)
	default:
		b = append(b[:i+1], b[i:]...)
	}
	return b
}

func (s *Log) garbage() {
	header := map[string][]string{}
	for range s.pick("headers", 4) {
		header[rapid.StringMatching(`(ce-|CE-)?[a-z]{0,8}`).Draw(s.t, "name")] = []string{rapid.String().Draw(s.t, "text")}
	}
	s.push(header, []byte(s.oneOf("body", "", "{", "null", `{"specversion":"1.0"}`, `{"specversion":"1.0","id":"x","source":"y","type":"z","subject":"r1"}`, "\xff")))
}

// life is an event in the life of a run and its executor: it waits, stops, falls silent, is answered, is taken over.
func (s *Log) life() {
	switch s.pick("life", 6) {
	case 0:
		s.write(s.waiting(), 0)
	case 1:
		s.write(&schema.RunInterruptedData{Reason: s.oneOf("why", "shutdown", "waiting", "unavailable", "paused")}, 0)
	case 2:
		s.control(&schema.RunOrphanedData{Executor: s.Head.Executor}, max(s.Head.Epoch, 1))
	case 3:
		s.control(s.input(), max(s.Head.Epoch, 1))
	case 4:
		s.control(s.settled(), max(s.Head.Epoch, 1))
	default:
		s.takeover()
	}
}

// waiting is often about a call in doubt, if there is one.
func (s *Log) waiting() schema.Data {
	d := &schema.RunWaitingData{InterruptID: s.oneOf("interrupt", "i1", "i2", "i3", schema.ChildWait("c")), Reason: s.oneOf("reason", "auth", "tool_approval", "tool_in_doubt", "signal", "timer")}
	if d.Reason == schema.WaitTimer {
		d.ExpiresAt = "2026-01-02T03:04:05Z"
	}
	if open := s.Head.OpenCalls; len(open) > 0 && s.pick("about a call", 3) > 0 {
		c := open[s.pick("open call", len(open))]
		d.ToolCallID, d.Occurrence = c.ToolCallID, s.pick("occurrence", 2)*c.Occurrence
	} else if d.Reason == schema.WaitToolInDoubt {
		d.ToolCallID = "c9"
	}
	return d
}

func (s *Log) input() schema.Data {
	d := &schema.RunInputData{InterruptID: s.oneOf("interrupt", "i1", "i2", "i3"), Payload: []byte(s.oneOf("answer", `{"ok":true}`, `{"decision":"allow"}`, `{"decision":"deny"}`))}
	if open := s.Head.Interrupts; len(open) > 0 && s.pick("open", 4) > 0 {
		d.InterruptID = open[s.pick("interrupt", len(open))].InterruptID
	}
	return d
}

func (s *Log) controlData() schema.Data {
	handoff := s.oneOf("handoff", "h1", "h1", "h2")
	switch s.pick("control data", 11) {
	case 8, 9:
		return &schema.SignalSentData{SignalID: s.oneOf("signal", "s1", "s2", "s3", schema.ChildWait("c")+".1"), Name: "note"}
	case 0, 1:
		return s.input()
	case 2:
		if s.oneOf("request", "cancel", "pause") == "pause" {
			return &schema.RunPausedData{By: "op", Reason: "stop"}
		}
		return &schema.RunCancelRequestedData{By: "op"}
	case 3:
		return &schema.RunOrphanedData{Executor: s.Head.Executor, Unheld: s.oneOf("unheld", "", "yes") == "yes"}
	case 4, 5:
		d := &schema.HandoffAcceptedData{HandoffID: handoff, By: "b", ChildRun: "r2"}
		if open := s.Head.Handoffs; len(open) > 0 {
			d.HandoffID = open[0].HandoffID
			d.OfferHash = s.oneOf("offer", "", open[0].OfferHash, schema.Hash{}.String())
		}
		return d
	case 6:
		return &schema.HandoffDeclinedData{HandoffID: handoff}
	case 7:
		return &schema.HandoffClosedData{HandoffID: handoff}
	default:
		return s.settled()
	}
}

func (s *Log) settled() schema.Data {
	id := s.oneOf("call", "c1", "c2", "c3")
	if doubt := s.Head.InDoubt(); len(doubt) > 0 && s.pick("in doubt", 4) > 0 {
		id = doubt[0].ToolCallID
	}
	return &schema.ToolSettledData{
		ToolCallID: id, Occurrence: s.occurrence(), By: s.by(), Claimed: s.oneOf("claimed", "", "", "", "", "", "bob"),
		How: schema.Settlement(s.oneOf("how settled", "rerun", "verified", "adopted", "abandoned", "decided")),
	}
}

// data draws an executor's event and its turn attribute. Most are plausible next events.
func (s *Log) data() (schema.Data, int32) {
	turn := s.Head.Turn
	if s.pick("no turn", 8) == 0 {
		turn = 0
	}
	next := s.Head.Turn
	if s.pick("turn rises", 3) > 0 || next == 0 {
		next++
	}
	call := s.oneOf("call", "c1", "c2", "c3")
	switch n := s.pick("data", 43); {
	case n == 42:
		return &schema.StateSetData{Key: s.oneOf("key", "k1", "k2", "k3"), Value: []byte(s.oneOf("value", "null", "1"))}, turn
	case n == 41:
		return &schema.StateDeletedData{Key: s.oneOf("key", "k1", "k2", "k3")}, turn
	case n == 40:
		return &schema.SignalConsumedData{SignalIDs: append(s.signals(), s.oneOf("signal", "s1", "s2"))}, turn
	case n < 6:
		messages := []schema.Message{userMessage("m"), userMessage("n")}[:s.pick("messages", 3)]
		return &schema.TurnStartedData{Turn: next, Messages: messages, Purpose: s.oneOf("purpose", "", "work", "recovery"), Signals: s.signals()}, next
	case n < 10:
		turn = max(s.Head.Turn, 1)
		return &schema.TurnEndedData{
			Turn: turn, Messages: []schema.Message{assistantMessage(schema.Text("done"))}[:s.pick("messages", 2)],
			Usage: &schema.Usage{InputTokens: 3, OutputTokens: 5},
		}, turn
	case n < 12 && s.pick("answer", 3) > 0:
		return s.answer(next), next
	case n < 14:
		m := assistantMessage(schema.CallPart(call, "ls"))
		m.Role = s.oneOf("role", "assistant", "assistant", "user", "tool", "system")
		return &schema.MessageAddedData{Message: m}, s.oneTurn(turn)
	case n < 21:
		return s.called(call), s.oneTurn(turn)
	case n < 26:
		return &schema.ToolReturnedData{ToolCallID: call, Occurrence: s.occurrence(), Result: []byte(`"ok"`), DurationMS: 1250}, turn
	case n < 28:
		return &schema.ToolFailedData{ToolCallID: call, Occurrence: s.occurrence(), Error: schema.Error{Type: "timeout"}}, turn
	case n < 30:
		return s.settled(), turn
	case n < 31:
		return &schema.PhaseStartedData{Phase: s.oneOf("phase", "p1", "p2")}, turn
	case n < 32:
		return &schema.PhaseCompletedData{Phase: s.oneOf("phase", "p1", "p2"), Output: []byte("1")}, turn
	case n < 33:
		return s.waiting(), turn
	case n < 34:
		return &schema.ContextCompactedData{Summary: "s", ThroughTurn: turn}, turn
	case n < 35:
		return &schema.HandoffOfferedData{HandoffID: s.oneOf("handoff", "h1", "h1", "h2", ""), Reason: "error", SizeChars: int64(s.pick("size", 5000))}, turn
	case n < 36:
		return &schema.CheckpointMarkedData{Name: s.oneOf("mark", "a", "b"), By: s.by()}, turn
	case n < 37:
		return s.rare(), turn
	case n < 38:
		return &schema.RunInterruptedData{Reason: "shutdown"}, turn
	case n < 39:
		if s.pick("artifact", 2) == 0 {
			return &schema.ArtifactAddedData{ArtifactID: "a"}, turn
		}
		return &schema.ToolDecidedData{
			ToolCallID: call, Occurrence: s.occurrence(), Decision: s.oneOf("decision", "allow", "ask", "deny"), By: s.oneOf("decided by", "", "policy", "operator:UB1"),
		}, turn
	default:
		return &schema.RunEndedData{Status: s.oneOf("status", "completed", "failed", "cancelled")}, turn
	}
}

// called draws a call. A held one of the tool rm is one whose tool can be asked: a wider draw of policies would move all fixed seeds.
func (s *Log) called(id string) schema.Data {
	d := &schema.ToolCalledData{
		ToolCallID: id, Name: s.oneOf("tool", "ls", "ls", "ls", "ls", "rm"), Arguments: []byte(`{"a": 1}`), Occurrence: s.occurrence(), Requested: s.pick("requested", 4) == 0,
		Replay: schema.Replay(s.oneOf("replay", "", "pure", "idempotent", "hold")),
	}
	if d.Name == "rm" && d.Replay == schema.ReplayHold {
		d.Replay, d.VerifySubject = schema.ReplayVerify, "tools.rm"
	}
	return d
}

// signals are mostly none, and mostly open.
func (s *Log) signals() []string {
	var ids []string
	for i := range s.Head.Signals {
		if s.pick("signal", 3) == 0 {
			ids = append(ids, s.Head.Signals[i].SignalID)
		}
	}
	if s.pick("another signal", 12) == 0 {
		ids = append(ids, s.oneOf("signal", "s1", "s2", "s3"))
	}
	return ids
}

// occurrence is mostly absent.
func (s *Log) occurrence() int { return max(s.pick("occurrence", 8)-5, 0) }

// answer requests up to three calls, of which some share an id and some cannot be made.
func (s *Log) answer(turn int32) schema.Data {
	d := &schema.TurnAnsweredData{Turn: turn, Message: assistantMessage(schema.Text("so")), Usage: &schema.Usage{InputTokens: 7}, DurationMS: 61_500}
	for range s.pick("calls", 4) {
		c := schema.RequestedCall{
			ToolCallID: s.oneOf("call", "c1", "c2", "c3"), Name: "ls", Occurrence: s.pick("occurrence of a call", 20) / 18,
			Replay: schema.Replay(s.oneOf("replay", "", "pure", "idempotent", "hold")),
		}
		if s.pick("unusable", 8) == 0 {
			c.Error = &schema.Error{Type: "unknown_tool", Message: "no such tool"}
		}
		d.Calls = append(d.Calls, c)
	}
	return d
}

// by is mostly empty, or the executor in the run's head.
func (s *Log) by() string {
	return s.oneOf("by", "", "", s.Head.Executor, s.Head.Executor, "ex-9", "operator:UB1")
}

// oneTurn is sometimes a turn ahead: an executor that does not report when turns start.
func (s *Log) oneTurn(turn int32) int32 {
	if s.pick("ahead", 8) == 0 {
		return s.Head.Turn + 1
	}
	return turn
}

func userMessage(text string) schema.Message {
	return schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(text)}}
}

func assistantMessage(parts ...schema.Part) schema.Message {
	return schema.Message{Role: schema.RoleAssistant, Parts: parts}
}
