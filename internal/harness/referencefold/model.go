package referencefold

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/waymarkio/waymark/schema"
)

// Accepted is an event that counts.
type Accepted struct {
	// Stream is its position in the log.
	Stream schema.StreamSequence
	// ID, Name, Epoch and Sequence from the event; Sequence is 0 for a control event.
	ID, Name string
	Epoch    schema.Epoch
	Sequence schema.Sequence
	// Content is the hash of its content.
	Content [32]byte
	// Evidence: a late result, kept with its call and without another effect.
	Evidence bool
}

// Model is the state of one run's log. Use New.
type Model struct {
	// Accepted are the events that count, in the order of the log.
	Accepted []Accepted
	// Beyond is true when the log has something that the model does not know; see the package's page.
	Beyond bool

	fleet, run string
	seen       map[string]bool
	epoch      schema.Epoch
	last       schema.Sequence
	agent      string
	// executor, instance and request are those of the latest takeover, or of the run's start.
	executor, instance, request string
	ended                       bool
	turn                        int32
	open                        bool
	// answered: the turn's answer is recorded.
	answered bool
	openedIn schema.Epoch
	calls    []*call
	messages []*message
	// waits are the run's waits, with the call whose settlement ends the wait, or nil.
	waits map[string]*call
	// named are the calls that waits are about, asked whether a wait asks for an approval.
	named map[string]schema.CallKey
	asked map[string]bool
	// hears: a wait ends with a signal.
	hears  map[string]bool
	phases map[string]bool
	// offers are the open hand-offs; true once one is accepted.
	offers map[string]bool
	hashes map[string]string
	// end is how the run ended; gone is how its executor left it, since it last wrote or another took over.
	end, gone schema.Status
	cancelled bool
	paused    bool
	// woken: a signal came while the run had no executor, or its executor left it unread.
	woken bool
	// signals are those that are not consumed, in order.
	signals []signal
	// records counts the messages of the log.
	records    int64
	superseded []schema.Superseded
	// claims in a row without progress.
	claims int
	at     schema.Position
}

type call struct {
	turn       int32
	id         string
	occurrence int
	name       string
	replay     schema.Replay
	epoch      schema.Epoch
	// scope of its idempotency key, where the run's id will not do.
	scope         string
	closed, doubt bool
	// requested, and not begun; again: because a person wants it run again.
	requested, again bool
	// barred: the latest decision does not allow it; denied: it forbids it.
	barred, denied  bool
	late            bool
	closedInItsTurn bool
	outcome         schema.Outcome
	result          string
	// given is the content of a late result.
	given        string
	givenFailure bool
}

// signal is one that is not consumed; turn is the one that was started with it, 0 for none.
type signal struct {
	id   string
	turn int32
}

type message struct {
	turn int32
	role string
	text string
	// unfinished: of the open turn, and dropped if the turn is started again.
	unfinished bool
}

// New returns the model of a run before its first event.
func New(fleet, run string) *Model {
	return &Model{
		fleet: fleet, run: run, seen: map[string]bool{}, waits: map[string]*call{}, named: map[string]schema.CallKey{}, asked: map[string]bool{}, hears: map[string]bool{}, phases: map[string]bool{},
		offers: map[string]bool{}, hashes: map[string]string{},
	}
}

// Fold returns the model of a whole log, with the fleet's keys.
func Fold(keys *schema.Keys, fleet, run string, log []schema.Record) *Model {
	m := New(fleet, run)
	for i := range log {
		m.Apply(keys, &log[i])
	}
	return m
}

// Digest is the hash over the events that count, in hex; empty before the first.
func (m *Model) Digest() string {
	if len(m.Accepted) == 0 {
		return ""
	}
	var d [32]byte
	for _, a := range m.Accepted {
		d = sha256.Sum256(append(d[:], a.Content[:]...))
	}
	return hex.EncodeToString(d[:])
}

// Digests are the digests after each number of events, the first of them empty.
func (m *Model) Digests() []string {
	all := []string{""}
	var d [32]byte
	for _, a := range m.Accepted {
		d = sha256.Sum256(append(d[:], a.Content[:]...))
		all = append(all, hex.EncodeToString(d[:]))
	}
	return all
}

// Epoch is the run's epoch, 0 before its first event.
func (m *Model) Epoch() schema.Epoch { return m.epoch }

// Sequence is that of its executor's last event in the epoch.
func (m *Model) Sequence() schema.Sequence { return m.last }

// Status is the state of the log, and how the executor of a waiting run left it.
func (m *Model) Status() (status, unattended schema.Status) {
	needed := len(m.waits) == 0 || m.cancelled || m.woken
	switch {
	case len(m.Accepted) == 0:
		return "", ""
	case m.ended:
		return m.end, ""
	case m.gone != "" && needed:
		return m.gone, ""
	case len(m.waits) > 0:
		return schema.StatusWaiting, m.gone
	default:
		return schema.StatusRunning, ""
	}
}

// contentHash is SHA-256 of the attributes except id, sorted, name=value and a line feed each, an empty line, and
// the data.
func contentHash(e *schema.Event) [32]byte {
	attributes := map[string]string{
		"specversion": "1.0", "source": e.Source, "type": e.Type, "subject": e.Subject, "time": e.Time,
		"traceparent": e.TraceParent, "dataref": e.DataRef, "datacontenttype": e.DataContentType, "dataschema": e.DataSchema,
	}
	if e.Epoch > 0 {
		attributes["epoch"] = strconv.FormatUint(uint64(e.Epoch), 10)
	}
	if e.Sequence > 0 {
		attributes["sequence"] = fmt.Sprintf("%020d", uint64(e.Sequence))
	}
	if e.Turn != 0 {
		attributes["turn"] = strconv.Itoa(int(e.Turn))
	}
	maps.Copy(attributes, e.Extensions)
	var text []byte
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		_, extension := e.Extensions[name]
		if attributes[name] != "" || name == "source" || extension {
			text = fmt.Appendf(text, "%s=%s\n", name, attributes[name])
		}
	}
	return sha256.Sum256(append(append(text, '\n'), e.Data...))
}

// source returns fleet and executor of a source /waymark/<fleet>/<executor>; nothing for any other.
func source(e *schema.Event) (fleet, executor string) {
	parts := strings.Split(e.Source, "/")
	if len(parts) == 4 && parts[0] == "" && parts[1] == "waymark" && schema.ValidName(parts[2]) && schema.ValidName(parts[3]) {
		return parts[2], parts[3]
	}
	return "", ""
}

// Apply folds one record of the log, by the fleet's keys. Records come in the order of the log, each once.
func (m *Model) Apply(keys *schema.Keys, rec *schema.Record) schema.VerdictKind {
	const no = schema.Rejected
	if rec.Stream != 0 && rec.Stream < m.at.Stream {
		return schema.Replayed
	}
	e, err := schema.Decode(rec.Header, rec.Body)
	at := schema.Position{Stream: rec.Stream, ID: schema.RecordID(rec, e)}
	if rec.Stream != 0 && rec.Stream == m.at.Stream {
		if at == m.at {
			return schema.Replayed
		}
		return schema.Regressed
	}
	m.at = at
	m.records++
	if err != nil || e.Subject != "" && e.Subject != m.run {
		return no
	}
	fleet, executor := source(e)
	if fleet != "" && fleet != m.fleet {
		return no
	}
	content := contentHash(e)
	key := "plain " + e.Source + "\n" + e.ID
	if e.Sequence > 0 {
		key = "sequenced " + hex.EncodeToString(content[:])
	}
	if m.seen[key] {
		return schema.Duplicate
	}
	data, dataErr := schema.ParseData(e)
	checked := keys.Any() && (rec.Stored == 0 || rec.Stored >= begun(keys))
	asked := checked && (says(e) || signed(keys, e, rec.Stored))
	if asked && !signed(keys, e, rec.Stored) {
		return no
	}
	if e.Sequence > 0 && e.Subject != "" && strings.HasPrefix(e.ID, e.Subject+".") &&
		e.ID != fmt.Sprintf("%s.%d.%d.%s", e.Subject, e.Epoch, e.Sequence, hex.EncodeToString(content[:4])) {
		return no
	}
	name := e.Name()
	control := e.IsControl()
	epoch, now := max(e.Epoch, 1), max(m.epoch, 1)
	resume, _ := data.(*schema.RunResumedData)
	switch {
	case control && name == schema.RunResumed:
		if m.epoch == 0 || epoch != m.epoch+1 {
			return no
		}
		if resume != nil {
			want := schema.From{Epoch: m.epoch, Sequence: m.last, Digest: m.Digest()}
			if resume.From != want || m.ended && resume.Reason != schema.TakeoverReopen && resume.To == nil || !m.mayRewind(resume.To) {
				return no
			}
		}
	case epoch < now:
		return m.late(rec, e, data, dataErr, content, key)
	case epoch > now:
		return no
	case e.Sequence > 0:
		if e.Sequence != m.last+1 {
			return no
		}
		if checked && !asked && m.oversteps(e, data) {
			return no
		}
		m.last = e.Sequence
	}
	if asked && e.Extensions["rundigest"] != m.Digest() || checked && !asked && m.oversteps(e, data) {
		return no
	}
	m.epoch = now
	m.accept(rec, e, content, key, false)
	if len(m.Accepted) == 1 && !control {
		m.executor = executor
	}
	if !control {
		m.gone, m.woken = "", false
	}
	switch {
	case dataErr != nil:
		return no
	case data == nil:
		return schema.Applied
	}
	forward := m.forward(e, data, control)
	kind := m.content(e, data, control)
	if forward && kind == schema.Applied {
		m.claims = 0
	}
	return kind
}

func (m *Model) accept(rec *schema.Record, e *schema.Event, content [32]byte, key string, evidence bool) {
	m.Accepted = append(m.Accepted, Accepted{
		Stream: rec.Stream, ID: e.ID, Name: e.Name(), Epoch: e.Epoch, Sequence: e.Sequence, Content: content, Evidence: evidence,
	})
	m.seen[key] = true
}

// forward reports whether an event is progress, compared with the state before it.
func (m *Model) forward(e *schema.Event, data schema.Data, control bool) bool {
	inTurn := m.open && (e.Turn == 0 || e.Turn == m.turn)
	switch d := data.(type) {
	case *schema.TurnAnsweredData:
		return !m.open || d.Turn == m.turn || m.openedIn == m.epoch
	case *schema.TurnEndedData:
		return d.Turn != m.turn || m.open
	case *schema.RunEndedData, *schema.RunCancelRequestedData, *schema.RunInputData,
		*schema.ToolReturnedData, *schema.ToolFailedData, *schema.SignalConsumedData:
		return true
	case *schema.RunResumedData:
		return d.Reason != schema.TakeoverClaim && d.Reason != schema.TakeoverRestart
	case *schema.ToolSettledData:
		return control || d.How != schema.SettledRerun
	case *schema.TurnStartedData:
		superseding := d.Turn == m.turn
		return !m.open || !superseding && m.openedIn == m.epoch
	case *schema.MessageAddedData:
		return !inTurn && d.Message.Role != schema.RoleUser && d.Message.Role != schema.RoleSystem
	case *schema.PhaseCompletedData:
		return !m.phases[d.Phase]
	case *schema.RunWaitingData:
		_, already := m.waits[d.InterruptID]
		return !already
	case *schema.HandoffOfferedData:
		_, already := m.offers[offerID(e, d)]
		return !already
	}
	return false
}

// policy is a call's policy: without one, a person decides.
func policy(said schema.Replay) schema.Replay {
	if said == "" {
		return schema.ReplayHold
	}
	return said
}

func offerID(e *schema.Event, d *schema.HandoffOfferedData) string {
	if d.HandoffID == "" {
		return e.ID
	}
	return d.HandoffID
}

func (m *Model) content(e *schema.Event, data schema.Data, control bool) schema.VerdictKind {
	name := data.EventName()
	forControl := slices.Contains([]string{
		schema.RunResumed, schema.RunInput, schema.RunCancelRequested, schema.RunPaused, schema.RunOrphaned,
		schema.HandoffAccepted, schema.HandoffDeclined, schema.HandoffClosed, schema.SignalSent,
	}, name)
	yes := func(ok bool) schema.VerdictKind {
		if ok {
			return schema.Applied
		}
		return schema.Rejected
	}
	if control && !forControl && name != schema.ToolSettled && name != schema.CheckpointMarked ||
		e.Sequence > 0 && forControl || name == schema.RunResumed && !control {
		return yes(false)
	}
	if m.ended && !strings.HasPrefix(name, "handoff.") && (name != schema.ToolSettled || !control) && name != schema.CheckpointMarked && name != schema.RunResumed {
		return yes(false)
	}
	switch d := data.(type) {
	case *schema.RunStartedData:
		if m.agent != "" || d.Base != nil && (len(m.Accepted) != 1 || m.epoch != 1) {
			return yes(false)
		}
		m.agent, m.executor, m.instance = d.Agent, d.Executor, d.Instance
		if d.Base != nil {
			m.fork(&d.Base.Head)
		}
	case *schema.RunResumedData:
		if m.ended {
			m.cancelled = false
		}
		m.epoch, m.last, m.ended, m.gone, m.woken, m.paused = e.Epoch, 0, false, "", false, false
		m.executor, m.instance, m.request = d.Executor, d.Instance, d.RequestID
		for _, c := range m.calls {
			c.doubt = !c.closed && !c.requested
		}
		m.claims++
		if d.To != nil {
			m.rewind(d.To, e.Time)
		}
	case *schema.SignalSentData:
		return yes(m.sent(d))
	case *schema.SignalConsumedData:
		if !m.areOpen(d.SignalIDs, 0) {
			return yes(false)
		}
		seen := map[string]bool{}
		m.consume(func(s signal) bool {
			is := slices.Contains(d.SignalIDs, s.id) && !seen[s.id]
			seen[s.id] = true
			return is
		})
	case *schema.RunWaitingData:
		var about *call
		if d.Reason == schema.WaitSignal && m.told(d.InterruptID) {
			return yes(false)
		}
		if d.Reason == schema.WaitToolInDoubt {
			about = m.find(e.Turn, d.ToolCallID, d.Occurrence)
			if about == nil || about.late || !about.doubt && (!about.requested || !free(about.replay)) {
				return yes(false)
			}
			about.doubt, about.requested, about.again = true, false, false
			if free(about.replay) {
				about.replay = schema.ReplayHold
			}
		}
		m.waits[d.InterruptID] = about
		m.name(e, d)
	case *schema.RunInputData:
		_, ok := m.waits[d.InterruptID]
		delete(m.waits, d.InterruptID)
		return yes(ok)
	case *schema.RunCancelRequestedData:
		m.cancelled = true
	case *schema.RunPausedData:
		m.paused = true
	case *schema.RunOrphanedData:
		if m.gone == "" {
			m.gone, m.woken = schema.StatusOrphaned, m.signalled()
			if d.Unheld {
				m.claims = max(m.claims-1, 0)
			}
		}
	case *schema.RunInterruptedData:
		waits := d.Reason == schema.InterruptedWaiting && len(m.waits) > 0 && !m.cancelled
		if d.Reason == schema.InterruptedShutdown || d.Reason == schema.InterruptedUnavailable || d.Reason == schema.InterruptedPaused || waits {
			m.claims = max(m.claims-1, 0)
		}
		m.gone, m.woken = schema.StatusInterrupted, d.Reason != schema.InterruptedWaiting && m.signalled()
	case *schema.RunEndedData:
		m.ended, m.end = true, schema.Status(d.Status)
		clear(m.waits)
		m.abandon(true)
		m.over()
	case *schema.TurnStartedData:
		if !m.areOpen(d.Signals, d.Turn) {
			return yes(false)
		}
		if d.Turn == m.turn && m.open && !m.answered && (m.epoch > m.openedIn || e.Epoch == 0) {
			m.openedIn = m.epoch
			m.abandon(false)
			m.messages = slices.DeleteFunc(m.messages, func(msg *message) bool { return msg.unfinished })
			m.say(d.Turn, d.Messages, true)
			m.take(d)
			return yes(true)
		}
		if d.Turn <= m.turn {
			return yes(false)
		}
		m.begin(d.Turn)
		m.say(d.Turn, d.Messages, true)
		m.take(d)
	case *schema.TurnAnsweredData:
		return yes(m.answer(d))
	case *schema.TurnEndedData:
		if d.Turn > m.turn {
			m.begin(d.Turn)
		}
		if d.Turn == m.turn && !m.open && m.answered {
			m.say(d.Turn, d.Messages, false)
			return yes(true)
		}
		if d.Turn != m.turn || !m.open {
			return yes(false)
		}
		m.open = false
		m.abandon(false)
		m.finished()
		m.untold()
		m.say(d.Turn, d.Messages, false)
	case *schema.MessageAddedData:
		turn := e.Turn
		if turn == 0 && m.open {
			turn = m.turn
		}
		m.say(turn, []schema.Message{d.Message}, m.open && (e.Turn == 0 || e.Turn == m.turn))
	case *schema.ToolCalledData:
		return yes(m.called(e, d))
	case *schema.ToolReturnedData:
		return m.close(e, d.ToolCallID, d.Occurrence, schema.OutcomeReturned, string(d.Result))
	case *schema.ToolFailedData:
		return m.close(e, d.ToolCallID, d.Occurrence, schema.OutcomeFailed, d.Error.Message)
	case *schema.ToolDecidedData:
		return yes(m.decide(e, d))
	case *schema.ToolSettledData:
		return yes(m.settle(e, d, control))
	case *schema.HandoffOfferedData:
		id := offerID(e, d)
		if m.offers[id] {
			return yes(false)
		}
		hash := contentHash(e)
		m.offers[id], m.hashes[id] = false, hex.EncodeToString(hash[:])
	case *schema.HandoffAcceptedData:
		taken, open := m.offers[d.HandoffID]
		if !open || taken || d.OfferHash != "" && d.OfferHash != m.hashes[d.HandoffID] {
			return yes(false)
		}
		m.offers[d.HandoffID] = true
	case *schema.HandoffDeclinedData:
		if m.offers[d.HandoffID] {
			return yes(false)
		}
		return m.declined(d.HandoffID)
	case *schema.HandoffClosedData:
		return m.declined(d.HandoffID)
	case *schema.PhaseStartedData:
		return yes(!m.phases[d.Phase])
	case *schema.PhaseCompletedData:
		m.phases[d.Phase] = true
	}
	return yes(true)
}

func (m *Model) declined(handoff string) schema.VerdictKind {
	if _, open := m.offers[handoff]; !open {
		return schema.Rejected
	}
	delete(m.offers, handoff)
	return schema.Applied
}

func (m *Model) begin(turn int32) {
	m.finished()
	m.abandon(false)
	m.untold()
	m.turn, m.open, m.answered, m.openedIn = turn, true, false, m.epoch
}

// finished: nothing that was said so far is taken back any more.
func (m *Model) finished() {
	for _, msg := range m.messages {
		msg.unfinished = false
	}
}

func (m *Model) say(turn int32, messages []schema.Message, unfinished bool) {
	for i := range messages {
		m.messages = append(m.messages, &message{turn: turn, role: messages[i].Role, text: partsText(messages[i].Parts), unfinished: unfinished})
	}
}

func partsText(parts []schema.Part) string {
	var text []byte
	for i := range parts {
		p := &parts[i]
		text = append(text, p.Type+":"+p.ID...)
		if p.Content != nil {
			text = append(text, *p.Content...)
		}
		text = append(text, '\n')
	}
	return string(text)
}
