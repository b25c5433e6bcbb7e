package schema_test

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/schema"
)

// model is a second fold, deliberately dumb: it keeps the whole history, knows no caps and no windows, and
// answers only whether an event counts. It shares the codec and the validation with the fold under test, and
// none of its decisions.
type model struct {
	fleet, run string
	accepted   []schema.Hash
	seen       map[string]bool
	epoch      schema.Epoch
	last       schema.Sequence
	chain      [32]byte
	agent      string
	ended      bool
	turn       int32
	open       bool
	openedIn   schema.Epoch
	calls      []*modelCall
	// waits are what the run waits for; the call whose settlement ends the waiting, or nil.
	waits  map[string]*modelCall
	phases map[string]bool
	// offers are the open hand-offs; true once one is accepted.
	offers map[string]bool
	hashes map[string]string
	// end is how the run ended; gone is how its executor left it, since it last wrote or another took over.
	end, gone schema.Status
	cancelled bool
	// wrote is the number of events when an executor last wrote.
	wrote int
	// claims in a row without progress.
	claims int
}

type modelCall struct {
	turn            int32
	id              string
	occurrence      int
	epoch           schema.Epoch
	closed, doubt   bool
	late            bool
	closedInItsTurn bool
	// cleared is the number of events when an operator settled it as rerun; 0 for never or not the latest settlement.
	cleared int
}

// status says what the log adds up to, from the facts.
func (m *model) status() (status, unattended schema.Status) {
	needed := len(m.waits) == 0 || m.cancelled
	switch {
	case len(m.accepted) == 0:
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

// clear says that nobody can have begun the call since an operator settled it.
func (m *model) clear(c *modelCall) bool { return !c.closed && c.cleared > m.wrote }

// decided ends the waiting for the settlement of a call.
func (m *model) decided(c *modelCall) {
	maps.DeleteFunc(m.waits, func(_ string, about *modelCall) bool { return about == c })
}

func newModel(fleet, run string) *model {
	return &model{fleet: fleet, run: run, seen: map[string]bool{}, waits: map[string]*modelCall{}, phases: map[string]bool{}, offers: map[string]bool{}, hashes: map[string]string{}}
}

func (m *model) digest() string {
	if len(m.accepted) == 0 {
		return ""
	}
	var d [32]byte
	for _, c := range m.accepted {
		d = sha256.Sum256(append(d[:], c[:]...))
	}
	return hex.EncodeToString(d[:])
}

func (m *model) apply(rec *schema.Record) schema.VerdictKind {
	const no = schema.Rejected
	e, err := schema.Decode(rec.Header, rec.Body)
	if err != nil || e.Subject != "" && e.Subject != m.run {
		return no
	}
	if parts := strings.Split(e.Source, "/"); len(parts) == 4 && parts[0] == "" && parts[1] == "waymark" &&
		schema.ValidName(parts[2]) && schema.ValidName(parts[3]) && parts[2] != m.fleet {
		return no
	}
	content := e.ContentHash()
	key := "plain " + e.Source + "\n" + e.ID
	if e.Sequence > 0 {
		key = "sequenced " + content.String()
	}
	if m.seen[key] {
		return schema.Duplicate
	}
	if e.Sequence > 0 && e.Subject != "" && strings.HasPrefix(e.ID, e.Subject+".") &&
		e.ID != schema.EventID(e.Subject, e.Epoch, e.Sequence, content) {
		return no
	}
	name := e.Name()
	control := e.IsControl()
	data, dataErr := schema.ParseData(e)
	epoch, at := max(e.Epoch, 1), max(m.epoch, 1)
	resume, _ := data.(*schema.RunResumedData)
	switch {
	case control && name == schema.RunResumed:
		if m.epoch == 0 || epoch != m.epoch+1 {
			return no
		}
		if resume != nil {
			want := schema.From{Epoch: m.epoch, Sequence: m.last, Digest: m.digest()}
			if m.chain != [32]byte{} {
				want.Chain = hex.EncodeToString(m.chain[:])
			}
			if resume.From != want || m.ended && resume.Reason != "reopen" {
				return no
			}
		}
	case epoch < at:
		return m.late(e, data, dataErr, content, key)
	case epoch > at:
		return no
	case e.Sequence > 0:
		next := sha256.Sum256(append(m.chain[:], content[:]...))
		if e.Sequence != m.last+1 || e.Chain != "" && e.Chain != hex.EncodeToString(next[:]) {
			return no
		}
		m.last, m.chain = e.Sequence, next
	}
	m.epoch = at
	m.accepted = append(m.accepted, content)
	m.seen[key] = true
	if !control {
		m.gone, m.wrote = "", len(m.accepted)
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

// forward reports whether an event brings the run on, by what was there before it.
func (m *model) forward(e *schema.Event, data schema.Data, control bool) bool {
	inTurn := m.open && (e.Turn == 0 || e.Turn == m.turn)
	switch d := data.(type) {
	case *schema.TurnEndedData, *schema.RunEndedData, *schema.RunCancelRequestedData, *schema.RunInputData,
		*schema.ToolReturnedData, *schema.ToolFailedData:
		return true
	case *schema.RunResumedData:
		return d.Reason != "claim" && d.Reason != "restart"
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

func offerID(e *schema.Event, d *schema.HandoffOfferedData) string {
	if d.HandoffID == "" {
		return e.ID
	}
	return d.HandoffID
}

func (m *model) content(e *schema.Event, data schema.Data, control bool) schema.VerdictKind {
	name := data.EventName()
	forControl := slices.Contains([]string{
		schema.RunResumed, schema.RunInput, schema.RunCancelRequested, schema.RunOrphaned,
		schema.HandoffAccepted, schema.HandoffDeclined, schema.HandoffClosed,
	}, name)
	yes := func(ok bool) schema.VerdictKind {
		if ok {
			return schema.Applied
		}
		return schema.Rejected
	}
	if control && !forControl && name != schema.ToolSettled && name != schema.CheckpointMarked || e.Sequence > 0 && forControl || name == schema.RunResumed && !control {
		return yes(false)
	}
	if m.ended && !strings.HasPrefix(name, "handoff.") && name != schema.CheckpointMarked && name != schema.RunResumed {
		return yes(false)
	}
	switch d := data.(type) {
	case *schema.RunStartedData:
		fresh := m.agent == ""
		if fresh {
			m.agent = d.Agent
		}
		return yes(fresh)
	case *schema.RunResumedData:
		if m.ended {
			m.cancelled = false
		}
		m.epoch, m.last, m.ended, m.gone = e.Epoch, 0, false, ""
		for _, c := range m.calls {
			c.doubt = !c.closed && !m.clear(c)
			if m.clear(c) {
				c.epoch = m.epoch
			}
		}
		m.claims++
	case *schema.RunWaitingData:
		var about *modelCall
		if d.Reason == schema.WaitToolInDoubt {
			about = m.find(e.Turn, d.ToolCallID, false)
			if about == nil || !about.doubt || d.Occurrence != 0 && d.Occurrence != about.occurrence {
				return yes(false)
			}
		}
		m.waits[d.InterruptID] = about
	case *schema.RunInputData:
		_, ok := m.waits[d.InterruptID]
		delete(m.waits, d.InterruptID)
		return yes(ok)
	case *schema.RunCancelRequestedData:
		m.cancelled = true
	case *schema.RunOrphanedData:
		if m.gone == "" {
			m.gone = schema.StatusOrphaned
		}
	case *schema.RunInterruptedData:
		if d.Reason == "shutdown" {
			m.claims = max(m.claims-1, 0)
		}
		m.gone = schema.StatusInterrupted
	case *schema.RunEndedData:
		m.ended, m.end = true, schema.Status(d.Status)
		clear(m.waits)
	case *schema.TurnStartedData:
		if d.Turn == m.turn && m.open && (m.epoch > m.openedIn || e.Epoch == 0) {
			m.openedIn = m.epoch
			return yes(true)
		}
		if d.Turn <= m.turn {
			return yes(false)
		}
		m.begin(d.Turn)
	case *schema.TurnEndedData:
		if d.Turn > m.turn {
			m.begin(d.Turn)
		}
		if d.Turn != m.turn || !m.open {
			return yes(false)
		}
		m.open = false
	case *schema.ToolCalledData:
		turn := e.Turn
		if turn == 0 {
			turn = m.turn
		}
		if turn < m.turn || m.find(turn, d.ToolCallID, true) != nil {
			return yes(false)
		}
		if turn > m.turn {
			m.begin(turn)
		}
		c := &modelCall{turn: turn, id: d.ToolCallID, epoch: m.epoch, occurrence: 1}
		for _, o := range m.calls {
			if o.turn == turn && (turn == 0 || o.id == c.id) {
				c.occurrence++
			}
		}
		m.calls = append(m.calls, c)
	case *schema.ToolReturnedData:
		return m.close(e, d.ToolCallID)
	case *schema.ToolFailedData:
		return m.close(e, d.ToolCallID)
	case *schema.ToolSettledData:
		c := m.find(e.Turn, d.ToolCallID, false)
		if c == nil || !c.doubt || d.How == schema.SettledAdopted && !c.late && len(d.Result) == 0 && len(d.Refs) == 0 {
			return yes(false)
		}
		c.doubt, c.cleared = false, 0
		m.decided(c)
		if d.How == schema.SettledRerun {
			c.late, c.epoch = false, m.epoch
			if control {
				c.cleared = len(m.accepted)
			}
		} else {
			c.closed, c.closedInItsTurn = true, c.turn == m.turn
		}
	case *schema.HandoffOfferedData:
		id := offerID(e, d)
		if m.offers[id] {
			return yes(false)
		}
		hash := e.ContentHash()
		m.offers[id], m.hashes[id] = false, hash.String()
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
		return m.over(d.HandoffID)
	case *schema.HandoffClosedData:
		return m.over(d.HandoffID)
	case *schema.PhaseStartedData:
		return yes(!m.phases[d.Phase])
	case *schema.PhaseCompletedData:
		m.phases[d.Phase] = true
	}
	return yes(true)
}

func (m *model) over(handoff string) schema.VerdictKind {
	if _, open := m.offers[handoff]; !open {
		return schema.Rejected
	}
	delete(m.offers, handoff)
	return schema.Applied
}

func (m *model) begin(turn int32) { m.turn, m.open, m.openedIn = turn, true, m.epoch }

// find returns the newest open call; exact forbids turn 0 as "any".
func (m *model) find(turn int32, id string, exact bool) *modelCall {
	for _, c := range slices.Backward(m.calls) {
		if !c.closed && c.id == id && (c.turn == turn || !exact && turn == 0) {
			return c
		}
	}
	return nil
}

func (m *model) close(e *schema.Event, id string) schema.VerdictKind {
	if c := m.find(e.Turn, id, false); c != nil {
		c.closed, c.doubt, c.closedInItsTurn = true, false, c.turn == m.turn
		m.decided(c)
		return schema.Applied
	}
	for _, c := range m.calls {
		if c.closedInItsTurn && c.turn == m.turn && m.turn != 0 && c.id == id && (e.Turn == 0 || e.Turn == m.turn) {
			return schema.Evidence
		}
	}
	return schema.Rejected
}

func (m *model) late(e *schema.Event, data schema.Data, err error, content schema.Hash, key string) schema.VerdictKind {
	if err != nil || m.ended {
		return schema.Rejected
	}
	id := ""
	switch d := data.(type) {
	case *schema.ToolReturnedData:
		id = d.ToolCallID
	case *schema.ToolFailedData:
		id = d.ToolCallID
	default:
		return schema.Rejected
	}
	c := m.find(e.Turn, id, false)
	if c == nil || !c.doubt || c.late || c.epoch > max(e.Epoch, 1) {
		return schema.Rejected
	}
	c.late = true
	m.decided(c)
	m.accepted = append(m.accepted, content)
	m.seen[key] = true
	return schema.Evidence
}
