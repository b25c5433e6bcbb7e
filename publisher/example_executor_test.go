package publisher_test

import (
	"context"
	"fmt"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// One process leaves in the middle of its work. Another claims the run and goes on where the record ends.
func ExampleExecutor() {
	config, stop := daemon()
	defer stop()
	ctx := context.Background()

	// The work of the agent coder. It begins anywhere: what is recorded is not done again.
	fix := func(ctx context.Context, run *publisher.Run) error {
		for _, phase := range []string{"find", "mend"} {
			if _, err := run.Phase(ctx, phase, func(context.Context) (any, error) {
				fmt.Println(phase)
				return nil, nil
			}); err != nil {
				return err
			}
		}
		return nil // the run is completed
	}

	first, err := publisher.Connect(ctx, config)
	must(err)
	run, err := first.Start(ctx, publisher.RunSpec{ID: "fix-17", Task: "Fix issue 17"})
	must(err)
	_, err = run.Phase(ctx, "find", func(context.Context) (any, error) {
		fmt.Println("find, in the first process")
		return nil, nil
	})
	must(err)
	must(run.Interrupt(ctx, "shutdown"))
	must(first.Close(ctx))

	config.Executor = "laptop-2"
	second, err := publisher.Connect(ctx, config)
	must(err)
	serving, shutdown := context.WithCancel(ctx)
	executor, err := second.NewExecutor(publisher.ExecutorSpec{
		Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){
			"coder": func(context.Context, *publisher.Run) (publisher.Work, error) { return fix, nil },
		},
		OnOutcome: func(run string, outcome publisher.Outcome, _ error) {
			fmt.Println(run, "is", outcome)
			shutdown() // an executor in earnest goes on
		},
	})
	must(err)
	must(executor.Serve(serving))
	must(second.Close(ctx))
	// Output:
	// find, in the first process
	// mend
	// fix-17 is completed
}

// A run asks a person. The question is asked once, whatever happens to the process that asks.
func ExampleRun_Ask() {
	config, stop := daemon()
	defer stop()
	ctx := context.Background()
	fleet, err := publisher.Connect(ctx, config)
	must(err)
	run, err := fleet.Start(ctx, publisher.RunSpec{ID: "release-7"})
	must(err)

	question := schema.RunWaitingData{
		InterruptID: "approve-release", Reason: schema.WaitHumanInput, Message: "Release version 7?",
		ResponseSchema: []byte(`{"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"]}`),
	}
	must(run.Wait(ctx, question)) // here the process may die: Ask finds the question open
	asked := run.Head().Interrupts[0]
	answer := publisher.Input{InterruptID: asked.InterruptID, EventID: asked.Position.ID, By: "ann"}
	answer.Payload = []byte(`{"ok":"certainly"}`)
	fmt.Println(fleet.Input(ctx, "release-7", answer) == nil)
	answer.Payload = []byte(`{"ok":true}`)
	must(fleet.Input(ctx, "release-7", answer))

	input, err := run.Ask(ctx, question)
	must(err)
	fmt.Println(input.By, "says", string(input.Payload))
	must(fleet.Close(ctx))
	// Output:
	// false
	// ann says {"ok":true}
}
