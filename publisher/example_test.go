package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/internal/nats/natsd"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// daemon stands for `waymark serve`: a server with the fleet "default" and what works on it. It returns the Config of
// an executor.
func daemon() (config publisher.Config, stop func()) {
	dir, err := os.MkdirTemp("", "waymark-example-")
	must(err)
	ctx, cancel := context.WithCancel(context.Background())
	server, err := natsd.Start(ctx, natsd.Config{StateDir: dir}, zerolog.Nop())
	must(err)
	closed := make(chan struct{})
	nc, err := nats.Connect(server.URL(), append(server.Options(), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))...)
	must(err)
	js, err := jetstream.New(nc)
	must(err)
	must(kvstore.Provision(ctx, js, kvstore.FleetConfig{QuotaBytes: 64 << 20, Fleet: "default"}))
	_, wait, err := startDaemon(ctx, js, zerolog.Nop())
	must(err)
	return publisher.Config{URL: server.URL(), Options: server.Options(), Executor: "laptop-1", Agent: "coder"}, func() {
		cancel()
		must(wait())
		nc.Close()
		<-closed
		must(server.Close())
		must(os.RemoveAll(dir))
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// A run, a turn and a tool. What came back without error is durable.
func Example() {
	config, stop := daemon()
	defer stop()
	ctx := context.Background()

	fleet, err := publisher.Connect(ctx, config)
	must(err)
	run, err := fleet.Start(ctx, publisher.RunSpec{ID: "fix-17", Task: "Fix issue 17"})
	must(err)
	turn, err := run.StartTurn(ctx, publisher.TurnSpec{Messages: []schema.Message{
		{Role: schema.RoleUser, Parts: []schema.Part{schema.Text("Fix issue 17, please.")}},
	}})
	must(err)

	// The model answered: it wants to read a file. Its answer is published before it is acted on.
	call := publisher.ToolCall{ID: "call_1", Name: "read_file", Arguments: []byte(`{"path":"main.go"}`), Replay: schema.ReplayPure}
	_, err = turn.Answer(ctx, publisher.Answer{Message: schema.Message{
		Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text("Let me look."), schema.CallPart("call_1", "read_file")},
	}, Calls: []publisher.ToolCall{call}, FinishReasons: []string{"tool_calls"}})
	must(err)
	result, err := turn.Tool(ctx, call, func(_ context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
		fmt.Println("running with key", inv.IdempotencyKey)
		return publisher.Result("package main")
	})
	must(err)
	fmt.Println("result:", string(result.Result))

	// The turn is over with the last result.
	must(run.End(ctx, publisher.RunEnd{Summary: "Fixed."}))
	head := run.Head()
	fmt.Println(head.Status, head.Counts.Events, "events")
	must(fleet.Close(ctx))
	// Output:
	// running with key fix-17.1.call_1.1
	// result: "package main"
	// completed 5 events
}

// The executor dies in the middle of a turn. Another one takes the run over: what was recorded is not run again.
func ExampleFleet_Resume() {
	config, stop := daemon()
	defer stop()
	ctx := context.Background()
	call := publisher.ToolCall{ID: "call_1", Name: "send_invoice"}
	send := func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		fmt.Println("sending the invoice")
		return publisher.Result("sent")
	}

	first, err := publisher.Connect(ctx, config)
	must(err)
	run, err := first.Start(ctx, publisher.RunSpec{ID: "billing"})
	must(err)
	turn, err := run.StartTurn(ctx, publisher.TurnSpec{})
	must(err)
	_, err = turn.Tool(ctx, call, send)
	must(err)
	// Here it dies.

	config.Executor = "laptop-2"
	second, err := publisher.Connect(ctx, config)
	must(err)
	resumed, err := second.Resume(ctx, "billing", publisher.ResumeSpec{Reason: "restart"})
	must(err)
	fmt.Println("epoch", resumed.Epoch(), "turn", resumed.OpenTurn().Number())
	result, err := resumed.Turn(1).Tool(ctx, call, send)
	must(err)
	fmt.Println(string(result.Result), "from the record:", result.Recorded)

	fmt.Println("the first one:", run.Mark(ctx, "still here?"))
	must(second.Close(ctx))
	must(first.Close(ctx))
	// Output:
	// sending the invoice
	// epoch 2 turn 1
	// "sent" from the record: true
	// the first one: run billing: run was taken over by another executor: laptop-2 holds epoch 2, this handle has 1: stop working on the run
}

// Phases that were completed are skipped, in this process or in any that takes the run over.
func ExampleRun_Phase() {
	config, stop := daemon()
	defer stop()
	ctx := context.Background()
	fleet, err := publisher.Connect(ctx, config)
	must(err)
	run, err := fleet.Start(ctx, publisher.RunSpec{ID: "release"})
	must(err)
	for range 2 {
		output, err := run.Phase(ctx, "build", func(context.Context) (any, error) {
			fmt.Println("building")
			return map[string]string{"image": "app:7"}, nil
		})
		must(err)
		fmt.Println(string(output))
	}
	must(fleet.Close(ctx))
	// Output:
	// building
	// {"image":"app:7"}
	// {"image":"app:7"}
}

// A hand-off tells the next agent what is done and what is left, in as few words as possible. One taker gets it.
func ExampleFleet_AcceptHandoff() {
	config, stop := daemon()
	defer stop()
	ctx := context.Background()
	fleet, err := publisher.Connect(ctx, config)
	must(err)
	run, err := fleet.Start(ctx, publisher.RunSpec{ID: "refactor"})
	must(err)
	offer, err := run.Handoff(schema.HandoffOfferedData{
		Reason:    "threshold_critical",
		Completed: []schema.HandoffCompleted{{File: "store.go", Status: "done"}},
		Remaining: []schema.HandoffRemaining{{File: "api.go", Description: "use the new store", Priority: "high"}},
		Context:   &schema.HandoffContext{Decisions: []string{"keep the old API"}, FilesModified: []string{"store.go", "store_test.go", "store.go"}},
	}).Offer(ctx)
	must(err)
	fmt.Println(offer.HandoffID, offer.Data.Context.FilesModified, offer.Data.SizeChars, "characters, too long:", offer.Data.TooLong())

	config.Executor = "laptop-2"
	second, err := publisher.Connect(ctx, config)
	must(err)
	offers, err := second.Offers(ctx, "refactor")
	must(err)
	child, err := second.AcceptHandoff(ctx, offers[0], publisher.RunSpec{ID: "refactor-2", Task: "Use the new store in api.go"})
	must(err)
	head := child.Head()
	fmt.Println(head.Run, "carries", head.Handoff.HandoffID, "of", head.Handoff.Run, "out")

	_, err = fleet.AcceptHandoff(ctx, offer, publisher.RunSpec{})
	var taken *publisher.HandoffTakenError
	fmt.Println(errors.As(err, &taken), taken.By, taken.ChildRun)
	must(second.Close(ctx))
	must(fleet.Close(ctx))
	// Output:
	// handoff.0 [store.go store_test.go] 76 characters, too long: false
	// refactor-2 carries handoff.0 of refactor out
	// true laptop-2 refactor-2
}

// Artifacts are what a run made. Large content goes to the fleet's object store.
func ExampleRun_Artifact() {
	config, stop := daemon()
	defer stop()
	ctx := context.Background()
	fleet, err := publisher.Connect(ctx, config)
	must(err)
	run, err := fleet.Start(ctx, publisher.RunSpec{ID: "report"})
	must(err)
	content := make([]byte, 300<<10)
	for i := range content {
		content[i] = 'x'
	}
	must(run.Artifact(ctx, schema.ArtifactAddedData{ArtifactID: "a1", Name: "report.txt", Content: []byte(`"` + string(content) + `"`)}))
	state := run.State()
	fmt.Println(state.Artifacts[0].Name, "inline:", len(state.Artifacts[0].Content), "in the store:", state.Artifacts[0].Refs[0].Size)
	must(fleet.Hydrate(ctx, state))
	fmt.Println("loaded:", len(state.Artifacts[0].Content))
	must(fleet.Close(ctx))
	// Output:
	// report.txt inline: 0 in the store: 307202
	// loaded: 307202
}
