package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/pause"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Times of the live demonstration: steps that a person can follow.
const (
	thinkTime = 900 * time.Millisecond
	lookTime  = 2500 * time.Millisecond
	mailTime  = 6 * time.Second
)

const (
	// clerk is the agent of the live demonstration. Its runs have orderTurns turns; mailTurn sends mail.
	clerk      = "clerk"
	orderTurns = 7
	mailTurn   = 4
	// orderCapacity is how many runs a worker works on at once. One order of askedEvery asks a person before it sends mail.
	orderCapacity, askedEvery = 3, 3
)

// orderID is the id of a run, orderNumber its number.
func orderID(n int) string { return fmt.Sprintf("order-%03d", n) }

func orderNumber(run string) (n int) {
	_, _ = fmt.Sscanf(strings.TrimPrefix(run, "order-"), "%d", &n) // another id has the number 0
	return n
}

// WorkerCmd is an executor of the live demonstration: it claims runs until it is ended.
type WorkerCmd struct {
	Name string `required:"" help:"Name of the executor."`
}

// Run works on runs until ctx ends.
func (c WorkerCmd) Run(ctx context.Context, a *base.App) (err error) {
	dir, err := a.StateDirectory()
	if err != nil {
		return err
	}
	url, opts, err := discover(ctx, dir)
	if err != nil {
		return err
	}
	fleet, err := publisher.Connect(ctx, publisher.Config{
		URL: url, Executor: c.Name, Agent: clerk, Now: a.Now, Policy: askBeforeMail,
		Options: append(opts, patient()...),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeFleet(ctx, fleet)) }()
	executor, err := fleet.NewExecutor(publisher.ExecutorSpec{
		Loops: map[string]publisher.Loop{clerk: orders()}, Capacity: orderCapacity, WaitDetached: true, Grace: time.Second,
	})
	if err != nil {
		return err
	}
	return executor.Serve(ctx)
}

// askBeforeMail leaves the mail of some orders to a person.
func askBeforeMail(_ context.Context, run *publisher.Run, call publisher.ToolCall) (publisher.Decision, error) {
	if call.Name == "send_mail" && orderNumber(run.ID())%askedEvery == 0 {
		return publisher.Decision{Decision: schema.DecisionAsk, Message: "May this mail go to the customer?"}, nil
	}
	return publisher.Decision{Decision: schema.DecisionAllow}, nil
}

// orders is the agent: a model that follows a script, with tools that take their time.
func orders() publisher.Loop {
	type query struct {
		Order string `json:"order"`
	}
	type mail struct {
		To   string `json:"to"`
		Text string `json:"text"`
	}
	look := publisher.NewTool("look_up", "Looks an order up.", publisher.Pure, func(ctx context.Context, in query) (string, error) {
		return "2 of 3 parcels of " + in.Order + " are on their way", pause.For(ctx, lookTime)
	})
	note := publisher.NewTool("write_note", "Writes a note to an order.", publisher.Idempotent, func(ctx context.Context, in query) (string, error) {
		return "noted at " + in.Order, pause.For(ctx, lookTime)
	})
	send := publisher.NewTool("send_mail", "Sends a mail to the customer.", publisher.Hold, func(ctx context.Context, in mail) (string, error) {
		return "sent to " + in.To, pause.For(ctx, mailTime)
	})
	send.SideEffect = "mail to the customer"
	return publisher.Loop{System: "You look after the orders of a shop.", Model: think, Tools: []publisher.Tool{look, note, send}}
}

// think is the model: the turn determines its answer.
func think(ctx context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
	began := time.Now()
	if err := pause.For(ctx, thinkTime); err != nil {
		return publisher.Answer{}, err
	}
	answer := publisher.Answer{
		Message: schema.Message{Role: schema.RoleAssistant}, Model: "scripted", Duration: time.Since(began),
		Usage: &schema.Usage{InputTokens: 400 + 120*int64(request.Turn), OutputTokens: 60},
	}
	say := func(text, tool, arguments string) {
		answer.Message.Parts = append(answer.Message.Parts, schema.Text(text))
		if tool != "" {
			id := fmt.Sprintf("call-%d", request.Turn)
			answer.Message.Parts = append(answer.Message.Parts, schema.CallPart(id, tool))
			answer.Calls = append(answer.Calls, publisher.ToolCall{ID: id, Name: tool, Arguments: json.RawMessage(arguments)})
		}
	}
	order := fmt.Sprintf(`{"order":"%d"}`, 4700+orderNumber(request.Run))
	switch {
	case request.Turn >= orderTurns:
		say("The customer knows where the parcels are.", "", "")
	case request.Turn == mailTurn:
		say("I tell the customer.", "send_mail", `{"to":"customer@example.org","text":"Two of your three parcels are on their way."}`)
	case request.Turn == mailTurn+1:
		say("I write down what was said.", "write_note", order)
	default:
		say("I look at the order.", "look_up", order)
	}
	return answer, nil
}
