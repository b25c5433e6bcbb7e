package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// dies starts a run whose executor, laptop-1, dies while the tool of the call runs: after the tool had its effect, and
// before its result was recorded. It returns a connection of laptop-2, and the run as that took it over.
func dies(ctx context.Context, config publisher.Config, call publisher.ToolCall, tool publisher.ToolFunc) (*publisher.Fleet, *publisher.Run) {
	first, err := publisher.Connect(ctx, config)
	must(err)
	run, err := first.Start(ctx, publisher.RunSpec{ID: "billing"})
	must(err)
	turn, err := run.StartTurn(ctx, publisher.TurnSpec{})
	must(err)
	keys, err := turn.Answer(ctx, publisher.Answer{
		Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.CallPart(call.ID, call.Name)}}, Calls: []publisher.ToolCall{call},
	})
	must(err)
	must(turn.Begin(ctx, keys[0]))
	key := call.IdempotencyKey
	if key == "" {
		key = keys[0].IdempotencyKey("billing")
	}
	_, err = tool(ctx, publisher.Invocation{Key: keys[0], IdempotencyKey: key, Attempt: 1, Epoch: 1})
	must(err)
	must(first.Close(ctx)) // without a word about the run

	config.Executor = "laptop-2"
	second, err := publisher.Connect(ctx, config)
	must(err)
	plan, err := second.Plan(ctx, "billing")
	must(err)
	fmt.Println("plan:", plan.Calls[0].Action)
	resumed, err := second.Resume(ctx, "billing", publisher.ResumeSpec{Reason: "restart"})
	must(err)
	return second, resumed
}

// A pure tool changes nothing: it is simply run again.
func ExampleTurn_Tool_pure() {
	config, stop := daemon()
	defer stop()
	ctx := context.Background()
	call := publisher.ToolCall{ID: "call_1", Name: "read_file", Replay: schema.ReplayPure}
	read := func(_ context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
		fmt.Println("reading, attempt", inv.Attempt)
		return publisher.Result("package main")
	}
	fleet, run := dies(ctx, config, call, read)
	result, err := run.Turn(1).Tool(ctx, call, read)
	must(err)
	fmt.Println(string(result.Result))
	must(fleet.Close(ctx))
	// Output:
	// reading, attempt 1
	// plan: rerun
	// reading, attempt 2
	// "package main"
}

// An idempotent tool is run again under the same key, which the system that it changes has seen before.
func ExampleTurn_Tool_idempotent() {
	config, stop := daemon()
	defer stop()
	ctx := context.Background()
	call := publisher.ToolCall{ID: "call_1", Name: "charge", Replay: schema.ReplayIdempotent}
	charged := map[string]int{} // the payment provider's own records
	charge := func(_ context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
		if _, known := charged[inv.IdempotencyKey]; !known {
			charged[inv.IdempotencyKey] = 42
			fmt.Println("charged once, key", inv.IdempotencyKey)
		}
		return publisher.Result(charged[inv.IdempotencyKey])
	}
	fleet, run := dies(ctx, config, call, charge)
	result, err := run.Turn(1).Tool(ctx, call, charge)
	must(err)
	fmt.Println(string(result.Result), "charges:", len(charged))
	must(fleet.Close(ctx))
	// Output:
	// charged once, key billing.1.call_1.1
	// plan: rerun
	// 42 charges: 1
}

// A tool that can tell what became of its calls is asked. Here it had its effect, so it does not run again.
func ExampleServeVerify() {
	config, stop := daemon()
	defer stop()
	ctx := context.Background()
	call := publisher.ToolCall{ID: "call_1", Name: "deploy", Replay: schema.ReplayVerify, VerifySubject: "tools.deploy.verify"}

	// The tool's own books: what was deployed, and from which epoch on a call is accepted. In earnest both are in the
	// database that the effect is in, and are read and written in one transaction.
	deployed := map[string]string{}
	least := map[string]schema.Epoch{}
	deploy := func(_ context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
		if inv.Epoch < least[inv.IdempotencyKey] {
			return publisher.ToolResult{}, errors.New("this call was answered for: its executor was taken over")
		}
		deployed[inv.IdempotencyKey] = "v7"
		fmt.Println("deploying")
		return publisher.Result("v7")
	}
	nc, err := nats.Connect(config.URL, config.Options...)
	must(err)
	end, err := publisher.ServeVerify(nc, "tools.deploy.verify", "deploy", func(_ context.Context, q schema.VerifyRequest) (schema.VerifyReply, error) {
		if version, done := deployed[q.IdempotencyKey]; done {
			return schema.VerifyReply{Outcome: schema.VerifyDone, Result: []byte(`"` + version + `"`)}, nil
		}
		least[q.IdempotencyKey] = q.Epoch // the paused executor must not do it any more
		return schema.VerifyReply{Outcome: schema.VerifyNotDone}, nil
	})
	must(err)

	fleet, run := dies(ctx, config, call, deploy)
	result, err := run.Turn(1).Tool(ctx, call, deploy)
	must(err)
	fmt.Println(string(result.Result), "settled as:", run.State().Calls[0].Settlements[0])
	must(fleet.Close(ctx))
	must(end())
	nc.Close()
	// Output:
	// deploying
	// plan: verify
	// "v7" settled as: verified
}

// The tool cannot verify the call, so a person settles it. Without a policy every call is like that.
func ExampleTurn_Tool_hold() {
	config, stop := daemon()
	defer stop()
	ctx := context.Background()
	call := publisher.ToolCall{ID: "call_1", Name: "send_invoice", Replay: schema.ReplayHold}
	send := func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		fmt.Println("sending the invoice")
		return publisher.Result("sent")
	}
	fleet, run := dies(ctx, config, call, send)
	_, err := run.Turn(1).Tool(ctx, call, send)
	var held *publisher.HeldError
	fmt.Println("held:", errors.As(err, &held))
	fmt.Println(held.Command)

	// Anna looks into the outbox, and finds it there.
	_, err = fleet.Settle(ctx, "billing", schema.SettleRequest{CallKey: held.Key, CallEpoch: held.Epoch, How: schema.SettledDecided, Result: []byte(`"sent"`), By: "anna"})
	must(err)
	must(run.AwaitSettled(ctx, held.Key))
	result, err := run.Turn(1).Tool(ctx, call, send)
	must(err)
	fmt.Println(string(result.Result), "from the record:", result.Recorded)
	must(fleet.Close(ctx))
	// Output:
	// sending the invoice
	// plan: hold
	// held: true
	// find out what happened, then settle it with one of: waymark settle --fleet default billing 1 call_1 --epoch 1 --how decided --result JSON; or waymark settle --fleet default billing 1 call_1 --epoch 1 --how rerun; or waymark settle --fleet default billing 1 call_1 --epoch 1 --how abandoned
	// "sent" from the record: true
}

// A policy has a person asked before a tool runs. The question is answered from anywhere, by waymark input or the SDK.
func ExamplePolicy() {
	config, stop := daemon()
	defer stop()
	ctx := context.Background()
	asked := make(chan struct{}, 1)
	config.Policy = func(_ context.Context, _ *publisher.Run, call publisher.ToolCall) (publisher.Decision, error) {
		if call.Name == "read_file" {
			return publisher.Decision{Decision: schema.DecisionAllow, Policy: "reads"}, nil
		}
		asked <- struct{}{}
		return publisher.Decision{Decision: schema.DecisionAsk, Policy: "changes", Reason: "It changes production.", Expires: time.Hour}, nil
	}
	fleet, err := publisher.Connect(ctx, config)
	must(err)
	run, err := fleet.Start(ctx, publisher.RunSpec{ID: "release"})
	must(err)
	turn, err := run.StartTurn(ctx, publisher.TurnSpec{})
	must(err)
	answered := make(chan error, 1)
	go func() {
		<-asked
		var head schema.Head
		for err := error(nil); len(head.Interrupts) == 0; {
			if head, err = fleet.Head(ctx, "release"); err != nil { // until the question is in the log
				answered <- err
				return
			}
		}
		question := head.Interrupts[0]
		answered <- fleet.Input(ctx, "release", publisher.Input{
			InterruptID: question.InterruptID, EventID: question.Position.ID, Payload: []byte(`{"decision":"deny","reason":"Not on a Friday."}`), By: "anna",
		})
	}()
	_, err = turn.Tool(ctx, publisher.ToolCall{ID: "call_1", Name: "deploy"}, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		return publisher.Result("deployed")
	})
	must(<-answered)
	fmt.Println(err)
	for _, d := range run.State().Decisions {
		fmt.Println(d.Decision, d.Policy, d.By)
	}
	must(fleet.Close(ctx))
	// Output:
	// tool failed: call call_1 of turn 1: denied: Not on a Friday.
	// ask changes laptop-1
	// deny changes anna
}
