package publisher

import (
	"context"

	"github.com/nats-io/nats.go"
)

// defaultGroupFrom is the number of runs waiting at once from which a group is worth an atomic batch.
const defaultGroupFrom = 16

// group sends the events of runs that wait at the same time.
type group struct{ fleet *Fleet }

func newGroup(f *Fleet) *group { return &group{fleet: f} }

func (g *group) send(ctx context.Context, m *nats.Msg) answer { return g.fleet.send(ctx, m) }

func (g *group) stop() {}
