package spans

import (
	"fmt"
	"reflect"
	"strings"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/waymarkio/waymark/schema"
)

// note adds an event that begins and ends no span. Data is nil for unknown types.
func (t *Tracker) note(v *schema.Verdict) {
	e, data := v.Event, v.Data
	if raised, ok := data.(*schema.ErrorRaisedData); ok {
		t.noteAs("exception", e, func(a *attrs) {
			a.text("exception.type", cut(raised.Error.Type))
			if t.opts.Content {
				a.content("exception.message", raised.Error.Message)
			}
		})
		return
	}
	t.noteAs(e.Name(), e, func(a *attrs) {
		if data != nil {
			a.members(data, t.opts.Content)
		}
		a.call(v.Call)
	})
}

// members adds the texts and numbers of an event's data under their own names. Content, and names of people, are added
// on request only.
func (a *attrs) members(data schema.Data, content bool) {
	v := reflect.ValueOf(data).Elem()
	for field, value := range v.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		key := "waymark." + name
		_, private := field.Tag.Lookup("content")
		switch private = private || name == "by" || name == "claimed"; {
		case name == "", name == "tool_call_id", name == "occurrence", value.IsZero(): // the call is named by the fold
		case private && content:
			a.content(key, fmt.Sprint(value.Interface())) // a text, or a JSON value
		case private:
		case value.Kind() == reflect.String:
			a.text(key, cut(value.String()))
		case value.CanInt():
			a.number(key, value.Int())
		}
	}
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
