package events

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/internal/pause"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// log prints the events in the log, and marks forged ones.
func (c Cmd) log(ctx context.Context, a *base.App, cl *base.Client) error {
	js, err := jetstream.New(cl.NATS)
	if err != nil {
		return fmt.Errorf("jetstream: %w", err)
	}
	ring := kvstore.NewReadingKeyring(js, cl.Fleet)
	read, count := 0, c.counting(ctx, cl)
	shown, limit := schema.StreamSequence(0), time.Now().Add(a.Timeout)
	take := func(m eventlog.Arrived) error {
		if m.Record.Stream <= shown {
			return nil
		}
		read++
		keys, err := ring.Keys(ctx)
		if err != nil {
			return err
		}
		j := judgedByKeys(&m.Record, keys)
		j.leftBehind = count.leftBehind(&m.Record, keys)
		return c.Show(ctx, a, m.Record, m.Subject, j)
	}
	err = c.follow(ctx, cl, take)
	for err == nil && c.NoFollow && count.behind() && time.Now().Before(limit) {
		// The replica that answered lags. What was shown is not shown again.
		shown = count.order.Last
		if err = pause.For(ctx, readAgainAfter); err == nil {
			err = c.follow(ctx, cl, take)
		}
	}
	if err == nil && c.NoFollow {
		err = c.complete(ctx, cl, count)
	}
	if err == nil && count.unknown() && !a.Quiet {
		err = a.Say(a.Stderr, "no daemon answers: events that a rewind left behind are not marked")
	}
	switch {
	case err != nil || !c.NoFollow || read > 0:
		return err
	case c.Run_ != "" && c.All:
		return &schema.ServiceError{Code: schema.CodeNotFound, Message: fmt.Sprintf("fleet %s has no run %s", cl.Fleet, c.Run_)}
	case a.Quiet || a.JSON:
		return nil
	}
	_, err = fmt.Fprintln(a.Stderr, "no events")
	return err
}

// complete returns an error unless the shown events are all that the run had when the command began. Of several replicas, one that lags or
// is cut off answers, too: only the daemon's answer proves where the run ends.
func (c Cmd) complete(ctx context.Context, cl *base.Client, count *counting) error {
	switch {
	case count.behind():
		return failure.New(failure.Unavailable, "run the command again; see: waymark doctor", "these are not all events of run %s: the replica that answers lags behind", c.Run_)
	case count == nil || count.last != nil:
		return nil
	}
	_, settings, err := cl.Settings(ctx)
	if err == nil && settings.Replicas > 1 {
		err = failure.New(failure.Unavailable, cl.StartHint(ctx), "no daemon answers, so run %s may have more events: a replica that is cut off may have been read", c.Run_)
	}
	return err
}
