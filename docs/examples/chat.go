package examples

import (
	"context"
	"encoding/json"

	"github.com/waymarkio/waymark/publisher"
)

// snippet: chat

// Chat answers messages. Between two of them the run waits, and needs no process.
// A run takes 2,048 messages: behind the given turn the chat goes on in a new run.
func Chat(model publisher.Model, last int32) publisher.Loop {
	goOn := publisher.HandoffTool("go_on", "Continues the chat in a new run.", "chat")
	return publisher.Loop{
		System: "You are a colleague. Answer each message.", Chat: true, Tools: []publisher.Tool{goOn},
		Model: func(ctx context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
			if request.Turn <= last {
				return model(ctx, request)
			}
			latest := request.Messages[len(request.Messages)-1].Parts[0].Content
			arguments, err := json.Marshal(map[string]any{"agent": "chat", "remaining": []*string{latest}})
			return publisher.Answer{Calls: []publisher.ToolCall{{Name: "go_on", Arguments: arguments}}}, err
		},
	}
}

// end of chat
