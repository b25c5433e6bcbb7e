package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/wire"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := serve(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "openai:", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context) (err error) {
	fleet, err := publisher.Connect(ctx, publisher.Config{Executor: "buyer-1"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fleet.Close(context.WithoutCancel(ctx))) }()
	executor, err := fleet.NewExecutor(publisher.ExecutorSpec{Loops: map[string]publisher.Loop{
		"buyer": buyer(openai.NewClient(option.WithMaxRetries(0)), http.DefaultClient), // it reads OPENAI_API_KEY
	}})
	if err != nil {
		return err
	}
	return executor.Serve(ctx)
}

// buyer orders things in the shop of SHOP_URL.
func buyer(client openai.Client, shop *http.Client) publisher.Loop {
	settings := responses.ResponseNewParams{
		Model: openai.ChatModelGPT5_5, Reasoning: shared.ReasoningParam{Effort: shared.ReasoningEffortLow},
		Store: openai.Bool(false), Include: []responses.ResponseIncludable{responses.ResponseIncludableReasoningEncryptedContent},
	}
	order := publisher.NewTool("order", "Orders a thing.", publisher.Hold, func(ctx context.Context, t thing) (string, error) {
		return order(ctx, shop, t)
	})
	return publisher.Loop{Model: wire.Model(wire.OpenAIResponses, settings, client.Post), Tools: []publisher.Tool{order}}
}

type thing struct {
	Name string `json:"name"`
}

// order sends an order to the shop, and returns the shop's answer.
func order(ctx context.Context, shop *http.Client, t thing) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, os.Getenv("SHOP_URL"), bytes.NewBufferString(t.Name))
	if err != nil {
		return "", err
	}
	response, err := shop.Do(request)
	if err != nil {
		return "", err
	}
	return response.Status, response.Body.Close()
}
