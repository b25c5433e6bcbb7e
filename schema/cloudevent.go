package schema

import (
	"fmt"

	ce "github.com/cloudevents/sdk-go/v2/event"
)

// FromCloudEvent returns the event that the CloudEvents SDK's type holds.
func FromCloudEvent(in ce.Event) (*Event, error) {
	structured, err := in.MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("event %s: %w", in.ID(), err)
	}
	return Decode(map[string][]string{"Content-Type": {ContentTypeStructured}}, structured)
}
