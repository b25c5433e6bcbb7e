package spans

import (
	"strings"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/waymarkio/waymark/schema"
)

// note adds an event to the turn's span, or to the epoch's if no turn of it is open.
func (t *Tracker) note(e *schema.Event, fill func(*attrs)) {
	name := e.Name()
	if name == "" {
		name = cut(e.Type)
	}
	t.noteAs(name, e, fill)
}

func (t *Tracker) noteAs(name string, e *schema.Event, fill func(*attrs)) {
	span := t.epoch.span
	if t.turn != nil && e.Turn == t.turn.number {
		span = t.turn.span
	}
	if len(span.Events) >= maxEvents {
		span.DroppedEventsCount++
		return
	}
	var a attrs
	a.text("waymark.event.id", cut(e.ID))
	if fill != nil {
		fill(&a)
	}
	span.Events = append(span.Events, &tracepb.Span_Event{Name: name, TimeUnixNano: nanos(t.now), Attributes: a})
}

// noteData notes the events that begin and end no span. Data is nil for unknown types.
func (t *Tracker) noteData(e *schema.Event, data schema.Data) {
	content := func(a *attrs, key, value string) {
		if t.opts.Content {
			a.content(key, value)
		}
	}
	switch d := data.(type) {
	case *schema.RunWaitingData:
		t.note(e, func(a *attrs) {
			a.text("waymark.reason", d.Reason)
			a.text("waymark.interrupt.id", cut(d.InterruptID))
			a.text(attrToolCallID, cut(d.ToolCallID))
			content(a, "waymark.message", d.Message)
		})
	case *schema.RunInputData:
		t.note(e, func(a *attrs) {
			a.text("waymark.interrupt.id", cut(d.InterruptID))
			a.text("waymark.input.status", cut(d.Status))
			content(a, "waymark.by", d.By)
			content(a, "waymark.payload", string(d.Payload))
		})
	case *schema.RunCancelRequestedData:
		t.note(e, func(a *attrs) {
			content(a, "waymark.by", d.By)
			content(a, "waymark.reason", d.Reason)
		})
	case *schema.ToolDecidedData:
		t.note(e, func(a *attrs) {
			a.text(attrToolCallID, cut(d.ToolCallID))
			a.text("waymark.decision", cut(d.Decision))
			a.text("waymark.policy.mode", cut(d.Mode))
			a.text("waymark.policy", cut(d.Policy))
			content(a, "waymark.by", d.By)
			content(a, "waymark.reason", d.Reason)
		})
	case *schema.StateSetData:
		t.note(e, func(a *attrs) { a.text("waymark.state.key", cut(d.Key)) })
	case *schema.StateDeletedData:
		t.note(e, func(a *attrs) { a.text("waymark.state.key", cut(d.Key)) })
	case *schema.SignalSentData:
		t.note(e, func(a *attrs) {
			a.text("waymark.signal.id", cut(d.SignalID))
			a.text("waymark.signal.name", cut(d.Name))
		})
	case *schema.SignalConsumedData:
		t.note(e, func(a *attrs) { a.text("waymark.signal.ids", cut(strings.Join(d.SignalIDs, ","))) })
	case *schema.LimitReachedData:
		t.note(e, func(a *attrs) { a.text("waymark.limit", cut(d.Limit)) })
	case *schema.ContextCompactedData:
		t.note(e, func(a *attrs) {
			a.number("waymark.compacted.through_turn", int64(d.ThroughTurn))
			a.number("waymark.compacted.tokens_before", d.TokensBefore)
			a.number("waymark.compacted.tokens_after", d.TokensAfter)
			content(a, "waymark.summary", d.Summary)
		})
	case *schema.HandoffOfferedData:
		t.note(e, func(a *attrs) {
			a.text("waymark.handoff.id", cut(d.HandoffID))
			a.text("waymark.reason", cut(d.Reason))
			a.text("waymark.handoff.next_agent", cut(d.NextAgent))
		})
	case *schema.HandoffAcceptedData:
		t.note(e, func(a *attrs) {
			a.text("waymark.handoff.id", cut(d.HandoffID))
			a.text("waymark.handoff.child_run", cut(d.ChildRun))
		})
	case *schema.HandoffDeclinedData:
		t.note(e, func(a *attrs) { a.text("waymark.handoff.id", cut(d.HandoffID)) })
	case *schema.HandoffClosedData:
		t.note(e, func(a *attrs) { a.text("waymark.handoff.id", cut(d.HandoffID)) })
	case *schema.ArtifactAddedData:
		t.note(e, func(a *attrs) {
			a.text("waymark.artifact.id", cut(d.ArtifactID))
			a.text("waymark.artifact.media_type", cut(d.MediaType))
			a.number("waymark.artifact.size", d.Size)
			content(a, "waymark.artifact.name", d.Name)
		})
	case *schema.CheckpointMarkedData:
		t.note(e, func(a *attrs) { a.text("waymark.mark", cut(d.Name)) })
	case *schema.ErrorRaisedData:
		t.noteAs("exception", e, func(a *attrs) {
			a.text("exception.type", cut(d.Error.Type))
			content(a, "exception.message", d.Error.Message)
		})
	default:
		t.note(e, nil)
	}
}
