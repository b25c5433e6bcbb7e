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
	// MaxOverviewName bounds a name or an id.
	MaxOverviewName = 64
	// MaxOverviewCalls bounds the calls of the turn in an overview, and MaxOverviewLines the lines of the
	// instructions.
	MaxOverviewCalls = 4
	MaxOverviewLines = 6
)

// TenantLabel is the label of a run that names its tenant.
const TenantLabel = "tenant"

// Overview is the part of a checkpoint for people. It is derived from the same events as the head, but no recovery
// and no daemon decides by it. Its texts are cut at the limits above and have no control characters. It has no
// encrypted content.
type Overview struct {
	Model     string `json:"model,omitzero"`
	ModelTier string `json:"model_tier,omitzero"`
	// Tenant is the run's label of that name; see [TenantLabel].
	Tenant string `json:"tenant,omitzero"`
	// Turn is the current turn, or between turns the last one; nil before the first.
	Turn *TurnOverview `json:"turn,omitzero"`
	// Recovery describes what the next executor does; nil before the run's first event.
	Recovery *Instructions `json:"recovery,omitzero"`
}

// TurnOverview is a turn in a checkpoint's overview.
type TurnOverview struct {
	TurnLife
	// Input is the latest message of the turn not written by the model, and Answer the model's latest.
	Input  *Excerpt `json:"input,omitzero"`
	Answer *Excerpt `json:"answer,omitzero"`
	// Latest are the latest calls of the turn, in the order of recording. Calls counts all of them.
	Latest []CallOverview `json:"latest_calls,omitzero"`
	// LateFailed are the calls of the turn that are in doubt and have a late failure: a settlement that adopts it
	// counts as failed.
	LateFailed []CallKey `json:"late_failed,omitzero"`
}

// Excerpt is the beginning of a text.
type Excerpt struct {
	// Text, or in parentheses why it is missing: (encrypted), (in the object store).
	Text string `json:"text"`
	// Cut is the number of bytes left out; 0 for a complete text.
	Cut int64 `json:"cut_bytes,omitzero"`
}

// CallOverview is a call in a checkpoint's overview.
type CallOverview struct {
	Name       string `json:"name"`
	ToolCallID string `json:"tool_call_id"`
	Occurrence int    `json:"occurrence,omitzero"`
	// Outcome is open, returned, failed or abandoned.
	Outcome Outcome `json:"outcome"`
}

// storedElsewhere replaces a text that was moved to the object store.
const storedElsewhere = "(in the object store)"

// Clone returns a copy that shares no value that [Overview.Apply] changes.
func (o *Overview) Clone() Overview {
	c := *o
	if o.Turn != nil {
		turn := *o.Turn
		turn.Latest, turn.LateFailed = slices.Clone(turn.Latest), slices.Clone(turn.LateFailed)
		c.Turn = &turn
	}
	return c
}

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
func (o *Overview) Apply(h *Head, v *Verdict) []TurnNotice {
	if v.Kind != Applied && v.Kind != Evidence || v.Event == nil {
		return nil
	}
	f := &turnFold{head: h, verdict: v}
	switch d := v.Data.(type) {
	case *RunStartedData:
		o.Model, o.ModelTier = shortName(d.Model), shortName(d.ModelTier)
		if d.Base != nil {
			o.takeOver(f)
			return f.told
		}
	case *RunResumedData:
		if d.To != nil {
			o.takeOver(f)
			return f.told
		}
	}
	created := h.Turn != 0 && (o.Turn == nil || h.Turn > o.Turn.Turn)
	if created {
		if t := o.Turn; t != nil && !t.Status.Final() {
			f.abandon(&t.TurnLife)
			f.count(&t.TurnLife)
			f.finish(&t.TurnLife, TurnStatusSuperseded)
		}
		o.Turn = &TurnOverview{TurnLife: f.begin()}
	}
	if o.Turn == nil {
		return nil
	}
	f.settled = o.Turn.settled(v)
	o.Turn.texts(v, f.settled)
	f.follow(&o.Turn.TurnLife, created)
	return f.told
}

// takeOver begins again with the turn of a base: that of a fork, or the one that a rewind returns to. The texts of
// the turn are in the record that the base names.
func (o *Overview) takeOver(f *turnFold) {
	if t := o.Turn; t != nil && !t.Status.Final() {
		f.finish(&t.TurnLife, TurnStatusSuperseded)
	}
	o.Turn = nil
	if f.head.Turn == 0 {
		return
	}
	o.Turn = &TurnOverview{TurnLife: f.takenOver()}
	if !o.Turn.Status.Final() {
		f.tell(TurnCreated, &o.Turn.TurnLife)
	}
}

// settled keeps late failures, and returns the outcome of a settled call: one that adopts such a failure has failed.
func (t *TurnOverview) settled(v *Verdict) Outcome {
	at := slices.Index(t.LateFailed, v.Call)
	switch d := v.Data.(type) {
	case *ToolFailedData:
		if v.Kind == Evidence && v.Call.Turn == t.Turn {
			t.LateFailed = append(t.LateFailed, v.Call)
		}
	case *ToolSettledData:
		if at < 0 {
			break
		}
		t.LateFailed = slices.Delete(t.LateFailed, at, at+1)
		if d.How == SettledAdopted && len(d.Result) == 0 && len(d.Refs) == 0 {
			return OutcomeFailed
		}
	}
	return OutcomeReturned
}

// texts takes the texts and calls of an event of the turn. settled is the outcome of a settlement.
func (t *TurnOverview) texts(v *Verdict, settled Outcome) {
	switch d := v.Data.(type) {
	case *TurnStartedData:
		if v.Superseded {
			t.Input, t.Answer = nil, nil
		}
		for i := range d.Messages {
			t.message(&d.Messages[i], d.Refs, pathOf(d.Refs, "/messages/", i))
		}
	case *TurnEndedData:
		if d.Turn != t.Turn {
			return
		}
		for i := range d.Messages {
			t.message(&d.Messages[i], d.Refs, pathOf(d.Refs, "/messages/", i))
		}
	case *MessageAddedData:
		if !t.Status.Final() && (v.Event.Turn == 0 || v.Event.Turn == t.Turn) {
			t.message(&d.Message, d.Refs, "/message")
		}
	case *TurnAnsweredData:
		t.message(&d.Message, d.Refs, "/message")
		for i := range d.Calls {
			outcome := OutcomeOpen
			if d.Calls[i].Error != nil {
				outcome = OutcomeFailed
			}
			t.call(v.Calls[i], shown(d.Calls[i].Name, d.Refs, pathOf(d.Refs, "/calls/", i)+"/name"), outcome)
		}
	case *ToolCalledData:
		if !v.Begun && v.Call.Turn == t.Turn {
			t.call(v.Call, shown(d.Name, d.Refs, "/name"), OutcomeOpen)
		}
	case *ToolReturnedData:
		t.outcome(v, OutcomeReturned)
	case *ToolFailedData:
		t.outcome(v, OutcomeFailed)
	case *ToolSettledData:
		switch d.How {
		case SettledRerun:
		case SettledAbandoned:
			t.outcome(v, OutcomeAbandoned)
		default:
			t.outcome(v, settled)
		}
	}
	for _, key := range v.Abandoned {
		t.close(key, OutcomeAbandoned)
	}
}

// message takes the text of a message of the turn. A message without text (calls and results only) keeps the earlier
// text.
func (t *TurnOverview) message(m *Message, refs []Ref, at string) {
	if m.Role == RoleTool || m.Role == RoleSystem {
		return
	}
	text := excerptOf(m, refs, at)
	switch {
	case text == nil:
	case m.Role == RoleAssistant:
		t.Answer = text
	default:
		t.Input = text
	}
}

// call adds a call, and drops the oldest if there is no room.
func (t *TurnOverview) call(key CallKey, name string, outcome Outcome) {
	c := CallOverview{Name: shortName(name), ToolCallID: shortName(key.ToolCallID), Outcome: outcome}
	if key.Occurrence > 1 {
		c.Occurrence = key.Occurrence
	}
	if len(t.Latest) >= MaxOverviewCalls {
		t.Latest = slices.Delete(t.Latest, 0, len(t.Latest)-MaxOverviewCalls+1)
	}
	t.Latest = append(t.Latest, c)
}

func (t *TurnOverview) outcome(v *Verdict, outcome Outcome) {
	if v.Kind == Applied {
		t.close(v.Call, outcome)
	}
}

func (t *TurnOverview) close(key CallKey, outcome Outcome) {
	if key.Turn != t.Turn {
		return
	}
	id, occurrence := shortName(key.ToolCallID), key.Occurrence
	if occurrence == 1 {
		occurrence = 0
	}
	for i := range t.Latest {
		if c := &t.Latest[i]; c.ToolCallID == id && c.Occurrence == occurrence && c.Outcome == OutcomeOpen {
			c.Outcome = outcome
			return
		}
	}
}

// excerptOf is the beginning of a message's text, nil for a message without text.
func excerptOf(m *Message, refs []Ref, at string) *Excerpt {
	var text strings.Builder
	cut, found := int64(0), false
	add := func(s string) {
		found = true
		if text.Len() > 0 && s != "" {
			s = " " + s
		}
		head := shorten(s, MaxOverviewText-text.Len())
		text.WriteString(head)
		cut += int64(len(s) - len(head))
	}
	for i := range m.Parts {
		p := &m.Parts[i]
		if p.Type != PartText {
			continue
		}
		switch ref := refAbove(refs, pathOf(refs, at+"/parts/", i)+"/content"); {
		case ref != nil && ref.KeyID != "":
			add(EncryptedText)
		case ref != nil:
			add(storedElsewhere)
		case p.Content != nil:
			add(*p.Content)
		}
	}
	if !found {
		return nil
	}
	return &Excerpt{Text: harmless(text.String()), Cut: cut}
}

// pathOf is the path of an element, or "" if there are no refs, as it is not needed then.
func pathOf(refs []Ref, list string, i int) string {
	if len(refs) == 0 {
		return ""
	}
	return list + strconv.Itoa(i)
}

// refAbove returns the ref of a field or of a field that contains it.
func refAbove(refs []Ref, path string) *Ref {
	for i := range refs {
		if rest, ok := strings.CutPrefix(path, refs[i].Path); ok && (rest == "" || rest[0] == '/') {
			return &refs[i]
		}
	}
	return nil
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

// shortLine returns a text of at most limit bytes, with an ellipsis if it was cut.
func shortLine(s string, limit int) string {
	if len(s) > limit {
		s = shorten(s, limit-len("…")) + "…"
	}
	return harmless(s)
}

func shortName(s string) string { return shortLine(s, MaxOverviewName) }

// harmless replaces control characters by spaces, so that they do not affect a terminal, and a byte takes at most two
// in JSON.
func harmless(s string) string {
	if !strings.ContainsFunc(s, isForbidden) {
		return s
	}
	return strings.Map(func(r rune) rune {
		if isForbidden(r) {
			return ' '
		}
		return r
	}, s)
}

// DerivedID is the id of an event derived from another, with a suffix that names it. If it would be too long, a hash
// replaces the event's id.
func DerivedID(event, suffix string) string {
	id := event + "/" + suffix
	if len(id) > MaxIdentifier {
		id = fmt.Sprintf("sha256-%x/%s", sha256.Sum256([]byte(event)), suffix)
	}
	return id
}
