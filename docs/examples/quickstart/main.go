package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// snippet: loop

type letter struct{ To string }

// send is the tool. If it ran twice for a letter, sent.txt would have the line twice.
func send(_ context.Context, l letter) (string, error) {
	f, err := os.OpenFile("sent.txt", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	_, err = fmt.Fprintln(f, "a letter to", l.To)
	return "sent", errors.Join(err, f.Close())
}

func main() {
	ctx := context.Background()
	tool := publisher.NewTool("send", "Sends a letter.", publisher.Hold, send)
	courier := publisher.Loop{Model: think, Tools: []publisher.Tool{tool}}
	fleet, err := publisher.Connect(ctx, publisher.Config{Executor: "courier-1"})
	if err != nil {
		panic(err)
	}
	executor, err := fleet.NewExecutor(publisher.ExecutorSpec{Loops: map[string]publisher.Loop{"courier": courier}})
	if err != nil {
		panic(err)
	}
	panic(executor.Serve(ctx))
}

// end of loop

// think is the model: three seconds for each answer.
func think(_ context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
	fmt.Fprintln(os.Stderr, "asking the model, turn", request.Turn)
	<-time.After(3 * time.Second)
	people := []string{"Ann", "Bob", "Cleo", "Dan"}
	if int(request.Turn) > len(people) {
		done := schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text("All letters are sent.")}}
		return publisher.Answer{Message: done}, nil
	}
	arguments, err := json.Marshal(letter{To: people[request.Turn-1]})
	return publisher.Answer{Calls: []publisher.ToolCall{{Name: "send", Arguments: arguments}}}, err
}
