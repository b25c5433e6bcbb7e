package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// withPublisher calls use with the SDK on the client's connection.
func (c *client) withPublisher(ctx context.Context, executor string, use func(*publisher.Fleet) error) error {
	config := publisher.Config{Conn: c.nc, Fleet: c.fleet, Executor: executor, RequestTimeout: c.wait}
	if executor == operator {
		config.Heartbeat = -1 // a command keeps no run
	}
	fleet, err := publisher.Connect(ctx, config)
	if errors.Is(err, publisher.ErrNotProvisioned) {
		return c.notThere(ctx, err)
	}
	if err != nil {
		return err
	}
	err = use(fleet)
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	return errors.Join(err, fleet.Close(limit))
}

// showState prints all that a run's events add up to. Of a run that misses events it prints what is there, and
// fails.
func showState(ctx context.Context, a *app, cl *client, run string) error {
	return cl.withPublisher(ctx, operator, func(fleet *publisher.Fleet) error {
		state, missing, err := stateOf(ctx, fleet, run)
		if err != nil {
			return err
		}
		return errors.Join(printState(a, state), missing)
	})
}

// stateOf reads all that a run's events add up to. Of a run that misses events the state is what is there, and missing
// says what is not.
func stateOf(ctx context.Context, fleet *publisher.Fleet, run string) (state *schema.State, missing, err error) {
	state, err = fleet.Get(ctx, run)
	if errors.Is(err, publisher.ErrIncomplete) && state != nil {
		missing, err = err, nil
	}
	return state, missing, err
}

// parsePoint reads a point of a run from a flag.
func parsePoint(flag, text string) (schema.Point, error) {
	p, err := schema.ParsePoint(text)
	if err != nil {
		return p, fail(exitUsage, "list a run's points with: waymark runs history RUN", "%s %s", flag, err)
	}
	return p, nil
}

// showAt prints a run as it was at a point.
func showAt(ctx context.Context, a *app, cl *client, run string, at schema.Point, view string) error {
	switch view {
	case schema.ViewState:
		return cl.withPublisher(ctx, operator, func(fleet *publisher.Fleet) error {
			state, err := fleet.GetAt(ctx, run, at)
			if state == nil {
				return err
			}
			return errors.Join(printState(a, state), err)
		})
	case schema.ViewEvents:
		return cl.withPublisher(ctx, operator, func(fleet *publisher.Fleet) error {
			return fleet.EventsAt(ctx, run, at, func(r schema.Record) error { return eventsCmd{}.show(a, r, run, nil) })
		})
	}
	var reply schema.GetReply
	if err := cl.ask(ctx, schema.VerbGet, run, schema.GetRequest{At: at.String()}, &reply); err != nil {
		return err
	}
	if a.cli.JSON {
		if err := document(a.stdout, &reply); err != nil {
			return err
		}
	} else if err := printHead(a, &reply.Head, reply.Quarantined, "as it was at", at.String(), "events until then", count(reply.At.Records)); err != nil {
		return err
	}
	if !reply.Complete {
		return fail(exitDamaged, "what is there: "+cl.prompt.command("runs get "+run+" --view events"),
			"events of run %s before %s are missing: %s", run, at, plural(len(reply.Gaps), "gap"))
	}
	return nil
}

func printState(a *app, s *schema.State) error {
	if a.cli.JSON {
		return document(a.stdout, s)
	}
	if err := printHead(a, &s.Head, s.Head.Quarantined(0)); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(a.stdout); err != nil {
		return err
	}
	messages := make([][]string, len(s.Messages))
	for i, m := range s.Messages {
		content := m.Message
		content.Role = ""
		messages[i] = []string{count(i + 1), count(m.Turn), m.Role, messagesText([]schema.Message{content})}
	}
	if err := printTable(a.stdout, []column{
		{title: "message", right: true}, {title: "turn", right: true}, {title: "role"}, {title: "content", shrinks: true},
	}, messages); err != nil {
		return err
	}
	if len(s.Calls) == 0 {
		return nil
	}
	if _, err := fmt.Fprintln(a.stdout); err != nil {
		return err
	}
	calls := make([][]string, len(s.Calls))
	for i, c := range s.Calls {
		result := string(c.Result)
		if c.Error != nil {
			result = words(c.Error.Type, c.Error.Message)
		}
		calls[i] = []string{count(c.Turn), c.ToolCallID, count(c.Occurrence), c.Name, string(c.Outcome), string(c.Arguments), result}
	}
	return printTable(a.stdout, []column{
		{title: "turn", right: true},
		{title: "call"},
		{title: "occ.", right: true},
		{title: "tool", shrinks: true},
		{title: "outcome"},
		{title: "arguments", shrinks: true},
		{title: "result", shrinks: true},
	}, calls)
}

// showEvents prints a run's events from its first, sealed ones included, and holds none of them.
func showEvents(ctx context.Context, a *app, cl *client, run string) error {
	return cl.withPublisher(ctx, operator, func(fleet *publisher.Fleet) error {
		return fleet.Events(ctx, run, func(r schema.Record) error {
			return eventsCmd{}.show(a, r, run, nil)
		})
	})
}
