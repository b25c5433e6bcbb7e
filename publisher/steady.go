package publisher

import (
	"context"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/schema"
)

// steady sees to it, once behind each lost connection, that the log still has the last message that this handle knows. A server that
// was put back to an older copy of its store gives the same stream sequences to other messages. When the run's last one has by chance
// the number that the handle expects, the server would acknowledge what follows, and the fold would refuse it. A server cannot be
// exchanged without the connection being lost, so that nothing is asked otherwise.
//
// It returns ErrLogRegressed, which ends the handle, and errAgain when nobody answered.
func (r *Run) steady(ctx context.Context) error {
	connections := r.fleet.nc.Stats().Reconnects
	if r.last == 0 || connections == r.connections {
		return nil
	}
	rec, found, err := eventlog.Next(ctx, r.fleet.js, r.names, r.id, r.last)
	if err != nil {
		return errors.Join(errAgain, err)
	}
	// When it is not there any more the server refuses what follows, and why is found out then.
	if found && rec.Stream == r.last {
		if got := schema.PositionOf(&rec).ID; got != r.lastID {
			return r.die(fmt.Errorf("run %s: %w: stream sequence %d had %s and now has %s", r.id, ErrLogRegressed, r.last, r.lastID, got))
		}
	}
	r.connections = connections
	return nil
}
