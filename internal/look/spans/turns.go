package spans

import (
	"strings"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/waymarkio/waymark/schema"
)

// openTurn begins a turn and its model call. A turn that an earlier epoch left open is linked if it is begun again.
func (t *Tracker) openTurn(e *schema.Event, d *schema.TurnStartedData) {
	t.endTurn(t.now, outcomeRepeated)
	turn := t.beginTurn(e, d.Turn, d.Purpose)
	name, model := attrs{integer(attrTurn, int64(d.Turn)), text(attrOperation, "chat")}, ""
	if t.started != nil {
		name.text(attrProvider, cut(t.started.Provider))
		name.text(attrModel, cut(t.started.Model))
		model = cut(t.started.Model)
	}
	if t.opts.Content && len(d.Messages) > 0 {
		name.content(attrInput, encode(d.Messages))
	}
	chat := t.begin(strings.TrimSpace("chat "+model), tracepb.Span_SPAN_KIND_CLIENT, spanID(t.fleet, t.run, "chat", e.ID), turn.span.SpanId, name)
	t.turn = &openTurn{open: *turn, number: d.Turn, chat: chat}
}

func (t *Tracker) beginTurn(e *schema.Event, number int32, purpose string) *open {
	a := attrs{integer(attrTurn, int64(number))}
	a.text(attrPurpose, purpose)
	turn := t.begin("turn", tracepb.Span_SPAN_KIND_INTERNAL, spanID(t.fleet, t.run, "turn", e.ID), t.epoch.span.SpanId, a)
	if t.was != nil && t.was.number == number {
		t.link(turn, "takeover", t.trace, t.was.span.SpanId)
	}
	t.was = nil
	return turn
}

// goOn begins the span of a turn that the executor continues after a takeover: the model has answered.
func (t *Tracker) goOn(e *schema.Event) {
	number := t.was.number
	t.turn = &openTurn{open: *t.beginTurn(e, number, ""), number: number}
}

// endTurn ends the open turn, if there is one.
func (t *Tracker) endTurn(at time.Time, outcome string) {
	if t.turn == nil {
		return
	}
	if chat := t.turn.chat; chat != nil {
		if t.turn.answered.IsZero() {
			chat.add(text(attrOutcome, outcome))
		}
		t.endChat(at)
	}
	t.turn.add(text(attrOutcome, outcome))
	t.end(&t.turn.open, at)
	t.turn = nil
}

// endChat ends the model call when its answer was seen, or at the given time.
func (t *Tracker) endChat(at time.Time) {
	if !t.turn.answered.IsZero() {
		at = t.turn.answered
	}
	if t.opts.Content && len(t.turn.output) > 0 {
		a := attrs{}
		a.content(attrOutput, encode(t.turn.output))
		t.turn.chat.add(a...)
	}
	t.end(t.turn.chat, at)
	t.turn.chat = nil
}

// response adds the provider's data about the model call to a span.
func (t *Tracker) response(chat *open, model, id string, finish []string, usage *schema.Usage) {
	a := attrs{}
	a.text(attrResponseModel, cut(model))
	a.text(attrResponseID, cut(id))
	if len(finish) > 0 {
		a = append(a, texts(attrFinishReasons, finish))
	}
	if usage != nil {
		a.usage(usage)
		addUsage(&t.usage, usage)
	}
	chat.add(a...)
}

// turnAnswered ends the model call.
func (t *Tracker) turnAnswered(d *schema.TurnAnsweredData, opened bool) {
	if t.turn == nil {
		return
	}
	t.message(&d.Message)
	if opened && d.DurationMS > 0 {
		// The time of the request is unknown.
		t.turn.span.StartTimeUnixNano = nanos(t.now.Add(-time.Duration(d.DurationMS) * time.Millisecond))
		if t.turn.chat != nil {
			t.turn.chat.span.StartTimeUnixNano = t.turn.span.StartTimeUnixNano
		}
	}
	t.response(t.chat(), d.Model, d.ResponseID, d.FinishReasons, d.Usage)
	if t.turn.chat != nil {
		t.endChat(t.now)
	}
}

// chat is the span of the model call, or the turn's if the model was asked in an earlier epoch.
func (t *Tracker) chat() *open {
	if t.turn.chat != nil {
		return t.turn.chat
	}
	return &t.turn.open
}

func (t *Tracker) turnEnded(d *schema.TurnEndedData) {
	if t.turn == nil {
		return
	}
	for i := range d.Messages {
		t.message(&d.Messages[i])
	}
	if !t.head.TurnAnswered {
		t.response(t.chat(), "", "", nil, d.Usage)
	}
	if d.Error != nil {
		t.fail(&t.turn.open, d.Error.Type, d.Error.Message)
	}
	if t.turn.chat != nil {
		if d.Error != nil {
			t.fail(t.turn.chat, d.Error.Type, d.Error.Message)
		}
		t.endChat(t.now)
	}
	t.end(&t.turn.open, t.now)
	t.turn = nil
}

// message handles the model's answer.
func (t *Tracker) message(m *schema.Message) {
	if t.turn == nil || m.Role != schema.RoleAssistant {
		return
	}
	if t.turn.answered.IsZero() {
		t.turn.answered = t.now
	}
	if t.opts.Content && len(t.turn.output) < maxEvents {
		t.turn.output = append(t.turn.output, *m)
	}
}
