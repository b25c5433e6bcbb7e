package schema

import (
	"fmt"

	ce "github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"
)

// CloudEvent returns the event as the CloudEvents SDK's type, for consumers that use that SDK.
func (e *Event) CloudEvent() (ce.Event, error) {
	out := ce.New(ce.CloudEventsVersionV1)
	out.SetID(e.ID)
	out.SetSource(e.Source)
	out.SetType(e.Type)
	if e.Subject != "" {
		out.SetSubject(e.Subject)
	}
	if e.Time != "" {
		t, err := types.ParseTime(e.Time)
		if err != nil {
			return out, &AttributeError{"time", err.Error()}
		}
		out.SetTime(t)
	}
	if e.DataSchema != "" {
		out.SetDataSchema(e.DataSchema)
	}
	for _, name := range e.attributeNames(nil) {
		switch name {
		case "epoch":
			out.SetExtension(name, int32(e.Epoch)) //nolint:gosec // at most 2^31-1
		case "turn":
			out.SetExtension(name, e.Turn)
		case "sequence", "traceparent", "dataref":
			out.SetExtension(name, string(e.appendAttribute(nil, name)))
		}
	}
	for name, value := range e.Extensions {
		out.SetExtension(name, value)
	}
	if e.DataContentType != "" {
		out.SetDataContentType(e.DataContentType)
	}
	out.DataEncoded, out.DataBase64 = e.Data, !e.isJSON()
	if err := out.Validate(); err != nil {
		return out, fmt.Errorf("event %s as CloudEvent: %w", e.ID, err)
	}
	return out, nil
}

// FromCloudEvent returns the event that the CloudEvents SDK's type holds.
func FromCloudEvent(in ce.Event) (*Event, error) {
	e := &Event{Data: in.Data()}
	set := func(name, text string) error {
		if text == "" {
			return nil
		}
		return e.setAttribute(name, text)
	}
	attrs := [][2]string{
		{"id", in.ID()},
		{"source", in.Source()},
		{"type", in.Type()},
		{"subject", in.Subject()},
		{"datacontenttype", in.DataContentType()},
		{"dataschema", in.DataSchema()},
	}
	if !in.Time().IsZero() {
		attrs = append(attrs, [2]string{"time", FormatTime(in.Time())})
	}
	for name, value := range in.Extensions() {
		text, err := types.Format(value)
		if err != nil {
			return nil, &AttributeError{name, err.Error()}
		}
		attrs = append(attrs, [2]string{name, text})
	}
	for _, a := range attrs {
		if err := set(a[0], a[1]); err != nil {
			return nil, err
		}
	}
	return e.checked(in.SpecVersion())
}
