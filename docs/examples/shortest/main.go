package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := serve(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "shortest:", err)
		os.Exit(1)
	}
}

// snippet: shortest

func serve(ctx context.Context) (err error) {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	fleet, err := publisher.Connect(ctx, publisher.Config{Executor: host, Agent: "greeter"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fleet.Close(context.WithoutCancel(ctx))) }()
	executor, err := fleet.NewExecutor(publisher.ExecutorSpec{
		Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){
			"greeter": func(context.Context, *publisher.Run) (publisher.Work, error) { return greet, nil },
		},
	})
	if err != nil {
		return err
	}
	return executor.Serve(ctx) // until ctx ends
}

// greet does the rest of a run's work, wherever its last executor stopped.
func greet(ctx context.Context, run *publisher.Run) error {
	turn := run.OpenTurn()
	if head := run.Head(); turn == nil && head.Turn > 0 {
		return nil // its turn has ended, only the run has not
	}
	if turn == nil {
		var err error
		if turn, err = run.StartTurn(ctx, publisher.TurnSpec{}); err != nil {
			return err
		}
	}
	call := publisher.ToolCall{ID: "greet-1", Name: "greet", Replay: schema.ReplayPure}
	_, err := turn.Tool(ctx, call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		return publisher.Result("Hello!")
	})
	if err != nil {
		return err
	}
	return turn.End(ctx, publisher.TurnEnd{})
}

// end of shortest
