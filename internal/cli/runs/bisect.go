package runs

import (
	"context"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/events"
	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/internal/history"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// BisectCmd is waymark bisect.
type BisectCmd struct {
	Run_      string `arg:"" name:"run" help:"Run id."`
	Predicate string `arg:"" help:"Expression over event and run."`
}

// Help is the text below the flags.
func (BisectCmd) Help() string {
	return `Goes through the run's events from the first, and shows the first one after which the expression is true, with the points ` +
		`before and after it. The expression language is that of expr-lang.org, without the functions that create text or copy lists. It has two values: event, with name, id, source, time, ` +
		`epoch, sequence, turn and data; and run, the run's head after the event, as in waymark runs get --json. An expression ` +
		`with a missing member is false; a?.b is nil if a is nil, and a ?? 0 supplies a default. The exit code is 4 if it is never true.

Examples:
  waymark bisect fix-login 'event.name == "tool.called" && event.data.name == "Bash"'
  waymark bisect fix-login 'event.data.arguments?.command contains "rm -rf"'
  waymark bisect fix-login '(run.usage?.output_tokens ?? 0) > 100000'`
}

// bisected is the JSON output of bisect.
type bisected struct {
	Run       string `json:"run"`
	Predicate string `json:"predicate"`
	// Point is after the event, and Before after the previous event; empty for the run's first.
	Point  string      `json:"point"`
	Before string      `json:"before,omitzero"`
	Events int64       `json:"events"`
	Event  events.Line `json:"event"`
}

// errFound ends the search.
var errFound = errors.New("found")

// Run looks for the first event after which the predicate is true.
func (c BisectCmd) Run(ctx context.Context, a *base.App) error {
	predicate, err := history.CompilePredicate(c.Predicate)
	if err != nil {
		return failure.New(failure.Usage, "see the language definition: https://expr-lang.org/docs/language-definition", "%s", err)
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	found := bisected{Run: c.Run_, Predicate: c.Predicate}
	var event *schema.Event
	var senseless error
	err = cl.WithReader(ctx, func(fleet *publisher.Reader) error {
		head := schema.NewHead(cl.Fleet, c.Run_)
		last := schema.StreamSequence(0)
		err := fleet.Events(ctx, c.Run_, func(rec schema.Record) error {
			if rec.Stream <= last {
				head.Position = schema.Position{} // sequences freed by damage were used again
			}
			last = rec.Stream
			keys, err := fleet.Keys(ctx)
			if err != nil {
				return err
			}
			v := head.Apply(keys, &rec)
			if v.Kind != schema.Applied && v.Kind != schema.Evidence {
				return nil
			}
			found.Events++
			holds, err := predicate.Holds(ctx, &head, a.Opened(ctx, v.Event))
			if errors.Is(err, history.ErrPredicateCost) || ctx.Err() != nil {
				return fmt.Errorf("at event %s: %w", v.Event.ID, err)
			}
			if err != nil && senseless == nil {
				senseless = fmt.Errorf("at event %s: %w", v.Event.ID, err)
			}
			point := schema.Point{Kind: schema.PointEvent, Name: v.Event.ID}.String()
			if !holds {
				found.Before = point
				return nil
			}
			event, found.Point = v.Event, point
			found.Event = events.LineOf(rec.Stream, v.Event)
			return errFound
		})
		if errors.Is(err, errFound) {
			return nil
		}
		return err
	})
	switch {
	case errors.Is(err, history.ErrPredicateCost):
		return failure.New(failure.Usage, "use a simpler expression", "%s", err)
	case err != nil:
		return err
	case event == nil && senseless != nil:
		return failure.New(failure.NotFound, "for members that may be missing, write a?.b", "the expression is never true in %s of run %s, and fails %s", output.Plural(found.Events, "event"), c.Run_, senseless)
	case event == nil:
		return failure.New(failure.NotFound, "see the values with: "+a.Prompt.Command("events "+c.Run_+" --all --no-follow"), "the expression is never true in %s of run %s", output.Plural(found.Events, "event"), c.Run_)
	case a.JSON:
		return output.Document(a.Stdout, found)
	}
	table := events.Cmd{Run_: c.Run_}
	if err := table.Print(a, found.Event.Stream, event, ""); err != nil {
		return err
	}
	before := ""
	if found.Before != "" {
		before = a.Prompt.Command("fork " + c.Run_ + " --at " + schema.ShellWord(found.Before))
	}
	return output.Fields(a.Stdout, "event", fmt.Sprintf("%d of the run", found.Events), "show it", a.Prompt.Command("recover "+c.Run_+" --at "+schema.ShellWord(found.Point)),
		"continue from before it", before)
}
