package schema

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Limits of an [Overview], in bytes and entries.
const (
	// MaxOverviewText bounds a text of the turn, and MaxOverviewLine a line of the recovery instructions.
	MaxOverviewText = 160
	MaxOverviewLine = 240
	// MaxOverviewName bounds a name or an id, and MaxOverviewLines the lines of the instructions.
	MaxOverviewName  = 64
	MaxOverviewLines = 6
)

// TenantLabel is the label of a run that names its tenant. Tenants take turns: a free executor gets a run of the one with
// the fewest runs at work. Runs without the label, or with an encrypted one, count as one tenant.
const TenantLabel = "tenant"

// Overview is the part of a checkpoint for people. It is derived from the same events as the head, but no recovery
// and no daemon decides by it. Its texts are cut at the limits above and have no control characters. It has no
// encrypted content.
type Overview struct {
	Model     string `json:"model,omitzero"`
	ModelTier string `json:"model_tier,omitzero"`
	// Tenant is the run's label of that name; see [TenantLabel].
	Tenant string `json:"tenant,omitzero"`
	// Turn is the current turn, or between turns the last one; absent before the first.
	Turn TurnOverview `json:"turn,omitzero"`
	// Recovery describes what the next executor does; nil before the run's first event.
	Recovery *Instructions `json:"recovery,omitzero"`
}

// TurnOverview is a turn in a checkpoint's overview.
type TurnOverview struct {
	TurnLife
	// Input is the latest message of the turn not written by the model, and Answer the model's latest. A text that is
	// missing has a reason in parentheses: (encrypted), (in the object store).
	Input  string `json:"input,omitzero"`
	Answer string `json:"answer,omitzero"`
}

// storedElsewhere replaces a text that was moved to the object store.
const storedElsewhere = "(in the object store)"

// Of returns the overview to store in the head's checkpoint, with the instructions from the head. maxClaims is as for
// [Head.Quarantined].
func (o *Overview) Of(h *Head, maxClaims int) Overview {
	c := *o
	if h.Status != StatusErased {
		c.Tenant, c.Recovery = shortName(h.Labels[TenantLabel]), InstructionsOf(h, maxClaims)
	}
	return c
}

// Apply updates the overview with a folded record, and returns the notices for observers of turns. It is pure. h is
// the head after the record.
func (o *Overview) Apply(h *Head, v *Verdict) (told []TurnNotice) {
	if v.Kind != Applied && v.Kind != Evidence || v.Event == nil {
		return nil
	}
	tell := func(name string) {
		o.Turn.Changes++
		told = append(told, TurnNotice{Name: name, Data: TurnData{
			Run: h.Run, Agent: h.Agent, TurnLife: o.Turn.TurnLife, Event: v.Event.Name(), Position: h.Position,
		}})
	}
	based := false // by a fork or a rewind
	switch d := v.Data.(type) {
	case *RunStartedData:
		o.Model, o.ModelTier, based = shortName(d.Model), shortName(d.ModelTier), d.Base != nil
	case *RunResumedData:
		based = d.To != nil
	}
	t := &o.Turn
	created := based || h.Turn > t.Turn
	if created {
		if !based {
			t.count(h, v)
		}
		if t.Turn != 0 && !t.Status.Final() {
			t.end(v, TurnStatusSuperseded)
			tell(TurnFinalized)
		}
		*t = TurnOverview{}
		if h.Turn != 0 {
			t.begin(h, v)
		}
	}
	switch {
	case t.Turn == 0, based && t.Status.Final():
		return told
	case based:
		tell(TurnCreated)
		return told
	}
	was, open := t.TurnLife, h.TurnOpen && !h.Status.Terminal()
	t.take(h, v)
	t.count(h, v)
	if open || created {
		t.Status, t.Epoch, t.EndedAt = t.openStatus(h), h.Epoch, ""
	}
	switch {
	case created, open && was.Status.Final(): // the first event of the turn, or the run was reopened
		tell(TurnCreated)
		if !open {
			t.end(v, finalStatus(v))
			tell(TurnFinalized)
		}
	case !open && !was.Status.Final():
		t.Epoch = h.Epoch
		t.end(v, finalStatus(v))
		tell(TurnFinalized)
	case t.TurnLife == was:
	case open:
		tell(TurnUpdated)
	default:
		tell(TurnFinalized)
	}
	return told
}

// take adds what an event says of the turn.
func (t *TurnOverview) take(h *Head, v *Verdict) {
	final, ofTurn := t.Status.Final(), v.Kind == Applied && v.Call.Turn == t.Turn
	switch d := v.Data.(type) {
	case *TurnStartedData:
		if v.Superseded {
			t.Attempts++
			t.Purpose, t.StartedAt, t.Error, t.Input, t.Answer = h.TurnPurpose, v.Event.Time, nil, "", ""
		}
		t.messages(d.Messages, d.Refs)
	case *TurnAnsweredData:
		t.message(&d.Message, d.Refs, "/message")
		t.Calls.Recorded += int64(len(d.Calls))
		for i := range d.Calls {
			if failed := d.Calls[i].Error; failed != nil {
				t.Calls.Failed++
				t.Error = shownError(failed, d.Refs, "/calls/"+strconv.Itoa(i)+"/error")
			}
		}
	case *TurnEndedData:
		t.messages(d.Messages, d.Refs)
		if d.Error != nil {
			t.Status, t.Error = TurnStatusFailed, shownError(d.Error, d.Refs, "/error")
		}
	case *MessageAddedData:
		if h.inOpenTurn(v.Event) {
			t.message(&d.Message, d.Refs, "/message")
		}
	case *ToolCalledData:
		if ofTurn && !v.Begun {
			t.Calls.Recorded++
		}
	case *ToolReturnedData:
		if ofTurn {
			t.Calls.Returned++
		}
	case *ToolFailedData:
		if ofTurn {
			t.Calls.Failed++
			t.Error = shownError(&d.Error, d.Refs, "/error")
		}
	case *ToolSettledData:
		switch {
		case !ofTurn, d.How == SettledRerun:
		case d.How == SettledAbandoned:
			t.Calls.Abandoned++
		default:
			t.Calls.Settled++
		}
	case *ErrorRaisedData:
		if !final && (d.Turn == 0 || d.Turn == t.Turn) {
			t.Error = shownError(&d.Error, d.Refs, "/error")
		}
	case *RunEndedData:
		if !final && d.Error != nil {
			t.Error = shownError(d.Error, d.Refs, "/error")
		}
	}
	if h.TurnOpen {
		t.Messages = h.TurnMessages
	}
}

func (t *TurnOverview) messages(list []Message, refs []Ref) {
	for i := range list {
		t.message(&list[i], refs, "/messages/"+strconv.Itoa(i))
	}
}

// message takes the texts of a message of the turn. A message without text (calls and results only) keeps the earlier
// text.
func (t *TurnOverview) message(m *Message, refs []Ref, path string) {
	var texts []string
	for i := range m.Parts {
		p := &m.Parts[i]
		if p.Type != PartText {
			continue
		}
		content := path + "/parts/" + strconv.Itoa(i) + "/content"
		ref := slices.IndexFunc(refs, func(r Ref) bool { return at(content, r.Path) })
		switch {
		case ref >= 0 && refs[ref].KeyID != "":
			texts = append(texts, EncryptedText)
		case ref >= 0:
			texts = append(texts, storedElsewhere)
		case p.Content != nil:
			texts = append(texts, *p.Content)
		}
	}
	switch text := shortLine(strings.Join(texts, " "), MaxOverviewText); {
	case len(texts) == 0, m.Role == RoleTool, m.Role == RoleSystem:
	case m.Role == RoleAssistant:
		t.Answer = text
	default:
		t.Input = text
	}
}

// shorten cuts a text at a character boundary.
func shorten(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	limit = max(limit, 0)
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}

// shortLine returns a text of at most limit bytes, with an ellipsis if it was cut. Spaces replace control characters, so
// that they do not affect a terminal, and a byte takes at most two in JSON.
func shortLine(s string, limit int) string {
	return strings.Map(func(r rune) rune {
		if isForbidden(r) {
			return ' '
		}
		return r
	}, Cut(s, limit-len("…")))
}

func shortName(s string) string { return shortLine(s, MaxOverviewName) }

// DerivedID is the id of an event derived from another, with a suffix that names it. If it would be too long, a hash
// replaces the event's id.
func DerivedID(event, suffix string) string {
	id := event + "/" + suffix
	if len(id) > MaxIdentifier {
		id = fmt.Sprintf("sha256-%x/%s", sha256.Sum256([]byte(event)), suffix)
	}
	return id
}
