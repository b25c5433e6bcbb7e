package publisher

import (
	"context"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/schema"
)

// steady checks, once after each lost connection, that the log still has the last message that this handle knows. A
// server restored from an older copy of its store assigns the same stream sequences to other messages. If the run's
// last message then happens to have the number that the handle expects, the server would acknowledge further events,
// and the fold would refuse them. A server cannot be restored without breaking the connection, so no other check is
// needed.
//
// It returns ErrLogRegressed, which ends the handle, and errAgain if no server answered.
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
	// If the message is gone, the server refuses the next event, and the cause is found then.
	if found && rec.Stream == last {
		if got := schema.PositionOf(&rec).ID; got != lastID {
			return a.ledger.die(fmt.Errorf("run %s: %w: stream sequence %d had %s and now has %s", a.run, ErrLogRegressed, last, lastID, got))
		}
	}
	a.connections = connections
	return nil
}
