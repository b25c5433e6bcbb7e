package runs

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/story"
	"github.com/waymarkio/waymark/schema"
)

// SignalCmd is waymark signal.
type SignalCmd struct {
	Run_         string `arg:"" name:"run" help:"Run id."`
	Name         string `arg:"" help:"Subject of the message, for the agent."`
	payloadFlags `embed:""`
	ID           string `placeholder:"ID" help:"Id of the message; a repeat counts once (default: a new id)."`
	By           string `placeholder:"NAME" environ:"WAYMARK_OPERATOR" help:"Your name, recorded as a claim (WAYMARK_OPERATOR; default: waymark-cli)."`
}

// Help is the text below the flags.
func (SignalCmd) Help() string {
	return `Messages are ordered, and each is consumed once: a model gets them with its next turn.

Examples:
  waymark signal fix-login note --text "the customer is on the phone"
  waymark signal fix-login prices --payload @prices.json --id prices-2026-01-31`
}

// signalled is the JSON output of signal.
type signalled struct {
	Run      string         `json:"run"`
	SignalID string         `json:"signal_id"`
	Name     string         `json:"name"`
	Payload  jsontext.Value `json:"payload,omitzero"`
	schema.ControlReply
	// Status, Executor and number of unconsumed signals of the run, read after the request.
	Status   schema.Status `json:"status"`
	Executor string        `json:"executor,omitzero"`
	Open     int           `json:"open_signals"`
}

// Run sends a message to a run.
func (c SignalCmd) Run(ctx context.Context, a *base.App) error {
	payload, err := c.read(a)
	if err != nil {
		return err
	}
	if len(payload) > schema.MaxSignalPayload {
		return failure.New(failure.Usage, "store it elsewhere and send its location", "the payload has %s, the limit is %s", output.Bytes(int64(len(payload))), output.Bytes(schema.MaxSignalPayload))
	}
	cl, by, err := a.ConnectAs(ctx, c.By)
	if err != nil {
		return err
	}
	answer := signalled{Run: c.Run_, SignalID: c.ID, Name: c.Name, Payload: payload}
	if answer.SignalID == "" {
		answer.SignalID = rand.Text()
	}
	request := &schema.SignalRequest{SignalID: answer.SignalID, Name: c.Name, Payload: payload, By: by}
	if err := cl.Ask(ctx, schema.VerbSignal, c.Run_, request, &answer.ControlReply); err != nil {
		if service, ok := errors.AsType[*schema.ServiceError](err); ok && service.Code == schema.CodeConflict {
			return &failure.Error{Code: failure.Conflict, What: service.Message, Hint: "use another --id, or omit it", Err: err}
		}
		return err
	}
	reply, err := cl.Get(ctx, c.Run_)
	if err != nil {
		return fmt.Errorf("the message is stored with id %s, but reading the run afterwards failed: %w", answer.SignalID, err)
	}
	h := &reply.Head
	answer.Status, answer.Executor, answer.Open = h.Status, h.Executor, len(h.Signals)
	if a.JSON {
		return output.Document(a.Stdout, answer)
	}
	if err := output.Fields(a.Stdout, output.PastLabel("sent", answer.Already), c.Name+" to run "+c.Run_, "id", answer.SignalID, "payload", string(payload),
		output.ByLabel(answer.By), answer.By, "status", story.HeadStatus(h, reply.Quarantined, reply.Pauses...), "signals", signalsText(h),
		"event", answer.EventID, "position", output.Number(answer.Stream)); err != nil || a.Quiet {
		return err
	}
	return printNext(a, reply, "is told if it lives; a model gets the message with the next turn", "gets the message")
}
