package nemesis_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// CourierVariable makes the test's program the executor of an agent that sends letters. Its value is the executor's name.
const CourierVariable = "WAYMARK_NEMESIS_COURIER"

// letterTurns is the number of letters; the second takes long after it was sent.
const letterTurns = 5

// runCourier works on runs of the agent courier until ctx ends. Its letters are lines of outbox.txt in the state directory.
func runCourier(ctx context.Context, name, state string) error {
	end, err := natsconn.Discover(ctx, state)
	if err != nil {
		return err
	}
	options, err := end.Options()
	if err != nil {
		return err
	}
	fleet, err := publisher.Connect(ctx, publisher.Config{URL: end.URL, Options: options, Executor: name})
	if err != nil {
		return err
	}
	model := func(_ context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
		if request.Turn > letterTurns {
			return publisher.Answer{Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text("All is sent.")}}}, nil
		}
		return publisher.Answer{Calls: []publisher.ToolCall{{ID: fmt.Sprintf("send-%d", request.Turn), Name: "send", Arguments: fmt.Appendf(nil, `{"number":%d}`, request.Turn)}}}, nil
	}
	send := publisher.NewTool("send", "Sends a letter.", publisher.Hold, func(ctx context.Context, letter struct {
		Number int `json:"number"`
	}) (string, error) {
		f, err := os.OpenFile(filepath.Join(state, "outbox.txt"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return "", err
		}
		if _, err := fmt.Fprintln(f, letter.Number); err != nil {
			return "", err
		}
		if letter.Number == 2 {
			wait(ctx, 3*time.Second)
		}
		return "sent", f.Close()
	})
	executor, err := fleet.NewExecutor(publisher.ExecutorSpec{
		WaitDetached: true, Loops: map[string]publisher.Loop{"courier": {Model: model, Tools: []publisher.Tool{send}}},
	})
	if err != nil {
		return err
	}
	return executor.Serve(ctx)
}
