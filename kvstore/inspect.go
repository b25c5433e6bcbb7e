package kvstore

import (
	"context"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/schema"
)

// Inspected is one stream of a fleet and its verification.
type Inspected struct {
	// Stream by its name.
	Stream string
	// Truth says that its data cannot be derived.
	Truth bool
	// Info from the server; nil if it could not be read.
	Info *jetstream.StreamInfo
	// Err is [ErrStreamMissing] for a missing stream, [*ConfigError] for flags that another client changed, or why it
	// could not be inspected; nil for a correct stream.
	Err error
}

// Inspect verifies every stream of a fleet, or only the shared ones if s is nil, and changes nothing. It asks for all at
// once: a stream that does not answer before ctx ends takes no time from the others.
func Inspect(ctx context.Context, js jetstream.JetStream, s *schema.FleetSettings) []Inspected {
	p := provisioner{js: js}
	var list []resource
	for _, want := range sharedStreams(1) { // a fleet may have asked for more replicas
		list = append(list, resource{want: want, shared: true})
	}
	if s != nil {
		list = append(list, resources(s, s, true)...)
	}
	out := make([]Inspected, len(list))
	var group sync.WaitGroup
	for i := range list {
		group.Go(func() {
			r := &list[i]
			out[i] = Inspected{Stream: r.want.Name, Truth: r.truth}
			out[i].Info, out[i].Err = p.inspect(ctx, r)
		})
	}
	group.Wait()
	return out
}

// inspect verifies one stream.
func (p *provisioner) inspect(ctx context.Context, r *resource) (*jetstream.StreamInfo, error) {
	info, err := p.info(ctx, r.want.Name)
	if err != nil {
		return nil, err
	}
	_, err = p.judge(r, info)
	return info, err
}
