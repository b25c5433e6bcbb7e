package runs

import (
	"context"
	"errors"
	"fmt"
	"strings"

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
	return `The language is that of expr-lang.org, without functions that create text or copy lists. Values: event (name, id, source, time, ` +
		`epoch, sequence, turn, data), and run (the head after the event, as in waymark runs get --json). An expression with a missing ` +
		`member is false; a?.b is nil if a is nil, a ?? 0 supplies a default. The exit code is 4 if it is never true.

Examples:
  waymark bisect fix-login '` + strings.Join(history.Examples, "'\n  waymark bisect fix-login '") + "'"
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

// Run looks for the first event after which the predicate is true.
func (c BisectCmd) Run(ctx context.Context, a *base.App) error {
	predicate, err := history.CompilePredicate(c.Predicate)
	switch {
	case errors.Is(err, history.ErrPredicateCost):
		return failure.New(failure.Usage, "use a simpler expression", "%s", err)
	case err != nil:
		return failure.New(failure.Usage, "see the language definition: https://expr-lang.org/docs/language-definition", "%s", err)
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	search := history.Search{Predicate: predicate}
	err = cl.WithReader(ctx, func(fleet *publisher.Reader) error { return search.Run(ctx, fleet, c.Run_) })
	read := output.Plural(search.Events, "event")
	switch {
	case errors.Is(err, history.ErrPredicateCost):
		return failure.New(failure.Usage, "use a simpler expression", "%s", err)
	case err != nil:
		return err
	case search.Event == nil && search.Failed != nil:
		return failure.New(failure.NotFound, "for members that may be missing, write a?.b", "the expression is never true in %s of run %s, and fails %s", read, c.Run_, search.Failed)
	case search.Event == nil:
		return failure.New(failure.NotFound, "see the values with: "+a.Prompt.Command("events "+c.Run_+" --all --no-follow"), "the expression is never true in %s of run %s", read, c.Run_)
	}
	point := func(event string) string { return schema.Point{Kind: schema.PointEvent, Name: event}.String() }
	found := bisected{Run: c.Run_, Predicate: c.Predicate, Point: point(search.Event.ID), Events: search.Events, Event: events.LineOf(search.Stream, search.Event)}
	before := ""
	if search.Before != "" {
		found.Before = point(search.Before)
		before = a.Prompt.Command("fork " + c.Run_ + " --at " + schema.ShellWord(found.Before))
	}
	if a.JSON {
		return output.Document(a.Stdout, found)
	}
	table := events.Cmd{Run_: c.Run_}
	if err := table.Print(a, found.Event.Stream, search.Event, ""); err != nil {
		return err
	}
	return output.Fields(a.Stdout, "event", fmt.Sprintf("%d of the run", found.Events), "show it", a.Prompt.Command("recover "+c.Run_+" --at "+schema.ShellWord(found.Point)),
		"continue from before it", before)
}
