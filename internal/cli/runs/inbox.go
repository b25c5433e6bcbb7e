package runs

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/inbox"
	"github.com/waymarkio/waymark/internal/look/standstill"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// InboxCmd is waymark inbox.
type InboxCmd struct {
	Agent string            `placeholder:"NAME" help:"Only runs of this agent."`
	Label map[string]string `placeholder:"KEY=VALUE" help:"Only runs with this label; may be repeated."`
	Limit int               `default:"100" placeholder:"N" help:"Maximum entries (default: 100)."`
}

// Help is the text below the flags.
func (InboxCmd) Help() string {
	return `Approvals, questions, calls that a person must settle, and runs that are quarantined or miss events. ` +
		`Each entry has the commands that answer it; if the question has changed since, they answer nothing. ` +
		`More than ten entries are a table without commands. Questions in full: waymark input RUN.

Example:
  waymark inbox --label team=blue`
}

// task is one entry that needs a person.
type task struct {
	standstill.Reason
	// Commands are the alternatives to answer it.
	Commands []string `json:"commands"`
}

// inboxList is the JSON output of inbox.
type inboxList struct {
	Inbox []task `json:"inbox"`
	// Incomplete: the daemon is still indexing the runs. More counts the entries beyond the limit.
	Incomplete bool `json:"incomplete,omitzero"`
	More       int  `json:"more,omitzero"`
	// Unread are runs that cannot be read, so that their needs are unknown.
	Unread []inbox.Unread `json:"unread,omitzero"`
}

// Run lists the entries that need a person, with the commands that answer them.
func (c InboxCmd) Run(ctx context.Context, a *base.App, cl *base.Client) error {
	if c.Limit < 1 {
		return failure.New(failure.Usage, "use a number of at least 1", "--limit %d is below 1", c.Limit)
	}
	if c.Agent != "" {
		if err := schema.CheckName("--agent", c.Agent); err != nil {
			return err
		}
	}
	found, err := inbox.Gather(ctx, cl, schema.ListRequest{Agent: c.Agent, Labels: c.Label}, inbox.MayNeedPerson)
	if err != nil {
		return err
	}
	found.Reasons = slices.DeleteFunc(found.Reasons, func(r standstill.Reason) bool { return !r.NeedsPerson() })
	found.Cut(c.Limit)
	err = cl.WithReader(ctx, func(fleet *publisher.Reader) error {
		inbox.AddCalls(ctx, fleet, found.Reasons)
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	list := inboxList{Inbox: make([]task, len(found.Reasons)), Incomplete: found.Incomplete, More: found.More, Unread: found.Unread}
	for i := range found.Reasons {
		r := &found.Reasons[i]
		list.Inbox[i] = task{*r, inbox.Commands(a.Prompt, r)}
	}
	if a.JSON {
		return errors.Join(output.Document(a.Stdout, list), unreadError(a, found.Unread))
	}
	if len(list.Inbox) <= mostWithCommands {
		err = printTasks(a, list.Inbox)
	} else if err = printReasons(a, found.Reasons); err == nil {
		err = a.Say(a.Stderr, "the commands of some: %s, or with --agent or --label", a.Prompt.Command(fmt.Sprintf("inbox --limit %d", mostWithCommands)))
	}
	if err != nil {
		return err
	}
	switch {
	case list.Incomplete:
		err = sayIncomplete(a, true)
	case len(list.Unread) > 0:
	case len(list.Inbox) == 0:
		err = a.Say(a.Stderr, "no run needs a person")
	case list.More > 0:
		err = a.Say(a.Stderr, "there are %d more: use a --limit above %d", list.More, c.Limit)
	}
	return errors.Join(err, unreadError(a, found.Unread))
}

// printTasks shows each entry with its commands.
func printTasks(a *base.App, tasks []task) error {
	for i := range tasks {
		t := &tasks[i]
		if err := t.show(a, i+1, len(tasks)); err != nil {
			return err
		}
		for _, command := range t.Commands {
			if _, err := fmt.Fprintln(a.Stdout, "    "+output.Printable(command)); err != nil {
				return err
			}
		}
	}
	return nil
}

// mostWithCommands is how many entries are shown with their commands. More are a table.
const mostWithCommands = 10

// mostShown bounds the arguments that are shown to people, in bytes; waymark input has all.
const mostShown = 300

// show describes an entry in a few lines.
func (t *task) show(a *base.App, number, of int) error {
	head := fmt.Sprintf("%*d. ", len(fmt.Sprint(of)), number)
	about := t.Run
	if t.Agent != "" {
		about += " (" + t.Agent + ")"
	}
	if ago := output.Ago(t.Since, a.Now()); ago != "" {
		about += ", " + ago
	}
	line := output.Hanging(a.Stdout, head, about+": "+t.Why)
	if output.Coloured(a.Stdout, a.Getenv) {
		run := output.Printable(t.Run)
		line = head + output.Painted(run, t.colour()) + line[len(head)+len(run):]
	}
	if t.SideEffect != "" {
		line += "\n" + output.Hanging(a.Stdout, "    side effect: ", t.SideEffect)
	}
	if len(t.Arguments) > 0 {
		line += "\n" + output.Hanging(a.Stdout, "    arguments: ", schema.Cut(string(t.Arguments), mostShown))
	}
	if t.NoArguments != "" {
		line += "\n" + output.Hanging(a.Stdout, "    arguments are not shown: ", t.NoArguments+"; see: "+a.Prompt.Command("runs get "+t.Run+" --full"))
	}
	_, err := fmt.Fprintln(a.Stdout, line)
	return err
}

// colour of a run's id: yellow for an awaited answer, red for an error.
func (t *task) colour() text.Colors {
	if t.Kind == standstill.Waiting {
		return text.Colors{text.FgYellow}
	}
	return text.Colors{text.FgRed}
}
