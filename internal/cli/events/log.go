package events

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// log prints events: those of a run from its beginning, then those in the log.
func (c Cmd) log(ctx context.Context, a *base.App, cl *base.Client) error {
	from := eventlog.FollowFrom{Run: c.Run_, New: !c.All}
	switch {
	case c.Run_ != "" && c.All:
		next, err := c.walk(ctx, a, cl)
		if c.NoFollow || err != nil && !errors.Is(err, publisher.ErrRunNotFound) {
			return err
		}
		from.Stream = next
	case c.Since > 0:
		from.Since = time.Now().Add(-c.Since)
	}
	js, err := jetstream.New(cl.NATS)
	if err != nil {
		return fmt.Errorf("jetstream: %w", err)
	}
	ring := kvstore.NewReadingKeyring(js, cl.Fleet)
	read := 0
	err = c.follow(ctx, cl, from, func(m eventlog.Arrived) error {
		read++
		keys, err := ring.Keys(ctx)
		if err != nil {
			return err
		}
		return c.show(ctx, a, m.Record, m.Subject, judgedByKeys(&m.Record, keys))
	})
	if err != nil || !c.NoFollow || read > 0 || a.JSON {
		return err
	}
	return a.Say(a.Stderr, "no events")
}

// walk prints the run's events so far as the fold judges them, and returns where the log continues behind them.
func (c Cmd) walk(ctx context.Context, a *base.App, cl *base.Client) (next schema.StreamSequence, err error) {
	err = cl.WithReader(ctx, func(fleet *publisher.Reader) error {
		last, err := fleet.Head(ctx, c.Run_) // it knows the rewinds
		if err != nil {
			return err
		}
		return fleet.Walk(ctx, c.Run_, schema.Point{}, func(step *schema.Step) error {
			next = step.Stream + 1
			return c.show(ctx, a, step.Record, c.Run_, judgedByFold(step.Verdict, last.LeftBehind(step.Head.Records)))
		})
	})
	return next, err
}
