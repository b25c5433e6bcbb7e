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

// log prints events: those of a run from its beginning, then those in the log. Behind the head of a run it folds them.
func (c Cmd) log(ctx context.Context, a *base.App, cl *base.Client) error {
	from := eventlog.FollowFrom{Run: c.Run_, New: !c.All}
	var head *schema.Head
	switch {
	case c.Run_ != "" && c.All:
		var err error
		head, err = c.walk(ctx, a, cl)
		if c.NoFollow || err != nil && !errors.Is(err, publisher.ErrRunNotFound) {
			return err
		}
	case c.Since > 0:
		from.Since = time.Now().Add(-c.Since)
	case c.Run_ != "":
		looking, cancel := context.WithTimeout(ctx, lookPatience)
		reply, err := cl.Get(looking, c.Run_)
		if cancel(); err == nil && reply.Complete {
			head = &reply.Head
		}
	}
	if head != nil {
		from.Stream = head.Position.Stream + 1
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
		if head != nil {
			return c.show(ctx, a, m.Record, m.Subject, judgedByFold(head.Apply(keys, &m.Record), false))
		}
		return c.show(ctx, a, m.Record, m.Subject, judgedAlone(&m.Record, keys))
	})
	if err != nil || !c.NoFollow || read > 0 || a.JSON {
		return err
	}
	return a.Say(a.Stderr, "no events")
}

// walk prints the run's events so far as the fold judges them, and returns the run's head behind them.
func (c Cmd) walk(ctx context.Context, a *base.App, cl *base.Client) (head *schema.Head, err error) {
	err = cl.WithReader(ctx, func(fleet *publisher.Reader) error {
		last, err := fleet.Head(ctx, c.Run_) // it knows the rewinds
		if err != nil {
			return err
		}
		return fleet.Walk(ctx, c.Run_, schema.Point{}, func(step *schema.Step) error {
			head = step.Head
			return c.show(ctx, a, step.Record, c.Run_, judgedByFold(step.Verdict, last.LeftBehind(step.Head.Records)))
		})
	})
	return head, err
}
