// snippet: agent

package main

import (
	"context"
	"os"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/wire"
)

type page struct{ Text string }

func main() {
	ctx, client := context.Background(), anthropic.NewClient(option.WithMaxRetries(0)) // it reads ANTHROPIC_API_KEY
	write := publisher.NewTool("write", "Writes the page.", publisher.Idempotent, func(_ context.Context, p page) (string, error) {
		return "It is written.", os.WriteFile("page.txt", []byte(p.Text), 0o600)
	})
	settings := anthropic.MessageNewParams{Model: anthropic.ModelClaudeSonnet5_5, MaxTokens: 8192}
	writer := publisher.Loop{Model: wire.Model(wire.Anthropic, settings, client.Post), Tools: []publisher.Tool{write}}
	fleet, err := publisher.Connect(ctx, publisher.Config{Executor: "writer-1"})
	if err != nil {
		panic(err)
	}
	executor, err := fleet.NewExecutor(publisher.ExecutorSpec{Loops: map[string]publisher.Loop{"writer": writer}})
	if err != nil {
		panic(err)
	}
	panic(executor.Serve(ctx))
}

// end of agent
