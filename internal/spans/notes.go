package spans

import (
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/waymarkio/waymark/internal/story"
	"github.com/waymarkio/waymark/schema"
)

// note adds an event that begins and ends no span, with its description. Data is nil for unknown types.
func (t *Tracker) note(e *schema.Event, data schema.Data) {
	name := e.Name()
	if _, raised := data.(*schema.ErrorRaisedData); raised {
		name = "exception"
	}
	t.noteAs(name, e, func(a *attrs) {
		for _, f := range story.Describe(data, nil).Fields {
			switch {
			case !f.Content:
				a.text(f.Key, cut(f.Text))
				a.number(f.Key, f.Number)
			case t.opts.Content:
				a.content(f.Key, f.Text)
			}
		}
	})
}

// noteAs adds an event to the turn's span, or to the epoch's if no turn of it is open.
func (t *Tracker) noteAs(name string, e *schema.Event, fill func(*attrs)) {
	if name == "" {
		name = cut(e.Type)
	}
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
	fill(&a)
	span.Events = append(span.Events, &tracepb.Span_Event{Name: name, TimeUnixNano: nanos(t.now), Attributes: a})
}
