package schema

import (
	ce "github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"
)

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
