package runs

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
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
	"github.com/waymarkio/waymark/internal/cli/prompt"
	"github.com/waymarkio/waymark/internal/encrypted"
	"github.com/waymarkio/waymark/internal/inbox"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// maxAnswer bounds an answer that is read from a file or standard input, in bytes.
const maxAnswer = 1 << 20

// InputCmd is waymark input.
type InputCmd struct {
	Run_      string  `arg:"" name:"run" help:"Run id."`
	Interrupt string  `arg:"" optional:"" help:"Id of what is answered; may be left out when the run waits for one thing."`
	JSONValue *string `name:"json-value" xor:"answer" placeholder:"JSON" help:"The answer, as JSON."`
	Text      *string `xor:"answer" placeholder:"TEXT" help:"The answer, as text."`
	File      string  `xor:"answer" placeholder:"FILE" help:"File with the answer, as JSON; - is standard input."`
	Allow     bool    `xor:"answer" help:"Allow the tool call or the phase that waits for approval."`
	Deny      bool    `xor:"answer" help:"Deny it."`
	Reason    string  `placeholder:"TEXT" help:"Why it is allowed or denied."`
	Status    string  `default:"resolved" enum:"resolved,cancelled" placeholder:"STATUS" help:"resolved, or cancelled: nobody will answer (default: resolved)."`
	By        string  `placeholder:"NAME" environ:"WAYMARK_OPERATOR" help:"Your name, recorded as a claim (WAYMARK_OPERATOR; default: waymark-cli)."`
	Event     string  `placeholder:"ID" help:"Answer this question only, as waymark inbox prints it: the id of its event. If the run asks another one by now, nothing is answered."`
	RequestID string  `placeholder:"ID" help:"Id of this answer: sent again with the same id, it counts once (default: a new one)."`
}

// Help is the text below the flags.
func (InputCmd) Help() string {
	return `Without an answer, on the command line or on standard input, it shows what the run asks and the JSON Schema that an answer ` +
		`must satisfy. The answer wakes the run's executor; a run without one can be claimed then.

Examples:
  waymark input fix-login                          show what it asks
  waymark input fix-login --text "use the blue one"
  waymark input fix-login budget --json-value '{"euros":100}'
  waymark input fix-login --deny --reason "not on a Friday"
  waymark input fix-login budget --status cancelled`
}

// questions is what input prints as JSON when nothing is answered.
type questions struct {
	Run   string           `json:"run"`
	Waits []inbox.Question `json:"waits"`
}

// answered is what input prints as JSON.
type answered struct {
	Run         string         `json:"run"`
	InterruptID string         `json:"interrupt_id"`
	Status      string         `json:"status"`
	Payload     jsontext.Value `json:"payload,omitzero"`
	RequestID   string         `json:"request_id"`
	// Remaining counts what the run still waited for when it was looked at.
	Remaining int `json:"remaining_waits"`
	schema.ControlReply
}

// Run answers a run that waits, or shows what it asks.
func (c InputCmd) Run(ctx context.Context, a *base.App) error {
	payload, err := c.payload(a)
	if err != nil {
		return err
	}
	if c.By, err = base.Sender(c.By); err != nil {
		return err
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	defer cl.Close()
	reply, err := cl.Get(ctx, c.Run_)
	if err != nil {
		return err
	}
	head := &reply.Head
	if payload == nil && c.Status == schema.InputResolved {
		return c.show(ctx, a, cl, head)
	}
	wait, err := c.choose(a.Prompt, head)
	if err != nil {
		return err
	}
	return c.answer(ctx, a, cl, head, wait, payload)
}

// payload is the answer that was given; nil when there is none.
func (c InputCmd) payload(a *base.App) (jsontext.Value, error) {
	given := c.JSONValue != nil || c.Text != nil || c.File != "" || c.Allow || c.Deny
	switch {
	case c.Status != schema.InputResolved && given:
		return nil, failure.New(failure.Usage, "leave out one of the two", "--status %s takes no answer", c.Status)
	case c.Reason != "" && !c.Allow && !c.Deny:
		return nil, failure.New(failure.Usage, "put it into the answer", "--reason is of --allow and --deny")
	case c.Status != schema.InputResolved:
		return nil, nil
	case c.Allow, c.Deny:
		return inbox.Decision(c.Allow, c.Reason)
	case c.Text != nil && *c.Text == "":
		return nil, failure.New(failure.Usage, `say what is answered; for a text that is empty use --json-value '""'`, "--text is empty")
	case c.Text != nil:
		b, err := json.Marshal(*c.Text)
		if err != nil {
			return nil, failure.New(failure.Usage, "use --json-value or --file", "--text is not UTF-8")
		}
		return b, nil
	case c.JSONValue != nil:
		v := jsontext.Value(*c.JSONValue)
		if !v.IsValid() {
			return nil, failure.New(failure.Usage, `text is JSON only in quotes, or use --text`, "--json-value is not JSON")
		}
		return v, nil
	case c.File == "-" || c.File == "" && a.Stdin != nil && !output.IsTerminal(a.Stdin):
		return readAnswer(a, "-", c.File == "-")
	case c.File != "":
		return readAnswer(a, c.File, true)
	}
	return nil, nil
}

// readAnswer reads an answer as JSON. An empty one is none, where one was not promised.
func readAnswer(a *base.App, file string, promised bool) (jsontext.Value, error) {
	b, err := readFile(a, file, "name the file with the answer, or answer with --text or --json-value", maxAnswer, "store it elsewhere and answer with where it is")
	if err != nil {
		return nil, err
	}
	b = bytes.TrimSpace(b)
	v := jsontext.Value(b)
	switch {
	case len(b) == 0 && !promised:
		return nil, nil
	case !v.IsValid():
		return nil, failure.New(failure.Usage, "write JSON: text is JSON only in quotes, or use --text", "the answer in %s is not JSON", fileNamed(file))
	}
	return v, nil
}

// choose finds what is answered: what was named, or the only thing that the run waits for.
func (c InputCmd) choose(p prompt.Prompt, h *schema.Head) (*schema.OpenInterrupt, error) {
	i := slices.IndexFunc(h.Interrupts, func(o schema.OpenInterrupt) bool { return o.InterruptID == c.Interrupt })
	if c.Interrupt == "" && len(h.Interrupts) == 1 {
		i = 0
	}
	switch {
	case i < 0 && c.Interrupt != "" && c.RequestID != "":
		// It may be a repeat: the daemon knows whether it was the first try that answered.
		return &schema.OpenInterrupt{InterruptID: c.Interrupt}, nil
	case len(h.Interrupts) == 0 && h.Status.Terminal():
		return nil, failure.New(failure.Conflict, "see how it ended: "+p.Command("runs get "+h.Run), "run %s has ended as %s and waits for nothing", h.Run, h.Status)
	case len(h.Interrupts) == 0:
		return nil, failure.New(failure.NotFound, "it may have been answered already: "+p.Command("runs get "+h.Run), "run %s is %s and waits for nothing", h.Run, h.Status)
	case i < 0 && c.Interrupt == "":
		return nil, failure.New(failure.Usage, "name one of: "+waitNames(h), "run %s waits for %d things", h.Run, len(h.Interrupts))
	case i < 0:
		return nil, failure.New(failure.NotFound, "it waits for: "+waitNames(h), "run %s does not wait for %s, or no longer", h.Run, c.Interrupt)
	}
	w := &h.Interrupts[i]
	switch {
	case w.Reason == schema.WaitToolInDoubt && c.Status != schema.InputCancelled:
		return nil, failure.New(failure.Usage, "see how it is settled: "+p.Command("plan "+h.Run),
			"run %s waits for the settlement of call %s, which no answer can be", h.Run, w.ToolCallID)
	case (c.Allow || c.Deny) && w.ToolCallID == "" && !w.Approval():
		return nil, failure.New(failure.Usage, "answer with --text or --json-value", "%s of run %s is about no tool call and no phase: there is nothing to allow or deny", w.InterruptID, h.Run)
	}
	return w, nil
}

// waitNames lists what a run waits for, as it is typed.
func waitNames(h *schema.Head) string {
	names := make([]string, len(h.Interrupts))
	for i := range h.Interrupts {
		names[i] = schema.ShellWord(h.Interrupts[i].InterruptID)
	}
	return strings.Join(names, ", ")
}

func (c InputCmd) answer(ctx context.Context, a *base.App, cl *base.Client, h *schema.Head, w *schema.OpenInterrupt, payload jsontext.Value) error {
	answer := answered{
		Run: h.Run, InterruptID: w.InterruptID, Status: c.Status, Payload: payload, RequestID: c.RequestID,
		Remaining: len(h.Interrupts),
	}
	if answer.RequestID == "" {
		answer.RequestID = rand.Text()
	}
	if slices.Contains(h.Interrupts, *w) {
		answer.Remaining--
	}
	if err := cl.CheckAnswer(ctx, h, publisher.Input{InterruptID: w.InterruptID, Status: c.Status, Payload: []byte(payload)}); err != nil {
		return explainAnswer(a.Prompt, h, w.InterruptID, err)
	}
	err := cl.Ask(ctx, schema.VerbInput, h.Run, &schema.InputRequest{
		InterruptID: answer.InterruptID, EventID: cmp.Or(c.Event, w.Position.ID), Status: answer.Status, Payload: payload, By: c.By, RequestID: answer.RequestID,
	}, &answer.ControlReply)
	if err != nil {
		return explainAnswer(a.Prompt, h, w.InterruptID, err)
	}
	switch {
	case a.JSON:
		return output.Document(a.Stdout, answer)
	case a.Quiet:
		return nil
	}
	if err := output.Fields(a.Stdout, output.PastLabel("answered", answer.Already), fmt.Sprintf("%s of run %s", w.InterruptID, h.Run), "status", answer.Status,
		"answer", string(payload), output.ByLabel(answer.By), answer.By, "event", answer.EventID, "position", output.Number(answer.Stream)); err != nil {
		return err
	}
	next := "its executor " + h.Executor + " is told; if that is gone, another claims the run"
	switch {
	case answer.Remaining > 0:
		next = fmt.Sprintf("the run still waits for %d more: %s", answer.Remaining, a.Prompt.Command("input "+h.Run))
	case h.Unattended != "" || h.Status.Claimable():
		next = "the run has no executor: the next one that claims it goes on"
	}
	_, err = fmt.Fprintln(a.Stderr, output.Printable(next))
	return err
}

// explainAnswer words the refusal of an answer: the next step at a prompt is a command.
func explainAnswer(p prompt.Prompt, h *schema.Head, interrupt string, err error) error {
	service, ok := errors.AsType[*schema.ServiceError](err)
	if !ok {
		return err
	}
	switch service.Code {
	case schema.CodeInvalidAnswer:
		f := &failure.Error{Code: failure.Usage, What: service.Message, Hint: "see what is asked: " + p.Command("input "+h.Run), Err: err}
		if places := inbox.Problems(service); places != "" {
			f.What = fmt.Sprintf("the answer to %s is not what run %s asks for: %s", interrupt, h.Run, places)
		}
		return f
	case schema.CodeUnknownInterrupt:
		return &failure.Error{Code: failure.NotFound, What: service.Message, Hint: "it may have been answered already: " + p.Command("runs get "+h.Run), Err: err}
	default:
		return err
	}
}

// show prints what the run asks: the one thing that was named, or all.
func (c InputCmd) show(ctx context.Context, a *base.App, cl *base.Client, h *schema.Head) error {
	waits := h.Interrupts
	if c.Interrupt != "" || len(waits) == 0 {
		w, err := InputCmd{Interrupt: c.Interrupt}.choose(a.Prompt, h)
		if err != nil {
			return err
		}
		waits = []schema.OpenInterrupt{*w}
	}
	reply := questions{Run: h.Run, Waits: make([]inbox.Question, len(waits))}
	err := cl.WithReader(ctx, func(fleet *publisher.Reader) error {
		// Of a run that misses events what is there is shown.
		state, _, err := base.StateOf(ctx, fleet, h.Run)
		if err != nil {
			return err
		}
		for i := range waits {
			reply.Waits[i] = inbox.Asked(ctx, fleet, state, &waits[i])
			if err := reply.Waits[i].SchemaErr; err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if a.JSON {
		return output.Document(a.Stdout, reply)
	}
	for i := range reply.Waits {
		if i > 0 {
			if _, err := fmt.Fprintln(a.Stdout); err != nil {
				return err
			}
		}
		if err := showQuestion(&reply.Waits[i], a); err != nil {
			return err
		}
	}
	// Of the calls in doubt only those are named that the question is about.
	calls := slices.DeleteFunc(slices.Clone(h.OpenCalls), func(call schema.OpenCall) bool {
		return !slices.ContainsFunc(waits, func(w schema.OpenInterrupt) bool {
			return w.Reason == schema.WaitToolInDoubt && w.CallKey() == call.CallKey
		})
	})
	return printSteps(a, &schema.Head{Fleet: h.Fleet, Run: h.Run, Interrupts: waits, OpenCalls: calls, Position: h.Position, Status: schema.StatusWaiting}, false)
}

// readable is the text of a field, or the key that it is encrypted with.
func readable(q *inbox.Question, field, text string) string {
	if key := q.Encrypted[field]; key != "" {
		return "  " + output.Printable(encrypted.Text(key)) + "\n"
	}
	if field == inbox.FieldArguments && q.ArgumentsErr != nil {
		return "  cannot be read: " + output.Printable(q.ArgumentsErr.Error()) + "\n"
	}
	return text
}

// show prints a question for people, its text and its schema whole.
func showQuestion(q *inbox.Question, a *base.App) error {
	call := ""
	if q.ToolCallID != "" {
		call = fmt.Sprintf("%s of turn %d", q.ToolCallID, q.Turn)
	}
	if err := output.Fields(a.Stdout, "waits for", q.InterruptID, "reason", q.Reason, "call", call, "tool", q.Tool,
		"side effect", q.SideEffect, "key", q.IdempotencyKey, "since", output.Ago(q.Since, a.Now()), "expires", untilText(q.ExpiresAt)); err != nil {
		return err
	}
	for _, part := range []struct{ title, text string }{
		{"asks", readable(q, inbox.FieldMessage, output.Wrapped(q.Message, output.WidthOf(a.Stdout)))},
		{"arguments", readable(q, inbox.FieldArguments, output.Indented(q.Arguments))},
		{"an answer must satisfy", readable(q, inbox.FieldSchema, output.Indented(q.ResponseSchema))},
	} {
		if part.text == "" {
			continue
		}
		if _, err := fmt.Fprintf(a.Stdout, "%s:\n%s", part.title, part.text); err != nil {
			return err
		}
	}
	if q.Encrypted[inbox.FieldSchema] != "" {
		_, err := io.WriteString(a.Stdout, "The executor checks the answer, the daemon cannot, and stores it readable. With the key, --key-file FILE, it is checked here and encrypted.\n")
		return err
	}
	return nil
}
