package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/base/encryption"
	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/base/prompt"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/inbox"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// InputCmd is waymark input.
type InputCmd struct {
	Run_         string `arg:"" name:"run" help:"Run id."`
	Interrupt    string `arg:"" optional:"" help:"Id of the wait (default: the only one)."`
	payloadFlags `embed:""`
	Allow        bool   `xor:"payload" help:"Allow the tool call or phase."`
	Deny         bool   `xor:"payload" help:"Deny the tool call or phase."`
	Reason       string `placeholder:"TEXT" help:"Reason for --allow or --deny."`
	Status       string `default:"resolved" enum:"resolved,cancelled" placeholder:"STATUS" help:"resolved, or cancelled: no answer comes (default: resolved)."`
	By           string `placeholder:"NAME" environ:"WAYMARK_OPERATOR" help:"Your name, recorded as a claim (WAYMARK_OPERATOR; default: waymark-cli)."`
	Event        string `placeholder:"ID" help:"Answer only the question of this event, as printed by waymark inbox; a repeat counts once (default: the question that the run asks now)."`
}

// Help is the text below the flags.
func (InputCmd) Help() string {
	return `Without an answer it shows the questions, and the JSON Schema that an answer must match.

Examples:
  waymark input fix-login --text "use the blue one"
  waymark input fix-login budget --payload '{"euros":100}'
  waymark input fix-login --deny --reason "not on a Friday"
`
}

// questions is the JSON output of input without an answer.
type questions struct {
	Run   string           `json:"run"`
	Waits []inbox.Question `json:"waits"`
}

// answered is the JSON output of input.
type answered struct {
	Run         string         `json:"run"`
	InterruptID string         `json:"interrupt_id"`
	Status      string         `json:"status"`
	Payload     jsontext.Value `json:"payload,omitzero"`
	// Remaining counts the run's waits afterwards.
	Remaining int `json:"remaining_waits"`
	schema.ControlReply
}

// Run answers a waiting run, or shows its questions.
func (c InputCmd) Run(ctx context.Context, a *base.App) error {
	payload, err := c.payload(a)
	if err != nil {
		return err
	}
	cl, by, err := a.ConnectAs(ctx, c.By)
	if err != nil {
		return err
	}
	c.By = by
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

// payload is the given answer; nil if there is none.
func (c InputCmd) payload(a *base.App) (jsontext.Value, error) {
	switch {
	case c.Status != schema.InputResolved && (c.Payload != nil || c.Text != nil || c.Allow || c.Deny):
		return nil, failure.New(failure.Usage, "omit one of the two", "--status %s takes no answer", c.Status)
	case c.Reason != "" && !c.Allow && !c.Deny:
		return nil, failure.New(failure.Usage, "put the reason into the answer", "--reason needs --allow or --deny")
	case c.Allow, c.Deny:
		return inbox.Decision(c.Allow, c.Reason)
	case c.Text != nil && *c.Text == "":
		return nil, failure.New(failure.Usage, `write an answer; for an empty text use --payload '""'`, "--text is empty")
	}
	return c.read(a)
}

// choose finds the named wait, or the run's only one.
func (c InputCmd) choose(p prompt.Prompt, h *schema.Head) (*schema.OpenInterrupt, error) {
	i := slices.IndexFunc(h.Interrupts, func(o schema.OpenInterrupt) bool { return o.InterruptID == c.Interrupt })
	if c.Interrupt == "" && len(h.Interrupts) == 1 {
		i = 0
	}
	switch {
	case i < 0 && c.Interrupt != "" && c.Event != "":
		// It may be a repeated request: the daemon knows whether the first try answered.
		return &schema.OpenInterrupt{InterruptID: c.Interrupt}, nil
	case len(h.Interrupts) == 0 && h.Status.Terminal():
		return nil, failure.New(failure.Conflict, "see how it ended: "+p.Command("runs get "+h.Run), "run %s has ended as %s and has no open question", h.Run, h.Status)
	case len(h.Interrupts) == 0:
		return nil, failure.New(failure.NotFound, "it may have been answered already: "+p.Command("runs get "+h.Run), "run %s is %s and has no open question", h.Run, h.Status)
	case i < 0 && c.Interrupt == "":
		return nil, failure.New(failure.Usage, "name one of: "+waitNames(h), "run %s has %d open questions", h.Run, len(h.Interrupts))
	case i < 0:
		return nil, failure.New(failure.NotFound, "its open questions: "+waitNames(h), "run %s does not wait for %s, or no longer does", h.Run, c.Interrupt)
	}
	w := &h.Interrupts[i]
	switch {
	case w.Reason == schema.WaitToolInDoubt && c.Status != schema.InputCancelled:
		return nil, failure.New(failure.Usage, "see how to settle it: "+p.Command("plan "+h.Run),
			"run %s waits for the settlement of call %s, which input cannot answer", h.Run, w.ToolCallID)
	case (c.Allow || c.Deny) && w.ToolCallID == "" && !w.Approval():
		return nil, failure.New(failure.Usage, "answer with --text or --payload", "%s of run %s is not an approval of a tool call, a phase or a version, so it cannot be allowed or denied", w.InterruptID, h.Run)
	}
	return w, nil
}

// waitNames lists the ids of a run's waits, ready to be typed.
func waitNames(h *schema.Head) string {
	names := make([]string, len(h.Interrupts))
	for i := range h.Interrupts {
		names[i] = strings.TrimSpace(schema.Command("", "", h.Interrupts[i].InterruptID))
	}
	return strings.Join(names, ", ")
}

func (c InputCmd) answer(ctx context.Context, a *base.App, cl *base.Client, h *schema.Head, w *schema.OpenInterrupt, payload jsontext.Value) error {
	answer := answered{
		Run: h.Run, InterruptID: w.InterruptID, Status: c.Status, Payload: payload, Remaining: len(h.Interrupts),
	}
	if slices.Contains(h.Interrupts, *w) {
		answer.Remaining--
	}
	if err := cl.CheckAnswer(ctx, h, publisher.Input{InterruptID: w.InterruptID, Status: c.Status, Payload: []byte(payload)}); err != nil {
		return explainAnswer(h, w.InterruptID, err)
	}
	err := cl.Ask(ctx, schema.VerbInput, h.Run, &schema.InputRequest{
		InterruptID: answer.InterruptID, EventID: cmp.Or(c.Event, w.Position.ID), Status: answer.Status, Payload: payload, By: c.By,
	}, &answer.ControlReply)
	if err != nil {
		return explainAnswer(h, w.InterruptID, err)
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
	next := "its executor " + h.Executor + " is told if it lives; otherwise another executor claims the run"
	switch {
	case answer.Remaining > 0:
		next = fmt.Sprintf("the run still has %s: %s", output.Plural(answer.Remaining, "open question"), a.Prompt.Command("input "+h.Run))
	case h.Unattended != "" || h.Status.Claimable():
		next = "the run has no executor: the next one that claims it continues"
	}
	_, err = fmt.Fprintln(a.Stderr, output.Printable(next))
	return err
}

// explainAnswer names the places of an answer that do not match the schema.
func explainAnswer(h *schema.Head, interrupt string, err error) error {
	service, ok := errors.AsType[*schema.ServiceError](err)
	if !ok || service.Code != schema.CodeInvalidAnswer {
		return err
	}
	f := failure.ExplainService(err)
	f.Err = err
	if places := inbox.Problems(service); places != "" {
		f.What = fmt.Sprintf("the answer to %s does not match the schema of run %s: %s", interrupt, h.Run, places)
	}
	return f
}

// show prints the run's questions: the named one, or all.
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
		// For a run with missing events, show the known ones.
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
	// Name only the calls in doubt that the question is about.
	calls := slices.DeleteFunc(slices.Clone(h.OpenCalls), func(call schema.OpenCall) bool {
		return !slices.ContainsFunc(waits, func(w schema.OpenInterrupt) bool {
			return w.Reason == schema.WaitToolInDoubt && w.CallKey() == call.CallKey
		})
	})
	return printSteps(a, &schema.Head{Fleet: h.Fleet, Run: h.Run, Interrupts: waits, OpenCalls: calls, Position: h.Position, Status: schema.StatusWaiting}, false)
}

// readable is the text of a field, or the key with which it is encrypted.
func readable(q *inbox.Question, field, text string) string {
	if key := q.Encrypted[field]; key != "" {
		return "  " + output.Printable(encryption.Placeholder(key)) + "\n"
	}
	if field == inbox.FieldArguments && q.ArgumentsErr != nil {
		return "  cannot be read: " + output.Printable(q.ArgumentsErr.Error()) + "\n"
	}
	return text
}

// showQuestion prints a question for people, with its text and its schema in full.
func showQuestion(q *inbox.Question, a *base.App) error {
	call := ""
	if q.ToolCallID != "" {
		call = strings.TrimPrefix(q.CallKey().Text(), "call ")
	}
	if err := output.Fields(a.Stdout, "waits for", q.InterruptID, "reason", q.Reason, "call", call, "tool", q.Tool,
		"side effect", q.SideEffect, "key", q.IdempotencyKey, "since", output.Ago(q.Since, a.Now()), "expires", untilText(q.ExpiresAt)); err != nil {
		return err
	}
	for _, part := range []struct{ title, text string }{
		{"asks", readable(q, inbox.FieldMessage, output.Wrapped(q.Message, output.WidthOf(a.Stdout)))},
		{"arguments", readable(q, inbox.FieldArguments, output.Indented(q.Arguments))},
		{"an answer must match", readable(q, inbox.FieldSchema, output.Indented(q.ResponseSchema))},
	} {
		if part.text == "" {
			continue
		}
		if _, err := fmt.Fprintf(a.Stdout, "%s:\n%s", part.title, part.text); err != nil {
			return err
		}
	}
	if q.Encrypted[inbox.FieldSchema] != "" {
		_, err := io.WriteString(a.Stdout, "The daemon stores the answer in plain text and cannot check it; the executor will. With the key (--key-file FILE), it is checked and encrypted here.\n")
		return err
	}
	return nil
}
