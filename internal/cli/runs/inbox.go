package runs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/internal/standstill"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// InboxCmd is waymark inbox.
type InboxCmd struct {
	Agent  string            `placeholder:"NAME" help:"Only runs of this agent."`
	Label  map[string]string `placeholder:"KEY=VALUE" help:"Only runs with this label; may be repeated."`
	Limit  int               `default:"100" placeholder:"N" help:"At most so many things (default: 100)."`
	Answer bool              `xor:"how" help:"Ask for each answer, also where standard input is no terminal: an answer is a line of it."`
	List   bool              `xor:"how" help:"Ask for no answer, also on a terminal."`
	By     string            `placeholder:"NAME" environ:"WAYMARK_OPERATOR" help:"Your name, recorded as a claim (WAYMARK_OPERATOR; default: waymark-cli)."`
}

// Help is the text below the flags.
func (InboxCmd) Help() string {
	return `Approvals that are asked for, questions, calls whose outcome a person must say (of ended runs, too), and runs that are quarantined, parked ` +
		`or miss events: what has waited for longest comes first. On a terminal each can be answered at once; elsewhere each is shown with the ` +
		`commands that answer it. What runs wait for from other systems is not among them: see waymark runs ls --stuck.

Examples:
  waymark inbox
  waymark inbox --label team=blue --list
  waymark inbox --json`
}

// task is one thing that needs a person.
type task struct {
	standstill.Reason
	// Commands answer it, one each.
	Commands []string `json:"commands"`
}

// inbox is what inbox prints as JSON.
type inbox struct {
	Inbox []task `json:"inbox"`
	// Incomplete: the daemon is still indexing the runs. More counts what the limit left out.
	Incomplete bool `json:"incomplete,omitzero"`
	More       int  `json:"more,omitzero"`
}

// Run shows what needs a person, and takes the answers on a terminal.
func (c InboxCmd) Run(ctx context.Context, a *base.App) error {
	if c.Limit < 1 {
		return failure.New(failure.Usage, "use a number of things", "--limit %d is below 1", c.Limit)
	}
	if c.Agent != "" {
		if err := schema.CheckName("--agent", c.Agent); err != nil {
			return err
		}
	}
	by, err := base.Sender(c.By)
	if err != nil {
		return err
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	defer cl.Close()
	found, err := gather(ctx, cl, schema.ListRequest{Agent: c.Agent, Labels: c.Label}, true)
	if err != nil {
		return err
	}
	found.Reasons = slices.DeleteFunc(found.Reasons, func(r standstill.Reason) bool { return !r.NeedsPerson() })
	found.cut(c.Limit)
	list := inbox{Inbox: make([]task, len(found.Reasons)), Incomplete: found.Incomplete, More: found.More}
	for i := range found.Reasons {
		list.Inbox[i] = task{found.Reasons[i], commands(a, &found.Reasons[i])}
	}
	if a.JSON {
		return output.Document(a.Stdout, list)
	}
	asks := c.Answer || !c.List && output.IsTerminal(a.Stdin) && output.IsTerminal(output.Below(a.Stdout))
	if asks {
		err = answerAll(ctx, a, cl, by, list.Inbox)
	} else {
		err = printTasks(a, list.Inbox)
	}
	if err != nil {
		return err
	}
	switch {
	case list.Incomplete:
		return a.Say(a.Stderr, "the daemon is still indexing the runs of this fleet: some may be missing")
	case len(list.Inbox) == 0:
		return a.Say(a.Stderr, "nothing needs a person")
	case list.More > 0:
		return a.Say(a.Stderr, "there are %d more: use a --limit above %d", list.More, c.Limit)
	}
	return nil
}

// commands are what a person runs about it.
func commands(a *base.App, r *standstill.Reason) []string {
	p := a.Prompt
	switch r.Kind {
	case standstill.Waiting:
		command := p.Command("input " + r.Run + " " + schema.ShellWord(r.InterruptID))
		if r.Wait.Reason == schema.WaitToolApproval {
			return []string{command + " --allow", command + " --deny"}
		}
		return []string{command + " --text TEXT", command + " --json-value JSON"}
	case standstill.Held:
		command := settleCommand(p, r.Run, r.Key()) + " --how "
		list := []string{command + "decided --result JSON", command + "abandoned"}
		if !r.Status.Terminal() {
			list = slices.Insert(list, 1, command+"rerun")
		}
		return list
	case standstill.Quarantined:
		return []string{p.Command("runs show " + r.Run), p.Command("release " + r.Run)}
	case standstill.Parked:
		return []string{p.Command("verify " + r.Run), p.Command("retry " + r.Run)}
	}
	return []string{p.Command("verify " + r.Run), p.Command("runs show " + r.Run)}
}

// printTasks shows each with its commands.
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

// show says what it is about in a line or two.
func (t *task) show(a *base.App, number, of int) error {
	head := fmt.Sprintf("%*d. ", len(fmt.Sprint(of)), number)
	about := t.Run
	if t.Agent != "" {
		about += " (" + t.Agent + ")"
	}
	_, err := fmt.Fprintln(a.Stdout, output.Hanging(a.Stdout, head, about+", "+output.Ago(t.Since, a.Now())+": "+t.Why))
	return err
}

// answering takes the answers of a person, one thing after the other.
type answering struct {
	app    *base.App
	client *base.Client
	by     string
	lines  <-chan string
}

// typed reads lines until ctx ends. A read of a terminal cannot be cancelled, the wait for its line can.
func typed(ctx context.Context, r io.Reader) <-chan string {
	out := make(chan string)
	if r == nil {
		close(out)
		return out
	}
	go func() {
		defer close(out)
		for in := bufio.NewScanner(r); in.Scan(); {
			select {
			case out <- in.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// answerAll asks for each answer.
func answerAll(ctx context.Context, a *base.App, cl *base.Client, by string, tasks []task) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return (&answering{app: a, client: cl, by: by, lines: typed(ctx, a.Stdin)}).all(ctx, tasks)
}

// errQuit: the person quits.
var errQuit = errors.New("quit")

// read asks a question. The end of the input is errQuit.
func (x *answering) read(ctx context.Context, question string) (string, error) {
	if _, err := fmt.Fprint(x.app.Stdout, question); err != nil {
		return "", err
	}
	select {
	case text, more := <-x.lines:
		if !more {
			_, err := fmt.Fprintln(x.app.Stdout)
			return "", errors.Join(errQuit, err)
		}
		return strings.TrimSpace(text), nil
	case <-ctx.Done():
		_, _ = fmt.Fprintln(x.app.Stdout)
		return "", context.Cause(ctx)
	}
}

// choose asks for one of some choices, by their first letter.
func (x *answering) choose(ctx context.Context, choices ...string) (byte, error) {
	shown, letters := make([]string, 0, len(choices)+2), make([]string, 0, len(choices)+2)
	for _, c := range append(slices.Clone(choices), "skip", "quit") {
		shown = append(shown, "["+c[:1]+"]"+c[1:])
		letters = append(letters, c[:1])
	}
	for {
		text, err := x.read(ctx, "    "+strings.Join(shown, ", ")+": ")
		if err != nil {
			return 0, err
		}
		text = strings.ToLower(text)
		if text != "" && slices.Contains(letters, text[:1]) {
			if text[0] == 'q' {
				return 0, errQuit
			}
			return text[0], nil
		}
		if _, err := fmt.Fprintf(x.app.Stdout, "    one of the letters %s\n", strings.Join(letters, ", ")); err != nil {
			return 0, err
		}
	}
}

// all asks about each task, and prints how many were answered.
func (x *answering) all(ctx context.Context, tasks []task) error {
	answered := 0
	for i := range tasks {
		if err := tasks[i].show(x.app, i+1, len(tasks)); err != nil {
			return err
		}
		did, err := x.one(ctx, &tasks[i])
		switch service := (*schema.ServiceError)(nil); {
		case errors.Is(err, errQuit):
			return x.app.Say(x.app.Stderr, "answered: %d; left: %d", answered, len(tasks)-answered)
		case errors.As(err, &service):
			// Another person was faster, or the answer does not fit the question: say so, and go on.
			if _, err := fmt.Fprintln(x.app.Stdout, output.Hanging(x.app.Stdout, "    ", "not answered: "+err.Error())); err != nil {
				return err
			}
		case err != nil:
			return err
		case did:
			answered++
		}
	}
	if len(tasks) == 0 {
		return nil
	}
	return x.app.Say(x.app.Stderr, "answered: %d; left: %d", answered, len(tasks)-answered)
}

// one asks about one thing and answers it. It reports whether it was answered.
func (x *answering) one(ctx context.Context, t *task) (answered bool, err error) {
	switch t.Kind {
	case standstill.Waiting:
		return x.wait(ctx, t)
	case standstill.Held:
		return x.held(ctx, t)
	case standstill.Quarantined:
		return x.command(ctx, "release", func() error { return ReleaseCmd{Run_: t.Run}.Run(ctx, x.app) })
	case standstill.Parked:
		return x.command(ctx, "retry", func() error { return RetryCmd{Run_: t.Run}.Run(ctx, x.app) })
	}
	for _, command := range t.Commands {
		if _, err := fmt.Fprintln(x.app.Stdout, "    "+output.Printable(command)); err != nil {
			return false, err
		}
	}
	return false, nil
}

// command runs what one letter stands for.
func (x *answering) command(ctx context.Context, name string, run func() error) (bool, error) {
	letter, err := x.choose(ctx, name)
	if err != nil || letter == 's' {
		return false, err
	}
	if err := run(); err != nil {
		_, said := fmt.Fprintln(x.app.Stdout, output.Hanging(x.app.Stdout, "    ", "not done: "+err.Error()))
		return false, said
	}
	return true, nil
}

// wait answers what a run waits for. What it asks, and the schema of the answer, are shown whole.
func (x *answering) wait(ctx context.Context, t *task) (bool, error) {
	q, err := x.question(ctx, t)
	if err != nil {
		return false, err
	}
	if err := q.show(x.app); err != nil {
		return false, err
	}
	command := InputCmd{Run_: t.Run, Interrupt: t.InterruptID, Status: schema.InputResolved, By: x.by}
	var payload jsontext.Value
	if t.Wait.Reason == schema.WaitToolApproval {
		letter, err := x.choose(ctx, "allow", "deny")
		if err != nil || letter == 's' {
			return false, err
		}
		command.Allow, command.Deny = letter == 'a', letter == 'd'
		if command.Reason, err = x.read(ctx, "    why (may be empty): "); err != nil {
			return false, err
		}
		if payload, err = command.decision(); err != nil {
			return false, err
		}
	} else {
		letter, err := x.choose(ctx, "text", "json", "cancel the question")
		if err != nil || letter == 's' {
			return false, err
		}
		if letter == 'c' {
			command.Status = schema.InputCancelled
		} else if payload, err = x.value(ctx, letter == 't'); err != nil {
			return false, err
		}
	}
	return true, command.answer(ctx, x.app, x.client, t.Head, t.Wait, payload)
}

// question is what the run asks, whole.
func (x *answering) question(ctx context.Context, t *task) (q question, err error) {
	err = x.client.WithReader(ctx, func(fleet *publisher.Reader) error {
		state, _, err := base.StateOf(ctx, fleet, t.Run)
		if err != nil {
			return err
		}
		q, err = asked(ctx, fleet, state, t.Wait)
		return err
	})
	return q, err
}

// value reads a value, until it is one.
func (x *answering) value(ctx context.Context, text bool) (jsontext.Value, error) {
	for {
		what := "    as JSON: "
		if text {
			what = "    as text: "
		}
		said, err := x.read(ctx, what)
		if err != nil {
			return nil, err
		}
		if text && said != "" {
			b, err := json.Marshal(said)
			if err == nil {
				return b, nil
			}
		}
		if v := jsontext.Value(said); !text && v.IsValid() {
			return v, nil
		}
		if _, err := fmt.Fprintln(x.app.Stdout, "    that is none"); err != nil {
			return nil, err
		}
	}
}

// held settles a call whose outcome is unknown, with what is known of it shown.
func (x *answering) held(ctx context.Context, t *task) (bool, error) {
	w := schema.OpenInterrupt{Reason: schema.WaitToolInDoubt, ToolCallID: t.ToolCallID, Turn: t.Turn, Occurrence: t.Occurrence, Since: t.Since}
	about := *t
	about.Wait = &w
	q, err := x.question(ctx, &about)
	if err != nil {
		return false, err
	}
	if err := output.Fields(x.app.Stdout, "tool", q.Tool, "side effect", q.SideEffect, "key", q.IdempotencyKey); err != nil {
		return false, err
	}
	if text := q.readable(fieldArguments, output.Indented(q.Arguments, output.WidthOf(x.app.Stdout))); text != "" {
		if _, err := fmt.Fprintf(x.app.Stdout, "arguments:\n%s", text); err != nil {
			return false, err
		}
	}
	choices := []string{"done, with its result", "run it again", "go on without it"}
	if t.Status.Terminal() {
		choices = []string{"done, with its result", "go on without it"}
	}
	letter, err := x.choose(ctx, choices...)
	if err != nil || letter == 's' {
		return false, err
	}
	request := schema.SettleRequest{CallKey: t.Key(), By: x.by}
	switch letter {
	case 'd':
		request.How = schema.SettledDecided
		if request.Result, err = x.value(ctx, false); err != nil {
			return false, err
		}
	case 'r':
		request.How = schema.SettledRerun
	default:
		request.How = schema.SettledAbandoned
	}
	var reply schema.SettleReply
	if err := x.client.Ask(ctx, schema.VerbSettle, t.Run, request, &reply); err != nil {
		return false, err
	}
	return true, output.Fields(x.app.Stdout, "settled", fmt.Sprintf("call %s of turn %d as %s", t.ToolCallID, t.Turn, request.How))
}
