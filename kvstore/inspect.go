package kvstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/jsapi"

	"github.com/waymarkio/waymark/schema"
)

// Inspected is one stream of a fleet beside what it must be.
type Inspected struct {
	// Stream by its name.
	Stream string
	// Truth says that it holds what cannot be derived.
	Truth bool
	// Info is what the server says; nil when Err says why not.
	Info *jetstream.StreamInfo
	// Err is [ErrStreamMissing] for one that is not there, [*ConfigError] for flags that somebody changed, or why it could not
	// be looked at; nil for a stream that is as it must be.
	Err error
}

// Inspect looks at every stream of a fleet, shared ones included, and changes nothing.
func Inspect(ctx context.Context, js jetstream.JetStream, s *schema.FleetSettings) []Inspected {
	p := provisioner{js: js}
	var list []resource
	for _, want := range sharedStreams(s.Replicas) {
		list = append(list, resource{want: want, shared: true})
	}
	list = append(list, resources(s, s, true)...)
	out := make([]Inspected, len(list))
	for i := range list {
		r := &list[i]
		out[i] = Inspected{Stream: r.want.Name, Truth: r.truth}
		out[i].Info, out[i].Err = p.inspect(ctx, r)
	}
	return out
}

// inspect looks at one stream.
func (p *provisioner) inspect(ctx context.Context, r *resource) (*jetstream.StreamInfo, error) {
	info, err := p.info(ctx, r.want.Name)
	if errors.Is(err, ErrStreamMissing) && r.truth {
		return nil, fmt.Errorf("%w: it holds what cannot be derived", err)
	}
	if err != nil {
		return nil, err
	}
	want := r.want
	if r.shared {
		want.Replicas = max(want.Replicas, info.Config.Replicas)
	}
	used := int64(info.State.Bytes) //nolint:gosec // a size on disk
	lift := limits{low: want.MaxBytes, high: max(want.MaxBytes+r.reserve, used)}
	if c := compare(&info.Config, nil, &want, lift); len(c.foreign) > 0 {
		return info, configError(jsapi.Subject(p.js, ""), &info.Config, &want, c.foreign, !r.truth)
	}
	return info, nil
}
