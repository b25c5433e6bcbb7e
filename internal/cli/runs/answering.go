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
	"github.com/waymarkio/waymark/internal/inbox"
	"github.com/waymarkio/waymark/internal/standstill"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// answering takes a person's answers, one task after the other.
type answering struct {
	app    *base.App
	client *base.Client
	by     string
	lines  <-chan string
	// echoes: the input must be echoed, because it is not on the screen already.
	echoes bool
}

// typed reads lines until ctx ends. A wait for a line can be ended, the read itself cannot.
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

// answerAll asks for an answer to each task.
func answerAll(ctx context.Context, a *base.App, cl *base.Client, by string, tasks []task) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return (&answering{app: a, client: cl, by: by, lines: typed(ctx, a.Stdin), echoes: !output.IsTerminal(a.Stdin)}).all(ctx, tasks)
}

// errQuit: the person quits.
var errQuit = errors.New("quit")

// say prints a line below its task.
func (x *answering) say(format string, args ...any) error {
	_, err := fmt.Fprintln(x.app.Stdout, output.Hanging(x.app.Stdout, "    ", fmt.Sprintf(format, args...)))
	return err
}

// read asks a question. The end of the input returns errQuit.
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
		if x.echoes {
			if _, err := fmt.Fprintln(x.app.Stdout, output.Printable(text)); err != nil {
				return "", err
			}
		}
		return strings.TrimSpace(text), nil
	case <-ctx.Done():
		_, _ = fmt.Fprintln(x.app.Stdout)
		return "", context.Cause(ctx)
	}
}

// choose asks for one of the choices, by its first letter.
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
		if err := x.say("type one of the letters %s", strings.Join(letters, ", ")); err != nil {
			return 0, err
		}
	}
}

// outcome is the result of a task.
type outcome int

const (
	left outcome = iota
	given
	gone
)

// all goes through the tasks, and prints a summary.
func (x *answering) all(ctx context.Context, tasks []task) error {
	count := [...]int{left: len(tasks), given: 0, gone: 0}
	for i := range tasks {
		became, err := x.thing(ctx, &tasks[i], i+1, len(tasks))
		if errors.Is(err, errQuit) {
			break
		}
		if err != nil {
			return err
		}
		count[left]--
		count[became]++
	}
	if len(tasks) == 0 {
		return nil
	}
	meanwhile := ""
	if count[gone] > 0 {
		meanwhile = fmt.Sprintf("; no longer needed: %d", count[gone])
	}
	return x.app.Say(x.app.Stderr, "answered: %d%s; open: %d", count[given], meanwhile, count[left])
}

// thing asks about one task until it is answered or left open. It reads the run before each question: the run may need
// another answer by now, or none. After a refused answer it asks again.
func (x *answering) thing(ctx context.Context, t *task, number, of int) (outcome, error) {
	shown := ""
	for {
		now, err := x.current(ctx, t)
		if broken := inbox.Broken(err); broken != nil {
			return left, x.say("%s: %s", t.Run, broken.Message)
		}
		if err != nil {
			return left, err
		}
		if now == nil {
			if err := t.show(x.app, number, of); err != nil {
				return left, err
			}
			return gone, x.tellEnd(ctx, t)
		}
		t = now
		again := shown == t.ID
		if !again {
			if err := t.show(x.app, number, of); err != nil {
				return left, err
			}
		}
		shown = t.ID
		did, err := x.one(ctx, t, again)
		service, refused := errors.AsType[*schema.ServiceError](err)
		_, failed := errors.AsType[*failure.Error](err)
		switch {
		case refused && service.Code == schema.CodeForbidden, err != nil && !refused && !failed:
			return left, err
		case err != nil:
			if refused && service.Code == schema.CodeConflict {
				shown = "" // it differs from the shown one
			}
			if err := x.say("%s: %s", t.refusal(), err); err != nil {
				return left, err
			}
		case did:
			return given, nil
		default:
			return left, nil
		}
	}
}

// refusal says what a refused answer did not do.
func (t *task) refusal() string {
	if t.Kind == standstill.Waiting || t.Kind == standstill.Held {
		return "not answered"
	}
	return "not done"
}

// current returns the task as its run needs it now; nil if it no longer does. A run that cannot be read is the task
// itself.
func (x *answering) current(ctx context.Context, t *task) (*task, error) {
	if t.Kind == standstill.Parked {
		return t, nil
	}
	now, err := inbox.ReasonsOf(ctx, x.client, t.Run)
	if err != nil {
		return nil, err
	}
	r := inbox.Find(&t.Reason, now)
	if r == nil {
		return nil, nil
	}
	found := taskOf(x.app, r)
	return &found, nil
}

// tellEnd says why a task is no longer needed: who answered or settled it, as far as the record shows.
func (x *answering) tellEnd(ctx context.Context, t *task) error {
	what := ""
	err := x.client.WithReader(ctx, func(fleet *publisher.Reader) (err error) {
		what, err = inbox.HowEnded(ctx, fleet, &t.Reason)
		return err
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil && !errors.Is(err, publisher.ErrIncomplete) {
		what += ", and the reason cannot be read: " + err.Error()
	}
	return x.say("%s", what)
}

// one asks about one task and answers it. It reports whether it was answered. again: the task was already shown.
func (x *answering) one(ctx context.Context, t *task, again bool) (answered bool, err error) {
	switch t.Kind {
	case standstill.Waiting:
		return x.wait(ctx, t, again)
	case standstill.Held:
		return x.held(ctx, t, again)
	case standstill.Quarantined:
		return x.command(ctx, "release", func() error { return ReleaseCmd{Run_: t.Run}.Run(ctx, x.app, x.client) })
	case standstill.Parked:
		return x.command(ctx, "retry", func() error { return RetryCmd{Run_: t.Run}.Run(ctx, x.app, x.client) })
	}
	return false, t.showCommands(x.app)
}

// command runs the command of a letter.
func (x *answering) command(ctx context.Context, name string, run func() error) (bool, error) {
	letter, err := x.choose(ctx, name)
	if err != nil || letter == 's' {
		return false, err
	}
	return true, run()
}

// unshown leaves a task open whose question cannot be read: a person must not answer an unseen question.
func (x *answering) unshown(ctx context.Context, t *task, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := x.say("the question cannot be read: %s", err); err != nil {
		return err
	}
	return t.showCommands(x.app)
}

// wait answers a wait of a run. It shows the question and the schema of the answer in full.
func (x *answering) wait(ctx context.Context, t *task, again bool) (bool, error) {
	if !again {
		q, err := x.question(ctx, t)
		if err != nil {
			return false, x.unshown(ctx, t, err)
		}
		if err := showQuestion(&q, x.app); err != nil {
			return false, err
		}
		if q.SchemaErr != nil {
			if err := x.say("the schema of the answer cannot be read: %s", q.SchemaErr); err != nil {
				return false, err
			}
		}
	}
	command := InputCmd{Run_: t.Run, Interrupt: t.InterruptID, Status: schema.InputResolved, By: x.by}
	var payload jsontext.Value
	if t.Wait.Approval() {
		letter, err := x.choose(ctx, "allow", "deny")
		if err != nil || letter == 's' {
			return false, err
		}
		command.Allow, command.Deny = letter == 'a', letter == 'd'
		if command.Reason, err = x.read(ctx, "    why (may be empty): "); err != nil {
			return false, err
		}
		if payload, err = inbox.Decision(command.Allow, command.Reason); err != nil {
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

// question is the run's question in full.
func (x *answering) question(ctx context.Context, t *task) (q inbox.Question, err error) {
	err = x.client.WithReader(ctx, func(fleet *publisher.Reader) error {
		state, _, err := base.StateOf(ctx, fleet, t.Run)
		if err != nil {
			return err
		}
		q = inbox.Asked(ctx, fleet, state, t.Wait)
		return nil
	})
	return q, err
}

// value asks for a value until it is valid.
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
		if err := x.say("that is not valid"); err != nil {
			return nil, err
		}
	}
}

// held settles a call whose outcome is unknown. It shows the known data of the call.
func (x *answering) held(ctx context.Context, t *task, again bool) (bool, error) {
	if !again {
		w := schema.OpenInterrupt{Reason: schema.WaitToolInDoubt, ToolCallID: t.ToolCallID, Turn: t.Turn, Occurrence: t.Occurrence, Since: t.Since}
		about := *t
		about.Wait = &w
		q, err := x.question(ctx, &about)
		if err != nil {
			return false, x.unshown(ctx, t, err)
		}
		if err := output.Fields(x.app.Stdout, "tool", q.Tool, "side effect", q.SideEffect, "key", q.IdempotencyKey); err != nil {
			return false, err
		}
		if text := readable(&q, inbox.FieldArguments, output.Indented(q.Arguments)); text != "" {
			if _, err := fmt.Fprintf(x.app.Stdout, "arguments:\n%s", text); err != nil {
				return false, err
			}
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
	request := schema.SettleRequest{CallKey: t.Key(), Seen: t.Head.Position.ID, By: x.by}
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
	if err := x.client.Ask(ctx, schema.VerbSettle, t.Run, &request, &reply); err != nil {
		return false, err
	}
	return true, printSettled(x.app, request, &reply)
}
