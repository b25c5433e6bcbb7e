package spans

import (
	"slices"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/waymarkio/waymark/schema"
)

// called begins the span of a tool call.
func (t *Tracker) called(key schema.CallKey, d *schema.ToolCalledData) {
	if t.turn != nil && t.turn.answered.IsZero() {
		t.turn.answered = t.now // the model requested it
	}
	c := t.beginCall(key, d.Name, callSpan(t.fleet, t.run, key))
	a := attrs{}
	a.text(attrReplay, string(d.Replay))
	if t.opts.Content {
		a.content(attrArguments, string(d.Arguments))
	}
	c.add(a...)
}

func (t *Tracker) beginCall(key schema.CallKey, name string, id []byte) *open {
	if c := t.calls[key]; c != nil { // impossible: the fold gives every call its own key
		t.end(c, t.now)
	}
	a := attrs{text(attrOperation, "execute_tool"), text(attrToolName, cut(name))}
	a.call(key)
	c := t.begin("execute_tool "+cut(name), tracepb.Span_SPAN_KIND_INTERNAL, id, t.parent(key.Turn), a)
	t.calls[key] = c
	return c
}

// unbegun creates the span of a call that has no begin event, once its outcome is known. The span starts one tool
// duration before the outcome.
func (t *Tracker) unbegun(v *schema.Verdict, was []schema.OpenCall, took int64) {
	i := slices.IndexFunc(was, func(c schema.OpenCall) bool { return c.CallKey == v.Call && c.State.Requested() })
	if i < 0 || v.Kind != schema.Applied || t.calls[v.Call] != nil {
		return
	}
	c := t.beginCall(v.Call, was[i].Name, callSpan(t.fleet, t.run, v.Call))
	c.span.StartTimeUnixNano = nanos(t.now.Add(-time.Duration(took) * time.Millisecond))
	a := attrs{}
	a.text(attrReplay, string(was[i].Replay))
	c.add(a...)
}

// endCall removes and returns the call's open span, or nil: a call of an earlier epoch has none.
func (t *Tracker) endCall(key schema.CallKey) *open {
	c := t.calls[key]
	delete(t.calls, key)
	return c
}

func (t *Tracker) returned(v *schema.Verdict, d *schema.ToolReturnedData) {
	c := t.endCall(v.Call)
	if v.Kind == schema.Evidence || c == nil {
		t.noteAs(v.Event.Name(), v.Event, func(a *attrs) { a.call(v.Call) })
		return
	}
	c.add(text(attrOutcome, string(schema.OutcomeReturned)))
	if d.IsError != nil && *d.IsError {
		t.fail(c, "tool_error", "")
	}
	if t.opts.Content {
		a := attrs{}
		a.content(attrResult, string(d.Result))
		c.add(a...)
	}
	t.end(c, t.now)
}

func (t *Tracker) failed(v *schema.Verdict, d *schema.ToolFailedData) {
	c := t.endCall(v.Call)
	if v.Kind == schema.Evidence || c == nil {
		t.noteAs(v.Event.Name(), v.Event, func(a *attrs) { a.call(v.Call); a.text(attrError, cut(d.Error.Type)) })
		return
	}
	c.add(text(attrOutcome, string(schema.OutcomeFailed)))
	t.fail(c, d.Error.Type, d.Error.Message)
	t.end(c, t.now)
}

// settled begins the span again if the call will run again; otherwise it ends with the settlement.
func (t *Tracker) settled(v *schema.Verdict, d *schema.ToolSettledData, doubted []schema.OpenCall) {
	t.noteAs(v.Event.Name(), v.Event, func(a *attrs) {
		a.call(v.Call)
		a.text("waymark.settled", string(d.How))
		if t.opts.Content {
			a.text("waymark.by", cut(d.By))
		}
	})
	was := t.doubt[v.Call]
	delete(t.doubt, v.Call)
	if d.How != schema.SettledRerun {
		if c := t.endCall(v.Call); c != nil {
			c.add(text(attrOutcome, string(d.How)))
			t.end(c, t.now)
		}
		return
	}
	name := ""
	for i := range doubted {
		if doubted[i].CallKey == v.Call {
			name = doubted[i].Name
		}
	}
	c := t.beginCall(v.Call, name, spanID(t.fleet, t.run, "rerun", v.Event.ID))
	switch {
	case was != nil:
		t.link(c, "rerun", t.trace, was.SpanId)
	case t.head.Base != nil: // a call of the base run
		t.link(c, "rerun", TraceID(t.fleet, t.head.Base.Run), callSpan(t.fleet, t.head.Base.Run, v.Call))
	}
}

func (a *attrs) call(key schema.CallKey) {
	a.text(attrToolCallID, cut(key.ToolCallID))
	a.number(attrTurn, int64(key.Turn))
	if key.Occurrence > 1 {
		a.number(attrOccurrence, int64(key.Occurrence))
	}
}
