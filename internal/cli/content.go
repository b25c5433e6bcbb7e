package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/internal/encrypted"
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
			head, err := fleet.HeadAt(ctx, run, at)
			if err != nil && !errors.Is(err, publisher.ErrIncomplete) {
				return err
			}
			return fleet.EventsAt(ctx, run, at, foldedEvents(ctx, a, fleet, run, head))
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
		content := encrypted.Value(m.Message, m.Refs)
		content.Role = ""
		messages[i] = []string{count(i + 1), count(m.Turn), m.Role, messagesText([]schema.Message{content})}
	}
	if err := printTable(a.stdout, []column{
		{title: "message", right: true}, {title: "turn", right: true}, {title: "role"}, {title: "content", shrinks: true},
	}, messages); err != nil {
		return err
	}
	if err := printValues(a, s.Values); err != nil {
		return err
	}
	calls := make([][]string, len(s.Calls))
	for i, c := range s.Calls {
		result := encrypted.Field(string(c.Result), c.Refs, "/result")
		if c.Error != nil {
			result = words(c.Error.Type, encrypted.Field(c.Error.Message, c.Refs, "/error/message"))
		}
		calls[i] = []string{count(c.Turn), c.ToolCallID, count(c.Occurrence), c.Name, string(c.Outcome), encrypted.Field(string(c.Arguments), c.Refs, "/arguments"), result}
	}
	return printBelow(a, []column{
		{title: "turn", right: true},
		{title: "call"},
		{title: "occ.", right: true},
		{title: "tool", shrinks: true},
		{title: "outcome"},
		{title: "arguments", shrinks: true},
		{title: "result", shrinks: true},
	}, calls)
}

// shortValue is the most of a value of the application's state that is shown, in bytes.
const shortValue = 60

// printValues lists the application's own state; a long value is there by its size.
func printValues(a *app, values []schema.StateValue) error {
	rows := make([][]string, len(values))
	for i := range values {
		v := &values[i]
		shown := string(v.Value)
		if len(v.Value) > shortValue {
			shown = bytesText(int64(len(v.Value)))
		}
		rows[i] = []string{v.Key, encrypted.Field(shown, v.Refs, "/value"), count(v.Turn), ago(v.Time, a.now())}
	}
	return printBelow(a, []column{
		{title: "state"},
		{title: "value", shrinks: true},
		{title: "turn", right: true, drop: 2},
		{title: "set", drop: 1},
	}, rows)
}

// showEvents prints a run's events from its first, sealed ones included, and holds none of them.
func showEvents(ctx context.Context, a *app, cl *client, run string) error {
	return cl.withPublisher(ctx, operator, func(fleet *publisher.Fleet) error {
		head, err := fleet.Head(ctx, run)
		if err != nil && !errors.Is(err, publisher.ErrIncomplete) {
			return err
		}
		return fleet.Events(ctx, run, foldedEvents(ctx, a, fleet, run, head))
	})
}

// foldedEvents prints the events of a run with what the fold makes of each. last is the head behind them, which knows the rewinds.
func foldedEvents(ctx context.Context, a *app, fleet *publisher.Fleet, run string, last schema.Head) func(schema.Record) error {
	head, before := schema.NewHead(fleet.Name(), run), schema.StreamSequence(0)
	return func(rec schema.Record) error {
		if rec.Stream <= before {
			head.Position = schema.Position{} // sequences that damage freed were used again
		}
		before = rec.Stream
		keys, err := fleet.Keys(ctx)
		if err != nil {
			return err
		}
		v := head.Apply(keys, &rec)
		behind := v.Kind != schema.Skipped && last.LeftBehind(head.Records)
		return eventsCmd{Run_: run}.show(a, rec, run, judgedByFold(v, behind))
	}
}
