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
func (a *appender) steady(ctx context.Context) error {
	connections := a.nc.Stats().Reconnects
	last, lastID := a.ledger.end()
	if last == 0 || connections == a.connections {
		return nil
	}
	rec, found, err := eventlog.Next(ctx, a.js, a.names, a.run, last)
	if err != nil {
		return errors.Join(errAgain, err)
	}
	// When it is not there any more the server refuses what follows, and why is found out then.
	if found && rec.Stream == last {
		if got := schema.PositionOf(&rec).ID; got != lastID {
			return a.ledger.die(fmt.Errorf("run %s: %w: stream sequence %d had %s and now has %s", a.run, ErrLogRegressed, last, lastID, got))
		}
	}
	a.connections = connections
	return nil
}
